/* panels.h - the memory layout of a constant matrix: in its stored type, in the order in which a
 * product reads it.
 *
 * A matrix is `outputs` rows that a product sums over `inner` values each (k), in blocks of a
 * storage type (quant.h). Sixty-four of those rows are the lanes of a panel; the rest of a part is
 * one narrower panel, its lanes rounded up to sixteen. In a panel, blocks of k ascend, and a block
 * of all lanes is the 16-bit words of the stored block and then its 32-bit words, each word of all
 * lanes together:
 *   u16 half[halves][lanes], u32 dword[dwords][lanes]
 * The lanes' heads come before the blocks (int8: f32 scale[lanes]). So a product of one row reads
 * a panel from its first byte to its last, every lane is one chain over k, and the bytes are those
 * of the file, no more. Numbers without blocks (f32, bf16, f16) are blocks of one value. */
#ifndef RF_PANELS_H
#define RF_PANELS_H

#include "formats/quant.h"

enum { RF_PANEL_LANES = 64, RF_PANEL_GRAIN = 16, RF_PANEL_PARTS = 3 };

typedef struct rf_panels {
  /* the parameter is (outputs, inner), as a table of tokens; otherwise (inner, outputs), as a
   * linear weight */
  bool outputs_first;
  int64_t inner;
  int64_t experts; /* number of equal matrices, each with its own panels, stored one after another; 0: one */
  int parts;       /* parts along the outputs, each with its own type */
  struct {
    const rf_quant_type *type;
    int64_t outputs;
  } part[RF_PANEL_PARTS];
} rf_panels;

static inline int64_t rf_panels_experts(const rf_panels *panels) {
  return panels->experts > 0 ? panels->experts : 1;
}

/* The words of a stored block. */
typedef struct rf_panel_form {
  int type;             /* number */
  int halves, half_at;  /* 16-bit words, and the offset of the first one in a stored block */
  int dwords, dword_at; /* 32-bit words */
} rf_panel_form;

typedef struct rf_panel {
  const rf_quant_type *type;
  const rf_panel_form *form;
  int64_t first;       /* output of lane 0 */
  int used, lanes;     /* lanes with an output; lanes stored */
  int64_t offset;      /* bytes from the matrix's start to its blocks; heads end there */
  int64_t block_bytes; /* of all lanes */
} rf_panel;

/* Whether a type can be packed: all readable types except f64. */
bool rf_panels_take(const rf_quant_type *type);
/* Whether every value is a scale times a small integer (plus an offset), so that a backend can
 * multiply integers: all block types except q2_k and q3_k, and int8 if it is the only type. */
bool rf_panels_have_codes(const rf_panels *panels);
int64_t rf_panels_bytes(const rf_panels *panels);
/* One of several equal matrices; matrix i starts i * rf_panels_bytes after the first. */
rf_panels rf_panels_one(const rf_panels *panels);
int64_t rf_panels_count(const rf_panels *panels);
rf_panel rf_panels_at(const rf_panels *panels, int64_t index);    /* in the order of outputs */
rf_panel rf_panels_find(const rf_panels *panels, int64_t output); /* the panel that holds an output */
/* "q4_k", or "q4_k+q6_k": the types of its parts, each once. */
const char *rf_panels_name(const rf_panels *panels, char text[64]);

/* Packs one panel into `to`: row[i] points to lane i's stored blocks, at any address; NULL:
 * zeros. */
void rf_panel_pack(const rf_panel *panel, int64_t inner, const void *const row[RF_PANEL_LANES], void *to);
/* Rebuilds stored block `block` of one lane, after its head if it has one. */
void rf_panel_block(const rf_panel *panel, const void *at, int lane, int64_t block, void *stored);
/* For one matrix (the first of several): values [first, first + count) of one output, as
 * rf_quant_read gives them. Slow and simple. `data`: the matrix. */
void rf_panels_read(const rf_panels *panels, const void *data, int64_t output, int64_t first, int64_t count,
                    float *out);

/* Source of a matrix's values. */
typedef struct rf_panel_source {
  void *self;
  /* The stored blocks of one output if they have this type and are contiguous; NULL: call read. */
  const void *(*stored)(void *self, int64_t output, const rf_quant_type *type);
  /* Values of `count` outputs from `first`, one output after another. */
  rf_status (*read)(void *self, int64_t first, int count, float *values, rf_error *error);
} rf_panel_source;
/* Fills a matrix and its padding on all threads: copies stored blocks, and quantizes values. */
rf_status rf_panels_fill(const rf_panels *panels, const rf_panel_source *source, void *data, rf_error *error);
/* Fills panels [from, end). */
rf_status rf_panels_fill_some(const rf_panels *panels, int64_t from, int64_t end,
                              const rf_panel_source *source, void *data, rf_error *error);

#endif
