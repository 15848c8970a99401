/* published_runs.c - plans every run of a table of published training runs, and compares predicted
 * rates with published ones.
 *   published_runs [FILE [--write DOCUMENT]]
 *   published_runs --unseen FILE [--write DOCUMENT]
 * The table replaces the lines of DOCUMENT between the marks "published runs" or "unseen runs".
 *
 * Settings that a row leaves open are those of the fastest plan that fits. If a row gives no mesh,
 * all chips share the weights by fsdp. The columns mesh, batch, accumulate, remat and options take
 * precedence over the words of the text.
 *
 * The time of a plan depends on four fitted numbers (FIT). Each prediction uses numbers that were
 * fitted without the row, or without every row of the row's system (program and machine). With
 * --unseen nothing is fitted: all predictions use the numbers of plans (data/machines.json and
 * plan/cost.c). For comparison, "mean MFU" predicts a run by the mean utilisation of the machine's
 * other rows, or of all other rows if there are none. */
#define _GNU_SOURCE
#include "base/file.h"
#include "api/api.h"
#include "plan/job.h"
#include "plan/parts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 128 };
enum {
  ID,
  SYSTEM,
  MACHINE,
  CHIPS,
  MODEL,
  SEQ,
  PRECISION,
  RATE,
  PUBLISHED,
  SOURCE,
  MESH,
  BATCH,
  ACCUMULATE,
  REMAT,
  OPTIONS,
  COLUMNS
};
typedef struct row {
  char text[COLUMNS][200];
  int64_t chips, seq, batch; /* batch: sequences per step as published, 0 if not published */
  double rate;               /* tokens per second and chip */
  char remat[200];           /* as published; "" if not */
  const char *program;       /* program that ran; NULL: none other than rafter's own is known */
  rf_settings *settings;
  rf_plan *plan;
  bool fits, experts;
  /* The graph of this model cannot be sharded yet. One chip computes the microbatch of every
   * chip, so that its optimizer costs as much per token as a sharded one. */
  bool alone;
  double mfu;                         /* of the full attention square, as implied by the published rate */
  double as_planned;                  /* tokens per second and chip, before any number is fitted */
  double efficiency;                  /* of all ops: the value that makes the plan exact */
  double simple, run_out, system_out; /* predicted rate / published */
  bool pooled;                        /* the machine has no other row */
  bool used;                          /* already in the mean that is being computed */
} row;

static int fail(const char *file, int line, const char *what) {
  fprintf(stderr, "published_runs: %s (%s:%d)\n", what, file, line);
  return 1;
}

/* ---- the table ------------------------------------------------------------------------------- */

/* Reads settings from the words that published tables use. */
static void read_words(row *r) {
  const char *text = r->text[PUBLISHED], *at = strstr(text, "sequences a device");
  long long n = 0;
  if (at) {
    while (at > text && (at[-1] == ' ' || (at[-1] >= '0' && at[-1] <= '9'))) at--;
    if (sscanf(at, "%lld", &n) == 1) r->batch = n * r->chips;
  }
  at = strstr(text, " tokens");
  const char *begin = at;
  while (begin && begin > text && ((begin[-1] >= '0' && begin[-1] <= '9') || begin[-1] == ',')) begin--;
  if (begin && begin < at && strstr(text, "for ")) { /* "0.73 s for 32,768 tokens" */
    for (n = 0; begin < at; begin++)
      if (*begin != ',') n = n * 10 + (*begin - '0');
    if (n % r->seq == 0) r->batch = n / r->seq;
  }
  /* JAX programs that scan over layers and materialise attention scores stack more than our program
   * does. The tutorial's programs are of this kind. */
  if (strstr(text, "unscanned")) r->program = "jax-unrolled";
  else if (strstr(text, "scanned") || strstr(r->text[SYSTEM], "UvA")) r->program = "jax-scan";
  if (strstr(text, "no remat")) strcpy(r->remat, "none");
  else if (strstr(text, "remat MLP + attention")) strcpy(r->remat, "mlp+attn");
  else if (strstr(text, "remat MLP")) strcpy(r->remat, "mlp");
  else if (strstr(text, "remat block")) strcpy(r->remat, "block");
}

