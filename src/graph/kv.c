/* kv.c - see kv.h. */
#include "graph/kv.h"

const char *rf_kv_class_name(rf_kv_class class) { return class == RF_KV_LOCAL ? "local" : "global"; }

rf_kv_class rf_kv_class_of(const rf_model *model, int layer) {
  return rf_model_window(model, layer) > 0 ? RF_KV_LOCAL : RF_KV_GLOBAL;
}

/* Bytes of the keys and values of one page in one layer; *scale_bytes gets the bytes of their
 * scales. Latent attention stores one row of kv_rank + rope_dim numbers, which all heads share. */
static int64_t bytes_of_page(const rf_model *model, int64_t page, rf_dtype dtype, int64_t *scale_bytes) {
  if (scale_bytes) *scale_bytes = 0;
  if (model->kv_rank > 0) return (page * (model->kv_rank + model->rope_dim) * rf_dtype_bits(dtype) + 7) / 8;
  int64_t scales = dtype == RF_I8 ? 2 * page * model->kv_heads * rf_dtype_bytes(RF_F32) : 0;
  if (scale_bytes) *scale_bytes = scales;
  return (2 * page * model->kv_heads * model->head_dim * rf_dtype_bits(dtype) + 7) / 8;
}

static int64_t pages_of(int64_t tokens, int64_t page) { return rf_ceil_div(tokens, page); }

rf_kv rf_kv_of(const rf_model *model, const rf_build_options *o) {
  int64_t chips = o->job == RF_JOB_GENERATE ? rf_mesh_extent(&o->mesh, RF_AXIS_CONTEXT) : 1;
  rf_kv kv = {.page = chips * (o->kv_page ? o->kv_page : RF_KV_PAGE),
              .chips = chips,
              .sequences = o->sequences > 0 ? o->sequences : o->microbatch,
              .dtype = o->kv_dtype_set ? o->kv_dtype : o->dtype};
  int64_t chunk = o->chunk > 0 ? o->chunk : RF_PREFILL_ROWS, scales,
          page_bytes = bytes_of_page(model, kv.page, kv.dtype, &scales);
  if (chunk > o->seq) chunk = o->seq;
  kv.columns = pages_of(o->seq, kv.page);
  for (int layer = 0; layer < model->layers; layer++) {
    struct rf_kv_layers *of = &kv.of[rf_kv_class_of(model, layer)];
    of->layers++;
    of->window = rf_model_window(model, layer);
    of->page_bytes += page_bytes + scales;
    of->most = kv.columns;
  }
  struct rf_kv_layers *local = &kv.of[RF_KV_LOCAL];
  int64_t touched = pages_of(local->window + chunk - 1, kv.page) + 1;
  if (local->layers && touched < local->most) local->most = touched;
  for (int c = 0; c < RF_KV_CLASSES; c++) {
    const bool windows = kv.of[c].most < kv.columns;
    kv.of[c].pool = kv.of[c].most * (windows && kv.sequences < o->microbatch ? o->microbatch : kv.sequences);
  }
  return kv;
}

int64_t rf_kv_pages(const rf_kv *kv, rf_kv_class class, int64_t tokens) {
  int64_t pages = pages_of(tokens, kv->page);
  return pages < kv->of[class].most ? pages : kv->of[class].most;
}

int64_t rf_kv_sequence_bytes(const rf_kv *kv, int64_t tokens) {
  int64_t bytes = 0;
  for (int c = 0; c < RF_KV_CLASSES; c++)
    bytes += rf_kv_pages(kv, (rf_kv_class)c, tokens) * kv->of[c].page_bytes;
  return bytes;
}

int64_t rf_kv_read_bytes(const rf_kv *kv, int64_t tokens) {
  int64_t bytes = 0;
  for (int c = 0; c < RF_KV_CLASSES; c++) {
    int64_t window = kv->of[c].window, read = window > 0 && window < tokens ? window : tokens;
    bytes += read * (kv->of[c].page_bytes / kv->page);
  }
  return bytes;
}

int64_t rf_kv_first_key(const rf_kv *kv, rf_kv_class class, int64_t position) {
  int64_t window = kv->of[class].window;
  return window > 0 && position >= window ? position - window + 1 : 0;
}
