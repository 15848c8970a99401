/* options_complete.c - makes the completions of shells from the option tables. */
#include <stdio.h>
#include <string.h>

#include "base/options_parts.h"

static bool takes_file(const rf_option *row) {
  return row->type == RF_OPTION_PATH || strcmp(row->name, "data") == 0;
}

/* Prints choices "a|b" as "a b". zsh reads a colon as the end of a list of choices. */
static void put_choices(FILE *out, const char *choices, bool colons) {
  for (const char *s = choices; *s; ++s) {
    if (*s == ':' && !colons) putc('\\', out);
    putc(*s == '|' ? ' ' : *s, out);
  }
}

/* Prints the first line of a help text between single quotes, up to the first semicolon. A backslash
 * precedes the characters `escaped`. `quote` is a single quote in the form of the shell. */
static void put_help(FILE *out, const char *help, const char *escaped, const char *quote) {
  for (const char *s = help; *s && *s != '\n' && *s != ';'; ++s) {
    if (*s == '\'') fputs(quote, out);
    else if (strchr(escaped, *s)) fprintf(out, "\\%c", *s);
    else putc(*s, out);
  }
}

static void put_bash(FILE *out, const rf_commands *commands) {
  fputs("# bash completion of rafter, made from its options table\n_rafter() {\n"
        "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]} "
        "words=\n"
        "  if [ \"$COMP_CWORD\" = 1 ]; then\n    words='",
        out);
  for (int c = 0; c < commands->count; ++c) fprintf(out, "%s%s", c ? " " : "", commands->command[c]->name);
  fputs("'\n  else\n    case $command:$before in\n", out);
  for (int c = 0; c < commands->count; ++c) {
    const rf_option *rows[RF_OPTION_ROWS];
    int count = rf_command_options(commands->command[c], rows, RF_OPTION_ROWS);
    for (int i = 0; i < count; ++i) {
      const rf_option *row = rows[i];
      if (row->choices) {
        fprintf(out, "      %s:--%s) words='", commands->command[c]->name, row->name);
        for (const char *s = row->choices; *s; ++s) putc(*s == '|' ? ' ' : *s, out);
        fputs("' ;;\n", out);
      } else if (takes_file(row)) {
        fprintf(out, "      %s:--%s) COMPREPLY=($(compgen -f -- \"$word\")); return ;;\n",
                commands->command[c]->name, row->name);
      }
    }
  }
  fputs("      *) case $command in\n", out);
  for (int c = 0; c < commands->count; ++c) {
    fprintf(out, "        %s) words='", commands->command[c]->name);
    const rf_option *rows[RF_OPTION_ROWS];
    int count = rf_command_options(commands->command[c], rows, RF_OPTION_ROWS);
    for (int i = 0; i < count; ++i) fprintf(out, "--%s ", rows[i]->name);
    fputs("--help --help-all' ;;\n", out);
  }
  fputs("      esac ;;\n    esac\n  fi\n  COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
        "  if [ -z \"${COMPREPLY[*]}\" ]; then COMPREPLY=($(compgen -f -- \"$word\")); fi\n}\ncomplete -F "
        "_rafter rafter\n",
        out);
}

static void put_zsh_option(FILE *out, const rf_option *row) {
  bool many = row->type == RF_OPTION_TEXTS;
  fprintf(out, "      '%s--%s[", many ? "*" : "", row->name);
  put_help(out, row->help, "\\[]:", "'\\''");
  putc(']', out);
  if (row->type != RF_OPTION_FLAG) {
    fprintf(out, "%s%s:", row->bare ? "::" : ":", rf_option_unit(row));
    if (row->choices) {
      putc('(', out);
      put_choices(out, row->choices, false);
      putc(')', out);
    } else fputs(takes_file(row) ? "_files" : " ", out);
  }
  fputs("'\n", out);
}

static void put_zsh(FILE *out, const rf_commands *commands) {
  fputs("#compdef rafter\n# zsh completion of rafter, made from its options table\n_rafter() {\n"
        "  local -a commands options\n  commands=(\n",
        out);
  for (int c = 0; c < commands->count; ++c) {
    fprintf(out, "    '%s:", commands->command[c]->name);
    put_help(out, commands->command[c]->help, "\\:", "'\\''");
    fputs("'\n", out);
  }
  fputs("  )\n  if (( CURRENT == 2 )); then\n    _describe command commands\n    return\n  fi\n"
        "  shift words\n  (( CURRENT-- ))\n  case $words[1] in\n",
        out);
  for (int c = 0; c < commands->count; ++c) {
    const rf_option *rows[RF_OPTION_ROWS];
    int count = rf_command_options(commands->command[c], rows, RF_OPTION_ROWS);
    fprintf(out, "    %s) options=(\n", commands->command[c]->name);
    for (int i = 0; i < count; ++i) put_zsh_option(out, rows[i]);
    fputs("      '--help[common options]'\n      '--help-all[all options]'\n    ) ;;\n", out);
  }
  fputs("  esac\n  _arguments $options '*:argument:_files'\n}\n"
        "if [ \"$funcstack[1]\" = _rafter ]; then _rafter \"$@\"; else compdef _rafter rafter; fi\n",
        out);
}

static void put_fish(FILE *out, const rf_commands *commands) {
  fputs("# fish completion of rafter, made from its options table\nfunction __rafter_command\n"
        "  set -l words (commandline -opc)\n"
        "  test (count $words) -gt 1; and test $words[2] = $argv[1]\nend\n",
        out);
  for (int c = 0; c < commands->count; ++c) {
    const rf_command *command = commands->command[c];
    const rf_option *rows[RF_OPTION_ROWS];
    int count = rf_command_options(command, rows, RF_OPTION_ROWS);
    fprintf(out, "complete -c rafter -n 'test (count (commandline -opc)) -eq 1' -f -a %s -d '",
            command->name);
    put_help(out, command->help, "\\", "\\'");
    fputs("'\n", out);
    for (int i = 0; i < count; ++i) {
      fprintf(out, "complete -c rafter -n '__rafter_command %s' -l %s", command->name, rows[i]->name);
      if (rows[i]->choices) {
        fputs(" -x -a '", out);
        put_choices(out, rows[i]->choices, true);
        putc('\'', out);
      } else if (rows[i]->type != RF_OPTION_FLAG && !rows[i]->bare)
        fputs(takes_file(rows[i]) ? " -r -F" : " -x", out);
      fputs(" -d '", out);
      put_help(out, rows[i]->help, "\\", "\\'");
      fputs("'\n", out);
    }
    fprintf(out,
            "complete -c rafter -n '__rafter_command %s' -l help -d 'common options'\n"
            "complete -c rafter -n '__rafter_command %s' -l help-all -d 'all options'\n",
            command->name, command->name);
  }
}

static const struct {
  const char *shell;
  void (*put)(FILE *out, const rf_commands *commands);
} SHELLS[] = {{"bash", put_bash}, {"zsh", put_zsh}, {"fish", put_fish}};

char *rf_options_completion(const rf_commands *commands, const char *shell) {
  for (size_t i = 0; i < sizeof SHELLS / sizeof *SHELLS; i++)
    if (!strcmp(SHELLS[i].shell, shell)) return rf_options_print(SHELLS[i].put, commands);
  return NULL;
}
