/* walk.h - one walk over rows of several sequences: what generate.c and batch.c share. */
#ifndef RF_WALK_H
#define RF_WALK_H

#include "generate/generate.h"
#include "generate/pages.h"

enum { RF_WALKED = 64 };
typedef struct rf_walker {
  rf_pages pages;
  rf_sequence hand; /* of rf_generator_feed */
  struct rf_kv_bytes {
    unsigned char *data; /* (pool, ...) of one layer: keys and values, or scales */
    int64_t page_bytes;
    rf_kv_class class;
  } * bytes;
  int count;
  bool poison;                      /* a page that is given back is filled with NaN */
  int32_t *table[2][RF_KV_CLASSES]; /* of prefill, decode: (slots, columns) */
  rf_extent *extent;                /* (slots): of a simulated walk */
  rf_walk_prices *prices[2];        /* simulated: of prefill, decode */
  /* Walks so far of prefill, decode, by how many rows and sequences they had; the last bucket
   * takes what finds no other. */
  struct rf_walked {
    int64_t walks, rows, parts, context; /* sums; context: of all parts */
  } walked[2][RF_WALKED];
  double seconds[2]; /* of them */
} rf_walker;

/* Some rows of a walk: the next tokens of one sequence. */
typedef struct rf_walk_part {
  rf_sequence *sequence;
  const int32_t *tokens; /* (count) */
  int64_t count;
  bool wanted;         /* the logits behind the last of them are asked for */
  bool prompt;         /* they are of a prompt */
  const float *logits; /* out: f32 (V), valid until the next walk */
  float lse;           /* out: log of the sum of their exponentials */
} rf_walk_part;

rf_status rf_walker_open(rf_generator *generator, rf_error *error);
void rf_walker_close(rf_generator *generator);
/* At most build.microbatch parts whose rows together fit into a prefill walk; single rows, one
 * per part, go by the decode plan. */
rf_status rf_walk_parts(rf_generator *generator, rf_walk_part *part, int count, rf_error *error);

/* Requests: batch.c. */
rf_status rf_batch_open(rf_generator *generator, rf_error *error);
void rf_batch_close(rf_generator *generator);
/* Gives back what ended answers have kept. */
void rf_batch_forget(rf_generator *generator);

#endif
