/* model.h - describes a transformer: its architecture, parameters and weight files. Nothing in this
 * header depends on a device.
 *
 * Letters used in the whole project:
 *   D width   F feed-forward width (one matrix)   N query heads   K key/value heads   H head width
 *   L layers   V vocabulary   T tokens of a sequence   n tokens of a microbatch (rows)
 *   M rows of a matrix product   E experts   k experts of a token */
#ifndef RF_MODEL_H
#define RF_MODEL_H

#include "base/base.h"

/* The family decides the names of tensors, config.json and the chat format. The other fields of
 * rf_model say what the model computes. */
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
enum { RF_EXPERTS_USED_MAX = 64 };
typedef enum rf_norm_kind { RF_NORM_LAYERNORM, RF_NORM_RMSNORM } rf_norm_kind;
/* SWIGLU and GEGLU have a gate and an up matrix. */
typedef enum rf_mlp_kind { RF_MLP_GELU, RF_MLP_GELU_ERF, RF_MLP_SWIGLU, RF_MLP_GEGLU } rf_mlp_kind;
static inline bool rf_mlp_gated(rf_mlp_kind kind) { return kind == RF_MLP_SWIGLU || kind == RF_MLP_GEGLU; }
typedef enum rf_position_kind { RF_POSITION_LEARNED, RF_POSITION_ROPE } rf_position_kind;

/* Rotary positions: pair i of the first `dim` elements of a head is rotated by position *
 * rf_rope_frequency(rope, i). */
typedef enum rf_rope_scaling {
  RF_ROPE_PLAIN,
  RF_ROPE_LINEAR,
  RF_ROPE_LLAMA3,
  RF_ROPE_TABLE,
  RF_ROPE_YARN,
  RF_ROPE_DYNAMIC
} rf_rope_scaling;
enum { RF_ROPE_TABLE_MAX = 512, RF_LAYERS_MAX = 4096 };
typedef struct rf_rope {
  float theta;
  int32_t dim; /* number of rotated elements of a head: even, at most H; the others are not rotated */
  rf_rope_scaling scaling;
  /* Parameters of the scaling, with their names in config.json in brackets. LINEAR: factor. LLAMA3:
   * factor, low (low_freq_factor), high (high_freq_factor). YARN: factor, low (beta_slow), high
   * (beta_fast). */
  float factor, low, high;
  float original; /* LLAMA3, YARN: number of positions in the original training */
  /* True: the last `dim` elements of a head are rotated, in pairs (2i, 2i+1). False: the first
   * `dim` elements are rotated, in pairs (i, i + dim/2). */
  bool tail;
  const float *divisor; /* TABLE: one divisor for each pair, in an array that the rf_model owns */
} rf_rope;
/* Returns the frequency of pair i, in radians per position. PLAIN: theta^(-2i/dim). LINEAR: plain
 * frequency / factor. LLAMA3 divides the frequency by factor for wavelengths above original/low,
 * keeps the frequency for wavelengths below original/high, and blends in between. YARN (Peng et al.
 * 2023) is like LLAMA3, but its blend is linear in the index of the pair. TABLE divides the
 * frequency by the divisor of the pair. Source: transformers, modeling_rope_utils. */
double rf_rope_frequency(const rf_rope *rope, int64_t i);

/* Low-rank adapters (LoRA, Hu et al. 2021) of frozen linear weights: `y = x W + scale (x A) B`. A
 * site is a range of a weight's columns that has its own A and B. For example, q, k and v of a
 * fused weight are three sites. One parameter (K, sites*rank) holds the A matrices of all sites of
 * a weight, next to each other. Another parameter holds the B matrices. */
