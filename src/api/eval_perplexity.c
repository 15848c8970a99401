/* eval_perplexity.c - perplexity of texts of any length. A window is a range of a text that fits
 * one forward pass. Each window begins `stride` tokens after the previous one, and scores only
 * tokens that the previous window did not score. */
#define _GNU_SOURCE
#include "api/eval.h"

#include "base/file.h"
#include "base/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW = 2048 }; /* default number of tokens in a window, if the model has this many positions */

typedef struct window {
  int64_t begin, count, from; /* range of the text's tokens; the tokens before `from` are only context */
} window;

typedef struct document {
  json_t *id;
  rf_ids ids; /* without special tokens */
  double nll, squares;
  int64_t scored, bytes; /* `scored`: number of scored tokens. `bytes`: number of bytes of the scored text. */
  int64_t windows;       /* number of windows to score, from the first window on */
} document;

typedef struct texts {
  document *at;
  int count;
  int64_t seq, own, stride, limit;
  bool bos;
} texts;

static rf_status add_document(rf_evaluation *e, texts *t, const char *text, size_t bytes, json_t *id,
                              rf_error *error) {
  document *grown = realloc(t->at, (size_t)(t->count + 1) * sizeof *grown);
  if (!grown) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  t->at = grown;
  t->at[t->count] = (document){.id = json_incref(id)};
  return rf_tokenizer_encode(e->reader.tokenizer, text, bytes, 0, &t->at[t->count++].ids, error);
}

static rf_status read_texts(rf_evaluation *e, texts *t, rf_error *error) {
  const char *path = rf_options_text(e->options, "data");
  char *text = NULL;
  size_t bytes = 0, i;
  json_t *rows = NULL, *row;
  if (!rf_text_ends_with(path, ".jsonl")) {
    RF_TRY(rf_file_read(path, (size_t)4 << 30, &text, &bytes, error));
    rf_status status = add_document(e, t, text, bytes, NULL, error);
    free(text);
    return status;
  }
  RF_TRY(rf_eval_read_rows(path, rf_options_int(e->options, "limit"), &rows, error));
  rf_status status = RAFTER_OK;
  json_array_foreach (rows, i, row) {
    const json_t *value = json_object_get(row, "text");
    if (!json_is_string(value))
      status =
          RF_FAIL(error, RAFTER_FAILED, "rows have \"text\"", "a row has no text (%s, row %zu)", path, i + 1);
    else
      status = add_document(e, t, json_string_value(value), json_string_length(value),
                            json_object_get(row, "id"), error);
    if (status != RAFTER_OK) break;
  }
  json_decref(rows);
  return status;
}

static rf_status resolve_windows(rf_evaluation *e, texts *t, rf_error *error) {
  const rf_options *o = e->options;
  t->seq = rf_options_given(o, "seq")           ? rf_options_int(o, "seq")
           : e->settings.model.max_seq < WINDOW ? e->settings.model.max_seq
                                                : WINDOW;
  rf_ids special = {0};
  RF_TRY(rf_eval_encode(e, "a", 1, RF_ENCODE_BOS_EOS, &special, error));
  t->bos = special.count > 1 && special.at[0] == rf_tokenizer_bos(e->reader.tokenizer);
  rf_ids_free(&special);
  t->own = t->seq - t->bos;
  if (t->own < 2)
    return RF_FAIL(error, RAFTER_INVALID, "raise --seq",
                   "a window is too short for two tokens (--seq: expected at least 3, got %lld)",
                   (long long)t->seq);
  t->stride = rf_options_given(o, "stride") ? rf_options_int(o, "stride") : t->own;
  /* For a .jsonl file, --limit counts rows, and the reader of the rows has already applied this
   * limit. */
  t->limit = rf_text_ends_with(rf_options_text(o, "data"), ".jsonl") ? 0 : rf_options_int(o, "limit");
  if (t->stride > t->own)
    return RF_FAIL(error, RAFTER_INVALID, "a window cannot score more new tokens than it has tokens",
                   "--stride is out of range (expected 1 to %lld, got %lld)", (long long)t->own,
                   (long long)t->stride);
  return RAFTER_OK;
}

/* Sets *w to window k of a text. Returns false if the text has no window k. The last window may
 * have fewer new tokens than the other windows. */
static bool window_at(const texts *t, int64_t count, int64_t k, window *w) {
  int64_t end = t->own + k * t->stride, from = k ? end - t->stride : 0;
  if (end > count) end = count;
  if (from >= end || (k && end - from < 1)) return false;
  int64_t begin = t->stride == t->own ? from : end - t->own;
  *w = (window){begin < 0 ? 0 : begin, 0, 0};
  w->count = end - w->begin;
  w->from = from - w->begin;
  return true;
}

static void account(rf_evaluation *e, const texts *t, document *d, const window *w, const rf_scored *scored) {
  for (int64_t i = w->from; i < w->count; i++) {
    if (i + t->bos == 0) continue; /* the first token has no predecessor, so it has no probability */
    double nll = -(double)scored->logprobs[i + t->bos];
    d->nll += nll;
    d->squares += nll * nll;
    d->scored++;
    d->bytes += (int64_t)rf_tokenizer_text_of(e->reader.tokenizer, d->ids.at[w->begin + i]).bytes;
  }
  d->windows++;
}

/* Takes the sums of a text from a row of an earlier evaluation. */
static void take_kept(const json_t *row, document *d) {
  d->nll = json_number_value(json_object_get(row, "nll"));
  d->squares = json_number_value(json_object_get(row, "squares"));
  d->scored = json_integer_value(json_object_get(row, "tokens"));
  d->bytes = json_integer_value(json_object_get(row, "bytes"));
  d->windows = json_integer_value(json_object_get(row, "windows"));
}

