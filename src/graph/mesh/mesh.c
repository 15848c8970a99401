/* mesh.c - names and sizes of meshes, and parsing of --mesh; see mesh.h. */
#include "graph/mesh/mesh.h"

#include "base/text.h"

#include <stdlib.h>
#include <stdio.h>
#include <string.h>

static const char *const NAMES[RF_AXES] = {"slice", "pipeline", "data",     "expert",
                                           "fsdp",  "context",  "sequence", "tensor"};

const char *rf_axis_name(rf_axis axis) { return (unsigned)axis < RF_AXES ? NAMES[axis] : "?"; }

int64_t rf_mesh_size(const rf_mesh *mesh, rf_axes axes) {
  int64_t size = 1;
  for (int a = 0; a < RF_AXES; a++)
    if (axes & RF_AXIS_BIT(a)) size *= rf_mesh_extent(mesh, (rf_axis)a);
  return size;
}

int64_t rf_mesh_chips(const rf_mesh *mesh) { return rf_mesh_size(mesh, 0xff); }

rf_axes rf_mesh_live(const rf_mesh *mesh, rf_axes axes) {
  rf_axes live = 0;
  for (int a = 0; a < RF_AXES; a++)
    if (axes & RF_AXIS_BIT(a) && rf_mesh_extent(mesh, (rf_axis)a) > 1) live |= RF_AXIS_BIT(a);
  return live;
}

int64_t rf_mesh_copies(const rf_mesh *mesh) {
  return rf_mesh_size(
      mesh, (rf_axes) ~(RF_AXES_OF_PASS | RF_AXIS_BIT(RF_AXIS_TENSOR) | RF_AXIS_BIT(RF_AXIS_PIPELINE)));
}

rf_axes rf_mesh_apart(const rf_mesh *mesh) {
  /* without fsdp, stage 3 of ZeRO shards the weights along data (shard_rules.c) */
  bool whole = mesh->zero < 3 || rf_mesh_extent(mesh, RF_AXIS_FSDP) > 1;
  return whole ? rf_mesh_live(mesh, RF_AXIS_BIT(RF_AXIS_DATA)) : 0;
}

const char *rf_mesh_text(const rf_mesh *mesh, char text[160]) {
  *text = '\0';
  for (int a = 0; a < RF_AXES; a++)
    if (rf_mesh_extent(mesh, (rf_axis)a) > 1)
      rf_text_append(text, 160, "%s%s=%d", *text ? ", " : "", NAMES[a], (int)mesh->of[a]);
  if (!*text) rf_text_append(text, 160, "one chip");
  return text;
}

int64_t rf_mesh_rank(const rf_mesh *mesh, rf_axes axes, const int32_t place[RF_AXES]) {
  int64_t rank = 0;
  for (int a = 0; a < RF_AXES; a++)
    if (axes & RF_AXIS_BIT(a)) rank = rank * rf_mesh_extent(mesh, (rf_axis)a) + place[a];
  return rank;
}

static int axis_of(const char *name, size_t length) {
  for (int a = 0; a < RF_AXES; a++)
    if (strlen(NAMES[a]) == length && strncmp(NAMES[a], name, length) == 0) return a;
  return -1;
}

static const rf_synonym AXIS_SYNONYMS[] = {{"tp", "tensor"},   {"dp", "data"},      {"ddp", "data"},
                                           {"pp", "pipeline"}, {"ep", "expert"},    {"sp", "sequence"},
                                           {"cp", "context"},  {"model", "tensor"}, {NULL, NULL}};

static rf_status unknown_axis(const char *part, size_t length, rf_error *error) {
  char hint[128] = "write for example data=2,fsdp=16,tensor=4";
  const char *equals = memchr(part, '=', length);
  size_t name = equals ? (size_t)(equals - part) : length;
  const rf_synonym *same = rf_synonym_of(AXIS_SYNONYMS, NULL, part, name);
  if (same)
    snprintf(hint, sizeof hint, "did you mean %s%.*s?", same->ours,
             (int)(length - name < 40 ? length - name : 40), part + name);
  return RF_FAIL(error, RAFTER_INVALID, hint,
                 "unknown axis of a mesh (--mesh: expected data, fsdp, tensor, sequence, context, "
                 "pipeline, expert or slice as NAME=NUMBER, got '%.*s')",
                 (int)length, part);
}

static rf_status parse_part(const char *part, size_t length, rf_mesh *mesh, rf_error *error) {
  enum { MAX = 1 << 20 };
  const char *equals = memchr(part, '=', length);
  int axis = equals ? axis_of(part, (size_t)(equals - part)) : -1;
  if (axis < 0) return unknown_axis(part, length, error);
  char *end;
  long count = equals[1] >= '0' && equals[1] <= '9' ? strtol(equals + 1, &end, 10) : 0;
  bool number = equals[1] >= '0' && equals[1] <= '9',
       pinned = number && part + length - end == 4 && strncmp(end, "@d2d", 4) == 0;
  if (!number || (end != part + length && !pinned) || count < 1 || count > MAX)
    return RF_FAIL(error, RAFTER_INVALID, "leave out axes that have one chip",
                   "bad number of chips (--mesh %s: expected 1 to %d, got '%.*s')", NAMES[axis], MAX,
                   (int)(part + length - equals - 1), equals + 1);
  if (mesh->of[axis])
    return RF_FAIL(error, RAFTER_INVALID, "name each axis once",
                   "an axis of the mesh is given twice (--mesh: %s)", NAMES[axis]);
  if (pinned && mesh->pinned)
    return RF_FAIL(
        error, RAFTER_INVALID, "leave one @d2d out",
        "two axes use the link between two dies (--mesh: expected at most one @d2d, got %s as well)",
        NAMES[axis]);
  mesh->of[axis] = (int32_t)count;
  if (pinned) mesh->pinned = RF_AXIS_BIT(axis);
  return RAFTER_OK;
}

rf_status rf_mesh_parse(const char *text, int zero, rf_mesh *mesh, rf_error *error) {
  *mesh = (rf_mesh){.zero = zero < 0 ? 3 : zero};
  for (const char *part = text; *part;) {
    size_t length = strcspn(part, ",");
    RF_TRY(parse_part(part, length, mesh, error));
    part += length;
    if (*part == ',' && !*++part) RF_TRY(parse_part("", 0, mesh, error));
  }
  double chips = 1;
  for (int a = 0; a < RF_AXES; a++) chips *= (double)rf_mesh_extent(mesh, (rf_axis)a);
  if (chips > 1 << 24)
    return RF_FAIL(error, RAFTER_INVALID, "use fewer chips",
                   "too many chips (--mesh %s: expected at most %d, got %.0f)", text, 1 << 24, chips);
  return RAFTER_OK;
}
