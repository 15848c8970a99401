#define _GNU_SOURCE
#include "train/loader.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int64_t rf_shuffle(uint64_t key, int64_t epoch, int64_t index, int64_t count) {
  int half = 1;
  while ((INT64_C(1) << (2 * half)) < count) half++;
  uint64_t mask = (UINT64_C(1) << half) - 1, x = (uint64_t)index;
  /* The Feistel network permutes [0, 4^half). This mapping is repeated until the result is below
   * `count`. So the network gives a permutation of [0, count). */
  do {
    uint64_t left = x >> half, right = x & mask;
    for (uint64_t round = 0; round < 4; round++) {
      uint32_t words[4];
      rf_philox(key, right, (uint64_t)epoch * 4 + round, words);
      uint64_t mixed = left ^ (words[0] & mask);
      left = right;
      right = mixed;
    }
    x = left << half | right;
  } while (x >= (uint64_t)count);
  return (int64_t)x;
}

double rf_loader_split_weight(char *spec) {
  char *colon = strrchr(spec, ':'), *end = NULL;
  if (!colon || !colon[1]) return 1;
  double weight = strtod(colon + 1, &end);
  if (*end || end == colon + 1) return 1;
  *colon = 0;
  return weight;
}

rf_status rf_loader_check(const char *data, const rf_source_options *options, int64_t *converted,
                          rf_error *error) {
  rf_status status = RAFTER_OK;
  *converted = 0;
  for (int pass = 0; pass < 2 && status == RAFTER_OK; pass++) { /* the first check is that all files exist */
    char *copy = strdup(data ? data : ""), *rest = copy;
    if (!copy) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while checking the data");
    for (char *spec; status == RAFTER_OK && (spec = strsep(&rest, ",")) != NULL;) {
      if (!*spec) continue;
      rf_loader_split_weight(spec);
      status = pass ? rf_source_check(spec, options, converted, error) : rf_source_exists(spec, error);
    }
    free(copy);
  }
  return status;
}

