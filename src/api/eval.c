/* eval.c - `rafter eval TASK MODEL`: the command, and functions that all tasks share. */
#define _GNU_SOURCE
#define XXH_INLINE_ALL
#include "api/eval.h"

#include "api/answers.h"
#include "api/ranks.h"
#include "base/file.h"
#include "formats/json_lines.h"
#include "base/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PASS_ROWS = 1024 }; /* default number of tokens in a forward pass */

static const struct {
  const char *name;
  const char *job; /* job whose rules resolve the options */
  rf_eval_task run;
} TASKS[] = {{"perplexity", "score", rf_eval_perplexity},
             {"choices", "score", rf_eval_choices},
             {"gsm8k", "generate", rf_eval_gsm8k}};

rf_status rf_eval_read_rows(const char *path, int64_t limit, json_t **rows, rf_error *error) {
  rf_status status = RAFTER_OK;
  rf_json_lines lines;
  json_t *row = NULL;
  *rows = NULL;
  RF_TRY(rf_json_lines_open(path, NULL, &lines, error));
  *rows = json_array();
  while ((!limit || (int64_t)json_array_size(*rows) < limit) &&
         (status = rf_json_lines_next(&lines, &row, error)) == RAFTER_OK && row)
    json_array_append_new(*rows, row);
  rf_json_lines_close(&lines);
  if (status == RAFTER_OK && !json_array_size(*rows))
    status = RF_FAIL(error, RAFTER_FAILED, NULL, "%s has no rows", path);
  if (status != RAFTER_OK) {
    json_decref(*rows);
    *rows = NULL;
  }
  return status;
}

rf_status rf_eval_encode(rf_evaluation *e, const char *text, size_t bytes, int flags, rf_ids *ids,
                         rf_error *error) {
  RF_TRY(rf_tokenizer_encode(e->reader.tokenizer, text, bytes, flags, ids, error));
  if ((flags & RF_ENCODE_BOS_EOS) && ids->count > 1 &&
      ids->at[ids->count - 1] == rf_tokenizer_eos(e->reader.tokenizer))
    ids->count--;
  return RAFTER_OK;
}

/* ---- scoring --------------------------------------------------------------------------------- */

rf_status rf_eval_open_scorer(rf_evaluation *e, int64_t longest, rf_scorer **scorer, rf_error *error) {
  const rf_options *o = e->options;
  rf_build_options *b = &e->settings.plan.build;
  b->seq = longest;
  b->microbatch = rf_options_given(o, "batch") ? rf_options_int(o, "batch")
                  : longest < PASS_ROWS        ? (PASS_ROWS + longest - 1) / longest
                                               : 1;
  RF_TRY(rf_open_scorer(&e->settings, o, e->sink, scorer, error));
  rf_report_pass pass = {.name = "score", .plan = (*scorer)->plan};
  return rf_begin_journal(&e->journal, e->sink, o, &pass, 1, error);
}

/* The ranks share the texts, so all ranks need the same list. */
static rf_status check_ranks(const rf_scorer *scorer, const rf_scored *text, int64_t count, rf_error *error) {
  rf_fingerprint *f = rf_fingerprint_new();
  for (int64_t i = 0; i < count; i++)
    rf_fingerprint_add(f, text[i].tokens, (size_t)text[i].count * sizeof *text[i].tokens);
  return rf_ranks_same(scorer->run, "other texts", f, error);
}

rf_status rf_eval_score(rf_evaluation *e, rf_scorer *scorer, rf_scored *text, int64_t count, int64_t *done,
                        rf_error *error) {
  int64_t rows = rf_scorer_rows(scorer), executed = 0, passes = 0;
  double start = rf_now_seconds();
  *done = 0;
  RF_TRY(check_ranks(scorer, text, count, error));
  while (*done < count && !e->stopped) {
    int64_t at = 0, some = 0;
    while (*done + some < count && at + text[*done + some].count <= rows) at += text[*done + some++].count;
    rf_status status = rf_scorer_pass(scorer, text + *done, (int)some, error);
    if (status == RAFTER_INTERRUPTED) e->stopped = true;
    if (e->stopped) break; /* an interrupted pass has no results */
    RF_TRY(status);
    int64_t writes = rf_phase_begin();
    passes++;
    *done += some;
    executed += at;
    double seconds = rf_now_seconds() - start;
    rf_put_bar_left(e->sink, seconds, (double)*done / (double)count, "%lld of %lld texts, %.0f tokens/s",
                    (long long)*done, (long long)count, (double)executed / seconds);
    rf_phase_end(RF_PHASE_WRITE, writes);
    uint32_t stops = *done < count && rf_asked_to_stop(e->sink);
    RF_TRY(rf_run_agree(scorer->run, &stops, error)); /* all ranks stop together */
    e->stopped = stops != 0;
  }
  rf_put_bar(e->sink, "%s", "");
  double seconds = rf_now_seconds() - start,
         predicted = scorer->plan->step_seconds * (double)executed / (double)rows;
  snprintf(e->rate, sizeof e->rate, "%s\n", rf_speed_text(executed, seconds, predicted, (char[128]){0}));
  RF_TRY(rf_executed_leave_scores(scorer, e->record, &e->journal, passes, executed, seconds, error));
  json_object_set_new(e->result, "seconds", json_real(seconds));
  json_object_set_new(e->result, "predicted_seconds", json_real(predicted));
  json_object_set_new(e->result, "tokens_per_second", json_real((double)executed / seconds));
  json_object_set_new(e->result, "arena_bytes", json_integer(rf_run_arena_bytes(scorer->run)));
  return RAFTER_OK;
}

