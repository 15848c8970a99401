/* answers.c - see answers.h. */
#include "api/answers.h"

#include "model/run_folder.h"

#include <stdlib.h>
#include <string.h>

rf_status rf_options_with_model(const rf_options *options, const char *model, rf_options **copy,
                                rf_error *error) {
  char folder[4096];
  *copy = rf_options_copy(options);
  if (!*copy) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  if (!model) return RAFTER_OK; /* a later check reports that MODEL is missing */
  RF_TRY(rf_run_weights(model, folder, error));
  return rf_options_set(*copy, "MODEL", folder, error);
}

rf_prompt_reader rf_reader_of(const rf_options *o, const rf_settings *settings) {
  return (rf_prompt_reader){.model = &settings->model,
                            .folder = settings->weights_folder,
                            .chat_template = rf_options_text_or(o, "template", NULL),
                            .system = rf_options_text_or(o, "system", NULL)};
}

/* ---- sampling settings ----------------------------------------------------------------------- */

void rf_sampling_typed(const rf_options *o, rf_sampler_options *s) {
  s->seed = (uint64_t)rf_options_int(o, "seed");
  for (int i = 0; i < RF_SAMPLING_NUMBERS; i++)
    if (rf_options_knows(o, RF_SAMPLING[i].name))
      rf_sampling_set(s, i, rf_options_float(o, RF_SAMPLING[i].name));
}

rf_status rf_sampling_of(const rf_options *o, const rf_settings *settings, const rafter_sink *sink,
                         rf_sampler_options *s, rf_error *error) {
  char said[256];
  unsigned given = 0;
  rf_sampling_typed(o, s);
  for (int i = 0; i < RF_SAMPLING_NUMBERS; i++)
    if (rf_options_knows(o, RF_SAMPLING[i].name) && rf_options_given(o, RF_SAMPLING[i].name))
      given |= 1u << i;
  rf_status status = rf_sampling_prefer(settings->weights_folder, given, s, said, error);
  if (*said) rf_note(sink, "generation_config.json: %s\n", said);
  return status;
}

/* ---- generators and scorers ------------------------------------------------------------------ */

rf_status rf_model_text(const rf_settings *settings, const char *model, char text[RF_FINGERPRINT_TEXT],
                        rf_error *error) {
  const char *folder = settings->weights_folder, *adapter = settings->model.lora.folder;
  rf_fingerprint *f = rf_fingerprint_new();
  rf_status status = RAFTER_OK;
  if (*folder) status = rf_fingerprint_add_files(f, folder, error);
  else rf_fingerprint_add(f, model, strlen(model));
  if (status == RAFTER_OK && *adapter) status = rf_fingerprint_add_files(f, adapter, error);
  rf_fingerprint_end(f, text);
  return status;
}

rf_run_debug rf_debug_of(const rf_options *o) {
  bool on = rf_options_knows(o, "debug") && rf_options_flag(o, "debug");
  return (rf_run_debug){.poison = on, .find_nan = on};
}

/* A user who gives a shape such as gpt:layers=4 expects random weights. A user who gives the name
 * of a preset may expect trained weights, and gets a note. */
void rf_note_random(const rf_model *model, const char *weights_folder, const rafter_sink *sink) {
  if (!sink || *weights_folder || !rf_model_preset_source(model->name)) return;
  const char *hub = rf_model_preset_hub(model->name);
  rf_note(sink, "%s is a preset without weights: random weights%s%s%s\n", model->name,
          hub ? "; `rafter pull " : "", hub ? hub : "", hub ? "` fetches some" : "");
}

static rf_infer_settings infer_of(const rf_settings *s, const rf_options *o, const rafter_sink *sink) {
  rf_plan_options plan = s->plan;
  bool xla = !strcmp(rf_options_text_or(o, "backend", ""),
                     "xla"); /* forward passes of XLA always have the maximum number of rows */
  rf_device_listen(&plan.device, sink);
  return (rf_infer_settings){.model = s->model,
                             .plan = plan,
                             .weights_folder = s->weights_folder,
                             .seed = (uint64_t)rf_options_int(o, "seed"),
                             .debug = rf_debug_of(o),
                             .no_sharing = rf_options_knows(o, "no-prefix-cache") &&
                                           rf_options_flag(o, "no-prefix-cache"),
                             .step_growth = xla ? 0 : rf_options_float_or(o, "step-growth", 0),
                             .progress = sink ? rf_load_bar(sink) : (rf_progress){0}};
}

/* Returns RAFTER_INVALID if a token id has different texts in the draft model and in the large
 * model. Models without a tokenizer are not compared. */
static rf_status same_tokens(const rf_settings *s, const rf_settings *drafter, rf_error *error) {
  rf_tokenizer *a = NULL, *b = NULL;
  rf_status status = RAFTER_OK;
  if (rf_tokenizer_for(s->model.name, s->model.vocab, s->weights_folder, &a, NULL) == RAFTER_OK &&
      rf_tokenizer_for(drafter->model.name, drafter->model.vocab, drafter->weights_folder, &b, NULL) ==
          RAFTER_OK) {
    int64_t most =
        rf_tokenizer_vocab(a) < rf_tokenizer_vocab(b) ? rf_tokenizer_vocab(a) : rf_tokenizer_vocab(b);
    for (int32_t id = 0; id < most && status == RAFTER_OK; id++) {
      rf_span x = rf_tokenizer_text_of(a, id), y = rf_tokenizer_text_of(b, id);
      if (x.bytes == y.bytes && !memcmp(x.at, y.at, x.bytes)) continue;
      status =
          RF_FAIL(error, RAFTER_INVALID, "choose a smaller model of the same family, or --speculate ngram",
                  "the draft model has another tokenizer (--speculate, token %d: expected \"%.*s\", got "
                  "\"%.*s\")",
                  id, (int)(x.bytes < 40 ? x.bytes : 40), x.at, (int)(y.bytes < 40 ? y.bytes : 40), y.at);
    }
  }
  rf_tokenizer_close(a);
  rf_tokenizer_close(b);
  return status;
}

