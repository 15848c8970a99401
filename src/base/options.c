/* options.c - the checked option values of a command: defaults, a JSON file, arguments. */
#include "base/options_parts.h"

#include <assert.h>
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"

enum { MAX_VALUES = 4096 };

/* ---- small pieces ---------------------------------------------------------------------------- */

static char *copy_of(const char *text) { return rf_must(strdup(text)); }
static void *copy_of_bytes(const void *from, size_t bytes) {
  return from ? memcpy(rf_must(malloc(bytes + 1)), from, bytes) : NULL;
}

void rf_value_clear(value *v) {
  for (int i = 0; v->text && v->text[i]; ++i) free(v->text[i]);
  free(v->text);
  free(v->list);
  free(v->floats);
  memset(v, 0, sizeof *v);
}

/* Appends a copy of `text` to a NULL-terminated array. */
static void push(char ***list, const char *text) {
  int n = 0;
  while (*list && (*list)[n]) ++n;
  *list = rf_must(realloc(*list, (size_t)(n + 2) * sizeof **list));
  (*list)[n] = copy_of(text);
  (*list)[n + 1] = NULL;
}

/* Returns true if two names are equal. '_' and '-' count as the same character. */
bool rf_options_same_name(const char *a, const char *b) {
  for (; *a && *b; ++a, ++b)
    if ((*a == '_' ? '-' : *a) != (*b == '_' ? '-' : *b)) return false;
  return *a == *b;
}

/* True if `name` is in `list`. Blanks separate the names of the list. NULL contains every name. */
static bool is_listed(const char *list, const char *name) {
  size_t length = strlen(name);
  for (const char *at = list; at && *at; at += strspn(at, " ")) {
    size_t n = strcspn(at, " ");
    if (n == length && strncmp(at, name, n) == 0) return true;
    at += n;
  }
  return list == NULL;
}

int rf_command_options(const rf_command *command, const rf_option **row, int capacity) {
  int count = 0;
  for (const rf_option_use *use = command->options; use->rows; ++use)
    for (const rf_option *r = use->rows; r->name; ++r) {
      if (!is_listed(use->only, r->name)) continue;
      if (count < capacity) row[count] = r;
      ++count;
    }
  return count;
}

const rf_command *rf_command_named(const rf_commands *commands, const char *name) {
  for (int i = 0; i < commands->count; ++i)
    if (strcmp(commands->command[i]->name, name) == 0) return commands->command[i];
  return NULL;
}

int rf_options_find(const rf_options *o, const char *name) {
  for (int i = 0; i < o->count; ++i)
    if (rf_options_same_name(o->row[i]->name, name)) return i;
  return -1;
}

bool rf_options_any_has(const rf_commands *commands, const char *name) {
  for (int c = 0; c < commands->count; ++c)
    for (const rf_option_use *use = commands->command[c]->options; use->rows; ++use)
      for (const rf_option *r = use->rows; r->name; ++r)
        if (rf_options_same_name(r->name, name)) return true;
  return false;
}

/* Returns the index of `word` in "a|b|c", or -1. A choice such as "c:NAMES" accepts any text after
 * the colon. The code that reads the option must check this text. */
static int choice_index(const char *choices, const char *word) {
  size_t length = strlen(word);
  for (int i = 0;; ++i) {
    size_t n = strcspn(choices, "|"), head = strcspn(choices, "|:") + 1;
    if (n == length && strncmp(choices, word, n) == 0) return i;
    if (head < n && length > head && strncmp(choices, word, head) == 0) return i;
    if (!choices[n]) return -1;
    choices += n + 1;
  }
}

/* ---- one value from text --------------------------------------------------------------------- */

/* Writes a bound in the form in which people type it: sizes with a binary unit, other large numbers
 * as 2^60 or 1e18. */
static void bound_text(const rf_option *row, double bound, char text[32]) {
  static const char *const UNITS[] = {"", "KiB", "MiB", "GiB", "TiB"};
  double left = bound;
  int unit = 0;
  while (row->type == RF_OPTION_SIZE && unit < 4 && left >= 1024 && fmod(left, 1024) == 0) {
    left /= 1024;
    unit++;
  }
  if (unit) snprintf(text, 32, "%.0f%s", left, UNITS[unit]);
  else if (fabs(bound) >= 1e15 && bound == exp2(round(log2(bound))))
    snprintf(text, 32, "2^%.0f", log2(bound));
  else snprintf(text, 32, fabs(bound) < 1e15 ? "%.15g" : "%.3g", bound);
}

