/* model.h - what a transformer is: its architecture, its parameters, its weight files. Knows no
 * device.
 *
 * Letters used through the whole project:
 *   D width   F feed-forward width (one matrix)   N query heads   K key/value heads   H head
 *     width   L layers
 *   V vocabulary   T tokens of a sequence   n tokens of a microbatch (rows)   M rows of a matrix
 *     product
 *   E experts   k experts of a token */
#ifndef RF_MODEL_H
#define RF_MODEL_H

#include "base/base.h"

/* Whose names, config.json and chat a model has. What it computes stands in the other fields. */
typedef enum rf_family {
  RF_FAMILY_GPT,
  RF_FAMILY_LLAMA,
  RF_FAMILY_MISTRAL,
  RF_FAMILY_GEMMA,
  RF_FAMILY_GEMMA2,
  RF_FAMILY_GEMMA3,
  RF_FAMILY_QWEN2,
  RF_FAMILY_QWEN3,
  RF_FAMILY_NEOX,
  RF_FAMILY_MIXTRAL,
  RF_FAMILY_DEEPSEEK2,
  RF_FAMILY_DEEPSEEK3,
  RF_FAMILY_PALM,
  RF_FAMILIES
} rf_family;
enum { RF_EXPERTS_USED_MOST = 64 };
typedef enum rf_norm_kind { RF_NORM_LAYERNORM, RF_NORM_RMSNORM } rf_norm_kind;
/* the last two: gate and up */
typedef enum rf_mlp_kind { RF_MLP_GELU, RF_MLP_GELU_ERF, RF_MLP_SWIGLU, RF_MLP_GEGLU } rf_mlp_kind;
static inline bool rf_mlp_gated(rf_mlp_kind kind) { return kind == RF_MLP_SWIGLU || kind == RF_MLP_GEGLU; }
typedef enum rf_position_kind { RF_POSITION_LEARNED, RF_POSITION_ROPE } rf_position_kind;

/* Rotary positions: pair i of the first `dim` elements of a head turns by position *
 * rf_rope_frequency(rope, i). */
typedef enum rf_rope_scaling {
  RF_ROPE_PLAIN,
  RF_ROPE_LINEAR,
  RF_ROPE_LLAMA3,
  RF_ROPE_TABLE,
  RF_ROPE_YARN,
  RF_ROPE_DYNAMIC
} rf_rope_scaling;
enum { RF_ROPE_TABLE_MOST = 512, RF_LAYERS_MOST = 4096 };
typedef struct rf_rope {
  float theta;
  int32_t dim; /* even, at most H: the rest of a head is not turned */
  rf_rope_scaling scaling;
  float factor, low,
      /* LINEAR: factor; LLAMA3: all, as config.json's factor, low_freq_factor, high_freq_factor;
       * YARN: factor, beta_slow, beta_fast */
      high;
  float original; /* LLAMA3, YARN: positions the model was first trained on */
  /* the last `dim` elements of a head turn, as pairs (2i, 2i+1); else the first ones, as pairs
   * (i, i + dim/2) */
  bool tail;
  const float *divisor; /* TABLE: of each pair; belongs to the model that rf_model_rope was asked about */
} rf_rope;
/* Radians per position: theta^(-2i/dim); LINEAR: divided by factor; LLAMA3: wavelengths above
 * original/low divided by factor, below original/high kept, blended between; YARN (Peng et al.
 * 2023): the same with a blend that is linear over pairs; TABLE: divided by the pair's own
 * divisor. Source: transformers, modeling_rope_utils. */
double rf_rope_frequency(const rf_rope *rope, int64_t i);

/* Low-rank adapters (LoRA, Hu et al. 2021) beside frozen linear weights: y = x W + scale (x A)
 * B. A site is a run of a weight's columns that has A and B of its own (q, k and v of one fused
 * weight are three); those of one weight stand side by side in one A (K, sites*rank) and one B. */
