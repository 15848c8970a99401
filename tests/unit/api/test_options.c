/* test_options.c - checks that every row of the options tables is valid, every kind of value is
 * read, and every mistake gets an error with the option's name. */
#include "api/api.h"
#include "base/text.h"

#include <setjmp.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static rf_status parse(const char *command, const char *line, rf_options **options, rf_error *error) {
  char text[1024], *argv[64];
  int argc = 0;
  snprintf(text, sizeof text, "%s", line);
  for (char *rest = text, *word; (word = strsep(&rest, " "));)
    if (*word) argv[argc++] = word;
  *options = NULL;
  if (rf_options_new(&RF_ALL_COMMANDS, command, options, error) != RAFTER_OK) return RAFTER_INVALID;
  rf_status status = rf_options_parse(*options, argc, argv, error);
  if (status == RAFTER_OK) return status;
  rf_options_free(*options);
  *options = NULL;
  return status;
}

static rf_options *good(const char *command, const char *line) {
  rf_options *options;
  rf_error error = {0};
  if (parse(command, line, &options, &error) != RAFTER_OK)
    fail_msg("%s %s: %s", command, line, error.message);
  return options;
}

static int rows_of(const rf_command *command, const rf_option *row[256]) {
  int count = rf_command_options(command, row, 256);
  assert_true(count > 0 && count <= 256);
  return count;
}

static void the_tables_hold_together(void **state) {
  (void)state;
  const rf_option *row[256];
  for (int c = 0; c < RF_ALL_COMMANDS.count; ++c) {
    const rf_command *command = RF_ALL_COMMANDS.command[c];
    rf_options *options = NULL;
    rf_error error = {0};
    int count = rows_of(command, row);
    assert_true(command->run && command->group && strlen(command->help) > 5);
    for (int i = 0; i < count; ++i) {
      assert_true(strlen(row[i]->name) < 60 &&
                  strspn(row[i]->name, "abcdefghijklmnopqrstuvwxyz0123456789-") == strlen(row[i]->name));
      assert_true(row[i]->heading && row[i]->help && strlen(row[i]->help) > 3);
      assert_true((row[i]->type == RF_OPTION_CHOICE) == (row[i]->choices != NULL));
      assert_true(row[i]->least <= row[i]->most);
      for (int j = 0; j < i; ++j) /* A command has each name once. */
        if (!strcmp(row[i]->name, row[j]->name)) fail_msg("%s has --%s twice", command->name, row[i]->name);
    }
    /* Every default is valid for its own row. */
    if (rf_options_new(&RF_ALL_COMMANDS, command->name, &options, &error) != RAFTER_OK)
      fail_msg("%s: %s", command->name, error.message);
    for (int i = 0; i < count; ++i) {
      assert_int_equal(rf_options_source(options, row[i]->name),
                       row[i]->fallback ? RF_OPTION_DEFAULT : RF_OPTION_UNSET);
      assert_false(rf_options_given(options, row[i]->name));
    }
    rf_options_free(options);
  }
}

/* The lists of names in a command contain only existing names. */
static void common_and_chosen_options_exist(void **state) {
  (void)state;
  const rf_option *row[256];
  for (int c = 0; c < RF_ALL_COMMANDS.count; ++c) {
    const rf_command *command = RF_ALL_COMMANDS.command[c];
    int count = rows_of(command, row);
    char names[1024] = "", *rest = names;
    for (const rf_option_use *use = command->options; use->rows; ++use)
      if (use->only) rf_text_append(names, sizeof names, "%s ", use->only);
    rf_text_append(names, sizeof names, "%s", command->common ? command->common : "");
    for (char *word; (word = strsep(&rest, " "));) {
      bool found = !*word;
      for (int i = 0; i < count; ++i) found |= !strcmp(row[i]->name, word);
      if (!found) fail_msg("%s names --%s, which it does not have", command->name, word);
    }
  }
}

