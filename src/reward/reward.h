/* reward.h - gives answers their rewards. The reward of an answer is the weighted sum of
 * components: built-in rules (--reward) and a program of the user (--reward-command).
 *
 * The program is started with `/bin/sh -c` and lives until rf_rewards_close. It reads one JSON
 * object per line, {"id","prompt","answer","reference","row"}, and writes {"id","reward"} for it.
 * A thread of this room talks to it, so rewards are computed while the caller computes. */
#ifndef RF_REWARD_H
#define RF_REWARD_H

#include "base/json.h"
#include "base/options.h"

enum { RF_REWARDS = 32 }; /* maximum number of components */

typedef struct rf_reward_options {
  const char *const *list;  /* lists of components, as `gsm8k:1,format:0.2` */
  int lists;                /* number of lists */
  const char *command;      /* NULL: no program */
  int workers;              /* processes of the program; 0 means 1 */
  double timeout_seconds;   /* for one answer; 0: 60 s */
  int retries;              /* restarts of a program that failed, for each answer */
  const volatile int *stop; /* if not 0, waiting ends with RAFTER_INTERRUPTED; NULL: never */
  /* Gets lines that the program wrote to stderr, and notices. NULL: they are dropped. Calls come
   * from the functions below, in the caller's thread. */
  void (*say)(void *self, const char *line);
  void *self;
} rf_reward_options;

extern const rf_option RF_REWARD_OPTIONS[];
/* Reads RF_REWARD_OPTIONS. The texts belong to `options`. The caller sets stop, say and self. */
rf_reward_options rf_reward_options_of(const rf_options *options);

/* One answer of a model. Texts may hold any bytes. */
typedef struct rf_reward_row {
  const char *id;     /* of the prompt, for errors; NULL: unknown */
  const char *prompt; /* text of the prompt; NULL: unknown */
  const char *answer; /* (bytes) */
  size_t bytes;
  int64_t tokens;        /* of the answer */
  const char *reference; /* the right answer, from the row of the prompt; NULL: none */
  const json_t *row;     /* all fields of the row of the prompt; NULL: none */
} rf_reward_row;

typedef struct rf_rewards rf_rewards;
/* Checks the options and starts the program. RAFTER_INVALID: a component is wrong, or there is
 * none. The options' texts must stay until rf_rewards_close. */
rf_status rf_rewards_open(const rf_reward_options *options, rf_rewards **rewards, rf_error *error);
/* Ends the program, if it must by a signal, within 2 s. Values that were not collected are lost.
 * `rewards` may be NULL. */
void rf_rewards_close(rf_rewards *rewards);

/* The components, in the order of the options: "gsm8k", "format", "command". If replies of the
 * program have "rewards", their names follow when they first occur, as "command.style". These add
 * nothing to the total (weight 0). */
int rf_rewards_count(const rf_rewards *rewards);
const char *rf_rewards_name(const rf_rewards *rewards, int component);
double rf_rewards_weight(const rf_rewards *rewards, int component);

/* RAFTER_FAILED: the right answer of a row is missing (NULL) or cannot be used, for example has no
 * number. `where` names the row in the error. */
rf_status rf_rewards_check(const rf_rewards *rewards, const char *reference, const char *where,
                           rf_error *error);

/* Begins with an answer. *total and parts (RF_REWARDS) are NaN until this call or a later
 * rf_rewards_collect writes them, so they must stay where they are. The row may be freed at once.
 * A part is the value before its weight; NaN: the program did not give it. */
rf_status rf_rewards_submit(rf_rewards *rewards, const rf_reward_row *row, double *total, double *parts,
                            rf_error *error);
/* Writes the values of answers that are finished. With `wait`, waits until all are.
 * RAFTER_FAILED: the program failed. Then only rf_rewards_close may follow. RAFTER_INTERRUPTED:
 * options.stop was set while it waited. */
rf_status rf_rewards_collect(rf_rewards *rewards, bool wait, rf_error *error);
int64_t rf_rewards_pending(const rf_rewards *rewards); /* submitted and not collected */

#endif
