/* proto.h - reads messages of Protocol Buffers in memory. The bytes may be damaged, so no function
 * reads outside the bytes. Example:
 *   rf_proto_field f;
 *   for (rf_proto p = rf_proto_of(bytes); rf_proto_next(&p, &f);)
 *     if (f.number == 2) name = f.bytes; */
#ifndef RF_XLA_PROTO_H
#define RF_XLA_PROTO_H

#include "base/base.h"

/* A range of the bytes of a message. `data` may be NULL if the range is empty. */
typedef struct rf_proto_bytes {
  const char *data;
  size_t count;
} rf_proto_bytes;

typedef struct rf_proto {
  const unsigned char *at, *end;
  bool damaged; /* true: the last bytes were not a field */
} rf_proto;

typedef struct rf_proto_field {
  uint32_t number;
  bool is_number; /* true: `value` is set, from a varint or a fixed number; false: `bytes` is set */
  uint64_t value;
  rf_proto_bytes bytes; /* content of a text, bytes, a message or a packed list */
} rf_proto_field;

rf_proto rf_proto_of(rf_proto_bytes bytes);
/* Reads the next field. Returns false at the end, and at a damaged field. Groups count as
 * damaged. */
bool rf_proto_next(rf_proto *p, rf_proto_field *field);
/* True if all fields can be read. */
bool rf_proto_is_whole(rf_proto_bytes message);
/* The bytes of the last field `number` of a message; no bytes if the message lacks this field. */
rf_proto_bytes rf_proto_find(rf_proto_bytes message, uint32_t number);
/* Gets the first number of a repeated field, which may be packed. Returns false if the field has no
 * number. */
bool rf_proto_first(const rf_proto_field *field, uint64_t *value);

static inline bool rf_proto_is(rf_proto_bytes a, const char *text) {
  size_t i = 0;
  while (i < a.count && text[i] && a.data[i] == text[i]) i++;
  return i == a.count && !text[i];
}
int rf_proto_compare(rf_proto_bytes a, rf_proto_bytes b); /* by bytes, as strcmp */

#endif
