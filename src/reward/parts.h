/* parts.h - declarations that the files of src/reward share. */
#ifndef RF_REWARD_PARTS_H
#define RF_REWARD_PARTS_H

#include "reward/number.h"
#include "reward/pattern.h"
#include "reward/reward.h"

enum { RF_REWARD_TAGS = 8, RF_REWARD_NAME = 96 };

typedef struct rf_component {
  const struct rf_rule *rule;
  char name[RF_REWARD_NAME]; /* unique */
  char *argument;            /* malloc'ed; NULL: none */
  double weight;
  rf_pattern *pattern; /* regex */
  int64_t target;      /* length */
  char tag[RF_REWARD_TAGS][64];
  int tags;           /* format */
  int64_t over_steps; /* regex: number of answers that needed too many steps */
} rf_component;

/* A kind of component. */
typedef struct rf_rule {
  const char *name;
  bool may_have, must_have; /* an argument */
  const char *example;      /* an example with an argument, for errors */
  /* reads the argument; NULL: the rule has no argument */
  rf_status (*open)(rf_component *component, rf_error *error);
  /* Returns the value of an answer. NULL: the user's program computes the value. */
  double (*value)(rf_component *component, const rf_numbers *numbers, const rf_reward_row *row);
  bool (*needs_answer)(const rf_component *component); /* NULL: false */
  bool needs_number;                                   /* true: the right answer must have a number */
  bool needs_text;                                     /* true: the right answer must not be blank */
} rf_rule;

extern const rf_rule RF_RULES[];
extern const int RF_RULE_COUNT;
bool rf_is_blank(const char *text);
const rf_rule *rf_rule_named(const char *name, size_t length); /* NULL: unknown */

/* Appends the components of one list. Components that were already opened stay in the list after a
 * failure. */
rf_status rf_components_read(const char *list, rf_component *component, int *count, rf_error *error);
/* Appends one component that has no argument. */
rf_status rf_component_add(const rf_rule *rule, rf_component *component, int *count, rf_error *error);
void rf_component_close(rf_component *component);

#endif
