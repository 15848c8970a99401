/* roofline.c - the table of operations, and the code that all operations share: options, figures of
 * the machine, and the output of the answer. */
#include "study/roofline_parts.h"

#include "base/text.h"
#include "model/model.h"

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct question_row {
  const char *name;
  rf_status (*answer)(rf_question *, rf_error *);
  const char *help;
} question_row;

static const question_row ROWS[] = {
    {"matmul", rf_roofline_matmul,
     "product (m,k) x (k,n) on one chip, or over several with --split and --axes"},
    {"einsum", rf_roofline_einsum, "a contraction: einsum \"bd,df->bf\" b=64,d=1024,f=4096"},
    {"attention", rf_roofline_attention, "attention of --seq queries over --context keys"},
    {"allgather", rf_roofline_collective, "--bytes gathered over --axes"},
    {"reducescatter", rf_roofline_collective, "--bytes summed and scattered over --axes"},
    {"allreduce", rf_roofline_collective, "--bytes summed over --axes"},
    {"alltoall", rf_roofline_collective, "--bytes of all chips exchanged over --axes"},
    {"permute", rf_roofline_collective, "--bytes sent to the next chip along --axes"},
    {"transfer", rf_roofline_transfer, "--bytes over a --link"},
    {"critical-batch", rf_roofline_critical_batch, "minimum tokens for a compute-bound layer"},
    {"parallelism", rf_roofline_parallelism, "when a --strategy is compute-bound, and over how many chips"},
    {"cost", rf_roofline_cost, "FLOPs, time, price and utilisation of a run"},
    {"array", rf_roofline_array, "bytes of an array, in full and on one chip of a --mesh"},
    {"memory", rf_roofline_memory, "memory of states and stored activations, and what fits"},
    {"kv", rf_roofline_kv, "bytes of a KV cache"},
    {"decode", rf_roofline_decode, "time, rate, memory and slots of one decoding step"},
};

const char *rf_roofline_op(int i, const char **help) {
  if (i < 0 || i >= (int)(sizeof ROWS / sizeof *ROWS)) return NULL;
  if (help) *help = ROWS[i].help;
  return ROWS[i].name;
}

/* ---- asking ---------------------------------------------------------------------------------- */

static void mark(rf_question *q, const char *name) {
  for (int i = 0; i < rf_options_count(q->o) && i < 512; i++)
    if (!strcmp(rf_options_name(q->o, i), name)) q->used[i / 64] |= 1ull << i % 64;
}

bool rf_asked(rf_question *q, const char *name) {
  mark(q, name);
  return rf_options_given(q->o, name);
}

static double model_value(const rf_question *q, const char *name) {
  const rf_model *m = &q->model;
  const struct {
    const char *name;
    int64_t value;
  } fields[] = {{"layers", m->layers},
                {"width", m->width},
                {"ff", m->ff},
                {"vocab", m->vocab},
                {"heads", m->heads},
                {"kv-heads", m->kv_heads},
                {"head-dim", m->head_dim},
                {"experts", m->experts},
                {"experts-used", m->experts_used},
                {"window", m->window},
                {"window-period", m->window_period},
                {"parameters", q->params.total},
                {"active-parameters", q->params.active}};
  for (size_t i = 0; q->has_model && i < sizeof fields / sizeof *fields; i++)
    if (!strcmp(name, fields[i].name)) return (double)fields[i].value;
  return NAN;
}

double rf_value(rf_question *q, const char *name) {
  if (rf_asked(q, name)) return rf_options_float(q->o, name);
  double value = model_value(q, name);
  if (!isnan(value)) return value;
  return rf_options_is_set(q->o, name) ? rf_options_float(q->o, name) : NAN;
}

double rf_multiplied(rf_question *q, double otherwise) {
  if (rf_asked(q, "active-parameters")) return rf_value(q, "active-parameters");
  if (rf_asked(q, "parameters")) return rf_value(q, "parameters");
  return q->has_model ? (double)q->params.matmul : otherwise;
}

double rf_usd_per_hour(rf_question *q) {
  mark(q, "price");
  return q->machine.usd_per_chip_hour;
}

double rf_value_or(rf_question *q, const char *name, double otherwise) {
  double value = rf_value(q, name);
  return isnan(value) ? otherwise : value;
}

const char *rf_word(rf_question *q, const char *name) {
  mark(q, name);
  return rf_options_is_set(q->o, name) ? rf_options_text(q->o, name) : NULL;
}

