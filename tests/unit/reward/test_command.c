/* test_command.c - rewards from a program: shell programs that answer, and programs with each
 * fault. Each fault is one error, and no process is left. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <sys/wait.h>

#include "reward/command.h"
#include "reward/reward.h"
#include "support/rewards.h"
#include "support/files.h"
#include "support/scratch.h"

/* A program whose reward is the answer, which is a number. */
#define REPLY "{\"id\":\\1,\"reward\":\\2}"
#define GOOD "sed -u 's/^{\"id\":\\([0-9]*\\),.*\"answer\":\"\\([0-9.]*\\)\".*/" REPLY "/'"
/* A program that reads a line, does something, and then does not end. */
#define AFTER(what) "read x; " what "; sleep 1000"
#define SAYS(line) AFTER("echo '" line "'")

static char said[1 << 20];
static void say(void *self, const char *line) {
  (void)self;
  size_t bytes = strlen(said);
  snprintf(said + bytes, sizeof said - bytes, "%s\n", line);
}

static rf_rewards *open_command(rf_reward_options o) {
  rf_rewards *r = NULL;
  rf_error error = {0};
  o.say = say;
  *said = 0;
  if (rf_rewards_open(&o, &r, &error) != RAFTER_OK) fail_msg("%s: %s", o.command, error.message);
  return r;
}

/* After a run, this process has no child. */
static void close_all(rf_rewards *r) {
  rf_rewards_close(r);
  assert_true(waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD);
}

static rf_reward_row row_of(const char *answer) {
  return (rf_reward_row){.id = "q1", .prompt = "P", .answer = answer, .bytes = strlen(answer)};
}

static void answers(void **state) {
  (void)state;
  enum { ROWS = 200 };
  rf_error error = {0};
  for (int workers = 1; workers <= 5; workers += 4) {
    rf_reward_row row[ROWS];
    char text[ROWS][8];
    static double total[ROWS], parts[ROWS * RF_REWARDS];
    rf_rewards *r = open_command((rf_reward_options){.command = GOOD, .workers = workers});
    assert_int_equal(rf_rewards_count(r), 1);
    assert_string_equal(rf_rewards_name(r, 0), "command");
    for (int i = 0; i < ROWS; i++) {
      snprintf(text[i], sizeof text[i], "%d.25", i);
      row[i] = row_of(text[i]);
    }
    if (rewards_score(r, row, ROWS, total, parts, &error) != RAFTER_OK) fail_msg("%s", error.message);
    for (int i = 0; i < ROWS; i++) assert_true(total[i] == i + 0.25 && parts[i * RF_REWARDS] == i + 0.25);
    close_all(r);
    assert_string_equal(said, "");
  }
}

/* The caller continues while the program computes, and rules are computed, too. */
static void in_parts(void **state) {
  (void)state;
  const char *list = "regex=5:10,command:2";
  double total[2], parts[2 * RF_REWARDS];
  rf_rewards *r = open_command((rf_reward_options){.list = &list, .lists = 1, .command = GOOD});
  const rf_reward_row first = row_of("5"), second = row_of("6");
  assert_int_equal(rf_rewards_submit(r, &first, &total[0], parts, NULL), RAFTER_OK);
  assert_int_equal(rf_rewards_submit(r, &second, &total[1], parts + RF_REWARDS, NULL), RAFTER_OK);
  assert_int_equal(rf_rewards_pending(r), 2);
  assert_true(isnan(total[0]) && isnan(total[1])); /* until they are collected */
  while (rf_rewards_pending(r)) {
    assert_int_equal(rf_rewards_collect(r, false, 0, NULL), RAFTER_OK);
    usleep(1000);
  }
  assert_true(total[0] == 20 && total[1] == 12);
  assert_true(parts[0] == 1 && parts[1] == 5 && isnan(parts[2]));
  assert_int_equal(rf_rewards_collect(r, true, 0, NULL), RAFTER_OK);
  close_all(r);
}