static rf_status out_of_range(const rf_option *row, const char *text, rf_error *error) {
  char least[32], most[32];
  bound_text(row, row->least, least);
  bound_text(row, row->most, most);
  char hint[120];
  snprintf(hint, sizeof hint, "give --%s a value from %s to %s", row->name, least, most);
  return RF_FAIL(error, RAFTER_INVALID, hint, "--%s is out of range (expected %s to %s, got %.60s)",
                 row->name, least, most, text);
}

/* Names of number types in other programs. A name may have several rows. The first row whose word
 * is a valid choice of the option counts. */
static const rf_synonym CHOICE_SYNONYMS[] = {{"bfloat16", "bf16"}, {"fp16", "f16"},     {"fp16", "bf16"},
                                             {"float16", "f16"},   {"float16", "bf16"}, {"half", "f16"},
                                             {"half", "bf16"},     {"float32", "f32"},  {"fp32", "f32"},
                                             {"float", "f32"},     {"f16", "bf16"},     {NULL, NULL}};

/* Appends the options under the same heading that know the choice `text`. For example, --dtype int8
 * may mean --weights. */
static void say_others(const rf_options *o, const rf_option *row, const char *text, char *hint, size_t size) {
  int count = 0;
  for (int i = 0; i < o->count; i++) {
    const rf_option *other = o->row[i];
    if (other->type == RF_OPTION_CHOICE && !strcmp(other->heading, row->heading) &&
        choice_index(other->choices, text) >= 0)
      rf_text_append(hint, size, "%s--%s %s", count++ ? ", " : "; did you mean ", other->name, text);
  }
  if (count) rf_text_append(hint, size, "?");
}

static rf_status parse_choice(const rf_options *o, const rf_option *row, const char *text, value *v,
                              rf_error *error) {
  v->whole = choice_index(row->choices, text);
  if (v->whole >= 0) return RAFTER_OK;
  char words[256], hint[512];
  const char *names[32];
  int n = 0;
  snprintf(words, sizeof words, "%s", row->choices);
  for (char *rest = words, *word; n < 32 && (word = strsep(&rest, "|"));) names[n++] = word;
  const char *nearest = NULL;
  const rf_synonym *same = NULL;
  while (!nearest && (same = rf_synonym_of(CHOICE_SYNONYMS, same, text, strlen(text))))
    if (choice_index(row->choices, same->ours) >= 0) nearest = same->ours;
  if (!nearest) nearest = rf_nearest(text, names, n);
  snprintf(hint, sizeof hint, "one of %s", row->choices);
  say_others(o, row, text, hint, sizeof hint);
  return RF_FAIL(error, RAFTER_INVALID, hint, "--%s does not know '%.60s'%s%s%s", row->name, text,
                 nearest ? " (did you mean '" : "", nearest ? nearest : "", nearest ? "'?)" : "");
}

/* Parses OPTION=LIST. LIST has numbers, or words separated by commas. Each entry of LIST must be a
 * valid value of the option OPTION. */
static rf_status parse_value(const rf_options *o, const rf_option *row, const char *text, value *v,
                             rf_error *error);