bool rf_flag(rf_question *q, const char *name) {
  mark(q, name);
  return rf_options_flag(q->o, name);
}

rf_status rf_need(rf_question *q, const char *name, double *value, rf_error *error) {
  *value = rf_value(q, name);
  if (!isnan(*value)) return RAFTER_OK;
  char hint[96];
  snprintf(hint, sizeof hint, "give --%s, or --model MODEL", name);
  return RF_FAIL(error, RAFTER_INVALID, hint, "%s needs --%s", q->answer->op, name);
}

rf_status rf_experts(rf_question *q, double *experts, double *used, rf_error *error) {
  *experts = rf_value_or(q, "experts", 0);
  *used = rf_value_or(q, "experts-used", 0);
  if (*experts <= 0 || *used <= *experts) return RAFTER_OK;
  return RF_FAIL(
      error, RAFTER_INVALID, "lower --experts-used, or raise --experts",
      "a token cannot use more experts than there are (--experts-used: expected at most %g, got %g)",
      *experts, *used);
}

/* ---- the machine ----------------------------------------------------------------------------- */

rf_status rf_peak(rf_question *q, double *flops, rf_error *error) {
  mark(q, "peak");
  mark(q, "on");
  mark(q, "dtype");
  /* a machine that cannot compute in a narrow dtype multiplies in this dtype */
  const rf_dtype wider = q->machine.kind == RF_MACHINE_CPU ? RF_F32 : RF_BF16;
  *flops = q->machine.flops[q->dtype.dtype];
  if (*flops > 0) return RAFTER_OK;
  *flops = q->dtype.bytes <= (double)rf_dtype_bytes(wider) ? q->machine.flops[wider] : 0;
  if (*flops > 0) return q->widened = true, RAFTER_OK;
  return RF_FAIL(error, RAFTER_INVALID, "choose another --dtype, or give --peak", "%s has no %s peak",
                 q->machine.name, q->dtype.name);
}

rf_status rf_link_bps(rf_question *q, const char *link, double *bps, rf_error *error) {
  const rf_machine *m = &q->machine;
  bool torus = m->topology.form == RF_NETWORK_TORUS;
  const struct {
    const char *name, *option;
    double bps;
  } links[] = {{"hbm", "bandwidth", m->read_bps},
               {"vmem", "vmem", m->vmem_bps},
               {"pcie", "pcie", m->pcie_bps},
               {"nvlink", "ici", m->topology.oneway_bps},
               {"ici", "ici", (torus ? 2 : 1) * m->topology.oneway_bps},
               {"dcn", "dcn", rf_machine_dcn_bps(m)}};
  mark(q, "on");
  for (size_t i = 0; i < sizeof links / sizeof *links; i++) {
    if (strcmp(link, links[i].name)) continue;
    if (rf_options_knows(q->o, links[i].option)) mark(q, links[i].option);
    if (!strcmp(link, "ici")) mark(q, "oneway");
    *bps = links[i].bps;
    if (*bps > 0) return RAFTER_OK;
    char hint[64];
    bool given = rf_options_knows(q->o, links[i].option);
    snprintf(hint, sizeof hint, given ? "give --%s, or choose another machine" : "choose another machine",
             links[i].option);
    return RF_FAIL(error, RAFTER_INVALID, hint, "%s has no known bandwidth for %s", m->name, link);
  }
  return RF_FAIL(error, RAFTER_INVALID, "use hbm, vmem, pcie, ici or dcn", "unknown link '%s'", link);
}

/* Parses --axes: extents ("4,4") or names of the machine's axes ("x,y"). */
static rf_status read_axes(rf_question *q, const char *text, int extent[RF_TORUS_AXES], int *count,
                           rf_error *error) {
  const rf_machine *m = &q->machine;
  *count = 0;
  for (const char *at = text;; at++) {
    size_t length = strcspn(at, ",x");
    char word[24] = "";
    int64_t number;
    int axis = tolower((unsigned char)*at) - 'x';
    if (axis >= 0 && axis <= 2 && (at[1] == ',' || !at[1])) {
      if (axis >= m->shape_rank)
        return RF_FAIL(error, RAFTER_INVALID, "write --on tpu-v5e:4x4 to give the machine a shape",
                       "%s has no axis %c (--axes: got '%.40s')", m->name, *at, text);
      number = m->shape[axis];
      length = 1;
    } else {
      if (length && length < sizeof word) memcpy(word, at, length);
      if (!rf_text_int(word, &number) || number < 1 || number > RF_NETWORK_AXES_MAX)
        return RF_FAIL(error, RAFTER_INVALID, "write extents as 4,4 or axes of the machine as x,y",
                       "--axes has no extent at '%.20s' (got '%.40s')", at, text);
    }
    if (*count == RF_TORUS_AXES)
      return RF_FAIL(error, RAFTER_INVALID, "write extents as 4,4",
                     "--axes has more than %d extents ('%.40s')", RF_TORUS_AXES, text);
    extent[(*count)++] = (int)number;
    at += length;
    if (!*at) return RAFTER_OK;
  }
}

