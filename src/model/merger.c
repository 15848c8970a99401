/* merger.c - adds adapters to their base weights. */
#include "model/adapter.h"

#include <string.h>

struct rf_merger {
  rf_pool *pool;
  rf_model model;
  rf_params params;
  const float **values; /* values of each adapter parameter, beginning with parameter params.base */
  int *adapter;         /* for each base parameter: the index of its A, or -1 if it has no adapter */
};

static rf_status keep_values(void *context, int param, int64_t first, int64_t count, const float *values,
                             rf_error *error) {
  (void)first;
  (void)error;
  rf_merger *m = context;
  float *copy = rf_pool_alloc(m->pool, (size_t)count * sizeof *copy);
  memcpy(copy, values, (size_t)count * sizeof *copy);
  m->values[param - m->params.base] = copy;
  return RAFTER_OK;
}

rf_status rf_merger_open(const rf_model *model, rf_merger **merger, rf_error *error) {
  rf_pool *pool = rf_pool_new();
  rf_merger *m = rf_pool_alloc(pool, sizeof *m);
  m->pool = pool;
  m->model = *model;
  m->params = rf_model_params(model, pool);
  m->values = rf_pool_alloc(pool, (size_t)(m->params.count - m->params.base + 1) * sizeof *m->values);
  m->adapter = rf_pool_alloc(pool, (size_t)m->params.base * sizeof *m->adapter);
  for (int p = 0; p < m->params.base; ++p) m->adapter[p] = -1;
  for (int p = m->params.base; p < m->params.count; p += 2) m->adapter[m->params.at[p].adapts] = p;
  rf_status status = rf_adapter_read(m->model.lora.folder, &m->model, &m->params, keep_values, m, error);
  if (status == RAFTER_OK) *merger = m;
  else rf_merger_close(m);
  return status;
}

void rf_merger_close(rf_merger *m) {
  if (m) rf_pool_free(m->pool);
}

rf_status rf_merger_values(void *merger, int param, int64_t first, int64_t count, float *values,
                           rf_error *error) {
  (void)error;
  const rf_merger *m = merger;
  memcpy(values, m->values[param - m->params.base] + first, (size_t)count * sizeof *values);
  return RAFTER_OK;
}

/* Adds a part of a row of scale * A * B to `values`: row k, columns from `from` to `to` - 1. */
static void add_row(const rf_merger *m, const rf_lora_parts *parts, int a, int64_t k, int64_t from,
                    int64_t to, float *values) {
  const float *down = m->values[a - m->params.base] + k * m->params.at[a].shape[1],
              *up = m->values[a + 1 - m->params.base];
  int64_t wide = m->params.at[a + 1].shape[1], joined = 0;
  double scale = (double)rf_lora_scale(&m->model.lora);
  for (int i = 0; i < parts->count; joined += parts->columns[i++])
    for (int64_t c = from > parts->at[i] ? from - parts->at[i] : 0;
         c < parts->columns[i] && parts->at[i] + c < to; ++c) {
      double sum = 0;
      for (int64_t j = 0; j < parts->rank; ++j)
        sum += (double)down[i * parts->rank + j] * (double)up[j * wide + joined + c];
      values[parts->at[i] + c - from] = (float)((double)values[parts->at[i] + c - from] + scale * sum);
    }
}

void rf_merger_add(const rf_merger *m, int param, int64_t first, int64_t count, float *values) {
  if (m->adapter[param] < 0) return;
  const rf_param *base = &m->params.at[param];
  rf_lora_parts parts = rf_lora_parts_of(&m->model, base);
  int64_t columns = base->shape[1], rows = (first + count - 1) / columns;
#pragma omp parallel for schedule(static) if (count > 1 << 14)
  for (int64_t k = first / columns; k <= rows; ++k) {
    int64_t from = k * columns > first ? 0 : first - k * columns, end = first + count - k * columns,
            to = end < columns ? end : columns;
    add_row(m, &parts, m->adapter[param], k, from, to, values + k * columns + from - first);
  }
}
