/* known.c - see known.h. */
#include "backend/xla/known.h"

/* The tensor that all ops of one kind read from this slot; RF_NONE: no such op, or the ops read
 * different tensors. */
static int input_of(const rf_graph *graph, const rf_op_def *def, int slot) {
  int found = RF_NONE;
  for (int i = 0; i < graph->op_count; i++) {
    if (graph->op[i].def != def) continue;
    int tensor = graph->op[i].input[slot];
    if (tensor == RF_NONE || (found != RF_NONE && tensor != found)) return RF_NONE;
    found = tensor;
  }
  return found;
}

rf_known_inputs rf_known_find(const rf_graph *graph, const int64_t *offset, bool allowed, int chips) {
  rf_known_inputs found = {.tensor = {RF_NONE, RF_NONE, RF_NONE, RF_NONE}};
  const struct {
    const rf_op_def *def;
    int slot, which;
    bool one_chip; /* true: with several chips, each chip has a different part of this input */
  } INPUTS[] = {{&RF_OP_ATTENTION, 1, RF_KNOWN_SEGMENTS, false},
                {&RF_OP_ATTENTION_KV, 3, RF_KNOWN_SLOTS, true},
                {&RF_OP_ATTENTION_KV, 4, RF_KNOWN_POSITIONS, true},
                {&RF_OP_SAMPLE, 2, RF_KNOWN_RULES, true}};
  for (size_t k = 0; allowed && k < sizeof INPUTS / sizeof *INPUTS; k++) {
    int tensor = input_of(graph, INPUTS[k].def, INPUTS[k].slot);
    if (tensor == RF_NONE || offset[tensor] < 0 || (INPUTS[k].one_chip && chips > 1)) continue;
    if (INPUTS[k].which == RF_KNOWN_SEGMENTS && graph->job != RF_JOB_TRAIN) continue;
    found.tensor[INPUTS[k].which] = tensor;
    found.any = true;
  }
  return found;
}

/* True if segment i is row i of the batch. `count` is the number of starts: the rows of the
 * microbatch + 1. All starts after the last segment are equal to the end of this segment. */
static bool are_whole(const int32_t *start, int64_t count, int64_t seq) {
  if ((count - 1) % seq) return false;
  for (int64_t i = 0; i < count; i++)
    if (start[i] != (i * seq < count - 1 ? i * seq : count - 1)) return false;
  return true;
}

/* An upper bound of the positions of rows in use. There are few different bounds, because each
 * bound needs its own program. */
static int64_t reach_of(const int32_t *slot, const int32_t *position, int64_t rows) {
  enum { FIRST = 512, TIMES = 4 };
  int64_t end = 1, reach = FIRST;
  for (int64_t i = 0; i < rows; i++)
    if (slot[i] >= 0 && position[i] >= end) end = position[i] + 1;
  while (reach < end) reach *= TIMES;
  return reach;
}

static bool are_greedy(const float *rules, int64_t count) {
  for (int64_t i = 0; i < count; i++)
    if (rules[i * RF_RULES + RF_RULE_TEMPERATURE] > 0) return false;
  return true;
}

static bool are_unfiltered(const float *rules, int64_t count) {
  for (int64_t i = 0; i < count; i++) {
    const float *rule = rules + i * RF_RULES;
    bool filtered = rule[RF_RULE_TOP_K] > 0 || rule[RF_RULE_TOP_P] < 1 || rule[RF_RULE_MIN_P] > 0;
    if (rule[RF_RULE_TEMPERATURE] > 0 && filtered) return false;
  }
  return true;
}

rf_emit_known rf_known_of(const rf_graph *graph, const rf_known_values *of) {
  rf_emit_known known = {0};
  const void *const *data = of->data;
  if (data[RF_KNOWN_SEGMENTS] && graph->seq > 0) {
    int64_t parts = graph->accumulate > 1 ? graph->accumulate : 1,
            count = of->bytes[RF_KNOWN_SEGMENTS] / 4 / parts;
    const int32_t *start = data[RF_KNOWN_SEGMENTS];
    known.whole_rows = true;
    for (int64_t i = 0; i < parts; i++)
      known.whole_rows = known.whole_rows && are_whole(start + i * count, count, graph->seq);
  }
  if (data[RF_KNOWN_SLOTS] && data[RF_KNOWN_POSITIONS])
    known.reach = reach_of(data[RF_KNOWN_SLOTS], data[RF_KNOWN_POSITIONS], of->rows);
  if (data[RF_KNOWN_RULES]) {
    int64_t count = of->bytes[RF_KNOWN_RULES] / (4 * RF_RULES);
    known.greedy = are_greedy(data[RF_KNOWN_RULES], count);
    known.unfiltered = !known.greedy && are_unfiltered(data[RF_KNOWN_RULES], count);
  }
  return known;
}

bool rf_known_equal(const rf_emit_known *a, const rf_emit_known *b) {
  return a->whole_rows == b->whole_rows && a->greedy == b->greedy && a->unfiltered == b->unfiltered &&
         a->reach == b->reach;
}
