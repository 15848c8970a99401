/* source.c - opens a source, packs its documents, fills rows. */
#define _GNU_SOURCE
#include "train/source.h"

#include "base/file.h"
#include "formats/json_lines.h"
#include "base/text.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct piece_list {
  rf_piece *at;
  int64_t count, capacity;
} piece_list;

static bool push_piece(piece_list *list, rf_piece piece) {
  if (list->count == list->capacity) {
    list->capacity = list->capacity ? list->capacity * 2 : 1024;
    rf_piece *grown = realloc(list->at, (size_t)list->capacity * sizeof *grown);
    if (!grown) return false;
    list->at = grown;
  }
  list->at[list->count++] = piece;
  return true;
}

static int longer_first(const void *a, const void *b) {
  const rf_piece *x = a, *y = b;
  if (x->tokens != y->tokens) return x->tokens > y->tokens ? -1 : 1;
  return (x->start > y->start) - (x->start < y->start);
}

/* Lists of rows, one list for each number of free tokens. Each list has a bit, which is set if the
 * list is not empty. So the best fit is found in T / 64 steps. */
typedef struct open_rows {
  int64_t *head, *next;
  uint64_t *bits;
  int64_t words;
} open_rows;

static void open_put(open_rows *open, int64_t space, int64_t row) {
  open->next[row] = open->head[space];
  open->head[space] = row;
  open->bits[space / 64] |= 1ull << (space % 64);
}

static int64_t open_take(open_rows *open, int64_t at_least, int64_t *space) {
  int64_t word = at_least / 64;
  uint64_t bits = open->bits[word] & (~0ull << (at_least % 64));
  while (!bits && ++word < open->words) bits = open->bits[word];
  if (!bits) return -1;
  *space = word * 64 + __builtin_ctzll(bits);
  int64_t row = open->head[*space];
  open->head[*space] = open->next[row];
  if (open->head[*space] < 0) open->bits[*space / 64] &= ~(1ull << (*space % 64));
  return row;
}

/* Packs pieces of documents into rows by best fit. The longest pieces come first. Pieces of equal
 * length are packed in the order of their positions. So equal documents always give equal rows. */