enum { RF_LORA_LAYERS = 256, RF_LORA_PARTS = 3 };
typedef struct rf_lora {
  int32_t rank; /* r; 0: no adapters */
  float alpha;  /* scale = alpha / r, or alpha / sqrt(r) when rank_stabilized */
  bool rank_stabilized;
  float dropout;                  /* of what A reads, in training */
  uint16_t sites[RF_LORA_LAYERS]; /* by layer: bit i is site i of rf_lora_site_name */
  char folder[1024];              /* where A and B are loaded from; "": initialised */
} rf_lora;
static inline float rf_lora_scale(const rf_lora *lora) {
  return lora->alpha / (lora->rank_stabilized ? __builtin_sqrtf((float)lora->rank) : (float)lora->rank);
}

typedef struct rf_model {
  char name[96];
  rf_family family;
  int64_t layers, width, heads, kv_heads, head_dim, ff, vocab, max_seq; /* L D N K H F V T */
  rf_norm_kind norm;
  rf_mlp_kind mlp;
  /* E MLPs in each layer, of which a router gives every token k; 0: one plain MLP */
  int64_t experts, experts_used;
  int64_t expert_ff; /* F of one expert; 0: ff */
  /* beside those chosen, experts that every token meets: one MLP of experts_shared * expert_ff */
  int64_t experts_shared;
  int64_t first_dense; /* leading layers with one plain MLP of ff */
  /* a number for each expert joins its score where experts are chosen, not where they are
   * weighed; not learnt here */
  bool router_choice;
  bool router_sigmoid; /* scores are sigmoids of the router's logits; else their softmax */
  bool router_as_is;   /* the chosen scores are the weights; else they are divided by their sum */
  float router_scale;  /* weights are multiplied by it; 0: not */
  int32_t router_groups,
      /* experts are chosen from the best groups only: by their best, with sigmoids by the sum of
       * their best two; 0: from all */
      router_groups_used;
  /* share of a loss that balances the experts, which this program does not compute, ... */
  float router_aux;
  bool router_logits; /* ... and whether training adds it */
  /* training puts noise on the router's input, which is not computed either; 0: not */
  float router_jitter;
  rf_position_kind position;
  bool bias;      /* linear layers carry biases */
  bool head_bias; /* so does the head */
  bool tied;      /* the head is the token table */
  bool mlp_first; /* block order MLP, attention (uva); else attention, MLP */
  float norm_eps;
  rf_rope rope;          /* of layers that see all keys; dim 0: H */
  float local_theta;     /* of windowed layers, which are not scaled; 0: as the others */
  int32_t rope_divisors; /* with rope.scaling TABLE: how many, one for each pair */
  float rope_divisor[RF_ROPE_TABLE_MOST];
  bool qkv_bias;  /* q, k and v carry biases though nothing else does (qwen2) */
  bool attn_bias; /* so does what comes out of attention ("attention_bias") */
  bool mlp_bias;  /* and the plain MLP */
  bool qk_norm;   /* RMSNorm on every query and key head before they turn */
  /* the outputs of attention and MLP are normed before they join the residual stream (gemma2) */
  bool post_norms;
  bool parallel; /* attention and MLP both read the block's input (gpt-neox) */
  bool one_norm; /* and its one norm (palm) */
  /* Latent attention (DeepSeek-V2, arXiv 2405.04434): keys and values are made of a normed row
   * of kv_rank numbers, and rope_dim more turn and serve all heads. Queries have head_dim =
   * rope_dim + what meets the latent keys, and come through q_rank numbers. 0: ordinary
   * attention. */
  int64_t kv_rank, q_rank, rope_dim, value_dim;
  float norm_offset;     /* RMSNorm multiplies by offset + gain (gemma: 1) */
  float embed_scale;     /* token rows are multiplied by it; 0: not */
  float attn_scale;      /* scores are multiplied by it; 0: 1/sqrt(H) */
  float attn_softcap;    /* scores become cap tanh(score / cap); 0: not */
  float final_softcap;   /* so do the logits */
  int64_t window;        /* keys that a windowed layer sees; 0: all of them in every layer */
  int32_t window_period; /* every such layer is not windowed (gemma3: 6, gemma2: 2); 0: all are */
  bool window_listed;    /* in place of a period, one bit a layer says that it is not windowed */
  uint8_t window_full[RF_LAYERS_MOST / 8];
  float dropout;          /* the model's own default, on block outputs */
  int32_t bos_id, eos_id; /* -1: none */
  /* initialiser set: "gpt2" (normal 0.02, projections / sqrt(2L)), "flax" (lecun normal),
   * "llama" (normal 0.02) */
  const char *init;
  rf_lora lora; /* adapters that stand beside the weights; none unless a command asks for them */
  /* why this model can be planned but not run ("rope scaling llama3"); NULL: it runs */
  const char *plan_only;
} rf_model;

