/* params.c - the parameter table, which has one row for each kind of parameter. The list of a
 * model's parameters follows from the table. All code that handles parameters uses the table and
 * the list. */
#include "model/model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Conditions of a row. A model has a row's parameter if the model meets all conditions of the
 * row. */
enum {
  IF_OUT_BIAS = 1,
  IF_LAYERNORM = 2,
  IF_LEARNED = 4,
  IF_UP = 8,
  IF_GATED = 16,
  IF_UNTIED = 32,
  IF_HEAD_BIAS = 64,
  IF_QKV_BIAS = 128,
  IF_QK_NORM = 256,
  IF_POST_NORMS = 512,
  IF_PLAIN = 1024,
  IF_EXPERTS = 2048,
  /* WHOLE: one matrix gives queries, keys, values. LATENT: a latent row gives keys and values. */
  IF_WHOLE = 4096,
  IF_LATENT = 8192,
  IF_Q_WHOLE = 16384,
  IF_Q_LATENT = 32768,
  IF_SHARED = 65536,
  IF_CHOICE = 131072,
  IF_MLP_NORM = 262144,
  IF_MLP_BIAS = 524288
};
/* Place of a row: before the blocks, in a block's attention part, in its MLP part, or after the
 * blocks. */
enum { FIRST, ATTN, MLP, LAST };
/* Kind of a row. As in PEFT, LoRA adapts LINEAR rows, but neither routers nor experts. */
enum { LINEAR, ROUTER, EXPERTS, TABLE, HEAD, GAIN, BIAS, CHOICE };

typedef struct param_row {
  const char *name;
  char shape[3]; /* letters of extent_of() below */
  unsigned char place, kind;
  unsigned needs;
  /* true: the output goes to the residual stream; GPT-2 divides the initial values by sqrt(2L) */
  bool residual;
  signed char shard; /* axis that tensor parallelism shards */
  rf_part part;
} param_row;

