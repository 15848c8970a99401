/* rollout.c - `rafter rollout`: answers a file of prompts at the highest rate. A later run
 * completes an unfinished output file. */
#define _GNU_SOURCE
#include "api/rollout_file.h"
#include "backend/mpi/link.h"

#include "base/text.h"
#include "journal/executed.h"
#include "journal/traced.h"

#include <stdlib.h>
#include <string.h>

/* ---- settings -------------------------------------------------------------------------------- */

static rf_status check(const rf_options *o, rf_error *error) {
  static const char *const NEEDED[] = {"input", "output"};
  for (int i = 0; i < 2; i++)
    if (!rf_options_is_set(o, NEEDED[i]))
      return RF_FAIL(error, RAFTER_INVALID,
                     "for example rafter rollout MODEL --input prompts.jsonl --output answers.jsonl",
                     "--%s is missing (expected a file of JSON Lines)", NEEDED[i]);
  if (rf_options_is_set(o, "eos-ids") && rf_options_flag(o, "ignore-eos"))
    return RF_FAIL(error, RAFTER_INVALID, "leave one of them out",
                   "--eos-ids and --ignore-eos contradict each other");
  return RAFTER_OK;
}

/* Reads --eos-ids: the ids that end an answer, in place of the model's own end ids. */
static rf_status take_ends(const rf_options *o, rf_prompt_reader *reader, rf_error *error) {
  rf_ids ids = {0};
  if (!rf_options_is_set(o, "eos-ids")) return RAFTER_OK;
  rf_status status = rf_ids_given(o, "eos-ids", reader->model->vocab, &ids, error);
  if (status == RAFTER_OK && ids.count > RF_END_IDS)
    status =
        RF_FAIL(error, RAFTER_INVALID, NULL, "--eos-ids has too many ids (expected at most %d, got %lld)",
                RF_END_IDS, (long long)ids.count);
  if (status == RAFTER_OK) {
    memcpy(reader->ends.id, ids.at, (size_t)ids.count * sizeof *ids.at);
    reader->ends.count = (int)ids.count;
  }
  rf_ids_free(&ids);
  return status;
}

static int64_t answers_to(const rf_prompts *p) {
  int64_t count = 0;
  for (int64_t i = 0; i < p->rows; i++) count += p->row[i].request.samples;
  return count;
}

/* Returns the planned number of decoded tokens per second with `batch` answers at once. Returns 0
 * if `batch` answers do not fit. */
static double planned_rate(const rf_settings *s, int64_t batch, int64_t extra) {
  rf_infer_settings settings = {.model = s->model, .plan = s->plan};
  rf_plan *prefill = NULL, *decode = NULL;
  settings.plan.build.microbatch = batch;
  settings.plan.build.sequences = batch + extra;
  rf_generate_slots(&settings.plan);
  if (rf_generate_plans(&settings, &prefill, &decode, NULL) != RAFTER_OK) return 0;
  bool fits = rf_plan_fits(prefill) && rf_plan_fits(decode) && decode->step_seconds > 0;
  double rate = fits ? (double)batch / decode->step_seconds : 0;
  rf_plan_free(prefill);
  rf_plan_free(decode);
  return rate;
}

/* Without --batch, chooses the batch with the highest planned rate. A larger batch must be faster
 * by 5 %, because it needs more memory. For a machine without measurements, the plan does not know
 * how much many rows speed up each row. For such a machine, a larger batch, up to UNMEASURED, is
 * chosen if it is not slower. */
static void choose_batch(const rf_options *o, rf_answering *a) {
  enum { FIRST = 8, UNMEASURED = 64, MOST = 256 };
  rf_build_options *b = &a->settings.plan.build;
  const rf_machine *machine = a->settings.plan.machine;
  const bool measured = machine && machine->curve_count;
  int64_t answers = answers_to(&a->prompts), extra = b->sequences - b->microbatch;
  double best = 0;
  if (rf_options_is_set(o, "batch") || answers <= FIRST) return;
  for (int64_t batch = FIRST; batch <= MOST && batch < 2 * answers; batch *= 2) {
    int64_t now = batch < answers ? batch : answers;
    double rate = planned_rate(&a->settings, now, extra);
    if (rate <= 0) break;
    if (rate < (measured || batch > UNMEASURED ? 1.05 : 0.99) * best) continue;
    best = rate;
    b->microbatch = now;
  }
  b->sequences = b->microbatch + extra;
}

