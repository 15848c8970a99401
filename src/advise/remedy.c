/* remedy.c - finds a change of the command's options with which a plan fits. A change is
 * suggested only after a plan with this change was found to fit. */
#include "advise/planned.h"
#include "advise/set.h"
#include "base/text.h"

#include <assert.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A change of the options, in the same notation as for --compare. */
typedef struct attempt {
  char change[400];
  enum { NEW, TAKEN, DONE } state;
  rafter_plan *fits; /* the plan if it fits, otherwise NULL */
  int64_t bytes;     /* bytes of the plan; 0: the change cannot be planned */
  bool fitted, late; /* fitted: the plan fits. late: the helper thread skips this attempt. */
} attempt;

enum { MAX_ATTEMPTS = 12, CHIP_TRIES = 4 };

/* The search for a change. The main thread plans an attempt when it needs the result. On an idle
 * core, a helper thread plans the next attempts in advance. */
typedef struct remedy {
  const rf_options *from;
  const rafter_plan *plan; /* the plan that does not fit */
  rafter_plan *fits;       /* the plan with the last change that fits */
  attempt attempt[MAX_ATTEMPTS];
  /* bf16, chips: indices in `attempt` of the attempts with bf16 and with more chips; RF_NONE: not
   * tried */
  int attempts, bf16, chips[CHIP_TRIES], chip_tries;
  /* number of groups of chips that shard each matrix; 0: no matrix is sharded this way */
  int64_t rows[CHIP_TRIES];
  /* Indices of two attempts on the smallest number of chips that fits. `block` recomputes whole
   * blocks. `plain` recomputes nothing. */
  int block, plain;
  bool over;
  rf_idle *idle;
  pthread_t helper;
  bool helped;
} remedy;

bool rf_plan_all_fits(const rafter_plan *p) {
  return rf_plan_fits(p->plan) && (!p->prefill || rf_plan_fits(p->prefill)) &&
         p->needs <= rf_plan_room(&p->settings.plan);
}

static int64_t bytes_of(const rafter_plan *p) {
  int64_t bytes = rf_plan_larger(p->plan, p->prefill)->arena_bytes;
  return p->needs > bytes ? p->needs : bytes;
}

/* Plans a change. Returns the plan if it fits, otherwise NULL. Sets *bytes to the plan's bytes,
 * or to 0 if the change cannot be planned. */
static rafter_plan *plan_with(const remedy *r, const char *change, int64_t *bytes) {
  rf_options *options = rf_options_copy(r->from);
  rafter_plan *p = rf_planned_new();
  if (p) p->sized = true;
  bool made = p && rf_options_apply(options, change, NULL) == RAFTER_OK &&
              rf_plan_job(p, options, r->plan->job, NULL) == RAFTER_OK;
  bool fits = made && rf_plan_all_fits(p);
  *bytes = made ? bytes_of(p) : 0;
  rf_options_free(options);
  if (fits) return p;
  rafter_plan_free(p);
  return NULL;
}

static bool take_over(remedy *r, rafter_plan *fits) {
  if (!fits) return false;
  rafter_plan_free(r->fits);
  r->fits = fits;
  return true;
}

