/* gguf_parts.h - shared by the readers of GGUF and llama2.c files. */
#ifndef RF_GGUF_PARTS_H
#define RF_GGUF_PARTS_H

#include "base/file.h"
#include "formats/gguf.h"

int rf_gguf_kind_bytes(rf_gguf_kind kind); /* bytes of one item; 0: no fixed size, or not a kind */

#endif