static rf_status parse_sweep(const rf_options *o, const rf_option *row, const char *text, value *v,
                             rf_error *error) {
  const char *equals = strchr(text, '=');
  char name[64];
  if (!equals || equals == text || !equals[1] || (size_t)(equals - text) >= sizeof name)
    return RF_FAIL(error, RAFTER_INVALID, "write --sweep batch=1..256 or --sweep dtype=f32,bf16",
                   "--%s needs OPTION=LIST (got '%.60s')", row->name, text);
  snprintf(name, sizeof name, "%.*s", (int)(equals - text), text);
  bool shape = !strncmp(name, "MODEL", 5) && (!name[5] || (name[5] == ':' && name[6])) &&
               !strcmp(o->command->arguments, "MODEL");
  /* the word `chips` varies the number of chips in the value of --on */
  shape =
      shape || (!strcmp(name, "chips") && rf_options_find(o, name) < 0 && rf_options_find(o, "mesh") >= 0);
  int swept = shape ? -1 : rf_options_find(o, name);
  const rf_option *varied = swept >= 0 ? o->row[swept] : NULL;
  if (varied && (varied->type == RF_OPTION_LIST || varied->type == RF_OPTION_FLOATS)) {
    char hint[160];
    snprintf(hint, sizeof hint, "write --%s %.100s", varied->name, equals + 1);
    return RF_FAIL(error, RAFTER_INVALID, hint, "--%s cannot vary '%s' (the option takes a list itself)",
                   row->name, name);
  }
  const char *colon = strchr(name, ':');
  if (!shape && colon && swept < 0 && rf_options_find(o, "mesh") >= 0) {
    char hint[160];
    snprintf(hint, sizeof hint, "write --%s MODEL%.100s, with the word MODEL", row->name,
             text + (colon - name));
    return RF_FAIL(error, RAFTER_INVALID, hint,
                   "--%s cannot vary '%s' (a field of the model's shape is named MODEL:FIELD)", row->name,
                   name);
  }
  if (!shape && (!varied || varied->type >= RF_OPTION_TEXTS || varied->type == RF_OPTION_FLAG))
    return RF_FAIL(error, RAFTER_INVALID,
                   "sweep over an option with numbers or choices, such as batch or dtype, or a shape: "
                   "MODEL:layers=12,24",
                   "--%s cannot vary '%s' (%s)", row->name, name,
                   !varied ? "the command has no such option" : "the option has no single value");
  push(&v->text, text);
  push(&v->text, shape ? name : varied->name);
  int64_t number[MAX_VALUES];
  int count = 0;
  char word[128];
  if (rf_parse_list(equals + 1, number, MAX_VALUES, &count, NULL) != RAFTER_OK) {
    count = 0;
    /* If values contain commas, as meshes do, a ';' separates the values. */
    const char *between = strchr(equals, ';') ? ";" : ",";
    for (const char *at = equals + 1; count < MAX_VALUES; ++at) {
      at += *between == ';' ? strspn(at, " ") : 0;
      size_t length = strcspn(at, between);
      if (length == 0 || length >= sizeof word)
        return RF_FAIL(error, RAFTER_INVALID, NULL, "--%s has an empty or too long value in '%.60s'",
                       row->name, text);
      snprintf(word, sizeof word, "%.*s", (int)length, at);
      push(&v->text, word);
      ++count;
      at += length;
      if (!*at) break;
    }
  } else {
    for (int i = 0; i < count; ++i) {
      snprintf(word, sizeof word, "%lld", (long long)number[i]);
      push(&v->text, word);
    }
  }
  for (int i = 0; i < count && !shape; ++i) {
    value trial = {0};
    rf_error inner = {0};
    rf_status status = parse_value(o, varied, v->text[2 + i], &trial, &inner);
    rf_value_clear(&trial);
    if (status != RAFTER_OK) return RF_FAIL(error, status, inner.hint, "--%s: %s", row->name, inner.message);
  }
  v->count = count;
  return RAFTER_OK;
}

/* Text that is not UTF-8 cannot be stored in run.json, so the run could not be repeated. */
static rf_status check_utf8(const char *what, const char *text, rf_error *error) {
  json_t *json = json_string(text);
  if (!json)
    return RF_FAIL(error, RAFTER_INVALID, "rename the file, or give the text as UTF-8",
                   "%s is not UTF-8 text", what);
  json_decref(json);
  return RAFTER_OK;
}

/* Fills `v`, which must be empty before. Errors name the option. */
static rf_status parse_value(const rf_options *o, const rf_option *row, const char *text, value *v,
                             rf_error *error) {
  rf_error inner = {0};
  rf_status status = RAFTER_OK;
  bool flag = false, bounded = true;
  char what[80];
  snprintf(what, sizeof what, "--%s", row->name);
  RF_TRY(check_utf8(what, text, error));
  switch (row->type) {
  case RF_OPTION_FLAG:
    if (!rf_text_bool(text, &flag))
      return RF_FAIL(error, RAFTER_INVALID, "write it without a value to turn it on",
                     "--%s is a switch (expected true or false, got '%.60s')", row->name, text);
    v->whole = flag;
    break;
  case RF_OPTION_INT:
    if (!rf_text_int(text, &v->whole))
      status = RF_FAIL(&inner, RAFTER_INVALID,
                       strstr(text, "..") ? "a range such as 1..256 or 64..132:4 starts above 0, ends at a "
                                            "larger number and has at most as many values as a list"
                                          : "write digits only",
                       "'%.60s' is not a whole number", text);
    v->real = (double)v->whole;
    break;
  case RF_OPTION_SIZE:
    status = rf_parse_size(text, &v->whole, &inner);
    v->real = (double)v->whole;
    break;
  case RF_OPTION_TOKENS:
    status = rf_parse_tokens(text, &v->whole, &inner);
    v->real = (double)v->whole;
    break;
  case RF_OPTION_COUNT:
    status = rf_parse_count(text, &v->whole, &inner);
    v->real = (double)v->whole;
    break;
  case RF_OPTION_DURATION: status = rf_parse_duration(text, &v->real, &inner); break;
  case RF_OPTION_FLOAT:
    if (!rf_text_float(text, &v->real))
      status = RF_FAIL(&inner, RAFTER_INVALID, "write 0.1 or 3e-4", "'%.60s' is not a number", text);
    break;
  case RF_OPTION_CHOICE:
    RF_TRY(parse_choice(o, row, text, v, error));
    bounded = false;
    break;
  case RF_OPTION_LIST:
    v->list = rf_must(malloc(MAX_VALUES * sizeof *v->list));
    status = rf_parse_list(text, v->list, MAX_VALUES, &v->count, &inner);
    bounded = false;
    break;
  case RF_OPTION_FLOATS:
    v->floats = rf_must(malloc(MAX_VALUES * sizeof *v->floats));
    status = rf_parse_floats(text, v->floats, MAX_VALUES, &v->count, &inner);
    for (int n = 0; n < v->count && status == RAFTER_OK; n++)
      if (row->most != 0 && !(v->floats[n] >= row->least && v->floats[n] <= row->most))
        return out_of_range(row, text, error);
    bounded = false;
    break;
  case RF_OPTION_SWEEP: return parse_sweep(o, row, text, v, error);
  default:
    bounded = false;
    if (row->type == RF_OPTION_PATH && !*text)
      return RF_FAIL(error, RAFTER_INVALID, NULL, "--%s needs a path (got an empty text)", row->name);
  }
  if (status != RAFTER_OK)
    return RF_FAIL(error, RAFTER_INVALID, inner.hint, "--%s: %s", row->name, inner.message);
  if (bounded && (row->least != 0 || row->most != 0) && !(v->real >= row->least && v->real <= row->most))
    return out_of_range(row, text, error);
  push(&v->text, text);
  return RAFTER_OK;
}

