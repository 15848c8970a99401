/* prompts.c - reads the prompts that options give. */
#include "api/answers.h"

#include "base/text.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static rf_status read_bias(const rf_options *o, rf_prompt_reader *p, int *count, rf_error *error) {
  const char *const *texts = rf_options_texts(o, "logit-bias", count);
  p->bias = calloc((size_t)*count + 1, sizeof *p->bias);
  if (!p->bias) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  for (int i = 0; i < *count; i++) {
    char number[32] = "";
    const char *equals = strchr(texts[i], '=');
    int64_t id;
    double bias;
    if (equals && equals - texts[i] < (ptrdiff_t)sizeof number)
      memcpy(number, texts[i], (size_t)(equals - texts[i]));
    if (!equals || !rf_text_int(number, &id) || !rf_text_float(equals + 1, &bias))
      return RF_FAIL(error, RAFTER_INVALID, "for example --logit-bias 464=-5",
                     "--logit-bias is not a token and a number (expected ID=BIAS, got '%.60s')", texts[i]);
    if (id < 0 || id >= p->model->vocab)
      return RF_FAIL(error, RAFTER_INVALID, "the ids belong to another tokenizer",
                     "token out of range (--logit-bias: expected an id of 0 to %lld, got %lld)",
                     (long long)p->model->vocab - 1, (long long)id);
    p->bias[i] = (rf_logit_bias){(int32_t)id, (float)bias};
  }
  return RAFTER_OK;
}

/* Reads the settings that apply to prompts without their own settings. */
static rf_status read_common(const rf_options *o, rf_prompt_reader *p, rf_error *error) {
  rf_request *r = &p->common.request;
  int count = 0;
  RF_TRY(read_bias(o, p, &count, error));
  r->max_tokens = rf_options_int(o, "max-tokens");
  r->samples = (int)rf_options_int(o, "samples");
  r->top = (int)rf_options_int(o, "top-logprobs");
  r->sampler.min_tokens = rf_options_int(o, "min-tokens");
  r->sampler.bias = p->bias;
  r->sampler.bias_count = count;
  return rf_stop_given(o, &p->common.stop, error);
}

/* Reads the single prompt of the command line. */
static rf_status read_typed(const rf_options *o, rf_prompt_reader *reader, rf_prompts *p, rf_error *error) {
  rf_prompt *row;
  RF_TRY(rf_prompts_add(p, reader, &row, error));
  if (rf_options_is_set(o, "tokens"))
    RF_TRY(rf_ids_given(o, "tokens", reader->model->vocab, &row->tokens, error));
  else {
    const char *prompt = rf_options_text(o, "prompt");
    RF_TRY(rf_prompt_of_text(reader, prompt, strlen(prompt), row, error));
  }
  return row->tokens.count
             ? RAFTER_OK
             : RF_FAIL(error, RAFTER_INVALID, "give --prompt TEXT or --tokens 1,2,3", "the prompt is empty");
}

enum { EACH = 8 }; /* default number of answers that one copy of the model generates at once */

/* Sets the context length to --seq. Without --seq, takes the length of the longest prompt with its
 * answer. The context is at most the model's number of positions. */
static rf_status resolve_context(const rf_options *o, const rf_prompts *p, rf_settings *settings,
                                 rf_error *error) {
  rf_build_options *b = &settings->plan.build;
  int64_t most = settings->model.max_seq, longest = 0, answers = 0, samples = 1;
  for (int64_t i = 0; i < p->rows; i++) {
    const rf_prompt *row = &p->row[i];
    int64_t length = row->tokens.count + row->request.max_tokens;
    longest = length > longest ? length : longest;
    answers += row->request.samples;
    samples = row->request.samples > samples ? row->request.samples : samples;
  }
  if (!rf_options_is_set(o, "seq")) b->seq = longest < most ? longest : most;
  const int64_t usual = EACH * rf_generate_shares(&settings->plan);
  b->microbatch = rf_options_int_or(o, "batch", answers < usual ? answers : usual);
  /* If a prompt has more samples than the batch has slots, one more cached sequence keeps the
   * prompt. */
  b->accumulate = 1;
  b->sequences = b->microbatch + (samples > b->microbatch);
  for (int64_t i = 0; i < p->rows; i++) {
    const rf_prompt *row = &p->row[i];
    char where[4200] = "";
    if (row->tokens.count < b->seq) continue;
    if (row->line)
      snprintf(where, sizeof where, "%s, line %lld: ", rf_options_text(o, "input"), (long long)row->line);
    return RF_FAIL(error, row->line ? RAFTER_FAILED : RAFTER_INVALID, "shorten the prompt",
                   "the prompt leaves no room to generate (%sexpected fewer than %lld tokens, got %lld)",
                   where, (long long)b->seq, (long long)row->tokens.count);
  }
  return RAFTER_OK;
}

/* Checks that options give the prompt in one form only. Without a file, chat options need
 * --chat. */
static rf_status check_typed(const rf_options *o, rf_error *error) {
  static const char *const FORMS[] = {"input", "prompt", "tokens"};
  static const char *const OF_CHAT[] = {"system", "template"};
  const char *first = NULL;
  for (int i = 0; i < 3; i++) {
    if (!rf_options_knows(o, FORMS[i]) || !rf_options_is_set(o, FORMS[i])) continue;
    if (first)
      return RF_FAIL(error, RAFTER_INVALID, "give the prompt in one way only",
                     "--%s and --%s both give a prompt", first, FORMS[i]);
    first = FORMS[i];
  }
  bool chat = rf_options_flag(o, "chat"), file = rf_options_is_set(o, "input");
  if (chat && !file && rf_options_is_set(o, "tokens"))
    return RF_FAIL(error, RAFTER_INVALID, "give --prompt TEXT, or leave --chat out",
                   "--chat needs text, but --tokens gives token ids");
  for (int i = 0; i < 2; i++)
    if (rf_options_is_set(o, OF_CHAT[i]) && !chat && !file)
      return RF_FAIL(error, RAFTER_INVALID, "add --chat", "--%s needs --chat", OF_CHAT[i]);
  return RAFTER_OK;
}

rf_status rf_prompts_given(const rf_options *o, const rafter_sink *sink, rf_settings *settings,
                           rf_prompt_reader *reader, rf_prompts *p, rf_error *error) {
  RF_TRY(check_typed(o, error));
  RF_TRY(rf_settings_resolve(o, "generate", settings, error));
  const char *path = rf_options_text(o, "input");
  *reader = rf_reader_of(o, settings);
  bool conversations = rf_options_is_set(o, "system") || rf_options_is_set(o, "template");
  reader->chats = rf_options_flag(o, "chat") || (path && conversations);
  reader->ignores_ends = rf_options_flag(o, "ignore-eos");
  if (!path && !rf_options_is_set(o, "tokens")) RF_TRY(rf_prompt_reader_open(reader, false, error));
  RF_TRY(rf_sampling_of(o, settings, sink, &reader->common.request.sampler, error));
  RF_TRY(read_common(o, reader, error));
  RF_TRY(path ? rf_prompts_read(p, reader, path, error) : read_typed(o, reader, p, error));
  if (*reader->unread) rf_note(sink, "%s: ignored keys: %s\n", path, reader->unread);
  RF_TRY(rf_end_ids_of(reader->model, reader->folder, reader->tokenizer, &reader->ends, error));
  return resolve_context(o, p, settings, error);
}
