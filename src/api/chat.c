/* chat.c - `rafter chat`: a conversation in which the user types each message as a line. The KV
 * cache keeps earlier turns, so a turn computes only its new tokens. */
#define _GNU_SOURCE
#include "api/answers.h"

#include "generate/conversation.h"

#include <stdlib.h>
#include <string.h>

enum { CONTEXT = 4096 }; /* default of --seq, if the model has this many positions */

typedef struct chat {
  const rafter_sink *sink;
  rf_settings settings;
  rf_prompt_reader reader;
  rf_given_form form;
  rf_generator *g;
  rf_conversation of;
  bool stats, ended;
  int turns;
} chat;

typedef struct turn {
  chat *of;
  rf_prompt prompt;
  double start;
  int64_t executed, reused;
  double first_seconds, seconds;
} turn;

/* ---- an answer ------------------------------------------------------------------------------- */

static rf_status taken(void *self, rf_replies *answer, const rf_event *event, rf_error *error) {
  turn *t = self;
  chat *c = t->of;
  rf_reply *r = answer->reply;
  (void)error;
  if (event->index == 0) t->first_seconds = rf_now_seconds() - t->start;
  if (r->finish == RF_FINISH_NONE && rf_asked_to_stop(c->sink))
    rf_generator_cancel(c->g, answer->request, -1);
  if (r->bytes > r->shown && c->sink->text) c->sink->text(c->sink->self, r->text + r->shown);
  r->shown = r->bytes;
  return RAFTER_OK;
}

/* A signal may also arrive during the pass over the prompt, before the first event of the
 * answer. */
static bool stepped(void *self, int tokens) {
  const turn *t = self;
  if (!tokens && rf_asked_to_stop(t->of->sink)) rf_generator_cancel(t->of->g, t->prompt.replies.request, -1);
  return true; /* the loop continues, because the next step reports the cancelled answer */
}

static rf_status answer(chat *c, turn *t, rf_error *error) {
  rf_request *r = &t->prompt.request;
  rf_generate_counts before = rf_generator_counts(c->g);
  bool stopped;
  t->start = rf_now_seconds();
  t->prompt = (rf_prompt){.tokens = c->of.ids, .request = c->reader.common.request};
  int64_t room = c->settings.plan.build.seq - t->prompt.tokens.count;
  if (!r->max_tokens || r->max_tokens > room) r->max_tokens = room;
  RF_TRY(rf_prompt_submit(&c->reader, &t->prompt, c->g, error));
  RF_TRY(
      rf_replies_run(c->g, &(rf_reply_loop){.self = t, .taken = taken, .stepped = stepped}, &stopped, error));
  rf_say(c->sink, "\n");
  rf_generate_counts after = rf_generator_counts(c->g);
  t->seconds = rf_now_seconds() - t->start;
  t->reused = after.reused - before.reused;
  t->executed = r->count - t->reused;
  return RAFTER_OK;
}

static void tell(chat *c, const turn *t) {
  const rf_reply *r = t->prompt.replies.reply;
  int64_t prompt = t->executed + t->reused, count = r->tokens.count;
  /* Predicts the rate at the middle of the answer, because the plan's own rate is for the longest
   * context. */
  const rf_extent middle = {1, prompt + count - count / 2};
  double seconds = t->seconds - t->first_seconds, rate = seconds > 0 ? (double)(count - 1) / seconds : 0,
         planned = 1 / rf_plan_pass_seconds(c->g->decode, &middle, 1);
  if (c->stats)
    rf_say(c->sink,
           "[%lld new tokens read, %lld in the cache; first token after %.2f s; %lld tokens at %.1f tokens/s "
           "(planned %.1f); context %lld of %lld]\n",
           (long long)t->executed, (long long)t->reused, t->first_seconds, (long long)count, rate, planned,
           (long long)(prompt + count), (long long)c->settings.plan.build.seq);
  rf_put_json(c->sink,
              json_pack("{ss si so ss sI sI sI sf sf sf}", "command", "chat", "turn", ++c->turns, "text",
                        rf_json_bytes(r->text, r->bytes), "finish_reason",
                        r->finish == RF_FINISH_CANCELLED ? "interrupted" : rf_finish_name(r->finish),
                        "prompt_tokens", (json_int_t)prompt, "reused_tokens", (json_int_t)t->reused,
                        "completion_tokens", (json_int_t)count, "seconds_to_first_token", t->first_seconds,
                        "tokens_per_second", rate, "predicted_tokens_per_second", planned));
}

