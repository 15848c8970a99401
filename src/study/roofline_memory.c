/* roofline_memory.c - memory of states, stored activations and caches, and one step of decoding.
 * The source is "How to Scale Your Model", chapters on training and inference. */
#include "graph/remat.h"
#include "study/roofline_parts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- memory ---------------------------------------------------------------------------------- */

/* Sets *elements to the number of stored elements per token and layer. `names` is the list of
 * --saved. */
static rf_status saved_elements(rf_question *q, const char *names, double *elements, rf_error *error) {
  double width, ff, heads = rf_value(q, "heads"), dim = rf_value(q, "head-dim"),
                    kv = rf_value_or(q, "kv-heads", heads);
  RF_TRY(rf_need(q, "width", &width, error));
  RF_TRY(rf_need(q, "ff", &ff, error));
  *elements = 0;
  for (const char *at = names; *at;) {
    size_t length = strcspn(at, ",");
    int i = rf_saved_find(at, length);
    if (i == RF_NONE) {
      char list[160], hint[200];
      rf_saved_list(true, list);
      snprintf(hint, sizeof hint, "names: %s", list);
      return RF_FAIL(error, RAFTER_INVALID, hint, "--saved does not know '%.20s'", at);
    }
    const rf_saved *row = &RF_SAVED[i];
    *elements += row->width * width + row->ff * ff;
    /* if no name in --saved needs the number of heads, the number may be unknown (NaN) */
    if (row->heads || row->kv) *elements += (row->heads * heads + row->kv * kv) * dim;
    at += length + (at[length] == ',');
  }
  return RAFTER_OK;
}

rf_status rf_roofline_memory(rf_question *q, rf_error *error) {
  double parameters = rf_value_or(q, "parameters", NAN), per = rf_value(q, "bytes-per-parameter"),
         shards = q->chips, room = q->machine.memory_bytes - q->machine.reserve_bytes;
  double states = isnan(parameters) ? 0 : parameters * per, activations = 0, kept = 0, layers, tokens;
  const char *saved = rf_word(q, "saved");
  rf_asked(q, "chips");
  rf_asked(q, "hbm");
  rf_asked(q, "on");
  if (saved) {
    RF_TRY(saved_elements(q, saved, &kept, error));
    RF_TRY(rf_need(q, "layers", &layers, error));
    RF_TRY(rf_need(q, "tokens", &tokens, error));
    activations = kept * layers * tokens * q->dtype.bytes;
  }
  double program = rf_value_or(q, "argument", 0) + rf_value_or(q, "output", 0) + rf_value_or(q, "temp", 0) -
                   rf_value_or(q, "alias", 0);
  if (isnan(parameters) && !saved && program == 0 && !rf_asked(q, "bytes-per-parameter"))
    return RF_FAIL(error, RAFTER_INVALID,
                   "give --parameters or --bytes-per-parameter, --saved with --tokens, or --argument, "
                   "--output, --temp and --alias",
                   "memory needs parameters, activations or arrays to add up");
  double total = states + activations + program, chip = total / shards;
  rf_fact_head(q, 0, total, NAN, "memory", room * shards / per);
  rf_add_bytes(q, "bytes_per_chip", "on each chip", chip);
  rf_add_bytes(q, "state_bytes", "states", states);
  rf_add_bytes(q, "state_bytes_per_chip", "states on each chip", states / shards);
  rf_add_bytes(q, "activation_bytes", "stored activations", activations);
  rf_add_bytes(q, "activation_bytes_per_token", "stored activations per token and layer",
               kept * q->dtype.bytes);
  rf_add_bytes(q, "program_bytes", "argument + output + temp - alias", program);
  rf_fact_add(q, "max_parameters", "parameters whose states fit", RF_UNIT_COUNT, room * shards / per);
  rf_add_bytes(q, "room_bytes", "memory of all chips", room * shards);
  rf_fact_add(q, "fits", "fits", RF_UNIT_TRUTH, chip <= room);
  rf_add_number(q, "minimum_chips", "minimum chips", ceil(total / room));
  return RAFTER_OK;
}

/* ---- the cache ------------------------------------------------------------------------------- */

/* Bytes of the KV cache of a sequence with `context` tokens. A layer with a window caches only the
 * window. *uniform gets the bytes of a cache without windows. `uniform` may be NULL. */
