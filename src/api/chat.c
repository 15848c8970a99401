/* chat.c - `rafter chat`: a conversation in which the user types each message as a line. The KV
 * cache keeps earlier turns, so a turn computes only its new tokens. */
#define _GNU_SOURCE
#include "api/answers.h"

#include "base/file.h"
#include "generate/replies.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONTEXT = 4096 }; /* default of --seq; a model with fewer positions has a shorter context */

typedef struct conversation {
  const rafter_sink *sink;
  rf_settings settings;
  rf_tokenizer *tokenizer;
  rf_chat *chat;
  rf_generator *g;
  rf_marks marks;
  rf_stop stop;
  rf_sampler_options sampling;
  int64_t max_tokens;
  json_t *messages;
  rf_ids ids;              /* tokens of the conversation so far: template tokens and sampled tokens */
  char *said;              /* the text of `ids` */
  bool closed;             /* true if the last id is the end-of-turn token */
  bool stats, ends, ended; /* ends: end-of-text tokens end an answer */
  int turns;
} conversation;

typedef struct turn {
  conversation *of;
  rf_replies answer;
  double start;
  int64_t walked, reused;
  double first_seconds, seconds;
  bool interrupted, cut; /* cut: a stop text ended the answer */
} turn;

/* ---- prompts --------------------------------------------------------------------------------- */

static int64_t specials_in(const rf_tokenizer *tokenizer, const rf_ids *ids) {
  int64_t count = 0;
  for (int64_t i = 0; i < ids->count; i++) count += rf_tokenizer_is_special(tokenizer, ids->at[i]);
  return count;
}

/* Finds the index of the first token after the text c->said. `ids` are the tokens of a text that
 * begins with c->said. Returns -1 if a token spans the end of c->said. Special tokens are counted
 * to find the index, because the tokenizer never merges a special token with its neighbours. */
static int64_t seam(const conversation *c, const rf_ids *ids, rf_error *error) {
  rf_ids before = {0};
  int64_t at = -1, wanted, seen = 0;
  if (rf_tokenizer_encode(c->tokenizer, c->said, strlen(c->said), RF_ENCODE_PARSE, &before, error) ==
      RAFTER_OK) {
    wanted = specials_in(c->tokenizer, &before);
    for (int64_t i = 0; i < ids->count && at < 0; i++) {
      if (!rf_tokenizer_is_special(c->tokenizer, ids->at[i])) continue;
      seen++;
      if (c->closed && seen == wanted) at = i + 1;
      if (!c->closed && seen == wanted + 1) at = i;
    }
  }
  rf_ids_free(&before);
  return at;
}

/* Appends the new part of the conversation to c->ids. The tokens of earlier turns are kept.
 * Encoding the text of an answer again could give other tokens. */
static rf_status encode(conversation *c, rf_error *error) {
  rf_ids whole = {0};
  rf_rendered rendered = {0};
  rf_status status = RAFTER_OK;
  RF_GO(rf_chat_text(c->chat, c->messages, true, &rendered, error));
  RF_GO(rf_tokenizer_encode(c->tokenizer, rendered.text, rendered.bytes, RF_ENCODE_PARSE, &whole, error));
  int64_t from = c->said && !strncmp(rendered.text, c->said, strlen(c->said)) ? seam(c, &whole, error) : -1;
  if (from < 0) c->ids.count = from = 0;
  for (int64_t i = from; i < whole.count; i++) RF_GO(rf_ids_add(&c->ids, whole.at[i], error));
  free(c->said);
  c->said = rendered.text;
  rendered.text = NULL;
done:
  rf_ids_free(&whole);
  rf_rendered_free(&rendered);
  return status;
}

static void forget(conversation *c) {
  free(c->said);
  c->said = NULL;
  c->ids.count = 0;
}

/* Removes the oldest question and its answer. Returns false if only the newest question remains. */
static bool drop_oldest(conversation *c) {
  size_t first = 0;
  if (!strcmp(json_string_value(json_object_get(json_array_get(c->messages, 0), "role")), "system"))
    first = 1;
  if (json_array_size(c->messages) < first + 3) return false;
  json_array_remove(c->messages, first);
  json_array_remove(c->messages, first);
  forget(c);
  return true;
}

/* ---- an answer ------------------------------------------------------------------------------- */