/* The examples of --help are command lines that parse. */
static void examples_are_understood(void **state) {
  (void)state;
  for (int c = 0; c < RF_ALL_COMMANDS.count; ++c) {
    const rf_command *command = RF_ALL_COMMANDS.command[c];
    assert_non_null(command->examples[0]);
    for (const char *const *example = command->examples; *example; ++example) {
      char line[256] = "", out = 0;
      bool quoted = false;
      size_t length =
          strstr(*example, " # ") ? (size_t)(strstr(*example, " # ") - *example) : strlen(*example);
      assert_true(length < 92 && !strncmp(*example, command->name, strlen(command->name)));
      for (size_t i = strlen(command->name); i < length; ++i) {
        out = (*example)[i];
        if (out == '\'') quoted = !quoted;
        else rf_text_append(line, sizeof line, "%c", quoted && out == ' ' ? '_' : out);
      }
      assert_false(quoted);
      rf_options_free(good(command->name, line));
    }
  }
}

static void values_are_read(void **state) {
  (void)state;
  rf_options *o = good("train", "uva --batch 64 --seq=4k --lr 3e-5 --max-seconds 2m --data a.txt --json "
                                "--data b.txt:0.5 --remat mlp+attn --weight_decay 0");
  assert_string_equal(rf_options_argument(o, 0), "uva");
  assert_null(rf_options_argument(o, 1));
  assert_int_equal(rf_options_int(o, "batch"), 64);
  assert_int_equal(rf_options_int(o, "seq"), 4096);
  assert_true(rf_options_float(o, "lr") == 3e-5 && rf_options_float(o, "max-seconds") == 120 &&
              rf_options_float(o, "weight-decay") == 0);
  assert_true(rf_options_flag(o, "json") && !rf_options_flag(o, "quiet"));
  assert_int_equal(rf_options_choice(o, "remat"), 3);
  assert_int_equal(rf_options_choice(o, "schedule"), 1);
  assert_string_equal(rf_options_text(o, "data"), "a.txt,b.txt:0.5");
  int count;
  assert_string_equal(rf_options_texts(o, "data", &count)[1], "b.txt:0.5");
  assert_int_equal(count, 2);
  assert_true(rf_options_is_set(o, "steps") && !rf_options_given(o, "steps") &&
              !rf_options_is_set(o, "microbatch"));
  assert_int_equal(rf_options_int(o, "steps"), 1000);
  rf_options_free(o);

  o = good("plan", "--json=false --fit -- --odd-name");
  assert_true(rf_options_bare(o, "fit") && rf_options_given(o, "fit") && !rf_options_flag(o, "json"));
  assert_string_equal(rf_options_argument(o, 0), "--odd-name");
  rf_options_free(o);
  o = good("plan", "--fit 16GiB gpt2 --sweep batch=1..256 --tokens 15T");
  assert_int_equal(rf_options_int(o, "fit"), 16ll << 30);
  assert_int_equal(rf_options_int(o, "tokens"), 15000000000000ll);
  const char *swept;
  const char *const *values;
  assert_int_equal(rf_options_sweep(o, "sweep", &swept, &values), 9);
  assert_string_equal(swept, "batch");
  assert_string_equal(values[8], "256");
  rf_options_free(o);
  /* An option without a value does not take the model as its value. */
  o = good("plan", "--fit gpt2 --sweep dtype=f32,bf16");
  assert_string_equal(rf_options_argument(o, 0), "gpt2");
  assert_int_equal(rf_options_sweep(o, "sweep", &swept, &values), 2);
  assert_string_equal(values[1], "bf16");
  rf_options *copy = rf_options_copy(o);
  rf_options_free(o);
  assert_int_equal(rf_options_set(copy, "batch", "3", NULL), RAFTER_OK);
  assert_int_equal(rf_options_set(copy, "batch", "4", NULL), RAFTER_OK);
  assert_int_equal(rf_options_set(copy, "MODEL", "uva", NULL), RAFTER_OK);
  assert_int_equal(rf_options_int(copy, "batch"), 4);
  assert_string_equal(rf_options_argument(copy, 0), "uva");
  assert_int_equal(rf_options_sweep(copy, "sweep", &swept, &values), 2);
  rf_options_free(copy);
  o = good("generate", "gpt2 --tokens 5,6,10..12:1 --prompt=--x --temperature 0 --stop . --stop ,");
  const int64_t *ids = rf_options_list(o, "tokens", &count);
  assert_true(count == 5 && ids[0] == 5 && ids[4] == 12);
  assert_string_equal(rf_options_text(o, "prompt"), "--x");
  assert_string_equal(rf_options_texts(o, "stop", &count)[1], ",");
  rf_options_free(o);
}

