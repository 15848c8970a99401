/* roofline_parallel.c - computes when a parallelism strategy is compute-bound, and over how many
 * chips. The sources are "How to Scale Your Model", chapters on training and inference, and
 * MaxText's sharding documentation (experts, context). alpha is the peak FLOP/s divided by the
 * bytes/s of one network axis (both directions). */
#include "study/roofline_parts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct strategy {
  double alpha, narrow; /* alpha: FLOP per sent byte. narrow: bytes of an activation / 2. */
  double axes[2];       /* torus axes of each strategy; two strategies can be combined */
  double peak, bps, matrices;
} strategy;

/* Experts of a layer. one: width of one expert. held: number of experts. met: number of experts
 * that a token uses. A dense MLP counts as one expert. --ff and --experts take precedence over the
 * model. */
typedef struct widths {
  double one, met, held;
} widths;

static widths widths_of(rf_question *q, double ff) {
  const rf_model *m = &q->model;
  double experts = rf_value_or(q, "experts", 0), used = rf_value_or(q, "experts-used", 0),
         shared = q->has_model ? (double)m->experts_shared : 0;
  if (!(experts > 0 && used > 0)) return (widths){ff, 1, 1};
  double one = q->has_model && m->experts > 0 && !rf_asked(q, "ff") ? (double)rf_model_expert_ff(m) : ff;
  return (widths){one, used + shared, experts + shared};
}

/* Adds a note if a formula for dense models is applied to a mixture-of-experts model. */
static void note_dense(rf_question *q, double ff) {
  if (q->has_model && q->model.experts > 0)
    rf_fact_note(q, "computed for one dense MLP of width %.0f, not for experts; --ff sets the width", ff);
}

static rf_status read_strategy(rf_question *q, strategy *s, rf_error *error) {
  const char *link = rf_word(q, "link"), *axes = rf_word(q, "axes");
  RF_TRY(rf_peak(q, &s->peak, error));
  RF_TRY(rf_link_bps(q, link ? link : "ici", &s->bps, error));
  int first = 1, second = 1, end = 0;
  if (axes && (sscanf(axes, "%d%n,%d%n", &first, &end, &second, &end) < 1 || axes[end] || first < 1 ||
               second < 1 || first > 4 || second > 4))
    return RF_FAIL(error, RAFTER_INVALID, "write --axes 3, or --axes 2,1 for the two strategies of fsdp+tp",
                   "--axes is the number of network axes per strategy here (expected 1 to 4, got '%.20s')",
                   axes);
  s->alpha = s->peak / s->bps;
  s->narrow = q->dtype.bytes / 2;
  s->axes[0] = first;
  s->axes[1] = second;
  s->matrices = rf_value_or(q, "matrices", q->has_model && rf_mlp_gated(q->model.mlp) ? 3 : 2);
  return RAFTER_OK;
}

/* Limits the rate of gathers and reductions that cross several nodes of GPUs. With two nodes, half
 * of the array enters each node. With more nodes, the full array enters each node. The rate between
 * nodes applies if it is lower than the rate inside a node. A link or rate from the command line is
 * not changed. */
static void cross_nodes(rf_question *q, strategy *s, double ways) {
  const rf_machine *m = &q->machine;
  int inside = m->shape_rank ? m->shape[0] : m->topology.domain;
  bool typed = rf_asked(q, "link") || rf_asked(q, "ici") || rf_asked(q, "oneway");
  if (typed || m->topology.form != RF_NETWORK_SWITCH || !(m->topology.node_bps > 0) || ways <= 2 * inside)
    return;
  double bps = m->topology.node_bps * inside / m->topology.domain;
  if (bps >= s->bps) return;
  s->bps = bps;
  s->alpha = s->peak / bps;
  rf_fact_note(q, "with more than two nodes, %.*f GB/s out of a node limit the rate", bps < 1e11 ? 1 : 0,
               bps * 1e-9);
}