static rf_status ask(chat *c, const char *line, rf_error *error) {
  turn t = {.of = c};
  rf_error unread = {0};
  int dropped;
  json_t *message = json_pack("{ss ss}", "role", "user", "content", line);
  if (!message) return rf_say(c->sink, "the line is not UTF-8 text\n"), RAFTER_OK;
  rf_status status = rf_conversation_ask(&c->of, message, c->settings.plan.build.seq, &dropped, &unread);
  while (dropped--) rf_say(c->sink, "[the context is full: the oldest turn is forgotten]\n");
  if (status != RAFTER_OK) /* An unreadable line does not end the conversation. */
    return rf_say(c->sink, "%s\n", unread.message), RAFTER_OK;
  status = answer(c, &t, error);
  if (status == RAFTER_OK) tell(c, &t);
  if (status == RAFTER_OK) status = rf_conversation_answered(&c->of, t.prompt.replies.reply, error);
  rf_replies_free(&t.prompt.replies);
  return status;
}

/* ---- commands -------------------------------------------------------------------------------- */

static void command_reset(chat *c, const char *words) {
  (void)words;
  rf_conversation_restart(&c->of, NULL);
  rf_say(c->sink, "[a new conversation]\n");
}
static void command_system(chat *c, const char *words) {
  rf_conversation_restart(&c->of, words);
  rf_say(c->sink, "[a new conversation %s]\n",
         *words ? "with this system message" : "without a system message");
}
static void command_stats(chat *c, const char *words) {
  (void)words;
  c->stats = !c->stats;
  rf_say(c->sink, "[figures after each answer: %s; context %lld of %lld tokens, arena %.1f MiB]\n",
         c->stats ? "on" : "off", (long long)c->of.ids.count, (long long)c->settings.plan.build.seq,
         (double)rf_generator_arena_bytes(c->g) / 0x1p20);
}
static void command_save(chat *c, const char *words) {
  rf_error error = {0};
  json_t *row = json_pack("{sO}", "messages", c->of.messages);
  if (!*words) rf_say(c->sink, "[/save FILE]\n");
  else if (rf_json_write(words, row, 0, &error) == RAFTER_OK)
    rf_say(c->sink, "[%zu messages in %s]\n", json_array_size(c->of.messages), words);
  else rf_say(c->sink, "%s\n", error.message);
  json_decref(row);
}
static void command_bye(chat *c, const char *words) {
  (void)words;
  c->ended = true;
}
static void command_help(chat *c, const char *words);

static const struct {
  const char *name, *help;
  void (*run)(chat *c, const char *words);
} COMMANDS[] = {{"/reset", "start a new conversation", command_reset},
                {"/system", "[TEXT]  start a new conversation with this system message", command_system},
                {"/save", "FILE  write the conversation as a row of training data", command_save},
                {"/stats", "turn figures after each answer on or off", command_stats},
                {"/bye", "end the chat, like Ctrl-D; Ctrl-C ends an answer", command_bye},
                {"/exit", "the same as /bye", command_bye},
                {"/quit", "the same as /bye", command_bye},
                {"/help", "list these commands", command_help}};

static void command_help(chat *c, const char *words) {
  (void)words;
  for (size_t i = 0; i < sizeof COMMANDS / sizeof *COMMANDS; i++)
    rf_say(c->sink, "%-8s %s\n", COMMANDS[i].name, COMMANDS[i].help);
}

static bool run_command(chat *c, const char *line) {
  size_t n = strcspn(line, " \t");
  if (*line != '/' || memchr(line + 1, '/', n - 1)) return false; /* a path is not a command */
  for (size_t i = 0; i < sizeof COMMANDS / sizeof *COMMANDS; i++)
    if (strlen(COMMANDS[i].name) == n && !strncmp(line, COMMANDS[i].name, n))
      return COMMANDS[i].run(c, line + n + strspn(line + n, " \t")), true;
  rf_say(c->sink, "unknown command %.*s; /help lists the commands\n", (int)n, line);
  return true;
}

/* ---- the command ----------------------------------------------------------------------------- */

