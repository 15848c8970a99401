/* machines.c - `rafter machines`: lists the data sheets, and this machine. */
#include "api/api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *sheet_text(const json_t *sheet, const char *key) {
  const char *text = json_string_value(json_object_get(sheet, key));
  return text ? text : "";
}

/* Finds the data sheet of NAME, NAME@EDITION or NAME:SHAPE. Returns NULL if no sheet has this
 * name. */
static const json_t *sheet_named(const char *spec) {
  const json_t *sheet;
  const size_t length = strcspn(spec, "@:*");
  for (int i = 0; (sheet = rf_machine_sheet(i)); i++)
    if (strlen(sheet_text(sheet, "name")) == length && !strncmp(sheet_text(sheet, "name"), spec, length))
      return sheet;
  return NULL;
}

/* Writes the machine's name for people. "local" is this computer, measured or only detected. */
static void write_title(const char *on, const rf_machine *m, const json_t *sheet, char title[200]) {
  char cpu[128];
  if (sheet) snprintf(title, 200, "%.190s", sheet_text(sheet, "title"));
  else if (strcmp(on, "local")) snprintf(title, 200, "%.100s (machine file)", m->name);
  else {
    rf_machine_cpu(cpu);
    cpu[strcspn(cpu, ",")] = 0;
    snprintf(title, 200, "%s: %.100s", m->source, cpu);
  }
}

static json_t *flops_json(const rf_machine *m) {
  json_t *flops = json_object();
  for (int d = 0; d < RF_DTYPES; d++)
    if (m->flops[d] > 0) json_object_set_new(flops, rf_dtype_name((rf_dtype)d), json_real(m->flops[d]));
  return flops;
}

static json_t *prices_json(const rf_machine *m) {
  json_t *prices = json_array();
  for (int i = 0; i < m->price_count; i++) {
    const rf_price *p = &m->price[i];
    json_array_append_new(prices, json_pack("{ss sf ss ss}", "tier", p->tier, "usd_per_chip_hour",
                                            p->usd_per_chip_hour, "date", p->date, "source", p->source));
  }
  return prices;
}

/* `sheet` is NULL for this machine and for machine files. */
static json_t *machine_json(const char *on, const rf_machine *m, const json_t *sheet, const char *title) {
  json_t *editions = json_array(), *changes;
  const char *edition;
  json_object_foreach (json_object_get(sheet, "editions"), edition, changes)
    json_array_append_new(editions, json_string(edition));
  json_t *json =
      json_pack("{ss ss ss ss ss sf sf sf so so so}", "name", on, "title", title, "kind",
                rf_machine_kind_name(m->kind), "source", m->source, "source_note", m->source_note,
                "memory_bytes", m->memory_bytes, "reserve_bytes", m->reserve_bytes, "read_bytes_per_second",
                m->read_bps, "flops", flops_json(m), "prices", prices_json(m), "editions", editions);
  if (sheet) json_object_set(json, "sources", json_object_get(sheet, "source"));
  return json;
}

/* Writes a rate in units of 10^12 or 10^9 per second; "-" if the rate is unknown. */
static const char *rate_text(double rate, double unit, char text[32]) {
  if (rate > 0) snprintf(text, 32, rate / unit < 10 ? "%.3g" : "%.0f", rate / unit);
  else snprintf(text, 32, "-");
  return text;
}

enum { PRICE_COLUMN = 81 };

/* Prints a line with the figures and the first price. Each further price has its own line. */
static void say_machine(const rafter_sink *sink, const char *on, const rf_machine *m, const char *title) {
  char a[32], b[32], c[32], d[32], e[32];
  rf_say(sink, "%-10s %9s %5s %5s %5s %5s  %-35s", on, rf_text_bytes(m->memory_bytes - m->reserve_bytes, a),
         rate_text(m->flops[RF_F32], 1e12, b), rate_text(m->flops[RF_BF16], 1e12, c),
         rate_text(m->flops[RF_I8], 1e12, d), rate_text(m->read_bps, 1e9, e), title);
  for (int i = 0; i < m->price_count; i++)
    rf_say(sink, "%s%*s %5.2f %s", i ? "\n" : "", i ? PRICE_COLUMN : 0, "", m->price[i].usd_per_chip_hour,
           m->price[i].tier);
  rf_say(sink, "%s\n", m->price_count ? "" : "     -");
}

