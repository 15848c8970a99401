/* pairs.c - see pairs.h. */
#define _GNU_SOURCE
#include "train/pairs.h"

#include "base/file.h"
#include "base/text.h"
#include "formats/json_lines.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* State of the reader while it reads the files of a set. */
typedef struct reading {
  const rf_source_options *options;
  rf_pair_set *set;
  rf_tokenizer *tokenizer;
  rf_example_reader *reader;
  rf_shard_writer *writer;
  rf_example two[2];
  rf_pair *pair; /* number of pairs of all files so far */
  int64_t count, capacity, tokens;
  bool *held; /* for each pair: true if it is for validation */
} reading;

/* Finds the range of tokens that the loss counts. The first token of a sequence has no
 * probability. */
static rf_answer answer_of(const rf_example *example) {
  int64_t first = 0, last = example->ids.count;
  while (last > 0 && !example->mask[last - 1]) last--;
  while (first < last && !example->mask[first]) first++;
  if (first == 0) first = 1;
  return (rf_answer){.count = (int32_t)last, .prompt = (int32_t)first};
}

static bool same_ids(const rf_example *a, int32_t a_count, const rf_example *b, int32_t b_count) {
  return a_count == b_count && !memcmp(a->ids.at, b->ids.at, (size_t)a_count * sizeof *a->ids.at);
}

static void reserve(reading *r) {
  if (r->count < r->capacity) return;
  r->capacity = r->capacity ? 2 * r->capacity : 1024;
  r->pair = rf_must(realloc(r->pair, (size_t)r->capacity * sizeof *r->pair));
  r->held = rf_must(realloc(r->held, (size_t)r->capacity * sizeof *r->held));
}

static rf_status put_answer(reading *r, const rf_example *example, rf_answer *answer, rf_error *error) {
  answer->start = r->tokens;
  r->tokens += answer->count;
  r->set->answer_tokens += answer->count - answer->prompt;
  return rf_shard_append(r->writer, example->ids.at, answer->count, error);
}

/* Adds the pair of a row. If the answers of a row have no difference that can be learned, the row
 * is counted instead. */
static rf_status add_pair(reading *r, const bool empty[2], rf_error *error) {
  rf_pair_set *set = r->set;
  const int64_t seq = r->options->seq;
  int64_t cut = 0;
  if (empty[0] || empty[1]) return set->empty++, RAFTER_OK;
  rf_answer answer[2] = {answer_of(&r->two[0]), answer_of(&r->two[1])};
  for (int i = 0; i < 2; i++) {
    if (answer[i].count <= answer[i].prompt) return set->empty++, RAFTER_OK;
    if (answer[i].prompt >= seq) return set->long_prompts++, RAFTER_OK;
    if (answer[i].count <= seq) continue;
    cut += answer[i].count - seq;
    answer[i].count = (int32_t)seq;
  }
  if (same_ids(&r->two[0], answer[0].count, &r->two[1], answer[1].count)) return set->equal++, RAFTER_OK;
  set->cut += cut > 0;
  set->cut_tokens += cut;
  reserve(r);
  for (int i = 0; i < 2; i++) RF_TRY(put_answer(r, &r->two[i], &answer[i], error));
  r->held[r->count] = false;
  r->pair[r->count++] = (rf_pair){answer[0], answer[1]};
  return RAFTER_OK;
}

static rf_status read_file(reading *r, const char *path, rf_error *error) {
  rf_status status = RAFTER_OK;
  rf_json_lines lines;
  bool empty[2];
  const int64_t first = r->count;
  const rf_file_stamp stamp = rf_file_stamp_at(path);
  RF_TRY(rf_json_lines_open(path, "check the path given to --data", &lines, error));
  for (bool more;;) {
    RF_GO(rf_json_lines_text(&lines, &more, error));
    if (!more) break;
    RF_GO(rf_example_read_two(r->reader, path, lines.line, lines.text, lines.bytes, r->two, empty, error));
    r->set->rows++;
    RF_GO(add_pair(r, empty, error));
  }
  RF_GO(rf_file_unchanged(path, stamp, error));
  int64_t held = rf_held_out(r->count - first, r->options->val_fraction);
  for (int64_t i = r->count - held; i < r->count; i++) r->held[i] = true;
  r->set->files++;
done:
  rf_json_lines_close(&lines);
  return status;
}

/* Checks all files before the first file is read, because reading may take long. */
static rf_status check_files(const char *data, rf_error *error) {
  rf_status status = RAFTER_OK;
  char *copy = rf_must(strdup(data)), *rest = copy;
  int files = 0;
  for (char *spec; status == RAFTER_OK && (spec = strsep(&rest, ",")) != NULL;) {
    if (!*spec) continue;
    const char *colon = strrchr(spec, ':');
    files++;
    if (rf_text_ends_with(spec, ".jsonl")) status = rf_source_exists(spec, error);
    else if (colon && colon - spec > 6 && !strncmp(colon - 6, ".jsonl", 6))
      status = RF_FAIL(error, RAFTER_INVALID, "leave the weight out; files of pairs are joined",
                       "files of preferences have no weights (--data: got %.200s)", spec);
    else
      status = RF_FAIL(error, RAFTER_INVALID, "give .jsonl files whose rows have prompt, chosen and rejected",
                       "preferences are rows of .jsonl files (--data: got %.200s)", spec);
  }
  free(copy);
  if (status == RAFTER_OK && !files)
    return RF_FAIL(error, RAFTER_INVALID,
                   "give --data FILE.jsonl, whose rows have prompt, chosen and rejected",
                   "--data is empty (expected one file or more)");
  return status;
}

