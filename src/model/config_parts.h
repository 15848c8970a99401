/* config_parts.h - types shared by config.c and config_rope.c; private to them. */
#ifndef RF_CONFIG_PARTS_H
#define RF_CONFIG_PARTS_H

#include <stddef.h>

#include "base/json.h"
#include "model/model.h"

enum { INT, FLOAT, BOOL };
typedef struct config_field {
  const char *key, *other; /* `other`: a second name of the same field, or NULL */
  int type;
  bool required;
  double otherwise; /* value of a missing field; the value of a null field is 0 */
  size_t offset;
} config_field;

/* Maps an activation's name in config.json to an MLP kind. In a table of such entries, the first
 * entry is the default, and an entry without a name is the end. */
typedef struct activation {
  const char *text;
  rf_mlp_kind mlp;
} activation;

/* How to decide which layers have a window if config.json has no "layer_types". */
enum { NO_WINDOW, ALL_WINDOWED, EVERY_SECOND, PATTERN, QWEN_SWITCH };

/* A model type of config.json, except GPT-2, which has a function of its own. `base` has the values
 * that the type implies. Missing fields get the defaults of transformers. */
typedef struct config_type {
  const char *type, *class;
  rf_model base;
  const config_field *field;
  int field_count;
  const activation *activation;
  /* `activation_key` is the field that names the activation. The field `activation_also` (may be
   * NULL), if present, must name the same activation. */
  const char *activation_key, *activation_also;
  const char *theta_key;
  double theta, local_theta;
  const int64_t *shape; /* defaults of the fields in SHARED; NULL: most are required */
  int64_t kv_heads;     /* default of "num_key_value_heads"; 0 or a null field means `heads` */
  int64_t positions;    /* default of "max_position_embeddings" */
  int windows;
  int64_t window; /* default of "sliding_window" */
  /* Default of "query_pre_attn_scalar"; attention scores are divided by its square root. 0: the
   * type has no such field. */
  double query_scalar;
  int64_t head_dim; /* default of "head_dim"; 0: hidden_size / heads */
  bool tied;        /* default of "tie_word_embeddings" */
  int64_t bos, eos;
  const char *off[4]; /* fields that must be false or absent */
  const char *on;     /* a field that must be true or absent */
} config_type;

/* Reads the rotary parameters: theta, the fraction of a head that is rotated, and the scaling.
 * Needs model->head_dim and attn_scale. */
rf_status rf_config_read_rope(const json_t *json, const char *where, const config_type *type, rf_model *model,
                              rf_error *error);
void rf_config_write_rope(json_t *json, const config_type *type, const rf_model *model);

#endif
