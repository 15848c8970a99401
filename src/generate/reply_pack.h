/* reply_pack.h - packs an answer into bytes, which another rank of the run unpacks. */
#ifndef RF_REPLY_PACK_H
#define RF_REPLY_PACK_H

#include "generate/reply.h"

/* Identity of a packed answer: a request of the round, and a sample of this request. */
typedef struct rf_packed_of {
  int64_t request;
  int sample;
} rf_packed_of;

/* *data is malloc'ed. */
rf_status rf_reply_pack(const rf_reply *reply, rf_packed_of of, unsigned char **data, int64_t *bytes,
                        rf_error *error);
/* RAFTER_FAILED: the bytes are malformed. */
rf_status rf_reply_packed_of(const unsigned char *data, int64_t bytes, rf_packed_of *of, rf_error *error);
/* Fills a started reply. `top` of this reply must equal `top` of the packed reply. */
rf_status rf_reply_unpack(rf_reply *reply, const unsigned char *data, int64_t bytes, rf_error *error);

#endif
