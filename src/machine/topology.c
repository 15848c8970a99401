/* topology.c - reads the figures of the network between chips from a machine file. The file also
 * parses the shape that a user appends to a machine's name. */
#include "machine/parts.h"

#include "base/text.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const FORM[] = {"none", "torus", "switch"}, *const WRAP[] = {"never", "full16",
                                                                                "multiple-of-4", "always"};

/* ---- fields ---------------------------------------------------------------------------------- */

static rf_status choice(const json_t *object, const char *key, const char *const *names, int count,
                        int *value, const char *where, rf_error *error) {
  char text[24] = "";
  RF_TRY(rf_machine_text(object, key, false, text, sizeof text, where, error));
  if (!text[0]) return RAFTER_OK;
  for (int i = 0; i < count; i++)
    if (!strcmp(text, names[i])) return *value = i, RAFTER_OK;
  char known[96] = "";
  for (int i = 0; i < count; i++) rf_text_append(known, sizeof known, "%s%s", i ? ", " : "", names[i]);
  return RF_FAIL(error, RAFTER_FAILED, RF_MACHINE_HINT, "%s: unknown %s (expected one of %s, got '%s')",
                 where, key, known, text);
}

static rf_status whole(const json_t *object, const char *key, int64_t least, int64_t most, int64_t *value,
                       const char *where, rf_error *error) {
  return rf_json_int_or(object, key, where, least, most, *value, value, error);
}

/* Reads a list of integers into `out`. The list has at most `capacity` entries. Sets *count to the
 * length of the list. */
static rf_status numbers(const json_t *object, const char *key, int capacity, int *out, int *count,
                         const char *where, rf_error *error) {
  const json_t *list = json_object_get(object, key);
  *count = 0;
  if (!list) return RAFTER_OK;
  if (!json_is_array(list) || json_array_size(list) > (size_t)capacity)
    return RF_FAIL(error, RAFTER_FAILED, RF_MACHINE_HINT, "%s: %s is not a list of at most %d numbers", where,
                   key, capacity);
  for (size_t i = 0; i < json_array_size(list); i++) {
    const json_t *item = json_array_get(list, i);
    json_int_t value = json_integer_value(item);
    if (!json_is_integer(item) || value < 1 || value > RF_NETWORK_AXES_MAX)
      return RF_FAIL(error, RAFTER_FAILED, RF_MACHINE_HINT, "%s: %s[%zu] is not a whole number from 1 to %d",
                     where, key, i, RF_NETWORK_AXES_MAX);
    out[(*count)++] = (int)value;
  }
  return RAFTER_OK;
}

static rf_status object_or_nothing(const json_t *object, const char *key, const json_t **value,
                                   const char *where, rf_error *error) {
  *value = json_object_get(object, key);
  if (!*value || json_is_object(*value)) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_FAILED, RF_MACHINE_HINT, "%s: %s is not an object", where, key);
}

