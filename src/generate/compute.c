/* compute.c - the engine that computes. The engine writes the inputs of a forward pass, runs the
 * plan, and chooses tokens. Each pass writes the page tables; row i of a table belongs to sequence
 * i. */
#include "generate/adapters.h"
#include "generate/batch.h"
#include "generate/pace.h"
#include "generate/shares.h"
#include "run/record.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHAPES = 64 };

typedef struct compute {
  rf_generator *g;
  struct inputs {
    int64_t count, wanted; /* `count`: rows of the pass on all chips together. `wanted`: rows of logits. */
    int32_t *tokens, *positions, *slots, *rows;
    int32_t *adapters; /* (rows): slot of each row's adapter; NULL: the plan has no slots */
    float *logits, *lse;
    /* Rules and results of the op `sample`; NULL: the program does not choose tokens. */
    float *rules, *logprobs;
    int32_t *barred, *chosen;
    const rf_tensor *of_logits;
    int32_t *table[RF_KV_CLASSES]; /* (slots, columns) */
  } io[2]; /* Inputs and outputs of the prefill plan [0] and of the decode plan [1]. */
  struct kv_bytes {
    int tensor; /* Cache tensor of one layer, (pool, ...), with keys and values or with their scales. */
    int64_t page_bytes;
    rf_kv_class class;
  } * bytes;
  int count;
  bool feeds; /* true: a decode pass can take the tokens that the previous pass chooses */
  /* Status of the first failed copy of a page. The next pass returns this status with
   * `move_error`. */
  rf_status moved;
  rf_error move_error;
  rf_sampler *sampler;    /* (slots) */
  rf_sampler_work **work; /* (workers) */
  int workers;
  /* Sums over groups of passes, for the prefill plan [0] and the decode plan [1]. The passes of a
   * group have equal numbers of rows and sequences. The last group has all other passes. */
  struct shape {
    int64_t passes, rows, parts, context; /* context: number of keys of all sequences */
  } shape[2][SHAPES];
  double seconds[2], choosing; /* choosing: predicted seconds to choose tokens from logits */
} compute;

/* Copies page `from` to page `to` in every layer of the class. If `from` is -1, poisons page
 * `to`. */
static void move_page(void *self, rf_kv_class class, int32_t from, int32_t to) {
  compute *c = self;
  rf_run *run = c->g->run;
  for (int i = 0; i < c->count && c->moved == RAFTER_OK; i++) {
    const struct kv_bytes *b = &c->bytes[i];
    int64_t bytes = b->page_bytes;
    if (b->class != class) continue;
    if (from >= 0)
      c->moved = rf_run_copy(run, c->g->first, b->tensor, to * bytes, from * bytes, bytes, &c->move_error);
    else if (c->g->settings.debug.poison)
      c->moved = rf_run_fill(run, c->g->first, b->tensor, to * bytes, UINT32_MAX, bytes, &c->move_error);
  }
}

/* Writes the inputs of one sequence. The first row of the sequence in the pass is `row`. */
static void write_part(const compute *c, const struct inputs *io, const rf_forward_part *part, int slot,
                       int64_t row) {
  int64_t columns = c->g->batch->pages.kv.columns;
  int adapter = rf_adapters_slot(c->g, part->answer ? part->answer->to->of.adapter : 0);
  for (int64_t i = 0; i < part->count; i++) {
    if (io->adapters) io->adapters[row + i] = adapter;
    io->tokens[row + i] = part->tokens[i];
    io->positions[row + i] = (int32_t)(part->sequence->length + i);
    io->slots[row + i] = slot;
  }
  for (int k = 0; k < RF_KV_CLASSES; k++)
    if (io->table[k])
      memcpy(io->table[k] + slot * columns, part->sequence->of[k].page, (size_t)columns * sizeof(int32_t));
}

