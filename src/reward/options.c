/* options.c - the options of rewards. */
#include "reward/reward.h"

const rf_option RF_REWARD_OPTIONS[] = {
    RF_WORDS(
        "reward", TEXTS, "LIST", NULL, "Rewards",
        "rewards of an answer: NAME[=ARGUMENT][:WEIGHT],...; the weighted sum counts\n"
        "exact: the answer is the row's \"answer\", without blanks around it; number: the last number is "
        "that of \"answer\"; gsm8k: the same, but the first number after \"####\" counts if there is one; "
        "contains[=TEXT]: the answer contains TEXT, or without TEXT the row's \"answer\"; regex=PATTERN: "
        "a part of the answer matches (PCRE2); format[=think+answer]: "
        "<think>...</think><answer>...</answer> and no other text; length=TOKENS: 1 up to TOKENS, falls "
        "to 0 at twice as many; command: --reward-command. Each is 0 to 1, the weight is 1 if unset. The "
        "option may be repeated. In an argument, write \\, for a comma"),
    RF_WORDS(
        "reward-command", TEXT, "COMMAND", NULL, "Rewards",
        "program that gives rewards: reads {\"id\",\"prompt\",\"answer\",...} and writes "
        "{\"id\",\"reward\"}\n"
        "/bin/sh starts the program once for the whole run. Each line that it reads or writes is one JSON "
        "object. `command:WEIGHT` in --reward gives its weight"),
    RF_NUMBER("reward-workers", INT, NULL, 1, 256, "1", "Rewards",
              "processes of --reward-command; each gets one answer at a time"),
    RF_NUMBER("reward-timeout", DURATION, NULL, 0.001, 1e6, "60s", "Rewards",
              "time that --reward-command may take for one answer"),
    RF_NUMBER("reward-retries", INT, NULL, 0, 1000, "0", "Rewards",
              "restarts of a --reward-command that failed, for one answer"),
    {.name = NULL},
};

rf_reward_options rf_reward_options_of(const rf_options *o) {
  rf_reward_options r = {.command = rf_options_text(o, "reward-command"),
                         .workers = (int)rf_options_int(o, "reward-workers"),
                         .timeout_seconds = rf_options_float(o, "reward-timeout"),
                         .retries = (int)rf_options_int(o, "reward-retries")};
  r.list = rf_options_texts(o, "reward", &r.lists);
  return r;
}
