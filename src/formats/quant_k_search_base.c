/* quant_k_search_base.c - compiles the search of quant_k_search.h for the base instruction set. */
#define RF_K_SEARCH rf_k_search_base
#include "formats/quant_k_search_body.h"
