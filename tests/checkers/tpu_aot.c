/* tpu_aot.c - tpu_aot FILE: what the planner says of TPU memory against what the TPU compiler reported. FILE is of the format of
 * data/tpu-aot.json, which is read when no FILE is given. */
#include "base/json.h"
#include "machine/tiles.h"

#include <stdio.h>
#include <string.h>

/* ---- arrays ------------------------------------------------------------------------------------------------------ */

static int bits_of(const char *dtype) {
  static const struct {
    const char *name;
    int bits;
  } known[] = {{"f32", 32}, {"s32", 32}, {"u32", 32}, {"bf16", 16}, {"u16", 16}, {"s8", 8}, {"f8", 8}, {"pred", 8}, {"s4", 4}};
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (!strcmp(known[i].name, dtype)) return known[i].bits;
  return 0;
}

/* Rows of layout_rows: [topology, dtype, shape, bytes, layout]. Every one must come out to the byte. */
static int check_arrays(const json_t *root) {
  const json_t *rows = json_object_get(root, "layout_rows");
  int exact = 0, all = (int)json_array_size(rows);
  for (int r = 0; r < all; r++) {
    const json_t *row = json_array_get(rows, (size_t)r), *shape = json_array_get(row, 2);
    const char *dtype = json_string_value(json_array_get(row, 1));
    int64_t dims[8], want = json_integer_value(json_array_get(row, 3));
    int rank = (int)json_array_size(shape), bits = dtype ? bits_of(dtype) : 0;
    if (!bits || rank > 8) {
      printf("array %d: unknown dtype or rank (%s, %d)\n", r, dtype ? dtype : "none", rank);
      continue;
    }
    for (int d = 0; d < rank; d++) dims[d] = json_integer_value(json_array_get(shape, (size_t)d));
    int64_t got = rf_tiled_bytes(bits, rank, dims);
    exact += got == want;
    if (got != want) printf("array %d of %s: expected %lld bytes, got %lld\n", r, dtype, (long long)want, (long long)got);
  }
  printf("arrays: %d of %d to the byte\n", exact, all);
  return exact != all;
}

int main(int count, char **argument) {
  const char *path = count > 1 ? argument[1] : "data/tpu-aot.json";
  rf_error error = {0};
  json_t *root;
  if (rf_json_read(path, 64 << 20, &root, &error) != RAFTER_OK) {
    fprintf(stderr, "tpu_aot: %s\n", error.message);
    return 2;
  }
  int failed = check_arrays(root);
  json_decref(root);
  return failed ? 1 : 0;
}
