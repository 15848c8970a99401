/* options.h - the options engine: from tables of rows to the parser, validation, --help, the man
 * page, shell completion and the JSON record. The rows are next to the code that reads them. */
#ifndef RF_OPTIONS_H
#define RF_OPTIONS_H

#include <jansson.h>

#include "base/base.h"

typedef enum rf_option_type {
  RF_OPTION_FLAG,     /* --json; --json=false takes it back */
  RF_OPTION_INT,      /* 8 */
  RF_OPTION_SIZE,     /* 16GiB, 16GB, 1048576: bytes */
  RF_OPTION_DURATION, /* 1.5s, 20ms, 2m, 1h, 90: seconds */
  RF_OPTION_TOKENS,   /* 4096, 4k (= 4096) */
  RF_OPTION_COUNT,    /* 1000, 2M (= 2e6), 15T */
  RF_OPTION_FLOAT,    /* 3e-4 */
  RF_OPTION_CHOICE,   /* one of `choices` */
  RF_OPTION_TEXT,
  RF_OPTION_PATH,
  RF_OPTION_TEXTS,  /* may be repeated */
  RF_OPTION_LIST,   /* 1,2,4 or 1..256 (doubling) or 64..132:4 (step) */
  RF_OPTION_FLOATS, /* the same of numbers with fractions: 0.5,1,2.5 or 0.25..8 or 0.5..2:0.5 */
  RF_OPTION_SWEEP   /* OPTION=LIST, OPTION of the same command; OPTION=a,b of choices; MODEL=a,b and
                       MODEL:KEY=LIST of its shape */
} rf_option_type;

typedef struct rf_option {
  const char *name;
  rf_option_type type;
  const char *unit;     /* what the value is, for --help: "N", "BYTES", "SECONDS"; NULL: by type */
  double least, most;   /* of numbers; most 0 and least 0: no bounds */
  const char *fallback; /* default, as it would be typed; NULL: unset */
  const char *choices;  /* "a|b|c"; "a|b:TEXT": the last takes a text of its own */
  const char *heading;  /* where --help prints it: "Training" */
  const char *help;     /* a noun or a verb first; after a newline, what --help-all adds */
  bool bare;            /* the value may be left out */
  bool pair;            /* TEXTS: two values may follow the name at once */
} rf_option;

/* Rows of a table; an empty row ends it: {.name = NULL}. */
#define RF_FLAG(name, heading, help) \
  { name, RF_OPTION_FLAG, NULL, 0, 0, "false", NULL, heading, help, false, false }
#define RF_CHOICE(name, choices, fallback, heading, help) \
  { name, RF_OPTION_CHOICE, NULL, 0, 0, fallback, choices, heading, help, false, false }
