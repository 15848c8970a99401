/* reward.c - see reward.h. */
#include "reward/reward.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reward/command.h"
#include "reward/parts.h"

struct rf_rewards {
  rf_reward_options options;
  rf_component component[RF_REWARDS];
  int count;                             /* components of the options */
  char more[RF_REWARDS][RF_REWARD_NAME]; /* names of components that replies of the program added */
  int all;                               /* components with these */
  rf_numbers *numbers;
  rf_reward_command *command;
  int64_t pending, asked;
  bool said_steps;
};

/* ---- opening --------------------------------------------------------------------------------- */

static int of_command(const rf_rewards *r) {
  for (int i = 0; i < r->count; i++)
    if (!r->component[i].rule->value) return i;
  return -1;
}

static rf_status read_components(rf_rewards *r, rf_error *error) {
  const rf_reward_options *o = &r->options;
  for (int i = 0; i < o->lists; i++) RF_TRY(rf_components_read(o->list[i], r->component, &r->count, error));
  if (o->command && of_command(r) < 0)
    RF_TRY(rf_component_add(rf_rule_named("command", 7), r->component, &r->count, error));
  if (!r->count)
    return RF_FAIL(error, RAFTER_INVALID,
                   "for example --reward gsm8k:1,format:0.2, or --reward-command 'python3 reward.py'",
                   "the run has no rewards (expected --reward or --reward-command)");
  if (!o->command && of_command(r) >= 0)
    return RF_FAIL(error, RAFTER_INVALID, "for example --reward-command 'python3 reward.py'",
                   "--reward has 'command', but --reward-command is missing");
  if (o->command && strspn(o->command, " \t\n") == strlen(o->command))
    return RF_FAIL(error, RAFTER_INVALID, "for example --reward-command 'python3 reward.py'",
                   "--reward-command is empty (expected a command)");
  r->all = r->count;
  return RAFTER_OK;
}

rf_status rf_rewards_open(const rf_reward_options *options, rf_rewards **rewards, rf_error *error) {
  rf_rewards *r = calloc(1, sizeof *r);
  if (!r) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  r->options = *options;
  if (r->options.workers < 1) r->options.workers = 1;
  if (!(r->options.timeout_seconds > 0)) r->options.timeout_seconds = 60;
  rf_status status = read_components(r, error);
  if (status == RAFTER_OK) status = rf_numbers_open(&r->numbers, error);
  if (status == RAFTER_OK && r->options.command && !r->options.elsewhere)
    status = rf_reward_command_open(&r->options, &r->command, error);
  if (status == RAFTER_OK) *rewards = r;
  else rf_rewards_close(r);
  return status;
}

void rf_rewards_close(rf_rewards *r) {
  if (!r) return;
  rf_reward_command_close(r->command);
  for (int i = 0; i < r->count; i++) rf_component_close(&r->component[i]);
  rf_numbers_close(r->numbers);
  free(r);
}

/* ---- components ------------------------------------------------------------------------------ */

int rf_rewards_count(const rf_rewards *r) { return r->all; }

const char *rf_rewards_name(const rf_rewards *r, int i) {
  return i < r->count ? r->component[i].name : r->more[i];
}

double rf_rewards_weight(const rf_rewards *r, int i) { return i < r->count ? r->component[i].weight : 0; }

static bool needs_answer(const rf_component *c) { return c->rule->needs_answer && c->rule->needs_answer(c); }

rf_status rf_rewards_check(const rf_rewards *r, const char *reference, const char *where, rf_error *error) {
  char number[RF_NUMBER_BYTES];
  for (int i = 0; i < r->count; i++) {
    const rf_component *c = &r->component[i];
    if (!needs_answer(c)) continue;
    if (!reference)
      return RF_FAIL(error, RAFTER_FAILED, "give each row the field \"answer\", or leave the reward out",
                     "a row has no right answer (%s: the reward %s expects the field \"answer\")", where,
                     c->name);
    if (c->rule->needs_number && !rf_numbers_last(r->numbers, reference, strlen(reference), number))
      return RF_FAIL(error, RAFTER_FAILED, "correct the row, or leave the reward out",
                     "the right answer has no number (%s, answer: the reward %s expects one, got '%.60s')",
                     where, c->name, reference);
    if (c->rule->needs_text && rf_is_blank(reference))
      return RF_FAIL(error, RAFTER_FAILED, "correct the row, or leave the reward out",
                     "the right answer is empty (%s, answer: the reward %s expects a text, because every "
                     "answer contains an empty one)",
                     where, c->name);
  }
  return RAFTER_OK;
}

/* ---- answers --------------------------------------------------------------------------------- */

/* Returns the weighted sum, added in the order of the components. */
static double total_of(const rf_rewards *r, const double *parts) {
  double total = 0;
  for (int i = 0; i < r->count; i++) total += r->component[i].weight * parts[i];
  return total;
}

static json_t *text_of(const char *text) { return text ? rf_json_bytes(text, strlen(text)) : json_null(); }

