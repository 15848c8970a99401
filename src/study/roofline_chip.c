/* roofline_chip.c - one operation on one chip: matmul, einsum, attention, transfer, critical batch.
 * The source is "How to Scale Your Model", chapter on rooflines. Let C be the FLOP/s and W the
 * bytes/s. A matmul is compute-bound if it has at least the number of rows that solves 2MKN/C =
 * bytes/W. */
#include "study/roofline_parts.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static double round_up(double n, double unit) { return ceil(n / unit) * unit; }

/* Sets *tokens to the minimum number of tokens with which a product is compute-bound. The product
 * has long dimensions and reads its weight once. */
static rf_status asymptotic_batch(rf_question *q, const char *link, double *tokens, rf_error *error) {
  double peak, bps, experts, used;
  RF_TRY(rf_experts(q, &experts, &used, error));
  rf_asked(q, "weight-dtype");
  RF_TRY(rf_peak(q, &peak, error));
  RF_TRY(rf_link_bps(q, link, &bps, error));
  /* a token that uses k of E experts uses the fraction k/E of the weights */
  *tokens = peak / bps * q->weight.bytes / 2 * (experts > 0 && used > 0 ? experts / used : 1);
  return RAFTER_OK;
}

/* ---- matmul ---------------------------------------------------------------------------------- */

/* A matmul with k sharded over several chips. Chips can gather the weight (or the input) and
 * compute the full product. Chips can also multiply their shards and reduce the outputs. */
static rf_status split_matmul(rf_question *q, double m, double k, double n, double peak, rf_error *error) {
  rf_group group;
  RF_TRY(rf_asked_group(q, &group, error));
  double chips = group.chips, flops = 2 * m * k * n, output = m * n * q->dtype.bytes,
         input = m * k * q->dtype.bytes, weight = k * n * q->weight.bytes;
  double reduce = rf_collective_seconds(&group, RF_ALL_REDUCE, output, true, NULL);
  double scatter = rf_collective_seconds(&group, RF_REDUCE_SCATTER, output, true, NULL);
  double gather = rf_collective_seconds(&group, RF_ALL_GATHER, weight, true, NULL),
         gather_input = rf_collective_seconds(&group, RF_ALL_GATHER, input, true, NULL);
  double whole = flops / peak, part = whole / chips;
  bool hidden = part >= reduce;
  rf_fact_head(q, flops, output, fmax(part, reduce), hidden ? "compute" : "network", k * reduce / part);
  rf_add_number(q, "group_chips", "chips that share k", chips);
  rf_add_seconds(q, "compute_seconds", "arithmetic on each chip", part);
  rf_add_seconds(q, "compute_seconds_whole", "arithmetic on one chip", whole);
  rf_add_seconds(q, "allreduce_seconds", "all-reduce of the output", reduce);
  rf_add_seconds(q, "reducescatter_seconds", "reduce-scatter of the output", scatter);
  rf_add_seconds(q, "allgather_seconds", "all-gather of the weight", gather);
  rf_add_seconds(q, "allgather_input_seconds", "all-gather of the input", gather_input);
  rf_add_number(q, "gather_to_scatter", "bytes of the input's gather per byte of the output's scatter",
                input / output);
  /* Each time is linear in k or m, so one division gives the minimum size. */
  rf_fact_add(q, "reduce_hidden_k", "minimum k for arithmetic to hide the all-reduce", RF_UNIT_MINIMUM,
              k * reduce / part);
  rf_fact_add(q, "gather_hidden_m", "minimum m for arithmetic to hide the weight's gather", RF_UNIT_MINIMUM,
              m * gather / whole);
  rf_fact_add(q, "reduce_faster_k", "minimum k for reducing to be faster than a compute-bound gather",
              RF_UNIT_MINIMUM, k * reduce / whole);
  rf_fact_text(q, "faster", "faster way", fmax(whole, gather) <= fmax(part, reduce) ? "gather" : "reduce");
  return RAFTER_OK;
}

