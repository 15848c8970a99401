/* walk.c - see walk.h. A part's place in the walk is its slot: its page tables are written there
 * anew each time. */
#include "generate/walk.h"
#include "run/record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A page of every layer of its class is copied to another, or nobody holds it any more. */
static void move_page(void *self, rf_kv_class class, int32_t from, int32_t to) {
  const rf_walker *w = self;
  for (int i = 0; i < w->count; i++) {
    const struct rf_kv_bytes *b = &w->bytes[i];
    if (b->class != class || !b->data) continue;
    if (from >= 0)
      memcpy(b->data + to * b->page_bytes, b->data + from * b->page_bytes, (size_t)b->page_bytes);
    else if (w->poison) memset(b->data + to * b->page_bytes, 0xff, (size_t)b->page_bytes);
  }
}

static void find_layer(rf_generator *g, rf_walker *w, int layer, const char *name) {
  char path[96];
  const rf_tensor *tensor = NULL;
  snprintf(path, sizeof path, "block.%d/%s", layer, name);
  unsigned char *data = rf_run_named(g->run, 0, path, &tensor);
  if (data)
    w->bytes[w->count++] = (struct rf_kv_bytes){data, rf_tensor_bytes(tensor) / tensor->shape[0],
                                                rf_kv_class_of(&g->settings.model, layer)};
}

rf_status rf_walker_open(rf_generator *g, rf_error *error) {
  static const char *const tables[] = {[RF_KV_GLOBAL] = "pages/global", [RF_KV_LOCAL] = "pages/local"};
  rf_walker *w = g->walker = calloc(1, sizeof *w);
  if (!w) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while opening a generator");
  rf_build_options own = g->prefill->options.build;
  own.microbatch = g->settings.plan.build.microbatch;
  own.sequences = g->settings.plan.build.sequences;
  rf_kv kv = rf_kv_of(&g->settings.model, &own);
  RF_TRY(rf_pages_open(&kv, &w->pages, error));
  RF_TRY(rf_sequence_open(&w->pages, g->settings.plan.build.seq, &w->hand, error));
  w->bytes = calloc(2 * (size_t)g->settings.model.layers, sizeof *w->bytes);
  w->extent = calloc((size_t)g->settings.plan.build.microbatch, sizeof *w->extent);
  if (!w->bytes || !w->extent)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while opening a generator");
  w->pages.moved = move_page;
  w->pages.self = w;
  w->poison = g->settings.debug.poison;
  if (g->settings.simulated) {
    w->prices[0] = rf_walk_prices_open(g->prefill);
    w->prices[1] = rf_walk_prices_open(g->decode);
    return w->prices[0] && w->prices[1]
               ? RAFTER_OK
               : RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while opening a generator");
  }
  for (int layer = 0; layer < g->settings.model.layers; layer++) {
    find_layer(g, w, layer, "attn/cache");
    find_layer(g, w, layer, "attn/cache/scale");
  }
  for (int p = 0; p < 2; p++)
    for (int c = 0; c < RF_KV_CLASSES; c++) w->table[p][c] = rf_run_named(g->run, p, tables[c], NULL);
  return RAFTER_OK;
}

void rf_walker_close(rf_generator *g) {
  rf_walker *w = g->walker;
  if (!w) return;
  rf_sequence_close(&w->hand);
  rf_pages_close(&w->pages);
  for (int p = 0; p < 2; p++) rf_walk_prices_close(w->prices[p]);
  free(w->bytes);
  free(w->extent);
  free(w);
}

/* The inputs of one part, whose rows begin at `row`. */
static void write_part(const rf_generator *g, int p, const rf_walk_part *part, int slot, int64_t row) {
  const rf_walker *w = g->walker;
  const struct rf_walk_inputs *io = &g->io[p];
  int64_t columns = w->pages.kv.columns;
  for (int64_t i = 0; i < part->count; i++) {
    io->tokens[row + i] = part->tokens[i];
    io->positions[row + i] = (int32_t)(part->sequence->length + i);
    io->slots[row + i] = slot;
  }
  for (int c = 0; c < RF_KV_CLASSES; c++)
    if (w->table[p][c])
      memcpy(w->table[p][c] + slot * columns, part->sequence->of[c].page, (size_t)columns * sizeof(int32_t));
}

static void write_inputs(const rf_generator *g, int p, const rf_walk_part *part, int count) {
  const rf_walker *w = g->walker;
  const struct rf_walk_inputs *io = &g->io[p];
  int64_t rows = (p ? g->decode : g->prefill)->graph->rows, slots = g->settings.plan.build.microbatch,
          row = 0, wanted = 0;
  for (int i = 0; i < count; row += part[i++].count) {
    write_part(g, p, &part[i], i, row);
    if (part[i].wanted) io->rows[wanted++] = (int32_t)(row + part[i].count - 1);
  }
  while (wanted < slots) io->rows[wanted++] = -1;
  for (; row < rows; row++) {
    io->tokens[row] = 0;
    io->positions[row] = 0;
    io->slots[row] = -1;
  }
  for (int c = 0; c < RF_KV_CLASSES; c++)
    if (w->table[p][c])
      memset(w->table[p][c] + count * w->pages.kv.columns, 0xff,
             (size_t)((slots - count) * w->pages.kv.columns) * sizeof(int32_t));
}

