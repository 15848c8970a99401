/* thin.c - see thin.h. Each entry of thinned metrics stands for a range of steps. An entry has the
 * mean, minimum and maximum of rates and losses, and the counts of the range's last step. */
#include "report/thin.h"

#include "base/base.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static const char *const MEANS[] = {"loss",
                                    "lr",
                                    "grad_norm",
                                    "accuracy",
                                    "seconds",
                                    "tokens_per_second",
                                    "mfu",
                                    "predicted_seconds",
                                    "reward",
                                    "reward_std",
                                    "kl",
                                    "entropy",
                                    "clip_fraction",
                                    "ratio_mean",
                                    "answer_tokens",
                                    "cut_fraction",
                                    "flat_groups",
                                    "groups",
                                    "sample_seconds",
                                    "reward_seconds",
                                    "score_seconds",
                                    "train_seconds",
                                    "predicted_sample_seconds",
                                    "predicted_score_seconds",
                                    "predicted_train_seconds",
                                    "sample_tokens_per_second",
                                    "train_tokens_per_second",
                                    "sample_limit_fraction",
                                    "train_limit_fraction"};
static const char *const LOWEST[] = {"reward_min", "ratio_min"};
static const char *const HIGHEST[] = {"reward_max", "ratio_max", "answer_tokens_max"};
static const char *const OBJECTS[] = {"rewards", "rewards_std"}; /* their values are averaged */
static const char *const EXTREMES[] = {"loss",    "grad_norm",         "accuracy",
                                       "seconds", "tokens_per_second", "reward"};
enum {
  MEAN_COUNT = sizeof MEANS / sizeof *MEANS,
  LOW_COUNT = sizeof LOWEST / sizeof *LOWEST,
  HIGH_COUNT = sizeof HIGHEST / sizeof *HIGHEST,
  OBJECT_COUNT = sizeof OBJECTS / sizeof *OBJECTS,
  EXTREME_COUNT = sizeof EXTREMES / sizeof *EXTREMES
};

typedef struct sum {
  double sum, least, most;
  size_t count;
} sum;

/* Sums a value over the rows. With `object`, the value belongs to this object of each row. */
static sum sum_of(const json_t *rows, size_t from, size_t to, const char *object, const char *key) {
  sum s = {0};
  for (size_t i = from; i < to; i++) {
    const json_t *row = json_array_get(rows, i);
    const json_t *value = json_object_get(object ? json_object_get(row, object) : row, key);
    double number = json_number_value(value);
    if (!json_is_number(value)) continue;
    if (!s.count || number < s.least) s.least = number;
    if (!s.count || number > s.most) s.most = number;
    s.sum += number;
    s.count++;
  }
  return s;
}

/* Adds the means of the values of an object, such as the reward of each component. */
static void put_object(const json_t *rows, size_t from, size_t to, const char *name, json_t *row) {
  json_t *means = json_object(), *value;
  const char *key;
  for (size_t i = from; i < to; i++)
    json_object_foreach (json_object_get(json_array_get(rows, i), name), key, value)
      if (!json_object_get(means, key)) {
        sum s = sum_of(rows, from, to, name, key);
        if (s.count) json_object_set_new(means, key, json_real(s.sum / (double)s.count));
      }
  if (json_object_size(means)) json_object_set(row, name, means);
  json_decref(means);
}

static json_t *row_of(const json_t *rows, size_t from, size_t to) {
  json_t *row = json_object(), *low = json_object(), *high = json_object(), *value;
  const char *key;
  for (size_t i = from; i < to; i++) /* keep keys that only some steps have, such as val_loss */
    json_object_foreach (json_array_get(rows, i), key, value) json_object_set(row, key, value);
  for (size_t k = 0; k < MEAN_COUNT; k++) {
    sum s = sum_of(rows, from, to, NULL, MEANS[k]);
    if (s.count) json_object_set_new(row, MEANS[k], json_real(s.sum / (double)s.count));
  }
  for (size_t k = 0; k < LOW_COUNT; k++) {
    sum s = sum_of(rows, from, to, NULL, LOWEST[k]);
    if (s.count) json_object_set_new(row, LOWEST[k], json_real(s.least));
  }
  for (size_t k = 0; k < HIGH_COUNT; k++) {
    sum s = sum_of(rows, from, to, NULL, HIGHEST[k]);
    if (s.count) json_object_set_new(row, HIGHEST[k], json_real(s.most));
  }
  for (size_t k = 0; k < OBJECT_COUNT; k++) put_object(rows, from, to, OBJECTS[k], row);
  for (size_t k = 0; k < EXTREME_COUNT; k++) {
    sum s = sum_of(rows, from, to, NULL, EXTREMES[k]);
    if (s.count) {
      json_object_set_new(low, EXTREMES[k], json_real(s.least));
      json_object_set_new(high, EXTREMES[k], json_real(s.most));
    }
  }
  json_object_set_new(row, "steps", json_integer((json_int_t)(to - from)));
  json_object_set_new(row, "least", low);
  json_object_set_new(row, "most", high);
  return row;
}

/* The first measured step is left out, because its caches are cold. */
json_t *rf_report_step_seconds(const json_t *entry) {
  const json_t *rows = json_object_get(entry, "metrics");
  size_t count = 0, all = json_array_size(rows);
  double *seconds = malloc((all + 1) * sizeof *seconds);
  bool warm = false;
  for (size_t i = 0; seconds && i < all; i++) {
    const json_t *value = json_object_get(json_array_get(rows, i), "seconds");
    if (json_is_number(value) && warm) seconds[count++] = json_number_value(value);
    warm |= json_is_number(value);
  }
  if (count) qsort(seconds, count, sizeof *seconds, rf_compare_doubles);
  json_t *json =
      count ? json_pack("{sf sf sf sf}", "least", seconds[0], "median", seconds[(count - 1) / 2], "p90",
                        seconds[(size_t)(0.9 * (double)(count - 1) + 0.5)], "most", seconds[count - 1])
            : json_object();
  free(seconds);
  return json;
}

json_t *rf_report_thin(json_t *entry) {
  const json_t *rows = json_object_get(entry, "metrics");
  size_t count = json_array_size(rows);
  json_t *copy = json_copy(entry), *thin = json_array();
  json_object_set_new(copy, "step_seconds", rf_report_step_seconds(entry));
  for (size_t b = 0; count > RF_THIN_FROM && b < RF_THIN_TO; b++)
    json_array_append_new(thin, row_of(rows, b * count / RF_THIN_TO, (b + 1) * count / RF_THIN_TO));
  if (count > RF_THIN_FROM) json_object_set(copy, "metrics", thin);
  json_decref(thin);
  return copy;
}
