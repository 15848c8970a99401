/* command.h - the program of --reward-command: its processes, and a thread that talks to them. */
#ifndef RF_REWARD_COMMAND_H
#define RF_REWARD_COMMAND_H

#include "reward/reward.h"

/* An answer that the program has to judge. The command or its owner holds the answer, but never
 * both at once. */
typedef struct rf_asked {
  struct rf_asked *next;
  int64_t number; /* unique number, the "id" of the line */
  char *line;     /* (bytes) JSON and a newline, malloc'ed */
  size_t bytes;
  char id[64];           /* id of the row, for errors */
  int failures;          /* number of processes that failed with this answer */
  double *total, *parts; /* of the owner */
  double reward;         /* of the reply */
  json_t *rewards;       /* "rewards" of the reply; NULL: the reply has none */
} rf_asked;
void rf_asked_free(rf_asked *asked);

typedef struct rf_reward_command rf_reward_command;
/* Starts the processes and the thread. The options must stay valid until
 * rf_reward_command_close. */
rf_status rf_reward_command_open(const rf_reward_options *options, rf_reward_command **command,
                                 rf_error *error);
void rf_reward_command_close(rf_reward_command *command); /* NULL is allowed */
/* Queues an answer. The command owns this answer until rf_reward_command_take returns it. */
void rf_reward_command_ask(rf_reward_command *command, rf_asked *asked);
/* Waits up to `ms` milliseconds for replies. *list gets the answers with a reply, in the order of
 * the replies, and may be empty. RAFTER_FAILED: the program failed. */
rf_status rf_reward_command_take(rf_reward_command *command, int ms, rf_asked **list, rf_error *error);
/* Passes the lines that the program has written to stderr to options.say. */
void rf_reward_command_say(rf_reward_command *command);

/* Reads a line that should be the reply to request `number`. On failure, `why` has "expected X, got
 * Y", and `hint` has advice or NULL. The caller owns *rewards, which is NULL if the line has no
 * "rewards". */
bool rf_reward_reply_read(const char *text, size_t bytes, int64_t number, double *reward, json_t **rewards,
                          char why[300], const char **hint);
/* Copies the start of a line for an error, without control characters. Returns `out`. */
enum { RF_EXCERPT = 84 };
const char *rf_excerpt(const char *text, size_t bytes, char out[RF_EXCERPT]);

#endif
