/* job_mesh.c - handles --mesh, and refuses meshes that the machine or the backend does not have. */
#include "backend/mpi/link.h"
#include "graph/mesh/pipeline.h"
#include "plan/job_parts.h"

#include <string.h>

/* Checks --capacity, which limits the rows per expert if experts are sharded. A resumed run has the
 * value of its former mesh among the options that it recorded. */
static rf_status check_capacity(const rf_options *options, const rf_model *model, const rf_mesh *mesh,
                                rf_error *error) {
  bool read = rf_job_given(options, "capacity") && rf_options_source(options, "capacity") != RF_OPTION_GIVEN;
  if (!rf_job_given(options, "capacity") ||
      (read && (rf_job_given(options, "resume") || rf_options_float(options, "capacity") == 1)))
    return RAFTER_OK;
  if (model->experts == 0)
    return RF_FAIL(error, RAFTER_INVALID,
                   "leave --capacity out, or plan a model with experts, such as mixtral-8x7b",
                   "%s has no experts (--capacity: expected no value, got %g)", model->name,
                   rf_options_float(options, "capacity"));
  if (rf_mesh_extent(mesh, RF_AXIS_EXPERT) > 1 || rf_job_given(options, "fit")) return RAFTER_OK;
  return RF_FAIL(
      error, RAFTER_INVALID, "add expert to --mesh, or leave --capacity out",
      "--capacity needs experts that are sharded over chips (expected --mesh expert=N, got --capacity %g)",
      rf_options_float(options, "capacity"));
}

/* The largest number of these chips that can share one copy of the model along the axis tensor. */
static int default_tensor(const rf_model *model, int chips) {
  const int64_t heads = model->heads, kv = model->kv_heads,
                width = model->experts > 0 ? rf_model_expert_ff(model) : model->ff;
  int tensor = chips;
  while (tensor > 1 && (chips % tensor || heads % tensor || (kv % tensor && tensor % kv) || width % tensor))
    tensor--;
  return tensor;
}

/* Refuses axes that no backend runs, and axes that this backend does not run. */
static rf_status check_axes(const rf_mesh *mesh, bool ranks, rf_error *error) {
  char text[160];
  if (rf_mesh_extent(mesh, RF_AXIS_SLICE) > 1)
    return RF_FAIL(error, RAFTER_INVALID,
                   "use the axis data; `rafter plan` predicts memory and time of this mesh",
                   "the axis slice can be planned but not run (--mesh: got %s)", rf_mesh_text(mesh, text));
  int64_t stages = rf_mesh_extent(mesh, RF_AXIS_PIPELINE);
  if (stages > 1 && !ranks)
    return RF_FAIL(error, RAFTER_INVALID,
                   "use other axes, or --backend cpu and one process for each chip (docs/many-machines.md)",
                   "this backend does not run pipeline stages (--mesh: got %s)", rf_mesh_text(mesh, text));
  if (stages > RF_MAX_RUN_STAGES)
    return RF_FAIL(error, RAFTER_INVALID, "use fewer stages; `rafter plan` plans more",
                   "too many pipeline stages to run (--mesh pipeline: expected at most %d, got %lld)",
                   RF_MAX_RUN_STAGES, (long long)stages);
  return RAFTER_OK;
}

/* Refuses meshes that can only be planned. `rafter plan` accepts them. */
static rf_status check_runs(const rf_options *options, const rf_mesh *mesh, const rf_plan_options *plan,
                            rf_error *error) {
  char text[160];
  const rf_backend *backend = plan->backend;
  if (rf_job_plans(options)) return RAFTER_OK;
  if (rf_backend_has_ranks(backend) && !rf_runs_on_ranks(options) && rf_mesh_chips(mesh) > 1)
    return RF_FAIL(error, RAFTER_INVALID, "leave --mesh out",
                   "rafter %s runs on one chip (--mesh: expected one chip, got %s)",
                   rf_options_command(options), rf_mesh_text(mesh, text));
  if (rf_backend_has_ranks(backend)) RF_TRY(rf_ranks_check(mesh, plan->device.hosts.hosts, error));
  if (rf_backend_has_ranks(backend) && rf_mesh_chips(mesh) > 1 &&
      strcmp(rf_options_text_or(options, "speculate", "none"), "none"))
    return RF_FAIL(
        error, RAFTER_INVALID, "leave --speculate out",
        "the number of drafts depends on the clock of a process, so the chips of a mesh cannot draft "
        "(--speculate: expected none, got %s)",
        rf_options_text(options, "speculate"));
  if (rf_mesh_chips(mesh) == 1) return RAFTER_OK;
  if (!backend->many_chips)
    return RF_FAIL(
        error, RAFTER_INVALID, "run without --mesh, or with --backend xla and a plugin of several devices",
        "several chips can be planned but not run with --backend %s (--mesh: expected one chip, got %s)",
        backend->name, rf_mesh_text(mesh, text));
  return check_axes(mesh, rf_backend_has_ranks(backend), error);
}

