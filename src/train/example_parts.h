/* example_parts.h - shared by example.c and example_two.c. Private to src/train. */
#ifndef RF_EXAMPLE_PARTS_H
#define RF_EXAMPLE_PARTS_H

#include "base/json.h"
#include "train/example.h"

enum {
  RF_ROW_TEXT,
  RF_ROW_TOKENS,
  RF_ROW_MASK,
  RF_ROW_MESSAGES,
  RF_ROW_TOOLS,
  RF_ROW_PROMPT,
  RF_ROW_COMPLETION,
  RF_ROW_CHOSEN,
  RF_ROW_REJECTED,
  RF_ROW_FIELDS
};

struct rf_example_reader {
  rf_example_options options;
  char *names[RF_ROW_FIELDS]; /* names of the fields in the .jsonl file */
  rf_chat *chat;
  bool chat_sought; /* true if the reader has searched for `chat`, because a row needed it */
};

typedef struct rf_row_place {
  const char *path;
  int64_t line;
} rf_row_place;

/* A field of the row. NULL: the field is missing or null. */
json_t *rf_row_field(const rf_example_reader *reader, const json_t *row, int which);
rf_status rf_row_bad_field(const rf_example_reader *reader, rf_row_place place, int which,
                           const char *expected, const json_t *value, rf_error *error);
/* Adds the place of the row to an error. */
rf_status rf_row_located(rf_row_place place, rf_error *error);
rf_status rf_row_need_tokenizer(const rf_example_reader *reader, rf_row_place place, rf_error *error);
/* Opens reader->chat. If the model has no chat template, reader->chat stays NULL. */
rf_status rf_row_seek_chat(rf_example_reader *reader, rf_error *error);
/* Appends the ids of a field to the tokens of the row. */
rf_status rf_row_add_ids(const rf_example_reader *reader, rf_row_place place, int which, const json_t *tokens,
                         rf_ids *ids, rf_error *error);
void rf_row_reserve_mask(rf_example *example);
/* Reads a prompt and a completion, which are two texts or two lists of messages. */
rf_status rf_row_read_pair(rf_example_reader *reader, rf_row_place place, const json_t *row, json_t *prompt,
                           json_t *completion, rf_example *example, rf_error *error);
/* Reads prompt and completion as two texts, without a chat template. */
rf_status rf_row_join_texts(rf_example_reader *reader, const json_t *prompt, const json_t *completion,
                            rf_example *example, rf_error *error);

#endif
