/* answers.h - shared by commands that generate or score: MODEL, prompts and sampling settings from
 * options, and opening a generator or a scorer. */
#ifndef RF_ANSWERS_H
#define RF_ANSWERS_H

#include "api/api.h"
#include "generate/prompts.h"
#include "generate/score.h"
#include "journal/journal.h"

/* Copies `options` and sets MODEL to `model`. If `model` is a run, sets MODEL to the run's newest
 * checkpoint. Free with rf_options_free(). */
rf_status rf_options_with_model(const rf_options *options, const char *model, rf_options **copy,
                                rf_error *error);

/* A reader for the model of `settings`, with --template and --system. */
rf_prompt_reader rf_reader_of(const rf_options *options, const rf_settings *settings);
/* Sets numbers and seed of `sampling` from the options. The lists of `sampling` do not change. */
void rf_sampling_typed(const rf_options *options, rf_sampler_options *sampling);
/* Like rf_sampling_typed. If an option is not given, its value comes from generation_config.json,
 * and a note to the sink says so. */
rf_status rf_sampling_of(const rf_options *options, const rf_settings *settings, const rafter_sink *sink,
                         rf_sampler_options *sampling, rf_error *error);
/* Reads the prompts and settings that the options name, and sets the context and the batch of
 * `settings`. RAFTER_INVALID names the option, RAFTER_FAILED the file, line and field. */
rf_status rf_prompts_given(const rf_options *options, const rafter_sink *sink, rf_settings *settings,
                           rf_prompt_reader *reader, rf_prompts *prompts, rf_error *error);

/* Opens a generator or a scorer with --seed and --debug. `sink` shows the progress of loading and
 * may be NULL. Fails on the null backend, which computes nothing. */
rf_status rf_open_generator(const rf_settings *settings, const rf_options *options, const rafter_sink *sink,
                            rf_generator **generator, rf_error *error);
rf_status rf_open_scorer(const rf_settings *settings, const rf_options *options, const rafter_sink *sink,
                         rf_scorer **scorer, rf_error *error);
rf_run_debug rf_debug_of(const rf_options *options);
/* Prints a note if the model is a preset without files, whose weights are random. */
void rf_note_random(const rf_model *model, const char *weights_folder, const rafter_sink *sink);
/* Begins the journal of a command that writes a run folder only if --out or --trace is set. Call
 * this function after all checks of the input. */
rf_status rf_begin_journal(rf_journal *journal, const rafter_sink *sink, const rf_options *options,
                           const rf_report_pass *pass, int passes, rf_error *error);
/* Appends the token ids of a list option, such as --tokens. */
rf_status rf_ids_given(const rf_options *options, const char *option, int64_t vocab, rf_ids *ids,
                       rf_error *error);
/* The stop texts of --stop. Free with rf_stop_close(). */
rf_status rf_stop_given(const rf_options *options, rf_stop *stop, rf_error *error);

/* The form that answers have, from --json-schema, --regex or --choice. {0}: any. */
typedef struct rf_given_form {
  struct rf_constraints *all;
  struct rf_constraint *of; /* for rf_sampler_options.constraint; NULL: any form */
} rf_given_form;
/* Reads the form, and opens the reader's tokenizer for it. `reader` has its end ids.
 * RAFTER_INVALID: there are several forms, or one that cannot be followed. Close the form after
 * the generator. */
rf_status rf_given_form_open(const rf_options *options, rf_prompt_reader *reader, rf_given_form *form,
                             rf_error *error);
void rf_given_form_close(rf_given_form *form);

/* The options of chats (--system, --template), of stop texts (--stop, --ignore-eos), of sampling
 * (--top-k and the other numbers of RF_SAMPLING) and of forms. */
extern const rf_option RF_CHAT_OPTIONS[], RF_STOP_OPTIONS[], RF_SAMPLING_OPTIONS[], RF_FORM_OPTIONS[];

#endif
