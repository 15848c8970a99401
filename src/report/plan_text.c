/* plan_text.c - writes a plan as text. */
#define _GNU_SOURCE
#include "report/parts.h"
#include "base/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const BOUND[RF_BOUNDS] = {"arithmetic", "memory bandwidth", "launch latency", "network"};

static void put_host(FILE *out, const rf_plan *plan) {
  char a[32], b[32];
  int64_t room = rf_plan_host_room(&plan->machine);
  if (!plan->host_bytes) return;
  fprintf(out, "  host memory  %9s", rf_text_bytes((double)plan->host_bytes, a));
  if (room > 0)
    fprintf(out, "  of %s per chip: %s\n", rf_text_bytes((double)room, b),
            plan->host_bytes <= room ? "fits" : "DOES NOT FIT");
  else fprintf(out, "  (the size of host memory is unknown)\n");
}

static void put_classes(FILE *out, const rf_plan *plan, double peak, double room, bool fits,
                        const double bytes[RF_CLASSES]) {
  const double draft = (double)plan->options.draft_bytes, margin = (double)plan->options.margin_bytes;
  const char *no = peak > room && peak <= room + margin
                       ? "fits, but not with the margin; --margin 0 leaves none"
                       : "DOES NOT FIT";
  char a[32], b[32];
  peak += draft;
  room += draft;
  fprintf(out, "\nmemory    %s of %s: %s\n", rf_text_bytes(peak, a), rf_text_bytes(room, b),
          fits ? "fits" : no);
  put_host(out, plan);
  for (int c = 0; c < RF_CLASSES; c++)
    if (bytes[c] > 0)
      fprintf(out, "  %-12s %10s  %5.1f %%\n", rf_class_name((rf_class)c), rf_text_bytes(bytes[c], a),
              100 * bytes[c] / peak);
  if (draft > 0)
    fprintf(out, "  %-12s %10s  %5.1f %%\n", "draft", rf_text_bytes(draft, a), 100 * draft / peak);
}

/* Prints the memory of a job with several phases. The printed memory is the peak over all
 * phases. */
static void put_phases_memory(FILE *out, const rf_report_plan *report) {
  char a[32];
  double bytes[RF_CLASSES];
  const json_t *memory = report->memory, *by_class = json_object_get(memory, "by_class");
  double peak = json_number_value(json_object_get(memory, "peak_bytes"));
  for (int c = 0; c < RF_CLASSES; c++)
    bytes[c] = json_number_value(json_object_get(by_class, rf_class_name((rf_class)c)));
  put_classes(out, report->plan, peak, (double)rf_plan_room(&report->plan->options),
              json_is_true(json_object_get(memory, "fits")), bytes);
  fprintf(out, "  peak in phase %s; the policy's step alone needs %s, with its peak at %s\n",
          json_string_value(json_object_get(memory, "peak_op")),
          rf_text_bytes((double)report->plan->arena_bytes, a), rf_plan_peak(report->plan));
}

static void put_memory(FILE *out, const rf_report_plan *report) {
  const rf_plan *plan = report->plan;
  if (report->memory) {
    put_phases_memory(out, report);
    return;
  }
  plan = rf_plan_larger(plan, report->prefill);
  char a[32], b[32];
  double bytes[RF_CLASSES];
  for (int c = 0; c < RF_CLASSES; c++) bytes[c] = (double)plan->by_class[c];
  put_classes(out, report->plan->host_bytes > plan->host_bytes ? report->plan : plan,
              (double)plan->arena_bytes, (double)rf_plan_room(&plan->options),
              rf_plan_fits(plan) && rf_plan_fits(report->plan), bytes);
  if (plan->options.program.program != RF_PROGRAM_RAFTER) {
    const rf_program_memory *m = &plan->program;
    char c[32], d[32];
    fprintf(out, "  a %s program: arguments %s, results %s (%s donated), temporaries %s\n  peak at %s\n",
            rf_program_name(plan->options.program.program), rf_text_bytes((double)m->argument, a),
            rf_text_bytes((double)m->output, b), rf_text_bytes((double)m->alias, c),
            rf_text_bytes((double)m->temp, d), m->peak);
  } else if (plan->graph->op_count)
    fprintf(out, "  peak at %s; a perfect layout would need %.2f %% of this\n",
            plan->graph->op[plan->peak_op].name,
            100.0 * (double)(plan->live_bytes + plan->options.draft_bytes) /
                (double)(plan->arena_bytes + plan->options.draft_bytes));
}

