/* peaks.h - the ceilings of this machine, measured in this process: what a kernel's speed is a fraction of.
 * A burst lasts as long as it is told to, so that a measurement can be put between two of them: neighbours lower both. */
#ifndef RF_PEAKS_H
#define RF_PEAKS_H

#include "backend/backend.h"

/* FLOP/s (multiply and add count as two) of `threads` threads doing nothing but products of `dtype` in registers for `seconds`:
 * RF_F32 fused multiply-adds of the widest vectors, RF_BF16 vdpbf16ps, RF_I8 vpdpbusd, where there are tiles
 * tdpbf16ps and tdpbssd. 0 where the CPU lacks the instruction. */
double rf_peak_flops(rf_dtype dtype, int threads, double seconds);

/* Bytes/s over a buffer of the caller, far larger than the caches (>= 1 GiB for figures that are printed), which has been written
 * before; `bytes` is cut to a multiple of 4 KiB per thread. The best of `loops` passes. */
double rf_peak_read_bps(const void *buffer, size_t bytes, int threads, int loops); /* reads all of it */
/* The first half is copied onto the second; what is counted is bytes read plus bytes written. Ordinary stores also read their
 * destination, which is not counted; non-temporal stores do not. */
double rf_peak_copy_bps(void *buffer, size_t bytes, int threads, int loops);
double rf_peak_nt_copy_bps(void *buffer, size_t bytes, int threads, int loops);

#endif
