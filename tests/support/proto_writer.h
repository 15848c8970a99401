/* proto_writer.h - writes messages of Protocol Buffers, for tests and for the plugin of the
 * tests. */
#ifndef RF_TEST_PROTO_WRITER_H
#define RF_TEST_PROTO_WRITER_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct proto_out {
  char *data;
  size_t bytes, room;
} proto_out;

static inline void proto_byte(proto_out *to, unsigned byte) {
  if (to->bytes == to->room) {
    to->room = to->room ? 2 * to->room : 256;
    to->data = realloc(to->data, to->room);
    if (!to->data) abort();
  }
  to->data[to->bytes++] = (char)byte;
}

static inline void proto_varint(proto_out *to, uint64_t number) {
  for (; number >= 0x80; number >>= 7) proto_byte(to, (unsigned)(number & 0x7f) | 0x80);
  proto_byte(to, (unsigned)number);
}

static inline void proto_number(proto_out *to, unsigned field, uint64_t number) {
  proto_varint(to, (uint64_t)field << 3);
  proto_varint(to, number);
}

static inline void proto_block(proto_out *to, unsigned field, const void *data, size_t bytes) {
  proto_varint(to, (uint64_t)field << 3 | 2);
  proto_varint(to, bytes);
  for (size_t i = 0; i < bytes; i++) proto_byte(to, ((const unsigned char *)data)[i]);
}

static inline void proto_text(proto_out *to, unsigned field, const char *text) {
  proto_block(to, field, text, strlen(text));
}

/* Adds a message, and frees it. */
static inline void proto_message(proto_out *to, unsigned field, proto_out *message) {
  proto_block(to, field, message->data, message->bytes);
  free(message->data);
  *message = (proto_out){NULL, 0, 0};
}

/* ---- profiles (xplane.proto) and programs (hlo.proto) ---------------------------------------- */

/* Adds the entry `key` of a map to metadata with a name. `shown`: a second name, or NULL. */
static inline void proto_metadata(proto_out *plane, unsigned map, uint64_t key, const char *name,
                                  const char *shown) {
  proto_out value = {0}, entry = {0};
  proto_number(&value, 1, key);
  proto_text(&value, 2, name);
  if (shown) proto_text(&value, 4, shown);
  proto_number(&entry, 1, key);
  proto_message(&entry, 2, &value);
  proto_message(plane, map, &entry);
}

/* Adds an event. `stat`: the number of the metadata of its statistic, with a text or (text NULL)
 * with a reference to other metadata; 0: none. */
static inline void proto_event(proto_out *line, uint64_t metadata, uint64_t offset_ps, uint64_t duration_ps,
                               uint64_t stat, const char *text, uint64_t reference) {
  proto_out event = {0}, one = {0};
  proto_number(&event, 1, metadata);
  proto_number(&event, 2, offset_ps);
  proto_number(&event, 3, duration_ps);
  if (stat) {
    proto_number(&one, 1, stat);
    if (text) proto_text(&one, 5, text);
    else proto_number(&one, 7, reference);
    proto_message(&event, 4, &one);
  }
  proto_message(line, 4, &event);
}

/* Adds an instruction. op NULL: it has no metadata. called: id of a computation, 0: none. */
static inline void proto_instruction(proto_out *computation, uint64_t id, const char *name, const char *op,
                                     uint64_t called) {
  proto_out instruction = {0}, metadata = {0}, ids = {0};
  proto_text(&instruction, 1, name);
  proto_text(&instruction, 2, "fusion");
  if (op) {
    proto_text(&metadata, 2, op);
    proto_message(&instruction, 7, &metadata);
  }
  proto_number(&instruction, 35, id);
  if (called) {
    proto_varint(&ids, called);
    proto_message(&instruction, 38, &ids);
  }
  proto_message(computation, 2, &instruction);
}

#endif
