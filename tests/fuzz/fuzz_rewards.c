/* Reads any bytes as a list of rewards and an answer, or as a reply of a reward command. Either
 * there is one error, or the rewards are finite numbers. The first byte chooses. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "reward/command.h"
#include "reward/reward.h"

static void expect(bool holds) {
  if (!holds) abort();
}

/* The list ends at the first newline, and the answer follows. */
static void give(const char *list, const char *answer, size_t bytes) {
  rf_rewards *rewards = NULL;
  rf_error error = {0};
  double total, parts[RF_REWARDS];
  rf_status status = rf_rewards_open(&(rf_reward_options){.list = &list, .lists = 1}, &rewards, &error);
  if (status != RAFTER_OK) {
    expect(status == RAFTER_INVALID && *error.message && !rewards);
    return;
  }
  const rf_reward_row row = {
      .answer = answer, .bytes = bytes, .tokens = (int64_t)bytes, .reference = "#### 7"};
  expect(rf_rewards_submit(rewards, &row, &total, parts, &error) == RAFTER_OK);
  expect(rf_rewards_collect(rewards, true, 0, &error) == RAFTER_OK && isfinite(total));
  for (int i = 0; i < rf_rewards_count(rewards); i++) expect(parts[i] >= 0 && parts[i] <= 1);
  rf_rewards_close(rewards);
}

static void read_reply(const char *text, size_t bytes) {
  double reward;
  json_t *rewards;
  char why[300] = "";
  const char *hint, *key;
  json_t *value;
  if (!rf_reward_reply_read(text, bytes, 7, &reward, &rewards, why, &hint)) {
    expect(*why && hint && !rewards);
    return;
  }
  expect(fabs(reward) <= 1e9);
  json_object_foreach (rewards, key, value) expect(fabs(json_number_value(value)) <= 1e9);
  json_decref(rewards);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  if (!bytes) return 0;
  if (data[0] & 1) {
    read_reply((const char *)data + 1, bytes - 1);
    return 0;
  }
  char *text = malloc(bytes);
  expect(text);
  memcpy(text, data + 1, bytes - 1);
  text[bytes - 1] = 0;
  size_t list = strcspn(text, "\n");
  bool has_answer = list < bytes - 1 && text[list] == '\n';
  text[list] = 0;
  give(text, has_answer ? text + list + 1 : "", has_answer ? bytes - list - 2 : 0);
  free(text);
  return 0;
}
