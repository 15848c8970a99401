/* answers.h - functions for commands that generate or score. The functions read MODEL, prompts and
 * sampling settings from options, and open a generator or a scorer. */
#ifndef RF_ANSWERS_H
#define RF_ANSWERS_H

#include "api/api.h"
#include "generate/prompts.h"
#include "generate/score.h"
#include "journal/journal.h"
#include "model/fingerprint.h"

/* Copies `options` and sets MODEL to `model`. If `model` is a run, sets MODEL to the run's newest
 * checkpoint. Free with rf_options_free(). */
rf_status rf_options_with_model(const rf_options *options, const char *model, rf_options **copy,
                                rf_error *error);

/* Opens a prompt reader for the model of `settings`, with --template and --system. */
rf_prompt_reader rf_reader_of(const rf_options *options, const rf_settings *settings);
/* Sets the numbers and the seed of `sampling` from the options. Does not change the lists of
 * `sampling`. */
void rf_sampling_typed(const rf_options *options, rf_sampler_options *sampling);
/* Like rf_sampling_typed. If an option is not given, takes its value from generation_config.json,
 * and prints a note to the sink. */
rf_status rf_sampling_of(const rf_options *options, const rf_settings *settings, const rafter_sink *sink,
                         rf_sampler_options *sampling, rf_error *error);
/* Reads the prompts and settings that the options name, and sets the context and the batch of
 * `settings`. The message of RAFTER_INVALID names the option. The message of RAFTER_FAILED names
 * the file, line and field. */
rf_status rf_prompts_given(const rf_options *options, const rafter_sink *sink, rf_settings *settings,
                           rf_prompt_reader *reader, rf_prompts *prompts, rf_error *error);

/* Opens a generator or a scorer with --seed and --debug. `sink` shows the progress of loading and
 * may be NULL. Fails on the backend `null`, because it computes nothing. */
rf_status rf_open_generator(const rf_settings *settings, const rf_options *options, const rafter_sink *sink,
                            rf_generator **generator, rf_error *error);
rf_status rf_open_scorer(const rf_settings *settings, const rf_options *options, const rafter_sink *sink,
                         rf_scorer **scorer, rf_error *error);
rf_run_debug rf_debug_of(const rf_options *options);
/* Writes a fingerprint of the weights of MODEL and --adapter. `model` is MODEL as the user typed it.
 * RAFTER_FAILED: a file cannot be read. */
rf_status rf_model_text(const rf_settings *settings, const char *model, char text[RF_FINGERPRINT_TEXT],
                        rf_error *error);
/* Prints a note if the model is a preset without files, whose weights are random. */
void rf_note_random(const rf_model *model, const char *weights_folder, const rafter_sink *sink);
/* Begins the journal of a command that writes a run folder only if --out or --trace is set. Call
 * rf_begin_journal after all checks of the input. */
rf_status rf_begin_journal(rf_journal *journal, const rafter_sink *sink, const rf_options *options,
                           const rf_report_pass *pass, int passes, rf_error *error);
/* Appends the token ids of a list option, such as --tokens. */
rf_status rf_ids_given(const rf_options *options, const char *option, int64_t vocab, rf_ids *ids,
                       rf_error *error);
/* The stop texts of --stop. Free with rf_stop_close(). */
rf_status rf_stop_given(const rf_options *options, rf_stop *stop, rf_error *error);

/* Required form of answers, from --json-schema, --regex or --choice. {0}: answers may have any
 * form. */
typedef struct rf_given_form {
  struct rf_constraints *all;
  struct rf_constraint *of; /* for rf_sampler_options.constraint; NULL: any form */
  uint64_t key;             /* hash of the form; 0: any form */
} rf_given_form;
/* Reads the form from the options. Opens the tokenizer of `reader`, because a form needs the texts
 * of tokens. The end ids of `reader` must be set. Returns RAFTER_INVALID if several forms are
 * given, or if the form cannot be compiled. Close the form after the generator. */
rf_status rf_given_form_open(const rf_options *options, rf_prompt_reader *reader, rf_given_form *form,
                             rf_error *error);
void rf_given_form_close(rf_given_form *form);

/* Tables of options: for chats (--system, --template), for stop texts (--stop, --ignore-eos), for
 * sampling (--top-k and the other numbers of RF_SAMPLING) and for forms. */
extern const rf_option RF_CHAT_OPTIONS[], RF_STOP_OPTIONS[], RF_SAMPLING_OPTIONS[], RF_FORM_OPTIONS[];

#endif