static int read_table(const char *path, row *rows, int *count) {
  FILE *file = fopen(path, "r");
  char line[4096];
  int number = 0;
  if (!file) return fail(path, 0, "cannot open the table");
  while (fgets(line, sizeof line, file)) {
    number++;
    line[strcspn(line, "\r\n")] = 0;
    if (!line[0] || line[0] == '#' || !strncmp(line, "id\t", 3)) continue;
    if (*count == MAX_ROWS) {
      fclose(file);
      return fail(path, number, "too many rows");
    }
    row *r = &rows[(*count)++];
    char *rest = line, *field;
    int column = 0;
    while ((field = strsep(&rest, "\t")) && column < COLUMNS)
      snprintf(r->text[column++], sizeof *r->text, "%s", field);
    if (column < PUBLISHED) {
      fclose(file);
      return fail(path, number,
                  "too few columns (expected id, system, machine, chips, model, seq, precision, rate, ...)");
    }
    r->chips = atoll(r->text[CHIPS]);
    r->seq = atoll(r->text[SEQ]);
    r->rate = atof(r->text[RATE]);
    if (r->chips < 1 || r->seq < 1 || r->rate <= 0) {
      fclose(file);
      return fail(path, number, "chips, seq and rate must be above 0");
    }
    read_words(r);
    if (r->text[BATCH][0] && (r->batch = atoll(r->text[BATCH])) < 1) {
      fclose(file);
      return fail(path, number, "batch must be above 0, or blank");
    }
    if (r->text[REMAT][0]) memcpy(r->remat, r->text[REMAT], sizeof r->remat);
  }
  fclose(file);
  return 0;
}

/* ---- a row's plan ---------------------------------------------------------------------------- */

/* Sets "NAME=VALUE NAME=VALUE". */
static rf_status set_options(rf_options *options, const char *text, rf_error *error) {
  char copy[200], *rest = copy, *word;
  snprintf(copy, sizeof copy, "%s", text);
  while ((word = strsep(&rest, " "))) {
    char *value = strchr(word, '=');
    if (!value) continue;
    *value++ = 0;
    RF_TRY(rf_options_set(options, word, value, error));
  }
  return RAFTER_OK;
}

static rf_status settings_of(const row *r, int64_t batch, rf_settings *settings, rf_error *error) {
  rf_options *options = NULL;
  rf_status status = RAFTER_OK;
  char text[64], machine[300], shape[64] = "";
  RF_TRY(rf_machine_find(r->text[MACHINE], &settings->machine, error));
  if (r->chips > 1 && !r->alone) rf_machine_shape_for(&settings->machine, r->chips, shape, sizeof shape);
  RF_TRY(rf_options_new(&RF_ALL_COMMANDS, "plan", &options, error));
  RF_GO(rf_options_set(options, "MODEL", r->text[MODEL], error));
  snprintf(machine, sizeof machine, "%s%s", r->text[MACHINE], shape);
  RF_GO(rf_options_set(options, "on", machine, error));
  snprintf(text, sizeof text, "%lld", (long long)batch);
  RF_GO(rf_options_set(options, "batch", text, error));
  snprintf(text, sizeof text, "%lld", (long long)r->seq);
  RF_GO(rf_options_set(options, "seq", text, error));
  RF_GO(rf_options_set(options, "dtype", strcmp(r->text[PRECISION], "f32") ? "bf16" : "f32", error));
  if (r->remat[0]) RF_GO(rf_options_set(options, "remat", r->remat, error));
  if (r->text[MESH][0]) RF_GO(rf_options_set(options, "mesh", r->text[MESH], error));
  if (r->text[ACCUMULATE][0]) RF_GO(rf_options_set(options, "accumulate", r->text[ACCUMULATE], error));
  if (r->program) RF_GO(rf_options_set(options, "program", r->program, error));
  RF_GO(set_options(options, r->text[OPTIONS], error));
  if (!strcmp(r->text[PRECISION], "fp8") || !strcmp(r->text[PRECISION], "int8"))
    RF_GO(rf_options_set(options, "matmul-dtype", r->text[PRECISION], error));
  RF_GO(rf_settings_resolve(options, "train", settings, error));
  if (!r->alone) goto done;
  settings->plan.budget_bytes = (int64_t)1 << 60;
  settings->plan.build.microbatch = batch / r->chips;
  settings->plan.build.accumulate = (int)r->chips;
done:
  rf_options_free(options);
  return status;
}

