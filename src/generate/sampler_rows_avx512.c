/* sampler_rows_avx512.c - the functions of sampler_rows.h, compiled for avx512. */
#define DOUBLES 8
#define ROWS RF_ROWS_AVX512
#include "generate/sampler_rows_body.h"
