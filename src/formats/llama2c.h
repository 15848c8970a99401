/* llama2c.h - `.bin` models of llama2.c, version 0 (no magic) and version 1, as the list of
 * tensors that a GGUF file of the same model would hold. Both are f32. v0: seven i32 (D, F, L,
 * N, K, V, T; V < 0: the head has its own table), then each kind of tensor for all layers, and
 * cos and sin tables after the last norm. v1: "ak42", version, the seven i32, a byte (tied),
 * zeros up to byte 256, then norms first. Source: llama2.c, export.py (legacy_export,
 * version1_export) and run.c. */
#ifndef RF_LLAMA2C_H
#define RF_LLAMA2C_H

#include "formats/gguf_facts.h"

typedef struct rf_llama2c rf_llama2c;
/* The file must be exactly as long as its header says. RAFTER_FAILED names the file, the byte
 * and the field. */
rf_status rf_llama2c_open(const char *path, rf_llama2c **file, rf_error *error);
/* `data` must stay until the close */
rf_status rf_llama2c_parse(const void *data, size_t bytes, const char *where, rf_llama2c **file,
                           rf_error *error);
/* NULL is allowed */
void rf_llama2c_close(rf_llama2c *file);
const char *rf_llama2c_path(const rf_llama2c *file);
/* Names and shapes are GGUF's ("blk.0.attn_q.weight"); q and k have interleaved pairs, as in
 * GGUF files of llama. */
int rf_llama2c_count(const rf_llama2c *file);
const rf_quant_tensor *rf_llama2c_at(const rf_llama2c *file, int index);
const rf_quant_tensor *rf_llama2c_find(const rf_llama2c *file, const char *name);
/* The architecture is llama; epsilon 1e-5 and theta 10000 are llama2.c's own. */
const rf_gguf_facts *rf_llama2c_facts(const rf_llama2c *file);

#endif
