/* options.h - the options engine. The engine reads tables of options, which are in the files that
 * use the options. The engine checks arguments, and makes --help, the man page, completions and the
 * JSON record. */
#ifndef RF_OPTIONS_H
#define RF_OPTIONS_H

#include <jansson.h>

#include "base/base.h"

typedef enum rf_option_type {
  RF_OPTION_FLAG,     /* the option has no value, as --json; --json=false switches it off */
  RF_OPTION_INT,      /* 8 */
  RF_OPTION_SIZE,     /* bytes: 16GiB, 16GB, 1048576 */
  RF_OPTION_DURATION, /* seconds: 1.5s, 20ms, 2m, 1h, 90 */
  RF_OPTION_TOKENS,   /* 4096, 4k (= 4096) */
  RF_OPTION_COUNT,    /* 1000, 2M (= 2e6), 15T */
  RF_OPTION_FLOAT,    /* 3e-4 */
  RF_OPTION_CHOICE,   /* one of `choices` */
  RF_OPTION_TEXT,
  RF_OPTION_PATH,
  RF_OPTION_TEXTS,  /* may be repeated */
  RF_OPTION_LIST,   /* list of whole numbers: 1,2,4 or 1..256 (doubling) or 64..132:4 (in steps of 4) */
  RF_OPTION_FLOATS, /* list of numbers with fractions: 0.5,1,2.5 or 0.25..8 or 0.5..2:0.5 */
  /* The value is OPTION=LIST, where OPTION is an option of the same command. LIST has numbers or
   * choices. MODEL=a,b varies the model. MODEL:KEY=LIST varies the field KEY of the model's
   * shape. */
  RF_OPTION_SWEEP
} rf_option_type;

typedef struct rf_option {
  const char *name;
  rf_option_type type;
  /* word for the value in --help, such as "BYTES"; NULL: the usual word for the type */
  const char *unit;
  double least, most;   /* minimum and maximum of a number; if both are 0, it has no bounds */
  const char *fallback; /* default value, as a user would type it; NULL: the option is unset */
  const char *choices;  /* "a|b|c". In "a|b:TEXT", the last choice takes a text after the colon. */
  const char *heading;  /* heading under which --help lists the option, such as "Training" */
  /* Help text of the option. Line 1 begins with a noun or a verb. --help prints line 1, and
   * --help-all prints all lines. */
  const char *help;
  bool bare; /* true if the option may be typed without a value */
  bool pair; /* for TEXTS: true if two values may follow the name */
} rf_option;

/* Entries of an option table. An empty entry ends the table: {.name = NULL}. */
#define RF_FLAG(name, heading, help) \
  { name, RF_OPTION_FLAG, NULL, 0, 0, "false", NULL, heading, help, false, false }
#define RF_CHOICE(name, choices, fallback, heading, help) \
  { name, RF_OPTION_CHOICE, NULL, 0, 0, fallback, choices, heading, help, false, false }