static void write_inputs(const compute *c, int plan, const rf_forward_part *part, int count) {
  const struct inputs *io = &c->io[plan];
  const rf_batch *b = c->g->batch;
  int64_t rows = io->count, slots = b->slots, row = 0, wanted = 0;
  for (int i = 0; i < count; row += part[i++].count) {
    write_part(c, io, &part[i], i, row);
    for (int k = part[i].scored + part[i].wanted; k > 0; k--)
      io->rows[wanted++] = (int32_t)(row + part[i].count - k);
  }
  while (wanted < io->wanted) io->rows[wanted++] = -1;
  for (; row < rows; row++) {
    io->tokens[row] = 0;
    io->positions[row] = 0;
    io->slots[row] = -1;
    if (io->adapters) io->adapters[row] = -1;
  }
  for (int k = 0; k < RF_KV_CLASSES; k++)
    if (io->table[k])
      memset(io->table[k] + count * b->pages.kv.columns, 0xff,
             (size_t)((slots - count) * b->pages.kv.columns) * sizeof(int32_t));
}

/* Returns true if the compiled program can choose the next tokens of an answer. The program cannot
 * apply penalties and biases, and lists no alternatives. */
static bool is_plain(const rf_slot *a) {
  const rf_request *r = &a->to->of;
  return r->top == 0 && !rf_sampler_adjusts(&r->sampler) && r->sampler.eos_count <= RF_BARRED;
}

static bool program_chooses(const struct inputs *io, const rf_forward_part *part, int count) {
  if (!io->rules) return false;
  for (int i = 0; i < count; i++)
    if (part[i].scored || (part[i].wanted && (!part[i].answer || !is_plain(part[i].answer)))) return false;
  return true;
}

/* Writes the rule by which the program chooses token `row` of an answer's next tokens. */
static void write_rule(const rf_slot *a, int row, float *rule, int32_t *barred) {
  const rf_request *r = &a->to->of;
  const rf_sampler_options *o = &r->sampler;
  int64_t count = a->count + a->flying + row; /* tokens of the answer before this one */
  double uniform = rf_sampler_uniform(rf_sample_seed(o->seed, a->sample), r->count + count);
  rule[RF_RULE_TEMPERATURE] = o->temperature > 0 ? o->temperature : 0;
  rule[RF_RULE_TOP_K] = (float)o->top_k;
  rule[RF_RULE_TOP_P] = o->top_p > 0 ? o->top_p : 1;
  rule[RF_RULE_MIN_P] = o->min_p;
  rule[RF_RULE_UNIFORM] = (float)(floor(uniform * 0x1p24) * 0x1p-24); /* never 1 */
  bool bars = rf_sampler_bars_eos(o, count);
  for (int i = 0; i < RF_BARRED; i++) barred[i] = bars && i < o->eos_count ? o->eos[i] : -1;
}

static void write_rules(const struct inputs *io, const rf_forward_part *part, int count, bool inside) {
  int64_t row = 0;
  for (int i = 0; i < count && inside; i++)
    for (int k = 0; k < part[i].wanted; k++, row++)
      write_rule(part[i].answer, k, io->rules + row * RF_RULES, io->barred + row * RF_BARRED);
  int64_t rest = io->wanted - row;
  memset(io->rules + row * RF_RULES, 0, (size_t)(rest * RF_RULES) * sizeof(float));
  memset(io->barred + row * RF_BARRED, 0xff, (size_t)(rest * RF_BARRED) * sizeof(int32_t));
}

/* Fails before a pass if a signal has asked to stop. All ranks of one copy of the model stop
 * together. */
static rf_status stops(const compute *c, const volatile int **during, rf_error *error) {
  const volatile int *stop = c->g->settings.progress.stop;
  rf_copies *copies = c->g->shares ? rf_shares_copies(c->g->shares) : NULL;
  uint32_t flags = rf_flag_is_set(stop);
  if (!copies) return rf_run_stops(c->g->run, stop, during, error);
  *during = rf_copies_ranks(copies) == 1 ? stop : NULL;
  if (*during) return RAFTER_OK;
  RF_TRY(rf_copies_agree(copies, &flags, error));
  return flags ? RF_FAIL(error, RAFTER_INTERRUPTED, NULL, "stopped by a signal") : RAFTER_OK;
}