/* ---- shares ---------------------------------------------------------------------------------- */

/* Computes Wilson's 95 % confidence interval of the fraction right / n. */
static void wilson(int64_t right, int64_t n, double *low, double *high) {
  const double z = 1.959963984540054;
  double p = (double)right / (double)n, z2n = z * z / (double)n;
  double middle = (p + z2n / 2) / (1 + z2n),
         half = z * sqrt(p * (1 - p) / (double)n + z2n / (double)n / 4) / (1 + z2n);
  *low = right ? middle - half : 0;
  *high = right < n ? middle + half : 1;
}

void rf_eval_put_share(rf_evaluation *e, const char *name, int64_t right, int64_t n) {
  double low, high;
  char key[80];
  wilson(right, n, &low, &high);
  json_object_set_new(e->result, name, json_real((double)right / (double)n));
  snprintf(key, sizeof key, "%s_low", name);
  json_object_set_new(e->result, key, json_real(low));
  snprintf(key, sizeof key, "%s_high", name);
  json_object_set_new(e->result, key, json_real(high));
  rf_say(e->sink, "%-22s %6.2f %%   (%lld of %lld; 95 %% between %.2f and %.2f %%)\n", name,
         100 * (double)right / (double)n, (long long)right, (long long)n, 100 * low, 100 * high);
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Adds a file that holds rows, unless it can be read only once (a pipe). */
static rf_status add_rows(rf_fingerprint *f, const char *path, rf_error *error) {
  struct stat info;
  bool is_file = path && strncmp(path, "/dev/", 5) && !stat(path, &info) && S_ISREG(info.st_mode);
  return is_file ? rf_fingerprint_add_files(f, path, error) : RAFTER_OK;
}

/* Sets e->of to a hash of the task, the weights, the rows and all options that may change a result.
 * Options that change only the output, the number of rows or the batching are not in the hash. */
static rf_status identify(rf_evaluation *e, const char *task, rf_error *error) {
  static const char *const FREE[] = {"output",  "continue", "limit", "batch",   "prefill-chunk",
                                     "threads", "json",     "quiet", "verbose", "debug",
                                     "stats",   "on",       "trace", "out"};
  const rf_options *o = e->options;
  char model[RF_FINGERPRINT_TEXT], all_text[RF_FINGERPRINT_TEXT];
  RF_TRY(rf_model_text(&e->settings, rf_options_argument(o, 0), model, error));
  json_t *all = rf_options_json(o);
  json_object_set_new(all, "task", json_string(task));
  for (size_t i = 0; i < sizeof FREE / sizeof *FREE; i++) json_object_del(all, FREE[i]);
  rf_ranks_drop_copies(&e->settings.plan, all);
  char *text = rf_json_text(all, 0);
  rf_fingerprint *f = rf_fingerprint_new();
  rf_fingerprint_add(f, text ? text : "", text ? strlen(text) : 0);
  rf_fingerprint_add(f, model, strlen(model));
  rf_status status = add_rows(f, rf_options_text(o, "data"), error);
  if (status == RAFTER_OK && rf_options_knows(o, "shots-from"))
    status = add_rows(f, rf_options_text_or(o, "shots-from", NULL), error);
  rf_fingerprint_end(f, all_text);
  snprintf(e->of, sizeof e->of, "%.16s", all_text);
  free(text);
  json_decref(all);
  return status;
}

static rf_status read_kept(rf_evaluation *e, const char *path, rf_error *error) {
  rf_status status = RAFTER_OK;
  rf_json_lines lines;
  json_t *row = NULL;
  /* no file: the earlier evaluation stopped before its first result */
  if (access(path, F_OK)) return RAFTER_OK;
  RF_TRY(rf_json_lines_open(path, NULL, &lines, error));
  for (;;) {
    RF_GO(rf_json_lines_next(&lines, &row, error));
    if (!row) break;
    const char *of = json_string_value(json_object_get(row, "of"));
    const json_t *index = json_object_get(row, "row");
    char key[24];
    if (!of || strcmp(of, e->of) || !json_is_integer(index)) {
      status = RF_FAIL(
          error, RAFTER_FAILED, "repeat the same command, or leave out --continue to overwrite the file",
          "a row belongs to another evaluation (%s, line %lld: expected \"of\": \"%s\", got \"%.40s\")", path,
          (long long)lines.line, e->of, of ? of : "");
      goto done;
    }
    snprintf(key, sizeof key, "%lld", (long long)json_integer_value(index));
    json_object_set_new(e->kept, key, row);
    row = NULL;
  }
done:
  json_decref(row);
  rf_json_lines_close(&lines);
  return status;
}

/* Only rank 0 reads the file --output. So rank 0 sends the other ranks the rows of this file. */
static rf_status share_kept(rf_evaluation *e, rf_error *error) {
  char *text = json_dumps(e->kept, JSON_COMPACT);
  size_t bytes = text ? strlen(text) : 0;
  char *first = text;
  rf_status status = rf_ranks_text(e->options, &text, &bytes, error);
  if (status == RAFTER_OK && text != first) {
    json_decref(e->kept);
    e->kept = json_loadb(text, bytes, 0, NULL);
    free(text);
    if (!e->kept) status = RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory for the rows of --output");
  }
  free(first);
  return status;
}

void rf_eval_put_row(rf_evaluation *e, int64_t index, json_t *row) {
  json_object_set_new(row, "row", json_integer(index));
  json_object_set_new(row, "of", json_string(e->of));
  json_array_append_new(e->rows, row);
}

const json_t *rf_eval_kept(const rf_evaluation *e, int64_t index) {
  char key[24];
  snprintf(key, sizeof key, "%lld", (long long)index);
  return json_object_get(e->kept, key);
}

/* ---- the command ----------------------------------------------------------------------------- */

static rf_status write_rows(const char *path, const json_t *rows, rf_error *error) {
  rf_out_file *out = NULL;
  rf_status status = RAFTER_OK;
  json_t *row;
  size_t i;
  RF_TRY(rf_out_open(path, 0, &out, error));
  json_array_foreach (rows, i, row) {
    status = rf_json_write_line(out, row, error);
    if (status != RAFTER_OK) break;
  }
  if (status == RAFTER_OK) return rf_out_commit(out, error);
  rf_out_discard(out);
  return status;
}

static rf_status run(const rf_options *o, int task, rf_evaluation *e, rf_error *error) {
  e->options = o;
  if (!rf_options_is_set(o, "data"))
    return RF_FAIL(error, RAFTER_INVALID, "give --data FILE", "eval needs data (--data is missing)");
  const char *output = rf_options_text(o, "output");
  if (rf_options_flag(o, "continue") && !output)
    return RF_FAIL(error, RAFTER_INVALID, "give --output FILE",
                   "--continue needs the file with the earlier rows (--output is missing)");
  RF_TRY(rf_settings_resolve(o, TASKS[task].job, &e->settings, error));
  e->reader = rf_reader_of(o, &e->settings);
  RF_TRY(rf_prompt_reader_open(&e->reader, false, error));
  e->rows = json_array();
  e->kept = json_object();
  e->result = json_pack("{ss ss ss ss}", "command", "eval", "task", TASKS[task].name, "model",
                        e->settings.model.name, "data", rf_options_text(o, "data"));
  if (!e->result || !e->rows || !e->kept) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  RF_TRY(identify(e, TASKS[task].name, error));
  if (rf_options_flag(o, "continue")) {
    RF_TRY(read_kept(e, output, error));
    RF_TRY(share_kept(e, error));
  }
  RF_TRY(rf_traced_open(o, &e->record, error));
  RF_TRY(TASKS[task].run(e, error));
  rf_say(e->sink, "%s", e->rate);
  if (output && json_array_size(e->rows)) RF_TRY(write_rows(output, e->rows, error));
  if (e->stopped) json_object_set_new(e->result, "stopped", json_true());
  rf_put_json(e->sink, json_incref(e->result));
  if (!e->stopped) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_INTERRUPTED,
                 output ? "the same command with --continue continues from here"
                        : "--output FILE keeps finished rows",
                 "stopped by a signal; the figures cover %zu rows", json_array_size(e->rows));
}

