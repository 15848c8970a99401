/* embed.c - the look-up in the token and position tables, and the gradients of both tables. */
#include "backend/reference/kernels.h"

static double token_scale(const rf_call *call) {
  return call->op->attr.embed.scale == 0 ? 1 : (double)call->op->attr.embed.scale;
}

/* tokens (n), positions (n), wte (V,D), wpe (T,D)? -> x (n,D) */
void rf_reference_embed(const rf_call *call) {
  const int32_t *tokens = ids(call, 0), *positions = ids(call, 1);
  rf_view wte = in_view(call, 2), wpe = in_view(call, 3), x = out_view(call, 0);
  double scale = token_scale(call);
  int64_t rows = rows_in_use(call, rf_out(call, 0)->shape[0]), width = rf_out(call, 0)->shape[1];
  int64_t rank = rf_rank_of(call), words = rf_in(call, 2)->shape[0], first = rank * words;
  for (int64_t r = 0; r < rows; r++)
    for (int64_t d = 0; d < width; d++) {
      bool here = !call->op->attr.axes || (tokens[r] >= first && tokens[r] < first + words);
      double value = here ? load(wte, (tokens[r] - first) * width + d) * scale : 0;
      if (wpe.data && rank == 0) value += load(wpe, positions[r] * width + d);
      store(x, r * width + d, value);
    }
}

/* Adds `scale` times each row of dx to the table (V or T, D), in ascending order of rows. Row r of
 * dx is added to table row index[r] - first. */
static void scatter(const rf_call *call, int slot, const int32_t *index, int64_t first, double scale) {
  rf_view dx = in_view(call, 2), table = out_view(call, slot);
  if (!table.data) return;
  int64_t rows = rows_in_use(call, rf_in(call, 2)->shape[0]), width = rf_in(call, 2)->shape[1];
  if (!adds(call, slot))
    for (int64_t i = 0; i < rf_tensor_count(rf_out(call, slot)); i++) store(table, i, 0.0);
  for (int64_t r = 0; r < rows; r++)
    for (int64_t d = 0; d < width; d++) {
      /* another chip has this table row */
      if (index[r] < first || index[r] >= first + rf_out(call, slot)->shape[0]) continue;
      int64_t at = (index[r] - first) * width + d;
      store(table, at, load(table, at) + load(dx, r * width + d) * scale);
    }
}

/* tokens (n), positions (n), dx (n,D) -> dwte (V,D), dwpe (T,D)? */
void rf_reference_embed_bwd(const rf_call *call) {
  scatter(call, 0, ids(call, 0), call->out[0] ? rf_rank_of(call) * rf_out(call, 0)->shape[0] : 0,
          token_scale(call));
  scatter(call, 1, ids(call, 1), 0, 1);
}
