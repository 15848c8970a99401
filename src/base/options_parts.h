/* options_parts.h - the values of rf_options, for the files options*.c. */
#ifndef RF_OPTIONS_PARTS_H
#define RF_OPTIONS_PARTS_H

#include <stdio.h>

#include "base/options.h"

typedef struct value {
  rf_option_source source;
  bool bare;
  /* the value of INT, SIZE, TOKENS, COUNT and FLAG; the index of a CHOICE */
  int64_t whole;
  double real; /* the value of FLOAT and DURATION; for other numbers, `whole` as a double */
  int count;   /* number of texts or of list entries */
  /* text[0] is the value as typed. TEXTS: one entry for each value. SWEEP: the typed text, then the
   * name of the varied option, then its values. */
  char **text;
  int64_t *list;
  double *floats;
} value;

struct rf_options {
  const rf_commands *commands;
  const rf_command *command;
  const rf_option **row;
  value *values; /* the value of each entry of `row` */
  int count;
  int argument_count;
  rf_option_source argument_source;
  char **argument;
  char *joined; /* text that rf_options_text returned last for a TEXTS option */
};

enum { RF_OPTION_ROWS = 256 }; /* maximum options of a command */
/* The word for an option's value in help: "N", "BYTES". */
const char *rf_option_unit(const rf_option *row);
/* The text that `put` prints, malloc'ed, or NULL. */
char *rf_options_print(void (*put)(FILE *out, const rf_commands *commands), const rf_commands *commands);

/* Frees the texts and lists of a value, and sets it to 0. */
void rf_value_clear(value *v);
/* Compares names of options; '_' equals '-'. */
bool rf_options_same_name(const char *a, const char *b);
/* Index of the option `name` in o->row, or -1. */
int rf_options_find(const rf_options *o, const char *name);
bool rf_options_any_has(const rf_commands *commands, const char *name);
/* Sets option `i`. Values of a TEXTS option from one source accumulate; others are replaced. */
rf_status rf_options_set_row(rf_options *o, int i, const char *text, rf_option_source source,
                             rf_error *error);
void rf_options_add_argument(rf_options *o, const char *text, rf_option_source source);
/* The error of an option that the command does not have. `where` begins the message. */
rf_status rf_options_unknown(const rf_options *o, const char *name, const char *where, rf_error *error);

#endif
