/* example.h - one row of a .jsonl file as tokens, and which of them the loss counts.
 *
 *   {"messages":[{"role","content"},...], "tools"?}   through the chat template; the loss counts
 *     what the assistant wrote, end mark included
 *   {"prompt","completion"}                           texts: through the chat template where
 *     there is one, else one behind the other with the end
 *                                                     mark; lists of messages: one conversation.
 *                                                       The loss counts the completion
 *   {"tokens":[...], "mask":[...]}                    ids; the loss counts those whose mask is 1
 *   {"text"}, {"tokens"}                              plain text: the loss counts everything,
 *     and a long one is split over rows */
#ifndef RF_EXAMPLE_H
#define RF_EXAMPLE_H

#include "text/chat.h"
#include "text/tokenizer.h"

/* What the loss counts of a conversation: every turn of the assistant, its last turn, or all
 * tokens. Of a prompt with its completion the first two both count the completion. */
typedef enum rf_loss_on { RF_LOSS_ON_ASSISTANT, RF_LOSS_ON_COMPLETION, RF_LOSS_ON_ALL } rf_loss_on;

typedef struct rf_example_options {
  const rf_tokenizer *tokenizer; /* NULL: only rows of tokens can be read */
  const char *model_folder;      /* where the model's chat template may be; NULL or "": nowhere */
  const char *template;          /* a template file, or "none"; NULL or "": the model's own */
  int64_t vocab;                 /* every id of a row is below it */
  rf_loss_on loss_on;
  /* "prompt=question,completion=answer": what the rows call theirs; NULL or "": by the names
   * above */
  const char *fields;
} rf_example_options;

typedef struct rf_example {
  rf_ids ids;
  uint8_t *mask; /* one an id; only of an example */
  int64_t mask_capacity;
  bool is_example; /* false: plain text, every token of which counts */
} rf_example;

typedef struct rf_example_reader rf_example_reader;
/* RAFTER_INVALID: `fields` names no field that rows have. The tokenizer must outlive the reader. */
rf_status rf_example_open(const rf_example_options *options, rf_example_reader **reader, rf_error *error);
void rf_example_close(rf_example_reader *reader);
/* Reads one line; {0} is an empty example, and one may be used again. `path` and `line` name the
 * row in errors. No ids: an empty text. */
rf_status rf_example_read(rf_example_reader *reader, const char *path, int64_t line, const char *text,
                          size_t bytes, rf_example *example, rf_error *error);
void rf_example_free(rf_example *example);

#endif