static void put_cache(FILE *out, const rf_plan *plan) {
  rf_kv kv = rf_kv_of(&plan->graph->model, &plan->options.build);
  char a[32];
  fprintf(out, "\ncache     %s per sequence, %s, pages of %lld tokens\n",
          rf_text_bytes((double)rf_kv_sequence_bytes(&kv, plan->options.build.seq), a),
          kv.dtype == RF_I8 ? "int8" : rf_dtype_name(kv.dtype), (long long)kv.page); /* as in --kv-dtype */
  const rf_model *model = &plan->graph->model;
  double rows = (double)plan->options.build.microbatch;
  for (int c = 0; c < RF_KV_CLASSES; c++)
    if (kv.of[c].layers)
      fprintf(out, "  %-12s %10s  %lld layer%s, %lld page%s of %s each\n", rf_kv_class_name((rf_kv_class)c),
              rf_text_bytes((double)(kv.of[c].most * kv.of[c].page_bytes), a), (long long)kv.of[c].layers,
              rf_plural(kv.of[c].layers), (long long)kv.of[c].most, rf_plural(kv.of[c].most),
              kv.of[c].window ? "the window" : "the full context");
  if (model->experts > 0)
    fprintf(
        out,
        "experts   one step of all sequences uses %.1f of the %lld experts of a layer, if routing is even\n",
        rf_experts_met((double)model->experts, (double)model->experts_used, rows), (long long)model->experts);
}

/* Prints the largest buffers at the peak, by kind, and why each buffer is alive. */
static void put_largest(FILE *out, const rf_plan *plan) {
  enum { SHOWN = 8 };
  char a[32], b[32];
  int count = 0;
  rf_report_buffers *list = rf_report_largest(plan, &count);
  fprintf(out, "\nlargest at the peak\n");
  for (int i = 0; i < count && i < SHOWN; i++) {
    const rf_tensor *t = rf_plan_content(plan, list[i].tensor);
    char shape[96] = "", each[48] = "", type[64];
    for (int d = 0; d < t->rank; d++)
      snprintf(shape + strlen(shape), sizeof shape - strlen(shape), "%s%lld", d ? "," : "",
               (long long)t->shape[d]);
    if (list[i].count > 1)
      snprintf(each, sizeof each, "%d x %s", list[i].count, rf_text_bytes((double)list[i].each_bytes, b));
    fprintf(out, "  %10s %14s  %-36s (%s) %s%s%s\n", rf_text_bytes((double)list[i].bytes, a), each,
            list[i].name, shape, rf_tensor_type(t, type), t->reason ? ": " : "", t->reason ? t->reason : "");
  }
  free(list);
}

static void put_cost(FILE *out, const rf_report_plan *report) {
  const rf_machine *m = &report->plan->machine;
  const rf_report_unit job = rf_report_unit_of(report);
  const double chip = m->usd_per_chip_hour, usd = job.usd_per_hour / 3600;
  char a[32], b[32], tiers[200];
  rf_machine_prices_text(m, tiers);
  bool others = m->price_count > 1 || (m->price_count && strcmp(m->price_tier, m->price[0].tier) != 0);
  if (!(job.seconds > 0)) {
    if (report->served) fputs("cost      unknown: a plan that does not fit is not simulated\n", out);
    return;
  }
  if (usd > 0)
    fprintf(out, "cost      %s USD per million tokens%s at %.2f USD per chip hour (%s%s%s)\n",
            rf_text_figures(usd * job.seconds / job.tokens * 1e6, 4, a), job.note, chip, m->price_tier,
            others ? "; --price takes " : "", others ? tiers : "");
  else if (chip > 0)
    fprintf(out, "cost      no price of the machine of --prefill-on is known; --price 2.50 sets USD per chip "
                 "hour\n");
  else if (m->price_count)
    fprintf(out, "cost      no list price of %s is known; --price takes %s, or an amount such as 2.50\n",
            m->name, tiers);
  else if (m->kind != RF_MACHINE_CPU)
    fprintf(out, "cost      no price of %s is known; --price 2.50 sets USD per chip hour\n", m->name);
  if (report->tokens <= 0) return;
  double seconds = report->tokens / job.tokens * job.seconds;
  fprintf(out, "%s%s tokens take %s", chip > 0 || m->kind != RF_MACHINE_CPU ? "          " : "cost      ",
          rf_text_count(report->tokens, a), rf_text_seconds(seconds, b));
  if (usd > 0) {
    if (seconds * usd < 1000) fprintf(out, " and %.2f USD", seconds * usd);
    else fprintf(out, " and %s", rf_text_usd(seconds * usd, a));
  }
  if (job.watts > 0)
    fprintf(out, ", %s kWh for the chips alone", rf_text_number(seconds / 3.6e6 * job.watts, a));
  fputc('\n', out);
}

