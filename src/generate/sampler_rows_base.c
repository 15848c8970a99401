/* sampler_rows_base.c - the functions of sampler_rows.h, compiled for base. */
#define DOUBLES 2
#define ROWS RF_ROWS_BASE
#include "generate/sampler_rows_body.h"