/* With --trace, all passes wait. Otherwise a selected step would not contain the start of its own
 * pass. */
static bool starts(const void *self, const rf_forward_part *part, int count) {
  const compute *c = self;
  const struct inputs *io = &c->io[RF_DECODE];
  return c->feeds && !c->g->shares && !rf_record_lanes && c->moved == RAFTER_OK &&
         rf_run_starts(c->g->run, c->g->first + RF_DECODE) && program_chooses(io, part, count);
}

/* Returns the error of the first failed copy of a page. */
static rf_status check_pages(const compute *c, rf_error *error) {
  if (c->moved != RAFTER_OK && error) *error = c->move_error;
  return c->moved;
}

static rf_status start(void *self, rf_forward_part *part, int count, bool follows, rf_error *error) {
  compute *c = self;
  const struct inputs *io = &c->io[RF_DECODE];
  rf_run_inputs inputs = {.rows = count, .step = 1, .unread = io->of_logits, .follows = follows};
  RF_TRY(check_pages(c, error));
  write_inputs(c, RF_DECODE, part, count);
  write_rules(io, part, count, true);
  RF_TRY(stops(c, &inputs.stop, error));
  return rf_run_start(c->g->run, c->g->first + RF_DECODE, &inputs, error);
}

static rf_status run_plan(const compute *c, int plan, int64_t rows, const rf_tensor *unread,
                          rf_error *error) {
  const rf_run_debug *debug = &c->g->settings.debug;
  /* The debug options poison and find_nan also check unused rows, so all rows must be computed. */
  bool all = debug->poison || debug->find_nan;
  rf_run_inputs inputs = {.rows = all ? c->io[plan].count : rows, .step = 1, .unread = unread};
  RF_TRY(stops(c, &inputs.stop, error));
  return rf_run_all(c->g->run, c->g->first + plan, &inputs, error);
}

static void count_pass(compute *c, int plan, int parts, int64_t rows, int64_t context, double seconds) {
  struct shape *of = c->shape[plan];
  int b = 0;
  while (b < SHAPES - 1 && of[b].passes &&
         (of[b].rows != rows * of[b].passes || of[b].parts != parts * of[b].passes))
    b++;
  of[b].passes++;
  of[b].rows += rows;
  of[b].parts += parts;
  of[b].context += context;
  c->seconds[plan] += seconds;
}

/* Predicts the seconds to choose tokens. Answers of a pass usually have equal sampling options, so
 * the options of one answer count for all. */
static void count_choices(compute *c, const rf_forward_part *part, int count) {
  const rf_sampler_options *options = NULL;
  int64_t rows = 0;
  for (int i = 0; i < count; i++) {
    if (!part[i].wanted || !part[i].answer) continue;
    rows += part[i].wanted;
    options = &part[i].answer->to->of.sampler;
  }
  if (rows) c->choosing += rf_pace_seconds(&c->g->decode->machine, options, c->g->settings.model.vocab, rows);
}

/* Sets the outputs of the parts. `inside`: the program has chosen the tokens. */
static void give_outputs(const compute *c, const struct inputs *io, rf_forward_part *part, int count,
                         bool inside) {
  int64_t wanted = 0;
  for (int i = 0; i < count && io->logits; i++) {
    if (!part[i].wanted && !part[i].scored) continue;
    wanted += part[i].scored;
    part[i].logits = inside ? NULL : io->logits + wanted * c->g->settings.model.vocab;
    part[i].chosen = inside ? io->chosen + wanted : NULL;
    part[i].logprobs = inside ? io->logprobs + wanted : NULL;
    part[i].lse = io->lse + wanted;
    wanted += part[i].wanted;
  }
}

