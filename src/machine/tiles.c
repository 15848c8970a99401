/* tiles.c - the padding of TPU arrays. The rule was derived from programs that libtpu compiled
 * ahead of time. data/tpu-aot.json has the sizes of their arguments, outputs and donated state.
 * The rule predicts each of these sizes to the byte. */
#include "machine/tiles.h"
enum { LANES = 128, SUBLANES = 8, MAX_1D = 1024, SCALAR_BYTES = 512 };

/* The smallest power of two that is at least n. If n is above `most`, the function returns
 * `most`. */
static int64_t power_of_two(int64_t n, int64_t most) {
  int64_t p = 1;
  while (p < n && p < most) p *= 2;
  return p;
}

/* Rounds the second-to-last dimension `n` up to whole tiles. If the dimension is short, its tiles
 * have fewer rows. This number is a power of two, and is at least `pack`, the number of rows that
 * share a 32-bit word. */
static int64_t on_sublanes(int64_t n, int64_t pack) {
  int64_t rows = power_of_two(n, SUBLANES);
  if (rows < pack) rows = pack < SUBLANES ? pack : SUBLANES;
  return rf_round_up(n, rows);
}

static int64_t one_dimension(int64_t n, int bits, int64_t pack) {
  int64_t tile = power_of_two(n, MAX_1D), least = LANES * pack < MAX_1D ? LANES * pack : MAX_1D;
  return rf_round_up(n, tile < least ? least : tile) * bits / 8;
}

int64_t rf_tiled_bytes(int bits, int rank, const int64_t *dims) {
  if (bits > 32) return 2 * rf_tiled_bytes(32, rank, dims);
  if (rank == 0) return SCALAR_BYTES;
  int64_t pack = 32 / bits, best = INT64_MAX;
  if (rank == 1) return one_dimension(dims[0], bits, pack);
  for (int lane = 0; lane < rank; lane++)
    for (int sublane = 0; sublane < rank; sublane++) {
      if (lane == sublane) continue;
      int64_t elements = rf_round_up(dims[lane], LANES) * on_sublanes(dims[sublane], pack);
      for (int d = 0; d < rank; d++) elements *= d == lane || d == sublane ? 1 : dims[d];
      if (elements < best) best = elements;
    }
  return best * bits / 8;
}

int64_t rf_machine_bytes(const rf_machine *machine, rf_dtype dtype, int rank, const int64_t *dims) {
  if (machine && machine->kind == RF_MACHINE_TPU)
    return rf_tiled_bytes((int)rf_dtype_bits(dtype), rank, dims);
  int64_t bits = rf_dtype_bits(dtype);
  for (int d = 0; d < rank; d++) bits *= dims[d];
  return (bits + 7) / 8;
}
