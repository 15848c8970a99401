/* plan_json.c - writes a plan as the JSON object of `rafter plan --json`. */
#include "report/parts.h"

#include "graph/mesh/shard.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const BOUND[RF_BOUNDS] = {"compute", "memory", "latency", "network"};

static json_t *real_or_null(double value, bool known) { return known ? json_real(value) : json_null(); }

static json_t *model_json(const rf_plan *plan) {
  const rf_model *m = &plan->graph->model;
  const rf_params *p = &plan->graph->params;
  json_t *json =
      json_pack("{ss ss sI sI sI sI sI sI sI sI sI sI sI}", "name", m->name, "family",
                rf_family_name(m->family), "layers", (json_int_t)m->layers, "width", (json_int_t)m->width,
                "heads", (json_int_t)m->heads, "kv_heads", (json_int_t)m->kv_heads, "head_dim",
                (json_int_t)m->head_dim, "ff", (json_int_t)m->ff, "vocab", (json_int_t)m->vocab, "parameters",
                (json_int_t)p->total, "parameters_embedding", (json_int_t)p->embedding, "parameters_matmul",
                (json_int_t)p->matmul, "parameters_active", (json_int_t)p->active);
  if (json) rf_report_put_parameters(json, plan);
  return json;
}

/* "ceilings" are per chip, because the work of ops is per chip. An unknown ceiling is null. */
static json_t *machine_json(const rf_plan *plan) {
  const rf_machine *m = &plan->machine;
  double flops = rf_plan_peak_flops(plan) / m->chips, matmul = rf_plan_matmul_peak_flops(plan) / m->chips,
         read = m->read_bps, copy = m->copy_bps;
  return json_pack("{ss si ss ss s{so so so so}}", "name", m->name, "chips", m->chips, "source", m->source,
                   "kind", rf_machine_kind_name(m->kind), "ceilings", "flops_per_second",
                   real_or_null(flops, flops > 0), "matmul_flops_per_second",
                   real_or_null(matmul, matmul > 0), "read_bytes_per_second", real_or_null(read, read > 0),
                   "copy_bytes_per_second", real_or_null(copy, copy > 0));
}

/* Writes the mesh axes with more than one chip, and the ZeRO stage. */
static json_t *mesh_json(const rf_mesh *mesh) {
  json_t *axes = json_object();
  for (int a = 0; a < RF_AXES; a++)
    if (rf_mesh_extent(mesh, (rf_axis)a) > 1)
      json_object_set_new(axes, rf_axis_name((rf_axis)a), json_integer(rf_mesh_extent(mesh, (rf_axis)a)));
  if (json_object_size(axes)) json_object_set_new(axes, "zero", json_integer(mesh->zero));
  return axes;
}

static json_t *offload_json(unsigned what) {
  json_t *list = json_array();
  for (int bit = 0; bit < RF_OFFLOADS; bit++)
    if (what & 1u << bit) json_array_append_new(list, json_string(rf_offload_name(bit)));
  return list;
}

static json_t *settings_json(const rf_plan *plan) {
  const rf_build_options *b = &plan->options.build;
  const rf_backend *backend = plan->options.backend;
  json_t *json =
      json_pack("{sI sI sI si ss ss ss ss so sf so so}", "batch", (json_int_t)(b->microbatch * b->accumulate),
                "seq", (json_int_t)b->seq, "microbatch", (json_int_t)b->microbatch, "accumulate",
                b->accumulate, "dtype", rf_dtype_name(b->dtype), "softmax", rf_dtype_name(b->softmax),
                "remat", rf_remat_name(plan->options.remat), "backend", backend->name, "threads",
                backend->sheet ? json_null() : json_integer(plan->options.threads), "dropout",
                b->dropout < 0 ? (double)plan->graph->model.dropout : (double)b->dropout, "mesh",
                mesh_json(&b->mesh), "offload", offload_json(b->offload));
  if (b->head_gradient == RF_BF16) json_object_set_new(json, "head_grad", json_string("bf16"));
  if (b->job == RF_JOB_GENERATE)
    json_object_set_new(json, "sequences",
                        json_integer((json_int_t)(b->sequences > 0 ? b->sequences : b->microbatch)));
  return json;
}

