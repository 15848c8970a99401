/* pipeline.c - stages, schedules, and slots of tensors for several microbatches; see pipeline.h. */
#include "graph/mesh/pipeline.h"

#include "graph/passes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const NAMES[] = {"1f1b", "gpipe", "interleaved"};
const char *rf_pipeline_schedule_name(rf_pipeline_schedule schedule) { return NAMES[schedule]; }

rf_status rf_pipeline_parse(const char *text, rf_mesh *mesh, rf_error *error) {
  static const char interleaved[] = "interleaved:";
  enum { MAX = 1024 };
  mesh->chunks = 1;
  for (int i = 0; i < 2; i++)
    if (!strcmp(text, NAMES[i])) return mesh->schedule = (rf_pipeline_schedule)i, RAFTER_OK;
  const char *number = text + strlen(interleaved);
  char *end = NULL;
  bool many = !strncmp(text, interleaved, strlen(interleaved)) && *number >= '1' && *number <= '9';
  long chunks = many ? strtol(number, &end, 10) : 0;
  if (!many || *end || chunks < 2 || chunks > MAX)
    return RF_FAIL(
        error, RAFTER_INVALID, "interleaved:2 gives every stage two groups of adjacent layers",
        "bad schedule (--pipeline: expected 1f1b, gpipe or interleaved:V with V from 2 to %d, got '%.60s')",
        MAX, text);
  mesh->schedule = RF_PIPELINE_INTERLEAVED;
  mesh->chunks = (int32_t)chunks;
  return RAFTER_OK;
}

/* ---- layers ---------------------------------------------------------------------------------- */

/* Returns the number of pieces among the first `piece` pieces that have an extra layer. */
static int64_t longer_before(int64_t pieces, int64_t rest, int64_t piece) {
  int64_t from = pieces - 1 - rest; /* only the pieces `from` to pieces - 2 have an extra layer */
  return piece <= from ? 0 : (piece > pieces - 1 ? pieces - 1 : piece) - from;
}

void rf_pipeline_layers(const rf_mesh *mesh, int64_t layers, int piece, int64_t *first, int64_t *count) {
  int64_t pieces = rf_pipeline_pieces(mesh), base = layers / pieces, rest = layers % pieces;
  *first = piece * base + longer_before(pieces, rest, piece);
  *count = (piece + 1) * base + longer_before(pieces, rest, piece + 1) - *first;
}

int rf_pipeline_piece_of_layer(const rf_mesh *mesh, int64_t layers, int64_t layer) {
  int64_t first, count;
  int pieces = rf_pipeline_pieces(mesh), piece = (int)(layer * pieces / layers);
  for (rf_pipeline_layers(mesh, layers, piece, &first, &count); layer < first;
       rf_pipeline_layers(mesh, layers, piece, &first, &count))
    piece--;
  for (; layer >= first + count; rf_pipeline_layers(mesh, layers, piece, &first, &count)) piece++;
  return piece;
}

/* ---- schedules ------------------------------------------------------------------------------- */

/* The k-th forward pass (or backward pass) of an interleaved stage. A group of `stages`
 * microbatches runs through all chunks before the next group starts. A validation pass has one
 * microbatch. */
static rf_half turn(const rf_mesh *mesh, int micros, int64_t k, bool backward) {
  int64_t stages = micros == 1 ? 1 : rf_pipeline_stages(mesh), chunks = rf_pipeline_chunks(mesh),
          group = k / (stages * chunks), inside = k % (stages * chunks);
  int64_t chunk = inside / stages;
  return (rf_half){.chunk = (int32_t)(backward ? chunks - 1 - chunk : chunk),
                   .micro = (int32_t)(group * stages + inside % stages),
                   backward};
}

void rf_pipeline_order(const rf_mesh *mesh, int stage, int micros, rf_half *order) {
  int64_t stages = rf_pipeline_stages(mesh), chunks = rf_pipeline_chunks(mesh), halves = chunks * micros,
          ahead = stages - stage - 1, at = 0;
  if (mesh->schedule == RF_PIPELINE_INTERLEAVED) ahead = 2 * ahead + (chunks - 1) * stages;
  if (mesh->schedule == RF_PIPELINE_GPIPE) ahead = halves;
  if (ahead > halves) ahead = halves;
  for (int64_t k = 0; k < halves + ahead; k++) {
    bool several = chunks > 1;
    if (k < halves) order[at++] = several ? turn(mesh, micros, k, false) : (rf_half){0, (int32_t)k, false};
    if (k >= ahead)
      order[at++] = several ? turn(mesh, micros, k - ahead, true) : (rf_half){0, (int32_t)(k - ahead), true};
  }
}

