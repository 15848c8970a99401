/* client_options.c - see client_parts.h: encodes a CompileOptionsProto of XLA by hand. The fields
 * are from xla/pjrt/proto/compile_options.proto and xla/xla_data.proto. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "backend/xla/client_parts.h"

enum { /* numbers of fields */
       OPTIONS_BUILD = 3,
       OPTIONS_OVERRIDE = 7,
       BUILD_REPLICAS = 4,
       BUILD_PARTITIONS = 5,
       BUILD_ASSIGNMENT = 9,
       ASSIGNMENT_REPLICAS = 1,
       ASSIGNMENT_COMPUTATIONS = 2,
       ASSIGNMENT_DEVICES = 3,
       DEVICES_IDS = 1,
       ENTRY_KEY = 1,
       ENTRY_VALUE = 2,
       VALUE_TEXT = 1,
       VALUE_BOOL = 2,
       VALUE_INTEGER = 3,
       VALUE_DOUBLE = 4
};

typedef struct bytes {
  unsigned char *data;
  size_t count, room;
} bytes;

static void put_byte(bytes *to, unsigned char byte) {
  if (to->count == to->room) {
    to->room = to->room ? 2 * to->room : 64;
    to->data = rf_must(realloc(to->data, to->room));
  }
  to->data[to->count++] = byte;
}

static void put_bytes(bytes *to, const void *data, size_t count) {
  for (size_t i = 0; i < count; i++) put_byte(to, ((const unsigned char *)data)[i]);
}

/* A varint: seven bits in each byte, low bits first. */
static void put_varint(bytes *to, uint64_t number) {
  for (; number >= 0x80; number >>= 7) put_byte(to, (unsigned char)(number | 0x80));
  put_byte(to, (unsigned char)number);
}

static void put_number(bytes *to, int field, uint64_t number) {
  put_varint(to, (uint64_t)field << 3);
  put_varint(to, number);
}

static void put_block(bytes *to, int field, const void *data, size_t count) {
  put_varint(to, (uint64_t)field << 3 | 2);
  put_varint(to, count);
  put_bytes(to, data, count);
}

/* Adds a message, and frees it. */
static void put_message(bytes *to, int field, bytes *message) {
  put_block(to, field, message->data, message->count);
  free(message->data);
}

/* Replica r runs on device[r]. */
static void put_assignment(bytes *to, int replicas, const int32_t *device) {
  bytes assignment = {0}, devices = {0}, ids = {0};
  for (int i = 0; i < replicas; i++) put_varint(&ids, (uint64_t)(int64_t)device[i]);
  put_message(&devices, DEVICES_IDS, &ids);
  put_number(&assignment, ASSIGNMENT_REPLICAS, (uint64_t)replicas);
  put_number(&assignment, ASSIGNMENT_COMPUTATIONS, 1);
  put_message(&assignment, ASSIGNMENT_DEVICES, &devices);
  put_message(to, BUILD_ASSIGNMENT, &assignment);
}

/* A flag has the first type that its text fits: bool, integer, number or text. Otherwise it is a
 * text. */
static void put_value(bytes *to, const char *text, size_t count) {
  char copy[512], *end = NULL;
  if (count == 4 && !memcmp(text, "true", 4)) {
    put_number(to, VALUE_BOOL, 1);
    return;
  }
  if (count == 5 && !memcmp(text, "false", 5)) {
    put_number(to, VALUE_BOOL, 0);
    return;
  }
  if (count && count < sizeof copy && strchr("+-.0123456789", text[0])) {
    memcpy(copy, text, count);
    copy[count] = 0;
    errno = 0;
    long long integer = strtoll(copy, &end, 10);
    if (!*end && !errno) {
      put_number(to, VALUE_INTEGER, (uint64_t)integer);
      return;
    }
    double number = strtod(copy, &end);
    if (!*end) {
      put_varint(to, VALUE_DOUBLE << 3 | 1);
      put_bytes(to, &number, sizeof number);
      return;
    }
  }
  put_block(to, VALUE_TEXT, text, count);
}

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n'; }

/* Adds the flags "--name=value --name=value". */
static rf_status put_flags(bytes *to, const char *flags, rf_error *error) {
  for (const char *at = flags; at && *at;) {
    if (is_space(*at)) {
      at++;
      continue;
    }
    const char *end = at;
    while (*end && !is_space(*end)) end++;
    const char *name = at + (at[0] == '-' && at[1] == '-' ? 2 : 0);
    const char *equals = memchr(name, '=', (size_t)(end - name));
    size_t name_bytes = (size_t)((equals ? equals : end) - name);
    if (name_bytes < 1 || *name == '-' || *name == '=')
      return RF_FAIL(error, RAFTER_INVALID, "write flags as XLA does: --xla_flag=value",
                     "XLA flag '%.*s': no name", (int)(end - at), at);
    bytes entry = {0}, value = {0};
    put_block(&entry, ENTRY_KEY, name, name_bytes);
    /* a flag without a value is true, as in XLA */
    if (equals) put_value(&value, equals + 1, (size_t)(end - equals - 1));
    else put_value(&value, "true", 4);
    put_message(&entry, ENTRY_VALUE, &value);
    put_message(to, OPTIONS_OVERRIDE, &entry);
    at = end;
  }
  return RAFTER_OK;
}

rf_status rf_xla_options(int replicas, const int32_t *device, const char *flags, void **options,
                         size_t *count, rf_error *error) {
  bytes all = {0}, build = {0};
  put_number(&build, BUILD_REPLICAS, (uint64_t)replicas);
  put_number(&build, BUILD_PARTITIONS, 1);
  if (device && replicas > 1) put_assignment(&build, replicas, device);
  put_message(&all, OPTIONS_BUILD, &build);
  rf_status status = put_flags(&all, flags, error);
  if (status != RAFTER_OK) {
    free(all.data);
    return status;
  }
  *options = all.data;
  *count = all.count;
  return RAFTER_OK;
}