/* Adds the minimum tokens of a compute-bound batch, and the maximum chips for this batch. */
static void add_tokens(rf_question *q, double critical, double pod) {
  double tokens = rf_value_or(q, "tokens", NAN), chips = q->chips;
  rf_fact_add(q, "critical_tokens", "minimum tokens of a batch over all chips", RF_UNIT_MINIMUM,
              critical * chips);
  if (pod > 0)
    rf_fact_add(q, "critical_tokens_pod", "minimum tokens of a batch over a pod", RF_UNIT_MINIMUM,
                critical * pod);
  if (isnan(tokens)) return;
  rf_add_number(q, "tokens_per_chip", "tokens of this batch per chip", tokens / chips);
  rf_fact_add(q, "max_chips", "maximum chips for this batch", RF_UNIT_MAXIMUM, tokens / critical);
  if (pod > 0) rf_add_number(q, "max_pods", "the same, in pods", tokens / critical / pod);
}

static double pod_chips(const rf_machine *m) {
  double chips = 1;
  for (int i = 0; i < m->topology.axes && m->topology.pod[i]; i++) chips *= m->topology.pod[i];
  return m->topology.pod_chips ? (double)m->topology.pod_chips : chips > 1 ? chips : 0;
}

static const char *bound_of(double have, double need) {
  return isnan(have) ? "" : have >= need ? "compute" : "network";
}

/* Adds the bytes that a layer sends in the forward pass and in the backward pass. If all sizes are
 * known, also adds the layer's seconds. The layer has s->matrices matrices of F x D. A token uses
 * `ff` of the F columns. */
static void add_layer(rf_question *q, const strategy *s, double ff, double forward, double backward,
                      double ways) {
  double tokens = rf_value_or(q, "tokens", NAN), width = rf_value_or(q, "width", NAN);
  rf_add_bytes(q, "forward_bytes", "bytes sent per layer, forward", forward);
  rf_add_bytes(q, "backward_bytes", "bytes sent per layer, backward", backward);
  double flops = 2 * s->matrices * tokens * width * ff / ways;
  if (isnan(flops) || isnan(forward)) return;
  double compute = 3 * flops / s->peak, network = (forward + backward) / s->bps / s->axes[0];
  rf_add_seconds(q, "layer_compute_seconds", "arithmetic of a layer", compute);
  rf_add_seconds(q, "layer_network_seconds", "network of a layer", network);
}

static rf_status data_parallel(rf_question *q, strategy *s, bool gathers, rf_error *error) {
  double experts, used;
  cross_nodes(q, s, q->chips);
  RF_TRY(rf_experts(q, &experts, &used, error));
  double sparsity = experts > 0 && used > 0 ? experts / used : 1;
  const char *link = rf_word(q, "link");
  /* with --link dcn, q->chips is the number of chips in a slice; the chips of a slice reduce
   * together */
  bool slices = link && !strcmp(link, "dcn");
  double critical = s->alpha * s->narrow * sparsity / (slices ? 1 : s->axes[0]),
         tokens = rf_value_or(q, "tokens", NAN);
  /* chips gather and reduce the matrices of all experts, also of unused experts */
  widths w = widths_of(q, rf_value_or(q, "ff", NAN));
  double width = rf_value_or(q, "width", NAN),
         weights = s->matrices * width * w.one * w.held * q->dtype.bytes;
  rf_fact_head(q, NAN, NAN, NAN, slices ? "" : bound_of(tokens / q->chips, critical), critical);
  rf_add_number(q, "alpha", "FLOP per byte of the network", s->alpha);
  rf_fact_add(q, "critical_batch",
              slices ? "minimum tokens per slice to be compute-bound"
                     : "minimum tokens per chip to be compute-bound",
              RF_UNIT_MINIMUM, critical);
  if (slices) {
    rf_fact_add(q, "slice_bytes_per_second", "bandwidth out of a slice", RF_UNIT_BPS, s->bps * q->chips);
    rf_add_flops(q, "slice_flops_per_second", "arithmetic per second of a slice", s->peak * q->chips);
    rf_add_number(q, "slice_chips", "chips of a slice", q->chips);
  } else add_tokens(q, critical, pod_chips(&q->machine));
  /* An all-reduce of the gradient sends the bytes of two all-gathers. In the backward pass, fsdp
   * sends the same number of bytes, because it scatters the gradient and gathers the weight
   * again. */
  add_layer(q, s, w.one * w.met, gathers ? weights : 0, 2 * weights, q->chips);
  return RAFTER_OK;
}