/* Sets option `i`. Values of a TEXTS option from the same source accumulate. Values of other
 * options are replaced. */
rf_status rf_options_set_row(rf_options *o, int i, const char *text, rf_option_source source,
                             rf_error *error) {
  const rf_option *row = o->row[i];
  value fresh = {0};
  rf_status status = text ? parse_value(o, row, text, &fresh, error) : RAFTER_OK;
  if (status != RAFTER_OK) {
    rf_value_clear(&fresh);
    return status;
  }
  value *v = &o->values[i];
  fresh.source = source;
  fresh.bare = !text;
  if (row->type == RF_OPTION_TEXTS && v->source == source) {
    push(&v->text, text);
    v->count += 1;
    rf_value_clear(&fresh);
    return RAFTER_OK;
  }
  if (row->type == RF_OPTION_TEXTS) fresh.count = 1;
  rf_value_clear(v);
  *v = fresh;
  return RAFTER_OK;
}

/* ---- making and freeing ---------------------------------------------------------------------- */

static rf_status unknown_command(const rf_commands *commands, const char *name, rf_error *error) {
  const char *names[64];
  char hint[512] = "commands: ";
  assert(commands->count <= 64);
  for (int i = 0; i < commands->count; ++i) {
    names[i] = commands->command[i]->name;
    rf_text_append(hint, sizeof hint, "%s%s", i ? ", " : "", names[i]);
  }
  const char *nearest = rf_nearest(name, names, commands->count);
  return RF_FAIL(error, RAFTER_INVALID, hint, "unknown command '%.60s'%s%s%s", name,
                 nearest ? " (did you mean '" : "", nearest ? nearest : "", nearest ? "'?)" : "");
}

rf_status rf_options_new(const rf_commands *commands, const char *name, rf_options **result,
                         rf_error *error) {
  const rf_command *command = rf_command_named(commands, name);
  if (!command) return unknown_command(commands, name, error);
  rf_options *o = rf_must(calloc(1, sizeof *o));
  o->commands = commands;
  o->command = command;
  o->count = rf_command_options(command, NULL, 0);
  o->row = rf_must(calloc((size_t)o->count + 1, sizeof(const rf_option *)));
  o->values = rf_must(calloc((size_t)o->count + 1, sizeof *o->values));
  rf_command_options(command, o->row, o->count);
  for (int i = 0; i < o->count; ++i) {
    if (!o->row[i]->fallback) continue;
    rf_status status = rf_options_set_row(o, i, o->row[i]->fallback, RF_OPTION_DEFAULT, error);
    if (status == RAFTER_OK) continue;
    /* The default is outside the bounds of the option. A test checks all defaults. */
    rf_options_free(o);
    return status;
  }
  *result = o;
  return RAFTER_OK;
}

void rf_options_free(rf_options *o) {
  if (!o) return;
  for (int i = 0; i < o->count; ++i) rf_value_clear(&o->values[i]);
  for (int i = 0; i < o->argument_count; ++i) free(o->argument[i]);
  free(o->argument);
  free(o->values);
  free(o->row);
  free(o->joined);
  free(o);
}