/* ---- the command ----------------------------------------------------------------------------- */

/* Each run of a continued rollout has its own run folder: --out, then --out-2, and so on. */
static rf_status name_folder(rf_options *o, rf_error *error) {
  char path[4300], folder[4200];
  const char *out = rf_options_text(o, "out");
  if (!out || !rf_options_given(o, "out")) return RAFTER_OK;
  snprintf(folder, sizeof folder, "%.4000s", out);
  for (int n = 2;; n++) {
    snprintf(path, sizeof path, "%s/run.json", folder);
    if (!rf_file_stamp_at(path).inode) break;
    snprintf(folder, sizeof folder, "%.4000s-%d", out, n);
  }
  return rf_options_set(o, "out", folder, error);
}

/* Reports that earlier runs have already written all answers. */
static rf_status say_complete(rf_answering *a, const rf_rollout_file *file, rf_error *error) {
  const char *path = file->path;
  const int64_t answers = answers_to(&a->prompts);
  if (!a->appends) return RAFTER_OK; /* not rank 0 */
  RF_TRY(rf_rollout_begin(a, file, error));
  RF_TRY(rf_answering_end_file(a, error));
  rf_say(a->sink, "%s has all %lld answers\n", path, (long long)answers);
  rf_put_json(a->sink, json_pack("{ss ss sI sI sI sI sb}", "command", "rollout", "output", path, "rows",
                                 (json_int_t)a->written, "answers", (json_int_t)0, "completion_tokens",
                                 (json_int_t)0, "all_answers", (json_int_t)answers, "complete", true));
  return RAFTER_OK;
}

/* Answers the prompts. The written rows are kept, even if an error or a signal ends the run. */
static rf_status run(rf_answering *a, const char *path, rf_error *error) {
  rf_error why = {0};
  rf_status status = rf_answering_run(a, &why);
  if (status == RAFTER_OK || status == RAFTER_INTERRUPTED) {
    if (a->out) {
      rf_status ended = rf_answering_end_file(a, error);
      if (ended != RAFTER_OK) return ended;
    }
    RF_TRY(rf_answering_leave(a, error));
  }
  if (status == RAFTER_OK) return status;
  if (!a->appends) return RF_FAIL(error, status, why.hint, "%s", why.message);
  return RF_FAIL(error, status, "the same command continues after the rows that were written", "%s%s%s",
                 why.message, status == RAFTER_INTERRUPTED ? " to " : "",
                 status == RAFTER_INTERRUPTED ? path : "");
}

static void say_end(const rf_answering *a, const char *path) {
  rf_answering_say_sum(a);
  if (a->done < a->answers)
    rf_say(a->sink, "stopped with %lld of %lld answers in %s (--max-seconds)%s\n",
           (long long)rf_answering_rows(a), (long long)a->answers, path,
           a->appends ? "; the same command continues" : "");
}

/* Only rank 0 reads the output file. So rank 0 sends the other ranks the number of answers in the
 * file. */
static rf_status share_begin(rf_answering *a, rf_error *error) {
  int64_t at[3] = {a->written, a->sample, a->sorts};
  RF_TRY(rf_link_share(rf_link_of_process(), at, sizeof at, error));
  a->written = at[0];
  a->sample = (int)at[1];
  a->sorts = at[2]; /* only rank 0 knows the output, and all ranks need the same order */
  return RAFTER_OK;
}