static void mistakes_are_named(void **state) {
  (void)state;
  static const struct {
    const char *command, *line, *message;
  } row[] = {
      {"train", "uva --bacth 4", "did you mean --batch?"},
      {"train", "uva --batch", "--batch needs a value"},
      {"train", "uva --batch --json", "--batch needs a value"},
      {"train", "uva --batch 0", "--batch is out of range (expected 1 to 1048576, got 0)"},
      {"train", "uva --batch -3", "out of range"},
      {"train", "uva --batch 4.5", "not a whole number"},
      {"train", "uva --batch 4x", "not a whole number"},
      {"train", "uva --batch 99999999999999999999", "not a whole number"},
      {"train", "uva --batch 4 --batch 5", "given twice"},
      {"train", "uva --lr fast", "not a number"},
      {"train", "uva --lr nan", "not a number"},
      {"train", "uva --lr -1", "out of range"},
      {"train", "uva --lr 1e999", "not a number"},
      {"train", "uva --dropout 1", "out of range"},
      {"train", "uva --remat mpl", "did you mean 'mlp'?"},
      {"train", "uva --remat mlp|attn", "does not know"},
      {"train", "uva --remat save:", "does not know"},
      {"train", "uva --remat sav:qkv", "does not know"},
      {"train", "uva --json=perhaps", "switch"},
      {"train", "uva --max-seconds 5x", "not a duration"},
      {"train", "uva extra", "'extra'"},
      {"train", "", "train needs MODEL"},
      {"train", "uva -b 4", "unknown option '-b'"},
      {"train", "uva --fit 3GiB", "unknown option --fit"},
      {"train", "uva --config /no/such/file", "/no/such/file"},
      {"plan", "uva --fit 3XiB", "'3XiB'"},
      {"plan", "uva --fit 3", "(expected 1MiB to 1048576TiB, got 3)"},
      {"plan", "uva --fit=16G", "not a size"},
      {"plan", "uva --seq 4q", "not a number of tokens"},
      {"plan", "uva --tokens 0.5", "not a count"},
      {"plan", "uva --sweep batch", "OPTION=LIST"},
      {"plan", "uva --sweep bathc=1,2", "cannot vary 'bathc'"},
      {"plan", "uva --sweep json=1,2", "cannot vary"},
      {"plan", "uva --sweep batch=0,2", "out of range"},
      {"plan", "uva --sweep dtype=f32,f33", "does not know 'f33'"},
      {"plan", "uva --sweep batch=1,,2", "empty"},
      {"generate", "gpt2 --tokens 1,x", "not a list"},
      {"generate", "gpt2 --tokens 5..1", "not a list"},
      {"generate", "gpt2 --tokens 1..10000:1", "too many"},
      {"trian", "uva", "did you mean 'train'?"},
      {"xyzzy", "", "unknown command"},
      {"train", "uv\xff", "not UTF-8"},
      {"train", "uva --out d\xe9p\xf4t", "--out is not UTF-8"},
  };
  for (size_t i = 0; i < sizeof row / sizeof row[0]; ++i) {
    rf_options *o;
    rf_error error = {0};
    rf_status status = parse(row[i].command, row[i].line, &o, &error);
    if (status == RAFTER_OK || !strstr(error.message, row[i].message))
      fail_msg("%s %s: status %d, '%s'", row[i].command, row[i].line, status, error.message);
    if (!strstr(row[i].line, "--config")) assert_int_equal(status, RAFTER_INVALID);
    rf_options_free(o);
  }
}

