/* options_help.c - what people read about the options: help, man page, shell completion, the
 * line of a run header. All from the tables. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/options.h"
#include "base/text.h"

enum { COLUMN = 26, WIDTH = 100 };

static const char *unit_of(const rf_option *row) {
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

static void put_number(FILE *out, double value) {
  if (value >= 0x1p40 && value == exp2(round(log2(value)))) fprintf(out, "2^%.0f", log2(value));
  else fprintf(out, fabs(value) < 1e9 ? "%.10g" : "%.6g", value);
}

/* "help (1 to 8, default 2)" */
static char *describe(const rf_option *row) {
  char *text = NULL;
  size_t size = 0;
  FILE *out = open_memstream(&text, &size);
  if (!out) return NULL;
  const char *gap = " (";
  fputs(row->help, out);
  if (row->choices) {
    fprintf(out, "%s%s", gap, row->choices);
    gap = "; ";
  }
  if (row->least != 0 || row->most != 0) {
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
  if (*gap == ';') putc(')', out);
  fclose(out);
  return text;
}

/* Letters that stay on one line: a word, or of one that is longer than a line the part up to a
 * bar. */
static int unbroken(const char *text, int indent) {
  int length = (int)strcspn(text, " "), part = (int)strcspn(text, "|") + 1;
  return length > WIDTH - indent && part < length ? part : length;
}

/* `text` in lines that begin at column `indent` and end before WIDTH; the cursor stands at
 * `column`. */
static void wrap(FILE *out, const char *text, int column, int indent) {
  while (*text) {
    int length = unbroken(text, indent);
    if (column + length > WIDTH && column > indent) {
      fprintf(out, "\n%*s", indent, "");
      column = indent;
    }
    fprintf(out, "%.*s", length, text);
    column += length;
    text += length;
    if (*text == ' ') {
      ++text;
      if (column + 1 + unbroken(text, indent) <= WIDTH) {
        putc(' ', out);
        ++column;
      } else {
        fprintf(out, "\n%*s", indent, "");
        column = indent;
      }
    }
  }
  putc('\n', out);
}

static int command_index(const char *name) {
  for (int i = 0; i < RF_COMMAND_ROW_COUNT; ++i)
    if (strcmp(RF_COMMAND_ROWS[i].name, name) == 0) return i;
  return -1;
}

static void put_usage(FILE *out, const rf_command *command) {
  fprintf(out, "rafter %s%s%s [--option value]", command->name, *command->arguments ? " " : "",
          command->arguments);
}

char *rf_options_help(const char *name) {
  char *text = NULL;
  size_t size = 0;
  int command = name ? command_index(name) : -1;
  FILE *out = open_memstream(&text, &size);
  if (!out) return NULL;
  if (command < 0) {
    fputs("usage: rafter COMMAND [MODEL] [--option value]\n\ncommands:\n", out);
    for (int i = 0; i < RF_COMMAND_ROW_COUNT; ++i) {
      int column = fprintf(out, "  %-12s", RF_COMMAND_ROWS[i].name);
      wrap(out, RF_COMMAND_ROWS[i].help, column, 14);
    }
    fputs("\nMODEL is a preset (gpt2, uva, llama3-8b, ...), a folder with config.json, or a shape "
          "(gpt:layers=4,width=512).\n"
          "rafter COMMAND --help lists the options of a command.\n",
          out);
  } else {
    fputs("usage: ", out);
    put_usage(out, &RF_COMMAND_ROWS[command]);
    fprintf(out, "\n\n%s\n\noptions:\n", RF_COMMAND_ROWS[command].help);
    for (int i = 0; i < RF_OPTION_ROW_COUNT; ++i) {
      const rf_option *row = &RF_OPTION_ROWS[i];
      if (!(row->commands >> command & 1)) continue;
      int column = fprintf(out,
                           row->bare       ? "  --%s [%s]"
                           : *unit_of(row) ? "  --%s %s"
                                           : "  --%s",
                           row->name, unit_of(row));
      if (column > COLUMN - 2) column = fprintf(out, "\n") - 1;
      column += fprintf(out, "%*s", COLUMN - column, "");
      char *description = describe(row);
      wrap(out, description ? description : row->help, column, COLUMN);
      free(description);
    }
  }
  fclose(out);
  return text;
}

/* Roff reads '-' as a hyphen and a leading '.' or quote as a request; a list of choices may be
 * cut behind each bar. */
static void put_roff(FILE *out, const char *text) {
  for (; *text; ++text) {
    if (*text == '-') putc('\\', out);
    if (*text == '\\') fputs("\\e", out);
    else putc(*text, out);
    if (*text == '|') fputs("\\:", out);
  }
}

char *rf_options_man(void) {
  char *text = NULL;
  size_t size = 0;
  FILE *out = open_memstream(&text, &size);
  if (!out) return NULL;
  fputs(".TH RAFTER 1\n.ad l\n.SH NAME\nrafter \\- will a transformer fit, how fast will it run, what will "
        "it cost; then run it\n.SH SYNOPSIS\n",
        out);
  for (int i = 0; i < RF_COMMAND_ROW_COUNT; ++i) {
    fprintf(out, ".B rafter %s\n", RF_COMMAND_ROWS[i].name);
    if (*RF_COMMAND_ROWS[i].arguments) {
      fputs(".I ", out);
      put_roff(out, RF_COMMAND_ROWS[i].arguments);
      putc('\n', out);
    }
    fputs("[\\-\\-option value]\n.br\n", out);
  }
  fputs(".SH DESCRIPTION\nSizes are written 16GiB, 16GB or 1048576; durations 1.5s or 20ms; token lengths "
        "4096 or 4k; counts 2M or 15T; lists 1,2,4, "
        "1..256\n"
        "(doubling) or 64..132:4 (in steps).\n",
        out);
  for (int c = 0; c < RF_COMMAND_ROW_COUNT; ++c) {
    fprintf(out, ".SH RAFTER %s\n", RF_COMMAND_ROWS[c].name);
    put_roff(out, RF_COMMAND_ROWS[c].help);
    fputs(".\n", out);
    for (int i = 0; i < RF_OPTION_ROW_COUNT; ++i) {
      const rf_option *row = &RF_OPTION_ROWS[i];
      if (!(row->commands >> c & 1)) continue;
      fputs(".TP\n.BR \\-\\-", out);
      put_roff(out, row->name);
      if (*unit_of(row)) fprintf(out, row->bare ? " \" [\" \\fI%s\\fP ]" : " \" \" \\fI%s", unit_of(row));
      putc('\n', out);
      char *description = describe(row);
      put_roff(out, description ? description : row->help);
      putc('\n', out);
      free(description);
    }
  }
  fputs(".SH EXIT STATUS\n0 done, 1 the work failed, 2 the command line is wrong, 3 it does not fit, 130 "
        "interrupted after saving.\n",
        out);
  fclose(out);
  return text;
}

char *rf_options_completion(void) {
  char *text = NULL;
  size_t size = 0;
  FILE *out = open_memstream(&text, &size);
  if (!out) return NULL;
  fputs("# bash completion of rafter, made from its options table\n_rafter() {\n"
        "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]} "
        "words=\n"
        "  if [ \"$COMP_CWORD\" = 1 ]; then\n    words='",
        out);
  for (int c = 0; c < RF_COMMAND_ROW_COUNT; ++c) fprintf(out, "%s%s", c ? " " : "", RF_COMMAND_ROWS[c].name);
  fputs("'\n  else\n    case $command:$before in\n", out);
  for (int c = 0; c < RF_COMMAND_ROW_COUNT; ++c)
    for (int i = 0; i < RF_OPTION_ROW_COUNT; ++i) {
      const rf_option *row = &RF_OPTION_ROWS[i];
      if (!(row->commands >> c & 1)) continue;
      if (row->choices) {
        fprintf(out, "      %s:--%s) words='", RF_COMMAND_ROWS[c].name, row->name);
        for (const char *s = row->choices; *s; ++s) putc(*s == '|' ? ' ' : *s, out);
        fputs("' ;;\n", out);
      } else if (row->type == RF_OPTION_PATH || strcmp(row->name, "data") == 0) {
        fprintf(out, "      %s:--%s) COMPREPLY=($(compgen -f -- \"$word\")); return ;;\n",
                RF_COMMAND_ROWS[c].name, row->name);
      }
    }
  fputs("      *) case $command in\n", out);
  for (int c = 0; c < RF_COMMAND_ROW_COUNT; ++c) {
    fprintf(out, "        %s) words='", RF_COMMAND_ROWS[c].name);
    for (int i = 0; i < RF_OPTION_ROW_COUNT; ++i)
      if (RF_OPTION_ROWS[i].commands >> c & 1) fprintf(out, "--%s ", RF_OPTION_ROWS[i].name);
    fputs("--help' ;;\n", out);
  }
  fputs("      esac ;;\n    esac\n  fi\n  COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
        "  if [ -z \"${COMPREPLY[*]}\" ]; then COMPREPLY=($(compgen -f -- \"$word\")); fi\n}\ncomplete -F "
        "_rafter rafter\n",
        out);
  fclose(out);
  return text;
}

static bool plain(const char *text) {
  for (const char *c = text; *c; ++c)
    if (!isalnum((unsigned char)*c) && !strchr("_-./:=,+@", *c)) return false;
  return *text != 0;
}

/* One word of a shell command. */
static void put_word(FILE *out, const char *text) {
  if (plain(text)) {
    fputs(text, out);
    return;
  }
  putc('\'', out);
  for (; *text; ++text) {
    if (*text == '\'') fputs("'\\''", out);
    else putc(*text, out);
  }
  putc('\'', out);
}

char *rf_options_line(const rf_options *options) {
  char *text = NULL;
  size_t size = 0;
  FILE *out = open_memstream(&text, &size);
  if (!out) return NULL;
  int command = command_index(rf_options_command(options));
  fputs(rf_options_command(options), out);
  for (int i = 0; i < rf_options_argument_count(options); ++i) {
    putc(' ', out);
    put_word(out, rf_options_argument(options, i));
  }
  for (int i = 0; i < RF_OPTION_ROW_COUNT; ++i) {
    const rf_option *row = &RF_OPTION_ROWS[i];
    if (!(row->commands >> command & 1) || !rf_options_given(options, row->name)) continue;
    int count = 1;
    const char *const *texts =
        row->type == RF_OPTION_TEXTS ? rf_options_texts(options, row->name, &count) : NULL;
    for (int j = 0; j < count; ++j) {
      fprintf(out, " --%s", row->name);
      const char *value = texts ? texts[j] : rf_options_text(options, row->name);
      if (rf_options_bare(options, row->name) ||
          (row->type == RF_OPTION_FLAG && rf_options_flag(options, row->name)))
        continue;
      putc(strncmp(value, "--", 2) == 0 || row->type == RF_OPTION_FLAG ? '=' : ' ', out);
      put_word(out, value);
    }
  }
  fclose(out);
  return text;
}