static inline int64_t rf_model_expert_ff(const rf_model *model) {
  return model->expert_ff ? model->expert_ff : model->ff;
}
static inline int64_t rf_model_value_dim(const rf_model *model) {
  return model->value_dim ? model->value_dim : model->head_dim;
}

const char *rf_family_name(rf_family family); /* "gpt", "llama", "gemma3", ... */
/* Keys that layer i sees (0: all), and how its heads turn. */
int64_t rf_model_window(const rf_model *model, int layer);
rf_rope rf_model_rope(const rf_model *model, int layer);

/* Whether the fields fit together (positive, bounded so that no product of them overflows, heads
 * / kv_heads whole). `where` begins the message. */
rf_status rf_model_check(const rf_model *model, const char *where, rf_error *error);
/* RAFTER_INVALID, with the reason, for a model that this version can only plan. */
rf_status rf_model_require_runnable(const rf_model *model, rf_error *error);
/* config.json of Hugging Face (gpt2, gpt_neox, llama, mistral, mixtral, gemma, gemma2,
 * gemma3_text, qwen2, qwen3, deepseek_v2, deepseek_v3). RAFTER_FAILED names the field that is
 * wrong or missing. */
rf_status rf_model_config_read(const char *path, rf_model *model, rf_error *error);
rf_status rf_model_config_parse(const char *text, size_t bytes, const char *where, rf_model *model,
                                rf_error *error);
/* Whether Hugging Face has a class for this model. When not (MLP first, a head with a bias, ...)
 * files are written with our own names. */
bool rf_model_is_hugging_face(const rf_model *model);
/* Writes the config.json that this program, and where rf_model_is_hugging_face other programs
 * too, read the same model from. `dtype`: of the weights beside it. */
rf_status rf_model_config_write(const rf_model *model, rf_dtype dtype, const char *path, rf_error *error);
/* The initialiser set of that name, as rf_model.init holds it; NULL when there is none. */
const char *rf_model_init(const char *name);
/* The name of a preset, NULL behind the last. */
const char *rf_model_preset(int index);

/* MODEL of the command line: a preset name, an inline shape `gpt:layers=4,width=512,...`, or a
 * folder with config.json, a .safetensors file with its config.json beside it, a .gguf file or a
 * llama2.c .bin. `vocab`, `seq` and the other keys of an inline shape override. A folder with
 * config.json that is called as a preset is the folder. A folder with PEFT's adapter_config.json
 * is the model that it names as its base, with lora.folder set. RAFTER_INVALID names the nearest
 * preset when the name is unknown. `folder` (may be NULL) gets the weight folder (or the one
 * .safetensors file that was named), or "". */
rf_status rf_model_resolve(const char *spec, rf_model *model, char folder[4096], rf_error *error);