rf_status rf_job_resolve_mesh(const rf_options *options, rf_settings *s, rf_error *error) {
  const rf_model *model = &s->model;
  rf_machine *machine = &s->machine;
  rf_build_options *build = &s->plan.build;
  rf_mesh *mesh = &build->mesh;
  int zero = (int)rf_options_int_or(options, "zero", -1);
  bool many = machine->shape_rank > 0 || machine->slices > 1;
  RF_TRY(rf_mesh_parse(rf_options_text_or(options, "mesh", ""), zero, mesh, error));
  if (!rf_job_given(options, "mesh") && many) {
    int slices = machine->slices > 1 ? machine->slices : 1,
        devices = machine->devices_per_chip > 1 ? machine->devices_per_chip : 1;
    mesh->of[RF_AXIS_SLICE] = slices;
    int each = machine->chips / slices * devices;
    if (build->job == RF_JOB_TRAIN) mesh->of[RF_AXIS_FSDP] = each;
    else {
      mesh->of[RF_AXIS_TENSOR] = default_tensor(model, each);
      mesh->of[RF_AXIS_DATA] = each / mesh->of[RF_AXIS_TENSOR];
    }
  }
  if (zero < 0 && rf_mesh_extent(mesh, RF_AXIS_FSDP) == 1) mesh->zero = 0;
  RF_TRY(check_capacity(options, model, mesh, error));
  mesh->capacity = (float)rf_options_float_or(options, "capacity", 1);
  RF_TRY(rf_pipeline_parse(rf_options_text_or(options, "pipeline", "1f1b"), mesh, error));
  if (mesh->schedule != RF_PIPELINE_1F1B && rf_mesh_extent(mesh, RF_AXIS_PIPELINE) == 1)
    return RF_FAIL(error, RAFTER_INVALID, "add pipeline to --mesh, or leave --pipeline out",
                   "--pipeline %s needs pipeline stages (expected --mesh pipeline=P)",
                   rf_options_text_or(options, "pipeline", ""));
  if (zero > 1 && rf_mesh_extent(mesh, RF_AXIS_FSDP) == 1 && rf_mesh_extent(mesh, RF_AXIS_DATA) == 1)
    return RF_FAIL(error, RAFTER_INVALID, "add fsdp to --mesh, or leave --zero out",
                   "there is no axis to shard %s over (--zero %d: expected --mesh fsdp=N or data=N)",
                   zero > 2 ? "weights" : "gradients", zero);
  int64_t chips = rf_mesh_chips(mesh);
  RF_TRY(check_runs(options, mesh, &s->plan, error));
  if (s->plan.backend->many_chips && machine->kind == RF_MACHINE_CPU && machine->chips == 1 && chips > 1)
    RF_TRY(rf_ranks_machine(&s->plan, rf_job_is_local(options), chips, machine, error));
  rf_ranks_choose_stage(&s->plan);
  /* A plan for measured ranks that is made outside of these ranks has the threads of such a
   * rank. */
  if (chips > 1 && machine->exchange_count && !s->plan.threads_fixed && !rf_link_of_process())
    s->plan.threads = machine->threads;
  /* kernels cannot share packed matrices between chips */
  build->plain |= rf_backend_has_ranks(s->plan.backend) && chips > 1;
  if (mesh->pinned && machine->devices_per_chip != 2)
    return RF_FAIL(error, RAFTER_INVALID,
                   "leave @d2d out, or choose a machine with two devices per chip, such as tpu-v7x",
                   "a chip of %s is one device, so it has no link between devices (--mesh: expected no @d2d)",
                   machine->name);
  if (machine->devices_per_chip == 2 && chips == 2 * (int64_t)machine->chips) rf_machine_by_device(machine);
  if (mesh->pinned && !machine->by_device && chips == machine->chips)
    return RF_FAIL(
        error, RAFTER_INVALID, "count devices instead of chips: double an axis of --mesh",
        "with @d2d, --mesh counts devices instead of chips (expected %lld devices for %s, got %lld)",
        2 * (long long)machine->chips, machine->name, (long long)chips);
  if (chips == machine->chips || (chips == 1 && !many)) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_INVALID,
                 "make the product of the axes of --mesh equal to the chips of --on, for example --on "
                 "tpu-v5e:4x4 --mesh fsdp=4,tensor=4",
                 "mesh and machine have different numbers of chips (--mesh: expected %d for %s, got %lld)",
                 machine->chips, machine->name, (long long)chips);
}