static rf_status tensor_parallel(rf_question *q, strategy *s, rf_error *error) {
  double ff, degree = rf_value_or(q, "degree", q->chips), batch = rf_value(q, "batch"),
             width = rf_value_or(q, "width", NAN), hbm, hop = q->machine.topology.hop_seconds;
  RF_TRY(rf_need(q, "ff", &ff, error));
  widths w = widths_of(q, ff);
  if (w.met > 1) rf_fact_note(q, "a token uses %g experts of width %.0f", w.met, w.one);
  ff = w.one * w.met;
  cross_nodes(q, s, degree);
  double tokens = rf_value_or(q, "tokens", NAN), most = s->axes[0] * ff / (s->alpha * s->narrow),
         activations = tokens * width * q->dtype.bytes,
         /* with a gate, a third matrix adds half of the arithmetic for the same activations */
      gated = s->matrices > 2 ? 1.5 : 1;
  rf_fact_head(q, NAN, NAN, NAN, bound_of(gated * most, degree), gated * most);
  rf_add_number(q, "alpha", "FLOP per byte of the network", s->alpha);
  rf_fact_add(q, "max_degree", "compute-bound up to this many chips, MLP of two matrices", RF_UNIT_MAXIMUM,
              most);
  rf_fact_add(q, "max_degree_gated", "compute-bound up to this many chips, MLP with gate, up and down",
              RF_UNIT_MAXIMUM, 1.5 * most);
  rf_fact_add(q, "min_ff", "minimum feed-forward width to be compute-bound on these chips", RF_UNIT_MINIMUM,
              degree * s->alpha * s->narrow / s->axes[0] / gated);
  if (rf_link_bps(q, "hbm", &hbm, NULL) == RAFTER_OK) {
    rf_add_number(q, "beta", "memory bandwidth / network bandwidth", hbm / s->bps);
    rf_fact_add(q, "max_degree_decode", "maximum chips for decoding --batch sequences", RF_UNIT_MAXIMUM,
                s->axes[0] * ff / (batch * hbm / s->bps));
  }
  if (!isnan(width)) {
    const rf_topology *t = &q->machine.topology;
    const bool nodes = t->form == RF_NETWORK_SWITCH && degree > t->domain;
    double buffer = batch * width * q->dtype.bytes, shard = nodes ? 0 : t->oneway_bps * hop;
    rf_add_bytes(q, "activation_bytes", "bytes of the activations of --batch tokens", buffer);
    rf_fact_add(q, "latency_degree", "number of chips above which the exchange is latency-bound",
                RF_UNIT_MAXIMUM, shard > 0 ? buffer / shard : NAN);
  }
  /* One gather precedes a layer, and one scatter follows it. The backward pass may repeat the
   * gather. */
  add_layer(q, s, ff, 2 * activations, 2 * activations, degree);
  rf_add_bytes(q, "backward_bytes_regather", "backward bytes if the input is gathered twice",
               3 * activations);
  return RAFTER_OK;
}

