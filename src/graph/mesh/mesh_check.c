/* mesh_check.c - checks that a job can be sharded over a mesh. If the number of chips does not divide
 * a size, the error names this size, and the hint lists numbers of chips that divide it. */
#include "graph/passes.h"
#include "graph/mesh/pipeline.h"

#include "base/text.h"

#include <stdio.h>

/* Writes the divisors of n, as "1, 2, 4 or 8". If there are more than 12 divisors, writes the 12
 * largest. */
static const char *divisors(int64_t n, char text[160]) {
  int64_t list[12], count = 0;
  for (int64_t d = 1; d <= n && d <= 1 << 20; d++) {
    if (n % d) continue;
    if (count == 12) {
      for (int i = 1; i < 12; i++) list[i - 1] = list[i];
      count--;
    }
    list[count++] = d;
  }
  *text = '\0';
  for (int i = 0; i < count; i++)
    rf_text_append(text, 160, "%s%lld", i == 0 ? "" : i == count - 1 ? " or " : ", ", (long long)list[i]);
  return text;
}

static rf_status divides(int64_t number, const char *what, const rf_mesh *mesh, rf_axes axes,
                         rf_error *error) {
  char hint[400], list[160], name[160] = "";
  int64_t chips = rf_mesh_size(mesh, axes);
  if (chips < 1 || number % chips == 0) return RAFTER_OK;
  rf_axes live = rf_mesh_live(mesh, axes);
  for (int a = 0; a < RF_AXES; a++)
    if (live & RF_AXIS_BIT(a))
      rf_text_append(name, sizeof name, "%s%s", *name ? " x " : "", rf_axis_name((rf_axis)a));
  if (number == 1) snprintf(hint, sizeof hint, "leave %s out of --mesh", name);
  else snprintf(hint, sizeof hint, "choose %s of %s", name, divisors(number, list));
  return RF_FAIL(error, RAFTER_INVALID, hint,
                 "%s cannot be sharded over the mesh (%s: expected a divisor of %lld, got %lld)", what, name,
                 (long long)number, (long long)chips);
}

#define AXIS(a) RF_AXIS_BIT(RF_AXIS_##a)

static rf_status check_heads(const rf_mesh *mesh, const rf_model *model, rf_error *error) {
  rf_axes axes = AXIS(TENSOR) | AXIS(SEQUENCE);
  int64_t chips = rf_mesh_size(mesh, axes);
  RF_TRY(divides(model->heads, "the heads", mesh, axes, error));
  /* Several chips of a tensor group may have the same key head. */
  if (rf_mesh_extent(mesh, RF_AXIS_SEQUENCE) == 1 && chips % model->kv_heads == 0) return RAFTER_OK;
  return divides(model->kv_heads, "the key and value heads", mesh, axes, error);
}

/* The axes context and sequence shard the rows of a forward pass. The rows are the slots of one
 * copy of the model, or the tokens of a chunk of a prompt. */
static rf_status check_pass(const rf_mesh *mesh, const rf_build_options *options, rf_error *error) {
  char hint[200], list[160];
  int64_t chips = rf_mesh_size(mesh, RF_AXES_OF_PASS), slots = options->microbatch / rf_mesh_copies(mesh);
  int64_t rows = options->rows > 0 && options->rows != options->microbatch ? options->rows : slots;
  if (rows % chips == 0) return RAFTER_OK;
  snprintf(hint, sizeof hint, "choose context x sequence of %s, or another --batch or --prefill-chunk",
           divisors(rows, list));
  return RF_FAIL(error, RAFTER_INVALID, hint,
                 "the rows of a step cannot be sharded over the mesh (context x sequence = %lld: expected "
                 "a divisor of %lld)",
                 (long long)chips, (long long)rows);
}

/* Checks the axes that shard the sequences of a microbatch, or that shard the slots. */
static rf_status check_rows(const rf_mesh *mesh, const rf_build_options *options, rf_error *error) {
  char hint[160];
  rf_axes axes = AXIS(SLICE) | AXIS(DATA) | AXIS(EXPERT) | AXIS(FSDP);
  int64_t chips = rf_mesh_size(mesh, axes);
  if (options->microbatch % chips) {
    snprintf(hint, sizeof hint,
             "use a microbatch that is a multiple of %lld, or fewer chips along slice, data, expert and fsdp",
             (long long)chips);
    return RF_FAIL(error, RAFTER_INVALID, hint,
                   "the microbatch cannot be sharded over the mesh (slice x data x expert x fsdp = %lld: "
                   "expected a multiple, got %lld sequences)",
                   (long long)chips, (long long)options->microbatch);
  }
  if (options->objective == RF_OBJECTIVE_PAIRS && options->microbatch / chips % 2)
    return RF_FAIL(
        error, RAFTER_INVALID, "give each chip an even number of sequences",
        "the two answers of a pair cannot be on different chips (microbatch: expected a multiple of "
        "%lld, got %lld sequences)",
        2 * (long long)chips, (long long)options->microbatch);
  if (options->job == RF_JOB_GENERATE) return check_pass(mesh, options, error);
  return divides(options->seq, "the sequence", mesh, AXIS(CONTEXT) | AXIS(SEQUENCE) | AXIS(TENSOR), error);
}