/* Prints the phases of a job, each with its share of the time and its memory. */
static void put_phases(FILE *out, const rf_report_whole *whole) {
  char a[32], b[32];
  for (int i = 0; i < whole->phases; i++)
    fprintf(out, "  phase %-12s %10s  %5.1f %%  %10s\n", whole->phase[i].name,
            rf_text_seconds(whole->phase[i].seconds, a),
            100 * whole->phase[i].seconds / whole->totals.time.seconds,
            rf_text_bytes((double)whole->phase[i].peak_bytes, b));
}

static void put_bounds(FILE *out, const rf_step_time *time) {
  char a[32], b[32];
  const double t = time->seconds;
  for (int i = 0; i < RF_BOUNDS; i++)
    if (time->by[i] > 0)
      fprintf(out, "  %-18s %10s  %5.1f %%\n", BOUND[i], rf_text_seconds(time->by[i], a),
              100 * time->by[i] / t);
  if (time->network_hidden > 0)
    fprintf(out, "  network, hidden    %10s while the chips compute\n",
            rf_text_seconds(time->network_hidden, a));
  if (time->offload > 0)
    fprintf(out,
            "  waits for host     %10s  %5.1f %%, included in network; all transfers to and from the host "
            "take %s\n",
            rf_text_seconds(time->offload_exposed, a), 100 * time->offload_exposed / t,
            rf_text_seconds(time->offload, b));
  if (time->bubble > 0)
    fprintf(out, "  pipeline bubble    %10s  %5.1f %%, included in network\n",
            rf_text_seconds(time->bubble, a), 100 * time->bubble / t);
}

/* Prints the utilization relative to the peak for the linear layers' dtype, as in the JSON
 * object. */
static void put_mfu(FILE *out, const rf_plan *plan, const rf_plan_totals *total) {
  const rf_build_options *b = &plan->options.build;
  double work = rf_plan_matmul_peak_flops(plan) * total->time.seconds,
         wide = rf_plan_peak_flops(plan) * total->time.seconds;
  char square[64] = "";
  if (!(work > 0)) return;
  const double mfu = 100 * total->model_flops / work, full = 100 * total->flops_full_square / work;
  if (lround(10 * full) != lround(10 * mfu))
    snprintf(square, sizeof square, " (%.1f %% counting the full attention square)", full);
  fprintf(out, ", MFU %.1f %%", mfu);
  if (b->matmul_set) fprintf(out, " of the %s peak", b->matmul == RF_I8 ? "int8" : "fp8");
  fprintf(out, "%s, HFU %.1f %%", square, 100 * total->hardware_flops / work);
  if (b->matmul_set && wide > 0)
    fprintf(out, ", EMFU %.1f %% of the %s peak", 100 * total->model_flops / wide, rf_dtype_name(b->dtype));
}

static void put_time(FILE *out, const rf_report_plan *report) {
  const rf_plan *plan = report->plan;
  const rf_plan_totals total = rf_report_totals(report);
  char a[32], b[32];
  double t = total.time.seconds, band[2];
  fprintf(out, "\ntime      %s per %s", rf_text_seconds(t, a),
          report->whole     ? report->whole->unit
          : report->prefill ? "token"
                            : "step");
  if (rf_plan_band(plan, t, band))
    fprintf(out, ", probably %s to %s,", rf_text_seconds(band[0], a), rf_text_seconds(band[1], b));
  fprintf(out, " on %s (%s figures)\n", plan->machine.name, plan->machine.source);
  if (report->whole) put_phases(out, report->whole);
  put_bounds(out, &total.time);
  if (plan->stages) rf_report_print_pipeline(out, plan);
  const int64_t prompt = report->prefill ? rf_report_prompt_tokens(report->prefill) : 0;
  if (report->prefill)
    fprintf(out, "  prefill            %10s for %lld token%s\n",
            rf_text_seconds(rf_report_prompt_seconds(report->prefill), a), (long long)prompt,
            rf_plural(prompt));
  fprintf(out, "\nrate      %s tokens/s%s", rf_text_count(t > 0 ? total.tokens / t : 0, a),
          report->whole && report->whole->phases                 ? " trained"
          : report->prompts > 0 || !strcmp(report->job, "serve") ? " while decoding"
                                                                 : "");
  if (t > 0 && !report->prefill) put_mfu(out, plan, &total);
  if (plan->machine.read_bps > 0 && report->prefill)
    fprintf(out, ", %.1f %% of memory bandwidth",
            100 * total.bytes / (t * plan->machine.read_bps * (double)rf_mesh_chips(&plan->graph->mesh)));
  fputc('\n', out);
  put_cost(out, report);
}