rf_status rf_roofline_matmul(rf_question *q, rf_error *error) {
  double m = rf_value(q, "m"), k = rf_value(q, "k"), n = rf_value(q, "n"), peak, bps, asymptote;
  const char *link = rf_word(q, "link");
  bool batched = rf_flag(q, "batched");
  link = link ? link : "hbm";
  rf_asked(q, "weight-dtype");
  RF_TRY(rf_peak(q, &peak, error));
  if (rf_word(q, "split")) return split_matmul(q, m, k, n, peak, error);
  RF_TRY(rf_link_bps(q, link, &bps, error));
  RF_TRY(asymptotic_batch(q, link, &asymptote, error));
  double a = q->dtype.bytes, w = q->weight.bytes, spare = 2 * k * n / peak - a * (k + n) / bps;
  double critical_m = !batched && spare > 0 ? k * n * w / bps / spare : NAN;
  RF_TRY(rf_fact_roofline(q, 2 * m * k * n, a * m * k + w * k * n * (batched ? m : 1) + a * m * n, link,
                          batched ? NAN : asymptote, error));
  rf_fact_add(q, "critical_m", "minimum m to be compute-bound", RF_UNIT_MINIMUM, critical_m);
  rf_fact_add(q, "critical_m_long", "critical m for large k and n", RF_UNIT_MINIMUM,
              batched ? NAN : asymptote);
  if (batched) rf_fact_note(q, "every row has its own weight, so the product is never compute-bound");
  const int *tile = q->machine.tile;
  if (tile[0]) {
    double padded = round_up(m, tile[0]) * round_up(k, tile[1]) * round_up(n, tile[1]);
    rf_fact_add(q, "tile_utilisation", "used fraction of the matrix unit's tiles", RF_UNIT_PERCENT,
                m * k * n / padded);
  }
  return RAFTER_OK;
}

/* ---- einsum ---------------------------------------------------------------------------------- */

enum { OPERANDS_MAX = 4, LETTERS = 128 };
typedef struct einsum {
  int operands;
  /* letters of each operand; the entry after the last operand is for the output */
  bool in[OPERANDS_MAX + 1][LETTERS];
  double size[LETTERS]; /* size of each letter; 0: unused letter; -1: unknown size */
} einsum;

static const char EINSUM_HINT[] = "for example `rafter roofline einsum \"bd,df->bf\" b=64,d=1024,f=4096`";

static rf_status parse_expression(const char *text, einsum *e, rf_error *error) {
  int at = 0;
  bool output = false;
  for (const char *c = text; *c; c++) {
    if (*c == ' ') continue;
    if (*c == ',' && !output) {
      if (++at >= OPERANDS_MAX)
        return RF_FAIL(error, RAFTER_INVALID, EINSUM_HINT, "an einsum has at most %d operands ('%.40s')",
                       OPERANDS_MAX, text);
      continue;
    }
    if (c[0] == '-' && c[1] == '>' && !output) {
      e->operands = at + 1;
      output = true;
      at = OPERANDS_MAX;
      c++;
      continue;
    }
    if (!isalpha((unsigned char)*c) || e->in[at][(int)*c])
      return RF_FAIL(error, RAFTER_INVALID, EINSUM_HINT,
                     "'%.40s' is not an einsum (expected letters, each once per operand, got '%.1s')", text,
                     c);
    e->in[at][(int)*c] = true;
    e->size[(int)*c] = -1;
    bool known = !output;
    for (int i = 0; i < e->operands; i++) known |= e->in[i][(int)*c];
    if (!known)
      return RF_FAIL(error, RAFTER_INVALID, EINSUM_HINT,
                     "the output of '%.40s' has a letter that no operand has (%c)", text, *c);
  }
  bool letters = false;
  for (const char *c = text; *c; c++) letters |= isalpha((unsigned char)*c) != 0;
  return output && letters ? RAFTER_OK
                           : RF_FAIL(error, RAFTER_INVALID, EINSUM_HINT,
                                     "'%.40s' is not an einsum (expected OPERANDS->OUTPUT)", text);
}