static void show(conversation *c, turn *t) {
  rf_reply *r = t->answer.reply;
  if (r->bytes > r->shown && c->sink->text) c->sink->text(c->sink->self, r->text + r->shown);
  r->shown = r->bytes;
}

static rf_status taken(void *self, rf_replies *answer, int sample, rf_error *error) {
  turn *t = self;
  conversation *c = t->of;
  rf_reply *r = &answer->reply[sample];
  int32_t token = r->tokens.at[r->tokens.count - 1];
  bool mark = false;
  if (r->tokens.count == 1) t->first_seconds = rf_now_seconds() - t->start;
  for (int i = 0; i < c->marks.count; i++) mark |= c->marks.id[i] == token;
  RF_TRY(rf_ids_add(&c->ids, token, error));
  c->closed = mark && rf_tokenizer_is_special(c->tokenizer, token);
  t->cut = r->state.found > 0;
  t->interrupted = r->finish == RF_FINISH_NONE && rf_asked_to_stop(c->sink);
  if (t->interrupted) {
    RF_TRY(rf_reply_end(r, RF_FINISH_NONE, error));
    rf_generator_cancel(c->g, answer->request, -1);
  }
  show(c, t);
  return RAFTER_OK;
}

static rf_status answer(conversation *c, turn *t, rf_error *error) {
  int64_t room = c->settings.plan.build.seq - c->ids.count;
  rf_generate_counts before = rf_generator_counts(c->g);
  bool stopped;
  t->start = rf_now_seconds();
  rf_request request = {.tokens = c->ids.at,
                        .count = c->ids.count,
                        .max_tokens = c->max_tokens && c->max_tokens < room ? c->max_tokens : room,
                        .sampler = c->sampling,
                        .stop = c->marks.id,
                        .stop_count = c->ends ? c->marks.count : 0,
                        .keep = true};
  RF_TRY(rf_replies_submit(c->g, &request, c->tokenizer, &c->stop, &t->answer, error));
  RF_TRY(rf_replies_run(c->g, &(rf_reply_loop){.self = t, .taken = taken}, &stopped, error));
  rf_say(c->sink, "\n");
  rf_generate_counts after = rf_generator_counts(c->g);
  t->seconds = rf_now_seconds() - t->start;
  t->reused = after.reused - before.reused;
  t->walked = request.count - t->reused;
  return RAFTER_OK;
}

/* Appends the answer to the messages and to c->said, the text of c->ids. */
static rf_status remember(conversation *c, turn *t, rf_error *error) {
  char *said = NULL;
  rf_span mark =
      c->closed ? rf_tokenizer_text_of(c->tokenizer, c->ids.at[c->ids.count - 1]) : (rf_span){"", 0};
  json_array_append_new(c->messages, json_pack("{ss so}", "role", "assistant", "content",
                                               rf_json_bytes(t->answer.reply->text, t->answer.reply->bytes)));
  if (asprintf(&said, "%s%s%.*s", c->said, t->answer.reply->text, (int)mark.bytes, mark.at) < 0)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  free(c->said);
  c->said = said;
  return RAFTER_OK;
}

static void tell(conversation *c, const turn *t) {
  /* Predicts the rate at the middle of the answer. The plan's rate is for the longest context. */
  const rf_extent middle = {1, c->ids.count - t->answer.reply->tokens.count / 2};
  double seconds = t->seconds - t->first_seconds,
         rate = seconds > 0 ? (double)(t->answer.reply->tokens.count - 1) / seconds : 0,
         planned = 1 / rf_plan_walk_seconds(c->g->decode, &middle, 1);
  if (c->stats)
    rf_say(c->sink,
           "[%lld new tokens read, %lld in the cache; first token after %.2f s; %lld tokens at %.1f tokens/s "
           "(planned %.1f); context %lld of %lld]\n",
           (long long)t->walked, (long long)t->reused, t->first_seconds,
           (long long)t->answer.reply->tokens.count, rate, planned, (long long)c->ids.count,
           (long long)c->settings.plan.build.seq);
  rf_put_json(c->sink,
              json_pack("{ss si so ss sI sI sI sf sf sf}", "command", "chat", "turn", ++c->turns, "text",
                        rf_json_bytes(t->answer.reply->text, t->answer.reply->bytes), "finish_reason",
                        t->interrupted ? "interrupted" : rf_finish_name(t->answer.reply->finish),
                        "prompt_tokens", (json_int_t)(t->walked + t->reused), "reused_tokens",
                        (json_int_t)t->reused, "completion_tokens", (json_int_t)t->answer.reply->tokens.count,
                        "seconds_to_first_token", t->first_seconds, "tokens_per_second", rate,
                        "predicted_tokens_per_second", planned));
}

