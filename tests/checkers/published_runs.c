/* published_runs.c - plans every run of a table of published training runs, and compares predicted
 * rates with published ones.
 *   published_runs [FILE [--write DOCUMENT]]
 * The table replaces the lines of DOCUMENT between the marks "published runs". If a row does not
 * give its batch and recomputation, it gets those of the fastest plan that fits. If it gives no
 * mesh, all chips share the weights by fsdp. The columns mesh, batch, accumulate and remat take
 * precedence over the words of the text.
 * There are two predictions, each made without the row that it is compared with:
 *   mean MFU: the FLOPs of the full attention square, at the mean utilisation of the machine's
 *   other rows.
 *   op by op: the seconds of the plan, at the mean of the efficiencies that make it exact for the
 *   machine's other rows. The efficiency of grouped products, relative to plain ones, is the mean
 *   over the other rows with experts.
 * A machine without other rows takes the mean of all other rows. */
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
  COLUMNS
};
static const double DEFAULT_EXPERTS = 0.65;

typedef struct row {
  char text[COLUMNS][200];
  int64_t chips, seq, batch; /* batch: sequences per step as published, 0 if not published */
  double rate;               /* tokens per second and chip */
  const char *remat;         /* as published, or NULL */
  const char *program;       /* program that ran; NULL: none other than rafter's own is known */
  rf_settings *settings;
  rf_plan *plan;
  bool fits, experts;
  /* The graph of this model cannot be sharded yet. One chip computes the microbatch of every
   * chip, so that its optimizer costs as much per token as a sharded one. */
  bool alone;
  double mfu; /* of the full attention square, as implied by the published rate */
  /* efficiency: value that makes the plan exact. ratio: efficiency of grouped products, given the
   * machine's other rows. */
  double efficiency, ratio;
  double simple, detailed; /* predicted rate / published */
  bool pooled;             /* the machine has no other row */
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
  if (strstr(text, "no remat")) r->remat = "none";
  else if (strstr(text, "remat MLP + attention")) r->remat = "mlp+attn";
  else if (strstr(text, "remat MLP")) r->remat = "mlp";
  else if (strstr(text, "remat block")) r->remat = "block";
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
    if (r->text[REMAT][0]) r->remat = r->text[REMAT];
  }
  fclose(file);
  return 0;
}

/* ---- a row's plan ---------------------------------------------------------------------------- */

static rf_status settings_of(const row *r, int64_t batch, const char *remat, rf_settings *settings,
                             rf_error *error) {
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
  if (remat) RF_GO(rf_options_set(options, "remat", remat, error));
  if (r->text[MESH][0]) RF_GO(rf_options_set(options, "mesh", r->text[MESH], error));
  if (r->text[ACCUMULATE][0]) RF_GO(rf_options_set(options, "accumulate", r->text[ACCUMULATE], error));
  if (r->program) RF_GO(rf_options_set(options, "program", r->program, error));
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
  rf_status status = settings_of(r, batch, r->remat, settings, error);
  rf_fit_vary vary = {.remat = !r->remat && !r->alone,
                      .microbatch = r->batch > 0 && !r->alone && !r->text[ACCUMULATE][0]};
  /* MaxText's default */
  if (status == RAFTER_OK && r->alone && !r->remat) settings->plan.remat = RF_REMAT_BLOCK;
  if (status == RAFTER_OK)
    status = rf_plan_fit(&settings->model, &settings->plan, vary, NULL, &plan, NULL, error);
  bool fits = status == RAFTER_OK && rf_plan_fits(plan);
  if (status == RAFTER_OK && !fits) {
    rf_plan_free(plan);
    plan = NULL;
    if (!r->remat) settings->plan.remat = RF_REMAT_BLOCK;
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

/* ---- efficiencies ---------------------------------------------------------------------------- */

static double predicted(row *r, double efficiency, double experts) {
  r->plan->machine.efficiency_compute = efficiency;
  r->plan->machine.efficiency_experts = experts;
  rf_plan_cost(r->plan);
  if (r->plan->options.program.program != RF_PROGRAM_RAFTER) rf_program_time(r->plan);
  return rate_of(r);
}

/* The efficiency (or ratio of grouped products) at which the plan is as fast as the published
 * run. */
static double implied(row *r, double efficiency, double experts) {
  double least = 0.01, most = 4;
  for (int i = 0; i < 60; i++) {
    double middle = sqrt(least * most);
    double rate = efficiency > 0 ? predicted(r, efficiency, middle) : predicted(r, middle, experts);
    if (rate > r->rate) most = middle;
    else least = middle;
  }
  return sqrt(least * most);
}

typedef bool (*row_test)(const row *other, const row *of);
static bool same_machine(const row *other, const row *of) {
  return !strcmp(other->text[MACHINE], of->text[MACHINE]);
}
static bool any_row(const row *other, const row *of) { return (void)other, (void)of, true; }

static double mean_mfu(const row *rows, int count, int without, row_test test) {
  double sum = 0;
  int n = 0;
  for (int i = 0; i < count; i++)
    if (i != without && test(&rows[i], &rows[without])) {
      sum += rows[i].mfu;
      n++;
    }
  return n ? sum / n : 0;
}

static double mean_efficiency(row *rows, int count, int without, bool dense_only, const row *like,
                              row_test test, double experts) {
  double sum = 0;
  int n = 0;
  for (int i = 0; i < count; i++)
    if (i != without && test(&rows[i], like) && !(dense_only && rows[i].experts)) {
      sum += implied(&rows[i], 0, experts);
      n++;
    }
  return n ? sum / n : 0;
}

/* The efficiency of grouped products relative to plain ones: the mean over rows with experts, each
 * relative to the dense rows of its machine. */
static double experts_without(row *rows, int count, int without) {
  double sum = 0;
  int n = 0;
  for (int i = 0; i < count; i++) {
    if (i == without || !rows[i].experts) continue;
    double dense = mean_efficiency(rows, count, without, true, &rows[i], same_machine, DEFAULT_EXPERTS);
    if (dense <= 0) continue;
    double ratio = implied(&rows[i], dense, 0);
    sum += ratio < 1 ? ratio : 1;
    n++;
  }
  return n ? sum / n : DEFAULT_EXPERTS;
}

static void predict(row *rows, int count, int i) {
  row *r = &rows[i];
  double mfu = mean_mfu(rows, count, i, same_machine), experts = experts_without(rows, count, i);
  double efficiency = mean_efficiency(rows, count, i, false, r, same_machine, experts);
  r->pooled = mfu <= 0;
  if (r->pooled) {
    mfu = mean_mfu(rows, count, i, any_row);
    efficiency = mean_efficiency(rows, count, i, false, r, any_row, experts);
  }
  r->simple = mfu / r->mfu;
  r->detailed = efficiency > 0 ? predicted(r, efficiency, experts) / r->rate : NAN;
  r->efficiency = implied(r, 0, experts);
  r->ratio = experts;
}

/* ---- the report ------------------------------------------------------------------------------ */

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}
static double median(const row *rows, int count, bool detailed) {
  double off[MAX_ROWS];
  for (int i = 0; i < count; i++) off[i] = fabs((detailed ? rows[i].detailed : rows[i].simple) - 1);
  qsort(off, (size_t)count, sizeof *off, ascending);
  return count % 2 ? off[count / 2] : (off[count / 2 - 1] + off[count / 2]) / 2;
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
           rf_remat_name(r->plan->options.remat), r->remat ? "" : " (chosen)",
           r->alone ? "memory not asked" : memory);
  if (r->program) snprintf(text + strlen(text), 400 - strlen(text), ", as %s", r->program);
  return text;
}