static rf_status pack(piece_list *pieces, int64_t seq, bool share_rows, rf_rows *rows, rf_error *error) {
  rf_status status = RAFTER_OK;
  int64_t n = pieces->count, used = 0;
  int64_t *row_of = malloc((size_t)(n + 1) * 8), *fill = calloc((size_t)n + 2, 8);
  open_rows open = {.words = seq / 64 + 1};
  open.head = malloc((size_t)(seq + 1) * 8);
  open.next = malloc((size_t)(n + 1) * 8);
  open.bits = calloc((size_t)open.words, 8);
  rf_piece *sorted = malloc((size_t)(n + 1) * sizeof *sorted);
  if (!row_of || !fill || !open.head || !open.next || !open.bits || !sorted)
    RF_GO(RF_FAIL(error, RAFTER_FAILED, "split the data into smaller files",
                  "out of memory while packing %lld pieces", (long long)n));
  if (n) qsort(pieces->at, (size_t)n, sizeof *pieces->at, longer_first);
  memset(open.head, 0xff, (size_t)(seq + 1) * 8);
  for (int64_t i = 0; i < n; i++) {
    int64_t space = 0, tokens = pieces->at[i].tokens,
            row = share_rows ? open_take(&open, tokens, &space) : -1;
    if (row < 0) {
      row = rows->count++;
      space = seq;
    }
    if (space > tokens) open_put(&open, space - tokens, row);
    row_of[i] = row;
    used += tokens;
    fill[row + 1]++;
  }
  rows->first = malloc((size_t)(rows->count + 1) * 8);
  if (!rows->first) RF_GO(RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while packing"));
  rows->first[0] = 0;
  for (int64_t r = 0; r < rows->count; r++) rows->first[r + 1] = rows->first[r] + fill[r + 1];
  memset(fill, 0, (size_t)(n + 2) * 8);
  for (int64_t i = 0; i < n; i++) sorted[rows->first[row_of[i]] + fill[row_of[i]]++] = pieces->at[i];
  rows->piece = sorted;
  sorted = NULL;
  rows->efficiency = rows->count ? (double)used / ((double)rows->count * (double)seq) : 0;
done:
  free(row_of);
  free(fill);
  free(open.head);
  free(open.next);
  free(open.bits);
  free(sorted);
  return status;
}

/* Counts the labels of a piece that the loss counts. The label of a token is the next token of the
 * document. The last token of the piece has a label only if the document continues after the piece
 * (`next`). */
static rf_status count_valid(const rf_source *source, int64_t start, int64_t count, bool next, int64_t *valid,
                             rf_error *error) {
  uint8_t mask[4096];
  int64_t labels = count - !next;
  *valid = labels;
  for (int64_t done = 0; source->shard.mask_byte && done < labels; done += (int64_t)sizeof mask) {
    int64_t now = labels - done < (int64_t)sizeof mask ? labels - done : (int64_t)sizeof mask;
    RF_TRY(rf_shard_mask(&source->shard, start + 1 + done, now, mask, error));
    for (int64_t i = 0; i < now; i++) *valid -= !mask[i];
  }
  return RAFTER_OK;
}

static rf_status add_piece(rf_source *source, piece_list *pieces, int64_t start, int64_t count, bool next,
                           bool example, rf_error *error) {
  int64_t valid = 0;
  RF_TRY(count_valid(source, start, count, next, &valid, error));
  if (!valid && example) return source->skipped++, RAFTER_OK;
  if (push_piece(pieces, (rf_piece){start, (int32_t)count, (uint32_t)valid & INT32_MAX, next}))
    return RAFTER_OK;
  return RF_FAIL(error, RAFTER_FAILED, "split the data into smaller files", "out of memory while packing %s",
                 source->spec);
}

/* Adds a document. A plain text is added in pieces of `seq` tokens, and only the first `seq` tokens
 * of an example are added. */
static rf_status add_document(rf_source *source, piece_list *pieces, int64_t start, int64_t end, bool example,
                              rf_error *error) {
  int64_t seq = source->seq;
  if (example && end - start > seq + 1) {
    source->cut++;
    source->cut_tokens += end - start - seq - 1;
    end = start + seq + 1;
  }
  if (example && end - start < 2) source->skipped++;
  for (int64_t at = start; end - at >= 2; at += seq) { /* a single token has no label */
    int64_t tokens = end - at < seq ? end - at : seq;
    RF_TRY(add_piece(source, pieces, at, tokens, at + tokens < end, example, error));
    if (end - at <= seq) break;
  }
  return RAFTER_OK;
}

static rf_status pack_documents(rf_source *source, int64_t first, int64_t last, bool share_rows,
                                rf_rows *rows, rf_error *error) {
  rf_status status = RAFTER_OK;
  piece_list pieces = {0};
  int64_t start = 0, end = 0;
  bool example = false;
  RF_GO(rf_shard_document(&source->shard, first, &start, NULL, error));
  for (int64_t d = first; d < last; d++, start = end) {
    RF_GO(rf_shard_document(&source->shard, d + 1, &end, &example, error));
    if (end < start)
      RF_GO(RF_FAIL(error, RAFTER_FAILED, "write the shard again with `rafter tokenize --output`",
                    "%s has a bad document table (document %lld ends before it starts)", source->shard.path,
                    (long long)d));
    RF_GO(add_document(source, &pieces, start, end, example, error));
  }
  status = pack(&pieces, source->seq, share_rows, rows, error);
done:
  free(pieces.at);
  return status;
}

/* Maximum number of bytes of a text file. The whole file is read into memory. Files of other kinds
 * may be larger. */
static const size_t TEXT_MAX = (size_t)4 << 30;

/* Larger vocabularies belong to tokenizers of subwords, not to bytes. A shape with a smaller
 * vocabulary may train on bytes, as the preset uva does with 2048 ids. */
enum { BYTES_MAX = 4096 };

/* Writes the name of a MODEL that trains on bytes, for the hint. A preset has a ':' before its
 * first field. A shape has a ',' before a further field. */
static rf_status large_vocab(const rf_model *model, rf_error *error) {
  char bytes[sizeof model->name + 64], hint[sizeof bytes + 128];
  if (strstr(model->name, "vocab=")) snprintf(bytes, sizeof bytes, "a shape with vocab=256");
  else snprintf(bytes, sizeof bytes, "%s%cvocab=256", model->name, strchr(model->name, ':') ? ',' : ':');
  snprintf(hint, sizeof hint,
           "give --tokenizer DIR, or token shards from `rafter tokenize`, or train on bytes with %s", bytes);
  return RF_FAIL(error, RAFTER_INVALID, hint,
                 "%s has no tokenizer, and its vocabulary is not one of bytes (vocab: expected at most %d, "
                 "got %lld)",
                 model->name, BYTES_MAX, (long long)model->vocab);
}

rf_status rf_source_tokenizer(const rf_source_options *options, bool needed, rf_tokenizer **tokenizer,
                              rf_error *error) {
  const char *folder = options->model_folder ? options->model_folder : "";
  rf_status status = rf_tokenizer_for(options->model->name, options->model->vocab, folder, tokenizer, error);
  if (status == RAFTER_OK && !*folder && options->model->vocab > BYTES_MAX) {
    rf_tokenizer_close(*tokenizer);
    status = large_vocab(options->model, error);
  }
  if (status != RAFTER_INVALID || needed) return status;
  *tokenizer = NULL;
  return RAFTER_OK;
}

/* Tokenizes a text file into a shard, which is one stream. */
static rf_status convert_text(const char *path, const rf_source_options *options,
                              const rf_tokenizer *tokenizer, char shard_path[1200], rf_error *error) {
  rf_status status = RAFTER_OK;
  rf_shard_writer *writer = NULL;
  const char *name = strrchr(path, '/');
  char *text = NULL;
  size_t bytes = 0;
  rf_ids ids = {0};
  snprintf(shard_path, 1200, "%s/%s.shard", options->work_folder, name ? name + 1 : path);
  RF_GO(rf_file_read(path, TEXT_MAX, &text, &bytes, error));
  RF_GO(rf_tokenizer_encode(tokenizer, text, bytes, 0, &ids, error));
  RF_GO(rf_shard_create(shard_path, options->model->vocab, &writer, error));
  RF_GO(rf_shard_append_stream(writer, ids.at, ids.count, error));
  status = rf_shard_finish(writer, error);
  writer = NULL;
done:
  rf_shard_discard(writer);
  rf_ids_free(&ids);
  free(text);
  return status;
}

static rf_status append_row(rf_shard_writer *writer, const rf_example *row, rf_error *error) {
  if (row->is_example) return rf_shard_append_example(writer, row->ids.at, row->mask, row->ids.count, error);
  return rf_shard_append(writer, row->ids.at, row->ids.count, error);
}

rf_status rf_source_write_shard(const char *path, const rf_example_options *options, const char *shard_path,
                                rf_error *error) {
  rf_status status = RAFTER_OK;
  rf_example_reader *reader = NULL;
  rf_shard_writer *writer = NULL;
  rf_example row = {0};
  rf_json_lines lines;
  RF_TRY(rf_json_lines_open(path, "check the path", &lines, error));
  RF_GO(rf_example_open(options, &reader, error));
  RF_GO(rf_shard_create(shard_path, options->vocab, &writer, error));
  for (bool more;;) {
    RF_GO(rf_json_lines_text(&lines, &more, error));
    if (!more) break;
    RF_GO(rf_example_read(reader, path, lines.line, lines.text, lines.bytes, &row, error));
    if (row.ids.count) RF_GO(append_row(writer, &row, error));
  }
  status = rf_shard_finish(writer, error);
  writer = NULL;
done:
  rf_shard_discard(writer);
  rf_example_close(reader);
  rf_example_free(&row);
  rf_json_lines_close(&lines);
  return status;
}

/* Converts a .jsonl file to a shard in the run's folder. So the memory does not grow with the size
 * of the file. */
static rf_status convert_jsonl(const char *path, const rf_source_options *options, char shard_path[1200],
                               int64_t *tokenizer_vocab, rf_error *error) {
  rf_tokenizer *tokenizer = NULL;
  const char *name = strrchr(path, '/');
  snprintf(shard_path, 1200, "%s/%s.shard", options->work_folder, name ? name + 1 : path);
  /* Without a tokenizer, only rows of token ids can be read from the file. */
  RF_TRY(rf_source_tokenizer(options, false, &tokenizer, error));
  rf_example_options rows = {.tokenizer = tokenizer,
                             .model_folder = options->model_folder,
                             .template = options->template,
                             .vocab = options->model->vocab,
                             .loss_on = options->loss_on,
                             .fields = options->fields};
  rf_status status = rf_source_write_shard(path, &rows, shard_path, error);
  *tokenizer_vocab = tokenizer ? rf_tokenizer_vocab(tokenizer) : 0;
  rf_tokenizer_close(tokenizer);
  return status;
}

static rf_status open_random(const char *spec, int64_t vocab, rf_source *source, rf_error *error) {
  char *end = NULL;
  const char *seed = !strncmp(spec, "random:seed=", 12) ? spec + 12 : !strcmp(spec, "random") ? "0" : "";
  errno = 0;
  source->random_seed = strtoull(seed, &end, 10);
  if (!*seed || *end || errno)
    return RF_FAIL(error, RAFTER_INVALID, "write --data random:seed=0",
                   "unknown random data (expected random:seed=NUMBER, got %s)", spec);
  source->random = true;
  source->shard.vocab = vocab;
  source->digest = source->random_seed;
  source->train = (rf_rows){.count = INT64_C(1) << 40, .efficiency = 1};
  source->held_out =
      (rf_rows){.count = INT64_C(1) << 20, .stream_start = (INT64_C(1) << 40) * source->seq, .efficiency = 1};
  return RAFTER_OK;
}

int64_t rf_held_out(int64_t count, double fraction) {
  int64_t held = (int64_t)((double)count * fraction + 0.5);
  if (fraction > 0 && !held) held = 1;
  return held < count ? held : count > 1 ? count - 1 : 0;
}

static rf_status too_short(const rf_source *source, rf_error *error) {
  if (source->skipped)
    return RF_FAIL(error, RAFTER_FAILED, "raise --seq if prompts are longer than a row, or check --loss-on",
                   "%s has nothing to train on (the loss counts none of the first %lld tokens of any of its "
                   "%lld examples)",
                   source->spec, (long long)source->seq + 1, (long long)source->skipped);
  if (source->documents)
    return RF_FAIL(error, RAFTER_FAILED, "give more or longer documents",
                   "%s has nothing to train on (expected a document of at least 2 tokens, got %lld tokens in "
                   "%lld documents)",
                   source->spec, (long long)source->tokens, (long long)source->documents);
  if (!source->tokens)
    return RF_FAIL(error, RAFTER_FAILED, "give a longer text",
                   "%s has no tokens (expected at least %lld, got 0)", source->spec,
                   (long long)source->seq + 1);
  return RF_FAIL(error, RAFTER_FAILED, "give a longer text, or lower --seq or --val-fraction",
                 "%s is too short for one row (expected at least %lld tokens, got %lld)", source->spec,
                 (long long)source->seq + 1, (long long)source->tokens);
}

bool rf_source_is_random(const char *spec) {
  return !strncmp(spec, "random", 6) && (spec[6] == ':' || !spec[6]);
}

bool rf_sources_are_random(const char *list) {
  for (const char *at = list; at; at = strchr(at, ',')) {
    at += *at == ',';
    char spec[24];
    snprintf(spec, sizeof spec, "%.*s", (int)strcspn(at, ","), at);
    if (!rf_source_is_random(spec)) return false;
  }
  return true;
}

rf_status rf_source_exists(const char *spec, rf_error *error) {
  if (rf_source_is_random(spec) || !access(spec, R_OK)) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_FAILED, "check the path given to --data", "cannot open %s (%s)", spec,
                 strerror(errno));
}