/* Reads the line that the program got. */
static void request(void **state) {
  (void)state;
  char command[400], text[2000];
  const char answer[] = {'a', '"', '\n', 0, (char)0xff, 'b'};
  json_t *all = json_pack("{ss ss s[ii]}", "id", "q9", "answer", "4", "more", 1, 2);
  double total, parts[RF_REWARDS];
  snprintf(command, sizeof command, "read -r x; printf '%%s' \"$x\" >%s; echo '{\"reward\":1,\"id\":1}'; cat",
           at("request"));
  rf_rewards *r = open_command((rf_reward_options){.command = command});
  const rf_reward_row row = {
      .id = "q9", .prompt = "2+2?", .answer = answer, .bytes = sizeof answer, .reference = "4", .row = all};
  assert_int_equal(rewards_score(r, &row, 1, &total, parts, NULL), RAFTER_OK);
  close_all(r);
  FILE *file = fopen(at("request"), "r");
  text[fread(text, 1, sizeof text - 1, file)] = 0;
  fclose(file);
  assert_string_equal(text,
                      "{\"id\":1,\"prompt\":\"2+2?\",\"answer\":\"a\\\"\\n\\u0000\xef\xbf\xbd"
                      "b\",\"reference\":\"4\",\"row\":{\"id\":\"q9\",\"answer\":\"4\",\"more\":[1,2]}}");
  json_decref(all);
}

/* The reward program does not get the variables by which a process finds that it is a rank. */
static void without_launcher(void **state) {
  (void)state;
  static const char *const NAME[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK",     "PMIX_RANK",
                                     "MPI_LOCALNRANKS",      "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"};
  double total, parts[RF_REWARDS];
  const rf_reward_row row = row_of("1");
  for (size_t i = 0; i < sizeof NAME / sizeof *NAME; i++) setenv(NAME[i], "1", 1);
  setenv("SLURM_JOB_ID", "7", 1);
  rf_rewards *r = open_command(
      (rf_reward_options){.command = "n=$(env | grep -cE '^(OMPI_COMM_WORLD_RANK|PMI_RANK|PMIX_RANK|"
                                     "MPI_LOCALNRANKS|SLURM_PROCID|SLURM_STEP_NUM_TASKS)='); "
                                     "m=$(env | grep -c '^SLURM_JOB_ID=7$'); while read -r x; do "
                                     "echo '{\"id\":1,\"reward\":'$((10 * n + m))'}'; done"});
  assert_int_equal(rewards_score(r, &row, 1, &total, parts, NULL), RAFTER_OK);
  close_all(r);
  for (size_t i = 0; i < sizeof NAME / sizeof *NAME; i++) unsetenv(NAME[i]);
  unsetenv("SLURM_JOB_ID");
  assert_true(total == 1); /* only SLURM_JOB_ID */
}

static void components(void **state) {
  (void)state;
  double total[2], parts[2 * RF_REWARDS];
  const rf_reward_row rows[] = {row_of("1"), row_of("2")};
  rf_rewards *r = open_command((rf_reward_options){
      .command = "read x; echo '{\"id\":1,\"reward\":3,\"rewards\":{\"style\":0.5,\"facts\":-2}}'; "
                 "read x; echo '{\"id\":2,\"reward\":4,\"rewards\":{\"facts\":7,\"z\":0}}'; cat"});
  assert_int_equal(rewards_score(r, rows, 2, total, parts, NULL), RAFTER_OK);
  assert_true(total[0] == 3 && total[1] == 4);
  assert_int_equal(rf_rewards_count(r), 4);
  assert_string_equal(rf_rewards_name(r, 1), "command.style");
  assert_string_equal(rf_rewards_name(r, 3), "command.z");
  assert_true(rf_rewards_weight(r, 1) == 0);
  assert_true(parts[1] == 0.5 && parts[2] == -2 && isnan(parts[3]));
  assert_true(isnan(parts[RF_REWARDS + 1]) && parts[RF_REWARDS + 2] == 7 && parts[RF_REWARDS + 3] == 0);
  close_all(r);
}

