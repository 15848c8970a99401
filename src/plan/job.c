/* job.c - see job.h. */
#include "plan/job.h"
#include "plan/job_parts.h"

#include "backend/mpi/link.h"
#include "base/text.h"
#include "graph/mesh/pipeline.h"
#include "model/adapter.h"
#include "model/run_folder.h"
#include "plan/loss.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is(const rf_options *options, const char *name, const char *text) {
  return !strcmp(rf_options_text_or(options, name, "?"), text);
}

static int choice_or(const rf_options *options, const char *name, int otherwise) {
  return rf_options_knows(options, name) ? rf_options_choice(options, name) : otherwise;
}

/* Refuses a dtype that has no kernel. Only `rafter plan` accepts such a dtype. */
static rf_status planned_only(const rf_options *options, const char *option, rf_error *error) {
  if (rf_job_plans(options)) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_INVALID, "`rafter plan` predicts the memory and time of the job",
                 "--%s %s can only be planned: no kernel computes in this type", option,
                 rf_options_text(options, option));
}

static rf_status resolve_narrow(const rf_options *options, const rf_machine *machine, rf_build_options *build,
                                rf_error *error) {
  static const struct {
    const char *name;
    rf_dtype dtype;
  } types[] = {{"bf16", RF_BF16}, {"int8", RF_I8}, {"fp8", RF_F8_E4M3}, {"int4", RF_I4}};
  const char *matmul = rf_options_text_or(options, "matmul-dtype", NULL);
  build->kv_dtype_set = rf_options_text_or(options, "kv-dtype", NULL) != NULL;
  build->kv_dtype = RF_F32;
  for (size_t i = 0; i < sizeof types / sizeof *types; i++)
    if (is(options, "kv-dtype", types[i].name)) build->kv_dtype = types[i].dtype;
  if (build->kv_dtype == RF_F8_E4M3 || build->kv_dtype == RF_I4)
    RF_TRY(planned_only(options, "kv-dtype", error));
  build->narrow_set = is(options, "weights", "fp8") || is(options, "weights", "int4");
  build->narrow = is(options, "weights", "fp8") ? RF_F8_E4M3 : RF_I4;
  if (build->narrow_set) RF_TRY(planned_only(options, "weights", error));
  build->matmul_set = matmul != NULL;
  build->matmul = is(options, "matmul-dtype", "fp8") ? RF_F8_E4M3 : RF_I8;
  if (matmul && (!(machine->flops[build->matmul] > 0) || machine->kind == RF_MACHINE_CPU))
    return RF_FAIL(error, RAFTER_INVALID, "choose another --matmul-dtype, or a machine with a peak for it",
                   "%s has no peak FLOP/s for %s (--matmul-dtype)", machine->name, matmul);
  return RAFTER_OK;
}

/* Appends a hint with up to 12 divisors, such as "choose --accumulate among the divisors of 4: 1,
 * 2, 4". */
static void say_divisors(const char *name, int64_t batch, char *hint, size_t capacity) {
  rf_text_append(hint, capacity, "choose %s among the divisors of %lld: ", name, (long long)batch);
  int count = 0;
  for (int64_t i = 1; i <= batch && count <= 12; i++)
    if (batch % i == 0 && ++count <= 12)
      rf_text_append(hint, capacity, "%s%lld", i > 1 ? ", " : "", (long long)i);
  if (count > 12) rf_text_append(hint, capacity, ", ...");
}

/* Returns the batch. Raises a default batch to a multiple of the chips that share its sequences, so
 * that a default batch and a default mesh fit together. A search for a mesh starts with the same
 * default batch. In a training step, the batch is also raised to a multiple of --microbatch or
 * --accumulate. */
static int64_t batch_of(const rf_options *options, rf_settings *s) {
  const rf_build_options *build = &s->plan.build;
  const bool train = build->job == RF_JOB_TRAIN, micro = train && rf_job_given(options, "microbatch"),
             accumulate = train && rf_job_given(options, "accumulate");
  int64_t batch = rf_options_int_or(options, "batch", 1), share = rf_mesh_copies(&build->mesh);
  if (rf_job_given(options, "batch")) return batch;
  if (micro && accumulate)
    return rf_options_int(options, "microbatch") * rf_options_int(options, "accumulate");
  s->batch_for = rf_mesh_chips(&build->mesh) > 1 ? "this mesh" : micro ? "--microbatch" : "--accumulate";
  if (micro) {
    int64_t size = rf_options_int(options, "microbatch");
    share = share / rf_common_divisor(share, size) * size;
  } else if (accumulate) share *= rf_options_int(options, "accumulate");
  if (build->job == RF_JOB_GENERATE) share *= rf_mesh_size(&build->mesh, RF_AXES_OF_PASS);
  int64_t raised = (batch + share - 1) / share * share;
  if (raised == batch) s->batch_for = NULL;
  return raised;
}

static bool packs_answers(const rf_options *options) {
  return !strcmp(rf_options_command(options), "rl") || is(options, "job", "rl");
}

/* Computes the microbatch or the number of microbatches from the other two numbers, by the rule
 * batch = microbatch x accumulate. */