static json_t *memory_json(const rf_plan *plan, const rf_plan *largest) {
  double capacity = plan->machine.memory_bytes, reserve = plan->machine.reserve_bytes;
  double room = (double)rf_plan_room(&plan->options);
  const int64_t draft = plan->options.draft_bytes, all = largest->arena_bytes + draft;
  int64_t host = rf_plan_host_room(&plan->machine),
          host_bytes = plan->host_bytes > largest->host_bytes ? plan->host_bytes : largest->host_bytes;
  json_t *by_class = json_object();
  for (int c = 0; c < RF_CLASSES; c++)
    json_object_set_new(by_class, rf_class_name((rf_class)c), json_integer((json_int_t)largest->by_class[c]));
  if (draft > 0) json_object_set_new(by_class, "draft", json_integer((json_int_t)draft));
  return json_pack(
      "{sI sI sI sI sI sI sb sI ss so so sI so}", "capacity_bytes", (json_int_t)capacity, "reserve_bytes",
      (json_int_t)reserve, "margin_bytes", (json_int_t)plan->options.margin_bytes, "peak_bytes",
      (json_int_t)all, "persistent_bytes", (json_int_t)largest->persistent_bytes, "live_bytes",
      (json_int_t)(largest->live_bytes + draft), "fits", rf_plan_fits(plan) && rf_plan_fits(largest),
      "headroom_bytes", (json_int_t)(room - (double)largest->arena_bytes), "peak_op", rf_plan_peak(largest),
      "by_class", by_class, "largest", rf_report_largest_json(largest), "host_bytes", (json_int_t)host_bytes,
      "host_capacity_bytes", host > 0 ? json_integer((json_int_t)host) : json_null());
}

/* Memory of a JAX program as XLA's memory analysis reports it, and the parts of `temp` at its
 * peak. */
static json_t *program_json(const rf_plan *plan) {
  const rf_program_memory *m = &plan->program;
  return json_pack("{ss sI sI sI sI sI sI sI sI sI}", "name", rf_program_name(plan->options.program.program),
                   "argument", (json_int_t)m->argument, "output", (json_int_t)m->output, "alias",
                   (json_int_t)m->alias, "temp", (json_int_t)m->temp, "total", (json_int_t)m->total, "copies",
                   (json_int_t)m->copies, "gradients", (json_int_t)m->gradients, "kept", (json_int_t)m->kept,
                   "working", (json_int_t)m->working);
}

static const char *confidence_of(const rf_machine *m) {
  char why[200];
  return !strcmp(m->source, "detected") || m->guessed || rf_machine_busy_calibration(m, why) ? "low"
                                                                                             : "normal";
}

static json_t *time_json(const rf_plan *plan, const rf_step_time *t) {
  double band[2];
  bool wide = rf_plan_band(plan, t->seconds, band);
  return json_pack(
      "{sf so so ss sf sf sf sf sf sf sf sf sf sf ss}", "seconds", t->seconds, "seconds_low",
      real_or_null(band[0], wide), "seconds_high", real_or_null(band[1], wide), "bound", BOUND[t->bound],
      "compute_seconds", t->by[RF_BOUND_COMPUTE], "memory_seconds", t->by[RF_BOUND_MEMORY], "network_seconds",
      t->by[RF_BOUND_NETWORK], "latency_seconds", t->by[RF_BOUND_LATENCY], "network_hidden_seconds",
      t->network_hidden, "network_latency_seconds", t->network_latency, "bubble_seconds", t->bubble,
      "bubble_fraction", t->seconds > 0 ? t->bubble / t->seconds : 0, "offload_seconds", t->offload,
      "offload_exposed_seconds", t->offload_exposed, "confidence", confidence_of(&plan->machine));
}

static json_t *rate_json(const rf_plan *plan, const rf_plan_totals *total) {
  double t = total->time.seconds, work = rf_plan_matmul_peak_flops(plan) * t,
         wide = rf_plan_peak_flops(plan) * t;
  return json_pack(
      "{sf sf sf sf sf sf}", "tokens_per_second", t > 0 ? total->tokens / t : 0, "mfu",
      work > 0 ? total->model_flops / work : 0, "hfu", work > 0 ? total->hardware_flops / work : 0,
      "mfu_full_square", work > 0 ? total->flops_full_square / work : 0, "emfu",
      wide > 0 ? total->model_flops / wide : 0, "bandwidth_fraction",
      t > 0 && plan->machine.read_bps > 0 ? total->bytes / (t * plan->machine.read_bps * plan->machine.chips)
                                          : 0);
}