rf_status rf_source_check(const char *spec, const rf_source_options *options, int64_t *converted,
                          rf_error *error) {
  rf_tokenizer *tokenizer = NULL;
  struct stat file;
  if (rf_source_is_random(spec) || rf_text_ends_with(spec, ".shard")) return RAFTER_OK;
  RF_TRY(rf_source_tokenizer(options, !rf_text_ends_with(spec, ".jsonl"), &tokenizer, error));
  rf_tokenizer_close(tokenizer);
  if (stat(spec, &file) || !S_ISREG(file.st_mode)) return RAFTER_OK;
  *converted += file.st_size;
  rf_source empty = {.seq = options->seq};
  snprintf(empty.spec, sizeof empty.spec, "%s", spec);
  return file.st_size ? RAFTER_OK : too_short(&empty, error);
}

rf_status rf_source_open(const char *spec, double weight, const rf_source_options *options, rf_source *source,
                         rf_error *error) {
  rf_status status = RAFTER_OK;
  *source = (rf_source){.weight = weight, .seq = options->seq, .shard.file = -1};
  snprintf(source->spec, sizeof source->spec, "%s", spec);
  if (rf_source_is_random(spec)) {
    status = open_random(spec, options->model->vocab, source, error);
    if (!(options->val_fraction > 0)) source->held_out.count = 0;
    return status;
  }
  rf_file_stamp stamp = rf_file_stamp_at(spec);
  if (rf_text_ends_with(spec, ".jsonl")) {
    char path[1200];
    RF_TRY(convert_jsonl(spec, options, path, &source->tokenizer_vocab, error));
    RF_TRY(rf_file_unchanged(spec, stamp, error));
    RF_TRY(rf_shard_open(path, &source->shard, error));
  } else if (rf_text_ends_with(spec, ".shard")) {
    RF_TRY(rf_shard_open(spec, &source->shard, error));
  } else {
    rf_tokenizer *tokenizer = NULL;
    RF_TRY(rf_source_exists(spec, error));
    RF_TRY(rf_source_tokenizer(options, true, &tokenizer, error));
    char path[1200];
    bool bytes = rf_tokenizer_is_byte(tokenizer);
    source->tokenizer_vocab = rf_tokenizer_vocab(tokenizer);
    status = bytes ? RAFTER_OK : convert_text(spec, options, tokenizer, path, error);
    rf_tokenizer_close(tokenizer);
    RF_TRY(status);
    if (!bytes) RF_TRY(rf_file_unchanged(spec, stamp, error));
    RF_TRY(bytes ? rf_shard_open_text(spec, &source->shard, error)
                 : rf_shard_open(path, &source->shard, error));
  }
  source->tokens = source->shard.tokens;
  source->documents = source->shard.documents;
  int64_t own = source->shard.vocab,
          vocab = own > 0 && own < options->model->vocab ? own : options->model->vocab;
  source->scan_vocab = vocab;
  RF_GO(rf_shard_scan(&source->shard, vocab, &source->digest, error));
  if (source->documents) {
    int64_t held = rf_held_out(source->documents, options->val_fraction);
    RF_GO(pack_documents(source, 0, source->documents - held, options->pack, &source->train, error));
    RF_GO(pack_documents(source, source->documents - held, source->documents, options->pack,
                         &source->held_out, error));
  } else {
    int64_t rows = source->tokens > 0 ? (source->tokens - 1) / source->seq : 0,
            held = rf_held_out(rows, options->val_fraction);
    source->train = (rf_rows){.count = rows - held, .efficiency = 1};
    source->held_out = (rf_rows){.count = held, .stream_start = (rows - held) * source->seq, .efficiency = 1};
  }
  if (source->train.count < 1) RF_GO(too_short(source, error));
  status = rf_source_unchanged(source, error);
done:
  if (status != RAFTER_OK) rf_source_close(source);
  return status;
}