static rf_status resolve_batch(const rf_options *options, int64_t batch, rf_build_options *build,
                               rf_error *error) {
  bool micro_given = rf_job_given(options, "microbatch"),
       accumulate_given = rf_job_given(options, "accumulate");
  int64_t micro = rf_options_int_or(options, "microbatch", 0),
          accumulate = rf_options_int_or(options, "accumulate", 0);
  if (!micro && !accumulate) accumulate = 1;
  if (!micro) micro = batch / accumulate;
  /* reinforcement learning packs answers into microbatches, so the last microbatch may have fewer
   * rows */
  if (!accumulate && packs_answers(options)) batch = (batch + micro - 1) / micro * micro;
  if (!accumulate) accumulate = batch / micro;
  if (micro < 1 || accumulate < 1 || micro * accumulate != batch) {
    char hint[240] = "";
    say_divisors(accumulate_given && !micro_given ? "--accumulate"
                 : accumulate_given               ? "--microbatch (and leave --accumulate out)"
                                                  : "--microbatch",
                 batch, hint, sizeof hint);
    if (micro_given && accumulate_given)
      return RF_FAIL(error, RAFTER_INVALID, hint,
                     "--batch, --microbatch and --accumulate contradict each other (expected %lld = "
                     "microbatch x accumulate, got %lld x %lld)",
                     (long long)batch, (long long)micro, (long long)accumulate);
    return RF_FAIL(error, RAFTER_INVALID, hint,
                   "--%s does not divide the batch (expected a divisor of --batch %lld, got %lld)",
                   micro_given ? "microbatch" : "accumulate", (long long)batch,
                   (long long)(micro_given ? micro : accumulate));
  }
  build->microbatch = micro;
  build->accumulate = (int)accumulate;
  return RAFTER_OK;
}

/* A plan for an accelerator's data sheet must not depend on the cores and the instruction set of
 * the machine that computes the plan. */
static bool plans_by_sheet(const rf_options *options, const rf_machine *machine) {
  return rf_job_plans(options) && machine->kind != RF_MACHINE_CPU &&
         !strcmp(rf_options_text_or(options, "backend", "auto"), "auto");
}

static rf_status resolve_backend(const rf_options *options, const rf_machine *machine, rf_plan_options *plan,
                                 rf_error *error) {
  /* programs that XLA compiles have no packed matrices, and they choose tokens themselves */
  plan->build.plain = plan->build.sampled =
      rf_job_given(options, "compile") || rf_job_given(options, "stablehlo");
  plan->gathers_ahead = plan->build.plain && machine->kind == RF_MACHINE_TPU;
  if (plans_by_sheet(options, machine)) {
    plan->isa = RF_ISA_BASE;
    plan->threads = 1;
    plan->backend = machine->kind == RF_MACHINE_TPU ? &RF_BACKEND_SHEET_TPU : &RF_BACKEND_SHEET_GPU;
    return RAFTER_OK;
  }
  RF_TRY(rf_isa_resolve(rf_options_text_or(options, "cpu", "auto"), &plan->isa, error));
  plan->threads = (int)rf_options_int_or(options, "threads", omp_get_num_procs());
  plan->threads_fixed = rf_options_given(options, "threads");
  plan->backend = rf_backend_find(rf_options_text_or(options, "backend", "auto"));
  plan->device.plugin = rf_options_text_or(options, "plugin", getenv("RAFTER_PJRT_PLUGIN"));
  plan->device.flags = rf_options_text(options, "xla-flags");
  plan->device.traced = rf_options_knows(options, "trace") && rf_options_is_set(options, "trace");
  plan->build.plain |= plan->backend && plan->backend->plain_weights;
  plan->build.sampled |= plan->backend && plan->backend->compiles;
  RF_TRY(rf_hosts_of(options, &plan->device.hosts, error));
  if (rf_backend_has_ranks(plan->backend)) RF_TRY(rf_ranks_agree(plan, error));
  if (plan->device.hosts.hosts > 1 && plan->backend &&
      !(plan->backend->device && plan->backend->device->send))
    return RF_FAIL(error, RAFTER_INVALID, "add --backend xla --plugin FILE, or leave --hosts out",
                   "several hosts need a backend with a plugin (--backend: expected xla, got %s)",
                   plan->backend->name);
  return plan->backend ? RAFTER_OK
                       : RF_FAIL(error, RAFTER_INVALID, "choose auto, reference, cpu, xla or null",
                                 "unknown backend %s", rf_options_text_or(options, "backend", ""));
}

/* Without --seq, `rafter plan` uses a usual length of training and serving. Many models accept far
 * longer contexts. Commands that run a model use the longest sequence of the model. */
static int64_t default_seq(const rf_options *options, const rf_model *model) {
  return rf_job_plans(options) && model->max_seq > RF_PLAN_SEQ ? RF_PLAN_SEQ : model->max_seq;
}

/* Without --dtype, `rafter plan` uses bf16 on accelerators, whose f32 products are slow. */
static rf_dtype resolve_dtype(const rf_options *options, const rf_machine *machine) {
  if (rf_job_given(options, "dtype")) return is(options, "dtype", "bf16") ? RF_BF16 : RF_F32;
  return rf_job_plans(options) && machine->kind != RF_MACHINE_CPU && machine->flops[RF_BF16] > 0 ? RF_BF16
                                                                                                 : RF_F32;
}

static rf_status resolve_head_gradient(const rf_options *options, rf_build_options *build, rf_error *error) {
  build->head_gradient = is(options, "head-grad", "bf16") ? RF_BF16 : RF_F32;
  if (build->head_gradient == RF_F32 || build->dtype == RF_BF16) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_INVALID, "add --dtype bf16, or leave --head-grad out",
                 "--head-grad bf16 needs activations in bf16 (--dtype: expected bf16, got %s)",
                 rf_dtype_name(build->dtype));
}

