/* panels.h - packed matrices: constant weights in the order in which a matrix product reads them.
 *
 * A matrix has `outputs` rows of `inner` values. A product sums over the values of a row (index k).
 * The values are stored in blocks of the model file's storage type (quant.h). A plain number (f32,
 * bf16, f16) is a block of one value. A panel has sixty-four rows of the matrix, which are called
 * lanes. The last panel of a part of the matrix may have fewer lanes, but always a multiple of
 * sixteen lanes. A panel stores the first block of all lanes, then the second block of all lanes,
 * and so on. The words of such a block are separate: one word of all lanes, then the next word:
 *   u16 half[halves][lanes], u32 dword[dwords][lanes]
 * Before the blocks come the heads of the lanes (int8: f32 scale[lanes]). So a product with one row
 * of activations reads a panel from the first byte to the last. The product has one sum over k for
 * each lane. Panels have the same bytes as the model file in another order. */
#ifndef RF_PANELS_H
#define RF_PANELS_H

#include "formats/quant.h"

enum { RF_PANEL_LANES = 64, RF_PANEL_GRAIN = 16, RF_PANEL_PARTS = 3 };

typedef struct rf_panels {
  bool outputs_first; /* true: the shape is (outputs, inner), as in a token table. false: it is (inner,
                         outputs) */
  int64_t inner;
  int64_t experts; /* number of matrices of this shape, which are stored one after the other; 0: one matrix */
  int parts;       /* number of ranges of outputs; each range has its own type */
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
  int type;     /* number of the storage type */
  int halves,   /* number of 16-bit words */
      half_at;  /* byte offset of the first 16-bit word in a stored block */
  int dwords,   /* number of 32-bit words */
      dword_at; /* byte offset of the first 32-bit word in a stored block */
} rf_panel_form;

typedef struct rf_panel {
  const rf_quant_type *type;
  const rf_panel_form *form;
  int64_t first; /* index of the output in lane 0 */
  int used,      /* number of lanes that have an output */
      lanes;     /* number of stored lanes */
  /* Bytes from the start of the matrix to the panel's first block. The heads of the lanes end at
   * this offset. */
  int64_t offset;
  int64_t block_bytes; /* bytes of one block of every lane */
} rf_panel;

/* True if a type can be packed. All types that rafter can read, except f64, can be packed. */
bool rf_panels_take(const rf_quant_type *type);
/* True if every value is a small integer times a scale, plus an offset. A product with such values
 * can multiply integers. False for q2_k, q3_k and plain numbers, and for int8 mixed with another
 * type. */
bool rf_panels_have_codes(const rf_panels *panels);
int64_t rf_panels_bytes(const rf_panels *panels);
/* Returns the layout of one of the `experts` matrices. Matrix i starts at byte i *
 * rf_panels_bytes(&one). */
rf_panels rf_panels_one(const rf_panels *panels);
int64_t rf_panels_count(const rf_panels *panels);
/* the index counts panels in the order of their outputs */
rf_panel rf_panels_at(const rf_panels *panels, int64_t index);
rf_panel rf_panels_find(const rf_panels *panels, int64_t output); /* returns the panel that has this output */
/* Writes the types of all parts, each type once: "q4_k", or "q4_k+q6_k". */
const char *rf_panels_name(const rf_panels *panels, char text[64]);

/* Packs one panel into `to`. row[i] points to the stored blocks of lane i, which may be unaligned.
 * NULL: all zeros. */
void rf_panel_pack(const rf_panel *panel, int64_t inner, const void *const row[RF_PANEL_LANES], void *to);
/* Writes a stored block of one lane to `stored`, after the head (scale) of the lane if there is a
 * head. */
void rf_panel_block(const rf_panel *panel, const void *at, int lane, int64_t block, void *stored);
/* A slow function that reads values [first, first + count) of one output of a matrix, like
 * rf_quant_read. */
void rf_panels_read(const rf_panels *panels, const void *data, int64_t output, int64_t first, int64_t count,
                    float *out);

/* The source of the values of a matrix. */
typedef struct rf_panel_source {
  void *self;
  /* Returns the stored blocks of an output if the blocks have this type and are contiguous.
   * Otherwise, the function returns NULL, and the caller uses `read`. */
  const void *(*stored)(void *self, int64_t output, const rf_quant_type *type);
  /* Reads the values of outputs [first, first + count), one output after the other. */
  rf_status (*read)(void *self, int64_t first, int count, float *values, rf_error *error);
} rf_panel_source;
/* Fills a matrix and its padding on all threads. This function copies stored blocks, or quantizes
 * values. */
rf_status rf_panels_fill(const rf_panels *panels, const rf_panel_source *source, void *data, rf_error *error);
/* Fills panels [from, end). */
rf_status rf_panels_fill_some(const rf_panels *panels, int64_t from, int64_t end,
                              const rf_panel_source *source, void *data, rf_error *error);

#endif
