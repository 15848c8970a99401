/* example.h - reads one row of a .jsonl file as tokens, and marks the tokens that the
 * loss counts.
 * A row has one of these forms.
 *   Form {"messages":[{"role","content"},...], "tools"?}:
 *       The chat template renders the messages. The loss counts the assistant's text and end token.
 *   Form {"prompt","completion"}:
 *       The chat template renders prompt and completion. Without a template, both are joined, and
 *       the end token follows. If both are lists of messages, they form one chat. The loss counts
 *       the completion.
 *   Form {"tokens":[...], "mask":[...]}:
 *       Token ids. The loss counts the tokens with mask 1.
 *   Forms {"text"} and {"tokens"}:
 *       Plain text. The loss counts every token. A long text continues in other rows.
 * A row of preferences has two answers, {"prompt" or "messages","chosen","rejected"}. Prompt and
 * answers are texts, lists of messages, or lists of ids. */
#ifndef RF_EXAMPLE_H
#define RF_EXAMPLE_H

#include "text/chat.h"
#include "text/tokenizer.h"

/* Selects the tokens of a conversation that the loss counts: all turns of the assistant, its last
 * turn, or all tokens. In a prompt with its completion, ASSISTANT and COMPLETION both select the
 * completion. */
typedef enum rf_loss_on { RF_LOSS_ON_ASSISTANT, RF_LOSS_ON_COMPLETION, RF_LOSS_ON_ALL } rf_loss_on;

typedef struct rf_example_options {
  /* tokenizer of the texts; NULL: rows with text cannot be read, only rows of token ids */
  const rf_tokenizer *tokenizer;
  const char *model_folder; /* folder with the chat template of the model; NULL or "": none */
  const char *template;     /* template file, or "none"; NULL or "": the template of the model */
  int64_t vocab;            /* size of the vocabulary; every token id is less than `vocab` */
  rf_loss_on loss_on;
  /* names of the fields, such as "prompt=question,completion=answer"; NULL or "": the names listed
   * above */
  const char *fields;
} rf_example_options;

typedef struct rf_example {
  rf_ids ids;
  uint8_t *mask; /* for each id: 1 if the loss counts the token Set only if is_example. */
  int64_t mask_capacity;
  bool is_example; /* false if the row is plain text, so that the loss counts every token */
} rf_example;

typedef struct rf_example_reader rf_example_reader;
/* RAFTER_INVALID: `fields` has an unknown field. The tokenizer of the options must outlive the
 * reader. */
rf_status rf_example_open(const rf_example_options *options, rf_example_reader **reader, rf_error *error);
void rf_example_close(rf_example_reader *reader);
/* Reads one line into `example`. Before the call, `example` is {0} or has the result of an earlier
 * call. Errors name `path` and `line`. If a text is empty, `example` has no ids. */
rf_status rf_example_read(rf_example_reader *reader, const char *path, int64_t line, const char *text,
                          size_t bytes, rf_example *example, rf_error *error);
/* Reads one line of preferences. two[0] gets the prompt with the chosen answer, and two[1] gets the
 * prompt with the rejected answer. The masks mark the answers. empty[i] is true if an answer has no
 * text. Then two[i] has no ids. Without a prompt, both answers are whole texts or conversations.
 * The common start of both answers is then the prompt. */
rf_status rf_example_read_two(rf_example_reader *reader, const char *path, int64_t line, const char *text,
                              size_t bytes, rf_example two[2], bool empty[2], rf_error *error);
void rf_example_free(rf_example *example);

#endif