static rf_status resolve_seq(const rf_options *options, const rf_model *model, rf_build_options *build,
                             rf_error *error) {
  build->seq = rf_options_int_or(options, "seq", default_seq(options, model));
  if (model->position == RF_POSITION_LEARNED && build->seq > model->max_seq)
    return RF_FAIL(error, RAFTER_INVALID, "lower --seq",
                   "%s has positions for fewer tokens (--seq: expected at most %lld, got %lld)", model->name,
                   (long long)model->max_seq, (long long)build->seq);
  if (build->microbatch * build->seq > INT32_MAX / 2)
    return RF_FAIL(error, RAFTER_INVALID, "lower --microbatch or --seq",
                   "a microbatch has too many tokens (expected at most %d, got %lld)", INT32_MAX / 2,
                   (long long)(build->microbatch * build->seq));
  return RAFTER_OK;
}

/* Resolves --offload. The machine must have a host, and the job must have the tensors that
 * --offload names. */
static rf_status resolve_offload(const rf_options *options, const char *job, const rf_machine *machine,
                                 rf_build_options *build, rf_error *error) {
  const char *text = rf_options_text_or(options, "offload", NULL),
             *whole = rf_options_text_or(options, "job", job);
  const unsigned of_training = RF_OFFLOAD_OPTIMIZER | RF_OFFLOAD_ACTIVATIONS,
                 of_job = build->job == RF_JOB_TRAIN      ? of_training
                          : build->job == RF_JOB_GENERATE ? RF_OFFLOAD_KV
                                                          : 0;
  if (!text) return RAFTER_OK;
  RF_TRY(rf_offload_parse(text, &build->offload, error));
  if (machine->kind == RF_MACHINE_CPU)
    return RF_FAIL(error, RAFTER_INVALID, "leave --offload out, or plan for an accelerator with --on",
                   "a CPU computes in host memory, so it has no other memory to offload to (--offload on %s)",
                   machine->name);
  const unsigned foreign = build->offload & (of_training | RF_OFFLOAD_KV) & ~of_job;
  bool kv = foreign == RF_OFFLOAD_KV;
  if (foreign && strcmp(whole, "rl"))
    return RF_FAIL(error, RAFTER_INVALID,
                   kv ? "only jobs with a cache have kv: generate, prefill, rollout, serve"
                      : "only --job train has optimizer and activations",
                   "--job %s has no %s (--offload)", whole,
                   kv ? "KV cache" : "optimizer and keeps no activations for a backward pass");
  build->offload &= ~foreign; /* only another phase of the RL step has these tensors */
  if (build->offload & RF_OFFLOAD_ACTIVATIONS && rf_mesh_extent(&build->mesh, RF_AXIS_PIPELINE) > 1)
    return RF_FAIL(error, RAFTER_INVALID, "leave activations out of --offload, or add --remat block",
                   "pipeline stages keep the activations of microbatches in flight on the chip (--offload "
                   "activations with --mesh pipeline)");
  return RAFTER_OK;
}

/* Handles --adapter, which loads adapters, and --lora, which creates adapters to train. */
static rf_status resolve_lora(const rf_options *options, rf_settings *s, rf_error *error) {
  const char *adapter = rf_options_text_or(options, "adapter", NULL),
             *lora = rf_options_text_or(options, "lora", NULL);
  if ((adapter || lora) && s->model.lora.rank > 0)
    return RF_FAIL(error, RAFTER_INVALID, "to use other adapters, give the base model as MODEL",
                   "MODEL is an adapter already (%s)", s->model.lora.folder);
  if (adapter && lora)
    return RF_FAIL(error, RAFTER_INVALID, "leave --lora out: the adapter defines the rank and the targets",
                   "--adapter and --lora cannot be combined");
  if (lora) return rf_lora_parse(lora, &s->model, &s->model.lora, error);
  if (!adapter) return RAFTER_OK;
  rf_lora found;
  RF_TRY(rf_adapter_open(adapter, &s->model, &found, error));
  s->model.lora = found;
  return RAFTER_OK;
}

/* Finds the largest rank of the adapters of --adapters, and the number of these adapters. */
static rf_status read_adapters(const rf_options *options, const rf_model *model, int *count, int *rank,
                               rf_error *error) {
  const char *const *texts = NULL;
  *count = *rank = 0;
  if (rf_options_knows(options, "adapters")) texts = rf_options_texts(options, "adapters", count);
  for (int i = 0; i < *count; i++) {
    const char *text = texts[i], *folder = strchr(text, '=');
    rf_lora lora;
    if (!folder || folder == text || !folder[1])
      return RF_FAIL(error, RAFTER_INVALID, "for example --adapters sql=runs/4",
                     "--adapters is not NAME=DIR (got '%.80s')", text);
    RF_TRY(rf_adapter_open(folder + 1, model, &lora, error));
    if (lora.rank > *rank) *rank = lora.rank;
  }
  return RAFTER_OK;
}

/* Resolves --adapter-slots and --adapter-rank. The default is room for the adapters of --adapters,
 * and for RF_ADAPTER_SLOTS more if --adapter-folder lets clients load them. */