/* Options of other programs and words without an option: the error or its hint names our option. */
static void our_option_is_named(void **state) {
  (void)state;
  static const struct {
    const char *command, *line, *ours;
  } row[] = {
      {"generate", "gpt2 --repeat-penalty 1.1", "did you mean --repetition-penalty?"},
      {"generate", "gpt2 --do_sample true", "did you mean --temperature?"},
      {"generate", "gpt2 -t 4", "did you mean --threads?"},
      {"generate", "gpt2 -c 4096", "did you mean --seq?"},
      {"generate", "gpt2 --kv-cache-dtype fp8", "did you mean --kv-dtype?"},
      {"generate", "gpt2 --cache-type-k q8_0", "did you mean --kv-dtype?"},
      {"generate", "gpt2 --quantization int8", "did you mean --weights?"},
      {"train", "gpt2 --output_dir runs/1", "did you mean --out?"},
      {"train", "gpt2 --resume-from-checkpoint runs/1", "did you mean --resume?"},
      {"train", "gpt2 --per_device_train_batch_size 8", "did you mean --batch?"},
      {"train", "gpt2 --gradient-checkpointing", "did you mean --remat block?"},
      {"train", "gpt2 --bf16", "did you mean --dtype bf16?"},
      {"train", "gpt2 --warmup_ratio 0.1", "did you mean --warmup STEPS?"},
      {"train", "gpt2 --nproc-per-node 2", "did you mean --mesh data=N?"},
      {"rl", "gpt2 --num-generations 8", "did you mean --samples?"},
      {"plan", "gpt2 --job rl --prompts 8", "did you mean --requests?"},
      {"serve", "gpt2 --lora-modules a=b", "did you mean --adapters?"},
      {"serve", "gpt2 --enable-lora", "did you mean --adapters?"},
      {"serve", "gpt2 --api-key secret", "did you mean --api-key-file?"},
      {"generate", "gpt2 Once", "did you mean --prompt 'Once'?"},
      {"generate", "-m gpt2 Once", "did you mean --prompt 'Once'?"},
      {"generate", "gpt2 prompts.jsonl", "did you mean --input 'prompts.jsonl'?"},
      {"score", "gpt2 rows.jsonl", "did you mean --input 'rows.jsonl'?"},
      {"score", "gpt2 hello", "did you mean --text 'hello'?"},
      {"tokenize", "gpt2 hello", "did you mean --text 'hello'?"},
      {"train", "gpt2 data.txt", "did you mean --data 'data.txt'?"},
      {"rollout", "gpt2 data", "did you mean --input 'data'?"},
      {"eval", "perplexity gpt2 book.txt", "did you mean --data 'book.txt'?"},
      {"plan", "gpt2 h100", "rafter plan MODEL [--option value]"},
      {"export", "gpt2 out third", "rafter export MODEL OUT [--option value]"},
  };
  for (size_t i = 0; i < sizeof row / sizeof row[0]; ++i) {
    rf_options *o;
    rf_error error = {0};
    rf_status status = parse(row[i].command, row[i].line, &o, &error);
    bool named = strstr(error.message, row[i].ours) || strstr(error.hint, row[i].ours);
    if (status != RAFTER_INVALID || !named)
      fail_msg("%s %s: status %d, '%s', '%s'", row[i].command, row[i].line, status, error.message,
               error.hint);
    rf_options_free(o);
  }
}