/* Lists all known price tiers, and for each tier the price of a million tokens. If a second machine
 * computes the prompts, the price is known only for one tier. */
static json_t *prices_json(const rf_machine *m, const rf_report_unit *job, double rate) {
  json_t *list = json_array();
  for (int i = 0; i < m->price_count; i++) {
    const rf_price *p = &m->price[i];
    const bool chosen = !strcmp(p->tier, m->price_tier);
    double usd = p->usd_per_chip_hour * m->chips;
    if (chosen) usd = job->usd_per_hour;
    else if (job->usd_per_hour > m->usd_per_chip_hour * m->chips) usd = 0;
    json_array_append_new(list, json_pack("{ss sf so ss ss}", "tier", p->tier, "usd_per_chip_hour",
                                          p->usd_per_chip_hour, "usd_per_million_tokens",
                                          real_or_null(usd / 3600 / rate * 1e6, usd > 0 && rate > 0), "date",
                                          p->date, "source", p->source));
  }
  return list;
}

/* Writes the costs of the whole job on all chips. If the price is unknown, costs are null, and
 * `assumptions` names the reason. */
static json_t *cost_json(const rf_report_plan *report) {
  const rf_plan *plan = report->plan;
  const rf_report_unit job = rf_report_unit_of(report);
  const double rate = job.seconds > 0 ? job.tokens / job.seconds : 0, usd = job.usd_per_hour,
               chips = plan->machine.usd_per_chip_hour * plan->machine.chips,
               seconds = rate > 0 ? report->tokens / rate : 0;
  const bool runs = rate > 0, priced = usd > 0 && runs, asked = report->tokens > 0 && runs;
  return json_pack(
      "{ss? so so so so so so so so so so}", "price_tier", chips > 0 ? plan->machine.price_tier : NULL,
      "prices", prices_json(&plan->machine, &job, rate), "tokens_per_second", real_or_null(rate, runs),
      "performance_per_usd", /* model FLOPs per USD: peak times EMFU, divided by the price */
      real_or_null(job.model_flops / job.seconds * 3600 / usd, priced && job.model_flops > 0),
      "usd_per_chip_hour", real_or_null(plan->machine.usd_per_chip_hour, chips > 0), "usd_per_million_tokens",
      real_or_null(usd / 3600 / rate * 1e6, priced), "tokens_per_usd",
      real_or_null(rate * 3600 / usd, priced), "peak_flops_per_usd",
      real_or_null(rf_plan_peak_flops(plan) * 3600 / chips, chips > 0), "seconds_for_tokens",
      real_or_null(seconds, asked), "usd_for_tokens", real_or_null(seconds / 3600 * usd, asked && priced),
      "kilowatt_hours_for_tokens", real_or_null(seconds / 3600 * job.watts / 1000, asked && job.watts > 0));
}

/* Writes the object "budget": the number of complete steps in the given time, their tokens and
 * their price. A step of --job rollout is a rollout, and a step of --job serve is a request. */
static json_t *budget_json(const rf_report_plan *report) {
  const rf_report_unit job = rf_report_unit_of(report);
  const double steps = job.seconds > 0 ? floor(report->budget_seconds / job.seconds) : 0;
  return json_pack("{sf sf sf so}", "seconds", report->budget_seconds, "steps", steps, "tokens",
                   steps * job.tokens, "usd",
                   real_or_null(job.usd_per_hour * report->budget_seconds / 3600, job.usd_per_hour > 0));
}

/* True if an fsdp axis stores whole matrices that a shorter axis could shard. */
static bool whole_weights(const rf_graph *graph, char *line, size_t capacity) {
  int64_t whole = 0, all = 0, chips = rf_mesh_extent(&graph->mesh, RF_AXIS_FSDP);
  char a[32], b[32];
  if (chips == 1 || graph->mesh.zero < 1) return false;
  for (int p = 0; p < graph->params.count; p++) {
    const rf_param *param = &graph->params.at[p];
    if (param->rank != 2) continue;
    const rf_spec state = rf_shard_param(graph, &graph->mesh, p).state;
    const int64_t count = param->shape[0] * param->shape[1];
    all += count;
    if (!((state.split[0] | state.split[1]) & RF_AXIS_BIT(RF_AXIS_FSDP))) whole += count;
  }
  snprintf(line, capacity,
           "fsdp=%lld is too many chips for the dimensions of some matrices: every chip stores %s of %s "
           "parameters whole",
           (long long)chips, rf_text_count((double)whole, a), rf_text_count((double)all, b));
  return whole * 100 > all;
}