static rf_status parse_sizes(const rf_question *q, einsum *e, rf_error *error) {
  for (int i = 2; i < rf_options_argument_count(q->o); i++)
    for (const char *at = rf_options_argument(q->o, i); *at;) {
      char word[32] = "";
      int64_t size;
      size_t length = strcspn(at, ",");
      if (length < sizeof word) memcpy(word, at, length);
      if (!isalpha((unsigned char)word[0]) || word[1] != '=' ||
          rf_parse_count(word + 2, &size, NULL) != RAFTER_OK || size < 1 || size > (int64_t)1e15)
        return RF_FAIL(error, RAFTER_INVALID, EINSUM_HINT,
                       "'%.40s' is not a size (expected LETTER=NUMBER, at least 1)", at);
      if (e->size[(int)word[0]] == 0)
        return RF_FAIL(error, RAFTER_INVALID, EINSUM_HINT, "the einsum has no letter %c", word[0]);
      e->size[(int)word[0]] = (double)size;
      at += length + (at[length] == ',');
    }
  for (int c = 0; c < LETTERS; c++)
    if (e->size[c] < 0)
      return RF_FAIL(error, RAFTER_INVALID, EINSUM_HINT, "the einsum has no size for %c", c);
  return RAFTER_OK;
}

/* Returns the number of elements of an operand. Sets *rank to the number of letters of the
 * operand. */
static double elements(const einsum *e, const bool *in, int *rank) {
  double product = 1;
  *rank = 0;
  for (int c = 0; c < LETTERS; c++)
    if (in[c]) {
      product *= e->size[c];
      ++*rank;
    }
  return product;
}

rf_status rf_roofline_einsum(rf_question *q, rf_error *error) {
  einsum e = {0};
  const char *text = rf_options_argument(q->o, 1);
  if (!text) return RF_FAIL(error, RAFTER_INVALID, EINSUM_HINT, "the einsum is missing");
  RF_TRY(parse_expression(text, &e, error));
  RF_TRY(parse_sizes(q, &e, error));
  double all = 1, bytes = 0, longest_bytes = 0, out, asymptote;
  int letters = 0, longest = 0, rank, rows = 0;
  for (int c = 0; c < LETTERS; c++)
    if (e.size[c] > 0) {
      all *= e.size[c];
      letters++;
      rows += e.in[0][c] && e.in[OPERANDS_MAX][c] && !e.in[1][c];
    }
  out = elements(&e, e.in[OPERANDS_MAX], &rank);
  for (int i = 0; i <= OPERANDS_MAX; i++) {
    if (i >= e.operands && i < OPERANDS_MAX) continue;
    double part = elements(&e, e.in[i], &rank) * (i == 1 ? q->weight.bytes : q->dtype.bytes) / 1;
    if (rank > longest) {
      longest = rank;
      longest_bytes = 0;
    }
    if (rank == longest) longest_bytes += part;
    bytes += part;
  }
  /* Textbooks count an addition of the first value of a sum to 0. `exact` does not count this
   * addition. */
  bool sums = out < all;
  double exact = (e.operands - 1) * all + (all - out),
         flops = sums && e.operands > 1 ? e.operands * all : exact;
  bool batch = e.operands == 2 && rows && letters > longest; /* operand 2 lacks some letters */
  RF_TRY(asymptotic_batch(q, "hbm", &asymptote, error));
  RF_TRY(rf_fact_roofline(q, flops, bytes, "hbm", batch ? asymptote : NAN, error));
  rf_add_flops(q, "flops_exact", "arithmetic with exact additions", exact);
  rf_add_number(q, "intensity_exact", "FLOP per byte, counted exactly", exact / bytes);
  rf_add_number(q, "intensity_limit", "FLOP per byte when all sizes grow together",
                letters > longest ? INFINITY : flops / longest_bytes);
  return RAFTER_OK;
}

/* ---- attention ------------------------------------------------------------------------------- */

/* Returns the number of (query, key) pairs under the mask. With T queries and S keys, query i (from
 * 0) sees the first S - T + i + 1 keys. */
static double seen(double queries, double keys, double window, bool causal) {
  if (!causal) return queries * (window > 0 ? fmin(window, keys) : keys);
  /* numbers of keys that the first and the last query see */
  double first = keys - queries + 1, last = keys;
  if (window <= 0 || window >= last) return queries * (first + last) / 2;
  if (window <= first) return queries * window;
  double rising = window - first; /* number of queries that see fewer keys than a window */
  return rising * (first + window - 1) / 2 + (queries - rising) * window;
}