/* The program of the documentation. */
static void documented(void **state) {
  (void)state;
  if (system("python3 -c pass 2>/dev/null")) skip_for("python3 is missing");
  char command[600];
  rf_error error = {0};
  double total, parts[RF_REWARDS];
  rf_reward_row row = row_of("It is 4.");
  row.reference = "4";
  snprintf(command, sizeof command,
           "cat docs/rl*.md | sed -n '/^```python/,/^```/{/^```/!p}' >%s && exec python3 %s", at("reward.py"),
           at("reward.py"));
  rf_rewards *r = open_command((rf_reward_options){.command = command});
  if (rewards_score(r, &row, 1, &total, parts, &error) != RAFTER_OK) fail_msg("%s", error.message);
  assert_true(total == 1 + 0.1 * 0.25 && parts[1] == 1 && parts[2] == 0.25);
  close_all(r);
}

/* ---- faults ---------------------------------------------------------------------------------- */

static void expect_fault(const char *command, double seconds, const char *answer, const char *message) {
  rf_error error = {0};
  double total[2], parts[2 * RF_REWARDS];
  const rf_reward_row rows[] = {row_of(answer), row_of(answer)};
  rf_rewards *r = open_command((rf_reward_options){.command = command, .timeout_seconds = seconds});
  rf_status status = rewards_score(r, rows, 2, total, parts, &error);
  if (status != RAFTER_FAILED || !strstr(error.message, message) || !*error.hint)
    fail_msg("%s: status %d, expected '%s', got '%s' (%s)", command, (int)status, message, error.message,
             error.hint);
  assert_int_equal(rf_rewards_collect(r, true, 0, &error), RAFTER_FAILED);
  close_all(r);
}

static void wrong_lines(void **state) {
  (void)state;
  static const char *const CASES[][2] = {
      {SAYS("hello"), "wrote a wrong line: expected a JSON object, got 'hello' (row q1, answer 1)"},
      {SAYS("[1]"), "expected a JSON object, got '[1]'"},
      {SAYS("{\"id\":1,\"id\":1,\"reward\":1}"), "expected a JSON object"},
      {SAYS("{\"id\":2,\"reward\":1}"), "\"id\": expected 1, got 2 (row q1, answer 1)"},
      {SAYS("{\"id\":\"1\",\"reward\":1}"), "\"id\": expected 1, got \"1\""},
      {SAYS("{\"reward\":1}"), "\"id\": expected 1, got nothing"},
      {SAYS("{\"id\":1}"), "\"reward\": expected a number from -1e9 to 1e9, got nothing"},
      {SAYS("{\"id\":1,\"reward\":\"1\"}"), "\"reward\": expected a number from -1e9 to 1e9, got \"1\""},
      {SAYS("{\"id\":1,\"reward\":null}"), "got null"},
      {SAYS("{\"id\":1,\"reward\":true}"), "got true"},
      {SAYS("{\"id\":1,\"reward\":NaN}"), "expected a JSON object, got '{\"id\":1,\"reward\":NaN}'"},
      {SAYS("{\"id\":1,\"reward\":-Infinity}"), "expected a JSON object"},
      {SAYS("{\"id\":1,\"reward\":1e999}"), "expected a JSON object"},
      {SAYS("{\"id\":1,\"reward\":1e10}"), "got 10000000000"},
      {SAYS("{\"id\":1,\"reward\":1,\"rewards\":[1]}"), "\"rewards\": expected an object, got [1]"},
      {SAYS("{\"id\":1,\"reward\":1,\"rewards\":{\"a\":\"x\"}}"), "\"rewards\", \"a\": expected a name"},
      {SAYS("{\"id\":1,\"reward\":1,\"rewards\":{\"\":1}}"), "\"rewards\", \"\": expected a name"},
      {AFTER("head -c 3000000 /dev/zero | tr '\\0' x"), "wrote a line of more than 1 MiB (row q1, answer 1)"},
      {AFTER("yes x"), "wrote a wrong line: expected a JSON object, got 'x'"},
      {AFTER("echo '{\"id\":1,\"reward\":1}'; read x; echo '{\"id\":1,\"reward\":1}'"),
       "\"id\": expected 2, got 1, the id of an earlier line (row q1, answer 2)"},
  };
  for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) expect_fault(CASES[i][0], 60, "5", CASES[i][1]);
  expect_fault("echo early; sleep 1000", 60, "5", "early'");
}

