/* llama2c.h - reads `.bin` models of llama2.c and lists their tensors under GGUF's names. All
 * values are f32. Version 0 has no magic: seven i32 (D, F, L, N, K, V, T; V < 0 means that the head
 * has its own table), then each kind of tensor for all layers, and cos and sin tables after the
 * last norm. Version 1: "ak42", the version, the seven i32, a byte (tied), zeros up to byte 256,
 * and tensors that begin with the norms. Source: llama2.c, export.py (legacy_export,
 * version1_export), run.c. */
#ifndef RF_LLAMA2C_H
#define RF_LLAMA2C_H

#include "formats/gguf_facts.h"

typedef struct rf_llama2c rf_llama2c;
/* The file must be as long as its header says. The error names the file, the byte and the field. */
rf_status rf_llama2c_open(const char *path, rf_llama2c **file, rf_error *error);
/* Like rf_llama2c_open, for bytes in memory. `data` must stay valid until the close. */
rf_status rf_llama2c_parse(const void *data, size_t bytes, const char *where, rf_llama2c **file,
                           rf_error *error);
/* `file` may be NULL. */
void rf_llama2c_close(rf_llama2c *file);
const char *rf_llama2c_path(const rf_llama2c *file);
/* Names and shapes are GGUF's ("blk.0.attn_q.weight"). Pairs of q and k are interleaved. */
int rf_llama2c_count(const rf_llama2c *file);
const rf_quant_tensor *rf_llama2c_at(const rf_llama2c *file, int index);
const rf_quant_tensor *rf_llama2c_find(const rf_llama2c *file, const char *name);
/* The architecture is llama. Epsilon (1e-5) and theta (10000) are constants of llama2.c. */
const rf_gguf_facts *rf_llama2c_facts(const rf_llama2c *file);

#endif