rf_status rf_roofline_attention(rf_question *q, rf_error *error) {
  double batch = rf_value(q, "batch"), queries = rf_value(q, "seq"),
         keys = rf_value_or(q, "context", queries), heads = rf_value(q, "heads");
  double kv_heads = rf_value_or(q, "kv-heads", heads), dim = rf_value(q, "head-dim"),
         window = rf_value_or(q, "window", 0), peak, bps;
  bool causal = !rf_flag(q, "non-causal");
  if (fmod(heads, kv_heads) != 0)
    return RF_FAIL(error, RAFTER_INVALID, "choose --kv-heads that divide --heads",
                   "attention needs whole groups of heads (expected a divisor of %g, got %g kv heads)", heads,
                   kv_heads);
  if (causal && keys < queries)
    return RF_FAIL(error, RAFTER_INVALID, "--context includes the queries; --non-causal lifts the limit",
                   "causal attention needs a key for every query (--context: expected at least %g, got %g)",
                   queries, keys);
  double per_pair = 4 * batch * heads * dim,
         read = window > 0 && causal ? fmin(keys, queries + window - 1) : keys;
  double bytes =
      q->dtype.bytes * batch * 2 * queries * heads * dim + q->kv.bytes * batch * 2 * read * kv_heads * dim;
  if (rf_asked(q, "kv-dtype")) rf_fact_note(q, "keys and values in %s", q->kv.name);
  RF_TRY(rf_peak(q, &peak, error));
  RF_TRY(rf_link_bps(q, "hbm", &bps, error));
  RF_TRY(
      rf_fact_roofline(q, per_pair * seen(queries, keys, window, causal), bytes, "hbm", peak / bps, error));
  rf_add_flops(q, "flops_full", "arithmetic without the causal mask", per_pair * queries * keys);
  rf_add_number(q, "group", "query heads that share a key", heads / kv_heads);
  rf_add_bytes(q, "kv_bytes", "keys and values read", q->kv.bytes * batch * 2 * read * kv_heads * dim);
  rf_fact_note(q, causal ? "causal: a query sees its own key and the keys before it"
                         : "not causal: every query sees every key");
  return RAFTER_OK;
}

/* ---- transfer, critical batch ---------------------------------------------------------------- */

rf_status rf_roofline_transfer(rf_question *q, rf_error *error) {
  const char *link = rf_word(q, "link");
  double bytes, bps, wait;
  link = link ? link : "hbm";
  RF_TRY(rf_asked_bytes(q, &bytes, error));
  RF_TRY(rf_link_bps(q, link, &bps, error));
  bool ici = !strcmp(link, "ici");
  /* the bandwidth is that of a single link, in one direction */
  if (ici && q->machine.topology.form == RF_NETWORK_TORUS) bps /= 2;
  wait = ici ? rf_value_or(q, "hop", q->machine.topology.hop_seconds) : 0;
  double through = bytes / bps / rf_value_or(q, "chips", q->chips);
  rf_fact_head(q, 0, bytes, fmax(through, wait),
               through < wait                                  ? "latency"
               : !strcmp(link, "hbm") || !strcmp(link, "vmem") ? "memory"
                                                               : "network",
               wait > 0 ? bps * wait : NAN);
  rf_fact_add(q, "bytes_per_second", "bandwidth of a chip", RF_UNIT_BPS, bps);
  rf_add_number(q, "chips", "chips that share the transfer", q->chips);
  return RAFTER_OK;
}

rf_status rf_roofline_critical_batch(rf_question *q, rf_error *error) {
  const char *link = rf_word(q, "link");
  double tokens, peak, bps, other;
  link = link ? link : "hbm";
  RF_TRY(asymptotic_batch(q, link, &tokens, error));
  RF_TRY(rf_peak(q, &peak, error));
  RF_TRY(rf_link_bps(q, link, &bps, error));
  rf_fact_head(q, NAN, NAN, NAN, "", tokens);
  rf_fact_add(q, "critical_batch", "minimum tokens to be compute-bound", RF_UNIT_MINIMUM, tokens);
  rf_add_number(q, "critical_intensity", "minimum FLOP per byte to be compute-bound", peak / bps);
  if (rf_link_bps(q, "ici", &other, NULL) == RAFTER_OK)
    rf_add_number(q, "critical_ici", "FLOP per byte over one axis of the network", peak / other);
  if (rf_link_bps(q, "dcn", &other, NULL) == RAFTER_OK)
    rf_add_number(q, "critical_dcn", "FLOP per byte over the data-centre network", peak / other);
  return RAFTER_OK;
}