static rf_status parse_topology(const json_t *object, const char *where, rf_topology *t, rf_error *error) {
  int form = RF_NETWORK_NONE, wrap = RF_WRAP_NEVER, pod_axes = 0;
  int64_t axes = 0, domain = 0, host = 0;
  RF_TRY(choice(object, "form", FORM, 3, &form, where, error));
  RF_TRY(choice(object, "wrap", WRAP, 4, &wrap, where, error));
  t->form = (rf_network_form)form;
  t->wrap = (rf_wrap)wrap;
  RF_TRY(whole(object, "axes", 0, RF_TORUS_AXES, &axes, where, error));
  RF_TRY(whole(object, "domain", 0, RF_NETWORK_AXES_MAX, &domain, where, error));
  RF_TRY(whole(object, "host_chips", 0, 4096, &host, where, error));
  RF_TRY(whole(object, "pod_chips", 0, (int64_t)1 << 40, &t->pod_chips, where, error));
  RF_TRY(whole(object, "job_chips", 0, (int64_t)1 << 40, &t->job_chips, where, error));
  RF_TRY(numbers(object, "pod", RF_TORUS_AXES, t->pod, &pod_axes, where, error));
  t->axes = (int)axes;
  t->domain = (int)domain;
  t->host_chips = (int)host;
  RF_TRY(rf_machine_number(object, "oneway_bps", 0, 1e18, &t->oneway_bps, where, error));
  RF_TRY(rf_machine_number(object, "hop_seconds", 0, 10, &t->hop_seconds, where, error));
  RF_TRY(rf_machine_number(object, "node_hop_seconds", 0, 10, &t->node_hop_seconds, where, error));
  RF_TRY(rf_machine_number(object, "fraction", 0.01, 1, &t->fraction, where, error));
  RF_TRY(rf_machine_number(object, "node_bps", 0, 1e18, &t->node_bps, where, error));
  RF_TRY(rf_machine_number(object, "die_bps", 0, 1e18, &t->die_bps, where, error));
  bool torus = t->form == RF_NETWORK_TORUS;
  if (t->form == RF_NETWORK_NONE) return *t = (rf_topology){.fraction = 1}, RAFTER_OK;
  if (pod_axes && pod_axes != t->axes)
    return RF_FAIL(error, RAFTER_FAILED, RF_MACHINE_HINT,
                   "%s: pod has another number of axes (expected %d, got %d)", where, t->axes, pod_axes);
  if ((torus && t->axes < 1) || (t->form == RF_NETWORK_SWITCH && t->domain < 1) ||
      (t->form && t->oneway_bps <= 0))
    return RF_FAIL(error, RAFTER_FAILED, RF_MACHINE_HINT,
                   "%s: a topology needs its size and its bandwidth (expected %s and oneway_bps)", where,
                   torus ? "axes" : "domain");
  return RAFTER_OK;
}

static rf_status parse_prices(const json_t *object, const char *where, rf_machine *machine, rf_error *error) {
  const json_t *list = json_object_get(object, "prices");
  if (list && (!json_is_array(list) || json_array_size(list) > RF_PRICE_TIERS))
    return RF_FAIL(error, RAFTER_FAILED, RF_MACHINE_HINT, "%s: prices is not a list of at most %d tiers",
                   where, RF_PRICE_TIERS);
  for (size_t i = 0; i < json_array_size(list); i++) {
    rf_price *price = &machine->price[machine->price_count++];
    const json_t *row = json_array_get(list, i);
    RF_TRY(rf_machine_text(row, "tier", true, price->tier, sizeof price->tier, where, error));
    RF_TRY(rf_machine_text(row, "date", false, price->date, sizeof price->date, where, error));
    RF_TRY(rf_json_float(row, "usd_per_chip_hour", where, 0, 1e6, &price->usd_per_chip_hour, error));
    RF_TRY(rf_machine_text(row, "source", false, price->source, sizeof price->source, where, error));
    if (!json_object_get(object, "usd_per_chip_hour") && !strcmp(price->tier, "list"))
      machine->usd_per_chip_hour = price->usd_per_chip_hour;
  }
  if (machine->usd_per_chip_hour > 0) strcpy(machine->price_tier, "list");
  return RAFTER_OK;
}

const char *rf_machine_prices_text(const rf_machine *machine, char text[200]) {
  text[0] = 0;
  for (int i = 0; i < machine->price_count; i++)
    rf_text_append(text, 200, "%s%s %.2f", i ? ", " : "", machine->price[i].tier,
                   machine->price[i].usd_per_chip_hour);
  return text;
}