static void put_budget(FILE *out, const rf_report_plan *report) {
  const rf_report_unit job = rf_report_unit_of(report);
  char a[32], b[32], c[32];
  if (!(job.seconds > 0)) return;
  const double steps = floor(report->budget_seconds / job.seconds);
  fprintf(out, "budget    %s: %s %ss, %s tokens", rf_text_seconds(report->budget_seconds, a),
          rf_text_count(steps, b), job.name, rf_text_count(steps * job.tokens, c));
  double price = job.usd_per_hour * report->budget_seconds / 3600;
  if (price > 0 && price < 1000) fprintf(out, ", %.2f USD\n", price);
  else if (price > 0) fprintf(out, ", %s\n", rf_text_usd(price, a));
  else fprintf(out, "; no price of %s is known\n", report->plan->machine.name);
}

static void put_frontier(FILE *out, const rf_report_plan *report) {
  char a[32], b[32], setting[240], mesh[160];
  if (!report->found) return;
  fprintf(out, "\nfrontier (none of the %d settings tried beats these in both memory and time)\n",
          report->found->tried);
  for (int i = 0; i < report->found->rows; i++) {
    const rf_fit_row *r = &report->found->row[i];
    snprintf(setting, sizeof setting, "%s, remat %s, %d x %lld", rf_dtype_name(r->dtype),
             rf_remat_name(r->remat), r->accumulate, (long long)r->microbatch);
    if (rf_mesh_chips(&r->mesh) > 1)
      snprintf(setting + strlen(setting), sizeof setting - strlen(setting), ", %s",
               rf_mesh_text(&r->mesh, mesh));
    fprintf(out, "  %-32s %10s  %10s  %-9s  %s\n", setting, rf_text_bytes((double)r->peak_bytes, a),
            rf_text_seconds(r->seconds, b), r->fits ? "fits" : "too large", r->why);
  }
}

static void put_advice(FILE *out, const rf_report_plan *report) {
  char a[32], b[32];
  if (report->advice_count)
    fprintf(out, "\nwith one change%s%s%s\n", report->whole ? " (memory and time of phase " : "",
            report->whole ? report->whole->main : "", report->whole ? " alone)" : "");
  for (int i = 0; i < report->advice_count; i++)
    fprintf(out, "  %-28s %10s  %10s  %s\n", report->advice[i].change,
            rf_text_bytes((double)report->advice[i].peak_bytes, a),
            rf_text_seconds(report->advice[i].seconds, b), report->advice[i].why);
}

/* --tensors */
static void put_tensors(FILE *out, const rf_plan *plan) {
  char type[64];
  fprintf(out, "\ntensors      offset        bytes  ops that hold it\n");
  for (int t = 0; t < plan->tensor_count; t++) {
    const rf_plan_tensor *p = &plan->tensor[t];
    const rf_tensor *tensor = rf_plan_content(plan, t);
    if (p->offset >= 0)
      fprintf(out, "  %17lld %12lld  %5d..%-5d  %-10s %-5s %s%s\n", (long long)p->offset, (long long)p->bytes,
              p->first, p->last, rf_class_name(tensor->class), rf_tensor_type(tensor, type), tensor->name,
              tensor->host ? " (host)" : "");
  }
}

/* Prints a line below an op with the kernels of a product inside the op. */
static void put_product(FILE *out, const rf_inner *inner) {
  if (!inner->product) return;
  fprintf(out, "%34s%s %s", "", inner->product, inner->kernel->name);
  if (inner->few) fprintf(out, ", up to %d rows %s", inner->few->max_rows, inner->few->name);
  fputc('\n', out);
}

