/* options_help.c - prints the help and the man page from the option tables. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/options_parts.h"
#include "base/text.h"

enum { MAX_ROWS = RF_OPTION_ROWS, COLUMN_MAX = 28, MAX_CHOICES = 72 };

const char *rf_option_unit(const rf_option *row) {
  if (row->unit) return row->unit;
  switch (row->type) {
  case RF_OPTION_FLAG: return "";
  case RF_OPTION_SIZE: return "BYTES";
  case RF_OPTION_DURATION: return "TIME";
  case RF_OPTION_TOKENS: return "TOKENS";
  case RF_OPTION_FLOAT: return "X";
  case RF_OPTION_TEXT:
  case RF_OPTION_TEXTS: return "TEXT";
  case RF_OPTION_PATH: return "PATH";
  case RF_OPTION_LIST:
  case RF_OPTION_FLOATS: return "LIST";
  case RF_OPTION_CHOICE: return "NAME";
  default: return "N";
  }
}

static void put_number(FILE *out, double number) {
  if (number >= 0x1p40 && number == exp2(round(log2(number)))) fprintf(out, "2^%.0f", log2(number));
  else fprintf(out, fabs(number) < 1e9 ? "%.10g" : "%.6g", number);
}

/* Returns the text "help [a|b; 1 to 8; default 2]", which is malloc'ed. If `full` is false, the
 * text has only the first line of the help, and no range. The text also leaves out a long list of
 * choices. */
static char *describe(const rf_option *row, bool full) {
  char *text = NULL;
  size_t size = 0;
  FILE *out = open_memstream(&text, &size);
  if (!out) return NULL;
  const char *gap = " [";
  for (const char *c = row->help; *c && (full || *c != '\n'); ++c)
    if (*c == '\n') fputs(". ", out);
    else putc(*c, out);
  if (row->choices && (full || strlen(row->choices) <= MAX_CHOICES)) {
    fprintf(out, "%s%s", gap, row->choices);
    gap = "; ";
  }
  if (full && (row->least != 0 || row->most != 0)) {
    fputs(gap, out);
    put_number(out, row->least);
    fputs(" to ", out);
    put_number(out, row->most);
    gap = "; ";
  }
  if (row->fallback && row->type != RF_OPTION_FLAG) {
    fprintf(out, "%sdefault %s", gap, row->fallback);
    gap = "; ";
  }
  if (*gap == ';') putc(']', out);
  fclose(out);
  return text;
}

/* Returns the number of characters of `text` that must stay on one line. The number is the length
 * of the next word. If the word is longer than `room`, the line may be broken after the first bar
 * of the word. */
static int unbroken(const char *text, int room) {
  int length = (int)strcspn(text, " "), part = (int)strcspn(text, "|") + 1;
  return length > room && part < length ? part : length;
}

/* Prints `text`, which begins at column `column`. New lines begin at column `indent`. Lines end
 * before `width`. */
static void wrap(FILE *out, const char *text, int column, int indent, int width) {
  while (*text) {
    int length = unbroken(text, width - indent);
    if (column + length > width && column > indent) {
      fprintf(out, "\n%*s", indent, "");
      column = indent;
    }
    fprintf(out, "%.*s", length, text);
    column += length;
    text += length;
    if (*text != ' ') continue;
    ++text;
    if (column + 1 + unbroken(text, width - indent) <= width) {
      putc(' ', out);
      ++column;
    } else {
      fprintf(out, "\n%*s", indent, "");
      column = indent;
    }
  }
  putc('\n', out);
}

/* Prints " --batch SEQUENCES" and returns the length of this text. */
static int put_name(FILE *out, const rf_option *row) {
  const char *unit = rf_option_unit(row);
  return fprintf(out, row->bare ? "  --%s [%s]" : *unit ? "  --%s %s" : "  --%s", row->name, unit);
}

static int name_width(const rf_option *row) {
  const char *unit = rf_option_unit(row);
  return (int)(4 + strlen(row->name) + (*unit ? 1 + strlen(unit) : 0) + (row->bare ? 2 : 0));
}

/* Gets the options that --help prints. The result has all options, or those in command->common. */
static int rows_of(const rf_command *command, bool all, const rf_option *row[MAX_ROWS]) {
  const rf_option *every[MAX_ROWS];
  int count = rf_command_options(command, every, MAX_ROWS), shown = 0;
  if (all || !command->common) {
    memcpy(row, every, (size_t)count * sizeof *row);
    return count;
  }
  for (const char *at = command->common; *at; at += strspn(at, " ")) {
    size_t length = strcspn(at, " ");
    for (int i = 0; i < count; ++i)
      if (strlen(every[i]->name) == length && strncmp(every[i]->name, at, length) == 0)
        row[shown++] = every[i];
    at += length;
  }
  return shown;
}

static bool heading_is_printed(const rf_option *const *row, int i) {
  for (int j = 0; j < i; ++j)
    if (strcmp(row[j]->heading, row[i]->heading) == 0) return true;
  return false;
}

static void put_rows(FILE *out, const rf_option *const *row, int count, bool all, int width) {
  int column = 0;
  for (int i = 0; i < count; ++i) {
    int wide = name_width(row[i]) + 2;
    if (wide <= COLUMN_MAX && wide > column) column = wide;
  }
  for (int i = 0; i < count; ++i) {
    if (heading_is_printed(row, i)) continue;
    fprintf(out, "\n%s:\n", row[i]->heading);
    for (int j = i; j < count; ++j) {
      if (strcmp(row[j]->heading, row[i]->heading) != 0) continue;
      int at = put_name(out, row[j]);
      if (at > column - 2) at = fprintf(out, "\n") - 1;
      at += fprintf(out, "%*s", column - at, "");
      char *description = describe(row[j], all);
      wrap(out, description ? description : row[j]->help, at, column, width);
      free(description);
    }
  }
}

