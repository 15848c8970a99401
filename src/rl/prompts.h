/* prompts.h - the prompts of reinforcement learning, which are rows of a JSON Lines file. The order
 * of the prompts depends only on the seed and the position.
 *
 * A row has "prompt" (a text), "messages" (a conversation) or "tokens" (ids), and may have "id" and
 * "answer" (the right answer). A reward command gets all fields of the row. */
#ifndef RF_RL_PROMPTS_H
#define RF_RL_PROMPTS_H

#include "generate/prompts.h"
#include "reward/reward.h"
#include "train/loader.h"

typedef struct rf_rl_prompt {
  const char *id;        /* the row's "id" as text, or its line number */
  const char *text;      /* text of the prompt, for people and rewards */
  const int32_t *tokens; /* (count) */
  int64_t count;
  const char *answer; /* the right answer as text; NULL: the row has none */
  const json_t *row;
} rf_rl_prompt;

typedef struct rf_rl_prompts rf_rl_prompts;

/* Reads all rows of the file. Prompts with more than `longest` tokens are skipped and counted.
 * RAFTER_FAILED: a row is wrong, or lacks a field that `rewards` need. The error names file, line
 * and field. RAFTER_FAILED: no prompt is left. `rewards` may be NULL, and then no field is
 * needed. */
rf_status rf_rl_prompts_open(const char *path, rf_prompt_reader *reader, const rf_rewards *rewards,
                             int64_t longest, rf_rl_prompts **prompts, rf_error *error);
/* Like rf_rl_prompts_open, with another limit than RF_RL_PROMPT_BYTES for the memory of all
 * rows. */
#define RF_RL_PROMPT_BYTES ((int64_t)4 << 30)
rf_status rf_rl_prompts_open_within(const char *path, rf_prompt_reader *reader, const rf_rewards *rewards,
                                    int64_t longest, int64_t memory_bytes, rf_rl_prompts **prompts,
                                    rf_error *error);
void rf_rl_prompts_close(rf_rl_prompts *prompts); /* NULL is allowed. */
int64_t rf_rl_prompts_count(const rf_rl_prompts *prompts);
int64_t rf_rl_prompts_skipped(const rf_rl_prompts *prompts);
/* Returns the number of tokens of the longest prompt. */
int64_t rf_rl_prompts_longest(const rf_rl_prompts *prompts);
const rf_rl_prompt *rf_rl_prompts_row(const rf_rl_prompts *prompts, int64_t row);
/* Returns the prompt at `position` (from 0) of the endless shuffled order. Each epoch contains each
 * row once. */
const rf_rl_prompt *rf_rl_prompts_draw(const rf_rl_prompts *prompts, uint64_t seed, int64_t position);
/* Returns the facts that a checkpoint stores: the file, its number of rows, and the hash of its
 * rows. */
rf_given rf_rl_prompts_given(const rf_rl_prompts *prompts);

#endif