enum { RF_LORA_LAYERS = 256, RF_LORA_PARTS = 3, RF_LORA_MAX_RANK = 1024 };
typedef struct rf_lora {
  int32_t rank; /* r; 0: no adapters */
  float alpha;  /* scale = alpha / r, or alpha / sqrt(r) when rank_stabilized */
  bool rank_stabilized;
  float dropout;                  /* dropout of the input of A, only in training */
  uint16_t sites[RF_LORA_LAYERS]; /* for each layer: bit i is set if site i has an adapter */
  char folder[1024];              /* folder from which A and B are loaded; "": A and B are initialised */
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
  /* A layer has `experts` MLPs, and a router sends each token to `experts_used` of them. If
   * `experts` is 0, the layer has one plain MLP. */
  int64_t experts, experts_used;
  int64_t expert_ff; /* F of one expert; 0: ff */
  /* Number of shared experts. Every token uses all shared experts, in addition to its chosen
   * experts. The shared experts form one MLP of width experts_shared * expert_ff. */
  int64_t experts_shared;
  int64_t first_dense; /* number of first layers that have one plain MLP of width ff */
  /* True: each expert has a number that is added to its score when the router chooses experts. This
   * number does not affect the weight of a chosen expert. Training does not update the numbers of
   * experts. */
  bool router_choice;
  bool router_sigmoid;   /* true: scores are the sigmoid of the router's logits; false: their softmax */
  bool router_as_is;     /* true: an expert's weight is its score; false: score / sum of the chosen scores */
  float router_scale;    /* factor of the experts' weights; 0: no factor */
  int32_t router_groups, /* number of groups that the experts form; 0: no groups */
      /* Experts are chosen only from the best router_groups_used groups. A group's score is the
       * score of its best expert. With sigmoids, a group's score is the sum of the scores of its
       * two best experts. */
      router_groups_used;
  /* Coefficient of the loss that balances experts. rafter does not compute this loss. */
  float router_aux;
  bool router_logits; /* true: training adds the loss that balances experts */
  /* Noise that training adds to the router's input; 0: no noise. rafter does not add this noise. */
  float router_jitter;
  rf_position_kind position;
  bool bias;      /* linear layers have biases */
  bool head_bias; /* the head has a bias */
  bool tied;      /* true: the head is the token embedding */
  bool mlp_first; /* true: a block runs the MLP before attention (uva) */
  float norm_eps;
  rf_rope rope; /* rotary positions of layers with full attention; rope.dim 0 means H */
  /* theta of windowed layers, whose positions are not scaled; 0: windowed layers also use `rope` */
  float local_theta;
  int32_t rope_divisors; /* number of divisors of the scaling TABLE, one for each pair */
  float rope_divisor[RF_ROPE_TABLE_MAX];
  bool qkv_bias;  /* only q, k and v have biases (qwen2) */
  bool attn_bias; /* true: attention's linear layers have biases ("attention_bias") */
  bool mlp_bias;  /* true: the plain MLP has biases */
  bool qk_norm;   /* true: every query and key head is normalised before its rotation */
  /* True: an RMSNorm is applied to each sublayer's output before the residual addition (gemma2). */
  bool post_norms;
  bool parallel; /* true: attention and MLP both read the block's input (gpt-neox) */
  bool one_norm; /* true: attention and MLP share one norm (palm) */
  /* Sizes of latent attention (DeepSeek-V2, arXiv 2405.04434); kv_rank 0: ordinary attention. Keys
   * and values are computed from a normalised row of kv_rank numbers. The keys of all heads share
   * rope_dim further elements, which are rotated. A query head has head_dim elements, and rope_dim
   * of them are rotated. Queries are computed from a row of q_rank numbers. If q_rank is 0, queries
   * are computed from the input. */
  int64_t kv_rank, q_rank, rope_dim, value_dim;
  float norm_offset;     /* RMSNorm multiplies by offset + gain (gemma: 1) */
  float embed_scale;     /* factor of the token embeddings; 0: no factor */
  float attn_scale;      /* factor of the attention scores; 0: the factor is 1/sqrt(H) */
  float attn_softcap;    /* attention scores become cap tanh(score / cap); 0: no cap */
  float final_softcap;   /* logits become cap tanh(logit / cap); 0: no cap */
  int64_t window;        /* number of keys that a windowed layer attends to; 0: no layer is windowed */
  int32_t window_period; /* every window_period-th layer attends to all keys (gemma2: 2); 0: no such layer */
  /* true: window_full replaces window_period; bit i is 1 if layer i has full attention */
  bool window_listed;
  uint8_t window_full[RF_LAYERS_MAX / 8];
  float dropout;          /* the model's default dropout of block outputs */
  int32_t bos_id, eos_id; /* -1: none */
  /* Name of the initialiser: "gpt2" (normal 0.02, projections / sqrt(2L)), "flax" (lecun normal),
   * or "llama" (normal 0.02). */
  const char *init;
  rf_lora lora; /* the adapters; empty unless a command selects adapters */
  /* Reason why the model can only be planned ("rope scaling llama3"); NULL: the model can run. */
  const char *plan_only;
} rf_model;