static void ends(void **state) {
  (void)state;
  expect_fault("exit 3", 60, "5", "the reward command ended with exit status 3 (");
  expect_fault("rafter-has-no-such-program", 60, "5", "ended with exit status 127 (");
  expect_fault("rafter-has-no-such-program", 60, "5", "not found");
  expect_fault("if", 60, "5", "ended with exit status 2");
  expect_fault("read x; kill -9 $$", 60, "5", "was ended by signal 9 (Killed) (row q1, answer 1)");
  expect_fault("read x; echo one >&2; echo 'two: three' >&2; exit 1", 60, "5",
               "ended with exit status 1 (row q1, answer 1; its last line on stderr: two: three)");
  assert_string_equal(said, "one\ntwo: three\n");
  expect_fault("read x; printf 'no newline' >&2; exit 1", 60, "5", "its last line on stderr: no newline)");
  expect_fault("read x; printf '{\"id\":1'", 60, "5", "expected a JSON object, got '{\"id\":1'");
  expect_fault("read x; echo '{\"id\":1,\"reward\":1}'", 60, "5", "ended with exit status 0 (");
  expect_fault("sleep 1000 & exit 0", 60, "5", "ended with exit status 0 (row q1, answer 1)");
  expect_fault("read x; sleep 1000 & echo '{\"id\":1,\"reward\":1}'", 60, "5",
               "ended with exit status 0 (row q1, answer 2)");
  expect_fault("exec >&-; sleep 1000", 60, "5", "closed its standard output, but did not end (");
  expect_fault("exec <&-; sleep 1000", 60, "5",
               "closed its standard input, but did not end (row q1, answer 1)");
}

static void hangs(void **state) {
  (void)state;
  size_t bytes = 1 << 20;
  char *large = malloc(bytes + 1);
  memset(large, 'a', bytes);
  large[bytes] = 0;
  expect_fault("sleep 1000", 0.1, "5", "the reward command gave no reward in 0.1 s (row q1, answer 1)");
  expect_fault("cat >/dev/null", 0.1, "5", "gave no reward in 0.1 s");
  expect_fault("while true; do echo; done", 0.1, "5", "gave no reward in 0.1 s");
  expect_fault("trap '' TERM INT HUP; sleep 1000", 0.1, large, "did not read its input in 0.1 s");
  free(large);
}

static void stderr_is_bounded(void **state) {
  (void)state;
  double total, parts[RF_REWARDS];
  const rf_reward_row row = row_of("5");
  rf_rewards *r = open_command((rf_reward_options){.command = "yes abc | head -c 1000000 >&2; " GOOD});
  assert_int_equal(rewards_score(r, &row, 1, &total, parts, NULL), RAFTER_OK);
  close_all(r);
  assert_true(strlen(said) < (1 << 16) + 200);
  assert_non_null(
      strstr(said, "abc\n(the reward command wrote 64 KiB to stderr; further lines are not shown)"));
}

static void restarts(void **state) {
  (void)state;
  char command[600];
  rf_error error = {0};
  double total[3], parts[3 * RF_REWARDS];
  const rf_reward_row rows[] = {row_of("5"), row_of("6"), row_of("7")};
  /* ends once, after the second answer */
  snprintf(command, sizeof command,
           "if [ ! -e %s ]; then touch %s; head -n 1 | " GOOD "; read x; exit 1; fi; " GOOD, at("marker"),
           at("marker"));
  rf_rewards *r = open_command((rf_reward_options){.command = command, .retries = 1});
  if (rewards_score(r, rows, 3, total, parts, &error) != RAFTER_OK) fail_msg("%s", error.message);
  assert_true(total[0] == 5 && total[1] == 6 && total[2] == 7);
  close_all(r);
  assert_non_null(strstr(said, "; it is started again\n"));
  /* an answer that always ends it */
  r = open_command((rf_reward_options){.command = "read x; exit 1", .retries = 2, .workers = 2});
  assert_int_equal(rewards_score(r, rows, 3, total, parts, &error), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "ended with exit status 1 (row q1, answer "));
  close_all(r);
  /* late replies, too */
  r = open_command((rf_reward_options){.command = "sleep 1000", .retries = 1, .timeout_seconds = 0.05});
  assert_int_equal(rewards_score(r, rows, 1, total, parts, &error), RAFTER_FAILED);
  assert_non_null(strstr(said, "gave no reward in 0.05 s (row q1, answer 1); it is started again\n"));
  close_all(r);
}