int rf_pipeline_in_flight(const rf_mesh *mesh, int stage, int micros, int chunk) {
  enum { GROUPS = 4 };
  int stages = rf_pipeline_stages(mesh), now = 0, most = 0;
  if (mesh->schedule == RF_PIPELINE_GPIPE) return micros;
  if (mesh->schedule == RF_PIPELINE_1F1B) return stages - stage < micros ? stages - stage : micros;
  /* further groups of microbatches would only repeat the pattern of these groups */
  if (micros > GROUPS * stages) micros = GROUPS * stages;
  int halves = 2 * rf_pipeline_chunks(mesh) * micros;
  rf_half *order = malloc((size_t)halves * sizeof *order);
  if (!order) return micros;
  rf_pipeline_order(mesh, stage, micros, order);
  for (int i = 0; i < halves; i++) {
    if (order[i].chunk != chunk) continue;
    now += order[i].backward ? -1 : 1;
    if (now > most) most = now;
  }
  free(order);
  return most;
}

double rf_pipeline_bubble(const rf_mesh *mesh, int micros) {
  double others = rf_pipeline_stages(mesh) - 1;
  return others / ((double)rf_pipeline_chunks(mesh) * micros + others);
}

/* ---- tensors of several microbatches --------------------------------------------------------- */

void rf_pipeline_halves(const rf_graph *graph, int *half) {
  int chunks = rf_pipeline_chunks(&graph->mesh);
  bool *back = calloc((size_t)chunks, sizeof *back);
  for (int o = 0; o < graph->op_count; o++) {
    const rf_op *op = &graph->op[o];
    half[o] = -1;
    if (op->section != RF_SECTION_MICRO || !back) continue;
    /* Backward begins at the first backward op. Forward ops after that op count as backward ops
     * too. The sum of losses after a fused loss is an example. */
    back[op->chunk] |= op->backward || op->recompute_of != RF_NONE;
    half[o] = 2 * op->chunk + back[op->chunk];
  }
  free(back);
}

typedef struct use {
  int half,     /* first pass whose ops use this tensor */
      chunk;    /* lowest number of a chunk whose ops use this tensor */
  bool crosses; /* true if ops of another pass use this tensor too */
  bool adds, lands;
} use;

static void touch(use *u, int half, const rf_op *op) {
  if (u->half == RF_NONE) {
    u->half = half;
    u->chunk = op->chunk;
  }
  if (u->half != half) u->crosses = true;
  if (op->chunk < u->chunk) u->chunk = op->chunk;
}

void rf_pass_slots(rf_graph *graph) {
  const rf_mesh *mesh = &graph->mesh;
  if (rf_pipeline_stages(mesh) < 2) return;
  int *half = malloc(((size_t)graph->op_count + 1) * sizeof *half), chunks = rf_pipeline_chunks(mesh),
      *flight = calloc((size_t)chunks, sizeof *flight);
  use *uses = calloc((size_t)graph->tensor_count + 1, sizeof *uses);
  if (half && uses && flight) {
    rf_pipeline_halves(graph, half);
    for (int c = 0; c < chunks; c++)
      flight[c] = rf_pipeline_in_flight(mesh, mesh->stage, graph->accumulate, c);
    /* The caller writes a microbatch's inputs before the first forward pass of that microbatch. */
    for (int t = 0; t < graph->tensor_count; t++) uses[t].half = graph->tensor[t].input ? 0 : RF_NONE;
    for (int o = 0; o < graph->op_count; o++) {
      const rf_op *op = &graph->op[o];
      if (half[o] < 0) continue;
      for (int i = 0; i < op->input_count; i++)
        if (op->input[i] >= 0) touch(&uses[op->input[i]], half[o], op);
      for (int i = 0; i < op->output_count; i++) {
        if (op->output[i] < 0) continue;
        use *u = &uses[op->output[i]];
        touch(u, half[o], op);
        u->adds |= op->attr.accumulate[i] != RF_WRITE;
        u->lands |= op->def == &RF_OP_RECV;
      }
    }
    for (int t = 0; t < graph->tensor_count; t++) {
      rf_tensor *tensor = &graph->tensor[t];
      const use *u = &uses[t];
      tensor->slots = 0;
      if (u->half == RF_NONE || tensor->persistent || u->adds || !(u->crosses || u->lands)) continue;
      /* A received tensor may arrive while the chip still uses the tensor of the previous
       * microbatch. */
      int slots = (u->crosses ? flight[u->chunk] : 1) + u->lands;
      tensor->slots = slots < graph->accumulate ? slots : graph->accumulate;
    }
  }
  free(half);
  free(flight);
  free(uses);
}
