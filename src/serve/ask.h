/* ask.h - reads and checks the JSON body of a request. Clients may be hostile, so every field has a
 * type and bounds. */
#ifndef RF_ASK_H
#define RF_ASK_H

#include "serve/tool_format.h"
#include "serve/wrong.h"

#include <jansson.h>

/* Bounds of a request. docs/serve.md lists them. */
enum {
  RF_ASK_STOPS = 16,
  RF_ASK_STOP_BYTES = 256,
  RF_ASK_TOP = 20, /* top_logprobs */
  RF_ASK_BIASES = 1024,
  RF_ASK_SAMPLES = 128, /* n */
  RF_ASK_SCORES =
      /* maximum of prompt tokens x (alternatives + 1), for prompt_logprobs and for echo with
       * logprobs */
  1 << 18,
  RF_ASK_UNITS = 1 << 20, /* of a body; see rf_ask_units */
  RF_ASK_TOOLS = 1024,
  RF_ASK_TOOL_NAME = 64 /* bytes */
};

typedef enum rf_ask_kind {
  RF_ASK_COMPLETION = 1,
  RF_ASK_CHAT = 2,
  RF_ASK_TOKENIZE = 4,
  RF_ASK_DETOKENIZE = 8,
  RF_ASK_LOAD = 16, /* of an adapter */
  RF_ASK_UNLOAD = 32
} rf_ask_kind;

/* Rules of one server. The server owns the texts. */
typedef struct rf_ask_rules {
  const char *model, *alias; /* names of the model; the alias may be NULL */
  int64_t vocab, context;
  int64_t max_tokens;                 /* default of max_tokens */
  int64_t answers;                    /* maximum number of answers to one request: prompts x n */
  bool strict;                        /* refuse unknown fields */
  rafter_request defaults;            /* default sampling settings */
  struct rf_named_adapters *adapters; /* further models; NULL: none */
  /* `chat_template`: the template for conversations with tools; NULL: none. `knows_tools`: true if
   * the template renders tools. `knows_calls`: true if conversations without tools may have calls,
   * because their template renders tools too. `tool_format`: the template's format of calls; NULL:
   * none. */
  const char *chat_template;
  bool knows_tools, knows_calls;
  const rf_tool_format *tool_format;
} rf_ask_rules;

typedef enum rf_tool_choice {
  RF_TOOLS_AUTO, /* the model decides */
  RF_TOOLS_NONE,
  RF_TOOLS_REQUIRED,
  RF_TOOLS_NAMED /* the tool rf_ask.tool_name */
} rf_tool_choice;

typedef struct rf_ask {
  rf_ask_kind kind;
  json_t *body;           /* body of the request, which owns all its texts */
  rafter_request request; /* request for the generator, without tokens, stop, bias and owner */
  int64_t prompts;   /* number of prompts of a completion, which are texts or lists of ids; otherwise 1 */
  json_t *messages;  /* messages with plain texts, owned; NULL: none */
  const char *model; /* name of the adapter that answers; NULL: the model without an adapter */
  bool seeded;       /* the request gives a seed */
  bool stream, usage, usage_always; /* stream_options: include_usage, continuous_usage_stats */
  bool logprobs, echo, token_ids;
  /* true: the answer lists the prompt's log-probabilities, and prompt_top alternatives of each
   * token */
  bool prompt_logprobs;
  int32_t prompt_top;
  bool scores; /* true: log-probabilities of the prompts are needed, and request.prompt_top is set */
  bool add_special, pieces, opens_answer; /* of /tokenize */
  /* name and folder of the adapter, in requests to load or unload an adapter */
  const char *lora_name, *lora_path;
  const char *stop[RF_ASK_STOPS];
  rafter_logit_bias *bias;
  /* form_field: field of the body that gives the form of the answer; NULL: any form. */
  const char *form_field;
  rafter_form form;
  char *form_text; /* owned */
  size_t form_bytes;
  const json_t *tools; /* tools of the body; NULL: the body has no tools, or tool_choice is "none" */
  rf_tool_choice tool_choice;
  const char *tool_name;
  bool several_calls; /* parallel_tool_calls */
  bool uses_tools;    /* true: a message has calls, or is the result of a call */
  char ignored[400];  /* names of unknown fields, joined by ", " */
} rf_ask;

/* Reads a body. If the request is invalid, returns false and fills `wrong`. The caller frees `ask`
 * in both cases. */
bool rf_ask_read(const rf_ask_rules *rules, rf_ask_kind kind, const char *body, size_t bytes, rf_ask *ask,
                 rf_wrong *wrong);
