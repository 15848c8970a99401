/* rope.c - rotary positions. In each query and key head, pair i of elements is rotated by the angle
 * (position * frequency i). With R = rope.dim, pair i consists of elements i and i + R/2 of the
 * head. With rope.tail, pair i consists of elements 2i and 2i + 1 of the last R elements of the
 * head. */
#include "backend/reference/kernels.h"

/* qkv (n,(N+2K)H), positions (n) -> qkv with q and k rotated. The backward pass uses `inverse`. */
void rf_reference_rope(const rf_call *call) {
  const rf_attr_rope *attr = &call->op->attr.rope;
  const int32_t *positions = ids(call, 1);
  rf_view x = in_view(call, 0), y = out_view(call, 0);
  int64_t rows = rows_in_use(call, rf_in(call, 0)->shape[0]), width = rf_in(call, 0)->shape[1];
  int64_t head_dim = attr->head_dim, half = attr->rotation.dim / 2, rotated = attr->heads + attr->kv_heads;
  bool tail = attr->rotation.tail;
  int64_t begin = tail ? head_dim - 2 * half : 0, step = tail ? 2 : 1, apart = tail ? 1 : half;
  for (int64_t r = 0; r < rows; r++) {
    for (int64_t h = 0; h < rotated; h++) {
      for (int64_t i = 0; i < half; i++) {
        double angle = positions[r] * rf_rope_frequency(&attr->rotation, i);
        double cosine = cos(angle), sine = attr->inverse ? -sin(angle) : sin(angle);
        int64_t at = r * width + h * head_dim + begin + i * step;
        double a = load(x, at), b = load(x, at + apart);
        store(y, at, a * cosine - b * sine);
        store(y, at + apart, b * cosine + a * sine);
      }
      for (int64_t i = tail ? 0 : 2 * half; i < (tail ? begin : head_dim); i++)
        store(y, r * width + h * head_dim + i, load(x, r * width + h * head_dim + i));
    }
    for (int64_t c = rotated * head_dim; c < width; c++) store(y, r * width + c, load(x, r * width + c));
  }
}
