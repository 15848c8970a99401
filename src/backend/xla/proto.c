/* proto.c - see proto.h. */
#include "backend/xla/proto.h"

#include <string.h>

enum { VARINT, FIXED64, BYTES, FIXED32 = 5 };

rf_proto rf_proto_of(rf_proto_bytes bytes) {
  const unsigned char *at = (const unsigned char *)bytes.data;
  return (rf_proto){.at = at, .end = bytes.count ? at + bytes.count : at};
}

static bool take_varint(rf_proto *p, uint64_t *value) {
  *value = 0;
  for (int shift = 0; shift < 70 && p->at < p->end; shift += 7) {
    unsigned char byte = *p->at++;
    if (shift < 63 || byte <= 1) *value |= (uint64_t)(byte & 0x7f) << shift;
    else return false;
    if (byte < 0x80) return true;
  }
  return false;
}

static bool take_fixed(rf_proto *p, size_t bytes, uint64_t *value) {
  if ((size_t)(p->end - p->at) < bytes) return false;
  *value = 0;
  for (size_t i = 0; i < bytes; i++) *value |= (uint64_t)p->at[i] << 8 * i;
  p->at += bytes;
  return true;
}

static bool take_bytes(rf_proto *p, rf_proto_bytes *bytes) {
  uint64_t count;
  if (!take_varint(p, &count) || count > (uint64_t)(p->end - p->at)) return false;
  *bytes = (rf_proto_bytes){(const char *)p->at, (size_t)count};
  p->at += count;
  return true;
}

static bool take_field(rf_proto *p, rf_proto_field *field) {
  uint64_t key;
  if (!take_varint(p, &key) || key >> 3 == 0 || key >> 3 > UINT32_MAX) return false;
  *field = (rf_proto_field){.number = (uint32_t)(key >> 3), .is_number = (key & 7) != BYTES};
  switch (key & 7) {
  case VARINT: return take_varint(p, &field->value);
  case FIXED64: return take_fixed(p, 8, &field->value);
  case FIXED32: return take_fixed(p, 4, &field->value);
  case BYTES: return take_bytes(p, &field->bytes);
  default: return false;
  }
}

bool rf_proto_next(rf_proto *p, rf_proto_field *field) {
  if (p->damaged || p->at == p->end) return false;
  p->damaged = !take_field(p, field);
  return !p->damaged;
}

bool rf_proto_is_whole(rf_proto_bytes message) {
  rf_proto_field field;
  rf_proto p = rf_proto_of(message);
  while (rf_proto_next(&p, &field)) continue;
  return !p.damaged;
}

rf_proto_bytes rf_proto_find(rf_proto_bytes message, uint32_t number) {
  rf_proto_field field;
  rf_proto_bytes found = {NULL, 0};
  for (rf_proto p = rf_proto_of(message); rf_proto_next(&p, &field);)
    if (field.number == number && !field.is_number) found = field.bytes;
  return found;
}

bool rf_proto_first(const rf_proto_field *field, uint64_t *value) {
  rf_proto p = rf_proto_of(field->bytes);
  if (field->is_number) *value = field->value;
  return field->is_number || take_varint(&p, value);
}

int rf_proto_compare(rf_proto_bytes a, rf_proto_bytes b) {
  size_t both = a.count < b.count ? a.count : b.count;
  int order = both ? memcmp(a.data, b.data, both) : 0;
  return order ? order : (a.count > b.count) - (a.count < b.count);
}