static rf_status open_model(const rf_options *o, chat *c, rf_error *error) {
  RF_TRY(rf_settings_resolve(o, "generate", &c->settings, error));
  rf_prompt_reader *r = &c->reader;
  *r = rf_reader_of(o, &c->settings);
  r->ignores_ends = rf_options_flag(o, "ignore-eos");
  r->common.request.max_tokens = rf_options_int_or(o, "max-tokens", 0);
  r->common.request.keep = true;
  RF_TRY(rf_prompt_reader_open(r, true, error));
  RF_TRY(rf_end_ids_of(r->model, r->folder, r->tokenizer, &r->ends, error));
  RF_TRY(rf_sampling_of(o, &c->settings, c->sink, &r->common.request.sampler, error));
  RF_TRY(rf_stop_given(o, &r->common.stop, error));
  RF_TRY(rf_given_form_open(o, r, &c->form, error));
  r->common.request.sampler.constraint = c->form.of;
  c->of.reader = r;
  rf_build_options *b = &c->settings.plan.build;
  if (!rf_options_given(o, "seq") && b->seq > CONTEXT) b->seq = CONTEXT;
  b->microbatch = 1;
  return rf_open_generator(&c->settings, o, c->sink, &c->g, error);
}

static rf_status talk(const rf_options *o, chat *c, rf_error *error) {
  RF_TRY(open_model(o, c, error));
  c->stats = rf_options_flag(o, "verbose");
  rf_conversation_restart(&c->of, rf_options_text_or(o, "system", ""));
  rf_put_bar(c->sink, "%s, context %lld tokens, arena %.1f MiB; /help", c->settings.model.name,
             (long long)c->settings.plan.build.seq, (double)rf_generator_arena_bytes(c->g) / 0x1p20);
  while (!c->ended) {
    char *line = c->sink->line(c->sink->self, ">>> ");
    if (!line) break;
    rf_status status = RAFTER_OK;
    if (line[strspn(line, " \t\r")] && !run_command(c, line)) status = ask(c, line, error);
    rafter_text_free(line);
    RF_TRY(status);
  }
  if (!c->ended && rf_asked_to_stop(c->sink)) /* a signal has ended the input */
    return RF_FAIL(error, RAFTER_INTERRUPTED, NULL, "stopped by a signal");
  return RAFTER_OK;
}

static rf_status rf_command_chat(const rafter_job *job, const rafter_sink *sink, rf_error *error) {
  rf_options *o = NULL;
  if (!sink->line)
    return RF_FAIL(error, RAFTER_INVALID, NULL, "a chat needs input (the sink has no line function)");
  chat *c = calloc(1, sizeof *c);
  rf_status status = c ? rf_options_with_model(job->options, rf_options_argument(job->options, 0), &o, error)
                       : RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  if (c) c->sink = sink;
  if (status == RAFTER_OK) status = talk(o, c, error);
  if (c) {
    rf_generator_close(c->g);
    rf_given_form_close(&c->form);
    rf_conversation_close(&c->of);
    rf_prompt_reader_close(&c->reader);
  }
  rf_options_free(o);
  free(c);
  return status;
}

static const rf_option CHAT[] = {
    RF_NUMBER("max-tokens", TOKENS, NULL, 1, 1 << 24, NULL, "Sampling",
              "maximum tokens of an answer; unset: the room left in the context"),
    RF_NUMBER("temperature", FLOAT, NULL, 0, 100, "0.8", "Sampling",
              "divisor of the logits; 0: always the likeliest token"),
    RF_NUMBER("seq", TOKENS, NULL, 1, 1 << 24, NULL, "Memory",
              "maximum tokens of the conversation; unset: 4096 or the model's limit"),
    {.name = NULL},
};

const rf_command RF_COMMAND_CHAT = {
    RF_COMMAND_HEAD("chat", "MODEL", 1, 1, "Run",
                    "Talk with a model in the terminal; type /help there for its commands."),
    .options = {RF_TABLE(RF_CHAT_OPTIONS), RF_TABLE(CHAT), RF_TABLE(RF_STOP_OPTIONS),
                RF_TABLE(RF_FORM_OPTIONS), RF_TABLE(RF_SAMPLING_OPTIONS), RF_INFERENCE_TABLES,
                RF_TABLE(RF_CACHE_OPTIONS), RF_TABLE(RF_SPECULATION_OPTIONS), RF_TABLE(RF_DEBUG_OPTIONS),
                RF_TABLE(RF_EVERY_OPTIONS)},
    .common = "system max-tokens temperature top-k top-p seq dtype weights compute adapter",
    .examples = {"chat models/org/name --dtype bf16",
                 "chat model.gguf --compute fast --system 'Answer in one sentence.'"},
    .run = rf_command_chat};