/* Returns true if `name` names the server's model or an adapter. Otherwise fills `wrong`. *adapter
 * is the adapter's id, or 0 for the model. */
bool rf_ask_model(const rf_ask_rules *rules, const char *param, const char *name, int64_t *adapter,
                  rf_wrong *wrong);
/* Frees what an answer does not need once its prompts are encoded and its form is compiled. */
void rf_ask_trim(rf_ask *ask);
void rf_ask_free(rf_ask *ask); /* {0} is allowed */

/* Returns prompt `index` of a completion as token ids. If the prompt is a text, *ids is NULL, and
 * `body` owns *text. Free *ids with free(). */
bool rf_ask_prompt(const rf_ask_rules *rules, const rf_ask *ask, int64_t index, const char **text,
                   size_t *bytes, int32_t **ids, int64_t *count, rf_wrong *wrong);

/* One row of the table of fields: its name, the kinds of requests that have it, and its reader.
 * Only readers of numbers and flags use `at`, `least` and `most`. */
typedef struct rf_ask_field rf_ask_field;
struct rf_ask_field {
  const char *name;
  unsigned kinds;
  bool (*read)(const rf_ask_rules *rules, const rf_ask_field *field, const json_t *value, rf_ask *ask,
               rf_wrong *wrong);
  size_t at;
  double least, most;
};
extern const rf_ask_field RF_ASK_FIELDS[]; /* the last row has no name */

/* ---- for the files ask*.c -------------------------------------------------------------------- */

/* Fills `wrong` with "FIELD has the wrong type (expected WHAT, got TYPE)" and returns false. */
bool rf_ask_type(rf_wrong *wrong, const char *field, const char *what, const json_t *value);
/* Returns the memory of a JSON text after parsing, in units of about 40 bytes: 1 for a value, 2 for a
 * name, 3 for a list, 6 for an object. */
size_t rf_ask_units(const char *text, size_t bytes);
/* Parses JSON. Integers above 64 bits become doubles, and all other integers stay integers. */
json_t *rf_ask_json(const char *text, size_t bytes, size_t flags, json_error_t *fault);
/* Reads messages into ask->messages, in the form that chat templates expect. */
bool rf_ask_messages(const rf_ask_rules *rules, const json_t *value, rf_ask *ask, rf_wrong *wrong);
/* Reads the calls of an assistant's message, and adds the ids of the calls to the object `ids`.
 * NULL: `wrong` is set. */
json_t *rf_ask_calls(const rf_ask_rules *rules, const json_t *calls, size_t index, json_t *ids,
                     rf_wrong *wrong);
bool rf_ask_wrong_message(rf_wrong *wrong, size_t index, const char *field, const char *what);
/* Read tools and tool_choice. */
bool rf_ask_tools(const rf_ask_rules *rules, const rf_ask_field *field, const json_t *value, rf_ask *ask,
                  rf_wrong *wrong);
bool rf_ask_tool_choice(const rf_ask_rules *rules, const rf_ask_field *field, const json_t *value,
                        rf_ask *ask, rf_wrong *wrong);
/* Checks the fields about tools after all fields are read. If the answer must be a call, sets the
 * form. */
bool rf_ask_check_tools(const rf_ask_rules *rules, rf_ask *ask, rf_wrong *wrong);
/* Sets the fields of templates in `rules`. `plain` renders conversations without tools, and
 * `with_tools` the others. Both may be NULL or equal. */
void rf_ask_take_templates(rf_ask_rules *rules, const char *plain, const char *with_tools);
/* Sets the form of the answer, and takes ownership of the malloc'ed text. A request cannot have two
 * forms. */
bool rf_ask_take_form(rf_ask *ask, const char *field, rafter_form form, char *text, size_t bytes,
                      rf_wrong *wrong);
/* Read response_format and structured_outputs. */
bool rf_ask_response_format(const rf_ask_rules *rules, const rf_ask_field *field, const json_t *value,
                            rf_ask *ask, rf_wrong *wrong);
bool rf_ask_structured(const rf_ask_rules *rules, const rf_ask_field *field, const json_t *value, rf_ask *ask,
                       rf_wrong *wrong);
/* Reads a member of structured_outputs by its older name in vLLM, or by its name in llama-server. */
bool rf_ask_guided(const rf_ask_rules *rules, const rf_ask_field *field, const json_t *value, rf_ask *ask,
                   rf_wrong *wrong);
/* Checks a completion's prompt, or the ids of /detokenize, and counts its prompts. */
bool rf_ask_prompts(const rf_ask_rules *rules, const char *field, const json_t *value, rf_ask *ask,
                    rf_wrong *wrong);

#endif
