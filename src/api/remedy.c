/* remedy.c - what would make a plan fit that does not: changes of the command's own options, each planned before it is named. */
#include "api/plan.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct remedy {
  const rf_options *from;
  const rafter_plan *plan; /* what does not fit */
  rafter_plan *fits;       /* of the change tried last that fits */
} remedy;

bool rf_plan_all_fits(const rafter_plan *p) {
  return rf_plan_fits(p->plan) && (!p->prefill || rf_plan_fits(p->prefill)) && p->needs <= rf_plan_room(&p->settings.plan);
}

static int64_t bytes_of(const rafter_plan *p) {
  int64_t bytes = rf_plan_larger(p->plan, p->prefill)->arena_bytes;
  return p->needs > bytes ? p->needs : bytes;
}

/* Whether the command fits with a change of its options, written as --compare takes them. */
static bool tries(remedy *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool tries(remedy *r, const char *format, ...) {
  char change[400];
  va_list list;
  va_start(list, format);
  vsnprintf(change, sizeof change, format, list);
  va_end(list);
  rf_options *options = rf_options_copy(r->from);
  rafter_plan *p = calloc(1, sizeof *p);
  bool fits = p && rf_options_apply(options, change, NULL) == RAFTER_OK && rf_plan_job_size(p, options, r->plan->job, NULL) == RAFTER_OK &&
              rf_plan_all_fits(p);
  rafter_plan_free(fits ? r->fits : p);
  if (fits) r->fits = p;
  rf_options_free(options);
  return fits;
}

/* The most sequences at once that fit, near enough: halved until they do, then a few steps back up. `with`: a change beside, or "". */
static int64_t most_batch(remedy *r, const char *with) {
  int64_t most = rf_options_int(r->from, "batch"), fits = most / 2;
  while (fits > 0 && !tries(r, "batch=%lld%s", (long long)fits, with)) most = fits, fits /= 2;
  for (int i = 0; i < 4 && fits > 0 && most - fits > 1; i++) {
    int64_t middle = fits + (most - fits) / 2;
    if (tries(r, "batch=%lld%s", (long long)middle, with)) fits = middle;
    else most = middle;
  }
  return fits;
}

/* What stands in memory for as long as the job lasts: less than that no setting takes. */
static int64_t lasting_bytes(const rafter_plan *p) { return p->lasts > 0 ? p->lasts : p->plan->persistent_bytes; }

/* More chips than sequences: a few share each matrix. */
static bool cut_products(remedy *r, const char *on, int64_t batch, int64_t devices, char text[400]) {
  int64_t rows = rf_common_divisor(devices, batch);
  if (rf_options_given(r->from, "fit") || r->plan->settings.machine.slices > 1) return false;
  snprintf(text, 400, "--on %s --mesh fsdp=%lld,tensor=%lld --remat block", on, (long long)rows, (long long)(devices / rows));
  return tries(r, "on=%s,mesh=fsdp=%lld,tensor=%lld,remat=block", on, (long long)rows, (long long)(devices / rows));
}

/* Training steps on these chips: a sequence on each with whole blocks recomputed is the least they take; where that fits, more may. */
static bool least_of(remedy *r, const char *on, int64_t chips, char text[400]) {
  const rf_build_options *b = &r->plan->plan->options.build;
  int64_t batch = b->microbatch * b->accumulate, devices = chips * (r->plan->settings.machine.devices_per_chip > 1 ? 2 : 1);
  if (batch % devices) return cut_products(r, on, batch, devices, text);
  if (!tries(r, "on=%s,remat=block,microbatch=%lld,accumulate=%lld", on, (long long)devices, (long long)(batch / devices))) return false;
  snprintf(text, 400, "--on %s --remat block --microbatch %lld --accumulate %lld", on, (long long)devices, (long long)(batch / devices));
  if (!tries(r, "on=%s,remat=block", on)) return true;
  snprintf(text, 400, "--on %s --remat block", on);
  if (!tries(r, "on=%s", on)) return true;
  return snprintf(text, 400, "--on %s", on) > 0;
}

/* More chips of the same machine, twice as many each time, as they are typed. */
static bool more_chips(remedy *r, bool learns, char text[400]) {
  enum { TRIES = 4 };
  const rf_machine *m = &r->plan->settings.machine;
  const char *on = rf_options_text(r->from, "on");
  double times = (double)lasting_bytes(r->plan) / fmax(1, (double)rf_plan_room(&r->plan->settings.plan));
  int64_t chips = m->by_device ? m->chips / 2 : m->chips;
  if (rf_options_given(r->from, "mesh") || m->topology.form == RF_NETWORK_NONE) return false;
  for (chips *= 2; times > 2; times /= 2) chips *= 2;
  for (int i = 0; i < TRIES; i++, chips *= 2) {
    char shape[80], spec[300];
    rf_machine_shape_for(m, chips, shape, sizeof shape);
    snprintf(spec, sizeof spec, "%.*s%s", (int)strcspn(on, ":*"), on, shape);
    if (learns ? least_of(r, spec, chips, text) : tries(r, "on=%s", spec) && snprintf(text, 400, "--on %s", spec) > 0) return true;
  }
  return false;
}

/* The change as it is typed; false: none was found. */
static bool find(remedy *r, char text[400]) {
  const char *job = r->plan->job;
  bool learns = !strcmp(job, "train") || !strcmp(job, "rl");
  if (!strcmp(job, "rl")) {
    int64_t batch = r->plan->plan->options.build.microbatch * r->plan->plan->options.build.accumulate;
    for (int64_t micro = r->plan->plan->options.build.microbatch; micro >= 1; micro /= 2)
      if (batch % micro == 0 && tries(r, "remat=block,microbatch=%lld,accumulate=%lld", (long long)micro, (long long)(batch / micro)))
        return snprintf(text, 400, "--remat block --microbatch %lld --accumulate %lld", (long long)micro, (long long)(batch / micro)) > 0;
  }
  const rf_dtype dtype = r->plan->plan->options.build.dtype;
  int64_t batch = learns ? 0 : most_batch(r, "");
  if (batch > 0) return snprintf(text, 400, "--batch %lld", (long long)batch) > 0;
  if (learns && dtype == RF_F32 && tries(r, "dtype=bf16,remat=block")) return snprintf(text, 400, "--dtype bf16 --remat block") > 0;
  if (more_chips(r, learns, text)) return true;
  if (learns) return false;
  /* What is held or computed narrower, as it is; then fewer at once with it. */
  static const char *const narrow[] = {"dtype=bf16", "weights=int8", "weights=fp8", "weights=int4"};
  for (int fewer = 0; fewer < 2; fewer++)
    for (size_t i = 0; i < sizeof narrow / sizeof *narrow; i++) {
      char with[32], typed[32];
      if (!strcmp(narrow[i], "dtype=bf16") && dtype != RF_F32) continue;
      snprintf(with, sizeof with, ",%s", narrow[i]), snprintf(typed, sizeof typed, "--%s", narrow[i]);
      *strchr(typed, '=') = ' ';
      batch = fewer ? most_batch(r, with) : 0;
      if (batch > 0) return snprintf(text, 400, "%s --batch %lld", typed, (long long)batch) > 0;
      if (!fewer && tries(r, "%s", narrow[i])) return snprintf(text, 400, "%s", typed) > 0;
    }
  return false;
}

rf_status rf_plan_refuse(const rafter_job *job, const rafter_plan *plan, rf_error *error) {
  const rf_plan *largest = rf_plan_larger(plan->plan, plan->prefill);
  int64_t room = rf_plan_room(&plan->settings.plan);
  remedy r = {job->options, plan, NULL};
  char a[32], b[32], change[400];
  rf_error why = {0};
  if (rf_plan_require_fit(largest, &why) == RAFTER_OK) {
    if (plan->needs <= room) return RAFTER_OK;
    RF_FAIL(&why, RAFTER_NO_FIT, "take a smaller model or a machine with more memory, or train adapters with --lora",
            "the phases do not fit together (memory: expected at most %s, got %s)", rf_text_bytes((double)room, a),
            rf_text_bytes((double)plan->needs, b));
  } else if (largest->arena_bytes <= room) return rf_plan_require_fit(largest, error);                     /* it is the host that has too little */
  bool named = strncmp(why.hint, RF_THIS_FITS, strlen(RF_THIS_FITS)) == 0 && strcmp(plan->job, "rl") != 0; /* a phase that fits is not all */
  if (!named && find(&r, change)) {
    char bytes[48] = "";
    rf_plan_settle_size(r.fits->plan);
    if (!plan->plan->searched)
      snprintf(bytes, sizeof bytes, ", in %.2f GiB", (double)bytes_of(r.fits) / 0x1p30); /* a search takes what makes it fast */
    snprintf(why.hint, sizeof why.hint, RF_THIS_FITS "%s: %.300s", bytes, change);
  }
  rafter_plan_free(r.fits);
  if (error) *error = why;
  return RAFTER_NO_FIT;
}