/* Says how the plan knows the times of collectives. */
static const char *known_links(const rf_machine *m, char text[240]) {
  if (m->exchange_count)
    snprintf(text, 240, "collectives take the times that were measured between the ranks");
  else if (m->guessed)
    snprintf(text, 240,
             "the time of collectives is a guess from the memory's bandwidth (mpirun -n %d rafter calibrate "
             "--network measures it)",
             m->chips);
  else
    snprintf(text, 240, "collectives reach %.0f %% of the links' rate",
             100 * (m->topology.fraction > 0 ? m->topology.fraction : 1));
  return text;
}

/* Says which exchanges between ranks overlap with computation. */
static void say_overlap(json_t *list, const rf_graph *graph) {
  char line[160];
  int starts = 0, all = 0;
  for (int i = 0; i < graph->op_count; i++) {
    starts += graph->op[i].def->starts;
    all += rf_op_is_exchange(graph->op[i].def) && graph->op[i].def->exchange != RF_EXCHANGE_WAIT;
  }
  if (!starts) return;
  snprintf(line, sizeof line, "%d of %d collectives run while the ranks compute (--overlap)", starts, all);
  json_array_append_new(list, json_string(line));
}

static void say_chips(json_t *list, const rf_plan *plan) {
  static const char *const movers[] = {"the core, in parallel with its work", "a separate engine",
                                       "the core, instead of its work"};
  const rf_machine *m = &plan->machine;
  char line[600], mesh[160], links[240];
  if (rf_machine_odd_node(m, line)) json_array_append_new(list, json_string(line));
  if (rf_mesh_chips(&plan->graph->mesh) > 1) {
    snprintf(
        line, sizeof line, "the chips form a mesh of %s; memory is per chip; %s; their data is moved by %s",
        rf_mesh_text(&plan->graph->mesh, mesh), known_links(m, links), movers[plan->options.collectives]);
    json_array_append_new(list, json_string(line));
    say_overlap(list, plan->graph);
    json_array_append_new(
        list, json_string("every chip holds all norm gains and biases; a matrix that does not divide evenly "
                          "is padded; bytes of keys and values per token are for the entire model"));
    const rf_model *model = &plan->graph->model;
    if (model->kv_rank > 0 && rf_mesh_extent(&plan->graph->mesh, RF_AXIS_TENSOR) > 1)
      json_array_append_new(
          list, json_string("every chip of a tensor group holds and computes the full latent rows"));
    else if (rf_mesh_extent(&plan->graph->mesh, RF_AXIS_TENSOR) > model->kv_heads)
      json_array_append_new(list, json_string("the tensor axis has more chips than there are key heads: "
                                              "several chips store and compute the same head, and FLOPs "
                                              "count each copy"));
    if (rf_mesh_extent(&plan->graph->mesh, RF_AXIS_EXPERT) > 1)
      json_array_append_new(list,
                            json_string("the plan drops rows beyond an expert's capacity (--capacity)"));
  }
  if (plan->graph && whole_weights(plan->graph, line, sizeof line))
    json_array_append_new(list, json_string(line));
  if (plan->graph && plan->options.build.offload) {
    char rate[32];
    snprintf(
        line, sizeof line,
        "tensors in host memory are copied to the chip one block ahead, at %s in each direction at "
        "once; a copy stays on the chip while ops use it; the activations of the last block stay on the chip",
        rf_text_rate(m->pcie_bps, rate));
    json_array_append_new(list, json_string(line));
  }
  if (!m->by_device) return;
  snprintf(line, sizeof line,
           "a chip of %s has two devices: chips counts devices, and figures are per device", m->name);
  json_array_append_new(list, json_string(line));
  for (int i = 0; plan->graph && i < RF_AXES; i++) {
    long long ways = (long long)rf_mesh_extent(&plan->graph->mesh, (rf_axis)i);
    if (!(plan->graph->mesh.pinned & RF_AXIS_BIT(i)) || ways <= 2) continue;
    snprintf(
        line, sizeof line,
        "%s=%lld@d2d: the two devices of a chip use the link between them; the %lld chips use the network",
        rf_axis_name((rf_axis)i), ways, ways / 2);
    json_array_append_new(list, json_string(line));
  }
}