void rf_options_add_argument(rf_options *o, const char *text, rf_option_source source) {
  /* Arguments from one source replace the arguments from an earlier source, such as a config
   * file. */
  if (o->argument_source != source) {
    for (int i = 0; i < o->argument_count; ++i) free(o->argument[i]);
    o->argument_count = 0;
  }
  o->argument_source = source;
  o->argument = rf_must(realloc(o->argument, (size_t)(o->argument_count + 1) * sizeof *o->argument));
  o->argument[o->argument_count++] = copy_of(text);
}

rf_options *rf_options_copy(const rf_options *o) {
  rf_options *copy = rf_must(calloc(1, sizeof *copy));
  *copy = (rf_options){.commands = o->commands, .command = o->command, .count = o->count};
  copy->row = rf_must(calloc((size_t)o->count + 1, sizeof(const rf_option *)));
  memcpy(copy->row, o->row, (size_t)o->count * sizeof *o->row);
  copy->values = rf_must(calloc((size_t)o->count + 1, sizeof *copy->values));
  for (int i = 0; i < o->count; ++i) {
    const value *from = &o->values[i];
    value *to = &copy->values[i];
    *to = *from;
    to->text = NULL;
    for (int j = 0; from->text && from->text[j]; ++j) push(&to->text, from->text[j]);
    to->list = copy_of_bytes(from->list, (size_t)from->count * sizeof *to->list);
    to->floats = copy_of_bytes(from->floats, (size_t)from->count * sizeof *to->floats);
  }
  for (int i = 0; i < o->argument_count; ++i)
    rf_options_add_argument(copy, o->argument[i], o->argument_source);
  return copy;
}

/* ---- arguments ------------------------------------------------------------------------------- */

/* Lists up to three commands that have the option: "rafter plan, rafter train or rafter score". */
static void commands_with(const rf_commands *commands, const char *name, char *text, size_t size) {
  const rf_option *row[256];
  const char *found[3];
  int count = 0;
  for (int c = 0; c < commands->count; c++) {
    int options = rf_command_options(commands->command[c], row, 256);
    for (int i = 0; i < options; i++)
      if (strcmp(row[i]->name, name) == 0 && count++ < 3) found[count - 1] = commands->command[c]->name;
  }
  int named = count < 3 ? count : 3;
  for (int i = 0; i < named; i++)
    rf_text_append(text, size, "%srafter %s", i == 0 ? "" : i + 1 == count ? " or " : ", ", found[i]);
  if (count > 3) rf_text_append(text, size, " and others");
}

/* The synonym of a name that the command has. NULL: none. */
static const rf_synonym *synonym_here(const rf_options *o, const char *name, size_t length) {
  const rf_synonym *same = NULL;
  char ours[64];
  while ((same = rf_synonym_of(o->commands->synonyms, same, name, length))) {
    snprintf(ours, sizeof ours, "%.*s", (int)strcspn(same->ours, " "), same->ours);
    if (rf_options_find(o, ours) >= 0) break;
  }
  return same;
}

rf_status rf_options_unknown(const rf_options *o, const char *name, const char *where, rf_error *error) {
  const char *names[256], *command = o->command->name, *nearest = NULL;
  assert(o->count <= 256);
  for (int i = 0; i < o->count; ++i) names[i] = o->row[i]->name;
  const rf_synonym *same = synonym_here(o, name, strlen(name));
  char hint[256], elsewhere[160] = "";
  nearest = same ? same->ours : rf_nearest(name, names, o->count);
  commands_with(o->commands, name, elsewhere, sizeof elsewhere);
  if (*elsewhere)
    snprintf(hint, sizeof hint, "--%s is an option of %s; rafter %s --help-all lists those of %s", name,
             elsewhere, command, command);
  else snprintf(hint, sizeof hint, "rafter %s --help-all lists them", command);
  return RF_FAIL(error, RAFTER_INVALID, hint, "%sunknown option --%.60s of %s%s%s%s", where, name, command,
                 nearest ? " (did you mean --" : "", nearest ? nearest : "", nearest ? "?)" : "");
}

static bool looks_like_value(const rf_option *row, const char *text) {
  int64_t bytes;
  return row->type != RF_OPTION_SIZE || rf_parse_size(text, &bytes, NULL) == RAFTER_OK;
}

/* Returns true if an argument can be the value of the option before it, because the argument itself
 * is not an option. For an option with `pair`, a text with blanks is always a value. */
static bool is_value(const rf_option *row, const char *text) {
  return strncmp(text, "--", 2) != 0 || (row->pair && strchr(text, ' '));
}

/* Reads the option at argv[*at], and sets *at to the index of the last argument of the option.
 * `config_only`: only --config. */
