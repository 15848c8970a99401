/* sampler_rows_avx2.c - the functions of sampler_rows.h, compiled for avx2. */
#define DOUBLES 4
#define ROWS RF_ROWS_AVX2
#include "generate/sampler_rows_body.h"