#define RF_NUMBER(name, type, unit, least, most, fallback, heading, help) \
  { name, RF_OPTION_##type, unit, least, most, fallback, NULL, heading, help, false, false }
#define RF_WORDS(name, type, unit, fallback, heading, help) \
  { name, RF_OPTION_##type, unit, 0, 0, fallback, NULL, heading, help, false, false }

/* A table of options that a command takes. The command may take only some entries of the table. */
typedef struct rf_option_use {
  const rf_option *rows;
  const char *only; /* names of the entries to use, such as "threads cpu"; NULL: all entries */
} rf_option_use;

typedef struct rf_command {
  const char *name;
  const char *arguments; /* "MODEL", "FILE", "" */
  int least, most;       /* minimum and maximum number of arguments */
  const char *group;     /* heading of the command in `rafter --help`, such as "Run" */
  const char *help;
  /* An entry whose `rows` is NULL ends the list. Every option name occurs once in the tables. */
  rf_option_use options[18];
  /* names of the options that --help prints, in this order, such as "batch seq"; NULL: all
   * options */
  const char *common;
  const char *examples[5]; /* the text that follows `rafter`, with a comment after '#'; NULL ends the list */
  rafter_status (*run)(const struct rafter_job *job, const struct rafter_sink *sink, rf_error *error);
} rf_command;

/* A short form of an option, such as "-p" for "--prompt". If `name` is NULL, the value is the
 * argument MODEL. */
typedef struct rf_short_form {
  char letter;
  const char *name;
} rf_short_form;
typedef struct rf_commands {
  const rf_command *const *command;
  int count;
  const struct rf_synonym *synonyms; /* options of other programs, for hints; NULL: the program has none */
  const rf_short_form *short_forms;  /* a form with letter 0 ends the list; NULL: the program has none */
} rf_commands;

/* Writes at most `capacity` options of a command to `row`. Returns the number of options that the
 * command has. */
int rf_command_options(const rf_command *command, const rf_option **row, int capacity);
const rf_command *rf_command_named(const rf_commands *commands, const char *name);

typedef struct rf_options rf_options;
typedef enum rf_option_source {
  RF_OPTION_UNSET,
  RF_OPTION_DEFAULT,
  RF_OPTION_CONFIG,
  RF_OPTION_GIVEN
} rf_option_source;

/* Returns the options of a command, with their default values. If the command is unknown, the error
 * names the command most similar to `command`. */
rf_status rf_options_new(const rf_commands *commands, const char *command, rf_options **options,
                         rf_error *error);
void rf_options_free(rf_options *options);
rf_options *rf_options_copy(const rf_options *options);

/* Reads the arguments that follow the command. `--` ends the options. Typed options override
 * --config. An error names the option and its bounds. If an option is unknown, the error names a
 * similar option. */
rf_status rf_options_parse(rf_options *options, int argc, char *const *argv, rf_error *error);
/* Sets one option from a text, in the way in which a typed text sets it. "MODEL" is the name of the
 * argument. "MODEL:KEY" is the name of a field of the model's shape. */
rf_status rf_options_set(rf_options *options, const char *name, const char *text, rf_error *error);
rf_status rf_options_set_int(rf_options *options, const char *name, int64_t number, rf_error *error);
/* Reads options from a JSON object. The options are the object itself or, as in run.json, its field
 * "options". Names may have '_' in place of '-'. The name "model" stands for the argument MODEL.
 * Options of other commands are skipped. */
rf_status rf_options_read_json(rf_options *options, const json_t *json, const char *where, rf_error *error);
rf_status rf_options_read_file(rf_options *options, const char *path, rf_error *error);

/* These functions read values. If the command does not have the option, these functions abort the
 * program, because this is an error in the program. Unset numbers are 0, and unset texts are
 * NULL. */
rf_option_source rf_options_source(const rf_options *options, const char *name);
bool rf_options_is_set(const rf_options *options, const char *name); /* has a value or a default */
/* True if the value comes from the command line, from a config file or from rf_options_set. */
bool rf_options_given(const rf_options *options, const char *name);
/* Like rf_options_given, but ignores config files, because they may have options of other jobs. */
bool rf_options_is_typed(const rf_options *options, const char *name);
bool rf_options_knows(const rf_options *options, const char *name);
bool rf_options_flag(const rf_options *options, const char *name);
int64_t rf_options_int(const rf_options *options, const char *name); /* INT, SIZE, TOKENS, COUNT */
/* for FLOAT, DURATION and the types of rf_options_int */
double rf_options_float(const rf_options *options, const char *name);
/* Index of the value in the option's list of choices. -1: the option is unset. */
int rf_options_choice(const rf_options *options, const char *name);
/* The value as the user typed it, or the default, for options of any type. If the type is TEXTS,
 * commas join the values. */
const char *rf_options_text(const rf_options *options, const char *name);
/* These functions return `otherwise` if the option is unset or if the command does not have it. */
int64_t rf_options_int_or(const rf_options *options, const char *name, int64_t otherwise);
double rf_options_float_or(const rf_options *options, const char *name, double otherwise);
const char *rf_options_text_or(const rf_options *options, const char *name, const char *otherwise);
const char *const *rf_options_texts(const rf_options *options, const char *name, int *count);
const int64_t *rf_options_list(const rf_options *options, const char *name, int *count);
const double *rf_options_floats(const rf_options *options, const char *name, int *count);
bool rf_options_bare(const rf_options *options, const char *name); /* true: given without a value */
int rf_options_argument_count(const rf_options *options);
/* text of the argument; NULL: the argument is missing */
const char *rf_options_argument(const rf_options *options, int index);
const char *rf_options_command(const rf_options *options);
const rf_commands *rf_options_commands(const rf_options *options); /* list of all commands of the program */
int rf_options_count(const rf_options *options);
const char *rf_options_name(const rf_options *options, int index);

/* Gets the option that --sweep varies, and the texts of its values. Returns the number of values.
 * 0: --sweep is unset. */
int rf_options_sweep(const rf_options *options, const char *name, const char **option,
                     const char *const **values);

/* Returns all options that have a value: numbers (in bytes or seconds), texts and arrays. */
json_t *rf_options_json(const rf_options *options);

/* ---- texts made from the tables: malloc'ed --------------------------------------------------- */

/* The help text of one command. If `command` is NULL, the help is the list of all commands. If
 * `all` is true, the help has every option, and otherwise only the common options. Lines have at
 * most `width` columns. */
char *rf_options_help(const rf_commands *commands, const char *command, bool all, int width);
char *rf_options_man(const rf_commands *commands); /* man page, roff */
/* Completions for a shell. `shell` is bash, zsh or fish. NULL: the shell is another one, or memory
 * ran out. */
char *rf_options_completion(const rf_commands *commands, const char *shell);

rf_status rf_parse_size(const char *text, int64_t *bytes, rf_error *error);
rf_status rf_parse_duration(const char *text, double *seconds, rf_error *error);
rf_status rf_parse_tokens(const char *text, int64_t *tokens, rf_error *error);
rf_status rf_parse_count(const char *text, int64_t *count, rf_error *error);
/* Parses `1,2,4`, `1..256`, `64..132:4`, and such texts joined by commas. Writes at most `capacity`
 * values. */
rf_status rf_parse_list(const char *text, int64_t *values, int capacity, int *count, rf_error *error);
/* Parses lists of numbers above 0, with fractions, such as `0.5,1`, `0.25..8` and `0.5..2:0.5`. */
rf_status rf_parse_floats(const char *text, double *values, int capacity, int *count, rf_error *error);

#endif