/* Makes the settings of the draft model. The settings stay in memory as long as the generator
 * exists. */
typedef struct drafter_settings {
  rf_settings resolved;
  rf_infer_settings infer;
} drafter_settings;

static rf_status open_with_drafter(const rf_settings *s, const rf_options *o, const rafter_sink *sink,
                                   rf_infer_settings *settings, rf_generator **g, rf_error *error) {
  drafter_settings *d = calloc(1, sizeof *d);
  if (!d) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while opening a draft model");
  rf_status status = rf_settings_resolve_drafter(o, s, &d->resolved, error);
  if (status == RAFTER_OK) status = same_tokens(s, &d->resolved, error);
  if (status == RAFTER_OK) {
    rf_note_random(&d->resolved.model, d->resolved.weights_folder, sink);
    d->infer = infer_of(&d->resolved, o, sink);
    settings->drafter = &d->infer;
    status = rf_generator_open(settings, g, error);
  }
  if (status == RAFTER_OK) (*g)->kept = d;
  else free(d);
  return status;
}

rf_status rf_open_generator(const rf_settings *s, const rf_options *o, const rafter_sink *sink,
                            rf_generator **g, rf_error *error) {
  rf_infer_settings settings = infer_of(s, o, sink);
  rf_note_random(&s->model, s->weights_folder, sink);
  if (rf_drafter_given(o)) RF_TRY(open_with_drafter(s, o, sink, &settings, g, error));
  else RF_TRY(rf_generator_open(&settings, g, error));
  rf_status status = rf_generator_require_numbers(*g, error);
  if (status == RAFTER_OK) return status;
  rf_generator_close(*g);
  *g = NULL;
  return status;
}

rf_status rf_open_scorer(const rf_settings *s, const rf_options *o, const rafter_sink *sink,
                         rf_scorer **scorer, rf_error *error) {
  const rf_infer_settings settings = infer_of(s, o, sink);
  rf_note_random(&s->model, s->weights_folder, sink);
  RF_TRY(rf_scorer_open(&settings, scorer, error));
  if ((*scorer)->tokens) return RAFTER_OK;
  rf_scorer_close(*scorer);
  *scorer = NULL;
  return RF_FAIL(error, RAFTER_INVALID, "choose --backend cpu or reference",
                 "the null backend computes no log-probabilities");
}

rf_status rf_begin_journal(rf_journal *journal, const rafter_sink *sink, const rf_options *o,
                           const rf_report_pass *pass, int passes, rf_error *error) {
  char folder[4096] = "";
  journal->as_note = true;
  journal->unlisted = rf_rank_of_job(o) > 0; /* rank 0 keeps the files */
  if (!journal->unlisted) RF_TRY(rf_journal_folder(o, folder, error));
  return rf_journal_begin(journal, sink, o, rf_options_json(o), folder, pass, passes, error);
}

rf_status rf_ids_given(const rf_options *o, const char *option, int64_t vocab, rf_ids *ids, rf_error *error) {
  int count = 0;
  const int64_t *id = rf_options_list(o, option, &count);
  for (int i = 0; i < count; i++) {
    if (id[i] >= vocab)
      return RF_FAIL(error, RAFTER_INVALID, "the ids belong to another tokenizer",
                     "token out of range (--%s, token %d: expected an id below %lld, got %lld)", option, i,
                     (long long)vocab, (long long)id[i]);
    RF_TRY(rf_ids_add(ids, (int32_t)id[i], error));
  }
  return RAFTER_OK;
}

rf_status rf_stop_given(const rf_options *o, rf_stop *stop, rf_error *error) {
  int count = 0;
  const char *const *texts = rf_options_texts(o, "stop", &count);
  return rf_stop_of(texts, count, stop, error);
}

const rf_option RF_CHAT_OPTIONS[] = {
    RF_WORDS("system", TEXT, "TEXT", NULL, "Prompt", "system message at the start of the conversation"),
    RF_WORDS("template", PATH, "FILE", NULL, "Prompt",
             "chat template; none: the plain text of all messages; unset: the model's own"),
    {.name = NULL},
};

const rf_option RF_STOP_OPTIONS[] = {
    RF_WORDS("stop", TEXTS, "TEXT", NULL, "Sampling",
             "text that ends an answer and is left out of it; may be repeated"),
    RF_FLAG("ignore-eos", "Sampling", "continue after the end-of-text token"),
    {.name = NULL},
};

const rf_option RF_SAMPLING_OPTIONS[] = {
    RF_NUMBER("top-k", INT, NULL, 0, 1 << 24, "0", "Sampling", "choose among the k likeliest tokens; 0: all"),
    RF_NUMBER("top-p", FLOAT, NULL, 0, 1, "1", "Sampling",
              "choose among the likeliest tokens whose probabilities sum to this value"),
    RF_NUMBER("min-p", FLOAT, NULL, 0, 1, "0", "Sampling",
              "drop tokens less likely than this fraction of the likeliest token's probability"),
    RF_NUMBER("repetition-penalty", FLOAT, NULL, 0, 100, "1", "Sampling",
              "divisor of the logits of all tokens in the prompt and the answer; 1: none"),
    {.name = NULL},
};