static void put_ops(FILE *out, const rf_plan *plan) {
  char a[32], b[32];
  fprintf(out, "\nops            work       time  kernel\n");
  for (int i = 0; i < plan->graph->op_count; i++) {
    const rf_plan_op *p = &plan->op[i];
    bool products = p->work.flops > 0;
    fprintf(out, "  %5d %12s %10s  %-28s %s\n", i,
            products ? rf_text_flops(p->work.flops, a)
                     : rf_text_bytes(p->work.bytes_read + p->work.bytes_written, a),
            rf_text_seconds(p->seconds, b), p->kernel->name, plan->graph->op[i].name);
    for (int k = 0; p->inner && k < RF_MAX_INNER; k++) put_product(out, &p->inner[k]);
  }
}

static void put_batch(FILE *out, const rf_report_plan *report) {
  const rf_plan *plan = report->plan;
  const rf_build_options *b = &plan->options.build;
  char length[80] = "", max[32], micro[64] = "", of_batch[64] = "";
  if (report->batch_for)
    snprintf(of_batch, sizeof of_batch,
             *report->batch_for == '-' ? " (default, a multiple of %s)" : " (default for %s)",
             report->batch_for);
  if (report->seq_default && b->seq < plan->graph->model.max_seq)
    snprintf(length, sizeof length, " (default; the model's maximum is %s)",
             rf_text_whole(plan->graph->model.max_seq, max));
  else if (report->seq_default) snprintf(length, sizeof length, " (default, the model's maximum)");
  else if (b->seq > plan->graph->model.max_seq && plan->graph->model.max_seq > 0)
    snprintf(length, sizeof length, " (more than the model's maximum of %s)",
             rf_text_whole(plan->graph->model.max_seq, max));
  if (report->prefill)
    fprintf(out, "%lld sequence%s%s of up to %lld tokens%s, %s%s", (long long)b->microbatch,
            rf_plural(b->microbatch), of_batch, (long long)b->seq, length, rf_dtype_name(b->dtype),
            report->dtype_default ? " (default)" : "");
  else {
    snprintf(micro, sizeof micro, "%d microbatch%s of %lld", b->accumulate, b->accumulate > 1 ? "es" : "",
             (long long)b->microbatch);
    fprintf(out, "batch %lld%s x %lld tokens%s%s%s%s, %s%s, remat %s",
            (long long)(b->microbatch * b->accumulate), of_batch, (long long)b->seq, length,
            *length ? ", " : " (", micro, *length ? "" : ")", rf_dtype_name(b->dtype),
            report->dtype_default ? " (default)" : "", rf_remat_name(plan->options.remat));
  }
  if (report->prompts)
    fprintf(out, "; %lld prompt%s x %lld sample%s", (long long)report->prompts, rf_plural(report->prompts),
            (long long)report->samples, rf_plural(report->samples));
  fputc('\n', out);
}

/* Prints the largest batch of a training step over all planned settings, if it is larger than the
 * batch of the chosen setting. */
static void put_larger_batch(FILE *out, const rf_report_plan *report, json_int_t batch) {
  static const char remat[] = "remat=";
  const json_t *raise;
  char setting[240] = "", bytes[32] = "", mesh[160];
  size_t i;
  json_array_foreach (json_object_get(report->largest, "raises"), i, raise) {
    const char *change = json_string_value(json_object_get(raise, "change"));
    const json_int_t of = json_integer_value(json_object_get(raise, "batch"));
    if (of <= batch || strncmp(change, remat, strlen(remat)) != 0) continue;
    batch = of;
    snprintf(setting, sizeof setting, "remat %.80s", change + strlen(remat));
    rf_text_bytes(json_number_value(json_object_get(raise, "peak_bytes")), bytes);
  }
  for (int k = 0; report->found && k < report->found->rows; k++) {
    const rf_fit_row *r = &report->found->row[k];
    if (!r->fits || r->microbatch <= batch) continue;
    batch = r->microbatch;
    snprintf(setting, sizeof setting, "remat %s", rf_remat_name(r->remat));
    if (rf_mesh_chips(&r->mesh) > 1)
      snprintf(setting + strlen(setting), sizeof setting - strlen(setting), ", %s",
               rf_mesh_text(&r->mesh, mesh));
    rf_text_bytes((double)r->peak_bytes, bytes);
  }
  if (*setting)
    fprintf(out, "          a slower setting has a larger batch: %lld%s with %s, in %s\n", (long long)batch,
            report->whole ? "" : " at once", setting, bytes);
}