// clang-format off
static const param_row ROWS[] = {
  {"embed/token/weight", "VD", FIRST, TABLE, 0, false, 0, RF_PART_EMBEDDING},
  {"embed/position/weight", "TD", FIRST, TABLE, IF_LEARNED, false, -1, RF_PART_EMBEDDING},
  {"attn/norm/gain", "D", ATTN, GAIN, 0, false, -1, RF_PART_NORMS},
  {"attn/norm/bias", "D", ATTN, BIAS, IF_LAYERNORM, false, -1, RF_PART_NORMS},
  {"attn/q/weight", "DC", ATTN, LINEAR, IF_LATENT | IF_Q_WHOLE, false, 1, RF_PART_QKV},
  {"attn/q_a/weight", "Dq", ATTN, LINEAR, IF_LATENT | IF_Q_LATENT, false, -1, RF_PART_QKV},
  {"attn/q_a_norm/gain", "q", ATTN, GAIN, IF_LATENT | IF_Q_LATENT, false, -1, RF_PART_NORMS},
  {"attn/q_b/weight", "qC", ATTN, LINEAR, IF_LATENT | IF_Q_LATENT, false, 1, RF_PART_QKV},
  {"attn/kv_a/weight", "Da", ATTN, LINEAR, IF_LATENT, false, -1, RF_PART_QKV},
  {"attn/kv_a_norm/gain", "c", ATTN, GAIN, IF_LATENT, false, -1, RF_PART_NORMS},
  {"attn/kv_b/weight", "cb", ATTN, LINEAR, IF_LATENT, false, 1, RF_PART_QKV},
  {"attn/qkv/weight", "DQ", ATTN, LINEAR, IF_WHOLE, false, 1, RF_PART_QKV},
  {"attn/qkv/bias", "Q", ATTN, BIAS, IF_WHOLE | IF_QKV_BIAS, false, 0, RF_PART_QKV},
  {"attn/q_norm/gain", "H", ATTN, GAIN, IF_QK_NORM, false, -1, RF_PART_NORMS},
  {"attn/k_norm/gain", "H", ATTN, GAIN, IF_QK_NORM, false, -1, RF_PART_NORMS},
  {"attn/out/weight", "OD", ATTN, LINEAR, 0, true, 0, RF_PART_OUT},
  {"attn/out/bias", "D", ATTN, BIAS, IF_OUT_BIAS, false, -1, RF_PART_OUT},
  {"attn/post_norm/gain", "D", ATTN, GAIN, IF_POST_NORMS, false, -1, RF_PART_NORMS},
  {"mlp/norm/gain", "D", MLP, GAIN, IF_MLP_NORM, false, -1, RF_PART_NORMS},
  {"mlp/norm/bias", "D", MLP, BIAS, IF_LAYERNORM | IF_MLP_NORM, false, -1, RF_PART_NORMS},
  {"mlp/up/weight", "DF", MLP, LINEAR, IF_UP | IF_PLAIN, false, 1, RF_PART_MLP},
  {"mlp/up/bias", "F", MLP, BIAS, IF_UP | IF_MLP_BIAS, false, 0, RF_PART_MLP},
  {"mlp/gate_up/weight", "DG", MLP, LINEAR, IF_GATED | IF_PLAIN, false, 1, RF_PART_MLP},
  {"mlp/gate_up/bias", "G", MLP, BIAS, IF_GATED | IF_PLAIN | IF_MLP_BIAS, false, 0, RF_PART_MLP},
  {"mlp/down/weight", "FD", MLP, LINEAR, IF_PLAIN, true, 0, RF_PART_MLP},
  {"mlp/down/bias", "D", MLP, BIAS, IF_MLP_BIAS, false, -1, RF_PART_MLP},
  {"mlp/router/weight", "DE", MLP, ROUTER, IF_EXPERTS, false, -1, RF_PART_ROUTER},
  {"mlp/router/choice", "E", MLP, CHOICE, IF_EXPERTS | IF_CHOICE, false, -1, RF_PART_ROUTER},
  {"mlp/shared/gate_up/weight", "DS", MLP, LINEAR, IF_EXPERTS | IF_SHARED, false, 1, RF_PART_SHARED},
  {"mlp/shared/down/weight", "sD", MLP, LINEAR, IF_EXPERTS | IF_SHARED, true, 0, RF_PART_SHARED},
  {"mlp/experts/gate_up/weight", "Xg", MLP, EXPERTS, IF_EXPERTS, false, 1, RF_PART_EXPERTS},
  {"mlp/experts/down/weight", "YD", MLP, EXPERTS, IF_EXPERTS, true, 0, RF_PART_EXPERTS},
  {"mlp/post_norm/gain", "D", MLP, GAIN, IF_POST_NORMS, false, -1, RF_PART_NORMS},
  {"final/norm/gain", "D", LAST, GAIN, 0, false, -1, RF_PART_NORMS},
  {"final/norm/bias", "D", LAST, BIAS, IF_LAYERNORM, false, -1, RF_PART_NORMS},
  {"head/weight", "DV", LAST, HEAD, IF_UNTIED, false, 1, RF_PART_HEAD},
  {"head/bias", "V", LAST, BIAS, IF_HEAD_BIAS, false, 0, RF_PART_HEAD},
};
// clang-format on
enum { ROW_COUNT = sizeof ROWS / sizeof ROWS[0] };

static unsigned features_of(const rf_model *model, int layer) {
  bool experts = model->experts > 0 && layer >= model->first_dense;
  return (model->kv_rank > 0 ? IF_LATENT : IF_WHOLE) | (model->q_rank > 0 ? IF_Q_LATENT : IF_Q_WHOLE) |
         (model->experts_shared > 0 ? IF_SHARED : 0) | (model->router_choice ? IF_CHOICE : 0) |
         (model->one_norm ? 0 : IF_MLP_NORM) | (model->bias || model->attn_bias ? IF_OUT_BIAS : 0) |
         (model->bias || model->mlp_bias ? IF_MLP_BIAS : 0) |
         (model->norm == RF_NORM_LAYERNORM ? IF_LAYERNORM : 0) |
         (model->position == RF_POSITION_LEARNED ? IF_LEARNED : 0) |
         (rf_mlp_gated(model->mlp) ? IF_GATED : IF_UP) | (model->tied ? 0 : IF_UNTIED) |
         (model->head_bias ? IF_HEAD_BIAS : 0) |
         (model->bias || model->attn_bias || model->qkv_bias ? IF_QKV_BIAS : 0) |
         (model->qk_norm ? IF_QK_NORM : 0) | (model->post_norms ? IF_POST_NORMS : 0) |
         (experts ? IF_EXPERTS : IF_PLAIN);
}