rf_status rf_machine_set_price(rf_machine *machine, const char *text, rf_error *error) {
  const double least = 1e-6, most = 1e6;
  double usd;
  char known[200];
  for (int i = 0; i < machine->price_count; i++) {
    if (strcmp(machine->price[i].tier, text)) continue;
    machine->usd_per_chip_hour = machine->price[i].usd_per_chip_hour;
    strcpy(machine->price_tier, machine->price[i].tier);
    return RAFTER_OK;
  }
  /* A machine file with only one price has no list of tiers. */
  if (!strcmp(text, "list") && !strcmp(machine->price_tier, "list")) return RAFTER_OK;
  if (rf_text_float(text, &usd)) {
    if (!(usd >= least && usd <= most))
      return RF_FAIL(error, RAFTER_INVALID, "give the price of a chip per hour in USD",
                     "--price is out of range (expected %g to %g USD, got %.40s)", least, most, text);
    machine->usd_per_chip_hour = usd;
    strcpy(machine->price_tier, "given");
    return RAFTER_OK;
  }
  if (!rf_machine_prices_text(machine, known)[0])
    return RF_FAIL(
        error, RAFTER_INVALID, "give USD per chip and hour, for example --price 1.20",
        "no price of %s is known, and '%.40s' is not an amount (--price: expected USD per chip-hour)",
        machine->name, text);
  return RF_FAIL(
      error, RAFTER_INVALID,
      "choose one of these prices, or give USD per chip and hour, for example --price 1.20",
      "no price '%.40s' of %s is known: the data sheet has %s USD (--price: expected a price of the "
      "data sheet, or an amount)",
      text, machine->name, known);
}

rf_status rf_machine_parse_network(const json_t *object, const char *where, rf_machine *m, rf_error *error) {
  const json_t *topology, *dcn;
  int64_t devices = 1;
  int tiles = 0;
  char shape[64] = "";
  m->topology.fraction = 1;
  RF_TRY(object_or_nothing(object, "topology", &topology, where, error));
  RF_TRY(object_or_nothing(object, "dcn", &dcn, where, error));
  if (topology) RF_TRY(parse_topology(topology, where, &m->topology, error));
  if (dcn) {
    RF_TRY(rf_machine_number(dcn, "chip_bps", 0, 1e18, &m->dcn_bps, where, error));
    RF_TRY(rf_machine_number(dcn, "hop_seconds", 0, 10, &m->dcn_hop_seconds, where, error));
  }
  RF_TRY(rf_machine_number(object, "vmem_bytes", 0, 1e16, &m->vmem_bytes, where, error));
  RF_TRY(rf_machine_number(object, "vmem_bps", 0, 1e18, &m->vmem_bps, where, error));
  RF_TRY(rf_machine_number(object, "pcie_bps", 0, 1e18, &m->pcie_bps, where, error));
  RF_TRY(rf_machine_number(object, "host_bytes", 0, 1e18, &m->host_bytes, where, error));
  RF_TRY(whole(object, "devices_per_chip", 1, 2, &devices, where, error));
  m->devices_per_chip = (int)devices;
  RF_TRY(numbers(object, "tile", 2, m->tile, &tiles, where, error));
  RF_TRY(parse_prices(object, where, m, error));
  RF_TRY(rf_machine_text(object, "edition", false, m->edition, sizeof m->edition, where, error));
  RF_TRY(rf_machine_text(object, "shape", false, shape, sizeof shape, where, error));
  return shape[0] ? rf_machine_set_shape(m, shape, error) : RAFTER_OK;
}

static void set_if(json_t *object, const char *key, double value) {
  if (value > 0) json_object_set_new(object, key, json_real(value));
}

static void set_whole(json_t *object, const char *key, int64_t value) {
  if (value > 0) json_object_set_new(object, key, json_integer(value));
}

/* Appends the shape in the form that --on accepts. */
static void put_shape(const rf_machine *m, char *text, size_t capacity) {
  if (m->topology.form == RF_NETWORK_SWITCH && m->shape_rank == 2)
    rf_text_append(text, capacity, "%dx%d", m->shape[1], m->shape[0]);
  else
    for (int i = 0; i < m->shape_rank; i++) rf_text_append(text, capacity, "%s%d", i ? "x" : "", m->shape[i]);
  if (m->slices > 1) rf_text_append(text, capacity, "*%d", m->slices);
}