static json_t *assumptions_json(const rf_plan *plan) {
  json_t *list = json_array();
  char line[320];
  snprintf(line, sizeof line, "machine figures: %s (%s)", plan->machine.source, plan->machine.source_note);
  json_array_append_new(list, json_string(line));
  if (rf_machine_old_calibration(&plan->machine, line) || rf_machine_busy_calibration(&plan->machine, line))
    json_array_append_new(list, json_string(line));
  json_array_append_new(list, json_string("FLOPs count only unmasked attention scores; mfu_full_square "
                                          "counts the full square, as PaLM does"));
  say_chips(list, plan);
  if (plan->machine.kind == RF_MACHINE_CPU)
    json_array_append_new(
        list, json_string("the CPU stores bf16 but multiplies f32, so rates are relative to the f32 peak"));
  if (plan->machine.usd_per_chip_hour <= 0) {
    char tiers[200];
    if (plan->machine.price_count)
      snprintf(line, sizeof line,
               "no list price of %.40s is known, so costs in USD are null; --price takes %s USD",
               plan->machine.name, rf_machine_prices_text(&plan->machine, tiers));
    else snprintf(line, sizeof line, "no price of %s is known, so costs in USD are null", plan->machine.name);
    json_array_append_new(list, json_string(line));
  }
  if (plan->options.program.program != RF_PROGRAM_RAFTER)
    json_array_append_new(list,
                          json_string("memory and time are estimates for a JAX program compiled by XLA; "
                                      "digest, tensors and ops are those of rafter's own program"));
  if (plan->machine.curve_count == 0)
    json_array_append_new(list, json_string("times come from ceilings and a general efficiency: `rafter "
                                            "calibrate` measures this machine's kernels"));
  return list;
}

static json_t *tensors_json(const rf_plan *plan) {
  char type[64];
  json_t *list = json_array();
  for (int t = 0; t < plan->tensor_count; t++) {
    const rf_tensor *tensor = rf_plan_content(plan, t);
    const rf_plan_tensor *p = &plan->tensor[t];
    if (p->offset < 0) continue;
    json_t *row = json_pack("{si ss ss ss so si sI sI si si ss?}", "id", t, "name", tensor->name, "class",
                            rf_class_name(tensor->class), "dtype", rf_tensor_type(tensor, type), "shape",
                            rf_report_shape_json(tensor), "slots", tensor->slots > 1 ? tensor->slots : 1,
                            "bytes", (json_int_t)p->bytes, "offset", (json_int_t)p->offset, "first", p->first,
                            "last", p->last, "reason", tensor->reason);
    if (p->shares != RF_NONE) json_object_set_new(row, "shares", json_integer(p->shares));
    if (tensor->host) json_object_set_new(row, "memory", json_string("host"));
    json_array_append_new(list, row);
  }
  return list;
}

static json_t *ids_json(const int *ids, int count) {
  json_t *list = json_array();
  for (int i = 0; i < count; i++)
    if (ids[i] != RF_NONE) json_array_append_new(list, json_integer(ids[i]));
  return list;
}

/* Returns the names of the mesh axes of a collective's group. */
static json_t *axes_json(rf_axes axes) {
  json_t *list = json_array();
  for (int a = 0; a < RF_AXES; a++)
    if (axes & RF_AXIS_BIT(a)) json_array_append_new(list, json_string(rf_axis_name((rf_axis)a)));
  return list;
}

void rf_report_put_place(json_t *row, const rf_op *op) {
  const char *sublayer = rf_sublayer_name(op->at.sublayer);
  if (op->at.layer != RF_NONE) json_object_set_new(row, "layer", json_integer(op->at.layer));
  if (sublayer) json_object_set_new(row, "sublayer", json_string(sublayer));
}

static json_t *few_json(int64_t rows, const char *kernel) {
  return json_pack("{sI ss}", "rows", (json_int_t)rows, "kernel", kernel);
}

/* Returns the products inside an op, each with its kernel. If another kernel is used for few rows,
 * this kernel is listed too. */
static json_t *products_json(const rf_inner *inner) {
  json_t *list = json_array();
  for (int i = 0; i < RF_MAX_INNER; i++) {
    const rf_inner *p = &inner[i];
    if (!p->product) continue;
    json_t *row = json_pack("{ss ss}", "product", p->product, "kernel", p->kernel->name);
    if (p->few) json_object_set_new(row, "few", few_json(p->few->max_rows, p->few->name));
    json_array_append_new(list, row);
  }
  return list;
}