static inline int64_t rf_model_expert_ff(const rf_model *model) {
  return model->expert_ff ? model->expert_ff : model->ff;
}
static inline float rf_model_attn_scale(const rf_model *model) {
  return model->attn_scale > 0 ? model->attn_scale : 1.0f / __builtin_sqrtf((float)model->head_dim);
}
static inline int64_t rf_model_value_dim(const rf_model *model) {
  return model->value_dim ? model->value_dim : model->head_dim;
}

const char *rf_family_name(rf_family family); /* "gpt", "llama", "gemma3", ... */
/* rf_model_window returns the number of keys that a layer attends to; 0 means all keys.
 * rf_model_rope returns the rotary parameters of a layer. */
int64_t rf_model_window(const rf_model *model, int layer);
rf_rope rf_model_rope(const rf_model *model, int layer);

/* Checks the model. For example, sizes must be positive, kv_heads must divide heads, and no product
 * may overflow. `where` begins the error message. */
rf_status rf_model_check(const rf_model *model, const char *where, rf_error *error);
/* If rafter can plan the model but not run it, returns RAFTER_INVALID with the reason. */
rf_status rf_model_require_runnable(const rf_model *model, rf_error *error);
/* Likewise for training. */
rf_status rf_model_require_trainable(const rf_model *model, rf_error *error);
/* Reads config.json of Hugging Face (gpt2, gpt_neox, llama, mistral, mixtral, gemma, gemma2,
 * gemma3_text, qwen2, qwen3, deepseek_v2, deepseek_v3). RAFTER_FAILED: for a wrong field. */
rf_status rf_model_config_read(const char *path, rf_model *model, rf_error *error);
rf_status rf_model_config_parse(const char *text, size_t bytes, const char *where, rf_model *model,
                                rf_error *error);
/* True if Hugging Face has a class for this model. Other models (MLP first, a head with a bias,
 * ...) are written with rafter's own names. */
bool rf_model_is_hugging_face(const rf_model *model);
/* Writes a config.json, from which rafter can read the same model. Other programs can read this
 * file if rf_model_is_hugging_face() is true. `dtype` is the type of the folder's weights. */
rf_status rf_model_config_write(const rf_model *model, rf_dtype dtype, const char *path, rf_error *error);
/* Returns the constant string for rf_model.init that equals `name`, or NULL. */
const char *rf_model_init(const char *name);
/* Returns the name of preset `index`, or NULL after the last preset. */
const char *rf_model_preset(int index);
/* Returns the name of a preset on the Hugging Face hub. NULL: the hub does not have the preset. */
const char *rf_model_preset_hub(const char *preset);
/* That name, or a paper. NULL: `preset` is not a preset. */
const char *rf_model_preset_source(const char *preset);
/* Returns the preset for a name on the hub. NULL: no preset has this name. */
const char *rf_model_preset_on_hub(const char *hub);

/* Resolves MODEL of the command line: a preset, an inline shape `gpt:layers=4,width=512,...`, a
 * folder with config.json, a .safetensors file with its config.json in the same folder, a .gguf
 * file or a llama2.c .bin file. A folder with config.json wins over a preset of the same name. If a
 * folder has PEFT's adapter_config.json, the model is the base model that this file names, and
 * lora.folder is set. For an unknown name, the error suggests the nearest preset. `folder` (may be
 * NULL) receives the folder or file of the weights, or "" if the model has no weights. */
rf_status rf_model_resolve(const char *spec, rf_model *model, char folder[4096], rf_error *error);