static double step_tokens(const row *r) { return rf_plan_tokens(r->plan); }
static double rate_of(const row *r) {
  return step_tokens(r) / r->plan->step_seconds / (double)(r->alone ? 1 : r->chips);
}

/* Takes the plan if it is better. A plan that fits is better than one that does not; otherwise the
 * faster plan is better. */
static void consider(row *r, rf_settings *settings, rf_plan *plan, bool fits) {
  double before = r->plan ? rf_plan_tokens(r->plan) / r->plan->step_seconds : 0,
         now = rf_plan_tokens(plan) / plan->step_seconds;
  bool better = !r->plan || (fits && !r->fits) ||
                (fits == r->fits && (fits ? now > before : plan->arena_bytes < r->plan->arena_bytes));
  if (!better) {
    rf_plan_free(plan);
    free(settings);
    return;
  }
  rf_plan_free(r->plan);
  free(r->settings);
  r->plan = plan;
  r->settings = settings;
  r->fits = fits;
}

/* One try of the settings that the row leaves open. *more: whether to try a larger batch. */
static rf_status try_batch(row *r, int64_t batch, bool *more, rf_error *error) {
  rf_settings *settings = malloc(sizeof *settings);
  rf_plan *plan = NULL;
  if (!settings) return RAFTER_FAILED;
  rf_status status = settings_of(r, batch, settings, error);
  rf_fit_vary vary = {.remat = !r->remat[0] && !r->alone,
                      .microbatch = r->batch > 0 && !r->alone && !r->text[ACCUMULATE][0]};
  /* MaxText's default */
  if (status == RAFTER_OK && r->alone && !r->remat[0]) settings->plan.remat = RF_REMAT_BLOCK;
  if (status == RAFTER_OK)
    status = rf_plan_fit(&settings->model, &settings->plan, vary, NULL, &plan, NULL, error);
  bool fits = status == RAFTER_OK && rf_plan_fits(plan);
  if (status == RAFTER_OK && !fits) {
    rf_plan_free(plan);
    plan = NULL;
    if (!r->remat[0]) settings->plan.remat = RF_REMAT_BLOCK;
    status = rf_plan_make(&settings->model, &settings->plan, &plan, error);
  }
  if (plan) consider(r, settings, plan, fits);
  else free(settings);
  *more = fits && !r->batch;
  return status;
}

/* Chooses the settings that the row leaves open as --fit does: the fastest plan that fits, over
 * sequences per chip, microbatches and recomputation. */
static rf_status plan_row(row *r, rf_error *error) {
  static const int64_t each[] = {1, 2, 4, 8, 16};
  rf_status status = RAFTER_OK;
  bool more = true;
  for (int i = 0; i < 5 && more; i++) {
    status = try_batch(r, r->batch ? r->batch : each[i] * r->chips, &more, error);
    if (status == RAFTER_INVALID && !r->plan && r->chips > 1 && !r->alone && !r->text[MESH][0]) {
      r->alone = true;
      more = true;
      i--;
    } else if (status != RAFTER_OK) break;
  }
  return r->plan ? RAFTER_OK : status;
}