/* The sequences have grown by the rows of this pass and of the passes that were started after it. */
static rf_status finish(void *self, rf_forward_part *part, int count, double *seconds, rf_error *error) {
  compute *c = self;
  const struct inputs *io = &c->io[RF_DECODE];
  int64_t context = 0;
  double began = rf_now_seconds();
  RF_TRY(rf_run_finish(c->g->run, c->g->first + RF_DECODE, io->of_logits, error));
  for (int i = 0; i < count; i++) context += part[i].end;
  *seconds += rf_now_seconds() - began;
  count_pass(c, RF_DECODE, count, count, context, *seconds);
  give_outputs(c, io, part, count, true);
  return RAFTER_OK;
}

static rf_status forward(void *self, int plan, rf_forward_part *part, int count, rf_error *error) {
  compute *c = self;
  const struct inputs *io = &c->io[plan];
  int64_t rows = 0, context = 0, began = rf_phase_begin();
  RF_TRY(check_pages(c, error));
  bool inside = program_chooses(io, part, count);
  if (io->tokens) write_inputs(c, plan, part, count);
  if (io->rules) write_rules(io, part, count, inside);
  rf_phase_end(RF_PHASE_DATA, began);
  for (int i = 0; i < count; i++) {
    rows += part[i].count;
    context += part[i].sequence->length + part[i].count;
  }
  rf_record_extent(count, rows, context);
  double start = rf_now_seconds();
  RF_TRY(run_plan(c, plan, rows, inside ? io->of_logits : NULL, error));
  count_pass(c, plan, count, rows, context, rf_now_seconds() - start);
  if (!inside) count_choices(c, part, count);
  give_outputs(c, io, part, count, inside);
  return RAFTER_OK;
}

/* Takes the token that the program chose. */
static rf_status take_choice(const compute *c, const rf_forward_part *part, int row, rf_choice *choice,
                             rf_error *error) {
  RF_TRY(rf_sampler_check_sum((double)part->lse[row], error));
  RF_TRY(rf_check_ids(&part->chosen[row], 1, c->g->settings.model.vocab, "the program's choice", error));
  *choice = (rf_choice){.id = part->chosen[row], .logprob = part->logprobs[row]};
  return RAFTER_OK;
}

static rf_status choose_from_logits(const compute *c, rf_sampler *sampler, const rf_slot *a,
                                    const rf_forward_part *part, int row, rf_choice *choice,
                                    rf_error *error) {
  const rf_request *r = &a->to->of;
  const float *logits = part->logits + row * c->g->settings.model.vocab;
  const float lse = part->lse[row];
  double likelihood[RF_TOP_LOGPROBS];
  rf_logprobs top = {.lse = &lse, .wanted = r->top, .ids = choice->top_ids, .logprobs = likelihood};
  RF_TRY(rf_sampler_choose(sampler, logits, r->count + a->count + row, &choice->id, &top, error));
  choice->top = top.count;
  for (int i = 0; i < top.count; i++) choice->top_logprobs[i] = logits[top.ids[i]] - lse;
  choice->logprob = logits[choice->id] - lse;
  return RAFTER_OK;
}

static rf_status choose(void *self, rf_slot *a, const rf_forward_part *part, int row, int worker,
                        rf_error *error) {
  compute *c = self;
  RF_TRY(rf_generator_require_numbers(c->g, error));
  const rf_request *r = &a->to->of;
  rf_sampler *sampler = &c->sampler[a->slot];
  rf_choice *choice = &a->choice[row];
  rf_sampler_use(sampler, c->work[worker]);
  if (a->count + row == 0) {
    rf_sampler_options options = r->sampler;
    options.seed = rf_sample_seed(options.seed, a->sample);
    RF_TRY(rf_sampler_reset(sampler, &options, error));
    RF_TRY(rf_sampler_prompt(sampler, r->tokens, r->count, error));
  }
  if (part->chosen) RF_TRY(take_choice(c, part, row, choice, error));
  else RF_TRY(choose_from_logits(c, sampler, a, part, row, choice, error));
  return rf_sampler_accept(sampler, choice->id, error);
}

/* Adds a token to the list of a row's `count` most likely tokens, in falling order. Callers add ids
 * in rising order. */