/* The list of commands has a blank between each name and its text. */
static void help_has_columns(void **state) {
  (void)state;
  char *text = rf_options_help(&RF_ALL_COMMANDS, NULL, false, 100), line[80];
  assert_non_null(text);
  for (int c = 0; c < RF_ALL_COMMANDS.count; ++c) {
    snprintf(line, sizeof line, "\n  %s ", RF_ALL_COMMANDS.command[c]->name);
    if (!strstr(text, line)) fail_msg("no blank after '%s'", line + 1);
  }
  free(text);
}

static void units_are_read(void **state) {
  (void)state;
  int64_t n;
  double s;
  static const struct {
    const char *text;
    int64_t bytes;
  } size[] = {
      {"0", 0},
      {"1048576", 1048576},
      {"16GiB", 16ll << 30},
      {"16GB", 16000000000ll},
      {"1.5KiB", 1536},
      {"2mib", 2 << 20},
      {"7B", 7},
      {"1e3", 1000},
  };
  for (size_t i = 0; i < sizeof size / sizeof size[0]; ++i) {
    assert_int_equal(rf_parse_size(size[i].text, &n, NULL), RAFTER_OK);
    assert_int_equal(n, size[i].bytes);
  }
  const char *not_size[] = {"",     "GiB",    "-1",   "16 GiB", "16G", "1..2",
                            "1e30", "16GiBs", "0x10", "1e400",  "inf"};
  for (size_t i = 0; i < sizeof not_size / sizeof not_size[0]; ++i)
    assert_int_equal(rf_parse_size(not_size[i], &n, NULL), RAFTER_INVALID);
  assert_true(rf_parse_duration("1.5s", &s, NULL) == RAFTER_OK && s == 1.5);
  assert_true(rf_parse_duration("20ms", &s, NULL) == RAFTER_OK && s == 0.02);
  assert_true(rf_parse_duration("90", &s, NULL) == RAFTER_OK && s == 90);
  assert_true(rf_parse_duration("1h", &s, NULL) == RAFTER_OK && s == 3600);
  assert_int_equal(rf_parse_duration("1S", &s, NULL), RAFTER_INVALID);
  assert_int_equal(rf_parse_duration("-1s", &s, NULL), RAFTER_INVALID);
  assert_true(rf_parse_tokens("4k", &n, NULL) == RAFTER_OK && n == 4096);
  assert_true(rf_parse_tokens("128k", &n, NULL) == RAFTER_OK && n == 131072);
  assert_int_equal(rf_parse_tokens("4.0001k", &n, NULL), RAFTER_INVALID);
  assert_true(rf_parse_count("2M", &n, NULL) == RAFTER_OK && n == 2000000);
  assert_true(rf_parse_count("0.3M", &n, NULL) == RAFTER_OK && n == 300000);
  assert_true(rf_parse_count("1e3", &n, NULL) == RAFTER_OK && n == 1000);
  assert_true(rf_parse_count("9223372036854775807", &n, NULL) == RAFTER_OK && n == INT64_MAX);
  assert_int_equal(rf_parse_count("99999999T", &n, NULL), RAFTER_INVALID);
  int64_t list[16];
  int count;
  double floats[4];
  assert_int_equal(rf_parse_floats("0.5,0.25..1", floats, 4, &count, NULL), RAFTER_OK);
  assert_true(count == 4 && floats[0] == 0.5 && floats[1] == 0.25 && floats[2] == 0.5 && floats[3] == 1);
  assert_int_equal(rf_parse_floats("0.1..0.3:0.1", floats, 4, &count, NULL), RAFTER_OK);
  assert_true(count == 3 && fabs(floats[2] - 0.3) < 1e-12);
  static const char *const no_floats[] = {"",       "0",       "-1",    "1,",  "x",        "2..1",
                                          "1..2:0", "1..2:-1", "1e999", "nan", "1..1e300", "0.5..2:0.1"};
  for (size_t i = 0; i < sizeof no_floats / sizeof *no_floats; i++)
    assert_int_equal(rf_parse_floats(no_floats[i], floats, 4, &count, NULL), RAFTER_INVALID);
  assert_int_equal(rf_parse_list("1,2,4", list, 16, &count, NULL), RAFTER_OK);
  assert_int_equal(count, 3);
  assert_int_equal(rf_parse_list("1..256", list, 16, &count, NULL), RAFTER_OK);
  assert_true(count == 9 && list[8] == 256);
  assert_int_equal(rf_parse_list("3..20", list, 16, &count, NULL), RAFTER_OK);
  assert_true(count == 3 && list[2] == 12);
  /* 18 values, room for 16 */
  assert_int_equal(rf_parse_list("64..132:4", list, 16, &count, NULL), RAFTER_INVALID);
  assert_int_equal(rf_parse_list("64..72:4,100", list, 16, &count, NULL), RAFTER_OK);
  assert_true(count == 4 && list[0] == 64 && list[2] == 72 && list[3] == 100);
  assert_int_equal(rf_parse_list("1..9223372036854775807", list, 16, &count, NULL), RAFTER_INVALID);
  assert_int_equal(
      rf_parse_list("9223372036854775806..9223372036854775807:9223372036854775807", list, 16, &count, NULL),
      RAFTER_OK);
  const char *not_list[] = {"", ",", "1,", "a", "1..", "..2", "0..8", "1..8:0", "1:2", "4..2"};
  for (size_t i = 0; i < sizeof not_list / sizeof not_list[0]; ++i)
    assert_int_equal(rf_parse_list(not_list[i], list, 16, &count, NULL), RAFTER_INVALID);
}

