/* llama2c.c - the reader of llama2.c's `.bin` files. */
#include "formats/llama2c.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/gguf_parts.h"
#include "formats/quant_blocks.h"

enum { V0_HEADER = 28, V1_HEADER = 256, FIELDS = 7, NAME_BYTES = 40, SIZE_LIMIT = 1 << 24 };
static const uint32_t MAGIC = 0x616b3432; /* "ak42" */

struct rf_llama2c {
  char *path;
  void *map; /* NULL: the caller owns the bytes */
  size_t bytes;
  int version, count;
  rf_gguf_facts facts;
  rf_quant_tensor *tensor; /* sorted by name */
  char (*name)[NAME_BYTES];
};

/* One kind of tensor. Each letter of `shape` is the size of an axis. D, F and V are sizes of the
 * model, Q is N H, K is K H, and R is T H/2. The cos and sin tables have the size R, and rafter
 * does not use them. */
typedef struct layout_row {
  const char *name; /* if `layered` is true, "blk.LAYER." comes before this name; NULL: skip the tensor */
  const char *shape;
  bool layered;
} layout_row;

// clang-format off
static const layout_row V0[] = {
  {"token_embd.weight", "VD", false},         {"attn_norm.weight", "D", true},   {"attn_q.weight", "QD", true},
  {"attn_k.weight", "KD", true},       {"attn_v.weight", "KD", true},     {"attn_output.weight", "DQ", true},
  {"ffn_norm.weight", "D", true},      {"ffn_gate.weight", "FD", true},   {"ffn_down.weight", "DF", true},
  {"ffn_up.weight", "FD", true},       {"output_norm.weight", "D", false},       {NULL, "R", false},
  {NULL, "R", false},                         {"output.weight", "VD", false},
};
static const layout_row V1[] = {
  {"attn_norm.weight", "D", true},     {"ffn_norm.weight", "D", true},    {"output_norm.weight", "D", false},
  {"token_embd.weight", "VD", false},         {"attn_q.weight", "QD", true},     {"attn_k.weight", "KD", true},
  {"attn_v.weight", "KD", true},       {"attn_output.weight", "DQ", true}, {"ffn_gate.weight", "FD", true},
  {"ffn_down.weight", "DF", true},     {"ffn_up.weight", "FD", true},     {"output.weight", "VD", false},
};
static const struct { const layout_row *rows; int count; } ORDER[] = {{V0, sizeof V0 / sizeof *V0}, {V1, sizeof V1 / sizeof *V1}};
// clang-format on

/* ---- the header ------------------------------------------------------------------------------ */

static rf_status wrong(const rf_llama2c *file, size_t byte, const char *field, int64_t least, int64_t most,
                       int64_t got, rf_error *error) {
  return RF_FAIL(error, RAFTER_FAILED, "the file may be truncated, or not a model of llama2.c",
                 "%s: %s is wrong (byte %zu: expected %lld to %lld, got %lld)", file->path, field, byte,
                 (long long)least, (long long)most, (long long)got);
}

static rf_status read_header(rf_llama2c *file, const uint8_t *base, size_t *at, rf_error *error) {
  static const char *const NAMES[FIELDS] = {"the width",
                                            "the feed-forward width",
                                            "the number of layers",
                                            "the number of heads",
                                            "the number of key and value heads",
                                            "the vocabulary",
                                            "the number of positions"};
  rf_gguf_facts *f = &file->facts;
  int64_t *const fields[FIELDS] = {&f->width,    &f->ff,    &f->layers,   &f->heads,
                                   &f->kv_heads, &f->vocab, &f->positions};
  static const int64_t MAX[FIELDS] = {1 << 20, 1 << 20,    RF_GGUF_LAYERS_MAX, 1 << 14,
                                      1 << 14, SIZE_LIMIT, SIZE_LIMIT};
  size_t fields_at = 0;
  if (file->bytes < V0_HEADER)
    return RF_FAIL(error, RAFTER_FAILED, NULL,
                   "%s is too short for a model of llama2.c (expected at least %d bytes, got %zu)",
                   file->path, V0_HEADER, file->bytes);
  if (rf_load_u32(base) == MAGIC) {
    int32_t version = (int32_t)rf_load_u32(base + 4);
    if (version != 1) return wrong(file, 4, "the version", 1, 1, version, error);
    if (file->bytes < V1_HEADER)
      return wrong(file, 0, "the length of the file", V1_HEADER, INT64_MAX, (int64_t)file->bytes, error);
    file->version = 1;
    fields_at = 8;
    *at = V1_HEADER;
  } else {
    file->version = 0;
    *at = V0_HEADER;
  }
  for (int i = 0; i < FIELDS; ++i) {
    size_t byte = fields_at + 4 * (size_t)i;
    int64_t got = (int32_t)rf_load_u32(base + byte), size = got;
    if (i == 5 && file->version == 0) {
      f->tied = got > 0;
      size = got < 0 ? -got : got;
    }
    if (size < 1 || size > MAX[i]) return wrong(file, byte, NAMES[i], 1, MAX[i], got, error);
    *fields[i] = size;
  }
  if (file->version == 1) {
    if (base[36] > 1) return wrong(file, 36, "the flag of a tied head", 0, 1, base[36], error);
    f->tied = base[36] == 1;
  }
  if (f->width % f->heads)
    return wrong(file, fields_at, "the width, a multiple of the heads,", f->heads, MAX[0], f->width, error);
  return RAFTER_OK;
}