/* ---- fitted numbers -------------------------------------------------------------------------- */

static bool is_tpu(const row *r) { return r->plan->machine.kind == RF_MACHINE_TPU; }
static bool is_eight(const row *r) { return r->plan->options.build.matmul_set; }
static bool plain_tpu(const row *r) { return is_tpu(r) && !r->experts && !is_eight(r); }
static bool plain_gpu(const row *r) { return !is_tpu(r) && !r->experts && !is_eight(r); }
static bool has_experts(const row *r) { return r->experts; }

/* Everything that is fitted, in the order in which it is fitted. */
enum { TPU, GPU, EXPERTS, EIGHT, FITTED };
static const struct {
  const char *name;
  bool (*decides)(const row *r); /* the rows that the number is fitted to */
  double shipped;                /* value in plans: data/machines.json, plan/cost.c */
} FIT[FITTED] = {{"efficiency of large products on TPUs", plain_tpu, 0.78},
                 {"efficiency of large products on GPUs", plain_gpu, 0.51},
                 {"share of grouped products of experts", has_experts, 0.63},
                 {"share of 8-bit products", is_eight, 0.78}};

static double predicted(row *r, const double fit[FITTED]) {
  r->plan->machine.efficiency_compute = fit[is_tpu(r) ? TPU : GPU];
  r->plan->machine.efficiency_experts = fit[EXPERTS];
  r->plan->machine.efficiency_eight_bits = fit[EIGHT];
  rf_plan_cost(r->plan);
  if (r->plan->options.program.program != RF_PROGRAM_RAFTER) rf_program_time(r->plan);
  return rate_of(r);
}

/* The value of the fitted number `which` at which the plan is as fast as the published run. */
static double implied(row *r, int which, const double others[FITTED]) {
  double fit[FITTED], low = 0.01, high = 4;
  memcpy(fit, others, sizeof fit);
  for (int i = 0; i < 30; i++) {
    fit[which] = sqrt(low * high);
    if (predicted(r, fit) > r->rate) high = fit[which];
    else low = fit[which];
  }
  return sqrt(low * high);
}

typedef bool (*row_test)(const row *other, const row *of);
static bool same_row(const row *other, const row *of) { return other == of; }
static bool same_machine(const row *other, const row *of) {
  size_t n = strcspn(of->text[MACHINE], "@");
  return n == strcspn(other->text[MACHINE], "@") && !strncmp(other->text[MACHINE], of->text[MACHINE], n);
}
static bool same_system(const row *other, const row *of) {
  return same_machine(other, of) && !strcmp(other->text[SYSTEM], of->text[SYSTEM]);
}
static bool no_row(const row *other, const row *of) { return (void)other, (void)of, false; }

/* Geometric mean over systems of the geometric means of their rows, so that a system with many rows
 * counts as one. Rows that `out` matches are left out. If no row decides a number, it has its
 * shipped value. */
static double fitted(row *rows, int count, int which, const row *of, row_test out,
                     const double others[FITTED]) {
  double sum = 0;
  int systems = 0;
  for (int i = 0; i < count; i++) rows[i].used = out(&rows[i], of) || !FIT[which].decides(&rows[i]);
  for (int i = 0; i < count; i++) {
    double logs = 0;
    int n = 0;
    for (int k = i; k < count; k++)
      if (!rows[k].used && same_system(&rows[k], &rows[i])) {
        logs += log(implied(&rows[k], which, others));
        rows[k].used = true;
        n++;
      }
    if (!n) continue;
    sum += logs / n;
    systems++;
  }
  return systems ? exp(sum / systems) : FIT[which].shipped;
}

static void fit_without(row *rows, int count, const row *of, row_test out, double fit[FITTED]) {
  for (int i = 0; i < FITTED; i++) fit[i] = FIT[i].shipped;
  for (int i = 0; i < FITTED; i++) fit[i] = fitted(rows, count, i, of, out, fit);
}