static rf_status mixed(rf_question *q, const strategy *s, rf_error *error) {
  double ff, tokens = rf_value_or(q, "tokens", NAN), chips = q->chips, width = rf_value_or(q, "width", NAN),
             alpha = s->alpha * s->narrow;
  RF_TRY(rf_need(q, "ff", &ff, error));
  note_dense(q, ff);
  strategy outer = *s; /* an fsdp group spans several nodes, and a tensor group stays inside a node */
  cross_nodes(q, &outer, chips);
  double critical = outer.alpha * s->narrow * alpha / (s->axes[0] * s->axes[1] * ff), serial = 4 * critical;
  double optimum = sqrt(tokens / ff * s->axes[0] * outer.bps / (s->axes[1] * s->bps) * chips);
  rf_fact_head(q, NAN, NAN, NAN, bound_of(tokens / chips, critical), critical);
  rf_add_number(q, "alpha", "FLOP per byte of the network", s->alpha);
  rf_fact_add(q, "critical_batch", "minimum tokens per chip to be compute-bound", RF_UNIT_MINIMUM, critical);
  rf_fact_add(q, "critical_serial", "minimum tokens per chip without overlap of fsdp and tp", RF_UNIT_MINIMUM,
              serial);
  add_tokens(q, critical, pod_chips(&q->machine));
  rf_fact_add(q, "critical_tokens_serial", "minimum tokens of a batch without overlap", RF_UNIT_MINIMUM,
              serial * chips);
  if (isnan(tokens)) return RAFTER_OK;
  rf_fact_add(q, "max_chips_serial", "maximum chips for this batch, without overlap", RF_UNIT_MAXIMUM,
              tokens / serial);
  rf_fact_add(q, "optimal_fsdp", "best number of fsdp chips", RF_UNIT_NEAREST, optimum);
  rf_fact_add(q, "optimal_tensor", "best number of tensor chips", RF_UNIT_NEAREST, chips / optimum);
  double x = rf_value_or(q, "degree", NAN);
  double tensor = isnan(x) ? chips / optimum : x, fsdp = chips / tensor,
         weights = s->matrices * width * ff * q->dtype.bytes / tensor,
         rows = tokens * width * q->dtype.bytes / fsdp;
  add_layer(q, s, ff, 2 * rows + weights, 2 * (2 * rows + weights), chips);
  return RAFTER_OK;
}

static rf_status expert_parallel(rf_question *q, const strategy *s, rf_error *error) {
  double ff, degree = rf_value_or(q, "degree", q->chips), alpha = s->alpha * s->narrow;
  RF_TRY(rf_need(q, "ff", &ff, error));
  ff = widths_of(q, ff).one;
  rf_fact_head(q, NAN, NAN, NAN, bound_of(4 * ff / degree, alpha), 4 * ff / alpha);
  rf_add_number(q, "alpha", "FLOP per byte of the network", s->alpha);
  rf_fact_add(q, "max_degree", "compute-bound up to this many chips on a ring", RF_UNIT_MAXIMUM,
              4 * ff / alpha);
  rf_fact_add(q, "min_ff", "minimum expert width to be compute-bound on a ring of these chips",
              RF_UNIT_MINIMUM, alpha * degree / 4);
  rf_fact_add(q, "min_ff_switch", "minimum expert width on a switch, for any number of chips",
              RF_UNIT_MINIMUM, alpha);
  return RAFTER_OK;
}

static rf_status pipeline_parallel(rf_question *q, const strategy *s, rf_error *error) {
  double layers, ff, stages = rf_value_or(q, "degree", q->chips), micro = rf_value(q, "microbatches"),
                     repeats = rf_value(q, "repeats");
  RF_TRY(rf_need(q, "layers", &layers, error));
  RF_TRY(rf_need(q, "ff", &ff, error));
  ff = widths_of(q, ff).one;
  if (stages > layers)
    return RF_FAIL(error, RAFTER_INVALID,
                   "lower --degree (its default is the number of chips of --on), or raise --layers",
                   "more stages than layers (--degree: expected at most %g, got %g)", layers, stages);
  double used = rf_value_or(q, "experts-used", 0), per_stage = layers / stages, alpha = s->alpha * s->narrow,
         sparse = used > 0 ? used : 1;
  rf_fact_head(q, NAN, NAN, NAN, bound_of(1.5 * per_stage * ff * sparse, alpha),
               alpha / (1.5 * per_stage * sparse));
  rf_add_number(q, "alpha", "FLOP per byte of the network", s->alpha);
  rf_add_number(q, "layers_per_stage", "layers of a stage", per_stage);
  rf_fact_add(q, "min_ff", "feed-forward width that hides the traffic", RF_UNIT_MINIMUM,
              alpha / (1.5 * per_stage * sparse));
  rf_fact_add(q, "bubble", "idle fraction of the time", RF_UNIT_PERCENT,
              (stages - 1) / (repeats * micro + stages - 1));
  return RAFTER_OK;
}