static int64_t extent_of(const rf_model *model, char letter) {
  switch (letter) {
  case 'V': return model->vocab;
  case 'D': return model->width;
  case 'T': return model->max_seq;
  case 'F': return model->ff;
  case 'H': return model->head_dim;
  case 'G': return 2 * model->ff;
  case 'E': return model->experts;
  case 'X': return model->experts * model->width;
  case 'Y': return model->experts * rf_model_expert_ff(model);
  case 'g': return 2 * rf_model_expert_ff(model);
  case 's': return model->experts_shared * rf_model_expert_ff(model);
  case 'S': return 2 * model->experts_shared * rf_model_expert_ff(model);
  case 'C': return model->heads * model->head_dim;
  case 'O': return model->heads * rf_model_value_dim(model);
  case 'q': return model->q_rank;
  case 'c': return model->kv_rank;
  case 'a': return model->kv_rank + model->rope_dim;
  case 'b': return model->heads * (model->head_dim - model->rope_dim + rf_model_value_dim(model));
  case 'Q': return (model->heads + 2 * model->kv_heads) * model->head_dim;
  default: return 0;
  }
}

/* Sets the initialiser of a row's parameter. Sources: GPT-2's code and its Hugging Face port
 * (normal 0.02, projections into the residual stream divided by sqrt(2L)); flax's defaults (lecun
 * normal kernels, embeddings of variance 1/D); Llama's Hugging Face port. */
static void set_initialiser(const rf_model *model, const param_row *row, rf_param *param) {
  bool flax = model->init && strcmp(model->init, "flax") == 0,
       gpt2 = model->init && strcmp(model->init, "gpt2") == 0;
  param->init = row->kind == GAIN && model->norm_offset == 0 ? RF_INIT_ONES
                : row->kind <= HEAD                          ? RF_INIT_NORMAL
                                                             : RF_INIT_ZEROS;
  if (param->init != RF_INIT_NORMAL) return;
  param->init_std = 0.02f;
  if (flax && row->kind != TABLE) {
    param->init = RF_INIT_LECUN;
    param->init_std = (float)(1.0 / sqrt((double)(param->shape[0] / rf_param_slices(param))));
  } else if (flax && row->shape[0] == 'V') {
    param->init_std = (float)(1.0 / sqrt((double)model->width));
  } else if (gpt2 && row->residual) {
    param->init_std = (float)(0.02 / sqrt(2.0 * (double)model->layers));
  }
}

static void add_param(const rf_model *model, rf_pool *pool, int row_index, int layer, rf_params *params,
                      rf_param *param) {
  const param_row *row = &ROWS[row_index];
  memset(param, 0, sizeof *param);
  param->name = layer < 0 ? row->name : rf_pool_format(pool, "block.%d/%s", layer, row->name);
  param->row = row_index;
  param->layer = layer;
  param->adapts = -1;
  param->rank = (int)strlen(row->shape);
  param->count = 1;
  param->shape[1] = 1;
  for (int i = 0; i < param->rank; ++i) param->count *= param->shape[i] = extent_of(model, row->shape[i]);
  param->experts = row->kind == EXPERTS ? model->experts : 0;
  param->decays = param->rank == 2;
  param->lora = row->kind == LINEAR && row->part != RF_PART_SHARED;
  param->frozen = row->kind == CHOICE;
  param->embedding = row->kind == TABLE;
  param->matmul = row->kind <= EXPERTS || row->kind == HEAD ||
                  (model->tied && row->kind == TABLE && row->shape[0] == 'V');
  param->shard_axis = row->shard;
  param->part = row->part;
  set_initialiser(model, row, param);
  int64_t active = param->experts ? param->count / model->experts * model->experts_used : param->count;
  params->total += param->count;
  params->active += active;
  params->part[param->part] += param->count;
  if (param->matmul) params->matmul += active;
  if (param->embedding) params->embedding += param->count;
  if (param->matmul && row->kind > EXPERTS) params->head += param->count;
}