static double mean_mfu(const row *rows, int count, const row *of, bool of_machine) {
  double sum = 0;
  int n = 0;
  for (int i = 0; i < count; i++)
    if (&rows[i] != of && (!of_machine || same_machine(&rows[i], of))) {
      sum += rows[i].mfu;
      n++;
    }
  return n ? sum / n : 0;
}

static void predict(row *rows, int count, row *r, const double all[FITTED]) {
  double fit[FITTED], mfu = mean_mfu(rows, count, r, true);
  r->pooled = mfu <= 0;
  if (r->pooled) mfu = mean_mfu(rows, count, r, false);
  r->simple = mfu / r->mfu;
  fit_without(rows, count, r, same_row, fit);
  r->run_out = predicted(r, fit) / r->rate;
  fit_without(rows, count, r, same_system, fit);
  r->system_out = predicted(r, fit) / r->rate;
  r->efficiency = implied(r, is_tpu(r) ? TPU : GPU, all);
}

static void predict_all(row *rows, int count, double fit[FITTED]) {
  fit_without(rows, count, NULL, no_row, fit);
  for (int i = 0; i < count; i++) predict(rows, count, &rows[i], fit);
}

static void predict_unseen(row *rows, int count) {
  for (int i = 0; i < count; i++) rows[i].run_out = rate_of(&rows[i]) / rows[i].rate;
}

/* The values in FIT must be those of plans. In the repository's own table they must also be the
 * fitted values. */
static int check_shipped(row *rows, int count, const double fit[FITTED], bool own_table) {
  double shipped[FITTED];
  int failures = 0;
  for (int i = 0; i < FITTED; i++) shipped[i] = FIT[i].shipped;
  for (int i = 0; i < count; i++)
    if (fabs(predicted(&rows[i], shipped) / rows[i].as_planned - 1) > 1e-9)
      failures += fail(rows[i].text[ID], 0, "plans use other numbers than FIT");
  for (int i = 0; i < FITTED && own_table; i++)
    if (fabs(fit[i] - shipped[i]) > 0.01) {
      fprintf(stderr, "published_runs: the fitted %s is %.3f, and plans use %.3f\n", FIT[i].name, fit[i],
              shipped[i]);
      failures++;
    }
  return failures;
}

/* ---- the report ------------------------------------------------------------------------------ */

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}
typedef double (*error_of)(const row *r);
static double simple_error(const row *r) { return fabs(r->simple - 1); }
static double run_error(const row *r) { return fabs(r->run_out - 1); }
static double system_error(const row *r) { return fabs(r->system_out - 1); }
static double median_percent(const row *rows, int count, error_of error) {
  double off[MAX_ROWS];
  for (int i = 0; i < count; i++) off[i] = 100 * error(&rows[i]);
  qsort(off, (size_t)count, sizeof *off, ascending);
  return count % 2 ? off[count / 2] : (off[count / 2 - 1] + off[count / 2]) / 2;
}

/* Number of runs whose published time is within the band around the time that is predicted without
 * the run. */
static int inside_band(const row *rows, int count) {
  int inside = 0;
  for (int i = 0; i < count; i++) {
    double band[2];
    rf_plan_band(rows[i].plan, 1, band);
    inside += rows[i].run_out >= band[0] && rows[i].run_out <= band[1];
  }
  return inside;
}

static const char *bound_of(const rf_plan *plan) {
  static const char *const names[RF_BOUNDS] = {"arithmetic", "memory", "latency", "network"};
  return names[plan->time.bound];
}