rf_status rf_asked_group(rf_question *q, rf_group *group, rf_error *error) {
  const rf_machine *m = &q->machine;
  int extent[RF_TORUS_AXES], count = m->shape_rank,
                             slices = (int)rf_value_or(q, "slices", m->slices > 1 ? m->slices : 1);
  const char *axes = rf_word(q, "axes"), *wrap = rf_word(q, "wrap");
  memcpy(extent, m->shape, sizeof extent);
  mark(q, "on");
  mark(q, "ici");
  mark(q, "oneway");
  mark(q, "hop");
  if (axes) RF_TRY(read_axes(q, axes, extent, &count, error));
  /* Users write the number of nodes first. In `extent`, the number of chips per node comes
   * first. */
  if (axes && isdigit((unsigned char)*axes) && m->topology.form == RF_NETWORK_SWITCH && count == 2) {
    int nodes = extent[0];
    extent[0] = extent[1];
    extent[1] = nodes;
  }
  if (axes && m->topology.form == RF_NETWORK_TORUS)
    RF_TRY(rf_machine_check_pod(
        m, extent, count, "--axes",
        "give shorter axes, or join groups of them over the data-centre network by --slices", error));
  if (!count)
    return RF_FAIL(error, RAFTER_INVALID, "give --axes 16 (or 4,4), or a shape as --on tpu-v5e:4x4",
                   "%s needs --axes", q->answer->op);
  RF_TRY(rf_machine_axes(m, extent, count, !strcmp(wrap, "auto") ? -1 : !strcmp(wrap, "yes"), group, error));
  if (slices > 1) {
    RF_TRY(rf_link_bps(q, "dcn", &group->dcn_bps, error));
    group->slices = slices;
    group->chips *= slices;
    group->resources |= RF_RESOURCE_DCN;
  }
  return RAFTER_OK;
}

rf_status rf_asked_bytes(rf_question *q, double *bytes, rf_error *error) {
  int count;
  mark(q, "shape");
  if (rf_asked(q, "bytes")) return *bytes = rf_value(q, "bytes") * rf_value(q, "count"), RAFTER_OK;
  const int64_t *shape = rf_options_list(q->o, "shape", &count);
  if (!count)
    return RF_FAIL(error, RAFTER_INVALID, "give --bytes 32MiB, or --shape 2048,8192 and --dtype",
                   "%s needs --bytes", q->answer->op);
  mark(q, "dtype");
  *bytes = q->dtype.bytes * rf_value(q, "count");
  for (int i = 0; i < count; i++) {
    if (shape[i] < 1)
      return RF_FAIL(error, RAFTER_INVALID, "write --shape 2048,8192",
                     "a dimension is out of range (expected at least 1, got %lld)", (long long)shape[i]);
    *bytes *= (double)shape[i];
  }
  return RAFTER_OK;
}

/* ---- answering ------------------------------------------------------------------------------- */

void rf_fact_add(rf_question *q, const char *key, const char *what, rf_unit unit, double value) {
  rf_answer *a = q->answer;
  if (a->count < RF_FACTS_MAX)
    a->fact[a->count++] = (rf_fact){.key = key, .what = what, .unit = unit, .value = value};
}

void rf_fact_text(rf_question *q, const char *key, const char *what, const char *text) {
  rf_fact_add(q, key, what, RF_UNIT_TEXT, NAN);
  rf_fact *fact = &q->answer->fact[q->answer->count - 1];
  snprintf(fact->text, sizeof fact->text, "%s", text ? text : "");
}

void rf_fact_note(rf_question *q, const char *format, ...) {
  va_list list;
  if (q->answer->notes == RF_NOTES_MAX) return;
  va_start(list, format);
  vsnprintf(q->answer->note[q->answer->notes++], sizeof *q->answer->note, format, list);
  va_end(list);
}

