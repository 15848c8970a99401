/* answers.h - functions that the answering commands share: resolving MODEL, and encoding
 * conversations as token ids. */
#ifndef RF_ANSWERS_H
#define RF_ANSWERS_H

#include "api/sampling.h"

#include "generate/reply.h"
#include "generate/score.h"
#include "journal/journal.h"
#include "text/chat.h"
#include "text/tokenizer.h"

/* Copies `options` and sets MODEL to `model`. If `model` is a run, sets MODEL to the run's newest
 * checkpoint. Free with rf_options_free(). */
rf_status rf_options_with_model(const rf_options *options, const char *model, rf_options **copy,
                                rf_error *error);

/* Gets the chat template: --template, or else the model's own template. */
rf_status rf_chat_of(const rf_options *options, const rf_settings *settings, const rf_tokenizer *tokenizer,
                     rf_chat **chat, rf_error *error);
/* Renders a conversation with the chat template. If `opens_answer`, adds the beginning of the
 * assistant's turn. Free the text with rf_rendered_free(). */
rf_status rf_chat_text(const rf_chat *chat, const json_t *messages, bool opens_answer, rf_rendered *rendered,
                       rf_error *error);
/* Renders a conversation with the chat template and encodes it as token ids. */
rf_status rf_chat_encode(const rf_chat *chat, const rf_tokenizer *tokenizer, const json_t *messages,
                         bool opens_answer, rf_ids *ids, rf_error *error);

/* Opens a generator or a scorer with --seed and --debug. `sink` shows the progress of loading and
 * may be NULL. Fails on the null backend, which computes nothing. */
rf_status rf_open_generator(const rf_settings *settings, const rf_options *options, const rafter_sink *sink,
                            rf_generator **generator, rf_error *error);
rf_status rf_open_scorer(const rf_settings *settings, const rf_options *options, const rafter_sink *sink,
                         rf_scorer **scorer, rf_error *error);
rf_run_debug rf_debug_of(const rf_options *options);
/* Begins the journal of a command that writes a run folder only if --out or --trace is set. Call
 * this function after all checks of the input. */
rf_status rf_begin_journal(rf_journal *journal, const rafter_sink *sink, const rf_options *options,
                           const rf_report_walk *walk, int walks, rf_error *error);
/* Appends a JSON list of token ids below `vocab`. Errors name the source of the list: `where`. */
rf_status rf_ids_of_json(const json_t *list, int64_t vocab, const char *where, rf_ids *ids, rf_error *error);
/* Appends the token ids of a list option, such as --tokens. */
rf_status rf_ids_given(const rf_options *options, const char *option, int64_t vocab, rf_ids *ids,
                       rf_error *error);
/* Stop texts from a list, or from --stop. Free with rf_stop_close(). */
rf_status rf_stop_of(const char *const *texts, int count, rf_stop *stop, rf_error *error);
rf_status rf_stop_given(const rf_options *options, rf_stop *stop, rf_error *error);

/* RF_CHAT_OPTIONS: --system and --template. RF_STOP_OPTIONS: --stop and --ignore-eos. */
extern const rf_option RF_CHAT_OPTIONS[], RF_STOP_OPTIONS[];

#endif