static rf_status resolve_slots(const rf_options *options, rf_settings *s, rf_error *error) {
  rf_build_options *b = &s->plan.build;
  int named, largest;
  if (!rf_options_knows(options, "adapter-slots")) return RAFTER_OK;
  RF_TRY(read_adapters(options, &s->model, &named, &largest, error));
  bool loads = rf_options_text_or(options, "adapter-folder", NULL) != NULL;
  int64_t rank = largest > RF_ADAPTER_RANK || !loads ? largest : RF_ADAPTER_RANK,
          slots = named + (loads ? RF_ADAPTER_SLOTS : 0);
  b->adapter_slots = (int)rf_options_int_or(options, "adapter-slots", slots);
  b->adapter_rank = (int)rf_options_int_or(options, "adapter-rank", rank ? rank : RF_ADAPTER_RANK);
  if (b->adapter_slots < named)
    return RF_FAIL(error, RAFTER_INVALID, "raise --adapter-slots, or leave it out",
                   "there are more adapters than slots (--adapter-slots: expected %d or more, got %d)", named,
                   b->adapter_slots);
  if (b->adapter_rank < largest)
    return RF_FAIL(error, RAFTER_INVALID, "raise --adapter-rank, or leave it out",
                   "an adapter of --adapters has a larger rank (--adapter-rank: expected %d or more, got %d)",
                   largest, b->adapter_rank);
  if (!b->adapter_slots) return RAFTER_OK;
  if (s->model.lora.rank > 0)
    return RF_FAIL(error, RAFTER_INVALID, "give the base as MODEL, and the adapter with --adapters NAME=DIR",
                   "slots need a model without an adapter of its own (%s)", s->model.lora.folder);
  if (rf_mesh_chips(&b->mesh) > 1)
    return RF_FAIL(error, RAFTER_INVALID, "leave --adapter-slots out, or plan for one chip",
                   "slots for adapters need one chip (--mesh: expected 1 chip, got %lld)",
                   (long long)rf_mesh_chips(&b->mesh));
  rf_lora all;
  return rf_lora_all(&s->model, b->adapter_rank, &all, error);
}

static rf_status resolve_weights(const rf_options *options, rf_settings *s, rf_error *error) {
  rf_build_options *build = &s->plan.build;
  rf_weights_as as = (rf_weights_as)choice_or(options, "weights", RF_WEIGHTS_FILE);
  if (build->job == RF_JOB_TRAIN && s->model.lora.rank == 0)
    return !rf_job_given(options, "weights") || as == RF_WEIGHTS_FILE
               ? RAFTER_OK
               : RF_FAIL(error, RAFTER_INVALID,
                         "leave --weights out, or add --lora, which freezes the weights",
                         "--weights needs frozen weights, but this job trains them");
  /* the option --compile takes int8 matrices as arrays of codes, because it does not run the
   * program */
  bool ranks = rf_backend_has_ranks(s->plan.backend) && rf_mesh_chips(&build->mesh) > 1;
  if (as == RF_WEIGHTS_INT8 && !s->plan.backend->plain_weights && !ranks) build->plain = false;
  if (build->plain && (as == RF_WEIGHTS_INT8 || as == RF_WEIGHTS_Q4))
    return RF_FAIL(error, RAFTER_INVALID,
                   "choose --weights f32 or bf16; a file's matrices are widened to --dtype",
                   "%s with plain matrices (--weights: got %s)",
                   s->plan.backend->plain_weights ? "--backend xla computes" : "several chips compute",
                   rf_options_text(options, "weights"));
  build->weights = &s->weights;
  bool in_files = as != RF_WEIGHTS_FP8 && as != RF_WEIGHTS_INT4; /* no file stores these */
  return rf_weight_types_read(s->weights_folder, &s->model, in_files ? as : RF_WEIGHTS_FILE, &s->weights,
                              error);
}

static rf_status resolve_optimizer(const rf_options *options, rf_build_options *build, rf_error *error) {
  double decay = rf_options_float_or(options, "weight-decay", 0);
  build->optimizer = is(options, "optimizer", "adam") ? RF_ADAM : RF_ADAMW;
  build->beta1 = (float)rf_options_float_or(options, "beta1", 0.9);
  build->beta2 = (float)rf_options_float_or(options, "beta2", 0.95);
  build->eps = (float)rf_options_float_or(options, "eps", 1e-8);
  build->weight_decay = build->optimizer == RF_ADAM ? 0 : (float)decay;
  build->clip = (float)rf_options_float_or(options, "clip", 0);
  if (build->optimizer == RF_ADAMW || !rf_job_given(options, "weight-decay") || !(decay > 0))
    return RAFTER_OK;
  return RF_FAIL(error, RAFTER_INVALID, "choose --optimizer adamw",
                 "adam has no weight decay (--weight-decay: expected 0, got %g)", decay);
}

/* Resolves --program and --returns. The enums have the same order as the choices of the option. */
static rf_status resolve_program(const rf_options *options, const char *job, rf_plan_options *plan,
                                 rf_error *error) {
  bool score = plan->build.job == RF_JOB_SCORE;
  plan->program.program = (rf_program_kind)choice_or(options, "program", RF_PROGRAM_RAFTER);
  plan->program.result = (rf_program_result)choice_or(options, "returns", RF_RESULT_LOSS);
  plan->program.top = plan->build.top > 0 ? plan->build.top : RF_PROGRAM_TOP;
  bool ours = plan->program.program == RF_PROGRAM_RAFTER;
  if (plan->build.offload && !ours)
    return RF_FAIL(error, RAFTER_INVALID, "leave --offload or --program out",
                   "--offload cannot be planned for a JAX program (--program %s)",
                   rf_program_name(plan->program.program));
  if (!rf_job_given(options, "returns") || (score && !ours)) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_INVALID,
                 score ? "add --program jax-scan or jax-unrolled, or leave --returns out"
                       : "add --job score --program jax-scan, or leave --returns out",
                 "--returns needs a JAX program of --job score (got --program %s --job %s)",
                 rf_program_name(plan->program.program), rf_options_text_or(options, "job", job));
}

/* Returns the machine of --on. For a lower level of --cpu, returns the machine as it was calibrated
 * at this level. */