void rf_fact_head(rf_question *q, double flops, double bytes, double seconds, const char *bound,
                  double critical) {
  rf_add_flops(q, "flops", flops > 0 ? "arithmetic" : NULL, flops);
  rf_add_bytes(q, "bytes", "bytes", bytes);
  rf_add_number(q, "intensity", flops > 0 ? "FLOP per byte" : NULL, bytes > 0 ? flops / bytes : NAN);
  rf_add_seconds(q, "seconds", "shortest time", seconds);
  rf_fact_text(q, "bound", "bound by", bound);
  rf_add_number(q, "critical", NULL, critical);
}

rf_status rf_fact_roofline(rf_question *q, double flops, double bytes, const char *link, double critical,
                           rf_error *error) {
  double peak, bps;
  RF_TRY(rf_peak(q, &peak, error));
  RF_TRY(rf_link_bps(q, link, &bps, error));
  double compute = flops / peak / q->chips, memory = bytes / bps / q->chips;
  mark(q, "chips");
  if (q->chips > 1) rf_fact_note(q, "shared by %.0f chips, without the traffic between them", q->chips);
  rf_fact_head(q, flops, bytes, fmax(compute, memory), compute >= memory ? "compute" : "memory", critical);
  rf_add_seconds(q, "compute_seconds", "time of arithmetic", compute);
  rf_add_seconds(q, "memory_seconds", "time of memory traffic", memory);
  rf_add_seconds(q, "seconds_sum", "time without overlap", compute + memory);
  rf_add_number(q, "critical_intensity", "minimum FLOP per byte to be compute-bound", peak / bps);
  return RAFTER_OK;
}

/* ---- the question ---------------------------------------------------------------------------- */

static rf_number_type number_type(const char *name) {
  static const rf_number_type types[] = {
      {"f32", RF_F32, 4},         {"bf16", RF_BF16, 2},       {"f16", RF_F16, 2},     {"f64", RF_F64, 8},
      {"f8_e4m3", RF_F8_E4M3, 1}, {"f8_e5m2", RF_F8_E5M2, 1}, {"fp8", RF_F8_E4M3, 1}, {"i8", RF_I8, 1},
      {"int8", RF_I8, 1},         {"i4", RF_I8, 0.5},         {"int4", RF_I8, 0.5}};
  for (size_t i = 0; i < sizeof types / sizeof *types; i++)
    if (!strcmp(types[i].name, name)) return types[i];
  return types[1];
}

