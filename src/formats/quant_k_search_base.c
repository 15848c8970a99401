/* quant_k_search_base.c - the search of quant_k_search.h, compiled for base. */
#define RF_K_SEARCH rf_k_search_base
#include "formats/quant_k_search_body.h"
