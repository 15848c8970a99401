/* score.c - `rafter score`: computes log-probabilities of the tokens of given texts, and the
 * perplexity. A row holds one text with its results. */
#define _GNU_SOURCE
#include "api/answers.h"
#include "api/ranks.h"
#include "journal/traced.h"
#include "journal/executed.h"

#include "base/file.h"
#include "base/text.h"
#include "formats/json_lines.h"
#include "plan/advice.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Default number of tokens in a forward pass, large enough for fast matrix products. */
enum { PASS_ROWS = 1024 };

typedef struct text_row {
  json_t *id;
  rf_ids ids;
  float *logprobs, *top_logprobs;
  int32_t *top_ids;
} text_row;

/* A range of a row's tokens for one forward pass. The tokens before `from` are only context. */
typedef struct window {
  int row;
  int64_t begin, count, from;
} window;

typedef struct work {
  rf_settings settings;
  rf_prompt_reader reader; /* prompt reader, of which only the tokenizer is used */
  text_row *row;
  int rows, capacity, put; /* put: number of rows that were written and freed */
  double nll;              /* sum of -log p over all tokens of the written rows */
  int64_t scored;
  rf_out_file *out; /* file of the rows; NULL: rows go to the sink */
  int64_t stride;
  window *window;
  int64_t windows, passes;
  int top;
  bool lists; /* true: prints every token as text */
} work;

static rf_status add_row(work *w, text_row **row, rf_error *error) {
  if (w->rows == w->capacity) {
    int capacity = w->capacity ? 2 * w->capacity : 16;
    text_row *grown = realloc(w->row, (size_t)capacity * sizeof *grown);
    if (!grown) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
    w->row = grown;
    w->capacity = capacity;
  }
  *row = &w->row[w->rows++];
  **row = (text_row){0};
  return RAFTER_OK;
}

static rf_status encode(work *w, const rf_options *o, const char *text, size_t bytes, rf_ids *ids,
                        rf_error *error) {
  RF_TRY(rf_prompt_reader_open(&w->reader, false, error));
  return rf_tokenizer_encode(w->reader.tokenizer, text, bytes, rf_encode_flags(o), ids, error);
}

static rf_status read_row(work *w, const rf_options *o, const char *where, const json_t *json,
                          rf_error *error) {
  const json_t *text = json_object_get(json, "text"), *tokens = json_object_get(json, "tokens");
  text_row *row;
  if (json_is_string(text) && json_is_array(tokens))
    return RF_FAIL(error, RAFTER_FAILED, "leave out \"text\" or \"tokens\"",
                   "a row has both text and tokens (%s)", where);
  RF_TRY(add_row(w, &row, error));
  row->id = json_incref(json_object_get(json, "id"));
  if (json_is_string(text))
    RF_TRY(encode(w, o, json_string_value(text), json_string_length(text), &row->ids, error));
  else if (json_is_array(tokens))
    RF_TRY(rf_ids_of_json(tokens, w->settings.model.vocab, where, &row->ids, error));
  else
    return RF_FAIL(error, RAFTER_FAILED, "rows have \"text\" or \"tokens\"",
                   "a row has neither text nor tokens (%s)", where);
  return row->ids.count >= 1
             ? RAFTER_OK
             : RF_FAIL(error, RAFTER_FAILED, NULL, "a row is empty (%s: expected at least 1 token)", where);
}

static rf_status read_jsonl(work *w, const rf_options *o, const char *path, rf_error *error) {
  rf_status status;
  rf_json_lines lines;
  json_t *json = NULL;
  char where[4200];
  RF_TRY(rf_json_lines_open(path, "check the path given to --input", &lines, error));
  while ((status = rf_json_lines_next(&lines, &json, error)) == RAFTER_OK && json) {
    snprintf(where, sizeof where, "%s, line %lld", path, (long long)lines.line);
    status = read_row(w, o, where, json, error);
    json_decref(json);
    if (status != RAFTER_OK) break;
  }
  if (status == RAFTER_OK && !w->rows) status = RF_FAIL(error, RAFTER_FAILED, NULL, "%s has no rows", path);
  rf_json_lines_close(&lines);
  return status;
}