static rf_status find_machine(const rf_options *options, rf_machine *machine, rf_error *error) {
  const char *on = rf_options_text_or(options, "on", "local");
  rf_isa isa;
  if (!rf_job_is_local(options)) return rf_machine_find(on, machine, error);
  RF_TRY(rf_isa_resolve(rf_options_text_or(options, "cpu", "auto"), &isa, error));
  return rf_machine_find_at(on, isa, machine, error);
}

static rf_status resolve_where(const rf_options *options, rf_settings *s, rf_error *error) {
  static const char *const texts[] = {"on", "price", "lora", "adapter"};
  const char *spec = rf_options_argument(options, 0);
  if (!spec)
    return RF_FAIL(error, RAFTER_INVALID,
                   "for example `rafter plan gpt2`; `rafter plan --help` lists the forms",
                   "which model? (MODEL is missing)");
  RF_TRY(rf_model_resolve(spec, &s->model, s->weights_folder, error));
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
    if (rf_job_given(options, texts[i]) && is(options, texts[i], ""))
      return RF_FAIL(error, RAFTER_INVALID, "leave the option out, or give it a value", "--%s is empty",
                     texts[i]);
  RF_TRY(resolve_lora(options, s, error));
  RF_TRY(find_machine(options, &s->machine, error));
  s->plan.machine = &s->machine;
  RF_TRY(resolve_backend(options, &s->machine, &s->plan, error));
  if (rf_backend_has_ranks(s->plan.backend))
    RF_TRY(rf_ranks_share_machine(rf_job_is_local(options), &s->machine, error));
  if (!rf_job_given(options, "price")) return RAFTER_OK;
  return rf_machine_set_price(&s->machine, rf_options_text(options, "price"), error);
}

/* Refuses a limit above the memory for a plan, because such a plan runs out of memory. A CPU's free
 * memory changes between two calls, so there the limit is the whole memory. */
static rf_status check_limit(const rf_machine *machine, int64_t limit, rf_error *error) {
  const double reserve = machine->kind == RF_MACHINE_CPU ? 0 : machine->reserve_bytes,
               most = machine->memory_bytes - reserve;
  if ((double)limit <= most) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_INVALID, "leave BYTES out, or plan a larger machine (--on)",
                 "--fit allows more memory than %s has (expected at most %.4g GiB, got %.4g GiB)",
                 machine->name, most / 0x1p30, (double)limit / 0x1p30);
}

/* Handles --fit and --margin, which limit the memory of a search. rafter runs on CPUs only, so
 * another program runs the plans for other machines. A value BYTES of --fit is the user's own
 * limit. */
static rf_status resolve_budget(const rf_options *options, rf_settings *s, rf_error *error) {
  rf_plan_options *plan = &s->plan;
  const bool limit = rf_job_given(options, "fit") && !rf_options_bare(options, "fit");
  s->fit = rf_job_given(options, "fit");
  if (rf_job_given(options, "margin") && !s->fit)
    return RF_FAIL(error, RAFTER_INVALID, "add --fit, or leave --margin out",
                   "--margin needs --fit, whose search it limits");
  if (rf_job_given(options, "latency") && !s->fit)
    return RF_FAIL(error, RAFTER_INVALID, "add --fit, or leave --latency out",
                   "--latency needs --fit, whose search it limits");
  plan->budget_bytes = limit ? rf_options_int(options, "fit") : 0;
  if (limit) RF_TRY(check_limit(&s->machine, plan->budget_bytes, error));
  s->margin =
      rf_options_float_or(options, "margin", limit || s->machine.kind == RF_MACHINE_CPU ? 0 : RF_PLAN_MARGIN);
  if (!s->fit || !(s->margin > 0)) return RAFTER_OK;
  const int64_t room = rf_plan_room(plan);
  plan->margin_bytes = (int64_t)(s->margin * (double)room);
  plan->budget_bytes = room - plan->margin_bytes;
  return RAFTER_OK;
}

rf_status rf_settings_resolve(const rf_options *options, const char *job, rf_settings *s, rf_error *error) {
  memset(s, 0, sizeof *s);
  rf_plan_options *plan = &s->plan;
  rf_build_options *build = &plan->build;
  bool train = !strcmp(job, "train"), score = !strcmp(job, "score");
  RF_TRY(resolve_where(options, s, error));
  build->job = train ? RF_JOB_TRAIN : score ? RF_JOB_SCORE : RF_JOB_GENERATE;
  build->accumulate = 1;
  RF_TRY(rf_job_resolve_mesh(options, s, error));
  if (build->job == RF_JOB_GENERATE) RF_TRY(resolve_slots(options, s, error));
  build->microbatch = batch_of(options, s);
  if (train) RF_TRY(resolve_batch(options, build->microbatch, build, error));
  RF_TRY(resolve_weights(options, s, error));
  RF_TRY(resolve_seq(options, &s->model, build, error));
  RF_TRY(resolve_narrow(options, &s->machine, build, error));
  build->fast = !train && is(options, "compute", "fast");
  build->chunk = rf_options_int_or(options, "prefill-chunk", 0);
  if (rf_options_knows(options, "speculate") && !is(options, "speculate", "none"))
    build->draft = (int)rf_options_int(options, "draft-tokens");
  build->sequences = rf_options_int_or(options, "sequences", 0);
  build->top = score ? (int)rf_options_int_or(options, "top", 0) : 0;
  build->dtype = resolve_dtype(options, &s->machine);
  build->softmax = is(options, "softmax", "bf16") ? RF_BF16 : RF_F32;
  build->dropout = (float)rf_options_float_or(options, "dropout", -1);
  if (train) RF_TRY(resolve_head_gradient(options, build, error));
  if (train) RF_TRY(rf_loss_resolve(options, build, error));
  RF_TRY(resolve_optimizer(options, build, error));
  RF_TRY(resolve_offload(options, job, &s->machine, build, error));
  RF_TRY(resolve_program(options, job, plan, error));
  plan->overlap = is(options, "overlap", "on")     ? RF_OVERLAP_ON
                  : is(options, "overlap", "auto") ? RF_OVERLAP_AUTO
                                                   : RF_OVERLAP_OFF;
  /* a rank waits in the collectives that the plan does not split */
  plan->collectives = (rf_collectives)choice_or(options, "collectives",
                                                rf_backend_has_ranks(plan->backend) ? RF_COLLECTIVES_NONE
                                                                                    : RF_COLLECTIVES_CORE);
  RF_TRY(rf_remat_parse(rf_options_text_or(options, "remat", "none"), &plan->remat, error));
  s->seq_default = rf_job_plans(options) && !rf_job_given(options, "seq");
  s->dtype_default = rf_job_plans(options) && !rf_job_given(options, "dtype");
  RF_TRY(resolve_budget(options, s, error));
  s->vary = (rf_fit_vary){.remat = !rf_job_given(options, "remat"),
                          .mesh = train && s->machine.chips > 1 && !rf_job_given(options, "mesh"),
                          .microbatch =
                              !rf_job_given(options, "microbatch") && !rf_job_given(options, "accumulate"),
                          .dtype = !rf_job_given(options, "dtype") && build->head_gradient == RF_F32};
  return RAFTER_OK;
}