/* Adds two parameters for the sites of a weight, one with the A matrices and one with the B
 * matrices. A starts with the standard deviation of PEFT's initialisation (kaiming uniform, a =
 * sqrt 5), which is 1/sqrt(3K). B starts at 0. */
static void add_adapter(const rf_lora_parts *parts, rf_pool *pool, int adapts, rf_params *params,
                        rf_param *param) {
  const rf_param *base = &params->at[adapts];
  const int64_t columns = rf_lora_joined(parts, parts->count);
  for (int side = 0; side < 2; ++side, ++param) {
    *param = (rf_param){
        .name = rf_pool_format(pool, "%.*s%s", (int)(strlen(base->name) - strlen("weight")), base->name,
                               side ? "lora_b" : "lora_a"),
        .row = base->row,
        .adapts = adapts,
        .layer = base->layer,
        .rank = 2,
        .shape = {side ? parts->rank : base->shape[0], side ? columns : (int64_t)parts->count * parts->rank},
        .decays = true,
        .shard_axis = -1,
        .part = RF_PART_ADAPTER,
        .init = side ? RF_INIT_ZEROS : RF_INIT_NORMAL,
        .init_std = side ? 0 : (float)(1.0 / sqrt(3.0 * (double)base->shape[0]))};
    param->count = param->shape[0] * param->shape[1];
    params->adapter += param->count;
    params->part[RF_PART_ADAPTER] += param->count;
    params->count++;
  }
}

rf_params rf_model_params(const rf_model *model, rf_pool *pool) {
  rf_params params = {0};
  unsigned have = features_of(model, 0);
  int per_place[4] = {0};
  for (int i = 0; i < ROW_COUNT; ++i)
    per_place[ROWS[i].place] += (ROWS[i].needs & ~(have | IF_EXPERTS | IF_PLAIN)) == 0;
  int64_t capacity = per_place[FIRST] + per_place[LAST] + model->layers * (per_place[ATTN] + per_place[MLP]);
  if (model->lora.rank > 0) capacity *= 3; /* memory for one A and one B per parameter */
  rf_param *param = rf_pool_alloc(pool, (size_t)capacity * sizeof *param);
  params.at = param;
  for (int i = 0; i < ROW_COUNT; ++i)
    if (ROWS[i].place == FIRST && !(ROWS[i].needs & ~have))
      add_param(model, pool, i, -1, &params, &param[params.count++]);
  for (int layer = 0; layer < model->layers; ++layer)
    for (int part = 0; part < 2; ++part) {
      have = features_of(model, layer);
      int place = (part == 0) == model->mlp_first ? MLP : ATTN;
      for (int i = 0; i < ROW_COUNT; ++i)
        if (ROWS[i].place == place && !(ROWS[i].needs & ~have))
          add_param(model, pool, i, layer, &params, &param[params.count++]);
    }
  for (int i = 0; i < ROW_COUNT; ++i)
    if (ROWS[i].place == LAST && !(ROWS[i].needs & ~have))
      add_param(model, pool, i, -1, &params, &param[params.count++]);
  params.base = params.count;
  for (int i = 0; i < params.base && model->lora.rank > 0; ++i) {
    rf_lora_parts parts = rf_lora_parts_of(model, &params.at[i]);
    if (parts.count) add_adapter(&parts, pool, i, &params, &param[params.count]);
  }
  return params;
}

rf_param rf_param_slice(const rf_param *param, int expert) {
  rf_param slice = *param;
  if (param->experts == 0) return slice;
  slice.shape[0] /= param->experts;
  slice.count /= param->experts;
  slice.expert = expert;
  return slice;
}

int rf_param_rows(void) { return ROW_COUNT; }

const char *rf_param_row_name(int row) { return row >= 0 && row < ROW_COUNT ? ROWS[row].name : NULL; }

const char *rf_part_name(rf_part part) {
  static const char *const names[] = {"embedding", "qkv",    "scores", "out",  "mlp",    "shared",
                                      "experts",   "router", "norms",  "head", "adapter"};
  _Static_assert(sizeof names / sizeof *names == RF_PARTS, "every part of a layer has a name");
  return (unsigned)part < RF_PARTS ? names[part] : "unknown";
}