/* What the walk would take. Of a prompt whose cache was given only the last row is walked: the
 * token that came along. */
static double predict(const rf_generator *g, int p, const rf_walk_part *part, int count) {
  rf_extent *extent = g->walker->extent;
  bool given = g->settings.prompts_given;
  for (int i = 0; i < count; i++)
    extent[i] = (rf_extent){given ? 1 : part[i].count, part[i].sequence->length + part[i].count};
  return rf_walk_price(g->walker->prices[given ? 1 : p], extent, count);
}

double rf_generator_prompt_seconds(const rf_generator *g, int64_t tokens) {
  int64_t most = g->prefill->options.build.chunk;
  double seconds = 0;
  for (int64_t at = 0, rows; at < tokens; at += rows) {
    rows = tokens - at < most ? tokens - at : most;
    rf_extent extent = {rows, at + rows};
    seconds += rf_plan_walk_seconds(rows == 1 ? g->decode : g->prefill, &extent, 1);
  }
  return seconds;
}

static rf_status run_plan(rf_generator *g, int p, int64_t rows, rf_error *error) {
  /* so that unused rows hold numbers too */
  bool whole = g->settings.debug.poison || g->settings.debug.find_nan;
  rf_run_inputs inputs = {.rows = whole ? (p ? g->decode : g->prefill)->graph->rows : rows, .step = 1};
  for (int s = 0; s < RF_SECTIONS; s++) RF_TRY(rf_run_section(g->run, p, (rf_section)s, &inputs, error));
  return RAFTER_OK;
}

/* Counts a walk that was done. */
static void count_walk(rf_walker *w, int p, const rf_walk_part *part, int count, int64_t rows,
                       double seconds) {
  struct rf_walked *of = w->walked[p];
  int b = 0;
  while (b < RF_WALKED - 1 && of[b].walks &&
         (of[b].rows != rows * of[b].walks || of[b].parts != count * of[b].walks))
    b++;
  of[b].walks++;
  of[b].rows += rows;
  of[b].parts += count;
  for (int i = 0; i < count; i++) of[b].context += part[i].sequence->length + part[i].count;
  w->seconds[p] += seconds;
}

void rf_generator_walked(const rf_generator *g, int p, int64_t *walks, int64_t *rows, double *seconds) {
  const struct rf_walked *of = g->walker->walked[p];
  *walks = *rows = 0;
  *seconds = g->walker->seconds[p];
  for (int b = 0; b < RF_WALKED; b++) {
    *walks += of[b].walks;
    *rows += of[b].rows;
  }
}

rf_status rf_generator_predicted(const rf_generator *g, int p, double *seconds, double *limit,
                                 rf_error *error) {
  const rf_plan *plan = p ? g->decode : g->prefill;
  rf_extent *extent = g->walker->extent; /* nothing is simulated meanwhile */
  for (int b = 0; b < RF_WALKED; b++) {
    const struct rf_walked *w = &g->walker->walked[p][b];
    if (!w->walks) continue;
    int parts = (int)((w->parts + w->walks / 2) / w->walks);
    int64_t rows = (w->rows + w->walks / 2) / w->walks, context = w->context / w->parts;
    for (int i = 0; i < parts; i++) {
      extent[i].rows = rows / parts + (i < rows % parts);
      extent[i].context = context > extent[i].rows ? context : extent[i].rows;
    }
    RF_TRY(rf_plan_walk_ops(plan, extent, parts, (double)w->walks, seconds, limit, error));
  }
  return RAFTER_OK;
}

rf_status rf_walk_parts(rf_generator *g, rf_walk_part *part, int count, rf_error *error) {
  rf_walker *w = g->walker;
  int64_t rows = 0, wanted = 0;
  for (int i = 0; i < count; i++) {
    RF_TRY(rf_sequence_extend(&w->pages, part[i].sequence, part[i].count, error));
    rows += part[i].count;
  }
  int p = rows == count ? 1 : 0;
  int64_t began = rf_phase_begin();
  if (g->io[p].tokens) write_inputs(g, p, part, count);
  rf_phase_end(RF_PHASE_DATA, began);
  int64_t context = 0;
  for (int i = 0; i < count; i++) context += part[i].sequence->length + part[i].count;
  rf_record_extent(count, rows, context);
  if (g->settings.simulated) g->seconds += predict(g, p, part, count);
  else {
    double begin = rf_now_seconds();
    RF_TRY(run_plan(g, p, rows, error));
    count_walk(w, p, part, count, rows, rf_now_seconds() - begin);
  }
  for (int i = 0; i < count; i++) {
    rf_sequence *s = part[i].sequence;
    memcpy(s->tokens + s->length, part[i].tokens, (size_t)part[i].count * sizeof *s->tokens);
    s->length += part[i].count;
    if (!part[i].wanted || !g->io[p].logits) continue;
    part[i].logits = g->io[p].logits + wanted * g->settings.model.vocab;
    part[i].lse = g->io[p].lse[wanted];
    wanted++;
  }
  return RAFTER_OK;
}