/* Reads one text, from --text or from a file that is not JSON Lines. */
static rf_status read_text(work *w, const rf_options *o, const char *path, rf_error *error) {
  text_row *row;
  char *text = NULL;
  size_t bytes = 0;
  RF_TRY(add_row(w, &row, error));
  if (path) RF_TRY(rf_file_read(path, (size_t)4 << 30, &text, &bytes, error));
  const char *words = path ? text : rf_options_text(o, "text");
  rf_status status = encode(w, o, words, path ? bytes : strlen(words), &row->ids, error);
  free(text);
  if (status == RAFTER_OK && row->ids.count < 2)
    return RF_FAIL(error, path ? RAFTER_FAILED : RAFTER_INVALID, "give a longer text",
                   "nothing to score (expected at least 2 tokens, got %lld)", (long long)row->ids.count);
  return status;
}

static rf_status read_rows(work *w, const rf_options *o, rf_error *error) {
  const char *path = rf_options_text(o, "input");
  if (!path && !rf_options_is_set(o, "text"))
    return RF_FAIL(error, RAFTER_INVALID,
                   "give --text TEXT, or --input FILE (.jsonl: one row per line; otherwise one text)",
                   "nothing to score");
  return path && rf_text_ends_with(path, ".jsonl") ? read_jsonl(w, o, path, error)
                                                   : read_text(w, o, path, error);
}

/* ---- windows --------------------------------------------------------------------------------- */

/* Splits rows into windows of at most --seq tokens, which begin --stride tokens apart. A window
 * scores only tokens that the previous window did not score. */
static rf_status cut_windows(work *w, const rf_options *o, rf_error *error) {
  rf_build_options *b = &w->settings.plan.build;
  int64_t longest = 0, total = 0, most = w->settings.model.max_seq;
  for (int i = 0; i < w->rows; i++) {
    total += w->row[i].ids.count;
    if (w->row[i].ids.count > longest) longest = w->row[i].ids.count;
  }
  if (!rf_options_given(o, "seq")) b->seq = longest < most ? longest : most;
  w->stride = rf_options_int_or(o, "stride", 0);
  if (w->stride >= b->seq && longest > b->seq)
    return RF_FAIL(error, RAFTER_INVALID, "a window needs at least one token of context",
                   "--stride is out of range (expected 1 to %lld, less than --seq, got %lld)",
                   (long long)b->seq - 1, (long long)w->stride);
  if (longest > b->seq && !w->stride)
    return RF_FAIL(error, RAFTER_INVALID,
                   "give --stride N for windows with N new tokens each, or raise --seq",
                   "a text is too long for one forward pass (expected at most %lld tokens, got %lld)",
                   (long long)b->seq, (long long)longest);
  int64_t capacity = w->rows + (w->stride ? total / w->stride : 0) + 1;
  w->window = calloc((size_t)capacity, sizeof *w->window);
  if (!w->window) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  for (int i = 0; i < w->rows; i++) {
    int64_t count = w->row[i].ids.count, end = count < b->seq ? count : b->seq;
    w->window[w->windows++] = (window){i, 0, end, 0};
    while (end < count) {
      int64_t from = end;
      end = end + w->stride < count ? end + w->stride : count;
      w->window[w->windows++] = (window){i, end - b->seq, b->seq, from - (end - b->seq)};
    }
  }
  if (!rf_options_given(o, "batch")) {
    int64_t rows = total < PASS_ROWS ? total : PASS_ROWS;
    b->microbatch = rows > b->seq ? (rows + b->seq - 1) / b->seq : 1;
  }
  return RAFTER_OK;
}

/* Allocates the results of a row, after its first window is scored. */
static rf_status make_answers(const work *w, text_row *row, rf_error *error) {
  size_t count = (size_t)row->ids.count, top = count * (size_t)w->top;
  row->logprobs = malloc(count * sizeof *row->logprobs);
  row->top_ids = malloc((top + 1) * sizeof *row->top_ids);
  row->top_logprobs = malloc((top + 1) * sizeof *row->top_logprobs);
  return row->logprobs && row->top_ids && row->top_logprobs
             ? RAFTER_OK
             : RF_FAIL(error, RAFTER_FAILED, "give shorter rows, or a smaller --top", "out of memory");
}