static rf_status read_files(reading *r, const char *data, rf_error *error) {
  rf_status status = RAFTER_OK;
  char *copy = rf_must(strdup(data)), *rest = copy;
  for (char *spec; status == RAFTER_OK && (spec = strsep(&rest, ",")) != NULL;)
    if (*spec) status = read_file(r, spec, error);
  free(copy);
  return status;
}

static rf_status nothing_left(const rf_pair_set *set, int64_t seq, rf_error *error) {
  return RF_FAIL(
      error, RAFTER_FAILED,
      set->long_prompts ? "raise --seq" : "give rows whose chosen and rejected answers differ",
      "%s has no pair to train on (%lld row%s: %lld with equal answers, %lld with an empty answer, "
      "%lld whose prompt has %lld tokens or more)",
      set->source.spec, (long long)set->rows, rf_plural(set->rows), (long long)set->equal,
      (long long)set->empty, (long long)set->long_prompts, (long long)seq);
}

/* Moves the pairs into the set. The pairs for training come first, and the pairs for validation
 * follow. */
static void divide(reading *r) {
  rf_pair_set *set = r->set;
  set->pair = rf_must(malloc((size_t)(r->count + 1) * sizeof *set->pair));
  for (int64_t i = 0; i < r->count; i++)
    if (!r->held[i]) set->pair[set->train++] = r->pair[i];
  for (int64_t i = 0; i < r->count; i++)
    if (r->held[i]) set->pair[set->train + set->held_out++] = r->pair[i];
}

uint64_t rf_pairs_digest(const rf_pair_set *set) {
  uint64_t digest = set->source.digest;
  for (int64_t i = 0; i < set->train + set->held_out; i++) {
    const rf_pair *p = &set->pair[i];
    digest = rf_key(digest, (uint64_t)p->chosen.prompt, (uint64_t)p->rejected.prompt);
  }
  return rf_key(digest, (uint64_t)set->train, 0);
}

static rf_status open_shard(reading *r, const char *path, rf_error *error) {
  rf_source *source = &r->set->source;
  RF_TRY(rf_shard_open(path, &source->shard, error));
  source->tokens = source->shard.tokens;
  source->documents = source->shard.documents;
  source->scan_vocab = r->options->model->vocab;
  return rf_shard_scan(&source->shard, source->scan_vocab, &source->digest, error);
}

rf_status rf_pairs_open(const char *data, const rf_source_options *options, rf_pair_set *set,
                        rf_error *error) {
  rf_status status = RAFTER_OK;
  char path[1200];
  reading r = {.options = options, .set = set};
  *set = (rf_pair_set){.source = {.seq = options->seq, .weight = 1, .shard = {.file = -1}}};
  RF_TRY(check_files(data, error));
  snprintf(set->source.spec, sizeof set->source.spec, "%s", data);
  snprintf(path, sizeof path, "%s/pairs.shard", options->work_folder);
  /* without a tokenizer, only rows of token ids can be read from the file */
  RF_GO(rf_source_tokenizer(options, false, &r.tokenizer, error));
  set->source.tokenizer_vocab = r.tokenizer ? rf_tokenizer_vocab(r.tokenizer) : 0;
  const rf_example_options rows = {.tokenizer = r.tokenizer,
                                   .model_folder = options->model_folder,
                                   .template = options->template,
                                   .vocab = options->model->vocab,
                                   .loss_on = options->loss_on,
                                   .fields = options->fields};
  RF_GO(rf_example_open(&rows, &r.reader, error));
  RF_GO(rf_shard_create(path, options->model->vocab, &r.writer, error));
  RF_GO(read_files(&r, data, error));
  divide(&r);
  if (!set->train) RF_GO(nothing_left(set, options->seq, error));
  status = rf_shard_finish(r.writer, error);
  r.writer = NULL;
  if (status == RAFTER_OK) status = open_shard(&r, path, error);
done:
  rf_shard_discard(r.writer);
  rf_example_close(r.reader);
  rf_tokenizer_close(r.tokenizer);
  for (int i = 0; i < 2; i++) rf_example_free(&r.two[i]);
  free(r.pair);
  free(r.held);
  if (status != RAFTER_OK) rf_pairs_close(set);
  return status;
}

void rf_pairs_close(rf_pair_set *set) {
  rf_source_close(&set->source);
  free(set->pair);
  *set = (rf_pair_set){.source = {.shard = {.file = -1}}};
}

int64_t rf_pairs_at(const rf_pair_set *set, uint64_t seed, int64_t drawn) {
  const uint64_t key = rf_key(seed, rf_name_key("shuffle pairs"), 0);
  return rf_shuffle(key, drawn / set->train, drawn % set->train, set->train);
}

rf_status rf_pairs_read(const rf_pair_set *set, const rf_answer *answer, int32_t *tokens, rf_error *error) {
  return rf_shard_read(&set->source.shard, answer->start, answer->count, set->source.scan_vocab, tokens,
                       error);
}

rf_status rf_pairs_unchanged(rf_pair_set *set, rf_error *error) {
  return rf_source_unchanged(&set->source, error);
}