/* Makes the line of JSON that the reward program reads. The texts of an answer may contain any bytes. */
static rf_asked *asked_of(rf_rewards *r, const rf_reward_row *row, rf_error *error) {
  rf_asked *asked = calloc(1, sizeof *asked);
  json_t *json = json_object();
  int bad = !asked || !json;
  if (!bad) {
    asked->number = ++r->asked;
    snprintf(asked->id, sizeof asked->id, "%s", row->id ? row->id : "");
    bad |= json_object_set_new(json, "id", json_integer(asked->number));
    bad |= json_object_set_new(json, "prompt", text_of(row->prompt));
    bad |= json_object_set_new(json, "answer", rf_json_bytes(row->answer, row->bytes));
    bad |= json_object_set_new(json, "reference", text_of(row->reference));
    if (row->row) bad |= json_object_set(json, "row", (json_t *)(uintptr_t)row->row);
    char *text = bad ? NULL : json_dumps(json, JSON_COMPACT);
    asked->bytes = text ? strlen(text) + 1 : 0;
    asked->line = text ? realloc(text, asked->bytes + 1) : NULL;
    if (asked->line) memcpy(asked->line + asked->bytes - 1, "\n", 2);
    else free(text);
    bad |= !asked->line;
  }
  json_decref(json);
  if (!bad) return asked;
  rf_asked_free(asked);
  RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  return NULL;
}

rf_status rf_rewards_submit(rf_rewards *r, const rf_reward_row *row, double *total, double *parts,
                            rf_error *error) {
  *total = NAN;
  for (int i = 0; i < RF_REWARDS; i++) parts[i] = NAN;
  if (!row->reference) {
    char where[100];
    snprintf(where, sizeof where, "row %.80s", row->id ? row->id : "without id");
    RF_TRY(rf_rewards_check(r, NULL, where, error));
  }
  for (int i = 0; i < r->count; i++)
    if (r->component[i].rule->value)
      parts[i] = r->component[i].rule->value(&r->component[i], r->numbers, row);
  if (!r->command) {
    *total = total_of(r, parts);
    return RAFTER_OK;
  }
  rf_asked *asked = asked_of(r, row, error);
  if (!asked) return RAFTER_FAILED;
  asked->total = total;
  asked->parts = parts;
  r->pending++;
  rf_reward_command_ask(r->command, asked);
  return RAFTER_OK;
}

/* Returns the index of the component "command.KEY". A new component is added. -1: there are too
 * many components. */
static int more_named(rf_rewards *r, const char *key) {
  char name[RF_REWARD_NAME];
  snprintf(name, sizeof name, "command.%s", key);
  for (int i = r->count; i < r->all; i++)
    if (!strcmp(r->more[i], name)) return i;
  if (r->all == RF_REWARDS) return -1;
  memcpy(r->more[r->all], name, sizeof name);
  return r->all++;
}

static rf_status write_values(rf_rewards *r, const rf_asked *asked, rf_error *error) {
  const char *key;
  json_t *value;
  json_object_foreach (asked->rewards, key, value) {
    int i = more_named(r, key);
    if (i < 0)
      return RF_FAIL(error, RAFTER_FAILED, "use the same few names in all replies",
                     "the reward command has too many names in \"rewards\" (row %s: expected at most %d, got "
                     "'%.64s' more)",
                     asked->id, RF_REWARDS - r->count, key);
    asked->parts[i] = json_number_value(value);
  }
  asked->parts[of_command(r)] = asked->reward;
  *asked->total = total_of(r, asked->parts);
  return RAFTER_OK;
}

/* Reports once that the search for a regular expression was given up. */
static void say_steps(rf_rewards *r) {
  for (int i = 0; i < r->count && !r->said_steps; i++) {
    char line[300];
    const rf_component *c = &r->component[i];
    if (!c->over_steps) continue;
    r->said_steps = true;
    snprintf(line, sizeof line,
             "reward %s: the search in an answer needed more than %d steps or too much memory, so it counts "
             "as no match",
             c->name, RF_PATTERN_STEPS);
    if (r->options.say) r->options.say(r->options.self, line);
  }
}

rf_status rf_rewards_collect(rf_rewards *r, bool wait, double until, rf_error *error) {
  enum { SLICE_MS = 50 };
  rf_status status = RAFTER_OK;
  say_steps(r);
  if (!r->command) return RAFTER_OK;
  for (bool more = true; more && status == RAFTER_OK;) {
    rf_asked *list = NULL;
    status = rf_reward_command_take(r->command, wait && r->pending ? SLICE_MS : 0, &list, error);
    rf_reward_command_say(r->command);
    for (rf_asked *asked; (asked = list);) {
      list = asked->next;
      r->pending--;
      if (status == RAFTER_OK) status = write_values(r, asked, error);
      rf_asked_free(asked);
    }
    more = wait && r->pending;
    bool late = until > 0 && rf_now_seconds() > until;
    if (more && status == RAFTER_OK && (late || rf_flag_is_set(r->options.stop)))
      status = RF_FAIL(error, RAFTER_INTERRUPTED, NULL, "stopped while %lld answers waited for a reward",
                       (long long)r->pending);
  }
  return status;
}

int64_t rf_rewards_pending(const rf_rewards *r) { return r->pending; }
