/* test_trainer_save.c - a trainer of rafter.h saves to a new folder or over a checkpoint, but never
 * over other files. */
#include "support/job.h"
#include "support/scratch.h"

#include <sys/stat.h>

static rafter_trainer *open_trainer(void) {
  static const char *const OPTIONS[][2] = {{"model", "gpt:layers=1,width=16,heads=1,ff=16,vocab=256,seq=8"},
                                           {"data", "random:seed=0"},
                                           {"threads", "1"},
                                           {"batch", "1"},
                                           {NULL}};
  rafter_job *job = job_of("train", OPTIONS);
  rafter_trainer *t = NULL;
  OK(rafter_trainer_open(job, &t, &error));
  rafter_job_free(job);
  return t;
}

static void other_files_stay(void **state) {
  (void)state;
  char mine[300], file[400];
  rafter_trainer *t = open_trainer();
  snprintf(mine, sizeof mine, "%s", at("mine"));
  snprintf(file, sizeof file, "%s/thesis.txt", mine);
  assert_int_equal(mkdir(mine, 0700), 0);
  FILE *text = fopen(file, "w");
  assert_non_null(text);
  fclose(text);
  assert_int_equal(rafter_trainer_save(t, mine, &error), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "not a checkpoint's"));
  assert_int_equal(access(file, F_OK), 0);
  assert_int_equal(unlink(file), 0);
  OK(rafter_trainer_save(t, mine, &error)); /* an empty folder */
  OK(rafter_trainer_save(t, mine, &error)); /* a checkpoint */
  rafter_trainer_close(t);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(other_files_stay)};
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