/* Names of the parameters, in the model's order (i = 0 .. layers - 1; mlp_first: the mlp rows of
 * a block stand before its attn rows):
 *   embed/token/weight (V,D)   embed/position/weight (T,D)
 *   block.i/attn/norm/{gain,bias} (D)   block.i/attn/qkv/{weight (D,(N+2K)H),bias}
 *     block.i/attn/{q_norm,k_norm}/gain (H)
 *   block.i/attn/out/{weight (N*H,D),bias}   block.i/attn/post_norm/gain (D)
 *   block.i/mlp/norm/{gain,bias} (D)    block.i/mlp/{up (D,F) | gate_up (D,2F)}/{weight,bias}
 *     block.i/mlp/down/{weight (F,D),bias}
 *   block.i/mlp/post_norm/gain (D)
 *   with experts, in place of up, gate_up and down: block.i/mlp/router/weight (D,E),
 *     block.i/mlp/experts/gate_up/weight (E*D,2F),
 *   block.i/mlp/experts/down/weight (E*F,D): the experts' matrices below each other
 *   and block.i/mlp/router/choice (E), block.i/mlp/shared/{gate_up/weight (D,2SF), down/weight
 *     (SF,D)} where the model has them
 *   with latent attention (q, c: q_rank and kv_rank, R = rope_dim, W = value_dim), in place of
 *     qkv: block.i/attn/q/weight (D,N*H), or q_a/weight
 *   (D,q), q_a_norm/gain (q) and q_b/weight (q,N*H); block.i/attn/kv_a/weight (D,c+R),
 *     kv_a_norm/gain (c), kv_b/weight (c,N*(H-R+W)); out is (N*W,D)
 *   final/norm/{gain,bias} (D)   head/{weight (D,V), bias (V)}   (tied: no head/weight,
 *     embed/token/weight serves transposed)
 * Adapters stand behind all of these: block.i/attn/qkv/{lora_a (D, sites*r), lora_b (r, columns
 * of the sites)}, and so on. One row per kind of parameter; every user (count, init, load, save,
 * optimizer groups, graph builder, tests) walks these rows. */
typedef enum rf_part {
  RF_PART_EMBEDDING, /* tables that are looked up; a tied head has no elements of its own */
  RF_PART_QKV,       /* what makes queries, keys and values, biases too */
  RF_PART_SCORES,    /* attention between its projections: work, no parameters */
  RF_PART_OUT,
  RF_PART_MLP, /* of layers with one plain MLP */
  RF_PART_SHARED,
  RF_PART_EXPERTS,
  RF_PART_ROUTER,
  RF_PART_NORMS,
  RF_PART_HEAD,
  RF_PART_ADAPTER,
  RF_PARTS
} rf_part;
const char *rf_part_name(rf_part part); /* "embedding", "qkv", ... */
typedef enum rf_init { RF_INIT_ZEROS, RF_INIT_ONES, RF_INIT_NORMAL, RF_INIT_LECUN } rf_init;
typedef struct rf_param {
  const char *name; /* "block.3/attn/qkv/weight": also the graph's tensor name */
  int row;          /* which row of the table; of an adapter: that of the weight beside it */
  int adapts;       /* of an adapter: the parameter it stands beside; else -1 */
  int layer;        /* -1: global */
  int rank;
  /* linear weights are (in, out); tables are (V, D) and (T, D); the untied head is (D, V) */
  int64_t shape[2];
  int64_t count;   /* elements */
  int64_t experts; /* equal matrices that stand below each other in `shape`; 0: it is one */
  int expert;      /* of a slice: which one it is */
  bool decays;     /* weight decay applies (two axes) */
  bool lora;       /* a linear weight that LoRA may adapt */
  bool matmul;     /* multiplies every token (counts in P_mm) */
  bool frozen;     /* never learnt by gradient */
  bool embedding;  /* a table that is looked up */
  int shard_axis;  /* the axis that tensor parallelism splits; -1: replicated */
  rf_part part;    /* of the model, as counts and work are told apart */
  rf_init init;
  float init_std; /* of RF_INIT_NORMAL and RF_INIT_LECUN (1/sqrt(fan_in)) */
} rf_param;