rf_status rf_loader_open(const char *data, const rf_source_options *options, uint64_t seed, int64_t step_rows,
                         rf_loader *loader, rf_error *error) {
  rf_status status = RAFTER_OK;
  *loader = (rf_loader){.seed = seed, .seq = options->seq, .step_rows = step_rows};
  char *copy = strdup(data ? data : ""), *rest = copy;
  loader->draw = calloc((size_t)step_rows, sizeof *loader->draw);
  loader->held = calloc((size_t)step_rows, sizeof *loader->held);
  if (!copy || !loader->draw || !loader->held)
    RF_GO(RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while opening the data"));
  for (char *spec; (spec = strsep(&rest, ",")) != NULL;) {
    if (!*spec) continue;
    if (loader->count == RF_MAX_SOURCES)
      RF_GO(RF_FAIL(error, RAFTER_INVALID, "join some of the files",
                    "too many sources (--data: expected at most %d)", RF_MAX_SOURCES));
    double weight = rf_loader_split_weight(spec);
    if (!(weight > 0 && weight < 1e9))
      RF_GO(RF_FAIL(error, RAFTER_INVALID, "a weight is a share of the rows, for example a.txt:3,b.txt:1",
                    "bad weight of %s (expected above 0, got %g)", spec, weight));
    RF_GO(rf_source_open(spec, weight, options, &loader->source[loader->count], error));
    loader->count++;
  }
  if (!loader->count)
    status = RF_FAIL(error, RAFTER_INVALID,
                     "give --data FILE (text, .jsonl or .shard), or --data random:seed=0 to measure",
                     "there is no training data (--data is empty)");
done:
  free(copy);
  if (status != RAFTER_OK) rf_loader_close(loader);
  return status;
}

void rf_loader_given(rf_loader *loader, const rf_given *given) {
  rf_source *source = &loader->source[0];
  *source = (rf_source){.weight = 1,
                        .digest = given->digest,
                        .shard = {.file = -1},
                        .tokens = given->tokens,
                        .documents = given->rows,
                        .train = {.count = given->rows}};
  snprintf(source->spec, sizeof source->spec, "%s", given->spec);
  loader->count = 1;
}

void rf_loader_close(rf_loader *loader) {
  for (int i = 0; i < loader->count; i++) rf_source_close(&loader->source[i]);
  free(loader->draw);
  free(loader->held);
  loader->draw = loader->held = NULL;
  loader->count = 0;
}

/* Returns the source that has supplied the fewest rows in proportion to its weight. */
static int next_source(const rf_loader *loader) {
  double sum = 0, most = -1e300;
  int best = 0;
  for (int i = 0; i < loader->count; i++) sum += loader->source[i].weight;
  for (int i = 0; i < loader->count; i++) {
    double lag =
        loader->source[i].weight / sum * (double)(loader->state.rows + 1) - (double)loader->state.drawn[i];
    if (lag > most) {
      most = lag;
      best = i;
    }
  }
  return best;
}

static int64_t train_rows(const rf_loader *loader) {
  int64_t rows = 0;
  for (int i = 0; i < loader->count; i++) {
    if (loader->source[i].random) return 0;
    rows += loader->source[i].train.count;
  }
  return rows;
}

double rf_loader_epoch(const rf_loader *loader) {
  int64_t rows = train_rows(loader);
  return rows ? (double)loader->state.rows / (double)rows : 0;
}

rf_status rf_loader_steps(const rf_loader *loader, double epochs, int64_t *steps, rf_error *error) {
  double rows = ceil(epochs * (double)train_rows(loader));
  if (!(rows > 0))
    return RF_FAIL(error, RAFTER_INVALID, "give --steps", "random data has no end (--epochs %g)", epochs);
  *steps = (int64_t)ceil(rows / (double)loader->step_rows);
  return RAFTER_OK;
}

double rf_loader_pairs(const rf_loader *loader, int window) {
  double pairs = 0;
  for (int64_t r = 0; r < loader->step_rows; r++) {
    const rf_source *source = &loader->source[loader->draw[r].source];
    pairs += rf_source_pairs(source, &source->train, loader->draw[r].row, window);
  }
  return pairs;
}

void rf_loader_draw(rf_loader *loader, int64_t *tokens, int64_t *valid) {
  *tokens = *valid = 0;
  for (int64_t r = 0; r < loader->step_rows; r++) {
    int s = next_source(loader);
    const rf_source *source = &loader->source[s];
    int64_t k = loader->state.drawn[s]++, rows = source->train.count;
    loader->state.rows++;
    uint64_t key = rf_key(loader->seed, rf_name_key("shuffle"), (uint64_t)s);
    int64_t row = source->random ? k : rf_shuffle(key, k / rows, k % rows, rows);
    loader->draw[r] = (struct rf_draw){s, row};
    *valid += rf_source_valid(source, &source->train, row);
    *tokens += rf_source_tokens(source, &source->train, row);
  }
}

static rf_status fill_rows(const rf_loader *loader, bool held_out, const struct rf_draw *draw, int64_t count,
                           rf_token_batch batch, rf_error *error) {
  int64_t seq = loader->seq, n = count * seq;
  batch.segment_count = 0;
  for (int64_t r = 0; r < count; r++) {
    if (draw[r].source < 0) {
      rf_source_fill_unused(&batch, r * seq, (r + 1) * seq);
      continue;
    }
    const rf_source *source = &loader->source[draw[r].source];
    RF_TRY(rf_source_fill(source, held_out ? &source->held_out : &source->train, draw[r].row, r * seq, &batch,
                          error));
  }
  while (batch.segment_count <= n) batch.segments[batch.segment_count++] = (int32_t)n;
  return RAFTER_OK;
}

rf_status rf_loader_unchanged(rf_loader *loader, rf_error *error) {
  for (int i = 0; i < loader->count; i++) RF_TRY(rf_source_unchanged(&loader->source[i], error));
  return RAFTER_OK;
}

rf_status rf_loader_fill(const rf_loader *loader, int64_t first, int64_t count, rf_token_batch batch,
                         rf_error *error) {
  return fill_rows(loader, false, loader->draw + first, count, batch, error);
}

int64_t rf_loader_held_out(const rf_loader *loader) {
  int64_t rows = 0;
  for (int i = 0; i < loader->count; i++) rows += loader->source[i].held_out.count;
  return rows;
}

rf_status rf_loader_fill_held_out(const rf_loader *loader, int64_t first, int64_t count, rf_token_batch batch,
                                  int64_t *valid, rf_error *error) {
  *valid = 0;
  for (int64_t r = 0; r < count; r++) {
    int64_t row = first + r;
    int s = 0;
    loader->held[r].source = -1;
    if (row >= rf_loader_held_out(loader)) continue;
    while (s + 1 < loader->count && row >= loader->source[s].held_out.count)
      row -= loader->source[s++].held_out.count;
    loader->held[r] = (struct rf_draw){s, row};
    *valid += rf_source_valid(&loader->source[s], &loader->source[s].held_out, row);
  }
  return fill_rows(loader, true, loader->held, count, batch, error);
}