static rf_status take_option(rf_options *o, int argc, char *const *argv, int *at, bool config_only,
                             bool *seen, rf_error *error) {
  const char *argument = argv[*at] + 2, *equals = strchr(argument, '=');
  char name[64];
  size_t length = equals ? (size_t)(equals - argument) : strlen(argument);
  if (length >= sizeof name)
    return RF_FAIL(error, RAFTER_INVALID, NULL, "unknown option --%.60s...", argument);
  memcpy(name, argument, length);
  name[length] = 0;
  int i = rf_options_find(o, name);
  if (i < 0) return rf_options_unknown(o, name, "", error);
  const rf_option *row = o->row[i];
  const char *text = equals ? equals + 1 : NULL;
  if (!text && row->type == RF_OPTION_FLAG) text = "true";
  bool follows = *at + 1 < argc && is_value(row, argv[*at + 1]);
  if (!text && follows && (!row->bare || looks_like_value(row, argv[*at + 1]))) text = argv[++*at];
  if (!text && !row->bare)
    return RF_FAIL(error, RAFTER_INVALID, "write --name value, or --name=value when the value begins with --",
                   "--%s needs a value", row->name);
  const char *second = row->pair && *at + 1 < argc && is_value(row, argv[*at + 1]) ? argv[++*at] : NULL;
  bool config = strcmp(row->name, "config") == 0;
  if (config_only) return config ? rf_options_read_file(o, text, error) : RAFTER_OK;
  if (seen[i] && row->type != RF_OPTION_TEXTS)
    return RF_FAIL(error, RAFTER_INVALID, NULL, "--%s is given twice", row->name);
  seen[i] = true;
  RF_TRY(rf_options_set_row(o, i, text, RF_OPTION_GIVEN, error));
  return second ? rf_options_set_row(o, i, second, RF_OPTION_GIVEN, error) : RAFTER_OK;
}

/* The hint has the short forms that the command has. The error names the short form that the
 * command lacks. */
static rf_status unknown_short(const rf_options *o, const char *text, const rf_short_form *form,
                               rf_error *error) {
  char lacks[80] = "", hint[300] = "";
  int count = 0;
  const char *name = form && form->name ? form->name + 2 : text + 1;
  const rf_synonym *same = synonym_here(o, name, strlen(name));
  if (same) rf_text_append(hint, sizeof hint, "did you mean --%s? ", same->ours);
  rf_text_append(hint, sizeof hint, "short forms here: ");
  for (const rf_short_form *f = o->commands->short_forms; f && f->letter; f++)
    if (f->name ? rf_options_find(o, f->name + 2) >= 0 : strstr(o->command->arguments, "MODEL") != NULL)
      rf_text_append(hint, sizeof hint, "%s-%c (%s)", count++ ? ", " : "", f->letter,
                     f->name ? f->name : "MODEL");
  rf_text_append(hint, sizeof hint, "%s; rafter %s --help-all lists all options", count ? "" : "none",
                 o->command->name);
  if (form && form->letter)
    snprintf(lacks, sizeof lacks, " (%s has no %s)", o->command->name, form->name ? form->name : "MODEL");
  return RF_FAIL(error, RAFTER_INVALID, hint, "unknown option '%.60s'%s", text, lacks);
}

/* Reads `-p TEXT` and the other short forms at argv[*at]. Sets *model to the value of -m. */
static rf_status take_short(rf_options *o, int argc, char *const *argv, int *at, bool config_only, bool *seen,
                            const char **model, rf_error *error) {
  const rf_short_form *form = o->commands->short_forms;
  const char *text = argv[*at];
  while (form && form->letter && (text[1] != form->letter || text[2])) form++;
  bool known =
      form && form->letter &&
      (form->name ? rf_options_find(o, form->name + 2) >= 0 : strstr(o->command->arguments, "MODEL") != NULL);
  if (!known) return unknown_short(o, text, form, error);
  if (form->name) {
    char *const two[] = {(char *)form->name, argv[*at + 1]};
    int read = 0;
    RF_TRY(take_option(o, *at + 1 < argc ? 2 : 1, two, &read, config_only, seen, error));
    *at += read;
    return RAFTER_OK;
  }
  if (*at + 1 >= argc) return RF_FAIL(error, RAFTER_INVALID, "write -m MODEL", "-m needs a value");
  if (*model && !config_only) return RF_FAIL(error, RAFTER_INVALID, NULL, "-m is given twice");
  *at += 1;
  if (!config_only) *model = argv[*at];
  return check_utf8("an argument", argv[*at], error);
}

/* The option for a word that follows MODEL: a text, or the name of a file. NULL: the command reads
 * neither. */