static rf_status ask(conversation *c, const char *line, rf_error *error) {
  turn t = {.of = c};
  rf_error unread = {0};
  json_t *content = json_string(line);
  if (!content) return rf_say(c->sink, "the line is not UTF-8 text\n"), RAFTER_OK;
  json_array_append_new(c->messages, json_pack("{ss so}", "role", "user", "content", content));
  rf_status status = encode(c, &unread);
  while (status == RAFTER_OK && c->ids.count + 1 > c->settings.plan.build.seq) {
    if (!drop_oldest(c)) {
      status = RF_FAIL(&unread, RAFTER_INVALID, NULL, "the line is longer than the context of %lld tokens",
                       (long long)c->settings.plan.build.seq);
      break;
    }
    rf_say(c->sink, "[the context is full: the oldest turn is forgotten]\n");
    status = encode(c, &unread);
  }
  if (status != RAFTER_OK) { /* A line that cannot be read does not end the conversation. */
    rf_say(c->sink, "%s\n", unread.message);
    json_array_remove(c->messages, json_array_size(c->messages) - 1);
    return forget(c), RAFTER_OK;
  }
  status = answer(c, &t, error);
  if (status == RAFTER_OK) tell(c, &t);
  if (status == RAFTER_OK) status = remember(c, &t, error);
  if (t.cut) forget(c); /* c->ids also has the tokens of the stop text */
  rf_replies_free(&t.answer);
  return status;
}

/* ---- commands -------------------------------------------------------------------------------- */

static void start_anew(conversation *c, const char *system) {
  json_array_clear(c->messages);
  if (*system) json_array_append_new(c->messages, json_pack("{ss ss}", "role", "system", "content", system));
  forget(c);
}

static const char *system_of(const conversation *c) {
  const json_t *first = json_array_get(c->messages, 0);
  const char *role = json_string_value(json_object_get(first, "role"));
  return role && !strcmp(role, "system") ? json_string_value(json_object_get(first, "content")) : "";
}

static void command_reset(conversation *c, const char *words) {
  (void)words;
  char *system = strdup(system_of(c)); /* start_anew frees the messages */
  start_anew(c, system ? system : "");
  free(system);
  rf_say(c->sink, "[a new conversation]\n");
}
static void command_system(conversation *c, const char *words) {
  start_anew(c, words);
  rf_say(c->sink, "[a new conversation %s]\n",
         *words ? "with this system message" : "without a system message");
}
static void command_stats(conversation *c, const char *words) {
  (void)words;
  c->stats = !c->stats;
  rf_say(c->sink, "[figures after each answer: %s; context %lld of %lld tokens, arena %.1f MiB]\n",
         c->stats ? "on" : "off", (long long)c->ids.count, (long long)c->settings.plan.build.seq,
         (double)rf_run_arena_bytes(c->g->run) / 0x1p20);
}
static void command_save(conversation *c, const char *words) {
  rf_error error = {0};
  json_t *row = json_pack("{sO}", "messages", c->messages);
  if (!*words) rf_say(c->sink, "[/save FILE]\n");
  else if (rf_json_write(words, row, 0, &error) == RAFTER_OK)
    rf_say(c->sink, "[%zu messages in %s]\n", json_array_size(c->messages), words);
  else rf_say(c->sink, "%s\n", error.message);
  json_decref(row);
}
static void command_bye(conversation *c, const char *words) {
  (void)words;
  c->ended = true;
}
static void command_help(conversation *c, const char *words);

static const struct {
  const char *name, *help;
  void (*run)(conversation *c, const char *words);
} COMMANDS[] = {{"/reset", "start a new conversation", command_reset},
                {"/system", "[TEXT]  start a new conversation with this system message", command_system},
                {"/save", "FILE  write the conversation as a row of training data", command_save},
                {"/stats", "turn figures after each answer on or off", command_stats},
                {"/bye", "end the chat, like Ctrl-D; Ctrl-C ends an answer", command_bye},
                {"/help", "list these commands", command_help}};

