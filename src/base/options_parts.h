/* options_parts.h - the values of rf_options, for the files options*.c. */
#ifndef RF_OPTIONS_PARTS_H
#define RF_OPTIONS_PARTS_H

#include <stdio.h>

#include "base/options.h"

typedef struct value {
  rf_option_source source;
  bool bare;
  /* value of INT, SIZE, TOKENS, COUNT and FLAG, or the index of a CHOICE */
  int64_t whole;
  double real; /* value of FLOAT and DURATION; for other numbers, `whole` as a double */
  int count;   /* number of texts or of list entries */
  /* text[0] is the value as the user typed it. For TEXTS, there is one entry for each value. For
   * SWEEP, the entries are the typed text, the name of the varied option, and the values of this
   * option. */
  char **text;
  int64_t *list;
  double *floats;
} value;

struct rf_options {
  const rf_commands *commands;
  const rf_command *command;
  const rf_option **row;
  value *values; /* values of the options, one for each entry of `row` */
  int count;
  int argument_count;
  rf_option_source argument_source;
  char **argument;
  char *joined; /* text that rf_options_text last returned for a TEXTS option */
};

enum { RF_OPTION_ROWS = 256 }; /* maximum options of a command */
/* Returns the word for an option's value in help: "N", "BYTES". */
const char *rf_option_unit(const rf_option *row);
/* Returns the text that the function `put` prints. The text is malloc'ed, or NULL. */
char *rf_options_print(void (*put)(FILE *out, const rf_commands *commands), const rf_commands *commands);

/* Frees the texts and lists of a value, and sets it to 0. */
void rf_value_clear(value *v);
/* Compares names of options; '_' equals '-'. */
bool rf_options_same_name(const char *a, const char *b);
/* Returns the index of the option `name` in o->row, or -1. */
int rf_options_find(const rf_options *o, const char *name);
bool rf_options_any_has(const rf_commands *commands, const char *name);
/* Sets option `i`. Values of a TEXTS option from the same source accumulate. Values of other
 * options are replaced. */
rf_status rf_options_set_row(rf_options *o, int i, const char *text, rf_option_source source,
                             rf_error *error);
void rf_options_add_argument(rf_options *o, const char *text, rf_option_source source);
/* Fills the error for an option that the command does not have. `where` begins the message. */
rf_status rf_options_unknown(const rf_options *o, const char *name, const char *where, rf_error *error);

#endif
