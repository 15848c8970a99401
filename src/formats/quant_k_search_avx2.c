/* quant_k_search_avx2.c - compiles the search of quant_k_search.h for avx2. */
#define RF_K_SEARCH rf_k_search_avx2
#include "formats/quant_k_search_body.h"