/* ---- the model that drafts ------------------------------------------------------------------- */

const char *rf_drafter_given(const rf_options *options) {
  bool none = !rf_options_knows(options, "speculate") || is(options, "speculate", "none") ||
              is(options, "speculate", "ngram");
  return none ? NULL : rf_options_text(options, "speculate");
}

/* The model that drafts takes its options of machine and precision from the target. */
static rf_status drafter_options(const rf_options *options, rf_options **out, rf_error *error) {
  static const char *const texts[] = {"on",    "mesh",    "backend", "plugin",  "xla-flags", "cpu",
                                      "dtype", "softmax", "weights", "compute", "kv-dtype",  "collectives"},
                           *const numbers[] = {"threads", "prefill-chunk"};
  char folder[4096], number[32];
  RF_TRY(rf_options_new(rf_options_commands(options), rf_options_command(options), out, error));
  RF_TRY(rf_run_weights(rf_drafter_given(options), folder, error));
  RF_TRY(rf_options_set(*out, "MODEL", folder, error));
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
    if (rf_job_given(options, texts[i]))
      RF_TRY(rf_options_set(*out, texts[i], rf_options_text(options, texts[i]), error));
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
    if (!rf_job_given(options, numbers[i])) continue;
    snprintf(number, sizeof number, "%lld", (long long)rf_options_int(options, numbers[i]));
    RF_TRY(rf_options_set(*out, numbers[i], number, error));
  }
  return RAFTER_OK;
}

static rf_status check_drafter(const rf_settings *target, const rf_settings *drafter, rf_error *error) {
  const rf_model *model = &drafter->model;
  if (model->vocab != target->model.vocab)
    return RF_FAIL(error, RAFTER_INVALID, "choose a smaller model of the same family, or --speculate ngram",
                   "the draft model has another vocabulary (--speculate: expected the %lld tokens of %s, got "
                   "the %lld of %s)",
                   (long long)target->model.vocab, target->model.name, (long long)model->vocab, model->name);
  if (model->position == RF_POSITION_LEARNED && target->plan.build.seq > model->max_seq)
    return RF_FAIL(
        error, RAFTER_INVALID, "lower --seq, or choose another draft model",
        "the draft model's context is too short (--speculate: expected %lld tokens or more, got %lld)",
        (long long)target->plan.build.seq, (long long)model->max_seq);
  return RAFTER_OK;
}

rf_status rf_settings_resolve_drafter(const rf_options *options, const rf_settings *target,
                                      rf_settings *drafter, rf_error *error) {
  const rf_build_options *of = &target->plan.build;
  rf_build_options *b = &drafter->plan.build;
  rf_options *own = NULL;
  rf_error why = {0};
  rf_status status = drafter_options(options, &own, &why);
  if (status == RAFTER_OK) status = rf_settings_resolve(own, "generate", drafter, &why);
  rf_options_free(own);
  if (status != RAFTER_OK)
    return RF_FAIL(error, status, why.hint[0] ? why.hint : NULL, "--speculate: %s", why.message);
  b->seq = of->seq;
  b->microbatch = b->sequences = of->microbatch;
  b->mesh = of->mesh;
  return check_drafter(target, drafter, error);
}

/* ---- options --------------------------------------------------------------------------------- */