static int add_top(int32_t *ids, int count, int top, const float *logits, int32_t id) {
  int at = count < top ? count : top - 1;
  if (count == top && !(logits[id] > logits[ids[at]])) return count;
  for (; at > 0 && logits[id] > logits[ids[at - 1]]; at--) ids[at] = ids[at - 1];
  ids[at] = id;
  return count < top ? count + 1 : count;
}

/* Writes the scores of the token that follows a row. `t` is the token's position in the prompt. */
static void score_row(const rf_prompt_scores *to, const float *logits, float lse, int64_t vocab, int64_t t,
                      int32_t id) {
  int32_t rank = 0, *ids = to->top ? to->top_ids + t * to->top : NULL;
  int count = 0;
  for (int32_t v = 0; v < vocab; v++) {
    rank += logits[v] >= logits[id];
    if (to->top) count = add_top(ids, count, to->top, logits, v);
  }
  to->logprobs[t] = logits[id] - lse;
  to->ranks[t] = rank;
  for (int k = 0; k < to->top; k++) {
    to->top_logprobs[t * to->top + k] = k < count ? logits[ids[k]] - lse : 0;
    if (k >= count) ids[k] = -1;
  }
}

static void score(void *self, const rf_forward_part *part) {
  const compute *c = self;
  const rf_prompt_scores *to = &part->answer->to->of.scores;
  int64_t vocab = c->g->settings.model.vocab, first = part->sequence->length - part->count;
  for (int64_t k = 0; k < part->scored && part->logits; k++) {
    int64_t before = part->scored - k;
    score_row(to, part->logits - before * vocab, part->lse[-before], vocab, first + k + 1,
              part->tokens[k + 1]);
  }
}

static void find_layer(compute *c, int layer, const char *name) {
  char path[96];
  snprintf(path, sizeof path, "block.%d/%s", layer, name);
  int id = rf_run_find(c->g->run, c->g->first, path);
  if (id == RF_NONE) return;
  const rf_tensor *tensor = &c->g->prefill->graph->tensor[id];
  c->bytes[c->count++] = (struct kv_bytes){id, rf_tensor_bytes(tensor) / tensor->shape[0],
                                           rf_kv_class_of(&c->g->settings.model, layer)};
}

static int64_t rows_of(const rf_generator *g, int plan) {
  const rf_graph *graph = rf_generator_plan(g, plan)->graph;
  return graph->rows * rf_mesh_size(&graph->mesh, RF_AXES_OF_PASS);
}

static void find_inputs(const rf_generator *g, int plan, struct inputs *io) {
  static const char *const tables[] = {[RF_KV_GLOBAL] = "pages/global", [RF_KV_LOCAL] = "pages/local"};
  rf_run *run = g->run;
  int p = g->first + plan;
  int64_t wanted = g->settings.plan.build.microbatch * (1 + rf_generator_plan(g, plan)->options.build.draft);
  int logits = rf_run_find(run, p, "logits");
  *io = (struct inputs){.count = rows_of(g, plan),
                        .wanted = wanted,
                        .tokens = rf_run_named(run, p, "tokens", NULL),
                        .positions = rf_run_named(run, p, "positions", NULL),
                        .slots = rf_run_named(run, p, "slots", NULL),
                        .rows = rf_run_named(run, p, "rows", NULL),
                        .adapters = rf_run_named(run, p, "adapters", NULL),
                        .logits = rf_run_named(run, p, "logits", NULL),
                        .lse = rf_run_named(run, p, "lse", NULL),
                        .rules = rf_run_named(run, p, "rules", NULL),
                        .barred = rf_run_named(run, p, "barred", NULL),
                        .chosen = rf_run_named(run, p, "chosen", NULL),
                        .logprobs = rf_run_named(run, p, "logprobs", NULL)};
  if (logits != RF_NONE) io->of_logits = &rf_generator_plan(g, plan)->graph->tensor[logits];
  for (int k = 0; k < RF_KV_CLASSES; k++) io->table[k] = rf_run_named(run, p, tables[k], NULL);
}