/* A job needs at least one microbatch per stage. The interleaved schedule needs a multiple of
 * `stages` microbatches. */
static rf_status check_pipeline(const rf_mesh *mesh, const rf_model *model, const rf_build_options *options,
                                rf_error *error) {
  char hint[200];
  int stages = rf_pipeline_stages(mesh), chunks = rf_pipeline_chunks(mesh), pieces = rf_pipeline_pieces(mesh);
  if (stages == 1 && mesh->schedule == RF_PIPELINE_INTERLEAVED)
    return RF_FAIL(
        error, RAFTER_INVALID, "add pipeline to --mesh",
        "interleaving needs several pipeline stages (--pipeline interleaved:%d: expected --mesh pipeline=P)",
        chunks);
  if (stages == 1) return RAFTER_OK;
  if (options->job != RF_JOB_TRAIN)
    return RF_FAIL(error, RAFTER_INVALID,
                   "use the axis tensor instead, and data or slice for more throughput",
                   "pipelines are for training only (--mesh pipeline: expected 1, got %d)", stages);
  if (pieces > model->layers) {
    snprintf(hint, sizeof hint, "use at most %lld stages%s", (long long)(model->layers / chunks),
             chunks > 1 ? ", or a smaller V in --pipeline interleaved:V" : "");
    return RF_FAIL(error, RAFTER_INVALID, hint,
                   "more stages than layers (--mesh pipeline: expected at most %lld%s for %s, got %d)",
                   (long long)(model->layers / chunks),
                   chunks > 1 ? " with this number of layer groups per stage" : "", model->name, stages);
  }
  if (options->loss_only) return RAFTER_OK; /* a validation pass has one microbatch */
  if (options->accumulate < stages) {
    snprintf(hint, sizeof hint, "set --accumulate to %d or more: the bubble is (P-1)/(m+P-1) of the time",
             stages);
    return RF_FAIL(error, RAFTER_INVALID, hint,
                   "fewer microbatches than pipeline stages (--accumulate: "
                   "expected at least %d, got %d)",
                   stages, options->accumulate);
  }
  if (chunks > 1 && options->offload)
    return RF_FAIL(error, RAFTER_INVALID, "use --pipeline 1f1b",
                   "this version cannot offload tensors of interleaved stages (--pipeline interleaved:%d)",
                   chunks);
  if (mesh->schedule == RF_PIPELINE_INTERLEAVED && options->accumulate % stages) {
    snprintf(hint, sizeof hint, "set --accumulate to %d or %d", options->accumulate / stages * stages,
             (options->accumulate / stages + 1) * stages);
    return RF_FAIL(
        error, RAFTER_INVALID, hint,
        "interleaved stages take microbatches in groups of one per stage (--accumulate: expected a "
        "multiple of %d, got %d)",
        stages, options->accumulate);
  }
  return RAFTER_OK;
}

rf_status rf_mesh_check(const rf_mesh *mesh, const rf_model *model, const rf_build_options *options,
                        rf_error *error) {
  if (rf_mesh_chips(mesh) == 1) return RAFTER_OK;
  RF_TRY(check_pipeline(mesh, model, options, error));
  RF_TRY(check_heads(mesh, model, error));
  RF_TRY(divides(model->experts > 0 ? rf_model_expert_ff(model) : model->ff, "the width of the MLP", mesh,
                 AXIS(TENSOR), error));
  if (model->kv_rank > 0 && rf_mesh_extent(mesh, RF_AXIS_CONTEXT) > 1 && options->job != RF_JOB_GENERATE)
    return RF_FAIL(error, RAFTER_INVALID, "shard tokens along sequence, or heads along tensor",
                   "this version cannot shard the tokens of latent attention (--mesh context: expected "
                   "1 for %s, got %lld)",
                   model->name, (long long)rf_mesh_extent(mesh, RF_AXIS_CONTEXT));
  if (rf_mesh_extent(mesh, RF_AXIS_EXPERT) > 1 && model->experts == 0)
    return RF_FAIL(error, RAFTER_INVALID, "leave the axis expert out",
                   "%s has no experts to shard (--mesh expert: expected 1, got %lld)", model->name,
                   (long long)rf_mesh_extent(mesh, RF_AXIS_EXPERT));
  if (model->experts > 0) RF_TRY(divides(model->experts, "the experts", mesh, AXIS(EXPERT), error));
  return check_rows(mesh, options, error);
}