static void add_results(rf_evaluation *e) {
  const char *key;
  json_t *value;
  json_object_foreach (e->result, key, value)
    if (e->journal.results && (json_is_number(value) || !strcmp(key, "task")))
      json_object_set(e->journal.results, key, value);
}

static rf_status rf_command_eval(const rafter_job *job, const rafter_sink *sink, rf_error *error) {
  const char *name = rf_options_argument(job->options, 0), *model = rf_options_argument(job->options, 1);
  const char *names[sizeof TASKS / sizeof *TASKS];
  rf_options *o = NULL;
  int task = -1;
  for (size_t i = 0; i < sizeof TASKS / sizeof *TASKS; i++) {
    names[i] = TASKS[i].name;
    if (name && !strcmp(name, TASKS[i].name)) task = (int)i;
  }
  if (task < 0 || !model) {
    const char *near = name && task < 0 ? rf_nearest(name, names, (int)(sizeof names / sizeof *names)) : NULL;
    return RF_FAIL(error, RAFTER_INVALID, "for example `rafter eval perplexity MODEL --data text.txt`",
                   "%s (expected perplexity, choices or gsm8k%s%s)",
                   task < 0 ? "which task?" : "which model?", near ? "; nearest: " : "", near ? near : "");
  }
  rf_evaluation *e = calloc(1, sizeof *e);
  rf_status status = e ? rf_options_with_model(job->options, model, &o, error)
                       : RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  if (e) e->sink = sink;
  if (status == RAFTER_OK) status = run(o, task, e, error);
  if (e) {
    add_results(e);
    rf_journal_close(&e->journal, status, error);
    rf_record_close(e->record);
    rf_prompt_reader_close(&e->reader);
    json_decref(e->result);
    json_decref(e->rows);
    json_decref(e->kept);
  }
  rf_options_free(o);
  free(e);
  return status;
}