static void a_file_is_weaker_than_what_is_typed(void **state) {
  (void)state;
  char path[] = "/tmp/rafter-test-XXXXXX", line[128];
  int fd = mkstemp(path);
  static const char text[] = "{\"model\":\"gpt2\",\"batch\":16,\"lr\":0.001,\"min_lr\":1e-5,\"json\":true,"
                             "\"data\":[\"x\",\"y\"],\"seq\":\"2k\",\"top-k\":5,\"clip\":null}";
  assert_int_equal(write(fd, text, sizeof text - 1), sizeof text - 1);
  close(fd);
  snprintf(line, sizeof line, "--batch 4 --config %s --data z", path);
  rf_options *o = good("train", line);
  assert_string_equal(rf_options_argument(o, 0), "gpt2");
  assert_int_equal(rf_options_int(o, "batch"), 4);
  assert_int_equal(rf_options_int(o, "seq"), 2048);
  assert_true(rf_options_float(o, "lr") == 0.001 && rf_options_float(o, "min-lr") == 1e-5 &&
              rf_options_float(o, "clip") == 1);
  assert_true(rf_options_flag(o, "json") && rf_options_source(o, "lr") == RF_OPTION_CONFIG);
  assert_string_equal(rf_options_text(o, "data"), "z");
  /* The options in a run's record set the same options again, also from inside a run.json. */
  json_t *record = rf_options_json(o), *run = json_pack("{s:O,s:s}", "options", record, "digest", "0");
  rf_options *again = NULL;
  assert_int_equal(rf_options_new(&RF_ALL_COMMANDS, "train", &again, NULL), RAFTER_OK);
  assert_int_equal(rf_options_read_json(again, run, "run.json", NULL), RAFTER_OK);
  json_t *second = rf_options_json(again);
  json_object_del(record, "config");
  assert_true(json_equal(record, second));
  rf_options_free(again);
  json_decref(record);
  json_decref(second);
  json_decref(run);
  rf_options_free(o);
  unlink(path);
  static const char *const bad[] = {"[]",
                                    "{\"bacth\":3}",
                                    "{\"batch\":\"many\"}",
                                    "{\"batch\":[1]}",
                                    "{\"batch\":0}",
                                    "{\"model\":7}",
                                    "{\"data\":[{}]}",
                                    "{\"lr\":true}"};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
    rf_error error = {0};
    json_t *json = json_loads(bad[i], 0, NULL);
    assert_int_equal(rf_options_new(&RF_ALL_COMMANDS, "train", &o, NULL), RAFTER_OK);
    if (rf_options_read_json(o, json, "job.json", &error) != RAFTER_INVALID ||
        !strstr(error.message, "job.json"))
      fail_msg("%s: '%s'", bad[i], error.message);
    json_decref(json);
    rf_options_free(o);
  }
}