static const char *option_for(const rf_options *o, const char *word) {
  static const char *const order[] = {"input", "data", "prompt", "text", "input", "data"};
  bool file = !access(word, F_OK) || (strpbrk(word, "./") && !strchr(word, ' '));
  if (!strstr(o->command->arguments, "MODEL")) return NULL;
  for (size_t i = file ? 0 : 2; i < sizeof order / sizeof *order; i++)
    if (rf_options_find(o, order[i]) >= 0) return order[i];
  return NULL;
}

rf_status rf_options_parse(rf_options *o, int argc, char *const *argv, rf_error *error) {
  const rf_command *command = o->command;
  bool *seen = rf_must(calloc((size_t)o->count + 1, sizeof *seen));
  rf_status status = RAFTER_OK;
  const char *model = NULL;
  /* The file of --config is read first. So options that the user types override the options of the
   * file, whatever the order. */
  for (int pass = 0; pass < 2 && status == RAFTER_OK; ++pass) {
    bool options_ended = false;
    for (int i = 0; i < argc && status == RAFTER_OK; ++i) {
      bool dashes = strncmp(argv[i], "--", 2) == 0 && !options_ended;
      if (dashes && !argv[i][2]) options_ended = true;
      else if (dashes) status = take_option(o, argc, argv, &i, pass == 0, seen, error);
      else if (argv[i][0] == '-' && isalpha((unsigned char)argv[i][1]) && !options_ended)
        status = take_short(o, argc, argv, &i, pass == 0, seen, &model, error);
      else if (pass == 1 && (status = check_utf8("an argument", argv[i], error)) == RAFTER_OK)
        rf_options_add_argument(o, argv[i], RF_OPTION_GIVEN);
    }
  }
  free(seen);
  if (status != RAFTER_OK) return status;
  if (model) rf_options_add_argument(o, model, RF_OPTION_GIVEN); /* MODEL is the last argument of a command */
  char hint[256];
  snprintf(hint, sizeof hint, "rafter %s %s [--option value]", command->name, command->arguments);
  /* A resumed run reads its model from the run's folder. */
  bool continues = rf_options_knows(o, "resume") && rf_options_is_set(o, "resume");
  /* In a comparison, each of the two compared jobs may name its own model. */
  continues = continues || (rf_options_knows(o, "compare") && rf_options_is_set(o, "compare"));
  if (o->argument_count < command->least && !continues)
    return RF_FAIL(error, RAFTER_INVALID, hint, "%s needs %s", command->name, command->arguments);
  if (o->argument_count <= command->most) return RAFTER_OK;
  const char *stray = o->argument[command->most - (model && command->most)];
  const char *option = option_for(o, stray);
  if (option)
    snprintf(hint, sizeof hint, "did you mean --%s '%.60s'? usage: rafter %s %s [--option value]", option,
             stray, command->name, command->arguments);
  return RF_FAIL(error, RAFTER_INVALID, hint, "%s does not know what to do with '%.60s'", command->name,
                 stray);
}

/* Sets KEY=VALUE in the shape of the model argument. If KEY has a value already, the new value
 * replaces it. */
static rf_status set_shape(rf_options *o, const char *key, const char *text, rf_error *error) {
  char spec[1024] = "";
  const char *model = rf_options_argument(o, 0);
  if (!model) return RF_FAIL(error, RAFTER_INVALID, NULL, "MODEL:%.60s needs a MODEL", key);
  size_t base = strcspn(model, ":"), length = strlen(key);
  rf_text_append(spec, sizeof spec, "%.*s:", (int)base, model);
  for (const char *at = model + base + (model[base] == ':'); *at;) {
    size_t n = strcspn(at, ",");
    if (strncmp(at, key, length) != 0 || at[length] != '=')
      rf_text_append(spec, sizeof spec, "%.*s,", (int)n, at);
    at += n + (at[n] == ',');
  }
  if (strlen(spec) + length + strlen(text) + 2 > sizeof spec)
    return RF_FAIL(error, RAFTER_INVALID, NULL, "the shape '%.60s' is too long", model);
  rf_text_append(spec, sizeof spec, "%s=%s", key, text);
  return rf_options_set(o, "MODEL", spec, error);
}

rf_status rf_options_set(rf_options *o, const char *name, const char *text, rf_error *error) {
  if (strncmp(name, "MODEL:", 6) == 0) return set_shape(o, name + 6, text, error);
  if (strcmp(name, "MODEL") == 0) {
    RF_TRY(check_utf8("the model", text, error));
    o->argument_source = RF_OPTION_UNSET;
    rf_options_add_argument(o, text, RF_OPTION_GIVEN);
    return RAFTER_OK;
  }
  int i = rf_options_find(o, name);
  if (i < 0) return rf_options_unknown(o, name, "", error);
  if (o->row[i]->type == RF_OPTION_FLAG && !*text) text = "true";
  if (strcmp(o->row[i]->name, "config") == 0) RF_TRY(rf_options_read_file(o, text, error));
  return rf_options_set_row(o, i, text, RF_OPTION_GIVEN, error);
}