static void fill_facts(rf_gguf_facts *f) {
  f->arch = RF_GGUF_LLAMA;
  f->arch_name = "llama";
  f->key_length = f->value_length = f->rope_dim = f->width / f->heads;
  f->norm_eps = 1e-5f;
  f->rope_theta = f->rope_local_theta = 10000;
  f->rope_factor = 1;
  f->embed_scale = 1;
  f->attn_scale = 1 / sqrt((double)f->key_length);
  f->interleaved = true;
  strcpy(f->rope_scaling, "none");
}

/* ---- the tensors ----------------------------------------------------------------------------- */

static int64_t size_of(const rf_gguf_facts *f, char letter) {
  int64_t head = f->width / f->heads;
  switch (letter) {
  case 'D': return f->width;
  case 'F': return f->ff;
  case 'V': return f->vocab;
  case 'Q': return f->heads * head;
  case 'K': return f->kv_heads * head;
  default: return f->positions * (head / 2);
  }
}

/* Computes the addresses of all tensors. V and T are at most 2^24, other sizes at most 2^20, and
 * layers at most 2^12, so no product overflows. The caller compares the end of the tensors with the
 * file's length before it uses an address. */
static rf_status place_tensors(rf_llama2c *file, const uint8_t *base, size_t at, rf_error *error) {
  const rf_gguf_facts *f = &file->facts;
  const rf_quant_type *f32 = rf_quant_type_of(RF_Q_F32);
  uint64_t end = at;
  for (int k = 0; k < ORDER[file->version].count; ++k) {
    const layout_row *row = &ORDER[file->version].rows[k];
    if (f->tied && row->name && strcmp(row->name, "output.weight") == 0) continue;
    int rank = (int)strlen(row->shape), layers = row->layered ? (int)f->layers : 1;
    int64_t shape[2] = {size_of(f, row->shape[0]), rank == 2 ? size_of(f, row->shape[1]) : 1},
            count = shape[0] * shape[1];
    for (int layer = 0; layer < layers; ++layer, end += (uint64_t)count * 4) {
      if (!row->name) continue;
      /* the caller reports that the file is too short */
      if (end + (uint64_t)count * 4 > file->bytes) continue;
      rf_quant_tensor *t = &file->tensor[file->count];
      *t = (rf_quant_tensor){
          file->name[file->count], f32, rank, {shape[0], shape[1]}, count, count * 4, base + end};
      if (rank == 1) t->shape[1] = 0;
      char *name = file->name[file->count++];
      if (row->layered) snprintf(name, NAME_BYTES, "blk.%d.%s", layer, row->name);
      else snprintf(name, NAME_BYTES, "%s", row->name);
    }
  }
  if (end != file->bytes)
    return RF_FAIL(error, RAFTER_FAILED, "the file may be truncated, or not a model of llama2.c",
                   "%s has the wrong length for version %d with these sizes (expected %llu bytes, got %zu)",
                   file->path, file->version, (unsigned long long)end, file->bytes);
  qsort(file->tensor, (size_t)file->count, sizeof *file->tensor, rf_compare_names);
  return RAFTER_OK;
}

/* ---- files ----------------------------------------------------------------------------------- */

rf_status rf_llama2c_parse(const void *data, size_t bytes, const char *where, rf_llama2c **result,
                           rf_error *error) {
  rf_status status = RAFTER_OK;
  size_t at = 0, most;
  rf_llama2c *file = calloc(1, sizeof *file);
  if (file) file->path = strdup(where);
  if (!file || !file->path) {
    free(file);
    return RF_FAIL(error, RAFTER_FAILED, NULL, "no memory to open %s", where);
  }
  file->bytes = bytes;
  RF_GO(read_header(file, data, &at, error));
  fill_facts(&file->facts);
  RF_GO(rf_gguf_facts_check(&file->facts, where, error));
  most = (size_t)file->facts.layers * 9 + 3;
  file->tensor = calloc(most, sizeof *file->tensor);
  file->name = calloc(most, sizeof *file->name);
  if (!file->tensor || !file->name) {
    status = RF_FAIL(error, RAFTER_FAILED, NULL, "no memory for the tensors of %s", where);
    goto done;
  }
  RF_GO(place_tensors(file, data, at, error));
  *result = file;
  file = NULL;
done:
  rf_llama2c_close(file);
  return status;
}

rf_status rf_llama2c_open(const char *path, rf_llama2c **result, rf_error *error) {
  void *map;
  size_t bytes;
  RF_TRY(rf_map_file(path, &map, &bytes, error));
  rf_status status = rf_llama2c_parse(map, bytes, path, result, error);
  if (status == RAFTER_OK) (*result)->map = map;
  else rf_unmap_file(map, bytes);
  return status;
}

void rf_llama2c_close(rf_llama2c *file) {
  if (!file) return;
  rf_unmap_file(file->map, file->bytes);
  free(file->tensor);
  free(file->name);
  free(file->path);
  free(file);
}

rf_status rf_llama2c_unchanged(const rf_llama2c *file, rf_error *error) {
  return rf_mapped_unchanged(file->map, error);
}

const char *rf_llama2c_path(const rf_llama2c *file) { return file->path; }
int rf_llama2c_count(const rf_llama2c *file) { return file->count; }
const rf_quant_tensor *rf_llama2c_at(const rf_llama2c *file, int i) {
  return i >= 0 && i < file->count ? &file->tensor[i] : NULL;
}
const rf_gguf_facts *rf_llama2c_facts(const rf_llama2c *file) { return &file->facts; }

const rf_quant_tensor *rf_llama2c_find(const rf_llama2c *file, const char *name) {
  rf_quant_tensor key = {.name = name};
  return bsearch(&key, file->tensor, (size_t)file->count, sizeof key, rf_compare_names);
}