const char *rf_machine_chips_text(const rf_machine *m, char text[120]) {
  const char *unit = m->by_device ? "devices" : "chips";
  int per = m->by_device ? 2 : 1;
  text[0] = 0;
  if (m->topology.form == RF_NETWORK_SWITCH && m->shape_rank) {
    int nodes = m->shape_rank > 1 ? m->shape[1] : 1;
    rf_text_append(text, 120, "%d node%s of %d %s", nodes, rf_plural(nodes), m->shape[0], unit);
    return text;
  }
  if (m->slices > 1) rf_text_append(text, 120, "%d slices of ", m->slices);
  rf_text_append(text, 120, "%d %s", m->chips / (m->slices > 1 ? m->slices : 1), unit);
  if (m->shape_rank > 1) {
    rf_machine one = *m;
    one.slices = 1;
    rf_text_append(text, 120, " (");
    put_shape(&one, text, 120);
    rf_text_append(text, 120, "%s)", per > 1 ? " chips of two devices" : "");
  } else if (per > 1) rf_text_append(text, 120, ", two per chip");
  return text;
}

bool rf_machine_odd_node(const rf_machine *m, char text[200]) {
  const rf_topology *t = &m->topology;
  text[0] = 0;
  if (t->form != RF_NETWORK_SWITCH || m->shape_rank < 2 || m->shape[0] == t->domain) return false;
  snprintf(text, 200, "%s is planned with %d chips per node, but its data sheet has nodes of %d chips",
           m->name, m->shape[0], t->domain);
  return true;
}

void rf_machine_network_json(const rf_machine *m, json_t *object) {
  const rf_topology *t = &m->topology;
  if (t->form) {
    json_t *topology = json_pack("{ss ss}", "form", FORM[t->form], "wrap", WRAP[t->wrap]),
           *pod = json_array();
    for (int i = 0; i < t->axes && t->pod[i]; i++) json_array_append_new(pod, json_integer(t->pod[i]));
    set_whole(topology, "axes", t->axes);
    set_whole(topology, "domain", t->domain);
    set_whole(topology, "host_chips", t->host_chips);
    set_whole(topology, "pod_chips", t->pod_chips);
    set_whole(topology, "job_chips", t->job_chips);
    set_if(topology, "oneway_bps", t->oneway_bps);
    set_if(topology, "hop_seconds", t->hop_seconds);
    set_if(topology, "node_hop_seconds", t->node_hop_seconds);
    set_if(topology, "fraction", t->fraction);
    set_if(topology, "node_bps", t->node_bps);
    set_if(topology, "die_bps", t->die_bps);
    if (json_array_size(pod)) json_object_set(topology, "pod", pod);
    json_decref(pod);
    json_object_set_new(object, "topology", topology);
  }
  if (m->dcn_bps > 0) {
    json_t *dcn = json_pack("{sf}", "chip_bps", m->dcn_bps);
    set_if(dcn, "hop_seconds", m->dcn_hop_seconds);
    json_object_set_new(object, "dcn", dcn);
  }
  set_if(object, "vmem_bytes", m->vmem_bytes);
  set_if(object, "vmem_bps", m->vmem_bps);
  set_if(object, "pcie_bps", m->pcie_bps);
  set_if(object, "host_bytes", m->host_bytes);
  if (m->devices_per_chip > 1) set_whole(object, "devices_per_chip", m->devices_per_chip);
  if (m->tile[0]) json_object_set_new(object, "tile", json_pack("[ii]", m->tile[0], m->tile[1]));
  if (m->edition[0]) json_object_set_new(object, "edition", json_string(m->edition));
  json_t *prices = json_array();
  for (int i = 0; i < m->price_count; i++)
    json_array_append_new(prices, json_pack("{ss ss ss sf}", "tier", m->price[i].tier, "date",
                                            m->price[i].date, "source", m->price[i].source,
                                            "usd_per_chip_hour", m->price[i].usd_per_chip_hour));
  if (json_array_size(prices)) json_object_set(object, "prices", prices);
  json_decref(prices);
  if (!m->shape_rank && m->slices < 2) return;
  char shape[64] = "";
  put_shape(m, shape, sizeof shape);
  json_object_set_new(object, "shape", json_string(shape));
}

