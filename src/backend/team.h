/* team.h - how many of the planned threads execute ops while other programs use the cores.
 *
 * The threads of an op wait for each other at its end. If another program has the core of one
 * thread, all threads wait until the system gives the core back. Waiting for a core costs
 * milliseconds for each op. In this case, fewer threads are faster. Results do not depend on the
 * number of threads, so a team may change the number between two ops. The plan sizes workspaces for
 * `planned` threads.
 *
 * Decision, after each window of WINDOW_NS in sections:
 * - A team with all threads tries fewer threads only if its main thread was off the core for more
 *   than CROWDED of the window. So a team on an idle machine tries nothing.
 * - A try lasts one window. The team compares the pace of this window with the pace of the window
 *   before. The pace is the time of the ops, divided by the sum of the shortest times of the same
 *   ops so far. If the try was faster, the team keeps the number of threads of the try.
 * - If the try was not faster, the team returns to the number before the try. It tries the other
 *   direction after a pause, and doubles the next pause. A faster try makes the pause short again. */
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
  int before;          /* number of active threads before the current try; 0: no try */
  int direction;       /* direction of the next try: -1 for fewer threads, 1 for more */
  /* Sums of the current window, in ns. elapsed: time in sections. on_core: time of the main thread
   * on a core. spent / shortest is the pace. */
  int64_t elapsed, on_core, spent, shortest;
  /* clocks at the start of the section, or at the start of its part in this window */
  int64_t entered, entered_cpu;
  double pace; /* pace of the window before the try */
  /* next: the earliest time of the next try. pause: the time between a failed try and the next try.
   * In ns. */
  int64_t next, pause;
  int64_t reduced; /* ns in sections with fewer threads than planned */
} rf_team;

void rf_team_init(rf_team *team, int planned);
/* The next smaller or larger number of threads that a team tries. Returns `active` if `active` is the
 * smallest or largest number. */
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
/* Notes an op that ended at time `now` and took `ns`. `shortest` is the shortest earlier time of
 * this op in ns, or 0 if there is none. Returns true when the window is full. */
static inline bool rf_team_note(rf_team *team, int64_t now, int64_t ns, int64_t shortest) {
  if (team->rule != RF_TEAM_ADAPTS || team->planned == 1) return team->rule == RF_TEAM_VARIES;
  if (shortest > 0) {
    team->spent += ns;
    team->shortest += shortest;
  }
  return team->elapsed + now - team->entered >= RF_TEAM_WINDOW_NS;
}

#endif
