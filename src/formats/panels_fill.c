/* panels_fill.c - fills the panels of a matrix on all threads. Each byte of a matrix is written
 * once. The thread that writes a byte is the first to touch the byte's page. */
#include "formats/panels.h"

#include <stdlib.h>

/* Scratch memory of one thread: values of a panel's outputs, and the quantized blocks of the
 * values. */
typedef struct scratch {
  float *values;
  char *blocks;
} scratch;

static rf_status no_memory(rf_error *error) {
  return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while the weights are packed");
}

static rf_status quantize_panel(const rf_panel *panel, int64_t inner, const rf_panel_source *source,
                                scratch *room, const void *row[RF_PANEL_LANES], rf_error *error) {
  int64_t row_bytes = panel->type->head + inner / panel->type->values * panel->type->bytes;
  if (!room->values) {
    room->values = malloc((size_t)(RF_PANEL_LANES * inner) * sizeof *room->values);
    /* A stored type never has more bytes per value than a float. */
    room->blocks = malloc((size_t)(RF_PANEL_LANES * inner) * sizeof(float));
  }
  if (!room->values || !room->blocks) return no_memory(error);
  RF_TRY(source->read(source->self, panel->first, panel->used, room->values, error));
  for (int i = 0; i < panel->used; i++) {
    char *blocks = room->blocks + i * row_bytes;
    panel->type->quantize(room->values + i * inner, inner / panel->type->values, blocks);
    row[i] = blocks;
  }
  return RAFTER_OK;
}

static rf_status fill_panel(const rf_panels *panels, int64_t index, const rf_panel_source *source, void *data,
                            scratch *room, rf_error *error) {
  rf_panel panel = rf_panels_at(panels, index);
  const void *row[RF_PANEL_LANES] = {NULL};
  for (int i = 0; i < panel.used && source->stored; i++)
    row[i] = source->stored(source->self, panel.first + i, panel.type);
  if (!row[panel.used - 1] || !row[0])
    RF_TRY(quantize_panel(&panel, panels->inner, source, room, row, error));
  rf_panel_pack(&panel, panels->inner, row, (char *)data + panel.offset);
  return RAFTER_OK;
}

rf_status rf_panels_fill(const rf_panels *panels, const rf_panel_source *source, void *data,
                         rf_error *error) {
  return rf_panels_fill_some(panels, 0, rf_panels_count(panels), source, data, error);
}

rf_status rf_panels_fill_some(const rf_panels *panels, int64_t from, int64_t end,
                              const rf_panel_source *source, void *data, rf_error *error) {
  int failed = 0;
#pragma omp parallel if (end - from > 1)
  {
    scratch mine = {NULL, NULL};
#pragma omp for schedule(dynamic, 1)
    for (int64_t p = from; p < end; p++) {
      rf_error why;
      if (fill_panel(panels, p, source, data, &mine, &why) == RAFTER_OK) continue;
#pragma omp critical(rf_panels_failed)
      {
        if (!failed && error) *error = why;
        failed = 1;
      }
    }
    free(mine.values);
    free(mine.blocks);
  }
  return failed ? RAFTER_FAILED : RAFTER_OK;
}