static void forget(text_row *row) {
  json_decref(row->id);
  rf_ids_free(&row->ids);
  free(row->logprobs);
  free(row->top_ids);
  free(row->top_logprobs);
  *row = (text_row){0};
}

/* Copies the scores of a window's new tokens into its row. */
static rf_status take(const work *w, const window *v, const rf_scored *from, rf_error *error) {
  text_row *row = &w->row[v->row];
  if (!row->logprobs) RF_TRY(make_answers(w, row, error));
  int64_t at = v->begin + v->from, count = v->count - v->from, top = w->top;
  memcpy(row->logprobs + at, from->logprobs + v->from, (size_t)count * sizeof *row->logprobs);
  memcpy(row->top_ids + at * top, from->top_ids + v->from * top,
         (size_t)(count * top) * sizeof *row->top_ids);
  memcpy(row->top_logprobs + at * top, from->top_logprobs + v->from * top,
         (size_t)(count * top) * sizeof *row->top_logprobs);
  return RAFTER_OK;
}

/* ---- answers --------------------------------------------------------------------------------- */

static json_t *row_json(const work *w, const text_row *row, double nll) {
  json_t *tokens = json_array(), *logprobs = json_array(), *tops = json_array(), *json = json_object();
  for (int64_t t = 0; t < row->ids.count; t++) {
    json_array_append_new(tokens, json_integer(row->ids.at[t]));
    json_array_append_new(logprobs, t ? json_real((double)row->logprobs[t]) : json_null());
    if (!w->top) continue;
    json_t *ids = json_array(), *values = json_array();
    for (int k = 0; k < w->top && t; k++) {
      json_array_append_new(ids, json_integer(row->top_ids[t * w->top + k]));
      json_array_append_new(values, json_real((double)row->top_logprobs[t * w->top + k]));
    }
    json_array_append_new(tops, t ? json_pack("{so so}", "ids", ids, "logprobs", values) : json_null());
    if (!t) {
      json_decref(ids);
      json_decref(values);
    }
  }
  if (row->id) json_object_set(json, "id", row->id);
  json_object_set_new(json, "tokens", tokens);
  json_object_set_new(json, "logprobs", logprobs);
  if (w->top) json_object_set_new(json, "top", tops);
  else json_decref(tops);
  json_object_set_new(json, "nll", json_real(nll));
  json_object_set_new(json, "perplexity",
                      json_real(row->ids.count > 1 ? exp(nll / (double)(row->ids.count - 1)) : 1));
  return json;
}

/* Writes a token as text in quotes. If the model has no tokenizer, writes the token's id. */
static void put_token(FILE *out, const work *w, int32_t id) {
  rf_span text = w->reader.tokenizer ? rf_tokenizer_text_of(w->reader.tokenizer, id) : (rf_span){0};
  json_t *json = text.at ? rf_json_bytes(text.at, text.bytes) : NULL;
  char *quoted = json ? json_dumps(json, JSON_ENCODE_ANY) : NULL;
  if (quoted) fprintf(out, "%s", quoted);
  else fprintf(out, "%d", id);
  free(quoted);
  json_decref(json);
}

/* Prints one line per token: its log-probability, its text and the likeliest tokens at its
 * position. */
static void say_tokens(const work *w, const text_row *row, const rafter_sink *sink) {
  char *text = NULL;
  size_t bytes = 0;
  FILE *out = open_memstream(&text, &bytes);
  if (!out) return;
  fprintf(out, "%10s  %s\n", "logprob", w->top ? "token: likeliest tokens with their logprobs" : "token");
  for (int64_t t = 0; t < row->ids.count; t++) {
    if (t) fprintf(out, "%10.5f  ", (double)row->logprobs[t]);
    else fprintf(out, "%10s  ", "-");
    put_token(out, w, row->ids.at[t]);
    for (int k = 0; k < w->top && t; k++) {
      fprintf(out, k ? ", " : ": ");
      put_token(out, w, row->top_ids[t * w->top + k]);
      fprintf(out, " %.3f", (double)row->top_logprobs[t * w->top + k]);
    }
    fprintf(out, "\n");
  }
  fclose(out);
  rf_say_text(sink, text);
}

