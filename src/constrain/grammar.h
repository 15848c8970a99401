/* grammar.h - a grammar as a network of states. An edge reads one byte of a range, reads nothing,
 * or calls a rule and continues in a state after the rule. So values may be nested to any depth. */
#ifndef RF_GRAMMAR_H
#define RF_GRAMMAR_H

#include "base/base.h"

/* Bounds of one grammar. docs/serve.md lists them. */
enum {
  RF_GRAMMAR_STATES = 1 << 16,
  RF_GRAMMAR_EDGES = 1 << 18,
  RF_GRAMMAR_DEPTH = 48, /* maximum number of calls that are open at the same time */
  RF_GRAMMAR_NEVER = 255 /* see `need` */
};

typedef enum rf_arc_kind { RF_ARC_SKIP, RF_ARC_BYTES, RF_ARC_CALL } rf_arc_kind;

typedef struct rf_arc {
  int32_t to;
  /* CALL: the first state of the rule; `to` is the state after the end of the rule */
  int32_t rule;
  int32_t next;            /* the next edge of the same state; -1: no next edge */
  uint8_t kind, low, high; /* BYTES: low to high */
} rf_arc;

typedef struct rf_grammar {
  rf_arc *edge;
  int32_t *first; /* (states) first edge; -1: none */
  /* (states) Number of calls that must be open at once to reach the end of the state's rule.
   * RF_GRAMMAR_NEVER: the end cannot be reached. See rf_grammar_finish. */
  uint8_t *need;
  bool *ends; /* (states) the last state of a rule */
  int32_t states, edges, state_room, edge_room;
  int32_t start;
  bool full;             /* a bound was exceeded, so the grammar cannot be used */
  bool free;             /* the grammar has free text, which may contain special tokens as spelled */
  uint8_t class_of[256]; /* class of each byte; bytes of a class have the same edges everywhere */
  uint8_t byte_of[256];  /* (classes) a byte of each class */
  int classes;
} rf_grammar;

void rf_grammar_free(rf_grammar *grammar);
/* The first state of a grammar is 0, and no edge enters it. After a bound is exceeded, new states
 * are 0 and nothing is added. */
int32_t rf_grammar_state(rf_grammar *grammar);
int32_t rf_grammar_end(rf_grammar *grammar); /* a state that ends a rule */
void rf_grammar_skip(rf_grammar *grammar, int32_t from, int32_t to);
void rf_grammar_bytes(rf_grammar *grammar, int32_t from, int low, int high, int32_t to);
void rf_grammar_call(rf_grammar *grammar, int32_t from, int32_t rule, int32_t to);
/* Adds the bytes of a text after `from`, and returns the state after them. */
int32_t rf_grammar_text(rf_grammar *grammar, int32_t from, const char *text, size_t bytes);
/* Like rf_grammar_text, but shares the states of texts that were added from `from` before. `from`
 * may have only edges that this function added. */
int32_t rf_grammar_share(rf_grammar *grammar, int32_t from, const char *text, size_t bytes);
/* Computes `need` and the classes. Ignores edges whose byte has has[byte] == false. RAFTER_INVALID:
 * a bound was exceeded, or no text has this form. */
rf_status rf_grammar_finish(rf_grammar *grammar, const bool has[256], rf_error *error);

/* ---- regex.c --------------------------------------------------------------------------------- */

/* How the text of a regular expression is written in the answer. */
typedef enum rf_regex_form {
  RF_REGEX_PLAIN,  /* written as UTF-8; the expression must match the whole text */
  RF_REGEX_STRING, /* written inside a JSON string; the expression must match the whole text */
  RF_REGEX_SEARCH, /* written inside a JSON string; without ^ and $, other text may surround the match */
} rf_regex_form;
/* Adds an expression between two states. `where` names the expression in errors. RAFTER_INVALID:
 * the expression is wrong or uses an unsupported part, which the error names. */
rf_status rf_regex_add(rf_grammar *grammar, const char *regex, size_t bytes, rf_regex_form form,
                       const char *where, int32_t from, int32_t to, rf_error *error);

/* ---- chars.c --------------------------------------------------------------------------------- */

/* A set of Unicode characters: sorted ranges that do not touch. */
typedef struct rf_chars {
  struct rf_char_range {
    uint32_t low, high;
  } * range;
  int count, room;
} rf_chars;
void rf_chars_free(rf_chars *set);
void rf_chars_add(rf_chars *set, uint32_t low, uint32_t high);
void rf_chars_invert(rf_chars *set);
/* Adds edges that read one character of the set. If `string` is true, the characters are inside a
 * JSON string. */
void rf_grammar_chars(rf_grammar *grammar, int32_t from, const rf_chars *set, bool string, int32_t to);

/* ---- number.c -------------------------------------------------------------------------------- */

/* maximum number of digits of an integer, before the point, and after the point */
enum { RF_NUMBER_DIGITS = 15 };

/* Bounds of a number, as decimal numbers. */
typedef struct rf_number_range {
  double low, high;
  bool has_low, has_high;
  bool above, below; /* true: the bound itself is excluded */
} rf_number_range;
/* Adds a JSON number in the range. RAFTER_INVALID: no number is in the range, or a bound has too
 * many digits. */
rf_status rf_number_add(rf_grammar *grammar, const rf_number_range *range, bool integer, const char *where,
                        int32_t from, int32_t to, rf_error *error);

/* ---- schema.c -------------------------------------------------------------------------------- */

/* Adds the JSON values that a schema allows. RAFTER_INVALID: the error names the keyword and its
 * place. */
struct json_t;
rf_status rf_schema_add(rf_grammar *grammar, const struct json_t *schema, int32_t from, int32_t to,
                        rf_error *error);
/* Adds any JSON object. */
void rf_schema_add_object(rf_grammar *grammar, int32_t from, int32_t to);

/* ---- parts.c --------------------------------------------------------------------------------- */

/* Adds a part of a form. rafter.h describes at RAFTER_FORM_PARTS which texts match a part.
 * RAFTER_INVALID: the part is wrong, or it contains a wrong schema or a wrong expression. */
rf_status rf_parts_add(rf_grammar *grammar, const struct json_t *part, int32_t from, int32_t to,
                       rf_error *error);

#endif