static bool tries(remedy *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool tries(remedy *r, const char *format, ...) {
  char change[400];
  int64_t bytes;
  va_list list;
  va_start(list, format);
  vsnprintf(change, sizeof change, format, list);
  va_end(list);
  return take_over(r, plan_with(r, change, &bytes));
}

/* ---- attempts in advance --------------------------------------------------------------------- */

/* Queues an attempt. Once the helper thread runs, callers must hold the lock. */
static int will_try(remedy *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
static int will_try(remedy *r, const char *format, ...) {
  va_list list;
  int at = r->attempts;
  assert(at < MAX_ATTEMPTS);
  r->attempt[at] = (attempt){.state = NEW};
  va_start(list, format);
  vsnprintf(r->attempt[at].change, sizeof r->attempt[at].change, format, list);
  va_end(list);
  r->attempts++;
  pthread_cond_broadcast(&r->idle->changed);
  return at;
}

static int64_t room_of(const remedy *r) { return rf_plan_room(&r->plan->settings.plan); }

/* Doubling the chips that shard a matrix halves each chip's bytes of the matrix. So the bytes of
 * two attempts predict the bytes of later attempts. Attempts that cannot fit are dropped. If the
 * next attempt surely fits, the helper thread skips the attempts with even more chips. */
static void look_ahead(remedy *r) {
  for (int i = 0; i + 2 < r->chip_tries; i++) {
    if (r->chips[i] == RF_NONE || r->chips[i + 1] == RF_NONE || !r->rows[i] || r->rows[i + 1] != r->rows[i])
      continue;
    const int64_t some = r->attempt[r->chips[i]].bytes, half = r->attempt[r->chips[i + 1]].bytes,
                  whole = 2 * half - some, room = room_of(r);
    if (!some || half <= room) continue;
    bool will_do = whole + (half - whole) / 2 <= room;
    for (int next = will_do ? i + 3 : i + 2; next < r->chip_tries; next++) {
      attempt *a = r->chips[next] == RF_NONE ? NULL : &r->attempt[r->chips[next]];
      if (a && a->state == NEW && whole > room) a->state = DONE;
      else if (a && will_do) a->late = true;
    }
  }
}

static void ask_for_milder(remedy *r);

/* Plans an attempt. The caller must hold the lock. The lock is released while planning. */
static void work_on(remedy *r, attempt *a) {
  int64_t bytes;
  a->state = TAKEN;
  pthread_mutex_unlock(&r->idle->lock);
  rafter_plan *fits = plan_with(r, a->change, &bytes);
  pthread_mutex_lock(&r->idle->lock);
  a->fits = fits;
  a->fitted = fits != NULL;
  a->bytes = bytes;
  a->state = DONE;
  look_ahead(r);
  ask_for_milder(r);
  pthread_cond_broadcast(&r->idle->changed);
}

static void *help(void *self) {
  remedy *r = self;
  pthread_mutex_lock(&r->idle->lock);
  while (!r->over) {
    int next = 0;
    while (next < r->attempts && (r->attempt[next].state != NEW || r->attempt[next].late)) next++;
    if (r->idle->is && next < r->attempts) work_on(r, &r->attempt[next]);
    else pthread_cond_wait(&r->idle->changed, &r->idle->lock);
  }
  pthread_mutex_unlock(&r->idle->lock);
  return NULL;
}

/* Waits for an attempt, or plans it now. Returns true if the attempt fits. */
static bool came_out(remedy *r, int at) {
  attempt *a = &r->attempt[at];
  pthread_mutex_lock(&r->idle->lock);
  if (a->state == NEW) work_on(r, a);
  while (a->state != DONE) pthread_cond_wait(&r->idle->changed, &r->idle->lock);
  pthread_mutex_unlock(&r->idle->lock);
  rafter_plan *fits = a->fits;
  a->fits = NULL;
  return take_over(r, fits);
}

static void stop_helping(remedy *r) {
  pthread_mutex_lock(&r->idle->lock);
  r->over = true;
  pthread_cond_broadcast(&r->idle->changed);
  pthread_mutex_unlock(&r->idle->lock);
  if (r->helped) pthread_join(r->helper, NULL);
  for (int i = 0; i < r->attempts; i++) rafter_plan_free(r->attempt[i].fits);
}

/* ---- changes --------------------------------------------------------------------------------- */

/* Estimates the largest batch that fits: halves the batch until it fits, then bisects four
 * times. `with`: a further change, or "". */
static int64_t most_batch(remedy *r, const char *with) {
  int64_t most = rf_options_int(r->from, "batch"), fits = most / 2;
  while (fits > 0 && !tries(r, "batch=%lld%s", (long long)fits, with)) {
    most = fits;
    fits /= 2;
  }
  for (int i = 0; i < 4 && fits > 0 && most - fits > 1; i++) {
    int64_t middle = fits + (most - fits) / 2;
    if (tries(r, "batch=%lld%s", (long long)middle, with)) fits = middle;
    else most = middle;
  }
  return fits;
}

/* Bytes that stay in memory during the whole job. No setting reduces these bytes. */
static int64_t lasting_bytes(const rafter_plan *p) {
  return p->lasts > 0 ? p->lasts : p->plan->persistent_bytes;
}

/* A machine with more chips and its smallest training step: one sequence per chip, and recomputed
 * blocks. If there are more chips than sequences, several chips shard each matrix. */
typedef struct larger {
  char on[300], mesh[80];
  int64_t micro, accumulate; /* 0: unchanged */
  int64_t rows;              /* number of groups of chips that shard each matrix; 0: no sharding */
} larger;

static int64_t first_chips(const remedy *r) {
  const rf_machine *m = &r->plan->settings.machine;
  double times = (double)lasting_bytes(r->plan) / fmax(1, (double)room_of(r));
  int64_t chips = 2 * (m->by_device ? m->chips / 2 : m->chips);
  for (; times > 2; times /= 2) chips *= 2;
  return chips;
}

/* Sets the machine of attempt `time`, which has twice the chips of the attempt before. Returns
 * false if the chips of this machine would have to shard matrices but cannot. */
static bool larger_of(const remedy *r, int time, bool trains, larger *to) {
  const rf_machine *m = &r->plan->settings.machine;
  const rf_build_options *b = &r->plan->plan->options.build;
  const char *on = rf_options_text(r->from, "on");
  int64_t chips = first_chips(r) << time, batch = b->microbatch * b->accumulate,
          devices = chips * (m->devices_per_chip > 1 ? 2 : 1);
  char shape[80];
  *to = (larger){.micro = 0};
  rf_machine_shape_for(m, chips, shape, sizeof shape);
  snprintf(to->on, sizeof to->on, "%.*s%s", (int)strcspn(on, ":*"), on, shape);
  if (!trains) return true;
  if (batch % devices == 0) return to->micro = devices, to->accumulate = batch / devices, true;
  if (rf_options_given(r->from, "fit") || m->slices > 1) return false;
  to->rows = rf_common_divisor(devices, batch);
  snprintf(to->mesh, sizeof to->mesh, "fsdp=%lld,tensor=%lld", (long long)to->rows,
           (long long)(devices / to->rows));
  return true;
}

static bool has_larger(const remedy *r) {
  return !rf_options_given(r->from, "mesh") && r->plan->settings.machine.topology.form != RF_NETWORK_NONE;
}

static void try_larger_ahead(remedy *r) {
  for (int i = 0; i < CHIP_TRIES && has_larger(r); i++) {
    larger to;
    bool there = larger_of(r, i, true, &to);
    r->rows[i] = there ? to.rows : 0;
    r->chips[r->chip_tries++] = !there     ? RF_NONE
                                : *to.mesh ? will_try(r, "on=%s,mesh=%s,remat=block", to.on, to.mesh)
                                           : will_try(r, "on=%s,remat=block,microbatch=%lld,accumulate=%lld",
                                                      to.on, (long long)to.micro, (long long)to.accumulate);
  }
}

/* When the smallest number of chips that fits is known, queues two milder changes with this
 * number of chips. The first change keeps the microbatch. The second change also recomputes
 * nothing. The caller must hold the lock. */
static void ask_for_milder(remedy *r) {
  larger to;
  int i = 0;
  while (i < r->chip_tries && (r->chips[i] == RF_NONE ||
                               (r->attempt[r->chips[i]].state == DONE && !r->attempt[r->chips[i]].fitted)))
    i++;
  if (i == r->chip_tries || r->attempt[r->chips[i]].state != DONE || r->block != RF_NONE) return;
  for (int later = i + 1; later < r->chip_tries; later++)
    if (r->chips[later] != RF_NONE && r->attempt[r->chips[later]].state == NEW)
      r->attempt[r->chips[later]].state = DONE;
  if (!larger_of(r, i, true, &to) || *to.mesh) return;
  r->block = will_try(r, "on=%s,remat=block", to.on);
  r->plain = will_try(r, "on=%s", to.on);
}

/* Appends --remat block, unless it was typed. */
static void say_remat(const remedy *r, char text[400]) {
  if (strcmp(rf_options_text_or(r->from, "remat", "none"), "block"))
    rf_text_append(text, 400, " --remat block");
}

/* Appends --remat block and the microbatch, but no setting that the plan has already. The settings
 * that --fit chose are not typed, so they are always written. */
static void say_step(const remedy *r, int64_t micro, int64_t accumulate, char text[400]) {
  const rf_plan_options *o = &r->plan->plan->options;
  say_remat(r, text);
  if (o->searched || micro != o->build.microbatch || accumulate != o->build.accumulate)
    rf_text_append(text, 400, " --microbatch %lld --accumulate %lld", (long long)micro,
                   (long long)accumulate);
}

/* Tries more chips of the same machine. The first attempts have the smallest training step.
 * Later attempts have larger microbatches, or no recomputation. */
static bool more_chips(remedy *r, bool trains, char text[400]) {
  larger to;
  for (int i = 0; i < CHIP_TRIES && !trains && has_larger(r); i++)
    if (larger_of(r, i, false, &to) && tries(r, "on=%s", to.on))
      return snprintf(text, 400, "--on %s", to.on) > 0;
  for (int i = 0; i < r->chip_tries; i++) {
    if (r->chips[i] == RF_NONE || !came_out(r, r->chips[i])) continue;
    larger_of(r, i, true, &to);
    snprintf(text, 400, "--on %s%s%s", to.on, *to.mesh ? " --mesh " : "", to.mesh);
    bool smallest = *to.mesh == 0 && !came_out(r, r->block);
    if (smallest) say_step(r, to.micro, to.accumulate, text);
    else if (*to.mesh || !came_out(r, r->plain)) say_remat(r, text);
    return true;
  }
  return false;
}

/* True if bf16 may save memory. A trained weight takes 6 bytes in bf16: 2 bytes, and 4 bytes for
 * its f32 master. In f32, it takes 4 bytes. */
static bool bf16_may_help(const remedy *r) {
  const rf_plan_options *o = &r->plan->plan->options;
  if (o->build.dtype != RF_F32) return false;
  bool takes_more = !strcmp(r->plan->job, "train") && r->plan->plan->graph->model.lora.rank == 0 &&
                    rf_mesh_chips(&o->build.mesh) == 1 && !o->build.offload &&
                    o->program.program == RF_PROGRAM_RAFTER;
  return !takes_more || r->plan->plan->persistent_bytes <= room_of(r);
}

static bool learns(const remedy *r) { return rf_plan_learns(r->plan->job); }

/* Queues the attempts that find() will need if nothing else fits. */
static void try_ahead(remedy *r) {
  r->bf16 = r->block = r->plain = RF_NONE;
  if (!learns(r)) return;
  if (bf16_may_help(r)) r->bf16 = will_try(r, "dtype=bf16,remat=block");
  try_larger_ahead(r);
}

/* Finds a change that fits and writes it as options. Returns false if no change was found. */
static bool find(remedy *r, char text[400]) {
  *text = 0;
  if (!strcmp(r->plan->job, "rl")) {
    int64_t batch = r->plan->plan->options.build.microbatch * r->plan->plan->options.build.accumulate;
    for (int64_t micro = r->plan->plan->options.build.microbatch; micro >= 1; micro /= 2)
      if (batch % micro == 0 && tries(r, "remat=block,microbatch=%lld,accumulate=%lld", (long long)micro,
                                      (long long)(batch / micro)))
        return say_step(r, micro, batch / micro, text), true;
  }
  const rf_dtype dtype = r->plan->plan->options.build.dtype;
  int64_t batch = learns(r) ? 0 : most_batch(r, "");
  if (batch > 0) return snprintf(text, 400, "--batch %lld", (long long)batch) > 0;
  if (r->bf16 != RF_NONE && came_out(r, r->bf16))
    return snprintf(text, 400, "--dtype bf16"), say_remat(r, text), true;
  if (more_chips(r, learns(r), text)) return true;
  if (learns(r)) return false;
  /* Tries narrower types with the same batch. If no type fits, tries the same types with a smaller
   * batch. */
  static const char *const narrow[] = {"dtype=bf16", "weights=int8", "weights=fp8", "weights=int4"};
  for (int fewer = 0; fewer < 2; fewer++)
    for (size_t i = 0; i < sizeof narrow / sizeof *narrow; i++) {
      char with[32], typed[32];
      if (!strcmp(narrow[i], "dtype=bf16") && dtype != RF_F32) continue;
      snprintf(with, sizeof with, ",%s", narrow[i]);
      snprintf(typed, sizeof typed, "--%s", narrow[i]);
      *strchr(typed, '=') = ' ';
      batch = fewer ? most_batch(r, with) : 0;
      if (batch > 0) return snprintf(text, 400, "%s --batch %lld", typed, (long long)batch) > 0;
      if (!fewer && tries(r, "%s", narrow[i])) return snprintf(text, 400, "%s", typed) > 0;
    }
  return false;
}

/* Finds the largest microbatch with which a training step fits one chip if the moments are in host
 * memory, and writes the options. Returns false if the step does not fit or has other settings. */
static bool fits_with_host(remedy *r, char text[400]) {
  const rf_plan_options *o = &r->plan->plan->options;
  const int64_t batch = o->build.microbatch * o->build.accumulate;
  int64_t fits = 0;
  if (strcmp(r->plan->job, "train") || r->plan->settings.machine.kind == RF_MACHINE_CPU ||
      rf_mesh_chips(&o->build.mesh) > 1 || o->build.offload || r->plan->settings.model.lora.rank > 0 ||
      o->program.program != RF_PROGRAM_RAFTER)
    return false;
  for (int64_t micro = 1; micro <= batch && batch % micro == 0; micro *= 2) {
    if (!tries(r, "offload=optimizer,remat=block,microbatch=%lld,accumulate=%lld", (long long)micro,
               (long long)(batch / micro)))
      break;
    fits = micro;
  }
  if (!fits) return false;
  snprintf(text, 400, "--offload optimizer");
  say_step(r, fits, batch / fits, text);
  return true;
}

/* Returns RAFTER_OK if the plan fits. Otherwise, fills `why` with the reason. Sets *find_more if
 * the hint of `why` names no change that fits. */
static rf_status say_why(const rafter_plan *plan, bool *find_more, rf_error *why) {
  const rf_plan *largest = rf_plan_larger(plan->plan, plan->prefill);
  int64_t room = rf_plan_room(&plan->settings.plan);
  char a[32], b[32];
  *find_more = false;
  if (rf_plan_require_fit(largest, why) == RAFTER_OK) {
    if (plan->needs <= room) return RAFTER_OK;
    RF_FAIL(why, RAFTER_NO_FIT,
            "use a smaller model or a machine with more memory, or train adapters with --lora",
            "the phases of the job together need too much memory (expected at most %s, got %s)",
            rf_text_bytes((double)room, a), rf_text_bytes((double)plan->needs, b));
  } else if (largest->arena_bytes <= room) return RAFTER_NO_FIT; /* the host lacks memory */
  /* in an RL job, the hint may make only one phase fit */
  *find_more = strncmp(why->hint, RF_THIS_FITS, strlen(RF_THIS_FITS)) != 0 || !strcmp(plan->job, "rl");
  return RAFTER_NO_FIT;
}

/* Returns the bytes of r->fits as text, such as ", in 9.63 GiB". With --fit, the text is empty: a
 * plan may fill all memory, so its bytes say little. */
static const char *bytes_text(const remedy *r, char text[48]) {
  *text = 0;
  if (!r->plan->plan->options.searched)
    snprintf(text, 48, ", in %.2f GiB", (double)bytes_of(r->fits) / 0x1p30);
  return text;
}

rf_status rf_plan_refuse(const rf_options *options, const rafter_plan *plan, rf_idle *idle, rf_error *error) {
  remedy r = {.from = options, .plan = plan, .idle = idle};
  rf_error why = {0};
  char change[400], bytes[48];
  bool find_more;
  if (rf_plan_all_fits(plan)) return RAFTER_OK;
  try_ahead(&r);
  r.helped = r.attempts > 0 && !pthread_create(&r.helper, NULL, help, &r);
  rf_status status = say_why(plan, &find_more, &why);
  const bool found = find_more && find(&r, change),
             lacks_margin =
                 find_more && !found && bytes_of(plan) <= room_of(&r) + plan->settings.plan.margin_bytes;
  if (found)
    snprintf(why.hint, sizeof why.hint, RF_THIS_FITS "%s: %.300s", bytes_text(&r, bytes),
             change + strspn(change, " "));
  else if (lacks_margin)
    snprintf(why.hint, sizeof why.hint, "the plan fits if --fit leaves no margin: add --margin 0");
  if (find_more && !lacks_margin && fits_with_host(&r, change)) {
    if (!found) why.hint[0] = 0;
    rf_text_append(why.hint, sizeof why.hint, "%s%s: %.150s", found ? "; or, on one chip" : RF_THIS_FITS,
                   bytes_text(&r, bytes), change);
  }
  stop_helping(&r);
  rafter_plan_free(r.fits);
  if (error && status != RAFTER_OK) *error = why;
  return status;
}
