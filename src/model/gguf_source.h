/* gguf_source.h - any model this program reads, as the metadata and tensors of a GGUF file: what
 * a converter walks. */
#ifndef RF_GGUF_SOURCE_H
#define RF_GGUF_SOURCE_H

#include "formats/gguf_facts.h"
#include "model/model.h"

typedef struct rf_gguf_source rf_gguf_source;
/* `path`: a .gguf file, a llama2.c .bin file, or a folder with config.json and safetensors in
 * Hugging Face's names. Names, shapes and types are checked here; RAFTER_FAILED says what is
 * missing or has no place in a GGUF file. */
rf_status rf_gguf_source_open(const char *path, rf_gguf_source **source, rf_error *error);
void rf_gguf_source_close(rf_gguf_source *source); /* NULL is allowed */
/* Metadata to write, which the caller may add to; belongs to the source. A folder's tokenizer
 * and chat template stand in it where GGUF has a place for them. */
rf_gguf_meta *rf_gguf_source_meta(rf_gguf_source *source);
bool rf_gguf_source_has_tokenizer(const rf_gguf_source *source);
const char *rf_gguf_source_note(const rf_gguf_source *source); /* why there is none */
int rf_gguf_source_count(const rf_gguf_source *source);
/* data is NULL where the values are turned, moved or widened on their way: only
 * rf_gguf_source_read gives them. */
const rf_quant_tensor *rf_gguf_source_at(const rf_gguf_source *source, int index);
rf_status rf_gguf_source_read(const rf_gguf_source *source, int index, int64_t first, int64_t count,
                              float *out, rf_error *error);

/* The keys that rf_gguf_facts_read reads. false: no memory. */
bool rf_gguf_facts_write(const rf_gguf_facts *facts, rf_gguf_meta *meta);
/* Facts of a model from config.json. RAFTER_FAILED for what GGUF has no architecture for. */
rf_status rf_gguf_facts_of(const rf_model *model, rf_gguf_facts *facts, rf_error *error);

#endif