static const char *plan_text(const row *r, char text[400]) {
  const rf_build_options *b = &r->plan->options.build;
  char mesh[160], memory[48];
  snprintf(memory, sizeof memory, "%.1f GiB%s", (double)r->plan->arena_bytes / 0x1p30,
           r->fits ? "" : ", more than there is");
  int64_t batch = b->microbatch * b->accumulate, chips = r->chips;
  snprintf(text, 400, "%s%s%lld%s a chip%s, remat %s%s, %s",
           r->alone ? "one chip's share, weights whole, nothing exchanged" : rf_mesh_text(&b->mesh, mesh),
           r->batch ? "; sequences: " : "; sequences, chosen: ", (long long)(batch / chips),
           batch % chips ? "+" : "", b->accumulate > 1 && !r->alone ? " in microbatches" : "",
           rf_remat_name(r->plan->options.remat), r->remat[0] ? "" : " (chosen)",
           r->alone ? "memory not asked" : memory);
  if (r->program) snprintf(text + strlen(text), 400 - strlen(text), ", as %s", r->program);
  return text;
}

static void put_table(FILE *out, row *rows, int count, const double fit[FITTED]) {
  char text[400];
  fprintf(out, "| run | on | model | planned as | bound | published tokens/s a chip | MFU | efficiency | "
               "by mean MFU | op by op, one run out | op by op, system out |\n");
  fprintf(out, "|---|---|---|---|---|---|---|---|---|---|---|\n");
  for (int i = 0; i < count; i++) {
    row *r = &rows[i];
    fprintf(out,
            "| %s | %s x %lld | %s, %lld, %s | %s | %s | %.6g | %.1f %% | %.2f | %+.0f %%%s | %+.0f %% | "
            "%+.0f %% |\n",
            r->text[ID], r->text[MACHINE], (long long)r->chips, r->text[MODEL], (long long)r->seq,
            r->text[PRECISION], plan_text(r, text), bound_of(r->plan), r->rate, 100 * r->mfu, r->efficiency,
            100 * (r->simple - 1), r->pooled ? " (pooled)" : "", 100 * (r->run_out - 1),
            100 * (r->system_out - 1));
  }
  fprintf(out,
          "\nMedian error over %d runs: %.1f %% by the mean MFU; op by op %.1f %% with one run left out, "
          "%.1f %% with\na whole system left out. The band of a plan's time holds %d of the %d runs, each "
          "predicted without\nitself.\n",
          count, median_percent(rows, count, simple_error), median_percent(rows, count, run_error),
          median_percent(rows, count, system_error), inside_band(rows, count), count);
  fprintf(out, "\n| fitted number | fitted to all runs | in plans | runs |\n|---|---|---|---|\n");
  for (int i = 0; i < FITTED; i++) {
    fprintf(out, "| %s | %.3f | %.2f |", FIT[i].name, fit[i], FIT[i].shipped);
    for (int k = 0; k < count; k++)
      if (FIT[i].decides(&rows[k])) fprintf(out, " %s", rows[k].text[ID]);
    fprintf(out, " |\n");
  }
}

static void put_unseen(FILE *out, row *rows, int count) {
  char text[400];
  fprintf(out, "| run | system | on | model | planned as | published tokens/s a chip | predicted | off |\n"
               "|---|---|---|---|---|---|---|---|\n");
  for (int i = 0; i < count; i++) {
    row *r = &rows[i];
    fprintf(out, "| %s | %s | %s x %lld | %s, %lld, %s | %s | %.6g | %.4g | %+.0f %% |\n", r->text[ID],
            r->text[SYSTEM], r->text[MACHINE], (long long)r->chips, r->text[MODEL], (long long)r->seq,
            r->text[PRECISION], plan_text(r, text), r->rate, r->run_out * r->rate, 100 * (r->run_out - 1));
  }
  fprintf(out, "\nMedian error over %d runs: %.1f %%. The band of a plan's time holds %d of the %d runs.\n",
          count, median_percent(rows, count, run_error), inside_band(rows, count), count);
}

static void put_result(FILE *out, row *rows, int count, const double *fit) {
  if (fit) put_table(out, rows, count, fit);
  else put_unseen(out, rows, count);
}

