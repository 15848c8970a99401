/* panels.h - packed matrices: constant weights, quantized as in their file and stored in the order
 * in which a matrix product reads them.
 *
 * A matrix has `outputs` rows. A product sums over the `inner` values of a row (index k). The
 * values are in blocks of a storage type (quant.h). A panel has sixty-four rows, which are called
 * its lanes. The last panel of a part of the matrix may have fewer lanes: a multiple of sixteen. A
 * panel stores the first block of all lanes, then the second, and so on. Of such a block it stores
 * first the 16-bit words, then the 32-bit words, each word for all lanes before the next:
 *   u16 half[halves][lanes], u32 dword[dwords][lanes]
 * Before the blocks come the heads of the lanes (int8: f32 scale[lanes]). A product of one
 * activation row thus reads a panel from its first byte to its last, with one running sum over k
 * per lane. Panels reorder the bytes of the model file but change none. A plain number (f32, bf16,
 * f16) is a block of one value. */
#ifndef RF_PANELS_H
#define RF_PANELS_H

#include "formats/quant.h"

enum { RF_PANEL_LANES = 64, RF_PANEL_GRAIN = 16, RF_PANEL_PARTS = 3 };

typedef struct rf_panels {
  bool outputs_first; /* true: shape (outputs, inner), as a token table; else (inner, outputs) */
  int64_t inner;
  int64_t experts; /* number of matrices of this shape, stored one after the other; 0: one matrix */
  int parts;       /* number of ranges of outputs, each with its own type */
  struct {
    const rf_quant_type *type;
    int64_t outputs;
  } part[RF_PANEL_PARTS];
} rf_panels;

static inline int64_t rf_panels_experts(const rf_panels *panels) {
  return panels->experts > 0 ? panels->experts : 1;
}

/* The 16-bit and 32-bit words of a stored block. */
typedef struct rf_panel_form {
  int type;             /* number of the storage type */
  int halves, half_at;  /* number of 16-bit words; byte offset of the first in a stored block */
  int dwords, dword_at; /* number of 32-bit words; byte offset of the first in a stored block */
} rf_panel_form;

typedef struct rf_panel {
  const rf_quant_type *type;
  const rf_panel_form *form;
  int64_t first;   /* output in lane 0 */
  int used, lanes; /* lanes that have an output; all stored lanes */
  /* bytes from the start of the matrix to the panel's first block; its heads end there */
  int64_t offset;
  int64_t block_bytes; /* bytes of one block of all lanes */
} rf_panel;

/* Whether a type can be packed: every readable type except f64. */
bool rf_panels_take(const rf_quant_type *type);
/* Whether every value is a scale times a small integer (plus an offset), so that integers can be
 * multiplied. False for q2_k, q3_k and plain numbers, and for int8 beside another type. */
bool rf_panels_have_codes(const rf_panels *panels);
int64_t rf_panels_bytes(const rf_panels *panels);
/* The layout of one of the `experts` matrices. Matrix i starts at i * rf_panels_bytes(&one). */
rf_panels rf_panels_one(const rf_panels *panels);
int64_t rf_panels_count(const rf_panels *panels);
rf_panel rf_panels_at(const rf_panels *panels, int64_t index);    /* in the order of outputs */
rf_panel rf_panels_find(const rf_panels *panels, int64_t output); /* panel of this output */
/* The types of the parts, each once: "q4_k", or "q4_k+q6_k". */
const char *rf_panels_name(const rf_panels *panels, char text[64]);

/* Packs one panel into `to`. row[i]: stored blocks of lane i, unaligned; NULL: the lane is 0. */
void rf_panel_pack(const rf_panel *panel, int64_t inner, const void *const row[RF_PANEL_LANES], void *to);
/* Rebuilds stored block `block` of one lane, with the lane's head (scale per row) before it. */
void rf_panel_block(const rf_panel *panel, const void *at, int lane, int64_t block, void *stored);
/* Reads values [first, first + count) of one output of one matrix, as rf_quant_read does. Slow. */
void rf_panels_read(const rf_panels *panels, const void *data, int64_t output, int64_t first, int64_t count,
                    float *out);

/* Where the values of a matrix come from. */
typedef struct rf_panel_source {
  void *self;
  /* Returns the stored blocks of an output if they have this type and are contiguous. Returns NULL
   * otherwise, and the caller uses `read`. */
  const void *(*stored)(void *self, int64_t output, const rf_quant_type *type);
  /* Reads the values of `count` outputs from `first`, one output after the other. */
  rf_status (*read)(void *self, int64_t first, int count, float *values, rf_error *error);
} rf_panel_source;
/* On all threads, fills a matrix and its padding with stored blocks, or quantizes values. */
rf_status rf_panels_fill(const rf_panels *panels, const rf_panel_source *source, void *data, rf_error *error);
/* Fills panels [from, end). */
rf_status rf_panels_fill_some(const rf_panels *panels, int64_t from, int64_t end,
                              const rf_panel_source *source, void *data, rf_error *error);

#endif