#define RF_NUMBER(name, type, unit, least, most, fallback, heading, help) \
  { name, RF_OPTION_##type, unit, least, most, fallback, NULL, heading, help, false, false }
#define RF_WORDS(name, type, unit, fallback, heading, help) \
  { name, RF_OPTION_##type, unit, 0, 0, fallback, NULL, heading, help, false, false }

/* A table of rows that a command takes: all of them, or those named. */
typedef struct rf_option_use {
  const rf_option *rows;
  const char *only; /* "threads cpu"; NULL: all */
} rf_option_use;

typedef struct rf_command {
  const char *name;
  const char *arguments; /* "MODEL", "FILE", "" */
  int least, most;       /* how many of them */
  const char *group;     /* of `rafter --help`: "Run" */
  const char *help;
  rf_option_use options[12]; /* rows NULL ends; no name twice */
  const char *common;        /* "batch seq": what --help prints, in this order; NULL: all */
  const char *examples[5];   /* as typed after `rafter`, with a comment after #; NULL ends */
  rafter_status (*run)(const struct rafter_job *job, const struct rafter_sink *sink, rf_error *error);
} rf_command;

/* All commands of a program. */
typedef struct rf_commands {
  const rf_command *const *command;
  int count;
} rf_commands;

/* The rows of a command, at most `capacity` of them: how many there are. */
int rf_command_options(const rf_command *command, const rf_option **row, int capacity);
/* NULL: there is none. */
const rf_command *rf_command_named(const rf_commands *commands, const char *name);

/* ---- the values of one command --------------------------------------------------------------- */

typedef struct rf_options rf_options;
typedef enum rf_option_source {
  RF_OPTION_UNSET,
  RF_OPTION_DEFAULT,
  RF_OPTION_CONFIG,
  RF_OPTION_GIVEN
} rf_option_source;

/* All options of a command at their defaults. RAFTER_INVALID names the nearest command. */
rf_status rf_options_new(const rf_commands *commands, const char *command, rf_options **options,
                         rf_error *error);
void rf_options_free(rf_options *options);
rf_options *rf_options_copy(const rf_options *options);

/* Reads the arguments after the command; `--` ends the options. --config is read first, so that typed
 * options win over the file. RAFTER_INVALID names the option and its bounds, or the nearest one. */
rf_status rf_options_parse(rf_options *options, int argc, char *const *argv, rf_error *error);
/* Sets one option from text, as if it had been typed; also "MODEL" (the argument) and "MODEL:KEY" (a
 * field of its shape). */
rf_status rf_options_set(rf_options *options, const char *name, const char *text, rf_error *error);
/* Reads options from a JSON object: names as on the command line ('_' counts as '-'), "model" for the
 * argument; they may be inside "options", as in run.json. Options of other commands are skipped. */
rf_status rf_options_read_json(rf_options *options, const json_t *json, const char *where, rf_error *error);
rf_status rf_options_read_file(rf_options *options, const char *path, rf_error *error);

/* Values. Asking for an option that the command lacks is a fault of the program and aborts. Unset
 * numbers are 0, unset texts NULL. */
rf_option_source rf_options_source(const rf_options *options, const char *name);
bool rf_options_is_set(const rf_options *options, const char *name); /* it has a value or a default */
/* from the command line, a config file or rf_options_set */
bool rf_options_given(const rf_options *options, const char *name);
/* the same without config files, which may hold what other jobs read */
bool rf_options_is_typed(const rf_options *options, const char *name);
bool rf_options_knows(const rf_options *options, const char *name); /* the command knows it */
bool rf_options_flag(const rf_options *options, const char *name);
int64_t rf_options_int(const rf_options *options, const char *name);  /* INT, SIZE, TOKENS, COUNT */
double rf_options_float(const rf_options *options, const char *name); /* FLOAT, DURATION, and the above */
/* index into the row's choices; -1: unset */
int rf_options_choice(const rf_options *options, const char *name);
/* any type, as typed (defaults too); TEXTS joined by ',' */
const char *rf_options_text(const rf_options *options, const char *name);
/* The same, or `otherwise` where it is unset or the command does not know it. */
int64_t rf_options_int_or(const rf_options *options, const char *name, int64_t otherwise);
double rf_options_float_or(const rf_options *options, const char *name, double otherwise);
const char *rf_options_text_or(const rf_options *options, const char *name, const char *otherwise);
const char *const *rf_options_texts(const rf_options *options, const char *name, int *count);
const int64_t *rf_options_list(const rf_options *options, const char *name, int *count);
const double *rf_options_floats(const rf_options *options, const char *name, int *count);
bool rf_options_bare(const rf_options *options, const char *name); /* given without its value */
int rf_options_argument_count(const rf_options *options);
const char *rf_options_argument(const rf_options *options, int index); /* NULL past the end */
const char *rf_options_command(const rf_options *options);
const rf_commands *rf_options_commands(const rf_options *options); /* its own and the others */
int rf_options_count(const rf_options *options);                   /* of the options it knows */
const char *rf_options_name(const rf_options *options, int index);

/* --sweep: the option it names and the texts to set it to. Count 0: unset. */
int rf_options_sweep(const rf_options *options, const char *name, const char **option,
                     const char *const **values);

/* All options with a value: numbers as numbers (bytes, seconds), lists as arrays.
 * rf_options_read_json reads it. */
json_t *rf_options_json(const rf_options *options);

/* ---- texts made from the tables: malloc'ed --------------------------------------------------- */

/* Of one command; NULL: the list of commands. `all`: every option, not the common ones alone.
 * Lines are at most `width` columns. */
char *rf_options_help(const rf_commands *commands, const char *command, bool all, int width);
char *rf_options_man(const rf_commands *commands);        /* man page, roff */
char *rf_options_completion(const rf_commands *commands); /* bash */

/* ---- pieces, also of use alone --------------------------------------------------------------- */

rf_status rf_parse_size(const char *text, int64_t *bytes, rf_error *error);
rf_status rf_parse_duration(const char *text, double *seconds, rf_error *error);
rf_status rf_parse_tokens(const char *text, int64_t *tokens, rf_error *error);
rf_status rf_parse_count(const char *text, int64_t *count, rf_error *error);
/* `1,2,4`, `1..256`, `64..132:4`, and these joined by commas; at most `capacity` values. */
rf_status rf_parse_list(const char *text, int64_t *values, int capacity, int *count, rf_error *error);
/* The same of numbers above 0 with fractions: `0.5,1`, `0.25..8`, `0.5..2:0.5`. */
rf_status rf_parse_floats(const char *text, double *values, int capacity, int *count, rf_error *error);

#endif