static rf_status sequence_bytes(rf_question *q, double context, double *bytes, double *uniform,
                                rf_error *error) {
  double layers, heads = rf_value(q, "kv-heads"), dim = rf_value(q, "head-dim"),
                 window = rf_value_or(q, "window", 0), period = rf_value_or(q, "window-period", 0);
  RF_TRY(rf_need(q, "layers", &layers, error));
  if (isnan(heads)) heads = rf_value(q, "heads");
  if (q->has_model && q->model.kv_rank > 0) { /* latent attention caches one vector for all heads */
    *bytes = layers * context * (double)(q->model.kv_rank + q->model.rope_dim) * q->kv.bytes;
    if (uniform) *uniform = *bytes;
    return RAFTER_OK;
  }
  double full = period > 0   ? floor(layers / period)
                : window > 0 ? 0
                             : layers,
         per = 2 * heads * (dim * q->kv.bytes + rf_value(q, "scale-bytes"));
  if (window <= 0) full = layers;
  *bytes = per * (full * context + (layers - full) * fmin(context, window > 0 ? window : context));
  if (uniform) *uniform = per * layers * context;
  return RAFTER_OK;
}

rf_status rf_roofline_kv(rf_question *q, rf_error *error) {
  double context = rf_value_or(q, "context", rf_value(q, "seq")), batch = rf_value(q, "batch"), sequence,
         uniform, bps;
  rf_asked(q, "kv-dtype");
  rf_asked(q, "chips");
  rf_asked(q, "hbm");
  RF_TRY(sequence_bytes(q, context, &sequence, &uniform, error));
  RF_TRY(rf_link_bps(q, "hbm", &bps, error));
  rf_fact_head(q, 0, sequence * batch, sequence * batch / bps / q->chips, "memory", NAN);
  rf_add_bytes(q, "bytes_per_token", "cache of a token, without windows", uniform / context);
  rf_add_bytes(q, "bytes_per_sequence", "cache of a sequence", sequence);
  rf_add_bytes(q, "uniform_bytes_per_sequence", "cache of a sequence, without windows", uniform);
  rf_add_bytes(q, "bytes_per_chip", "on each chip", sequence * batch / q->chips);
  rf_add_number(q, "slots", "sequences that fit, without weights",
                floor((q->machine.memory_bytes - q->machine.reserve_bytes) * q->chips / sequence));
  return RAFTER_OK;
}

/* ---- decoding -------------------------------------------------------------------------------- */

typedef struct weights {
  double total;      /* parameters */
  double active;     /* number of parameters that one token uses */
  double multiplied; /* number of parameters of the matrices that multiply one token */
  double experts;    /* parameters of routed experts */
  double lookup;     /* number of parameters of embedding tables; a step reads only the rows of its tokens */
  /* count: number of experts in a layer (0: none). used: number of experts that a token uses. */
  double count, used;
} weights;

static rf_status read_weights(rf_question *q, weights *w, rf_error *error) {
  w->total = rf_value_or(q, "parameters", NAN);
  if (isnan(w->total) && rf_asked(q, "weight-bytes"))
    w->total = rf_value(q, "weight-bytes") / q->weight.bytes;
  if (isnan(w->total)) return rf_need(q, "parameters", &w->total, error);
  RF_TRY(rf_experts(q, &w->count, &w->used, error));
  w->active = rf_value_or(q, "active-parameters", w->total);
  w->multiplied = rf_multiplied(q, w->active);
  w->experts = w->lookup = 0;
  if (w->active > w->total)
    return RF_FAIL(error, RAFTER_INVALID, "give fewer --active-parameters",
                   "a token cannot use more parameters than there are (expected at most %g, got %g)",
                   w->total, w->active);
  /* A token uses k of E routed experts. So the token does not use (E - k) / E of the experts'
   * parameters. */
  if (w->count > w->used && w->used > 0)
    w->experts = (w->total - w->active) * w->count / (w->count - w->used);
  /* A tied token table is read completely, because it is also the head. */
  if (q->has_model && !rf_asked(q, "parameters"))
    w->lookup = (double)(q->params.embedding - (q->model.tied ? q->params.head : 0));
  return RAFTER_OK;
}

