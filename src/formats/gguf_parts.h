/* gguf_parts.h - declarations that the GGUF reader, its metadata look-ups and the writer share. */
#ifndef RF_GGUF_PARTS_H
#define RF_GGUF_PARTS_H

#include "base/file.h"
#include "formats/gguf.h"

/* Bytes of one item of this kind. 0: the size is not fixed, or the kind does not exist. */
int rf_gguf_kind_bytes(rf_gguf_kind kind);

#endif
