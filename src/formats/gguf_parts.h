/* gguf_parts.h - what the readers of GGUF and llama2.c files share. */
#ifndef RF_GGUF_PARTS_H
#define RF_GGUF_PARTS_H

#include "base/file.h"
#include "formats/gguf.h"

int rf_gguf_kind_bytes(rf_gguf_kind kind); /* of one item; 0: of no fixed size, or no kind */

#endif
