/* elementwise_base.c - the norms, activations, embeddings and optimizer in portable C. */
#define RF_TABLE RF_CPU_ELEMENTWISE_BASE
#define RF_TABLE_ISA RF_ISA_BASE
#define RF_TABLE_SUFFIX "base"
#include "backend/cpu/elementwise_table.h"