/* ---- shapes ---------------------------------------------------------------------------------- */

static const char SHAPES[] = "write the chips along each axis, tpu-v5e:4x4 or tpu-v5p:8x8x16*2 (two such "
                             "slices), or nodes x chips per node: h100-sxm:4x8 has 4 nodes of 8 chips";

bool rf_machine_wraps(const rf_machine *machine, int extent) {
  rf_wrap rule = machine->topology.wrap;
  return extent > 1 && (rule == RF_WRAP_ALWAYS || (rule == RF_WRAP_FULL16 && extent == 16) ||
                        (rule == RF_WRAP_MULTIPLE_OF_4 && extent % 4 == 0));
}

/* Reads the integer at *at, and moves *at to the character after it. */
static bool take_number(const char **at, int *value) {
  char *end;
  if (**at < '0' || **at > '9') return false;
  unsigned long long number = strtoull(*at, &end, 10);
  if (number < 1 || number > RF_NETWORK_AXES_MAX) return false;
  *value = (int)number;
  *at = end;
  return true;
}

static int descending(const void *a, const void *b) { return *(const int *)b - *(const int *)a; }

rf_status rf_machine_check_pod(const rf_machine *m, const int *shape, int rank, const char *what,
                               const char *hint, rf_error *error) {
  const rf_topology *t = &m->topology;
  int have[RF_TORUS_AXES], want[RF_TORUS_AXES] = {0};
  char limit[48] = "";
  int64_t chips = 1;
  for (int i = 0; i < rank; i++) {
    want[i] = shape[i];
    chips *= shape[i];
  }
  if (t->pod_chips && chips > t->pod_chips)
    return RF_FAIL(error, RAFTER_INVALID, hint,
                   "%s has more chips than a pod of %s (expected at most %lld, got %lld)", what, m->name,
                   (long long)t->pod_chips, (long long)chips);
  if (!t->pod[0]) return RAFTER_OK;
  if (rank > t->axes)
    return RF_FAIL(error, RAFTER_INVALID, hint,
                   "%s has more axes than the network of %s (expected at most %d, got %d)", what, m->name,
                   t->axes, rank);
  for (int i = 0; i < t->axes; i++) {
    have[i] = t->pod[i];
    rf_text_append(limit, sizeof limit, "%s%d", i ? "x" : "", t->pod[i]);
  }
  qsort(have, (size_t)t->axes, sizeof *have, descending);
  qsort(want, (size_t)rank, sizeof *want, descending);
  for (int i = 0; i < rank; i++)
    if (want[i] > have[i])
      return RF_FAIL(error, RAFTER_INVALID, hint,
                     "%s does not fit a pod of %s (expected axes within %s, got %d)", what, m->name, limit,
                     want[i]);
  return RAFTER_OK;
}

/* Changes a shape from the order of users to the order of rf_machine.shape, which is chips of a
 * node, then nodes. Users write the number of nodes first, as Slurm, torchrun and NCCL do. A shape
 * with only one number is a number of chips. */
static rf_status nodes_of(const rf_machine *m, const char *text, int shape[RF_TORUS_AXES], int *rank,
                          rf_error *error) {
  const rf_topology *t = &m->topology;
  int chips = shape[*rank > 1], nodes = *rank > 1 ? shape[0] : 1;
  if (*rank == 1 && chips > t->domain) {
    if (chips % t->domain)
      return RF_FAIL(
          error, RAFTER_INVALID, SHAPES,
          "a node of %s joins at most %d chips (--on: expected one node, or several full nodes, got '%.60s')",
          m->name, t->domain, text);
    nodes = chips / t->domain;
    chips = t->domain;
    *rank = 2;
  }
  if (nodes > 1 && t->node_bps <= 0)
    return RF_FAIL(error, RAFTER_INVALID, "stay within one node",
                   "%s has no figure for the network between nodes (--on: expected one node, got %d)",
                   m->name, nodes);
  shape[0] = chips;
  shape[1] = *rank > 1 ? nodes : 0;
  return RAFTER_OK;
}

