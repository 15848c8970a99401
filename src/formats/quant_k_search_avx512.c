/* quant_k_search_avx512.c - compiles the search of quant_k_search.h for avx512. */
#define RF_K_SEARCH rf_k_search_avx512
#include "formats/quant_k_search_body.h"
