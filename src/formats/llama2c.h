/* llama2c.h - reads `.bin` models of llama2.c and gives their tensors GGUF names. All values are
 * f32. Version 0 of the format has no magic number. It starts with seven i32: D, F, L, N, K, V, T.
 * V is negative if the output head has its own table. For each kind of tensor, the tensors of all
 * layers are adjacent. The cos and sin tables come after the last norm. Version 1 starts with
 * "ak42", the version, the same seven i32, a byte (1: tied) and zeros up to byte 256. In version 1,
 * the norms are the first tensors. Source: llama2.c, export.py (legacy_export, version1_export),
 * run.c. */
#ifndef RF_LLAMA2C_H
#define RF_LLAMA2C_H

#include "formats/gguf_facts.h"

typedef struct rf_llama2c rf_llama2c;
/* Fails if the file's length differs from the length that its header implies. The error names the
 * file, the byte and the field. */
rf_status rf_llama2c_open(const char *path, rf_llama2c **file, rf_error *error);
/* Like rf_llama2c_open, for bytes in memory. `data` must stay valid until rf_llama2c_close. */
rf_status rf_llama2c_parse(const void *data, size_t bytes, const char *where, rf_llama2c **file,
                           rf_error *error);
void rf_llama2c_close(rf_llama2c *file);
/* Like rf_gguf_unchanged. */
rf_status rf_llama2c_unchanged(const rf_llama2c *file, rf_error *error);
const char *rf_llama2c_path(const rf_llama2c *file);
/* The names of tensors ("blk.0.attn_q.weight") and their shapes are as in GGUF. The two elements of
 * a rotary pair are adjacent. */
int rf_llama2c_count(const rf_llama2c *file);
const rf_quant_tensor *rf_llama2c_at(const rf_llama2c *file, int index);
const rf_quant_tensor *rf_llama2c_find(const rf_llama2c *file, const char *name);
/* The architecture is llama. Epsilon (1e-5) and theta (10000) are constants in llama2.c. */
const rf_gguf_facts *rf_llama2c_facts(const rf_llama2c *file);

#endif
