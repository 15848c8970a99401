/* gguf_facts.h - architecture, tokenizer and tensor names of a GGUF or llama2.c file. */
#ifndef RF_GGUF_FACTS_H
#define RF_GGUF_FACTS_H

#include "formats/gguf.h"

/* Each architecture is a bit, so that an entry of RF_GGUF_NAMES can combine several
 * architectures. */
typedef enum rf_gguf_arch {
  RF_GGUF_LLAMA = 1, /* llama, mistral, mixtral, smollm2, ... */
  RF_GGUF_GEMMA = 2,
  RF_GGUF_GEMMA2 = 4,
  RF_GGUF_GEMMA3 = 8,
  RF_GGUF_QWEN2 = 16,
  RF_GGUF_QWEN3 = 32,
  RF_GGUF_GPT2 = 64,
  RF_GGUF_NEOX = 128,
  RF_GGUF_EVERY = 255
} rf_gguf_arch;

enum { RF_GGUF_LAYERS_MAX = 4096 };

typedef struct rf_gguf_facts {
  char name[96]; /* value of general.name, or "" */
  rf_gguf_arch arch;
  const char *arch_name;                                        /* "gemma3" */
  int64_t layers, width, heads, kv_heads, ff, vocab, positions; /* L D N K F V T */
  /* number of elements of a head (H); key_length and value_length are equal in all supported
   * architectures */
  int64_t key_length, value_length;
  bool layernorm; /* true: norms are LayerNorm (gpt2, gptneox). false: norms are RMSNorm */
  double norm_eps;
  double rope_theta;       /* theta of the layers without a window; 0: the model has learned positions */
  double rope_local_theta; /* theta of windowed layers */
  int64_t rope_dim;        /* number of elements of a head that are rotated */
  char rope_scaling[16];   /* "none", "linear", "yarn", "longrope", ... */
  double rope_factor;      /* factor of the scalings "linear" and "yarn"; 1: no scaling */
  int64_t rope_original;   /* number of positions in the first training of the model; 0: unknown */
  /* The file has "rope_freqs.weight": rope_dim / 2 numbers that divide the frequencies (llama3). */
  bool rope_freqs;
  /* The rows of q and k are permuted in the file. A rotary pair is elements (2i, 2i + 1) of a head,
   * not elements (i, i + rope_dim/2). See rf_gguf_permuted_row. */
  bool interleaved;
  /* Every RMSNorm gain in the file is the model's gain plus this number (gemma: 1). */
  double norm_offset;
  int64_t window; /* number of keys that a layer with a window reads; 0: no layer has a window */
  /* Layers with layer % period == period - 1 have no window. 0: all layers have the window. */
  int64_t window_period;
  double attn_softcap, final_softcap; /* 0: no cap */
  /* factor of the attention scores: 1/sqrt(H), but 1/sqrt(D/N) in gemma2-27b and gemma3-27b */
  double attn_scale;
  /* factor of the embeddings: sqrt(D) for gemma models (not in the file), 1 for other models */
  double embed_scale;
  bool tied; /* the file has no output.weight */
  /* `parallel`: the value of gptneox.use_parallel_residual. */
  bool qkv_bias, out_bias, mlp_bias, qk_norm, post_norms, parallel;
  int64_t experts, experts_used, expert_ff; /* `experts` 0: the model has no experts */
} rf_gguf_facts;

/* Reads the metadata and the list of tensors. The error names a key that is missing, has another
 * kind or is out of range. An error for an unknown architecture lists the known ones. */
rf_status rf_gguf_facts_read(const rf_gguf *file, rf_gguf_facts *facts, rf_error *error);
/* Checks that the numbers of heads, rotated elements and experts are consistent. */
rf_status rf_gguf_facts_check(const rf_gguf_facts *facts, const char *where, rf_error *error);

/* Maps a row of q or k in Hugging Face's order to its row in the file. Element e of head h is the
 * row h * head_dim + e. llama.cpp's converter reshapes (heads, 2, H/2, D) to (heads, H/2, 2, D). So
 * row e of a head becomes row 2e if e < H/2, else row 2 (e - H/2) + 1. Biases move like rows. */
int64_t rf_gguf_permuted_row(int64_t row, int64_t head_dim);

/* ---- names ----------------------------------------------------------------------------------- */

enum { RF_GGUF_PARTS = 3 };
/* The name of a parameter (rf_param_row_name) in GGUF files. All tensors in `part` together make
 * the parameter. Files store linear weights as (out, in), and tables and the head as (V, D). "%d"
 * is the layer. */
typedef struct rf_gguf_name {
  const char *row;
  const char *part[RF_GGUF_PARTS];
  unsigned archs;    /* bit set of rf_gguf_arch: the architectures with this name */
  bool transposed;   /* true: the file stores (out, in), but the parameter is (in, out) */
  unsigned permuted; /* bit i is set: the rows of tensor part[i] are permuted if facts.interleaved is true */
  bool norm;         /* true: the file stores the values plus facts.norm_offset */
} rf_gguf_name;
extern const rf_gguf_name RF_GGUF_NAMES[];
extern const int RF_GGUF_NAME_COUNT;
/* Returns the entry of a parameter for files of `arch`, or NULL. */
const rf_gguf_name *rf_gguf_name_of(rf_gguf_arch arch, const char *row);
/* True if a tensor can be ignored, because it is not a parameter. False for rope_freqs.weight. */
bool rf_gguf_name_is_extra(const char *name);

/* ---- the tokenizer --------------------------------------------------------------------------- */

/* Types of tokens, with the numbers of GGUF files. */
enum {
  RF_GGUF_TOKEN_NORMAL = 1,
  RF_GGUF_TOKEN_UNKNOWN,
  RF_GGUF_TOKEN_CONTROL,
  RF_GGUF_TOKEN_USER,
  RF_GGUF_TOKEN_UNUSED,
  RF_GGUF_TOKEN_BYTE
};

typedef struct rf_gguf_vocab {
  rf_gguf_text model; /* kind of tokenizer: "llama" (SentencePiece), "gpt2" (byte-level BPE), "none" */
  /* name of the pre-tokenizer: "default", "smollm", "llama-bpe", "qwen2", ... or "" */
  rf_gguf_text pre;
  int64_t count; /* number of tokens */
  /* texts of the tokens: gpt2 has a printable letter for each byte, llama has U+2581 for a blank */
  rf_gguf_text *token;
  float *score;   /* NULL: no scores */
  int32_t *kind;  /* types of the tokens; NULL: all tokens are normal */
  int64_t merges; /* number of BPE merges "left right"; earlier merges have priority */
  rf_gguf_text *merge;
  int32_t bos, eos, eot, unknown, pad; /* token ids; -1: the model has no such token */
  bool add_bos, add_eos, add_space_prefix;
  /* `tools_template`: for conversations with tools. `at` is NULL if a template is missing. */
  rf_gguf_text chat_template, tools_template;
} rf_gguf_vocab;

/* The texts point into the mapped file, and stay valid until rf_gguf_close. RAFTER_FAILED: arrays
 * have different lengths, or an id is out of range. If the file has no tokenizer, `model` is
 * "none". */
rf_status rf_gguf_vocab_read(const rf_gguf *file, rf_gguf_vocab *vocab, rf_error *error);
void rf_gguf_vocab_free(rf_gguf_vocab *vocab);
/* Like rf_gguf_vocab_read, but reads neither arrays nor the chat template. The caller does not free
 * the result. */
rf_status rf_gguf_vocab_special(const rf_gguf *file, rf_gguf_vocab *vocab, rf_error *error);

#endif