/* Replaces figures of the machine's data sheet by values from the command line. */
static void replace_figures(rf_question *q) {
  rf_machine *m = &q->machine;
  const struct {
    const char *name;
    double *place, scale;
  } rows[] = {{"bandwidth", &m->read_bps, 1},
              {"bandwidth", &m->copy_bps, 1},
              {"hbm", &m->memory_bytes, 1},
              {"oneway", &m->topology.oneway_bps, 1},
              {"ici", &m->topology.oneway_bps, 0.5},
              {"dcn", &m->dcn_bps, 1},
              {"pcie", &m->pcie_bps, 1},
              {"hop", &m->topology.hop_seconds, 1}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    if (rf_options_given(q->o, rows[i].name))
      *rows[i].place = rf_options_float(q->o, rows[i].name) * rows[i].scale;
  if (rf_options_given(q->o, "hbm")) m->reserve_bytes = 0;
  if (rf_options_given(q->o, "peak"))
    for (int d = 0; d < RF_DTYPES; d++) m->flops[d] = rf_options_float(q->o, "peak");
  /* If the machine has no network but the user gives figures of a network, the network is a torus
   * with closed axes. */
  bool network = rf_options_given(q->o, "ici") || rf_options_given(q->o, "oneway");
  if (network && m->topology.form == RF_NETWORK_NONE) {
    m->topology.form = RF_NETWORK_TORUS;
    m->topology.axes = RF_TORUS_AXES;
    m->topology.wrap = RF_WRAP_ALWAYS;
  }
}

/* Notes the default sizes that the answer used, because its figures depend on them. */
static void note_defaults(rf_question *q) {
  static const char *const sizes[] = {"m", "k", "n", "seq"};
  char text[120] = "";
  for (int i = 0; i < rf_options_count(q->o) && i < 512; i++) {
    const char *name = rf_options_name(q->o, i);
    if (!(q->used[i / 64] >> i % 64 & 1) || rf_options_given(q->o, name)) continue;
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
      if (!strcmp(name, sizes[k]))
        rf_text_append(text, sizeof text, "%s--%s %lld", *text ? ", " : "", name,
                       (long long)rf_options_int(q->o, name));
  }
  if (*text) rf_fact_note(q, "default sizes: %s", text);
}

static void note_unused(rf_question *q) {
  static const char *const everywhere[] = {"json", "quiet", "verbose", "config", "on", "model", "dtype"};
  for (int i = 0; i < rf_options_count(q->o) && i < 512; i++) {
    const char *name = rf_options_name(q->o, i);
    bool general = q->used[i / 64] >> i % 64 & 1;
    for (size_t k = 0; k < sizeof everywhere / sizeof *everywhere && !general; k++)
      general = !strcmp(name, everywhere[k]);
    if (!general && rf_options_given(q->o, name)) {
      mark(q, name);
      rf_fact_note(q, "--%s is not used here", name);
    }
  }
}

static rf_status set_up(rf_question *q, rf_error *error) {
  const rf_options *o = q->o;
  RF_TRY(rf_machine_find(rf_options_text(o, "on"), &q->machine, error));
  replace_figures(q);
  if (rf_options_given(o, "price"))
    RF_TRY(rf_machine_set_price(&q->machine, rf_options_text(o, "price"), error));
  q->chips = rf_options_given(o, "chips") ? rf_options_float(o, "chips") : q->machine.chips;
  q->dtype = number_type(rf_options_text(o, "dtype"));
  q->weight =
      rf_options_is_set(o, "weight-dtype") ? number_type(rf_options_text(o, "weight-dtype")) : q->dtype;
  q->kv = rf_options_is_set(o, "kv-dtype") ? number_type(rf_options_text(o, "kv-dtype")) : q->dtype;
  snprintf(q->answer->machine, sizeof q->answer->machine, "%s%s%s", q->machine.name,
           q->machine.edition[0] ? "@" : "", q->machine.edition);
  if (!rf_options_is_set(o, "model")) return RAFTER_OK;
  RF_TRY(rf_model_resolve(rf_options_text(o, "model"), &q->model, NULL, error));
  q->pool = rf_pool_new();
  q->params = rf_model_params(&q->model, q->pool);
  q->has_model = true;
  return RAFTER_OK;
}

static const question_row *find_row(const char *op, rf_error *error) {
  const char *names[sizeof ROWS / sizeof *ROWS];
  char hint[320] = "one of ";
  int count = (int)(sizeof ROWS / sizeof *ROWS);
  for (int i = 0; i < count; i++) {
    names[i] = ROWS[i].name;
    rf_text_append(hint, sizeof hint, "%s%s", i ? ", " : "", names[i]);
    if (op && !strcmp(op, names[i])) return &ROWS[i];
  }
  const char *near = op ? rf_nearest(op, names, count) : NULL;
  RF_FAIL(error, RAFTER_INVALID, hint, "unknown operation '%.40s'%s%s%s", op ? op : "",
          near ? " (did you mean " : "", near ? near : "", near ? "?)" : "");
  return NULL;
}

/* The hint for the name of a model names the option for models. */
static rf_status extra_argument(const char *op, const char *text, rf_error *error) {
  bool model = rf_model_preset_source(text) || rf_model_preset_on_hub(text);
  char hint[200];
  snprintf(hint, sizeof hint, model ? "write --model %.100s" : "write options as --name value", text);
  return RF_FAIL(error, RAFTER_INVALID, hint, "%s takes no arguments (got '%.40s')", op, text);
}

rf_status rf_roofline_answer(const rf_options *options, rf_answer *answer, rf_error *error) {
  const question_row *row = find_row(rf_options_argument(options, 0), error);
  if (!row) return RAFTER_INVALID;
  memset(answer, 0, sizeof *answer);
  answer->op = row->name;
  rf_question *q = rf_must(calloc(1, sizeof *q));
  rf_status status;
  q->o = options;
  q->answer = answer;
  bool extra = rf_options_argument_count(options) > 1 && strcmp(row->name, "einsum");
  RF_GO(extra ? extra_argument(row->name, rf_options_argument(options, 1), error) : RAFTER_OK);
  RF_GO(set_up(q, error));
  RF_GO(row->answer(q, error));
  if (q->widened)
    rf_fact_note(q, "%s has no %s arithmetic; a wider dtype is used", q->machine.name, q->dtype.name);
  note_defaults(q);
  note_unused(q);
done:
  if (q->pool) rf_pool_free(q->pool);
  free(q);
  return status;
}
