/* config_parts.h - the rows of config.c, which config_rope.c reads too. Private to them. */
#ifndef RF_CONFIG_PARTS_H
#define RF_CONFIG_PARTS_H

#include <stddef.h>

#include "base/json.h"
#include "model/model.h"

enum { INT, FLOAT, BOOL };
typedef struct config_field {
  const char *key, *other; /* `other`: another name of the same field */
  int type;
  bool required;
  double otherwise; /* what Hugging Face takes when it is missing; 0 where it is null */
  size_t offset;
} config_field;

/* What one text of a field means; a table of them ends with text NULL, and its first row is what
 * a missing field means. */
typedef struct activation {
  const char *text;
  rf_mlp_kind mlp;
} activation;

/* How a type says which layers are windowed when there is no "layer_types". */
enum { NO_WINDOW, ALL_WINDOWED, EVERY_SECOND, PATTERN, QWEN_SWITCH };

/* The model types beside GPT-2, which has a reader of its own. `base`: what the type alone
 * implies; "when it is missing": what transformers' class of the type takes. */
typedef struct config_type {
  const char *type, *class;
  rf_model base;
  const config_field *field;
  int field_count;
  const activation *activation;
  /* the field that counts; another one that must say the same where it is there (may be NULL) */
  const char *activation_key, *activation_also;
  const char *theta_key;
  double theta, local_theta;
  /* layers, widths and the like, when they may be missing; NULL: most must be there */
  const config_field *shape;
  int64_t kv_heads;  /* when "num_key_value_heads" is missing, which is not null; 0: as the heads */
  int64_t positions; /* when "max_position_embeddings" is missing */
  int windows;
  int64_t window; /* when "sliding_window" is missing */
  /* scores are divided by the root of "query_pre_attn_scalar", this when it is missing; 0: no
   * such field */
  double query_scalar;
  int64_t head_dim; /* when it is missing; 0: hidden_size / heads */
  bool tied;        /* when it is missing */
  int64_t bos, eos;
  const char *off[4]; /* fields that must be false or absent */
  const char *on;     /* one that must be true or absent */
} config_type;

/* The base, share and scaling of the angles; model->head_dim and attn_scale are set. */
rf_status rf_config_read_rope(const json_t *json, const char *where, const config_type *type, rf_model *model,
                              rf_error *error);
void rf_config_write_rope(json_t *json, const config_type *type, const rf_model *model);

#endif
