/* team.h - how many of the planned threads execute ops while other programs use the cores.
 *
 * The threads of an op wait for each other at its end. If another program has the core of one
 * thread, all threads wait until the system gives the core back, and this costs milliseconds for
 * each op. Then fewer threads are faster. Results do not depend on the number of threads, so a team
 * may change it between two ops. The plan sizes workspaces for `planned` threads.
 *
 * Decision, after each window of WINDOW_NS in sections:
 * - A team with all threads tries fewer threads only if its main thread was off the core for more
 *   than CROWDED of the window. On a quiet machine nothing is tried.
 * - A try lasts one window. The team compares the pace of both windows. The pace is the time of the
 *   ops, divided by the sum of the shortest times of the same ops so far. A faster try is kept.
 * - A smaller team tries more threads again after a pause. A try that fails doubles the pause. */
#ifndef RF_TEAM_H
#define RF_TEAM_H

#include "base/base.h"

typedef enum rf_team_rule {
  RF_TEAM_ADAPTS, /* as described above */
  RF_TEAM_FIXED,  /* always `planned` threads */
  RF_TEAM_VARIES, /* for tests: the number changes after each op */
} rf_team_rule;

typedef struct rf_team {
  rf_team_rule rule;
  int planned, active; /* active: number of threads of the next op, 1 to planned */
  int before;          /* active threads before the try that is under way; 0: no try */
  int direction;       /* of the next try: -1 fewer threads, 1 more */
  /* Sums of the current window: ns in sections, ns in which the main thread was on a core, and the
   * two times whose ratio is the pace. */
  int64_t elapsed, on_core, spent, shortest;
  int64_t entered, entered_cpu; /* clocks when the section, or the rest of it, began */
  double pace;                  /* pace of the window before the try */
  /* next: the earliest time of the next try. pause: the time between a failed try and the next. In
   * ns. */
  int64_t next, pause;
  int64_t reduced; /* ns in sections with fewer threads than planned */
} rf_team;

void rf_team_init(rf_team *team, int planned);
/* The next smaller or larger number of threads that a team tries; `active` itself at the end. */
int rf_team_fewer(int active);
int rf_team_more(int active, int planned);

/* The main thread calls rf_team_enter before the first op of a section, rf_team_leave after the
 * last, and rf_team_judge when rf_team_note returns true. `now` is rf_now_ns(), and `cpu` is
 * rf_team_cpu_ns(). */
void rf_team_enter(rf_team *team, int64_t now, int64_t cpu);
void rf_team_leave(rf_team *team, int64_t now, int64_t cpu);
void rf_team_judge(rf_team *team, int64_t now, int64_t cpu);
/* CPU time of the calling thread in ns. */
int64_t rf_team_cpu_ns(void);

enum { RF_TEAM_WINDOW_NS = 100 * 1000 * 1000 };
/* Notes an op that ended at time `now` and took `ns`. `shortest`: the shortest earlier time of this
 * op in ns; 0: unknown. Returns true when the window is full. */
static inline bool rf_team_note(rf_team *team, int64_t now, int64_t ns, int64_t shortest) {
  if (team->rule != RF_TEAM_ADAPTS || team->planned == 1) return team->rule == RF_TEAM_VARIES;
  if (shortest > 0) {
    team->spent += ns;
    team->shortest += shortest;
  }
  return team->elapsed + now - team->entered >= RF_TEAM_WINDOW_NS;
}

#endif