/* Writes a hint for a shape that no pod has. The hint is the shape with the same number of chips
 * that is closest to a square. */
static void suggest(const rf_machine *m, const int *shape, int rank, char *hint, size_t capacity) {
  char best[80];
  int64_t chips = 1, found = 1;
  for (int i = 0; i < rank; i++) chips *= shape[i];
  rf_machine_shape_for(m, chips, best, sizeof best);
  for (char *at = best; *at;)
    if (isdigit((unsigned char)*at)) found *= strtoll(at, &at, 10);
    else at++;
  if (*best && found == chips)
    snprintf(hint, capacity, "for %lld chips, write %.60s%s", (long long)chips, m->name, best);
  else snprintf(hint, capacity, "write *2 after the shape for two slices");
}

rf_status rf_machine_set_shape(rf_machine *m, const char *text, rf_error *error) {
  const rf_topology *t = &m->topology;
  const char *at = text;
  int shape[RF_TORUS_AXES] = {0}, rank = 0, slices = 1, most = t->form == RF_NETWORK_TORUS ? t->axes : 2;
  bool fits = *text != 0;
  while (*at && *at != '*' && (fits = rank < RF_TORUS_AXES && take_number(&at, &shape[rank]))) {
    rank++;
    if (*at != 'x') break;
    fits = at[1] >= '0' && at[1] <= '9';
    at++;
    if (!fits) break;
  }
  if (fits && *at == '*') {
    at++;
    fits = take_number(&at, &slices);
  }
  if (!fits || *at)
    return RF_FAIL(error, RAFTER_INVALID, SHAPES,
                   "'%.60s' is not a shape (expected whole numbers from 1 to %d joined by x)", text,
                   RF_NETWORK_AXES_MAX);
  if (rank && t->form == RF_NETWORK_NONE)
    return RF_FAIL(error, RAFTER_INVALID, "plan for one chip, or for a machine of machines.json",
                   "%s has no network (--on: expected no shape, got ':%.60s')", m->name, text);
  if (rank > most)
    return RF_FAIL(error, RAFTER_INVALID, SHAPES,
                   "%s has %d %s (expected at most %d numbers, got %d in '%.60s')", m->name, most,
                   t->form == RF_NETWORK_TORUS ? "axes" : "levels, the nodes and the chips per node", most,
                   rank, text);
  if (slices > 1 && m->dcn_bps <= 0)
    return RF_FAIL(error, RAFTER_INVALID, "leave out *SLICES",
                   "%s has no figure for the network between slices (--on: got '*%d')", m->name, slices);
  if (t->form == RF_NETWORK_SWITCH) {
    RF_TRY(nodes_of(m, text, shape, &rank, error));
  } else {
    char what[128], hint[160];
    snprintf(what, sizeof what, "%.60s:%.40s", m->name, text);
    suggest(m, shape, rank, hint, sizeof hint);
    RF_TRY(rf_machine_check_pod(m, shape, rank, what, hint, error));
  }
  int64_t chips = slices;
  for (int i = 0; i < rank; i++) chips *= shape[i];
  if (chips > 1 << 24)
    return RF_FAIL(error, RAFTER_INVALID, SHAPES, "'%.60s' has too many chips (expected at most 2^24)", text);
  memcpy(m->shape, shape, sizeof shape);
  m->shape_rank = rank;
  m->slices = slices;
  m->chips = (int)chips;
  return RAFTER_OK;
}

double rf_machine_dcn_bps(const rf_machine *m) {
  return m->dcn_bps > 0 ? m->dcn_bps : m->topology.domain > 0 ? m->topology.node_bps / m->topology.domain : 0;
}

