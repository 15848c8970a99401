/* test_max_seconds.c - runs with --max-seconds end in time, also if the disk is slow: the first
 * checkpoint of a run is foreseen. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/base.h"
#include "rafter.h"
#include "support/scratch.h"

#define MODEL "llama:layers=1,width=32,heads=2,kv_heads=1,ff=64,vocab=257,seq=32"
#define LIMIT "4"

static const double WAIT = 0.1; /* seconds in which a file of the slow disk is synced */
static int syncs;

/* Replaces the function of the C library: a disk that is slow to answer. */
int fsync(int file) {
  (void)file;
  syncs++;
  usleep((useconds_t)(WAIT * 1e6));
  return 0;
}

static void quiet(void *self, const char *text) {
  (void)self;
  (void)text;
}

/* Runs a command whose steps would never end. Returns its seconds. */
static double run(const char *command, char **argv, int argc) {
  rafter_error error = {0};
  rafter_sink sink = {.size = sizeof sink, .text = quiet, .note = quiet};
  rafter_job *job = NULL;
  syncs = 0;
  double began = rf_now_seconds();
  if (rafter_job_new(command, &job, &error) != RAFTER_OK ||
      rafter_job_parse(job, argc, argv, &error) != RAFTER_OK || rafter_run(job, &sink, &error) != RAFTER_OK)
    fail_msg("%s: %s (%s)", command, error.message, error.hint);
  rafter_job_free(job);
  return rf_now_seconds() - began;
}

/* Without an estimate, all files of the last checkpoint are late, which waits for the disk 12
 * times or more. Half of this time is left for a busy machine. */
static void ends_in_time(const char *command, char **argv, int argc) {
  double seconds = run(command, argv, argc), late = seconds - atof(LIMIT);
  print_message("%s: %.2f s, %d syncs\n", command, seconds, syncs);
  assert_true(syncs >= 12);
  if (late > WAIT * 12 / 2) fail_msg("%s: %.2f s late", command, late);
}

static void write_text(const char *name, const char *line, int count) {
  FILE *file = fopen(at(name), "w");
  assert_non_null(file);
  for (int i = 0; i < count; i++) fprintf(file, line, i);
  fclose(file);
}

static void a_training_run_ends_in_time(void **state) {
  (void)state;
  write_text("text.txt", "line %d of a text\n", 400);
  char data[256], out[256];
  snprintf(data, sizeof data, "%s", at("text.txt"));
  snprintf(out, sizeof out, "%s", at("train"));
  char *argv[] = {MODEL,       "--data",        data,  "--out",        out, "--threads",   "1", "--steps",
                  "100000000", "--max-seconds", LIMIT, "--save-every", "0", "--val-every", "0"};
  ends_in_time("train", argv, sizeof argv / sizeof *argv);
}

static void reinforcement_learning_ends_in_time(void **state) {
  (void)state;
  write_text("prompts.jsonl", "{\"prompt\": \"count %d\"}\n", 8);
  char data[256], out[256];
  snprintf(data, sizeof data, "%s", at("prompts.jsonl"));
  snprintf(out, sizeof out, "%s", at("rl"));
  char *argv[] = {MODEL, "--lora",   "rank=2",    "--data",        data,  "--out",        out, "--threads",
                  "1",   "--steps",  "100000000", "--max-seconds", LIMIT, "--save-every", "0", "--max-tokens",
                  "4",   "--reward", "length=3"};
  ends_in_time("rl", argv, sizeof argv / sizeof *argv);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_training_run_ends_in_time),
      cmocka_unit_test(reinforcement_learning_ends_in_time),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