static const rf_option EVAL[] = {
    RF_WORDS("data", PATH, "FILE", NULL, "Task",
             "perplexity: a text, or .jsonl rows with \"text\"; choices: rows with \"context\", \"choices\" "
             "and \"answer\"; gsm8k: rows of GSM8K"),
    RF_NUMBER("limit", INT, "N", 0, 1e12, "0", "Task",
              "use only this number of rows (.jsonl) or windows (text); 0: all"),
    RF_NUMBER("stride", TOKENS, NULL, 1, 1 << 24, NULL, "Task",
              "new tokens in each window (perplexity); unset: --seq, so windows do not overlap"),
    RF_NUMBER("shots", INT, "N", 0, 1000, NULL, "Task",
              "worked examples before the question (gsm8k); unset: 5, or 0 with --chat"),
    RF_WORDS("shots-from", PATH, "FILE", NULL, "Task",
             "rows of worked examples (gsm8k); unset: train.jsonl next to the data"),
    RF_FLAG("chat", "Prompt", "put the question into the model's chat template (gsm8k)"),
    RF_NUMBER("max-tokens", TOKENS, NULL, 1, 1 << 24, "512", "Sampling",
              "maximum tokens of an answer (gsm8k)"),
    RF_NUMBER("temperature", FLOAT, NULL, 0, 100, "0", "Sampling",
              "divisor of the logits (gsm8k); 0: always the likeliest token"),
    RF_NUMBER("batch", INT, "SEQUENCES", 1, 1 << 20, NULL, "Memory",
              "gsm8k: answers generated at once (unset: 8); other tasks: texts in one forward pass (unset: "
              "about 1024 tokens)"),
    RF_NUMBER(
        "seq", TOKENS, NULL, 1, 1 << 24, NULL, "Memory",
        "perplexity: tokens of a window (unset: at most 2048); choices, gsm8k: maximum tokens of a text, or "
        "of a prompt with its answer (unset: enough for the longest, within the model's limit)"),
    RF_FLAG("continue", "Output",
            "keep the rows that a stopped run of this command wrote to --output, and add the missing rows"),
    {.name = NULL},
};

const rf_command RF_COMMAND_EVAL = {
    RF_COMMAND_HEAD("eval", "perplexity|choices|gsm8k MODEL", 2, 2, "Run", "Measure a model on a task."),
    .options = {RF_TABLE(EVAL), RF_TABLE(RF_CHAT_OPTIONS), RF_TABLE(RF_SAMPLING_OPTIONS),
                RF_TABLE(RF_ROWS_OUT_OPTIONS), RF_INFERENCE_TABLES, RF_TABLE(RF_CACHE_OPTIONS),
                RF_TABLE(RF_SPECULATION_OPTIONS), RF_LEFT_TABLES},
    .common =
        "data limit stride shots chat max-tokens seq dtype weights compute adapter output continue json",
    .examples = {"eval perplexity model.gguf --data wiki.txt --seq 2048",
                 "eval gsm8k models/org/name --data test.jsonl --chat --limit 200 --output rows.jsonl"},
    .run = rf_command_eval};