const rf_option RF_MODEL_OPTIONS[] = {
    RF_WORDS(
        "on", TEXT, "MACHINE", "local", "Machine",
        "machine to plan for: local, a name such as tpu-v5e:4x4 or h100-sxm:2x8 (2 nodes of 8 chips), or a "
        "machine file"),
    RF_CHOICE("backend", "auto|reference|cpu|xla|null", "auto", "Machine",
              "what executes the plan: kernels of the CPU, or a program that XLA compiles (xla, with "
              "--plugin); null executes the plan but computes nothing"),
    RF_WORDS("plugin", PATH, "FILE", NULL, "Machine",
             "PJRT plugin of --backend xla, such as libtpu.so; unset: RAFTER_PJRT_PLUGIN"),
    RF_WORDS("xla-flags", TEXT, "FLAGS", NULL, "Machine",
             "options for the compiler of XLA: \"--xla_name=value --xla_other=true\""),
    RF_NUMBER("threads", INT, NULL, 1, 1024, NULL, "Machine",
              "threads to use; unset: one for each core, and fewer while others use the cores"),
    RF_CHOICE("cpu", "auto|base|avx2|avxvnni|avx512|avx512bf16|amx", "auto", "Machine",
              "highest instruction set to use; results are bit-identical with every set except amx, which "
              "rounds bf16 products differently"),
    RF_CHOICE(
        "dtype", "f32|bf16", "f32", "Precision",
        "dtype of weights and activations; training in bf16 also keeps f32 master weights; unset: f32, but "
        "bf16 in a plan for an accelerator"),
    RF_CHOICE(
        "weights", "file|f32|bf16|int8|q4|fp8|int4", "file", "Precision",
        "dtype of weights that are not trained; file: as in a GGUF file, else --dtype\nOther dtypes are "
        "converted while loading (int8: one scale for each output, q4: one for 32 values); fp8 and int4 "
        "can only be planned."),
    RF_CHOICE("softmax", "f32|bf16", "f32", "Precision", "precision of the exponentials in attention"),
    RF_WORDS("adapter", PATH, "DIR", NULL, "Model",
             "PEFT adapter to apply to the weights; train continues training it"),
    RF_NUMBER("seed", INT, NULL, 0, 0x1p62, "0", "Model", "seed of the random numbers"),
    RF_WORDS(
        "mesh", TEXT, "AXIS=CHIPS,..", NULL, "Chips",
        "chips along data, fsdp, tensor, sequence, context, pipeline, expert, slice: "
        "data=2,fsdp=16,tensor=4\nA chip is a process of mpirun (docs/many-machines.md; auto: the fastest "
        "mesh) or a device of --backend xla, which has no pipeline; slice can only be planned."),
    RF_NUMBER("zero", INT, NULL, 0, 3, NULL, "Chips",
              "what is sharded over the axis fsdp, or without fsdp over data: 1 optimizer states, 2 "
              "also gradients, 3 also weights; unset: 3 for fsdp, 0 for data"),
    RF_NUMBER("capacity", FLOAT, "TIMES", 0.01, 1e6, "1", "Chips",
              "maximum rows that an expert accepts from a chip, as a multiple of an even share; further rows "
              "are dropped"),
    {.name = NULL},
};

const rf_option RF_INFERENCE_OPTIONS[] = {
    RF_CHOICE("compute", "exact|fast", "exact", "Precision",
              "fast rounds activations to 8 bits in products with weights of 4 to 8 bits (to 16 bits with "
              "--weights int8)"),
    {.name = NULL},
};

const rf_option RF_CACHE_OPTIONS[] = {
    RF_CHOICE("kv-dtype", "f32|bf16|int8|fp8|int4", NULL, "Precision",
              "dtype of the key and value cache; unset: --dtype\nResults are approximate with int8 or any "
              "dtype narrower than --dtype; fp8 and int4 can only be planned."),
    RF_NUMBER("prefill-chunk", TOKENS, NULL, 1, 1 << 20, "256", "Memory",
              "prompt tokens that one forward pass processes"),
    {.name = NULL},
};

const rf_option RF_SERVICE_OPTIONS[] = {
    RF_NUMBER(
        "sequences", INT, NULL, 1, 1 << 20, NULL, "Memory",
        "size of the key and value cache, in sequences of --seq tokens; unset: --batch\nIf most requests "
        "are shorter than --seq, a smaller cache still serves --batch answers at once. A request starts "
        "when there is memory for it until its end."),
    RF_NUMBER("step-growth", FLOAT, "FACTOR", 0, 1e6, "2", "Speed",
              "maximum predicted slowdown of a step by the prompts that it reads: 2 doubles its time; 0: no "
              "limit\nWith a smaller factor, tokens come at a steadier rate, but first tokens come later. "
              "A step reads at least 16 tokens of prompts."),
    {.name = NULL},
};

const rf_option RF_ADAPTER_OPTIONS[] = {
    RF_NUMBER("adapter-slots", INT, "N", 0, 1024, NULL, "Adapters",
              "adapters that can be loaded at once; unset: as many as --adapters names, and 4 more with "
              "--adapter-folder"),
    RF_NUMBER("adapter-rank", INT, "R", 1, RF_LORA_MAX_RANK, NULL, "Adapters",
              "largest rank of an adapter; unset: the largest of --adapters; minimum 16 with "
              "--adapter-folder"),
    {.name = NULL},
};

const rf_option RF_SPECULATION_OPTIONS[] = {
    RF_WORDS(
        "speculate", TEXT, "none|ngram|MODEL", "none", "Speed",
        "guess the next tokens, and verify several guesses in one forward pass: ngram searches the text "
        "for the latest tokens, and copies the tokens after them; MODEL is a smaller model of the same "
        "vocabulary that writes the guesses\nThe answers are the same to the bit. A step guesses a token "
        "only if the guess is expected to save time."),
    RF_NUMBER("draft-tokens", INT, "N", 1, 64, "7", "Speed", "maximum drafted tokens of an answer in a step"),
    {.name = NULL},
};