static json_t *ops_json(const rf_plan *plan) {
  json_t *list = json_array();
  size_t count = (size_t)plan->graph->op_count + 1;
  int64_t *live = calloc(2 * count, sizeof *live), *top = live + count;
  if (!live) return list;
  rf_plan_memory_curve(plan, live, top);
  for (int i = 0; i < plan->graph->op_count; i++) {
    const rf_op *op = &plan->graph->op[i];
    const rf_plan_op *p = &plan->op[i];
    rf_bound roof;
    double limit = rf_plan_limit(plan, i, &roof), bytes = p->work.bytes_read + p->work.bytes_written,
           flops = p->work.flops + p->work.flops_again;
    double per_second = p->seconds > 0 ? 1 / p->seconds : 0;
    json_t *row = json_pack("{si ss ss ss sf sf sf sf ss si sI sI so so}", "id", i, "name", op->name, "op",
                            op->def->name, "kernel", p->kernel->name, "flops", p->work.flops, "bytes", bytes,
                            "intensity", bytes > 0 ? flops / bytes : 0, "seconds", p->seconds, "bound",
                            BOUND[p->bound], "calls", p->calls, "live_bytes", (json_int_t)live[i],
                            "top_bytes", (json_int_t)top[i], "inputs", ids_json(op->input, op->input_count),
                            "outputs", ids_json(op->output, op->output_count));
    json_object_update_new(row, json_pack("{ss ss sf sf sf sf ss}", "kind", rf_op_kind(op), "phase",
                                          rf_op_phase(op), "hardware_flops", flops, "flops_per_second",
                                          flops * per_second, "bytes_per_second", bytes * per_second,
                                          "limit_seconds", limit, "limit", BOUND[roof]));
    rf_report_put_place(row, op);
    if (p->few) json_object_set_new(row, "few", few_json(p->few_rows, p->few->name));
    if (p->inner) json_object_set_new(row, "products", products_json(p->inner));
    const rf_blocks *blocks = &p->blocks;
    if (blocks->kc)
      json_object_set_new(row, "blocks",
                          json_pack("{sI sI sI}", "kc", (json_int_t)blocks->kc, "a_bytes",
                                    (json_int_t)blocks->a_bytes, "nc", (json_int_t)blocks->nc));
    if (rf_op_is_exchange(op->def)) {
      json_object_set_new(row, "sent_bytes", json_real(p->work.sent_bytes));
      json_object_set_new(row, "axes", axes_json(op->attr.axes));
      json_object_set_new(row, "group", json_integer(op->attr.group));
      if (p->transfer > 0) json_object_set_new(row, "transfer_seconds", json_real(p->transfer));
    }
    json_array_append_new(list, row);
  }
  free(live);
  return list;
}

/* A request that runs alone does not wait, so its times have no spread. */
static json_t *alone(double seconds) {
  return json_pack("{sf sf sf}", "p50", seconds, "p95", seconds, "p99", seconds);
}

static json_t *serving_json(const rf_report_plan *report) {
  const rf_plan *plan = report->plan;
  const rf_build_options *b = &plan->options.build;
  rf_kv cache = rf_kv_of(&plan->graph->model, b);
  /* a sequence takes whole pages of the cache */
  int64_t kv = rf_kv_sequence_bytes(&cache, b->seq), token = rf_kv_read_bytes(&cache, 1);
  double rate = plan->step_seconds > 0 ? (double)b->microbatch / plan->step_seconds : 0,
         prompt = rf_report_prompt_seconds(report->prefill);
  json_t *json = json_pack(
      "{sI sI sI sf sI sf sf sf so so}", "slots", (json_int_t)b->microbatch, "kv_bytes_per_token",
      (json_int_t)token, "kv_bytes_per_sequence", (json_int_t)kv, "prefill_seconds", prompt, "prefill_tokens",
      (json_int_t)rf_report_prompt_tokens(report->prefill), "decode_step_seconds", plan->step_seconds,
      "tokens_per_second", rate, "tokens_per_second_per_chip", rate / plan->machine.chips, "ttft_seconds",
      alone(prompt), "tpot_seconds", alone(plan->step_seconds));
  double experts = (double)plan->graph->model.experts, used = (double)plan->graph->model.experts_used;
  if (json && experts > 0)
    json_object_set_new(json, "experts_met", json_real(rf_experts_met(experts, used, (double)b->microbatch)));
  return json;
}