typedef struct rf_params {
  int count;
  const rf_param *at; /* in the model's order */
  int64_t total;      /* elements: P */
  /* of them, those that a token meets: all but the experts that the router did not choose */
  int64_t active;
  /* elements that multiply every token (tied: the table counts once; of the experts those
   * chosen): P_mm */
  int64_t matmul;
  int64_t embedding; /* elements of lookup tables */
  /* parameters of the model itself, which total, matmul and embedding count; the rest are
   * adapters */
  int base;
  int64_t adapter;        /* elements of adapters: P_lora */
  int64_t part[RF_PARTS]; /* elements by part: all but the adapters' sum to total */
} rf_params;

/* The parameter table of a model, in `pool`. */
rf_params rf_model_params(const rf_model *model, rf_pool *pool);
/* One of a parameter's experts as a parameter of its own, which begins behind expert * count
 * elements of the whole; the parameter itself without. */
rf_param rf_param_slice(const rf_param *param, int expert);
/* As a matrix: vectors are one row. */
static inline int64_t rf_param_height(const rf_param *param) {
  return param->rank == 2 ? param->shape[0] : 1;
}
static inline int64_t rf_param_width(const rf_param *param) { return param->shape[param->rank - 1]; }
static inline int rf_param_slices(const rf_param *param) {
  return param->experts > 0 ? (int)param->experts : 1;
}

/* The model's own parameters without adapters: what weight files hold. */
static inline rf_params rf_params_of_base(const rf_params *params) {
  rf_params base = *params;
  base.count = base.base;
  return base;
}

/* Where the adapters of one weight act: part i reads columns [i r, (i+1) r) of x A and joins
 * columns [at[i], at[i] + columns[i]) of x W; its B stands behind those of the parts before it. */
typedef struct rf_lora_parts {
  int32_t count, rank;
  int32_t at[RF_LORA_PARTS], columns[RF_LORA_PARTS], site[RF_LORA_PARTS];
} rf_lora_parts;

/* Sites: "attn/q", "attn/k", "attn/v", "attn/kv", "attn/qkv", "attn/out", "mlp/gate", "mlp/up",
 * "mlp/gate_up", "mlp/down"; NULL behind the last. */
const char *rf_lora_site_name(int site);
/* The columns of `param` (of layer >= 0) that site covers; false when it is not a site of this
 * parameter and model: the files of a family must have its columns as one tensor, or as several
 * whole ones. */
bool rf_lora_site_columns(const rf_model *model, const rf_param *param, int site, int64_t *at,
                          int64_t *columns);
/* The sites of model->lora beside `param`, in the order of their columns; count 0: none. */
rf_lora_parts rf_lora_parts_of(const rf_model *model, const rf_param *param);
/* What Hugging Face's files call the linear layer of a site, without the family's prefix:
 * "layers.3.self_attn.q_proj"; "" when it is none. */
typedef struct rf_lora_module_name {
  char text[128];
} rf_lora_module_name;
rf_lora_module_name rf_lora_module(const rf_model *model, const rf_param *param, int site);
/* Reads `rank=16,alpha=32,targets=q,v,dropout=0.05,rslora` for this model; what is not said:
 * rank 16, alpha 2 rank, every linear layer, no dropout. A target is a site's last word, a
 * module name of Hugging Face (q_proj, c_attn, ...), "all", or ~REGEX over whole names of sites
 * ("block.3/attn/q") or parameters. RAFTER_INVALID names what it does not know. */
rf_status rf_lora_parse(const char *text, const rf_model *model, rf_lora *lora, rf_error *error);

/* The rows of the table behind rf_param.row: how many, and the name of one without its block
 * ("attn/qkv/weight"). */
int rf_param_rows(void);
const char *rf_param_row_name(int row);

/* Fills `count` f32 values from `first` on of a parameter's initialiser: the same values
 * whatever the chunking (Philox keyed by seed and name). */
void rf_param_init(const rf_param *param, uint64_t seed, int64_t first, int64_t count, float *out);

#endif
