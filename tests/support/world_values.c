/* world_values.c - see world.h: the values with which the tests of whole steps begin. */
#include "support/world.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double noise(uint64_t site, int64_t i) {
  uint32_t words[4];
  rf_philox(rf_key(7, site, 0), (uint64_t)i, 0, words);
  return (double)words[0] / 4294967296.0 * 2 - 1;
}

/* Initial value of an element of a tensor in the unsharded graph. Numbers are exact in every
 * dtype. */
static double first_value(const rf_tensor *t, int64_t i, int micro, int64_t vocab, int64_t step) {
  uint64_t site = rf_name_key(t->name);
  if (!strcmp(t->name, "tokens")) return floor((noise(site + (uint64_t)micro, i) + 1) / 2 * (double)vocab);
  if (!strcmp(t->name, "labels"))
    return i % 5 == 2 ? -1 : floor((noise(site + (uint64_t)micro, i) + 1) / 2 * (double)vocab);
  if (!strcmp(t->name, "positions") && t->shape[0] < WORLD_SEQ) return (double)(5 + step * i);
  if (!strcmp(t->name, "positions")) return (double)(i % WORLD_SEQ);
  double value = strstr(t->name, "/gain") ? 1 + 0.3 * noise(site, i) : 0.4 * noise(site, i);
  return (double)rf_bf16_to_f32(rf_f32_to_bf16((float)value));
}

/* Page c of a slot's table; a slot has at most `most` pages. */
static double page_of(const rf_graph *whole, const rf_tensor *t, int64_t i) {
  int64_t slots = t->shape[0], columns = t->shape[1], pool = 0;
  bool local = strstr(t->name, "local") != NULL;
  for (int k = 0; k < whole->tensor_count; k++) {
    const rf_tensor *cache = &whole->tensor[k];
    if (cache->class == RF_CLASS_KV &&
        (rf_model_window(&whole->model, atoi(cache->name + strlen("block."))) > 0) == local)
      pool = cache->shape[0];
  }
  int64_t most = pool / slots;
  return (double)(i / columns * most + i % columns % most);
}

static bool begins(const rf_tensor *t) {
  return t->class == RF_CLASS_WEIGHT || t->class == RF_CLASS_ADAPTER || t->class == RF_CLASS_KV || t->input;
}

static const rf_tensor *find(const rf_graph *graph, const char *name) {
  int id = rf_graph_find(graph, name);
  return id == RF_NONE ? NULL : &graph->tensor[id];
}

/* Segments of every chip's own rows, which are whole sequences. */
static void set_segments(world *w, int tensor) {
  int64_t count = w->graph->tensor[tensor].shape[0], rows = count - 1;
  for (int64_t chip = 0; chip < w->chips; chip++)
    for (int64_t i = 0; i < count; i++)
      world_put(w, chip, tensor, i, (double)(i * WORLD_SEQ < rows ? i * WORLD_SEQ : rows));
}

void world_fill(world *w, const rf_graph *whole, int micro, bool inputs) {
  for (int t = 0; t < w->graph->tensor_count; t++) {
    const rf_tensor *mine = &w->graph->tensor[t], *all = find(whole, mine->name);
    if (inputs ? !mine->input : !(begins(mine) && !mine->input) && strstr(mine->name, "/master") == NULL)
      continue;
    if (!strcmp(mine->name, "segments")) {
      set_segments(w, t);
      continue;
    }
    /* A master begins equal to its weight. */
    if (strstr(mine->name, "/master") && !all) {
      char name[256];
      snprintf(name, sizeof name, "%.*s", (int)(strlen(mine->name) - strlen("/master")), mine->name);
      all = find(whole, name);
    }
    /* Slots and rows are numbered within this copy. */
    if (!strcmp(mine->name, "slots") || !strcmp(mine->name, "rows") || !strncmp(mine->name, "pages/", 6)) {
      for (int64_t i = 0; i < w->chips * rf_tensor_count(mine); i++) {
        int64_t at = i % rf_tensor_count(mine);
        world_put(w, i / rf_tensor_count(mine), t, at,
                  mine->name[0] == 'p' ? page_of(w->graph, mine, at) : (double)at);
      }
      continue;
    }
    if (!all) abort();
    int64_t count = rf_tensor_count(all);
    double *values = malloc((size_t)count * sizeof *values);
    for (int64_t i = 0; i < count; i++)
      values[i] = first_value(all, i, micro, whole->model.vocab, whole->seq > 16 ? 23 : 3);
    world_set(w, t, all, values);
    free(values);
  }
}