static rf_status context_parallel(rf_question *q, strategy *s, rf_error *error) {
  double heads, kv, seq = rf_value(q, "seq"), degree = rf_value_or(q, "degree", q->chips),
                    batch = rf_value(q, "batch"), dim = rf_value(q, "head-dim");
  bool causal = !rf_flag(q, "non-causal");
  RF_TRY(rf_need(q, "heads", &heads, error));
  kv = rf_value_or(q, "kv-heads", heads);
  cross_nodes(q, s, degree);
  double alpha = s->alpha * s->narrow * (causal ? 2 : 1), minimum = alpha * kv / heads;
  rf_fact_head(q, NAN, NAN, NAN, bound_of(seq / degree, minimum), minimum);
  rf_add_number(q, "alpha", "FLOP per byte of the network", s->alpha);
  rf_fact_add(q, "min_seq_per_chip", "minimum tokens of a sequence per chip", RF_UNIT_MINIMUM, minimum);
  rf_fact_add(q, "max_degree", "compute-bound up to this many chips with this sequence", RF_UNIT_MAXIMUM,
              seq / minimum);
  rf_fact_add(q, "ring_min_seq_per_chip", "minimum tokens per chip, one-way ring of keys and values",
              RF_UNIT_MINIMUM, 2 * s->peak / (s->bps / 2) * kv / heads);
  rf_add_bytes(q, "gathered_bytes", "bytes of keys and values gathered per layer",
               2 * q->dtype.bytes * batch * seq * kv * dim);
  rf_fact_note(q, causal ? "causal attention: half the arithmetic" : "not causal");
  return RAFTER_OK;
}

/* Computes the number of chips from which decoding should shard weights in two dimensions. The c
 * chips form a grid: D is sharded over sqrt(c/8) chips, and F over sqrt(8c) chips. */
static rf_status tensor_2d(rf_question *q, rf_error *error) {
  double ff, width;
  RF_TRY(rf_need(q, "ff", &ff, error));
  RF_TRY(rf_need(q, "width", &width, error));
  note_dense(q, ff);
  double minimum = 32 * ff / width * 9 / 16;
  rf_fact_head(q, NAN, NAN, NAN, bound_of(q->chips, minimum), minimum);
  rf_fact_add(q, "min_chips", "chips from which two dimensions are faster than one", RF_UNIT_MINIMUM,
              minimum);
  rf_fact_add(q, "optimal_width_ways", "best number of chips along the width", RF_UNIT_NEAREST,
              sqrt(q->chips / 8));
  rf_fact_add(q, "optimal_ff_ways", "best number of chips along the feed-forward width", RF_UNIT_NEAREST,
              sqrt(q->chips * 8));
  return RAFTER_OK;
}

rf_status rf_roofline_parallelism(rf_question *q, rf_error *error) {
  strategy s;
  const char *name = rf_word(q, "strategy");
  rf_asked(q, "chips");
  RF_TRY(read_strategy(q, &s, error));
  rf_fact_text(q, "strategy", NULL, name);
  if (!strcmp(name, "dp") || !strcmp(name, "fsdp")) return data_parallel(q, &s, name[0] == 'f', error);
  if (!strcmp(name, "tp")) return tensor_parallel(q, &s, error);
  if (!strcmp(name, "ep")) return expert_parallel(q, &s, error);
  if (!strcmp(name, "pp")) return pipeline_parallel(q, &s, error);
  if (!strcmp(name, "cp")) return context_parallel(q, &s, error);
  if (!strcmp(name, "tp-2d")) return tensor_2d(q, error);
  return mixed(q, &s, error);
}
