/* peaks.h - measures the peak rates of this machine, for comparison with kernel speeds. A
 * measurement is a short burst, whose length the caller sets. Callers time a kernel between two
 * bursts, because another program slows down the bursts and the kernel alike. */
#ifndef RF_PEAKS_H
#define RF_PEAKS_H

#include "backend/kernel.h"
#include "machine/isa.h"

/* The unit that multiplies a dtype fastest on a CPU with this ISA. RF_F32 uses fused multiply-adds
 * of the widest vectors. RF_BF16 and RF_I8 use vectors (vdpbf16ps, vpdpbusd) or tiles (tdpbf16ps,
 * tdpbssd). NONE: no instruction multiplies the dtype. */
typedef enum rf_peak_unit { RF_PEAK_NONE, RF_PEAK_VECTORS, RF_PEAK_TILES } rf_peak_unit;
rf_peak_unit rf_peak_unit_of(rf_dtype dtype, rf_isa isa);
/* Lets `threads` threads compute products in registers for `seconds` on the fastest unit of the
 * dtype. Returns the FLOP/s, or 0 for NONE. A multiply-add counts as two. This CPU must support
 * `isa`. For the vectors of a CPU with tiles, pass RF_PEAK_VECTORS_OF(isa). */
double rf_peak_flops(rf_dtype dtype, rf_isa isa, int threads, double seconds);
#define RF_PEAK_VECTORS_OF(isa) ((isa) < RF_ISA_AMX ? (isa) : RF_ISA_AVX512BF16)

/* Reads a buffer in `loops` passes and returns the bytes/s of the fastest pass. The caller has
 * written the buffer before. The buffer should be far larger than the caches (1 GiB or more
 * for printed figures). `bytes` is rounded down to a multiple of 4 KiB per thread. */
double rf_peak_read_bps(const void *buffer, size_t bytes, int threads, int loops);
/* Copies the first half of the buffer to the second half. Counts bytes read plus bytes written.
 * Ordinary stores also read their destination, but these reads do not count. Non-temporal stores do
 * not read their destination. */
double rf_peak_copy_bps(void *buffer, size_t bytes, int threads, int loops);
double rf_peak_nt_copy_bps(void *buffer, size_t bytes, int threads, int loops);

/* Duration in seconds of an empty parallel region while its threads are awake. */
double rf_peak_launch_seconds(int threads);

#endif