const rf_option RF_STEP_OPTIONS[] = {
    RF_NUMBER("seq", TOKENS, NULL, 1, 1 << 24, NULL, "Memory",
              "tokens in a sequence; unset: the longest the model takes, but at most 4096 in plan"),
    RF_NUMBER("microbatch", INT, "SEQUENCES", 1, 1 << 20, NULL, "Memory",
              "sequences computed at once; unset: batch / accumulate"),
    RF_NUMBER("accumulate", INT, NULL, 1, 1 << 20, NULL, "Memory",
              "microbatches in a step; unset: batch / microbatch"),
    RF_CHOICE(
        "remat",
        "none|mlp|attn|mlp+attn|block|auto|full|minimal|minimal_with_context|save_out_proj|save_qkv_proj|"
        "save_dot_except_mlp|save_dot_except_mlpwi|save_dot_with_context_except_mlp|save:NAMES",
        "none", "Memory",
        "activations that backward recomputes instead of storing: none, mlp, attn, mlp+attn, block, or auto "
        "for as few as fit\nsave:NAMES stores only x and the named ones of qkv, context, out, mlpwi, mlpact, "
        "mlpwo, norm1, norm2 (joined by , or +); minimal and save_... are predefined lists."),
    RF_CHOICE("overlap", "auto|on|off", "off", "Chips",
              "exchanges between the processes of mpirun while they compute\nauto: if the plan predicts that "
              "this saves time, by the times of rafter calibrate --network. Results have the same bits."),
    RF_CHOICE("optimizer", "adamw|adam", "adamw", "Optimizer",
              "adamw decays matrices and embeddings; adam decays nothing"),
    RF_NUMBER("beta1", FLOAT, NULL, 0, 0.999999, "0.9", "Optimizer", "decay of the first moment"),
    RF_NUMBER("beta2", FLOAT, NULL, 0, 0.9999999, "0.95", "Optimizer", "decay of the second moment"),
    RF_NUMBER("eps", FLOAT, NULL, 0, 1, "1e-8", "Optimizer", "number added to the root of the second moment"),
    RF_NUMBER("weight-decay", FLOAT, NULL, 0, 10, "0.1", "Optimizer",
              "decay of matrices and embeddings (adamw)"),
    RF_NUMBER("clip", FLOAT, "NORM", 0, 1e9, "1", "Optimizer",
              "largest global gradient norm; 0: no clipping"),
    RF_CHOICE(
        "head-grad", "f32|bf16", "f32", "Precision",
        "dtype of the gradient of logits; bf16 needs --dtype bf16\nGPUs and the CPU level amx split a "
        "gradient in f32 into two bf16 numbers. With one bf16 number, they compute fewer products, and the "
        "error of a term is at most 2^-9."),
    RF_NUMBER("dropout", FLOAT, "P", 0, 0.99, NULL, "Training",
              "probability of zeroing the outputs of a block; unset: the model's own"),
    RF_WORDS("lora", TEXT, "rank=R,...", NULL, "Training",
             "train adapters and freeze the weights: rank=16,alpha=32,targets=q,v\nFurther keys: dropout=0. "
             "targets are some of q,k,v,o,gate,up,down, or all, or ~REGEX."),
    {.name = NULL},
};

const rf_option RF_PIPELINE_OPTIONS[] = {
    RF_WORDS("pipeline", TEXT, "SCHEDULE", "1f1b", "Chips",
             "order of microbatches along the pipeline axis: 1f1b, gpipe, or interleaved:V with V groups of "
             "layers on every stage"),
    {.name = NULL},
};

const rf_option RF_OFFLOAD_OPTIONS[] = {
    RF_WORDS("offload", TEXT, "LIST", NULL, "Memory",
             "tensors to keep in host memory and copy when needed: optimizer, activations, kv, weights (of "
             "blocks)\nNeeds a machine with a host (--on), so this can only be planned."),
    {.name = NULL},
};

const rf_option RF_LAYOUT_OPTIONS[] = {
    RF_WORDS("price", TEXT, "TIER|USD", NULL, "Machine",
             "price of a chip per hour: a tier of the machine (list, committed, flex-start, ...) or an "
             "amount in USD, also for --prefill-on; unset: the list price"),
    RF_CHOICE("collectives", "core|offload|none", "core", "Chips",
              "what moves data between chips: the core while it computes (core), a separate engine "
              "(offload), or the core without overlap (none)"),
    RF_CHOICE("matmul-dtype", "int8|fp8", NULL, "Precision",
              "dtype of products in linear layers and experts; attention and the head keep --dtype; unset: "
              "--dtype"),
    {"fit", RF_OPTION_SIZE, "BYTES", 1 << 20, 0x1p60, NULL, NULL, "Search and compare",
     "find the largest batch and the fastest settings that fit in BYTES; without a value: in the machine's "
     "memory\nThe output says what limits the batch, and which changes raise it. If slower settings fit a "
     "larger batch, it has these too. For training, --batch is fixed, and the search tries recomputation, "
     "microbatch, dtype and mesh. For other jobs, the search tries meshes. Without --batch, the plan then "
     "has the largest batch.",
     true, false},
    RF_NUMBER(
        "margin", FLOAT, "FRACTION", 0, 0.9, NULL, "Search and compare",
        "fraction of the memory that --fit leaves free; unset: 0.1 on machines where rafter cannot run, "
        "otherwise 0\nOn such a machine, another program runs the model, and its memory differs from the "
        "plan's. With --fit BYTES, the default is 0."),
    RF_NUMBER("latency", DURATION, NULL, 1e-6, 1e6, NULL, "Search and compare",
              "maximum time of a step that --fit accepts; a step computes one token of every answer, or one "
              "forward pass (prefill, score)"),
    RF_CHOICE("program", "rafter|jax-scan|jax-unrolled", "rafter", "Job",
              "program to plan: rafter's own, or a JAX program of the same model"),
    RF_CHOICE("returns", "loss|hidden|logits|top|top-by-chunk", "loss", "Job",
              "what a JAX program of --job score returns for every position; top stores all logits at once"),
    {.name = NULL},
};