/* Writes the table into the document, between its marks. fit: NULL with --unseen. */
static int write_document(const char *path, row *rows, int count, const double *fit) {
  const char *begin = fit ? "<!-- published runs: begin -->\n" : "<!-- unseen runs: begin -->\n",
             *end = fit ? "<!-- published runs: end -->" : "<!-- unseen runs: end -->";
  char *text = NULL, *at, *rest;
  size_t bytes;
  rf_error error = {0};
  if (rf_file_read(path, 16 << 20, &text, &bytes, &error) != RAFTER_OK) return fail(path, 0, error.message);
  at = strstr(text, begin);
  rest = at ? strstr(at, end) : NULL;
  FILE *out = rest ? fopen(path, "w") : NULL;
  if (!out) {
    free(text);
    return fail(path, 0, "no marks of published runs, or not writable");
  }
  fwrite(text, 1, (size_t)(at - text) + strlen(begin), out);
  put_result(out, rows, count, fit);
  fputs(rest, out);
  fclose(out);
  free(text);
  return 0;
}

/* Plans every row. A row that cannot be planned is named and taken out. */
static void plan_rows(row *rows, int *count) {
  rf_error error = {0};
  for (int i = 0; i < *count;) {
    row *r = &rows[i];
    if (plan_row(r, &error) != RAFTER_OK) {
      printf("%s is not planned: %s\n", r->text[ID], error.message);
      memmove(r, r + 1, (size_t)(*count - i - 1) * sizeof *r);
      (*count)--;
      continue;
    }
    r->experts = r->plan->graph->model.experts > 0;
    r->as_planned = rate_of(r);
    double per_token = r->plan->flops_full_square / step_tokens(r);
    double peak =
        r->plan->machine.flops[strcmp(r->text[PRECISION], "fp8") ? r->plan->options.build.dtype : RF_F8_E4M3];
    r->mfu = r->rate * per_token / peak;
    i++;
  }
}

/* Returns how many of the limits are exceeded. Unseen runs have the limit of systems left out. */
static int count_failures(row *rows, int count, bool unseen) {
  const double run_limit = unseen ? 20 : 12, system_limit = 20, inside = 11. / 14;
  int failures = 0;
  if (!count) return fail("the table", 0, "no run was planned");
  if (median_percent(rows, count, run_error) > run_limit)
    failures += fail(unseen ? "unseen runs" : "one run left out", 0,
                     unseen ? "the median error is above 20 %" : "the median error is above 12 %");
  if (!unseen && median_percent(rows, count, system_error) > system_limit)
    failures += fail("a system left out", 0, "the median error is above 20 %");
  if (inside_band(rows, count) < floor(inside * count))
    failures += fail("the band", 0, "holds fewer than 11 of 14 runs");
  return failures;
}

int main(int argc, char **argv) {
  static row rows[MAX_ROWS];
  int count = 0, status = 1;
  double fit[FITTED];
  bool unseen = argc > 1 && !strcmp(argv[1], "--unseen");
  if (unseen) {
    argc--;
    argv++;
  }
  const char *path = argc > 1 ? argv[1] : "data/published-runs.tsv",
             *document = argc > 3 && !strcmp(argv[2], "--write") ? argv[3] : NULL;
  if ((argc > 2 && !document) || (unseen && argc < 2)) {
    fprintf(stderr, "usage: published_runs [--unseen] [FILE [--write DOCUMENT]]\n");
    return 2;
  }
  if (read_table(path, rows, &count)) goto done;
  plan_rows(rows, &count);
  if (unseen) predict_unseen(rows, count);
  else {
    predict_all(rows, count, fit);
    if (check_shipped(rows, count, fit, argc < 2)) goto done;
  }
  put_result(stdout, rows, count, unseen ? NULL : fit);
  if (document && write_document(document, rows, count, unseen ? NULL : fit)) goto done;
  status = count_failures(rows, count, unseen) > 0;
done:
  for (int i = 0; i < count; i++) {
    rf_plan_free(rows[i].plan);
    free(rows[i].settings);
  }
  return status;
}