static rf_status pass(rf_evaluation *e, texts *t, rf_error *error) {
  rf_status status = RAFTER_OK;
  rf_scorer *scorer = NULL;
  rf_scored *scored = NULL;
  int32_t *ids = NULL;
  float *logprobs = NULL;
  int64_t windows = 0, tokens = 0, at = 0, n = 0, longest = 2, all = 0, done = 0;
  window w;
  for (int d = 0; d < t->count; d++) {
    take_kept(rf_eval_kept(e, d), &t->at[d]);
    for (int64_t k = 0; window_at(t, t->at[d].ids.count, k, &w) && (!t->limit || all < t->limit);
         k++, all++) {
      if (k < t->at[d].windows) continue;
      windows++;
      tokens += w.count + t->bos;
      if (w.count + t->bos > longest) longest = w.count + t->bos;
    }
  }
  if (!windows) goto counted;
  scored = calloc((size_t)windows + 1, sizeof *scored);
  ids = malloc((size_t)(tokens + 1) * sizeof *ids);
  logprobs = malloc((size_t)(tokens + 1) * sizeof *logprobs);
  if (!scored || !ids || !logprobs) {
    status = RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
    goto done;
  }
  for (int d = 0; d < t->count; d++)
    for (int64_t k = t->at[d].windows; n < windows && window_at(t, t->at[d].ids.count, k, &w); k++, n++) {
      scored[n] = (rf_scored){.tokens = ids + at, .count = w.count + t->bos, .logprobs = logprobs + at};
      if (t->bos) ids[at++] = rf_tokenizer_bos(e->reader.tokenizer);
      memcpy(ids + at, t->at[d].ids.at + w.begin, (size_t)w.count * sizeof *ids);
      at += w.count;
    }
  RF_GO(rf_eval_open_scorer(e, longest, &scorer, error));
  RF_GO(rf_eval_score(e, scorer, scored, windows, &done, error));
  n = 0;
  for (int d = 0; d < t->count; d++)
    for (int64_t k = t->at[d].windows; n < done && window_at(t, t->at[d].ids.count, k, &w); k++, n++)
      account(e, t, &t->at[d], &w, &scored[n]);
counted:
  json_object_set_new(e->result, "windows", json_integer(all - (windows - done)));
done:
  rf_scorer_close(scorer);
  free(scored);
  free(ids);
  free(logprobs);
  return status;
}

static rf_status answer(rf_evaluation *e, const texts *t, rf_error *error) {
  document all = {0};
  for (int i = 0; i < t->count; i++) {
    const document *d = &t->at[i];
    all.nll += d->nll;
    all.squares += d->squares;
    all.scored += d->scored;
    all.bytes += d->bytes;
    if (!d->scored) continue;
    json_t *row = json_pack("{sI sf sf sf sI sI}", "tokens", (json_int_t)d->scored, "nll", d->nll,
                            "perplexity", exp(d->nll / (double)d->scored), "squares", d->squares, "bytes",
                            (json_int_t)d->bytes, "windows", (json_int_t)d->windows);
    if (d->id) json_object_set(row, "id", d->id);
    rf_eval_put_row(e, i, row);
  }
  if (!all.scored && e->stopped) return RAFTER_OK;
  if (!all.scored)
    return RF_FAIL(error, RAFTER_FAILED, "give a longer text",
                   "nothing to score (%s: expected at least 2 tokens)", rf_options_text(e->options, "data"));
  double n = (double)all.scored, mean = all.nll / n, perplexity = exp(mean);
  /* The standard error of the mean assumes independent tokens. The standard error of the perplexity
   * is this error, multiplied by the derivative exp(mean). */
  double error_of_mean = n > 1 ? sqrt(fmax(0, all.squares / n - mean * mean) / (n - 1)) : 0;
  double bits = all.bytes ? all.nll / log(2) / (double)all.bytes : 0;
  rf_say(e->sink, "windows of %lld tokens%s, %lld new tokens each; %d text%s, %lld tokens scored\n",
         (long long)t->seq, t->bos ? " (each begins with the BOS token)" : "", (long long)t->stride, t->count,
         rf_plural(t->count), (long long)all.scored);
  rf_say(e->sink, "perplexity %.4f +- %.4f   (%.5f nats per token, %.5f bits per byte)\n", perplexity,
         perplexity * error_of_mean, mean, bits);
  json_t *numbers = json_pack("{sI sI sI sb sI sf sf sf sf}", "n", (json_int_t)all.scored, "seq",
                              (json_int_t)t->seq, "stride", (json_int_t)t->stride, "bos", t->bos, "texts",
                              (json_int_t)t->count, "perplexity", perplexity, "perplexity_stderr",
                              perplexity * error_of_mean, "nll", mean, "bits_per_byte", bits);
  json_object_update(e->result, numbers);
  json_decref(numbers);
  return RAFTER_OK;
}

rf_status rf_eval_perplexity(rf_evaluation *e, rf_error *error) {
  texts t = {0};
  rf_status status = resolve_windows(e, &t, error);
  if (status == RAFTER_OK) status = read_texts(e, &t, error);
  if (status == RAFTER_OK) status = pass(e, &t, error);
  if (status == RAFTER_OK) status = answer(e, &t, error);
  for (int i = 0; i < t.count; i++) {
    rf_ids_free(&t.at[i].ids);
    json_decref(t.at[i].id);
  }
  free(t.at);
  return status;
}