static void command_help(conversation *c, const char *words) {
  (void)words;
  for (size_t i = 0; i < sizeof COMMANDS / sizeof *COMMANDS; i++)
    rf_say(c->sink, "%-8s %s\n", COMMANDS[i].name, COMMANDS[i].help);
}

static bool run_command(conversation *c, const char *line) {
  size_t n = strcspn(line, " \t");
  if (*line != '/' || memchr(line + 1, '/', n - 1)) return false; /* a path is not a command */
  for (size_t i = 0; i < sizeof COMMANDS / sizeof *COMMANDS; i++)
    if (strlen(COMMANDS[i].name) == n && !strncmp(line, COMMANDS[i].name, n))
      return COMMANDS[i].run(c, line + n + strspn(line + n, " \t")), true;
  rf_say(c->sink, "unknown command %.*s; /help lists the commands\n", (int)n, line);
  return true;
}

/* ---- the command ----------------------------------------------------------------------------- */

static rf_status open_model(const rf_options *o, conversation *c, rf_error *error) {
  RF_TRY(rf_settings_resolve(o, "generate", &c->settings, error));
  RF_TRY(rf_tokenizer_for(c->settings.model.name, c->settings.model.vocab, c->settings.weights_folder,
                          &c->tokenizer, error));
  RF_TRY(rf_chat_of(o, &c->settings, c->tokenizer, &c->chat, error));
  RF_TRY(rf_marks_of(&c->settings, c->tokenizer, &c->marks, error));
  RF_TRY(rf_sampling_of(o, &c->settings, c->sink, &c->sampling, error));
  RF_TRY(rf_stop_given(o, &c->stop, error));
  c->messages = json_array();
  if (!c->messages) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  rf_build_options *b = &c->settings.plan.build;
  if (!rf_options_given(o, "seq") && b->seq > CONTEXT) b->seq = CONTEXT;
  b->microbatch = 1;
  return rf_open_generator(&c->settings, o, c->sink, &c->g, error);
}

static rf_status talk(const rf_options *o, conversation *c, rf_error *error) {
  RF_TRY(open_model(o, c, error));
  c->stats = rf_options_flag(o, "verbose");
  c->ends = !rf_options_flag(o, "ignore-eos");
  c->max_tokens = rf_options_int(o, "max-tokens");
  start_anew(c, rf_options_text_or(o, "system", ""));
  rf_put_bar(c->sink, "%s, context %lld tokens, arena %.1f MiB; /help", c->settings.model.name,
             (long long)c->settings.plan.build.seq, (double)rf_run_arena_bytes(c->g->run) / 0x1p20);
  while (!c->ended) {
    char *line = c->sink->line(c->sink->self, ">>> ");
    if (!line) break;
    rf_status status = RAFTER_OK;
    if (line[strspn(line, " \t\r")] && !run_command(c, line)) status = ask(c, line, error);
    rafter_text_free(line);
    RF_TRY(status);
  }
  return RAFTER_OK;
}

static rf_status rf_command_chat(const rafter_job *job, const rafter_sink *sink, rf_error *error) {
  rf_options *o = NULL;
  if (!sink->line)
    return RF_FAIL(error, RAFTER_INVALID, NULL, "a chat needs input (the sink has no line function)");
  conversation *c = calloc(1, sizeof *c);
  rf_status status = c ? rf_options_with_model(job->options, rf_options_argument(job->options, 0), &o, error)
                       : RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  if (c) c->sink = sink;
  if (status == RAFTER_OK) status = talk(o, c, error);
  if (c) {
    rf_generator_close(c->g);
    rf_stop_close(&c->stop);
    rf_chat_free(c->chat);
    rf_tokenizer_close(c->tokenizer);
    rf_ids_free(&c->ids);
    json_decref(c->messages);
    free(c->said);
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
                RF_TABLE(RF_SAMPLING_OPTIONS), RF_INFERENCE_TABLES, RF_TABLE(RF_CACHE_OPTIONS),
                RF_TABLE(RF_DEBUG_OPTIONS), RF_TABLE(RF_EVERY_OPTIONS)},
    .common = "system max-tokens temperature top-k top-p seq dtype weights compute adapter",
    .examples = {"chat models/org/name --dtype bf16",
                 "chat model.gguf --compute fast --system 'Answer in one sentence.'"},
    .run = rf_command_chat};
