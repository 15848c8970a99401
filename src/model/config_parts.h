/* config_parts.h - types that only config.c and config_rope.c share. */
#ifndef RF_CONFIG_PARTS_H
#define RF_CONFIG_PARTS_H

#include <stddef.h>

#include "base/json.h"
#include "model/model.h"

enum { INT, FLOAT, BOOL };
typedef struct config_field {
  const char *key, *other; /* `other` is a second name of the same field, or NULL */
  int type;
  bool required;
  double otherwise; /* value of a missing field; the value of a null field is 0 */
  size_t offset;
} config_field;

/* Maps an activation's name in config.json to an MLP kind. In a table of activations, the first
 * entry is the default, and an entry without a name ends the table. */
typedef struct activation {
  const char *text;
  rf_mlp_kind mlp;
} activation;

/* How to decide which layers have a window if config.json has no "layer_types". */
enum { NO_WINDOW, ALL_WINDOWED, EVERY_SECOND, PATTERN, QWEN_SWITCH };

/* A model type of config.json. GPT-2 is not in this table, because it has its own function. `base`
 * has the values that the type implies. Missing fields get the default values of transformers. */
typedef struct config_type {
  const char *type, *class;
  rf_model base;
  const config_field *field;
  int field_count;
  const activation *activation;
  /* `activation_key` is the field that names the activation. The field `activation_also` (may be
   * NULL) must name the same activation if it is present. */
  const char *activation_key, *activation_also;
  const char *theta_key;
  double theta, local_theta;
  const int64_t *shape; /* defaults of the fields in SHARED; NULL: most of these fields are required */
  int64_t kv_heads;     /* default of "num_key_value_heads"; 0, or null in the file: `heads` */
  int64_t positions;    /* default of "max_position_embeddings" */
  int windows;
  int64_t window; /* default of "sliding_window" */
  /* Default of "query_pre_attn_scalar". Attention scores are divided by the square root of this
   * field. 0: the type has no such field. */
  double query_scalar;
  int64_t head_dim; /* default of "head_dim"; 0: hidden_size / heads */
  bool tied;        /* default of "tie_word_embeddings" */
  int64_t bos, eos;
  const char *off[4]; /* fields that must be false or absent */
  const char *on;     /* a field that must be true or absent */
} config_type;

/* Reads the rotary parameters: theta, the rotated fraction of a head, and the scaling. Needs
 * model->head_dim and attn_scale. */
rf_status rf_config_read_rope(const json_t *json, const char *where, const config_type *type, rf_model *model,
                              rf_error *error);
void rf_config_write_rope(json_t *json, const config_type *type, const rf_model *model);

#endif
