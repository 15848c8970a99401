/* team.c - see team.h. */
#define _GNU_SOURCE
#include "backend/team.h"

#include <time.h>

enum { PAUSE_NS = 500 * 1000 * 1000, LONGEST_PAUSE = 16 }; /* the longest pause is LONGEST_PAUSE * PAUSE_NS */
static const double CROWDED = 0.2, FASTER = 0.95;

void rf_team_init(rf_team *team, int planned) {
  *team = (rf_team){.planned = planned, .active = planned, .direction = -1, .pause = PAUSE_NS};
}

int rf_team_fewer(int active) { return active < 2 ? 1 : active - (active + 3) / 4; }

int rf_team_more(int active, int planned) {
  int more = active + (active + 2) / 3;
  return more < planned ? more : planned;
}

int64_t rf_team_cpu_ns(void) {
  struct timespec cpu;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu);
  return (int64_t)cpu.tv_sec * 1000000000 + cpu.tv_nsec;
}

void rf_team_enter(rf_team *team, int64_t now, int64_t cpu) {
  team->entered = now;
  team->entered_cpu = cpu;
}

void rf_team_leave(rf_team *team, int64_t now, int64_t cpu) {
  team->elapsed += now - team->entered;
  team->on_core += cpu - team->entered_cpu;
  if (team->active < team->planned) team->reduced += now - team->entered;
  rf_team_enter(team, now, cpu);
}

static void begin_window(rf_team *team) { team->elapsed = team->on_core = team->spent = team->shortest = 0; }

static void end_try(rf_team *team, double pace, int64_t now) {
  bool better = pace < FASTER * team->pace;
  if (better) {
    team->pause = PAUSE_NS;
    bool last = team->active == (team->direction < 0 ? 1 : team->planned);
    team->next = now + (last ? PAUSE_NS : 0);
  } else {
    team->active = team->before;
    team->direction = -team->direction;
    team->next = now + team->pause;
    if (team->pause < LONGEST_PAUSE * (int64_t)PAUSE_NS) team->pause *= 2;
  }
  team->before = 0;
}

static void begin_try(rf_team *team, double pace, bool crowded) {
  bool all = team->active == team->planned;
  if (all && !crowded) return;
  if (all) team->direction = -1;
  else if (team->active == 1 || !crowded) team->direction = 1;
  team->before = team->active;
  team->pace = pace;
  team->active =
      team->direction < 0 ? rf_team_fewer(team->active) : rf_team_more(team->active, team->planned);
}

void rf_team_judge(rf_team *team, int64_t now, int64_t cpu) {
  rf_team_leave(team, now, cpu);
  if (team->rule == RF_TEAM_VARIES) {
    team->active = team->active > 1 ? team->active - 1 : team->planned;
    return;
  }
  if (team->shortest > 0) {
    double pace = (double)team->spent / (double)team->shortest;
    bool crowded = (double)team->on_core < (1 - CROWDED) * (double)team->elapsed;
    if (team->before) end_try(team, pace, now);
    else if (now >= team->next) begin_try(team, pace, crowded);
  }
  begin_window(team);
}