static rf_status kv_of_sequence(rf_question *q, double *bytes, rf_error *error) {
  if (rf_asked(q, "kv-bytes")) return *bytes = rf_value(q, "kv-bytes"), RAFTER_OK;
  double context = rf_value_or(q, "context", rf_value(q, "seq"));
  if (rf_asked(q, "kv-per-token")) return *bytes = rf_value(q, "kv-per-token") * context, RAFTER_OK;
  if (!q->has_model && !rf_asked(q, "layers")) {
    rf_fact_note(q, "without a KV cache: --kv-bytes, --kv-per-token with --context, or a model adds it");
    return *bytes = 0, RAFTER_OK;
  }
  return sequence_bytes(q, context, bytes, NULL, error);
}

rf_status rf_roofline_decode(rf_question *q, rf_error *error) {
  weights w;
  double kv, peak, bps, batch = rf_value(q, "batch"), chips = q->chips, replicas = rf_value(q, "replicas"),
                        price = rf_usd_per_hour(q);
  rf_asked(q, "chips");
  rf_asked(q, "hbm");
  rf_asked(q, "weight-dtype");
  rf_asked(q, "kv-dtype");
  RF_TRY(read_weights(q, &w, error));
  RF_TRY(kv_of_sequence(q, &kv, error));
  RF_TRY(rf_peak(q, &peak, error));
  RF_TRY(rf_link_bps(q, "hbm", &bps, error));
  if (replicas > chips)
    return RF_FAIL(error, RAFTER_INVALID, "give fewer --replicas",
                   "more copies than chips (--replicas: expected at most %g, got %g)", chips, replicas);
  /* A batch of B tokens is expected to use E (1 - (1 - k/E)^B) distinct experts. */
  double met = w.count > 0 && w.used > 0 ? 1 - pow(1 - w.used / w.count, batch) : 1,
         rest = w.total - w.experts;
  double chip_weights = q->weight.bytes * (rest * replicas + w.experts) / chips,
         chip_read = q->weight.bytes * ((rest - w.lookup) * replicas + w.experts * met) / chips;
  double attention = batch * kv / chips / bps, load = chip_read / bps,
         compute = 2 * w.multiplied * batch / chips / peak, linear = fmax(load, compute);
  double total = chip_weights * chips + batch * kv, room = q->machine.memory_bytes - q->machine.reserve_bytes,
         seconds = attention + linear, rate = batch / seconds;
  double sparsity = w.count > 0 && w.used > 0 ? w.count / w.used : 1,
         critical = peak / bps * q->weight.bytes / 2 * sparsity;
  rf_fact_head(q, 2 * w.multiplied * batch, chip_read * chips + batch * kv, seconds,
               compute > load + attention ? "compute" : "memory", critical);
  rf_add_seconds(q, "attention_seconds", "reading the cache", attention);
  rf_add_seconds(q, "load_seconds", "reading the weights", load);
  rf_add_seconds(q, "compute_seconds", "arithmetic", compute);
  rf_add_seconds(q, "linear_seconds", "linear layers: maximum of arithmetic and weights", linear);
  rf_add_number(q, "tokens_per_second", "tokens per second", rate);
  rf_add_number(q, "tokens_per_second_per_chip", "tokens per second and chip", rate / chips);
  rf_add_number(q, "tokens_per_second_per_user", "tokens per second of a sequence", 1 / seconds);
  rf_fact_add(q, "critical_batch", "minimum sequences for compute-bound linear layers", RF_UNIT_MINIMUM,
              critical);
  rf_add_bytes(q, "weight_bytes", "all copies of the weights", chip_weights * chips);
  rf_add_bytes(q, "weight_bytes_per_chip", "weights on each chip", chip_weights);
  rf_add_bytes(q, "kv_bytes_per_sequence", "cache of a sequence", kv);
  rf_add_bytes(q, "memory_bytes", "weights and caches", total);
  rf_add_bytes(q, "memory_bytes_per_chip", "memory on each chip", total / chips);
  rf_add_bytes(q, "free_bytes_per_chip", "free on each chip, without caches", room - chip_weights);
  rf_fact_add(q, "fits", "fits", RF_UNIT_TRUTH, total <= room * chips);
  rf_add_number(q, "slots", "sequences that fit",
                kv > 0 ? fmax(0, floor((room - chip_weights) * chips / kv)) : NAN);
  rf_add_number(q, "minimum_chips", "minimum chips for the weights", ceil(q->weight.bytes * w.total / room));
  rf_fact_add(q, "usd_per_million_tokens", "dollars per million tokens", RF_UNIT_USD,
              price > 0 ? chips * price / 3600 / rate * 1e6 : NAN);
  return RAFTER_OK;
}