/* Writes all rows before row `whole`, which are finished. Frees the written rows to save memory. */
static rf_status put_rows(work *w, int whole, const rafter_sink *sink, rf_error *error) {
  rf_status status = RAFTER_OK;
  int64_t began = rf_phase_begin();
  for (; w->put < whole && status == RAFTER_OK; w->put++) {
    text_row *row = &w->row[w->put];
    double nll = 0;
    for (int64_t t = 1; t < row->ids.count; t++) nll -= (double)row->logprobs[t];
    w->nll += nll;
    w->scored += row->ids.count - 1;
    if (w->lists) say_tokens(w, row, sink);
    json_t *json = row_json(w, row, nll);
    if (w->out) {
      status = rf_json_write_line(w->out, json, error);
      json_decref(json);
    } else rf_put_json(sink, json);
    forget(row);
  }
  rf_phase_end(RF_PHASE_WRITE, began);
  return status;
}

/* ---- scoring --------------------------------------------------------------------------------- */

/* The ranks share the windows, so all ranks need the same list. */
static rf_status check_ranks(const work *w, const rf_scorer *scorer, rf_error *error) {
  rf_fingerprint *f = rf_fingerprint_new();
  for (int64_t i = 0; i < w->windows; i++) {
    const window *v = &w->window[i];
    rf_fingerprint_add(f, w->row[v->row].ids.at + v->begin, (size_t)v->count * sizeof(int32_t));
  }
  return rf_ranks_same(scorer->run, "other texts", f, error);
}

/* Scores all windows. *seconds is the time of the forward passes alone. */
static rf_status pass_all(work *w, rf_scorer *scorer, const rafter_sink *sink, int64_t *executed,
                          double *seconds, rf_error *error) {
  int64_t rows = rf_scorer_rows(scorer), done = 0;
  rf_status status = RAFTER_OK;
  rf_scored *text = calloc((size_t)rows, sizeof *text);
  float *logprobs = malloc((size_t)rows * sizeof *logprobs),
        *top_logprobs = malloc((size_t)(rows * w->top + 1) * sizeof *top_logprobs);
  int32_t *top_ids = malloc((size_t)(rows * w->top + 1) * sizeof *top_ids);
  if (!text || !logprobs || !top_logprobs || !top_ids)
    status = RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  while (status == RAFTER_OK && done < w->windows) {
    int count = 0;
    int64_t at = 0;
    for (; done + count < w->windows && at + w->window[done + count].count <= rows; count++) {
      const window *v = &w->window[done + count];
      text[count] = (rf_scored){w->row[v->row].ids.at + v->begin, v->count, logprobs + at,
                                top_ids + at * w->top, top_logprobs + at * w->top};
      at += v->count;
    }
    double start = rf_now_seconds();
    status = rf_scorer_pass(scorer, text, count, error);
    if (status == RAFTER_INTERRUPTED) break; /* an interrupted pass has no results */
    int64_t takes = rf_phase_begin();
    for (int i = 0; i < count && status == RAFTER_OK; i++)
      status = take(w, &w->window[done + i], &text[i], error);
    rf_phase_end(RF_PHASE_SAMPLE, takes);
    done += count;
    *executed += at;
    w->passes++;
    *seconds += rf_now_seconds() - start;
    rf_put_bar_left(sink, *seconds, (double)done / (double)w->windows, "%lld of %lld windows, %.0f tokens/s",
                    (long long)done, (long long)w->windows, (double)*executed / *seconds);
    if (status == RAFTER_OK)
      status = put_rows(w, done < w->windows ? w->window[done].row : w->rows, sink, error);
    uint32_t stops = done < w->windows && rf_asked_to_stop(sink);
    if (status == RAFTER_OK) status = rf_run_agree(scorer->run, &stops, error); /* all hosts stop together */
    if (status == RAFTER_OK && stops) status = RAFTER_INTERRUPTED;
  }
  rf_put_bar(sink, "%s", "");
  if (status == RAFTER_INTERRUPTED)
    status = RF_FAIL(error, RAFTER_INTERRUPTED, NULL,
                     "stopped after %lld of %lld windows; %d of %d rows were written", (long long)done,
                     (long long)w->windows, w->put, w->rows);
  free(text);
  free(logprobs);
  free(top_logprobs);
  free(top_ids);
  return status;
}