/* With --fit, prints the largest possible batch, and the margin of the search. */
static void put_largest_batch(FILE *out, const rf_report_plan *report) {
  const json_t *l = report->largest;
  const rf_plan_options *o = &report->plan->options;
  char a[32], b[32], each[80] = "";
  const double margin = (double)o->margin_bytes, all = margin + (double)(o->budget_bytes + o->draft_bytes);
  if (margin > 0)
    fprintf(out, "margin    %s of %s stay free for a program other than rafter's (--margin %.3g)\n",
            rf_text_bytes(margin, a), rf_text_bytes(all, b), margin / all);
  if (!l) return;
  const json_int_t batch = json_integer_value(json_object_get(l, "batch"));
  const double per = json_number_value(json_object_get(l, "bytes_per_sequence"));
  const char *remat = json_string_value(json_object_get(l, "remat"));
  if (per > 0) snprintf(each, sizeof each, ", %s for each sequence", rf_text_bytes(per, a));
  const char *with = !remat                              ? ""
                     : rf_mesh_chips(&o->build.mesh) > 1 ? " with this mesh and remat "
                                                         : " with remat ";
  if (batch > 0)
    fprintf(out, "largest   batch %lld%s%s%s: %s of %s%s\n", (long long)batch,
            remat && !report->whole ? " at once" : "", with, remat ? remat : "",
            rf_text_bytes(json_number_value(json_object_get(l, "peak_bytes")), a),
            rf_text_bytes(json_number_value(json_object_get(l, "room_bytes")), b), each);
  else
    fprintf(out, "largest   no batch fits in %s\n",
            rf_text_bytes(json_number_value(json_object_get(l, "room_bytes")), b));
  fprintf(out, "          limit: %s (%s)\n", json_string_value(json_object_get(l, "limit")),
          json_string_value(json_object_get(l, "why")));
  if (remat) put_larger_batch(out, report, batch);
}

static void put_raises(FILE *out, const rf_report_plan *report) {
  const json_t *list = json_object_get(report->largest, "raises"), *raise;
  char a[32], b[32];
  size_t i;
  if (json_array_size(list)) fputs("\na larger batch, with one change\n", out);
  json_array_foreach (list, i, raise) {
    const json_t *seconds = json_object_get(raise, "seconds");
    fprintf(out, "  %-36s  batch %-8lld %10s", json_string_value(json_object_get(raise, "change")),
            (long long)json_integer_value(json_object_get(raise, "batch")),
            rf_text_bytes(json_number_value(json_object_get(raise, "peak_bytes")), a));
    if (json_is_number(seconds)) fprintf(out, "  %s a step", rf_text_seconds(json_number_value(seconds), b));
    if (json_is_true(json_object_get(raise, "approximate"))) fputs(", approximate", out);
    fputc('\n', out);
  }
}

char *rf_report_plan_text(const rf_report_plan *report) {
  const rf_plan *plan = report->plan;
  const rf_build_options *b = &plan->options.build;
  char *text = NULL, a[32], c[32], mesh[160], chips[120];
  size_t bytes = 0;
  FILE *out = open_memstream(&text, &bytes);
  if (!out) return NULL;
  fprintf(out, "%s: %s parameters, %s on %s", plan->graph->model.name,
          rf_text_count((double)plan->graph->params.total, a), report->job, plan->machine.name);
  if (rf_mesh_chips(&b->mesh) > 1)
    fprintf(out, ", %s: %s; bytes are per %s", rf_machine_chips_text(&plan->machine, chips),
            rf_mesh_text(&b->mesh, mesh), plan->machine.by_device ? "device" : "chip");
  fputc('\n', out);
  rf_error why = {0};
  if (rf_plan_require_runnable(plan, &why) != RAFTER_OK) fprintf(out, "plan only: %s\n", why.message);
  rf_report_print_parameters(out, plan);
  put_batch(out, report);
  put_largest_batch(out, report);
  put_memory(out, report);
  if (report->prefill) put_cache(out, plan);
  if (plan->options.program.program == RF_PROGRAM_RAFTER) put_largest(out, plan);
  rf_report_print_work(out, report);
  put_time(out, report);
  if (report->budget_seconds > 0) put_budget(out, report);
  if (report->tensors) put_tensors(out, plan);
  if (report->ops) put_ops(out, plan);
  put_raises(out, report);
  put_frontier(out, report);
  put_advice(out, report);
  fprintf(out, "\nplan %s, %d ops, %d tensors, made in %s\n", plan->digest, plan->graph->op_count,
          plan->tensor_count, rf_text_seconds(plan->build_seconds, c));
  fclose(out);
  return text;
}