rf_status rf_source_unchanged(rf_source *source, rf_error *error) {
  rf_file_stamp now = source->random ? source->shard.stamp : rf_file_stamp_of(source->shard.file);
  uint64_t digest = 0;
  if (rf_file_stamps_equal(now, source->shard.stamp)) return RAFTER_OK;
  if (rf_shard_scan(&source->shard, source->scan_vocab, &digest, NULL) != RAFTER_OK ||
      digest != source->digest)
    return RF_FAIL(error, RAFTER_FAILED, "do not change the file during a run",
                   "%s has changed: its tokens are not those at the start of the run", source->shard.path);
  source->shard.stamp = now;
  return RAFTER_OK;
}

void rf_source_close(rf_source *source) {
  rf_shard_close(&source->shard);
  free(source->train.first);
  free(source->train.piece);
  free(source->held_out.first);
  free(source->held_out.piece);
  source->train = source->held_out = (rf_rows){0};
}

int64_t rf_source_valid(const rf_source *source, const rf_rows *rows, int64_t row) {
  if (!rows->first) return source->seq;
  int64_t valid = 0;
  for (int64_t p = rows->first[row]; p < rows->first[row + 1]; p++) valid += rows->piece[p].valid;
  return valid;
}

int64_t rf_source_tokens(const rf_source *source, const rf_rows *rows, int64_t row) {
  if (!rows->first) return source->seq;
  int64_t tokens = 0;
  for (int64_t p = rows->first[row]; p < rows->first[row + 1]; p++) tokens += rows->piece[p].tokens;
  return tokens;
}