static void say(const work *w, const rf_scorer *scorer, int64_t executed, double seconds,
                const rafter_sink *sink) {
  int64_t rows = rf_scorer_rows(scorer);
  double planned = scorer->plan->step_seconds * (double)executed / (double)rows;
  char compute[RF_COMPUTE_LINE];
  if (w->stride)
    rf_say(sink, "windows of %lld tokens, %lld new tokens each\n", (long long)w->settings.plan.build.seq,
           (long long)w->stride);
  rf_say(sink, "%d row%s, %lld tokens scored: mean log-probability %.5f, perplexity %.4f\n", w->rows,
         rf_plural(w->rows), (long long)w->scored, w->scored ? -w->nll / (double)w->scored : 0,
         w->scored ? exp(w->nll / (double)w->scored) : 1);
  rf_say(sink, "%s%s\n", rf_speed_text(executed, seconds, planned, (char[128]){0}),
         rf_plan_compute_line(scorer->plan, NULL, compute));
}

static void put_sum(const work *w, const rf_scorer *scorer, int64_t executed, double seconds,
                    const char *path, const rafter_sink *sink) {
  rf_put_json(sink, json_pack("{ss ss si sI sf sf sf sf sI}", "command", "score", "output", path, "rows",
                              w->rows, "tokens", (json_int_t)w->scored, "nll", w->nll, "perplexity",
                              w->scored ? exp(w->nll / (double)w->scored) : 1, "seconds", seconds,
                              "tokens_per_second", seconds > 0 ? (double)executed / seconds : 0,
                              "arena_bytes", (json_int_t)rf_run_arena_bytes(scorer->run)));
}

/* ---- the run --------------------------------------------------------------------------------- */

static rf_status leave(const work *w, const rf_scorer *scorer, const rf_record *record, rf_journal *journal,
                       int64_t executed, double seconds, rf_error *error) {
  json_object_update_new(journal->results, json_pack("{sI sI sf sf}", "rows", (json_int_t)w->put, "tokens",
                                                     (json_int_t)w->scored, "nll", w->nll, "perplexity",
                                                     w->scored ? exp(w->nll / (double)w->scored) : 1));
  return rf_executed_leave_scores(scorer, record, journal, w->passes, executed, seconds, error);
}

static rf_status score(work *w, const rf_options *o, const rafter_sink *sink, rf_error *error) {
  rf_scorer *scorer = NULL;
  rf_journal journal = {0};
  rf_record *record = NULL;
  int64_t executed = 0;
  double seconds = 0;
  rf_status status = RAFTER_OK;
  RF_TRY(rf_settings_resolve(o, "score", &w->settings, error));
  w->reader = rf_reader_of(o, &w->settings);
  w->top = w->settings.plan.build.top;
  w->lists = !rf_options_is_set(o, "output") && (w->top || rf_options_is_set(o, "text"));
  RF_TRY(read_rows(w, o, error));
  RF_TRY(cut_windows(w, o, error));
  RF_TRY(rf_traced_open(o, &record, error));
  RF_GO(rf_open_scorer(&w->settings, o, sink, &scorer, error));
  rf_report_pass pass = {.name = "score", .plan = scorer->plan};
  RF_GO(check_ranks(w, scorer, error));
  RF_GO(rf_begin_journal(&journal, sink, o, &pass, 1, error));
  if (rf_options_is_set(o, "output")) RF_GO(rf_out_open(rf_options_text(o, "output"), 0, &w->out, error));
  status = pass_all(w, scorer, sink, &executed, &seconds, error);
  if (status != RAFTER_OK && status != RAFTER_INTERRUPTED) goto done;
  rf_out_file *out = w->put ? w->out : NULL; /* complete rows are also written after a signal */
  rf_status saved = out ? rf_out_commit(out, error) : RAFTER_OK;
  if (out) w->out = NULL;
  if (status == RAFTER_INTERRUPTED) {
    if (saved == RAFTER_OK) saved = leave(w, scorer, record, &journal, executed, seconds, error);
    if (saved != RAFTER_OK) status = saved;
    goto done;
  }
  RF_GO(saved);
  if (rf_options_is_set(o, "output"))
    put_sum(w, scorer, executed, seconds, rf_options_text(o, "output"), sink);
  say(w, scorer, executed, seconds, sink);
  RF_GO(leave(w, scorer, record, &journal, executed, seconds, error));
done:
  rf_out_discard(w->out);
  w->out = NULL;
  rf_journal_close(&journal, status, error);
  rf_record_close(record);
  rf_scorer_close(scorer);
  return status;
}