static void put_examples(FILE *out, const rf_command *command) {
  if (command->examples[0]) fputs("\nExamples:\n", out);
  for (const char *const *example = command->examples; *example; ++example) {
    const char *comment = strstr(*example, " # ");
    int length = comment ? (int)(comment - *example) : (int)strlen(*example);
    if (comment) fprintf(out, "  %s\n", comment + 1);
    fprintf(out, "  rafter %.*s\n", length, *example);
  }
}

static void put_command(FILE *out, const rf_command *command, bool all, int width) {
  const rf_option *row[MAX_ROWS];
  int count = rows_of(command, all, row), every = rf_command_options(command, NULL, 0);
  wrap(out, command->help, 0, 0, width);
  fprintf(out, "\nusage: rafter %s%s%s [--option value]\n", command->name, *command->arguments ? " " : "",
          command->arguments);
  put_rows(out, row, count, all, width);
  put_examples(out, command);
  if (count < every)
    fprintf(out, "\nThese are the common options: `rafter %s --help-all` lists all %d.\n", command->name,
            every);
}

static bool group_is_printed(const rf_commands *commands, int i) {
  for (int j = 0; j < i; ++j)
    if (strcmp(commands->command[j]->group, commands->command[i]->group) == 0) return true;
  return false;
}

static void put_program(FILE *out, const rf_commands *commands, int width) {
  fputs("Plan, train, tune, run and measure transformers.\n\n"
        "usage: rafter COMMAND [MODEL] [--option value]\n",
        out);
  for (int i = 0; i < commands->count; ++i) {
    const char *group = commands->command[i]->group;
    if (group_is_printed(commands, i)) continue;
    fprintf(out, "\n%s:\n", group);
    for (int j = i; j < commands->count; ++j)
      if (strcmp(commands->command[j]->group, group) == 0)
        wrap(out, commands->command[j]->help, fprintf(out, "  %-12s", commands->command[j]->name), 14, width);
  }
  fputs("\nMODEL is a preset (gpt2, llama3-8b, ...), a folder with config.json, a .gguf file, or a shape\n"
        "(gpt:layers=4,width=512,heads=8). `rafter COMMAND --help` prints the common options of a command,\n"
        "`rafter COMMAND --help-all` all of them. Short forms: -m MODEL, -p (--prompt), -n (--max-tokens),\n"
        "-h (--help), -V (--version).\n",
        out);
}

char *rf_options_help(const rf_commands *commands, const char *name, bool all, int width) {
  char *text = NULL;
  size_t size = 0;
  const rf_command *command = name ? rf_command_named(commands, name) : NULL;
  FILE *out = open_memstream(&text, &size);
  if (!out) return NULL;
  if (command) put_command(out, command, all, width);
  else put_program(out, commands, width);
  fclose(out);
  return text;
}

/* Escapes text for roff, where a plain '-' is a hyphen. A list of choices may break after each
 * bar. */
static void put_roff(FILE *out, const char *text) {
  for (; *text; ++text) {
    if (*text == '-') putc('\\', out);
    if (*text == '\\') fputs("\\e", out);
    else putc(*text, out);
    if (*text == '|') fputs("\\:", out);
  }
}

/* Returns the text that the function `put` prints. The text is malloc'ed. */
char *rf_options_print(void (*put)(FILE *out, const rf_commands *commands), const rf_commands *commands) {
  char *text = NULL;
  size_t size = 0;
  FILE *out = open_memstream(&text, &size);
  if (!out) return NULL;
  put(out, commands);
  fclose(out);
  return text;
}

static void put_man(FILE *out, const rf_commands *commands) {
  fputs(".TH RAFTER 1\n.ad l\n.SH NAME\nrafter \\- will a transformer fit, how fast will it run, what will "
        "it cost; then run it\n.SH SYNOPSIS\n",
        out);
  for (int i = 0; i < commands->count; ++i) {
    fprintf(out, ".B rafter %s\n", commands->command[i]->name);
    if (*commands->command[i]->arguments) {
      fputs(".I ", out);
      put_roff(out, commands->command[i]->arguments);
      putc('\n', out);
    }
    fputs("[\\-\\-option value]\n.br\n", out);
  }
  fputs(".SH DESCRIPTION\nSizes are written 16GiB, 16GB or 1048576; durations 1.5s or 20ms; token lengths "
        "4096 or 4k; counts 2M or 15T; lists 1,2,4, "
        "1..256\n"
        "(doubling) or 64..132:4 (in steps).\n",
        out);
  for (int c = 0; c < commands->count; ++c) {
    fprintf(out, ".SH RAFTER %s\n", commands->command[c]->name);
    put_roff(out, commands->command[c]->help);
    fputs(".\n", out);
    const rf_option *rows[MAX_ROWS];
    int count = rf_command_options(commands->command[c], rows, MAX_ROWS);
    for (int i = 0; i < count; ++i) {
      const rf_option *row = rows[i];
      fputs(".TP\n.BR \\-\\-", out);
      put_roff(out, row->name);
      if (*rf_option_unit(row))
        fprintf(out, row->bare ? " \" [\" \\fI%s\\fP ]" : " \" \" \\fI%s", rf_option_unit(row));
      putc('\n', out);
      char *description = describe(row, true);
      put_roff(out, description ? description : row->help);
      putc('\n', out);
      free(description);
    }
  }
  fputs(".SH EXIT STATUS\n0 done, 1 the work failed, 2 the command line is wrong, 3 the plan does not fit, "
        "130 interrupted after saving.\n",
        out);
}

char *rf_options_man(const rf_commands *commands) { return rf_options_print(put_man, commands); }