double rf_segment_pairs(int64_t tokens, int window) {
  double n = (double)tokens, reach = window > 0 && window < tokens ? window : n;
  return reach * (reach + 1) / 2 + (n - reach) * reach;
}

double rf_source_pairs(const rf_source *source, const rf_rows *rows, int64_t row, int window) {
  if (!rows->first) return rf_segment_pairs(source->seq, window);
  double pairs = 0;
  for (int64_t p = rows->first[row]; p < rows->first[row + 1]; p++)
    pairs += rf_segment_pairs(rows->piece[p].tokens, window);
  return pairs;
}

/* Removes the labels that the loss does not count. labels[i] is the token number `first` + i of the
 * source. */
static rf_status mask_labels(const rf_source *source, int64_t first, int64_t count, int32_t *labels,
                             rf_error *error) {
  uint8_t mask[4096];
  for (int64_t done = 0; source->shard.mask_byte && done < count; done += (int64_t)sizeof mask) {
    int64_t now = count - done < (int64_t)sizeof mask ? count - done : (int64_t)sizeof mask;
    RF_TRY(rf_shard_mask(&source->shard, first + done, now, mask, error));
    for (int64_t i = 0; i < now; i++)
      if (!mask[i]) labels[done + i] = -1;
  }
  return RAFTER_OK;
}