/* Explains why the table and plans have less memory than the product's name says. */
static void say_reserve(const rafter_sink *sink, const rf_machine *m) {
  char a[32], b[32], c[32];
  if (m->reserve_bytes > 0)
    rf_say(sink, "\nmemory: %s, less %s that the runtime reserves; plans use the other %s\n",
           rf_text_bytes(m->memory_bytes, a), rf_text_bytes(m->reserve_bytes, b),
           rf_text_bytes(m->memory_bytes - m->reserve_bytes, c));
}

/* Prints each figure of one data sheet, with its source. */
static void say_sources(const rafter_sink *sink, const rf_machine *m, const json_t *sheet) {
  const char *key;
  json_t *value;
  rf_say(sink, "\nsources\n");
  json_object_foreach (json_object_get(sheet, "source"), key, value)
    rf_say(sink, "  %-20s %s\n", key, json_string_value(value));
  for (int i = 0; i < m->price_count; i++)
    rf_say(sink, "  price %-14s %.2f USD (%s): %s\n", m->price[i].tier, m->price[i].usd_per_chip_hour,
           m->price[i].date, m->price[i].source);
  json_object_foreach (json_object_get(sheet, "editions"), key, value)
    rf_say(sink, "  edition %-12s --on %s@%s: other figures of %s\n", key, sheet_text(sheet, "name"), key,
           sheet_text(sheet, "name"));
}

static void say_head(const rafter_sink *sink) {
  rf_say(sink, "%-10s %9s %5s %5s %5s %5s  %-35s  %s\n%-10s %9s %17s %5s  %-35s  %s\n", "--on", "memory",
         "f32", "bf16", "int8", "read", "machine", "price in USD", "", "", "TFLOP/s", "GB/s", "",
         "per chip hour");
}

/* `alone`: the table has only this machine, so its head and the machine's sources are printed
 * too. */
static rf_status show(const char *on, json_t *list, const rafter_sink *sink, bool alone, rf_error *error) {
  rf_machine *m = calloc(1, sizeof *m);
  if (!m) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while listing machines");
  char title[200];
  rf_status status = rf_machine_find(on, m, error);
  if (status == RAFTER_OK) {
    const json_t *sheet = sheet_named(on);
    write_title(on, m, sheet, title);
    if (alone) say_head(sink);
    say_machine(sink, on, m, title);
    json_array_append_new(list, machine_json(on, m, sheet, title));
    if (alone) say_reserve(sink, m);
    if (alone && sheet) say_sources(sink, m, sheet);
    else if (alone) rf_say(sink, "\nsource: %s\n", m->source_note);
  }
  free(m);
  return status;
}

static rf_status rf_command_machines(const rafter_job *job, const rafter_sink *sink, rf_error *error) {
  const char *only = rf_options_argument(job->options, 0);
  json_t *list = json_array();
  const json_t *sheet;
  rf_status status = RAFTER_OK;
  if (only) RF_GO(show(only, list, sink, true, error));
  else {
    say_head(sink);
    RF_GO(show("local", list, sink, false, error));
  }
  for (int i = 0; !only && (sheet = rf_machine_sheet(i)); i++)
    RF_GO(show(sheet_text(sheet, "name"), list, sink, false, error));
  if (!only)
    rf_say(sink,
           "\nFigures are of one chip. Memory is what plans can use, without what the runtime reserves.\n"
           "--on NAME:4x4 plans a torus, and --on NAME:2x8 two nodes of 8 "
           "GPUs.\n`rafter machines NAME` prints the source of each figure. `rafter calibrate` measures "
           "this\nmachine. --price TIER chooses a price, and --price 2.50 sets one.\n");
  rf_put_json(sink, json_pack("{ss sO}", "command", "machines", "machines", list));
done:
  json_decref(list);
  return status;
}

const rf_command RF_COMMAND_MACHINES = {
    RF_COMMAND_HEAD("machines", "[MACHINE]", 0, 1, "Look",
                    "List the machines that plans can be made for, with their figures, prices and sources."),
    .options = {RF_TABLE(RF_EVERY_OPTIONS)},
    .examples = {"machines", "machines tpu-v5e # with the source of each figure"},
    .run = rf_command_machines};
