/* print.c - a graph as text, for `plan --after PASS`: one line per op, with inputs and outputs. */
#include "graph/passes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A text that grows. At the end, the text is copied into the graph's pool. */
typedef struct text {
  char *at;
  size_t length, capacity;
} text;

static void put(text *out, const char *piece, size_t length) {
  if (out->length + length + 1 > out->capacity) {
    size_t capacity = (out->length + length + 1) * 2 + 4096;
    char *grown = realloc(out->at, capacity);
    if (!grown) return;
    out->at = grown;
    out->capacity = capacity;
  }
  memcpy(out->at + out->length, piece, length);
  out->length += length;
  out->at[out->length] = '\0';
}

static void say(text *out, const char *piece) { put(out, piece, strlen(piece)); }

static void say_tensor(text *out, const rf_graph *graph, int id, const char *slot) {
  char line[256], type[64];
  if (id < 0) return;
  const rf_tensor *tensor = &graph->tensor[id];
  int at = snprintf(line, sizeof line, " %.*s=", (int)strcspn(slot, " "), slot);
  put(out, line, (size_t)at);
  say(out, tensor->name);
  at = snprintf(line, sizeof line, ":%s(", rf_tensor_type(tensor, type));
  for (int i = 0; i < tensor->rank; i++)
    at += snprintf(line + at, sizeof line - (size_t)at, i ? ",%lld" : "%lld", (long long)tensor->shape[i]);
  put(out, line, (size_t)at);
  say(out, tensor->host ? ")@host" : ")");
}

static void say_attributes(text *out, const rf_op *op) {
  char line[RF_FIELD_TEXT];
  for (const rf_field *f = rf_op_fields(op->def); f->name; f++)
    if (rf_field_write(f, &op->attr, line)) say(out, line);
  for (int i = 0; i < op->output_count; i++) {
    if (op->output[i] < 0 || op->attr.accumulate[i] == RF_WRITE) continue;
    say(out, op->attr.accumulate[i] == RF_ACCUMULATE_ADD ? " add:" : " accumulate:");
    put(out, op->def->outputs[i], strcspn(op->def->outputs[i], " "));
  }
}

const char *rf_graph_print(rf_graph *graph) {
  static const char *const sections[RF_SECTIONS] = {"begin", "micro", "end"};
  text out = {0};
  char line[160];
  for (int o = 0; o < graph->op_count; o++) {
    const rf_op *op = &graph->op[o];
    if (o == 0 || op->section != op[-1].section) {
      snprintf(line, sizeof line, "section %s, %d time%s:\n", sections[op->section],
               op->section == RF_SECTION_MICRO ? graph->accumulate : 1,
               op->section == RF_SECTION_MICRO && graph->accumulate > 1 ? "s" : "");
      say(&out, line);
    }
    snprintf(line, sizeof line, "%5d  %-14s ", o, op->def->name);
    say(&out, line);
    say(&out, op->name);
    say_attributes(&out, op);
    if (op->recompute_of >= 0) {
      snprintf(line, sizeof line, " recompute_of=%d", op->recompute_of);
      say(&out, line);
    }
    say(&out, "\n        <-");
    for (int i = 0; i < op->input_count; i++) say_tensor(&out, graph, op->input[i], op->def->inputs[i]);
    say(&out, "\n        ->");
    for (int i = 0; i < op->output_count; i++) say_tensor(&out, graph, op->output[i], op->def->outputs[i]);
    say(&out, "\n");
  }
  char *kept = rf_pool_alloc(graph->pool, out.length + 1);
  if (out.at) memcpy(kept, out.at, out.length + 1);
  free(out.at);
  return kept;
}