/* Names of the parameters, in the model's order (i = 0 .. layers - 1; with mlp_first, a block's mlp
 * rows come before its attn rows):
 *   embed/token/weight (V,D)   embed/position/weight (T,D)
 *   block.i/attn/norm/{gain,bias} (D)   block.i/attn/qkv/{weight (D,(N+2K)H),bias}
 *     block.i/attn/{q_norm,k_norm}/gain (H)
 *   block.i/attn/out/{weight (N*H,D),bias}   block.i/attn/post_norm/gain (D)
 *   block.i/mlp/norm/{gain,bias} (D)    block.i/mlp/{up (D,F) | gate_up (D,2F)}/{weight,bias}
 *     block.i/mlp/down/{weight (F,D),bias}   block.i/mlp/post_norm/gain (D)
 *   with experts, instead of up, gate_up and down (the matrices of all experts, one below another):
 *     block.i/mlp/router/weight (D,E)   block.i/mlp/experts/gate_up/weight (E*D,2F)
 *     block.i/mlp/experts/down/weight (E*F,D)   some models: block.i/mlp/router/choice (E)
 *     block.i/mlp/shared/{gate_up/weight (D,2SF), down/weight (SF,D)}
 *   with latent attention, instead of qkv (q, c: q_rank and kv_rank, R = rope_dim, W = value_dim):
 *     block.i/attn/q/weight (D,N*H), or q_a/weight (D,q), q_a_norm/gain (q) and q_b/weight (q,N*H)
 *     block.i/attn/kv_a/weight (D,c+R), kv_a_norm/gain (c), kv_b/weight (c,N*(H-R+W)), out (N*W,D)
 *   final/norm/{gain,bias} (D)   head/{weight (D,V), bias (V)} (tied: embed/token transposed)
 * Adapters come after all of these: block.i/attn/qkv/{lora_a (D, sites*r), lora_b (r, columns of
 * the sites)}, and so on. The parameter table has one row for each kind of parameter. */
typedef enum rf_part {
  RF_PART_EMBEDDING, /* lookup tables; a tied head shares the token table */
  RF_PART_QKV,       /* projections to queries, keys and values, with their biases */
  RF_PART_SCORES,    /* attention between its projections; this part has no parameters */
  RF_PART_OUT,
  RF_PART_MLP, /* MLPs of layers with one plain MLP */
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
  const char *name; /* for example "block.3/attn/qkv/weight"; the tensor in the graph has the same name */
  int row;          /* row of the parameter table; for an adapter, the row of its base weight */
  int adapts;       /* for an adapter: index of its base parameter; -1: not an adapter */
  int layer;        /* -1: not in a block */
  int rank;
  /* Linear weights are (in, out); embeddings are (V, D) and (T, D); the untied head is (D, V). */
  int64_t shape[2];
  int64_t count;   /* elements */
  int64_t experts; /* number of equal matrices stacked in `shape`; 0: one matrix */
  int expert;      /* index of the expert, if this parameter is the slice of one expert (rf_param_slice) */
  bool decays;     /* true: weight decay applies (parameters with two axes) */
  bool lora;       /* true: a linear weight that LoRA may adapt */
  bool matmul;     /* true: products multiply every token by this matrix, so P_mm counts it */
  bool frozen;     /* never updated by gradients */
  bool embedding;  /* a lookup table */
  int shard_axis;  /* axis that tensor parallelism shards; -1: replicated */
  rf_part part;    /* group in which parameters and operations are counted */
  rf_init init;
  float init_std; /* standard deviation of RF_INIT_NORMAL and of RF_INIT_LECUN (1/sqrt(fan_in)) */
} rf_param;

typedef struct rf_params {
  int count;
  const rf_param *at; /* in the model's order */
  int64_t total;      /* elements: P */
  /* Number of elements that one token uses. Experts that the router did not choose do not count. */
  int64_t active;
  /* P_mm: number of elements of matrices that multiply a token. A tied table counts once. Experts
   * that the router did not choose do not count. */
  int64_t matmul;
  int64_t embedding; /* elements of lookup tables */
  int64_t head;      /* number of elements of the head's matrix; with a tied head: of the token table */
  /* The first `base` parameters are the model's own. The other parameters are adapters, and
   * `total`, `matmul` and `embedding` do not count them. */
  int base;
  int64_t adapter;        /* elements of adapters: P_lora */
  int64_t part[RF_PARTS]; /* number of elements of each part; without RF_PART_ADAPTER, their sum is `total` */
} rf_params;