rf_status rf_options_set_int(rf_options *o, const char *name, int64_t number, rf_error *error) {
  char text[32];
  snprintf(text, sizeof text, "%lld", (long long)number);
  return rf_options_set(o, name, text, error);
}

/* ---- asking ---------------------------------------------------------------------------------- */

static const value *get(const rf_options *o, const char *name) {
  int i = rf_options_find(o, name);
  if (i >= 0) return &o->values[i];
  fprintf(stderr, "rafter: the code of %s reads --%s, which is not among the command's options\n",
          o->command->name, name);
  abort();
}

bool rf_options_knows(const rf_options *o, const char *name) { return rf_options_find(o, name) >= 0; }
rf_option_source rf_options_source(const rf_options *o, const char *name) { return get(o, name)->source; }
bool rf_options_is_set(const rf_options *o, const char *name) {
  return get(o, name)->source != RF_OPTION_UNSET;
}
bool rf_options_given(const rf_options *o, const char *name) {
  return get(o, name)->source >= RF_OPTION_CONFIG;
}
bool rf_options_is_typed(const rf_options *o, const char *name) {
  return get(o, name)->source == RF_OPTION_GIVEN;
}
bool rf_options_flag(const rf_options *o, const char *name) { return get(o, name)->whole != 0; }
int64_t rf_options_int(const rf_options *o, const char *name) { return get(o, name)->whole; }
double rf_options_float(const rf_options *o, const char *name) { return get(o, name)->real; }
bool rf_options_bare(const rf_options *o, const char *name) { return get(o, name)->bare; }
int rf_options_argument_count(const rf_options *o) { return o->argument_count; }
const char *rf_options_argument(const rf_options *o, int i) {
  return i >= 0 && i < o->argument_count ? o->argument[i] : NULL;
}
int rf_options_count(const rf_options *o) { return o->count; }
const char *rf_options_name(const rf_options *o, int i) { return o->row[i]->name; }
const rf_commands *rf_options_commands(const rf_options *o) { return o->commands; }
const char *rf_options_command(const rf_options *o) { return o->command->name; }

int rf_options_choice(const rf_options *o, const char *name) {
  const value *v = get(o, name);
  return v->source == RF_OPTION_UNSET ? -1 : (int)v->whole;
}

const char *rf_options_text(const rf_options *o, const char *name) {
  const value *v = get(o, name);
  if (!v->text) return NULL;
  if (v->count < 2 || o->row[v - o->values]->type != RF_OPTION_TEXTS) return v->text[0];
  size_t size = 1;
  for (int i = 0; i < v->count; ++i) size += strlen(v->text[i]) + 1;
  /* The joined text is valid until the next call, or until the options are freed. */
  rf_options *keeper = (rf_options *)o;
  keeper->joined = rf_must(realloc(keeper->joined, size));
  keeper->joined[0] = 0;
  for (int i = 0; i < v->count; ++i) rf_text_append(keeper->joined, size, "%s%s", i ? "," : "", v->text[i]);
  return keeper->joined;
}

static bool has_value(const rf_options *o, const char *name) {
  int i = rf_options_find(o, name);
  return i >= 0 && o->values[i].source != RF_OPTION_UNSET;
}

int64_t rf_options_int_or(const rf_options *o, const char *name, int64_t otherwise) {
  return has_value(o, name) ? rf_options_int(o, name) : otherwise;
}

double rf_options_float_or(const rf_options *o, const char *name, double otherwise) {
  return has_value(o, name) ? rf_options_float(o, name) : otherwise;
}

const char *rf_options_text_or(const rf_options *o, const char *name, const char *otherwise) {
  return has_value(o, name) ? rf_options_text(o, name) : otherwise;
}

const char *const *rf_options_texts(const rf_options *o, const char *name, int *count) {
  const value *v = get(o, name);
  *count = v->count;
  return (const char *const *)v->text;
}

const int64_t *rf_options_list(const rf_options *o, const char *name, int *count) {
  const value *v = get(o, name);
  *count = v->list ? v->count : 0;
  return v->list;
}

const double *rf_options_floats(const rf_options *o, const char *name, int *count) {
  const value *v = get(o, name);
  *count = v->floats ? v->count : 0;
  return v->floats;
}

int rf_options_sweep(const rf_options *o, const char *name, const char **option, const char *const **values) {
  const value *v = get(o, name);
  *option = v->count ? v->text[1] : NULL;
  *values = v->count ? (const char *const *)v->text + 2 : NULL;
  return v->count;
}