void rf_machine_by_device(rf_machine *m) {
  if (m->devices_per_chip != 2 || m->by_device) return;
  double *const halved[] = {&m->flops_tf32, &m->flops_f4,           &m->memory_bytes,      &m->reserve_bytes,
                            &m->read_bps,   &m->copy_bps,           &m->usd_per_chip_hour, &m->watts,
                            &m->vmem_bytes, &m->vmem_bps,           &m->dcn_bps,           &m->pcie_bps,
                            &m->host_bytes, &m->topology.oneway_bps};
  for (size_t i = 0; i < sizeof halved / sizeof *halved; i++) *halved[i] /= 2;
  for (int d = 0; d < RF_DTYPES; d++) {
    m->flops[d] /= 2;
    m->flops_vectors[d] /= 2;
  }
  for (int i = 0; i < m->price_count; i++) m->price[i].usd_per_chip_hour /= 2;
  m->by_device = true;
  m->chips *= 2;
}

void rf_machine_as_chips(rf_machine *m, int chips) {
  double *const shared[] = {&m->flops_tf32, &m->flops_f4, &m->memory_bytes, &m->reserve_bytes,
                            &m->read_bps,   &m->copy_bps, &m->watts,        &m->usd_per_chip_hour};
  for (size_t i = 0; i < sizeof shared / sizeof *shared; i++) *shared[i] /= chips;
  for (int d = 0; d < RF_DTYPES; d++) {
    m->flops[d] /= chips;
    m->flops_vectors[d] /= chips;
  }
  for (int i = 0; i < m->price_count; i++) m->price[i].usd_per_chip_hour /= chips;
  m->topology = (rf_topology){.form = RF_NETWORK_SWITCH,
                              .oneway_bps = m->copy_bps,
                              .fraction = 1,
                              .domain = chips,
                              .host_chips = chips};
  m->shape[0] = m->chips = chips;
  m->shape_rank = 1;
  m->curve_count = 0;
  m->guessed = true;
}

/* ---- the shape for a number of chips --------------------------------------------------------- */

/* Chooses extents for this number of chips. The shape is nearly a cube. Returns false if the pod is
 * too small. */
static bool cube_of(const rf_topology *t, int64_t chips, int64_t best[3]) {
  int64_t least = INT64_MAX;
  for (int64_t x = 1; x * x <= chips && (x == 1 || t->axes > 2); x++)
    for (int64_t y = x; x * y * y <= chips; y++) {
      int64_t of[3] = {x, y, chips / x / y}, size = of[0] * of[0] + of[1] * of[1] + of[2] * of[2];
      bool fits = chips % (x * y) == 0 && (t->pod_chips == 0 || chips <= t->pod_chips);
      for (int i = 3 - t->axes; i < 3 && fits; i++)
        fits = !t->pod[i - 3 + t->axes] || of[i] <= t->pod[i - 3 + t->axes];
      if (fits && size < least) {
        least = size;
        memcpy(best, of, sizeof of);
      }
    }
  return least < INT64_MAX;
}

void rf_machine_shape_for(const rf_machine *m, int64_t chips, char *text, size_t capacity) {
  const rf_topology *t = &m->topology;
  int64_t best[3] = {1, 1, chips}, slices = 1;
  text[0] = 0;
  if (chips <= 1 || t->form == RF_NETWORK_NONE) return;
  if (t->form == RF_NETWORK_SWITCH) {
    if (chips <= t->domain) snprintf(text, capacity, ":%lld", (long long)chips);
    else snprintf(text, capacity, ":%lldx%d", (long long)(chips / t->domain), t->domain);
    return;
  }
  while (slices < 64 && (chips % slices || !cube_of(t, chips / slices, best))) slices++;
  int at = t->axes > 2 ? snprintf(text, capacity, ":%lldx%lldx%lld", (long long)best[0], (long long)best[1],
                                  (long long)best[2])
                       : snprintf(text, capacity, ":%lldx%lld", (long long)best[1], (long long)best[2]);
  if (slices > 1 && at > 0 && (size_t)at < capacity)
    snprintf(text + at, capacity - (size_t)at, "*%lld", (long long)slices);
}