/* Whether a line of `help` begins with the option. */
static bool shows(const char *help, const char *option) {
  char name[80];
  snprintf(name, sizeof name, "\n  --%s", option);
  const char *at = strstr(help, name);
  while (at && at[strlen(name)] != ' ' && at[strlen(name)] != '\n') at = strstr(at + 1, name);
  return at != NULL;
}

static void no_wider(const char *help, size_t width) {
  for (const char *at = help; *at; at += strcspn(at, "\n"), at += *at == '\n')
    if (strcspn(at, "\n") > width) fail_msg("wider than %zu: %.120s", width, at);
}

static void help_shows_the_common_rows_and_help_all_every_row(void **state) {
  (void)state;
  char *list = rf_options_help(&RF_ALL_COMMANDS, NULL, false, 100);
  char *man = rf_options_man(&RF_ALL_COMMANDS), *completion = rf_options_completion(&RF_ALL_COMMANDS, "bash");
  const rf_option *row[256];
  for (int c = 0; c < RF_ALL_COMMANDS.count; ++c) {
    const rf_command *command = RF_ALL_COMMANDS.command[c];
    char *common = rf_options_help(&RF_ALL_COMMANDS, command->name, false, 80),
         *all = rf_options_help(&RF_ALL_COMMANDS, command->name, true, 100);
    int count = rows_of(command, row), shown = 0, lines = 0;
    assert_non_null(strstr(list, command->name));
    for (int i = 0; i < count; ++i) {
      assert_true(shows(all, row[i]->name));
      shown += shows(common, row[i]->name);
    }
    for (const char *at = common; *at; ++at) lines += *at == '\n';
    if (lines > 66) fail_msg("rafter %s --help takes %d lines", command->name, lines);
    assert_true(shown >= 4 && shown <= 24 && (command->common || shown == count));
    assert_false(shows(all, "no-such-option"));
    no_wider(common, 94); /* Examples are not wrapped. */
    no_wider(all, 100);
    free(common);
    free(all);
  }
  assert_non_null(strstr(man, "weight\\-decay"));
  assert_non_null(
      strstr(completion, "train:--remat) words='none mlp attn mlp+attn block auto full minimal "));
  free(list);
  free(man);
  free(completion);
}

static void names_that_are_near_are_found(void **state) {
  (void)state;
  assert_int_equal(rf_edit_distance("batch", "bacth"), 1); /* Swapping two letters is one edit. */
  assert_int_equal(rf_edit_distance("kitten", "sitting"), 3);
  assert_int_equal(rf_edit_distance("", "abc"), 3);
  assert_int_equal(rf_edit_distance("Kv_Heads", "kv-heads"), 0);
  const char *names[] = {"batch", NULL, "seq"};
  assert_string_equal(rf_nearest("bach", names, 3), "batch");
  assert_null(rf_nearest("completely-else", names, 3));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_tables_hold_together),
      cmocka_unit_test(common_and_chosen_options_exist),
      cmocka_unit_test(examples_are_understood),
      cmocka_unit_test(values_are_read),
      cmocka_unit_test(mistakes_are_named),
      cmocka_unit_test(our_option_is_named),
      cmocka_unit_test(help_has_columns),
      cmocka_unit_test(units_are_read),
      cmocka_unit_test(a_file_is_weaker_than_what_is_typed),
      cmocka_unit_test(help_shows_the_common_rows_and_help_all_every_row),
      cmocka_unit_test(names_that_are_near_are_found),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