/* True if a process runs. A zombie that nobody reaped does not run. */
static bool runs(int pid) {
  char path[64], state = 'Z';
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  FILE *file = fopen(path, "r");
  if (!file) return false;
  if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1) state = 'Z';
  fclose(file);
  return state != 'Z';
}

/* Processes that the program started end with it, also if they ignore signals. */
static void whole_group_ends(void **state) {
  (void)state;
  char command[400];
  int pid = 0;
  double total, parts[RF_REWARDS];
  const rf_reward_row row = row_of("5");
  snprintf(command, sizeof command, "trap '' TERM INT HUP; sleep 1000 & echo $! >%s; " GOOD "; sleep 1000",
           at("pid"));
  rf_rewards *r = open_command((rf_reward_options){.command = command});
  assert_int_equal(rewards_score(r, &row, 1, &total, parts, NULL), RAFTER_OK);
  FILE *file = fopen(at("pid"), "r");
  assert_int_equal(fscanf(file, "%d", &pid), 1);
  fclose(file);
  assert_true(runs(pid));
  close_all(r);
  for (int i = 0; i < 1000 && runs(pid); i++) usleep(1000); /* a signal needs a moment */
  assert_false(runs(pid));
}

/* The program may end by itself after its input has ended. */
static void last_words(void **state) {
  (void)state;
  char command[400], text[20] = "";
  double total, parts[RF_REWARDS];
  const rf_reward_row row = row_of("5");
  snprintf(command, sizeof command, GOOD "; echo bye >&2; echo saved >%s", at("saved"));
  rf_rewards *r = open_command((rf_reward_options){.command = command});
  assert_int_equal(rewards_score(r, &row, 1, &total, parts, NULL), RAFTER_OK);
  close_all(r);
  assert_string_equal(said, "bye\n");
  FILE *file = fopen(at("saved"), "r");
  assert_true(file && fgets(text, sizeof text, file));
  fclose(file);
  assert_string_equal(text, "saved\n");
}

static void stops(void **state) {
  (void)state;
  volatile int stop = 1;
  rf_error error = {0};
  double total, parts[RF_REWARDS];
  const rf_reward_row row = row_of("5");
  rf_rewards *r = open_command((rf_reward_options){.command = "sleep 1000", .stop = &stop});
  assert_int_equal(rewards_score(r, &row, 1, &total, parts, &error), RAFTER_INTERRUPTED);
  assert_true(isnan(total));
  close_all(r);
}

/* Opening and closing at once leaves nothing, also if the program is slow to start. */
static void unused(void **state) {
  (void)state;
  for (int i = 0; i < 20; i++) close_all(open_command((rf_reward_options){.command = GOOD, .workers = 3}));
  rf_rewards *r = open_command((rf_reward_options){.command = "touch started", .elsewhere = true});
  rf_error error = {0};
  assert_string_equal(rf_rewards_name(r, 0), "command");
  close_all(r);
  assert_int_equal(access("started", F_OK), -1);
  assert_int_equal(rf_rewards_open(&(rf_reward_options){.command = " "}, &r, &error), RAFTER_INVALID);
  assert_non_null(strstr(error.message, "--reward-command is empty"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(answers),           cmocka_unit_test(in_parts),   cmocka_unit_test(request),
      cmocka_unit_test(without_launcher),  cmocka_unit_test(components), cmocka_unit_test(documented),
      cmocka_unit_test(wrong_lines),       cmocka_unit_test(ends),       cmocka_unit_test(hangs),
      cmocka_unit_test(stderr_is_bounded), cmocka_unit_test(restarts),   cmocka_unit_test(whole_group_ends),
      cmocka_unit_test(last_words),        cmocka_unit_test(stops),      cmocka_unit_test(unused)};
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
