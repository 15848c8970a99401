/* gguf_source.h - presents any model that rafter reads as the metadata and tensors of a GGUF file,
 * for the converter. */
#ifndef RF_GGUF_SOURCE_H
#define RF_GGUF_SOURCE_H

#include "formats/gguf_facts.h"
#include "model/model.h"

typedef struct rf_gguf_source rf_gguf_source;
/* Opens a .gguf file, a llama2.c .bin file, or a folder with config.json and safetensors files. The
 * tensors in a folder must have Hugging Face's names. The function checks names, shapes and types.
 * RAFTER_FAILED: the error names what is missing, or what a GGUF file cannot represent. */
rf_status rf_gguf_source_open(const char *path, rf_gguf_source **source, rf_error *error);
void rf_gguf_source_close(rf_gguf_source *source); /* NULL is allowed */
/* RAFTER_FAILED: another program wrote to a file after it was opened. Call it after reading. */
rf_status rf_gguf_source_unchanged(const rf_gguf_source *source, rf_error *error);
/* Returns the metadata to write. The source owns the metadata, and the caller may add entries. The
 * metadata includes a folder's tokenizer and chat template if GGUF can represent them. */
rf_gguf_meta *rf_gguf_source_meta(rf_gguf_source *source);
bool rf_gguf_source_has_tokenizer(const rf_gguf_source *source);
const char *rf_gguf_source_note(const rf_gguf_source *source); /* reason why no tokenizer was written */
int rf_gguf_source_count(const rf_gguf_source *source);
/* `data` is NULL if values must be transposed, reordered or widened. In this case,
 * rf_gguf_source_read returns the values. */
const rf_quant_tensor *rf_gguf_source_at(const rf_gguf_source *source, int index);
rf_status rf_gguf_source_read(const rf_gguf_source *source, int index, int64_t first, int64_t count,
                              float *out, rf_error *error);

/* Writes the same keys that rf_gguf_facts_read reads. Returns false if memory runs out. */
bool rf_gguf_facts_write(const rf_gguf_facts *facts, rf_gguf_meta *meta);
/* The facts of a model. RAFTER_FAILED: GGUF has no architecture for the model. */
rf_status rf_gguf_facts_of(const rf_model *model, rf_gguf_facts *facts, rf_error *error);

#endif