/* Fills a segment. The label of a token is the token that follows it in the document. */
static rf_status fill_segment(const rf_source *source, rf_piece piece, int64_t at, rf_token_batch *batch,
                              rf_error *error) {
  int32_t after = -1, *tokens = batch->tokens + at, *labels = batch->labels + at;
  int64_t vocab = source->shard.vocab > 0 ? source->shard.vocab : INT32_MAX, count = piece.tokens;
  batch->segments[batch->segment_count++] = (int32_t)at;
  RF_TRY(rf_shard_read(&source->shard, piece.start, count, vocab, tokens, error));
  if (piece.next) RF_TRY(rf_shard_read(&source->shard, piece.start + count, 1, vocab, &after, error));
  for (int64_t i = 0; i < count; i++) {
    batch->positions[at + i] = (int32_t)i;
    labels[i] = i + 1 < count ? tokens[i + 1] : after;
  }
  return mask_labels(source, piece.start + 1, count - !piece.next, labels, error);
}

static void fill_random(const rf_source *source, int64_t start, int64_t at, rf_token_batch *batch) {
  uint64_t key = rf_key(source->random_seed, rf_name_key("random data"), 0);
  uint64_t vocab = (uint64_t)source->shard.vocab;
  uint32_t words[4];
  batch->segments[batch->segment_count++] = (int32_t)at;
  for (int64_t i = 0; i <= source->seq; i++) {
    rf_philox(key, (uint64_t)(start + i), 0, words);
    int32_t id = (int32_t)(((uint64_t)words[0] * vocab) >> 32);
    if (i > 0) batch->labels[at + i - 1] = id;
    if (i == source->seq) break;
    batch->tokens[at + i] = id;
    batch->positions[at + i] = (int32_t)i;
  }
}

void rf_source_fill_unused(rf_token_batch *batch, int64_t at, int64_t end) {
  if (at < end) batch->segments[batch->segment_count++] = (int32_t)at;
  for (int64_t i = at; i < end; i++) {
    batch->tokens[i] = 0;
    batch->labels[i] = -1;
    batch->positions[i] = (int32_t)(i - at);
  }
}

rf_status rf_source_fill(const rf_source *source, const rf_rows *rows, int64_t row, int64_t at,
                         rf_token_batch *batch, rf_error *error) {
  int64_t start = rows->stream_start + row * source->seq, end = at + source->seq;
  if (source->random) fill_random(source, start, at, batch);
  else if (!rows->first)
    RF_TRY(fill_segment(source, (rf_piece){start, (int32_t)source->seq, 0, 1}, at, batch, error));
  if (!rows->first) return RAFTER_OK;
  for (int64_t p = rows->first[row]; p < rows->first[row + 1]; at += rows->piece[p++].tokens)
    RF_TRY(fill_segment(source, rows->piece[p], at, batch, error));
  rf_source_fill_unused(batch, at, end);
  return RAFTER_OK;
}