static bool feeds_itself(const rf_graph *graph) {
  int tokens = rf_graph_find(graph, "tokens");
  return tokens != RF_NONE && graph->tensor[tokens].follows;
}

static void close_compute(void *self) {
  compute *c = self;
  for (int i = 0; c->sampler && i < c->g->batch->slots; i++) rf_sampler_close(&c->sampler[i]);
  for (int i = 0; c->work && i < c->workers; i++) rf_sampler_work_close(c->work[i]);
  free(c->sampler);
  free(c->work);
  free(c->bytes);
  free(c);
}

rf_status rf_compute_open(rf_generator *g, rf_error *error) {
  rf_batch *b = g->batch;
  const rf_model *model = &g->settings.model;
  compute *c = calloc(1, sizeof *c);
  if (!c) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while opening a generator");
  c->g = g;
  c->workers = b->threads < b->slots ? b->threads : b->slots;
  c->bytes = calloc(2 * (size_t)model->layers, sizeof *c->bytes);
  c->sampler = calloc((size_t)b->slots, sizeof *c->sampler);
  c->work = calloc((size_t)c->workers, sizeof(rf_sampler_work *));
  b->engine = (rf_engine){.self = c,
                          .rows = rows_of(g, RF_PREFILL),
                          .chunk = g->prefill->options.build.chunk,
                          .forward = forward,
                          .choose = choose,
                          .score = score,
                          .starts = starts,
                          .start = start,
                          .finish = finish,
                          .close = close_compute,
                          .timed = true};
  if (!c->bytes || !c->sampler || !c->work)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while opening a generator");
  for (int i = 0; i < c->workers; i++) {
    RF_TRY(rf_sampler_work_open(model->vocab, &c->work[i], error));
    rf_sampler_work_limit(c->work[i], g->settings.plan.isa);
  }
  for (int i = 0; i < b->slots; i++)
    RF_TRY(rf_sampler_open_with(&(rf_sampler_options){.temperature = 0}, c->work[0], &c->sampler[i], error));
  for (int layer = 0; layer < model->layers; layer++) {
    find_layer(c, layer, "attn/cache");
    find_layer(c, layer, "attn/cache/scale");
  }
  for (int p = 0; p < 2; p++) find_inputs(g, p, &c->io[p]);
  c->feeds = feeds_itself(g->decode->graph);
  g->computes = c->io[0].tokens != NULL; /* the backend null has no memory */
  b->pages.moved = move_page;
  b->pages.self = c;
  return RAFTER_OK;
}

rf_status rf_generator_require_numbers(const rf_generator *g, rf_error *error) {
  return g->computes ? RAFTER_OK
                     : RF_FAIL(error, RAFTER_INVALID, "choose --backend cpu or reference",
                               "the null backend computes no logits");
}

void rf_generator_passes(const rf_generator *g, int plan, int64_t *passes, int64_t *rows, double *seconds) {
  const compute *c = g->batch->engine.self;
  *passes = *rows = 0;
  *seconds = c->seconds[plan];
  for (int b = 0; b < SHAPES; b++) {
    *passes += c->shape[plan][b].passes;
    *rows += c->shape[plan][b].rows;
  }
}

rf_status rf_generator_predicted(const rf_generator *g, int plan, double *seconds, double *limit,
                                 rf_error *error) {
  const compute *c = g->batch->engine.self;
  for (int b = 0; b < SHAPES; b++) {
    const struct shape *s = &c->shape[plan][b];
    if (!s->passes) continue;
    int64_t parts = (s->parts + s->passes / 2) / s->passes, rows = (s->rows + s->passes / 2) / s->passes;
    RF_TRY(rf_trace_price(rf_generator_plan(g, plan), parts, rows, s->context / s->parts, (double)s->passes,
                          seconds, limit, error));
  }
  return RAFTER_OK;
}

double rf_generator_choosing(const rf_generator *g) {
  const compute *c = g->batch->engine.self;
  return g->computes ? c->choosing : 0;
}
