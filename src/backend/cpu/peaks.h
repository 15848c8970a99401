/* peaks.h - the ceilings of this machine, measured in this process: what a kernel's speed is a
 * fraction of. A burst lasts as long as it is told to, so that a measurement can be put between
 * two of them: neighbours lower both. */
#ifndef RF_PEAKS_H
#define RF_PEAKS_H

#include "backend/kernel.h"
#include "machine/isa.h"

/* In what a CPU of this level multiplies a dtype fastest: RF_F32 in its widest vectors (fused
 * multiply-adds), RF_BF16 and RF_I8 in vectors (vdpbf16ps, vpdpbusd) or in tiles (tdpbf16ps,
 * tdpbssd). NONE: in no instruction of its own, operands are widened. */
typedef enum rf_peak_unit { RF_PEAK_NONE, RF_PEAK_VECTORS, RF_PEAK_TILES } rf_peak_unit;
rf_peak_unit rf_peak_unit_of(rf_dtype dtype, rf_isa isa);
/* FLOP/s (multiply and add count as two) of `threads` threads doing nothing but such products in
 * registers for `seconds`; 0: NONE. `isa` is no more than this CPU has. What vectors reach on a
 * CPU with tiles is asked with the level below: RF_PEAK_VECTORS_OF. */
double rf_peak_flops(rf_dtype dtype, rf_isa isa, int threads, double seconds);
#define RF_PEAK_VECTORS_OF(isa) ((isa) < RF_ISA_AMX ? (isa) : RF_ISA_AVX512BF16)

/* Bytes/s over a buffer of the caller, far larger than the caches (>= 1 GiB for figures that are
 * printed), which has been written before; `bytes` is cut to a multiple of 4 KiB per thread. The
 * best of `loops` passes. */
double rf_peak_read_bps(const void *buffer, size_t bytes, int threads, int loops); /* reads all of it */
/* The first half is copied onto the second; what is counted is bytes read plus bytes written.
 * Ordinary stores also read their destination, which is not counted; non-temporal stores do not. */
double rf_peak_copy_bps(void *buffer, size_t bytes, int threads, int loops);
double rf_peak_nt_copy_bps(void *buffer, size_t bytes, int threads, int loops);

/* What a parallel region costs before it does anything: threads that are awake begin and come
 * together. */
double rf_peak_launch_seconds(int threads);

#endif