static json_t *frontier_json(const rf_report_plan *report) {
  json_t *list = json_array();
  char mesh[160];
  for (int i = 0; i < report->found->rows; i++) {
    const rf_fit_row *r = &report->found->row[i];
    json_array_append_new(
        list, json_pack("{ss ss ss sI si sI sf sb ss}", "mesh", rf_mesh_text(&r->mesh, mesh), "dtype",
                        rf_dtype_name(r->dtype), "remat", rf_remat_name(r->remat), "microbatch",
                        (json_int_t)r->microbatch, "accumulate", r->accumulate, "peak_bytes",
                        (json_int_t)r->peak_bytes, "seconds", r->seconds, "fits", r->fits, "why", r->why));
  }
  return list;
}

/* With --fit, a job without a search over settings has no frontier. */
static void put_largest_batch(json_t *json, const rf_report_plan *report) {
  json_object_set(json, "largest_batch", (json_t *)report->largest);
  if (report->found) return;
  json_object_set_new(json, "frontier", json_array());
  json_object_set_new(json, "search",
                      json_pack("{sO sO sb}", "tried", json_object_get(report->largest, "tried"),
                                "room_bytes", json_object_get(report->largest, "room_bytes"), "fits",
                                json_integer_value(json_object_get(report->largest, "batch")) > 0));
}

json_t *rf_report_plan_json(const rf_report_plan *report) {
  const rf_plan *plan = report->plan, *largest = rf_plan_larger(plan, report->prefill);
  const rf_plan_totals total = rf_report_totals(report);
  const char *version = rafter_version();
  char number[32] = "";
  sscanf(version, "rafter %31s", number);
  json_t *advice = json_array();
  for (int i = 0; i < report->advice_count; i++)
    json_array_append_new(advice, json_pack("{ss sI sf ss sb sb sb}", "change", report->advice[i].change,
                                            "peak_bytes", (json_int_t)report->advice[i].peak_bytes, "seconds",
                                            report->advice[i].seconds, "why", report->advice[i].why, "fits",
                                            report->advice[i].peak_bytes <= rf_plan_room(&plan->options),
                                            "approximate", report->advice[i].approximate, "exact",
                                            report->advice[i].exact));
  json_t *json =
      json_pack("{ss ss ss so so so so so so so so so so ss sf}", "rafter", number, "command", "plan", "job",
                report->job, "model", model_json(plan), "machine", machine_json(plan), "settings",
                settings_json(plan), "memory", memory_json(plan, largest), "work",
                json_pack("{sf sf sf sf sf ss}", "model_flops", total.model_flops, "hardware_flops",
                          total.hardware_flops, "flops_full_square", total.flops_full_square, "bytes",
                          total.bytes, "collective_bytes", total.sent_bytes, "flops_convention", "causal"),
                "time", time_json(plan, &total.time), "rate", rate_json(plan, &total), "cost",
                cost_json(report), "advice", advice, "assumptions", assumptions_json(plan), "digest",
                plan->digest, "plan_seconds", plan->build_seconds);
  if (json && plan->options.program.program != RF_PROGRAM_RAFTER)
    json_object_set_new(json_object_get(json, "memory"), "program", program_json(largest));
  rf_error why = {0};
  bool runs = rf_plan_require_runnable(plan, &why) == RAFTER_OK;
  if (json) json_object_set_new(json, "plan_only", runs ? json_null() : json_string(why.message));
  if (json) json_object_set(json, "fits", json_object_get(json_object_get(json, "memory"), "fits"));
  if (json) rf_report_put_work(json_object_get(json, "work"), plan);
  if (json && plan->stages) json_object_set_new(json, "pipeline", rf_report_pipeline_json(plan));
  if (json && report->found) {
    json_object_set_new(json, "frontier", frontier_json(report));
    json_object_set_new(json, "search",
                        json_pack("{si sI sb}", "tried", report->found->tried, "room_bytes",
                                  (json_int_t)rf_plan_room(&plan->options), "fits", report->found->fits));
  }
  if (json && report->largest) put_largest_batch(json, report);
  if (json && report->budget_seconds > 0) json_object_set_new(json, "budget", budget_json(report));
  if (json && report->prefill) json_object_set_new(json, "serving", serving_json(report));
  if (json && report->tensors) json_object_set_new(json, "tensors", tensors_json(plan));
  if (json && report->ops) json_object_set_new(json, "ops", ops_json(plan));
  return json;
}