rf_params rf_model_params(const rf_model *model, rf_pool *pool);
/* Returns one expert's slice of a parameter as a parameter. The slice starts at element `expert *
 * slice.count` of the whole parameter. A parameter without experts is returned unchanged. */
rf_param rf_param_slice(const rf_param *param, int expert);
/* Rows and columns of a parameter as a matrix. A vector has one row. */
static inline int64_t rf_param_height(const rf_param *param) {
  return param->rank == 2 ? param->shape[0] : 1;
}
static inline int64_t rf_param_width(const rf_param *param) { return param->shape[param->rank - 1]; }
static inline int rf_param_slices(const rf_param *param) {
  return param->experts > 0 ? (int)param->experts : 1;
}

/* The model's own parameters without adapters, as stored in weight files. */
static inline rf_params rf_params_of_base(const rf_params *params) {
  rf_params base = *params;
  base.count = base.base;
  return base;
}

/* The adapters of one weight. Part i multiplies columns i*r to (i+1)*r - 1 of x A by its B. Part i
 * adds its result to `columns[i]` columns of x W, beginning with column at[i]. The B matrices of
 * all parts are adjacent. */
typedef struct rf_lora_parts {
  int32_t count, rank;
  int32_t at[RF_LORA_PARTS], columns[RF_LORA_PARTS], site[RF_LORA_PARTS];
} rf_lora_parts;

/* The name of a site: "attn/q", "attn/k", "attn/v", "attn/kv", "attn/qkv", "attn/out", "mlp/gate",
 * "mlp/up", "mlp/gate_up" or "mlp/down"; NULL after the last. */
const char *rf_lora_site_name(int site);
/* Finds which columns of `param` (of a block) a site covers. Returns false if `param` lacks the
 * site, or if these columns are not whole tensors in the family's files. */
bool rf_lora_site_columns(const rf_model *model, const rf_param *param, int site, int64_t *at,
                          int64_t *columns);
/* Returns the sites of model->lora in `param`, in the order of columns. The count is 0 if `param`
 * has no site. */
rf_lora_parts rf_lora_parts_of(const rf_model *model, const rf_param *param);
/* Returns the first column of part `part` in the joined B matrices. With parts->count: all their
 * columns. */
int64_t rf_lora_joined(const rf_lora_parts *parts, int part);
/* Name of a site's linear layer in Hugging Face's files, without the family's prefix:
 * "layers.3.self_attn.q_proj". The name is "" if these files have no such layer. */
typedef struct rf_lora_module_name {
  char text[128];
} rf_lora_module_name;
rf_lora_module_name rf_lora_module(const rf_model *model, const rf_param *param, int site);
/* Parses `rank=16,alpha=32,targets=q,v,dropout=0.05,rslora` for this model. The defaults are rank
 * 16, alpha = 2 * rank, every linear layer and no dropout. A target is the last word of a site, a
 * module name of Hugging Face (q_proj, c_attn, ...), "all", or ~REGEX. A regular expression is
 * matched with full names of sites ("block.3/attn/q") or parameters. RAFTER_INVALID: the error
 * names the unknown key or target. */
rf_status rf_lora_parse(const char *text, const rf_model *model, rf_lora *lora, rf_error *error);
/* Sets adapters of this rank at every linear layer that an adapter's file can name, with scale
 * 1. */
rf_status rf_lora_all(const rf_model *model, int rank, rf_lora *lora, rf_error *error);

/* The parameter table has one row for each kind of parameter. A row's name: "attn/qkv/weight". */
int rf_param_rows(void);
const char *rf_param_row_name(int row);

/* Fills `count` initial values (f32), beginning with element `first`. The generator is Philox, with
 * a key made of seed and name. So several calls for parts of a parameter give the same values as
 * one call. */
void rf_param_init(const rf_param *param, uint64_t seed, int64_t first, int64_t count, float *out);

#endif