static void put_table(FILE *out, row *rows, int count) {
  char text[400];
  fprintf(out, "| run | on | model | planned as | bound | published tokens/s a chip | MFU | by mean MFU | "
               "efficiency | op by op |\n");
  fprintf(out, "|---|---|---|---|---|---|---|---|---|---|\n");
  for (int i = 0; i < count; i++) {
    row *r = &rows[i];
    const char *pooled = r->pooled ? " (pooled)" : "";
    fprintf(out,
            "| %s | %s x %lld | %s, %lld, %s | %s | %s | %.6g | %.1f %% | %+.0f %%%s | %.2f | %+.0f %%%s |\n",
            r->text[ID], r->text[MACHINE], (long long)r->chips, r->text[MODEL], (long long)r->seq,
            r->text[PRECISION], plan_text(r, text), bound_of(r->plan), r->rate, 100 * r->mfu,
            100 * (r->simple - 1), pooled, r->efficiency, 100 * (r->detailed - 1), pooled);
  }
  fprintf(out, "\nMedian error over %d runs: %.1f %% by the mean MFU, %.1f %% op by op.\n", count,
          100 * median(rows, count, false), 100 * median(rows, count, true));
}

/* Writes the table into the document, between its marks. */
static int write_document(const char *path, row *rows, int count) {
  static const char *const begin = "<!-- published runs: begin -->\n", *const end =
                                                                           "<!-- published runs: end -->";
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
  put_table(out, rows, count);
  fputs(rest, out);
  fclose(out);
  free(text);
  return 0;
}

int main(int argc, char **argv) {
  static row rows[MAX_ROWS];
  int count = 0, status = 1;
  rf_error error = {0};
  const double limit = 20;
  const char *path = argc > 1 ? argv[1] : "data/published-runs.tsv",
             *document = argc > 3 && !strcmp(argv[2], "--write") ? argv[3] : NULL;
  if (argc > 2 && !document) {
    fprintf(stderr, "usage: published_runs [FILE [--write DOCUMENT]]\n");
    return 2;
  }
  if (read_table(path, rows, &count)) goto done;
  for (int i = 0; i < count;) {
    row *r = &rows[i];
    if (plan_row(r, &error) != RAFTER_OK) {
      printf("%s is not planned: %s\n", r->text[ID], error.message);
      memmove(r, r + 1, (size_t)(count - i - 1) * sizeof *r);
      count--;
      continue;
    }
    r->experts = r->plan->graph->model.experts > 0;
    double per_token = r->plan->flops_full_square / step_tokens(r);
    double peak =
        r->plan->machine.flops[strcmp(r->text[PRECISION], "fp8") ? r->plan->options.build.dtype : RF_F8_E4M3];
    r->mfu = r->rate * per_token / peak;
    i++;
  }
  for (int i = 0; i < count; i++) predict(rows, count, i);
  put_table(stdout, rows, count);
  if (document && write_document(document, rows, count)) goto done;
  status = count == 0 || 100 * median(rows, count, true) > limit;
  if (status) fprintf(stderr, "published_runs: the median error is above %.0f %%\n", limit);
done:
  for (int i = 0; i < count; i++) {
    rf_plan_free(rows[i].plan);
    free(rows[i].settings);
  }
  return status;
}
