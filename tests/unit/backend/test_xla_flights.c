/* test_xla_flights.c - executions that start before the previous one has ended. */
#include "support/fake_client.h"

#include <signal.h>

#include "backend/xla/client_parts.h"

/* Two programs run at a time. The second one reads the first one's result, and takes its buffer. */
static void launches_run_ahead(void **state) {
  (void)state;
  rf_xla_shared shared;
  rf_xla_client *client = open_fake("");
  GOOD(rf_xla_share(client, 4096, &shared, &fault));
  float *data = shared.data;
  rf_xla_argument argument = {.at = 0, .shape = {RF_F32, 1, {4}}};
  rf_xla_result result = {.keep = true, .at = 64, .bytes = 16};
  rf_xla_call call = {compiled(client, "good", 1), 1, 1, 1, &argument, &result, &shared};
  const bool donated = true, *none = NULL;
  for (int i = 0; i < 4; i++) data[i] = (float)(i + 1);
  assert_int_equal(rf_xla_land(client, &fault), RAFTER_FAILED);
  says(&fault, "no execution has been launched");
  GOOD(rf_xla_launch(client, &call, none, &fault));
  for (int i = 0; i < 9; i++) {
    argument.buffer = result.buffer;
    result.at = 64 + 32 * (i % 2);
    GOOD(rf_xla_launch(client, &call, &donated, &fault));
    assert_int_equal(rf_xla_launch(client, &call, none, &fault), RAFTER_FAILED);
    says(&fault, "2 executions run already");
    assert_int_equal(rf_xla_get(client, argument.buffer, &shared, 512, 16, &fault), RAFTER_FAILED);
    GOOD(rf_xla_land(client, &fault));
  }
  GOOD(rf_xla_land(client, &fault));
  assert_int_equal(rf_xla_times_of(client).calls, 10);
  for (int k = 0; k < 2; k++) assert_true(data[16 + 8 * k + 3] == 4);
  assert_int_equal(living(client, &shared), 2); /* the result, and the array that the program keeps */
  /* a program is freed only after its executions */
  argument.buffer = result.buffer;
  GOOD(rf_xla_launch(client, &call, none, &fault));
  rf_xla_free(client, &result.buffer, 1);
  rf_xla_program_free(client, call.program);
  assert_int_equal(rf_xla_land(client, &fault), RAFTER_FAILED);
  says(&fault, "no execution has been launched");
  rf_xla_free(client, &argument.buffer, 1);
  assert_int_equal(living(client, &shared), 0);
  rf_xla_unshare(client, &shared);
  rf_xla_close(client);
}

/* A result that nobody copies or names is free before its execution ends. */
static void unwanted_results_are_free_in_flight(void **state) {
  (void)state;
  rf_xla_shared shared;
  rf_xla_client *client = open_fake("");
  GOOD(rf_xla_share(client, 4096, &shared, &fault));
  rf_xla_argument argument = {.at = 0, .shape = {RF_F32, 1, {4}}};
  rf_xla_result result = {.at = -1, .bytes = 16};
  rf_xla_call call = {compiled(client, "good", 1), 1, 1, 1, &argument, &result, &shared};
  GOOD(rf_xla_launch(client, &call, NULL, &fault));
  assert_int_equal(living(client, &shared), 1); /* the array that the program keeps */
  GOOD(rf_xla_land(client, &fault));
  result.at = 64;
  GOOD(rf_xla_launch(client, &call, NULL, &fault));
  assert_int_equal(living(client, &shared), 2); /* also the result that is copied */
  GOOD(rf_xla_land(client, &fault));
  assert_int_equal(living(client, &shared), 1);
  rf_xla_unshare(client, &shared);
  rf_xla_close(client);
}

/* Failures that show only when the host waits, of the first or the second of two programs. */
static void faults_in_flight_are_reported(void **state) {
  (void)state;
  static const char *const FAULTS[] = {"fake.late_refuse", "fake.late_abort"},
                           *const SAYS[] = {"the execution failed late", "Check failed: a late result"};
  for (int f = 0; f < 4; f++) {
    rf_xla_shared shared;
    rf_xla_client *client = open_fake("");
    GOOD(rf_xla_share(client, 4096, &shared, &fault));
    rf_xla_argument argument = {.at = 0, .shape = {RF_F32, 1, {4}}};
    rf_xla_result result = {.keep = true, .at = 64, .bytes = 16};
    rf_xla_call call = {0, 1, 1, 1, &argument, &result, &shared};
    const rf_xla_id good = compiled(client, "good", 1), bad = compiled(client, FAULTS[f % 2], 1);
    call.program = f < 2 ? bad : good;
    GOOD(rf_xla_launch(client, &call, NULL, &fault));
    call.program = f < 2 ? good : bad;
    GOOD(rf_xla_launch(client, &call, NULL, &fault));
    rf_status first = rf_xla_land(client, &fault);
    assert_int_equal(first, f < 2 ? RAFTER_FAILED : RAFTER_OK);
    if (f >= 2) assert_int_equal(rf_xla_land(client, &fault), RAFTER_FAILED);
    says(&fault, SAYS[f % 2]);
    assert_int_equal(rf_xla_lost(client), f % 2);
    if (f == 0) GOOD(rf_xla_land(client, &fault));
    rf_xla_close(client);
  }
}

/* The child is killed while a program runs, and while nobody waits for it. */
static void a_child_killed_in_flight_is_reported(void **state) {
  (void)state;
  for (int land = 0; land < 2; land++) {
    rf_xla_shared shared;
    rf_xla_client *client = open_fake("");
    GOOD(rf_xla_share(client, 4096, &shared, &fault));
    rf_xla_argument argument = {.at = 0, .shape = {RF_F32, 1, {4}}};
    rf_xla_result result = {.keep = true, .at = 64, .bytes = 16};
    rf_xla_call call = {compiled(client, "good", 1), 1, 1, 1, &argument, &result, &shared};
    GOOD(rf_xla_launch(client, &call, NULL, &fault));
    kill(client->child, SIGKILL);
    rf_status status = land ? rf_xla_land(client, &fault) : rf_xla_launch(client, &call, NULL, &fault);
    assert_int_equal(status, RAFTER_FAILED);
    says(&fault, "signal 9 (Killed)");
    assert_true(rf_xla_lost(client));
    assert_int_equal(rf_xla_land(client, &fault), RAFTER_FAILED);
    rf_xla_unshare(client, &shared);
    rf_xla_close(client);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(launches_run_ahead),
      cmocka_unit_test(unwanted_results_are_free_in_flight),
      cmocka_unit_test(faults_in_flight_are_reported),
      cmocka_unit_test(a_child_killed_in_flight_is_reported),
  };
  return cmocka_run_group_tests_name("backend/xla_flights", tests, make_folder, remove_folder);
}
