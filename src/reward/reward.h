/* reward.h - gives answers their rewards. The reward of an answer is the weighted sum of
 * components: built-in rules (--reward) and a program of the user (--reward-command).
 *
 * The program is started with `/bin/sh -c` and lives until rf_rewards_close. The program reads one
 * JSON object per line, {"id","prompt","answer","reference","row"}, and replies {"id","reward"}. A
 * separate thread talks to the program, so the caller computes while the program finds rewards. */
#ifndef RF_REWARD_H
#define RF_REWARD_H

#include "base/json.h"
#include "base/options.h"

enum { RF_REWARDS = 32 }; /* maximum number of components */

typedef struct rf_reward_options {
  const char *const *list; /* lists of components, as `gsm8k:1,format:0.2` */
  int lists;               /* number of lists */
  const char *command;     /* NULL: no program */
  bool elsewhere;          /* true: another process runs the program, and asks for all rewards */
  int workers;             /* number of processes of the program; 0 means 1 */
  double timeout_seconds;  /* for one answer; 0: 60 s */
  int retries;             /* number of restarts of a program that failed, for each answer */
  /* if *stop is not 0, waiting ends with RAFTER_INTERRUPTED; NULL: waiting is not interrupted */
  const volatile int *stop;
  /* Receives notices, and lines that the program wrote to stderr. NULL: they are dropped. The
   * functions below call `say` in the caller's thread. */
  void (*say)(void *self, const char *line);
  void *self;
} rf_reward_options;

extern const rf_option RF_REWARD_OPTIONS[];
/* Reads RF_REWARD_OPTIONS. The texts of the result belong to `options`. The caller sets the fields
 * stop, say and self. */
rf_reward_options rf_reward_options_of(const rf_options *options);

/* One answer of a model. Texts may contain any bytes. */
typedef struct rf_reward_row {
  const char *id;     /* id of the prompt, for errors; NULL: unknown */
  const char *prompt; /* text of the prompt; NULL: unknown */
  const char *answer; /* (bytes) */
  size_t bytes;
  int64_t tokens;        /* of the answer */
  const char *reference; /* the right answer, from the row of the prompt; NULL: the row has none */
  const json_t *row;     /* all fields of the row of the prompt; NULL: unknown */
} rf_reward_row;

typedef struct rf_rewards rf_rewards;
/* Checks the options and starts the program, unless it runs elsewhere. RAFTER_INVALID: a component
 * is wrong, or the options have no component. The texts of the options must stay valid until
 * rf_rewards_close. */
rf_status rf_rewards_open(const rf_reward_options *options, rf_rewards **rewards, rf_error *error);
/* Ends the program within 2 s, with a signal if necessary. Values that were not collected are lost.
 * `rewards` may be NULL. */
void rf_rewards_close(rf_rewards *rewards);

/* The components in the order of the options: "gsm8k", "format", "command". If replies of the
 * program have the field "rewards", each of its names is a further component, as "command.style".
 * These components follow in the order in which they first occur. These further components add
 * nothing to the total (weight 0). */
int rf_rewards_count(const rf_rewards *rewards);
const char *rf_rewards_name(const rf_rewards *rewards, int component);
double rf_rewards_weight(const rf_rewards *rewards, int component);

/* RAFTER_FAILED: the right answer of a row is missing (NULL) or cannot be used, for example because
 * it has no number. `where` names the row in errors. */
rf_status rf_rewards_check(const rf_rewards *rewards, const char *reference, const char *where,
                           rf_error *error);

/* Begins to compute the reward of an answer. *total and parts (RF_REWARDS) are NaN until this call
 * or a later rf_rewards_collect writes them, so their addresses must stay valid. The row may be
 * freed after this call. A part is the value before its weight. NaN: the program did not give the
 * part. */
rf_status rf_rewards_submit(rf_rewards *rewards, const rf_reward_row *row, double *total, double *parts,
                            rf_error *error);
/* Writes the values of all finished answers. With `wait`, waits until all answers are finished, or
 * until rf_now_seconds() is above `until` (0: no limit). RAFTER_FAILED: the program failed. Then only
 * rf_rewards_close may follow. RAFTER_INTERRUPTED: options.stop was set or the time was up during the
 * wait. */
rf_status rf_rewards_collect(rf_rewards *rewards, bool wait, double until, rf_error *error);
int64_t rf_rewards_pending(const rf_rewards *rewards); /* submitted and not collected */

#endif