static rf_status rollout(rf_options *o, rf_answering *a, rf_rollout_file *file, rf_error *error) {
  const char *path = rf_options_text(o, "output");
  rf_report_pass pass[2];
  RF_TRY(check(o, error));
  a->path = rf_options_text(o, "input");
  a->began = rf_now_seconds();
  if (rf_options_is_set(o, "max-seconds")) a->limit = rf_options_float(o, "max-seconds");
  RF_TRY(rf_prompts_given(o, a->sink, &a->settings, &a->reader, &a->prompts, error));
  RF_TRY(take_ends(o, &a->reader, error));
  a->json = rf_options_flag(o, "json");
  a->echo = rf_options_flag(o, "echo");
  a->flushes = true;
  a->appends = !rf_out_is_stream(path);
  /* With --max-seconds, answers that wait for a row before them would be lost at the end. */
  a->sorts = a->appends && a->limit == 0;
  if (a->appends) RF_TRY(rf_rollout_open(a, o, path, rf_options_flag(o, "overwrite"), file, error));
  else RF_TRY(rf_out_open(path, 0, &a->out, error));
  RF_TRY(share_begin(a, error));
  if (a->written == a->prompts.rows) return say_complete(a, file, error);
  if (file->continues) RF_TRY(name_folder(o, error));
  choose_batch(o, a);
  RF_TRY(rf_traced_open(o, &a->record, error));
  RF_TRY(rf_open_generator(&a->settings, o, a->sink, &a->generator, error));
  RF_TRY(rf_answering_submit(a, error));
  if (a->done)
    rf_note(a->sink, "%s has %lld of %lld answers; continuing\n", path, (long long)a->done,
            (long long)a->answers);
  rf_executed_plans(a->generator, pass);
  RF_TRY(rf_begin_journal(&a->journal, a->sink, o, pass, 2, error));
  if (a->appends) RF_TRY(rf_rollout_begin(a, file, error));
  RF_TRY(run(a, path, error));
  say_end(a, path);
  rf_answering_put_sum(a, "rollout", path);
  return RAFTER_OK;
}

static rf_status rf_command_rollout(const rafter_job *asked, const rafter_sink *sink, rf_error *error) {
  rf_options *o = NULL;
  rf_rollout_file file = {0};
  rf_answering *a = calloc(1, sizeof *a);
  if (!a) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  a->sink = sink;
  rf_status status = rf_options_with_model(asked->options, rf_options_argument(asked->options, 0), &o, error);
  if (status == RAFTER_OK) status = rollout(o, a, &file, error);
  rf_answering_close(a, status, error);
  rf_rollout_close(&file);
  free(a);
  rf_options_free(o);
  return status;
}

static const rf_option ROLLOUT[] = {
    RF_WORDS("input", PATH, "FILE", NULL, "Prompt",
             "JSON Lines of prompts: \"prompt\", \"messages\" or \"tokens\", with \"id\", \"samples\", "
             "\"seed\" and other options per row"),
    RF_WORDS("output", PATH, "FILE", NULL, "Output",
             "file for the answers as JSON Lines, in the order of --input; the same command finishes it"),
    RF_FLAG("overwrite", "Output", "start again if the output has answers"),
    RF_FLAG("echo", "Output", "begin text and tokens of each row with those of its prompt"),
    RF_FLAG("chat", "Prompt",
            "put each \"prompt\" into the chat template; --system and --template also do this"),
    RF_WORDS("eos-ids", LIST, "IDS", NULL, "Sampling",
             "token ids that end an answer, in place of the model's own"),
    RF_NUMBER("max-seconds", DURATION, NULL, 0.001, 1e9, NULL, "Output",
              "maximum time; the run keeps the answers that it has and ends within this time"),
    RF_NUMBER("batch", INT, "ANSWERS", 1, 1024, NULL, "Memory",
              "answers generated at once; unset: the number up to 256 with the highest planned rate"),
    {.name = NULL},
};

const rf_command RF_COMMAND_ROLLOUT = {
    RF_COMMAND_HEAD("rollout", "MODEL", 1, 1, "Run", "Answer a file of prompts; a killed run continues."),
    .options = {RF_TABLE(ROLLOUT), RF_TABLE(RF_ANSWERING_OPTIONS), RF_TABLE(RF_CHAT_OPTIONS),
                RF_TABLE(RF_STOP_OPTIONS), RF_TABLE(RF_SAMPLING_OPTIONS), RF_INFERENCE_TABLES,
                RF_TABLE(RF_CACHE_OPTIONS), RF_TABLE(RF_SPECULATION_OPTIONS), RF_LEFT_TABLES},
    .common = "input output samples max-tokens temperature top-k top-p stop eos-ids system template echo "
              "max-seconds overwrite batch seed dtype weights compute adapter json",
    .examples = {"rollout runs/3 --input prompts.jsonl --output answers.jsonl --samples 8 # 8 answers each",
                 "rollout model.gguf --input chats.jsonl --output answers.jsonl --max-seconds 1h # in parts"},
    .run = rf_command_rollout};