static rf_status rf_command_score(const rafter_job *job, const rafter_sink *sink, rf_error *error) {
  work *w = calloc(1, sizeof *w);
  if (!w) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  rf_options *o = NULL;
  rf_status status = rf_options_with_model(job->options, rf_options_argument(job->options, 0), &o, error);
  if (status == RAFTER_OK) status = score(w, o, sink, error);
  for (int i = w->put; i < w->rows; i++) forget(&w->row[i]);
  rf_prompt_reader_close(&w->reader);
  free(w->window);
  free(w->row);
  free(w);
  rf_options_free(o);
  return status;
}

const rf_option RF_SPECIAL_OPTIONS[] = {
    RF_FLAG("no-bos", "Text", "do not add the tokenizer's begin and end tokens to a text"),
    RF_FLAG("no-special", "Text",
            "read special tokens in the text as plain text; with --decode, leave them out"),
    {.name = NULL},
};

int rf_encode_flags(const rf_options *o) {
  return (rf_options_flag(o, "no-bos") ? 0 : RF_ENCODE_BOS_EOS) |
         (rf_options_flag(o, "no-special") ? 0 : RF_ENCODE_PARSE);
}

const rf_option RF_ROWS_OUT_OPTIONS[] = {
    RF_WORDS("output", PATH, "FILE", NULL, "Output", "file for the rows as JSON Lines"),
    {.name = NULL},
};

const rf_option RF_TOP_OPTIONS[] = {
    RF_NUMBER("top", INT, "K", 0, 256, "0", "Output", "number of likeliest tokens listed at each position"),
    {.name = NULL},
};

static const rf_option SCORE[] = {
    RF_WORDS("text", TEXT, "TEXT", NULL, "Text", "text to score"),
    RF_WORDS(
        "input", PATH, "FILE", NULL, "Text",
        "file to score: .jsonl rows with \"text\" or \"tokens\", and \"id\"; any other file is one text"),
    RF_NUMBER(
        "seq", TOKENS, NULL, 1, 1 << 24, NULL, "Memory",
        "maximum tokens of a text in one forward pass; unset: the longest text, within the model's limit"),
    RF_NUMBER("stride", TOKENS, NULL, 1, 1 << 24, NULL, "Text",
              "new tokens in each window; required for texts longer than --seq"),
    RF_NUMBER("batch", INT, "SEQUENCES", 1, 1 << 20, NULL, "Memory",
              "sequences of --seq tokens in one forward pass; unset: about 1024 tokens"),
    {.name = NULL},
};

const rf_command RF_COMMAND_SCORE = {
    RF_COMMAND_HEAD("score", "MODEL", 1, 1, "Run",
                    "Print the log-probability of every token of a text, and its perplexity. Tokens of "
                    "--input are printed with --top, with --json, or to --output."),
    .options = {RF_TABLE(SCORE), RF_TABLE(RF_SPECIAL_OPTIONS), RF_TABLE(RF_ROWS_OUT_OPTIONS),
                RF_TABLE(RF_TOP_OPTIONS), RF_INFERENCE_TABLES, RF_LEFT_TABLES},
    .common = "text input output top seq stride dtype weights compute adapter json",
    .examples = {"score gpt2-folder --text 'The capital of France is Paris.'",
                 "score model.gguf --input texts.jsonl --output scores.jsonl --top 5 # a file of texts"},
    .run = rf_command_score};
