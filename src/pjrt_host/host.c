/* host.c - see host.h: faults, tables of objects, calls of the plugin's functions. */
#include "pjrt_host/host.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void host_fill(host_fault *fault, int code, const char *format, ...) {
  va_list list;
  va_start(list, format);
  fault->code = code;
  vsnprintf(fault->text, sizeof fault->text, format, list);
  va_end(list);
}

static void *grown(void *memory, size_t bytes) {
  memory = realloc(memory, bytes);
  if (!memory) abort(); /* the client reports it */
  return memory;
}

int64_t host_table_add(host_table *table, void *object) {
  if (!table->unused_count) {
    uint32_t count = table->count ? 2 * table->count : 64;
    table->slot = grown(table->slot, count * sizeof *table->slot);
    table->unused = grown(table->unused, count * sizeof *table->unused);
    memset(table->slot + table->count, 0, (count - table->count) * sizeof *table->slot);
    for (uint32_t i = count; i > table->count; i--) table->unused[table->unused_count++] = i - 1;
    table->count = count;
  }
  uint32_t at = table->unused[--table->unused_count];
  table->slot[at].object = object;
  table->slot[at].uses++;
  return (int64_t)(table->slot[at].uses & 0x7fffffffu) << 32 | (at + 1);
}

void *host_table_find(const host_table *table, int64_t id) {
  uint64_t at = (uint64_t)id & 0xffffffffu;
  if (at < 1 || at > table->count) return NULL;
  bool same = (uint64_t)id >> 32 == (table->slot[at - 1].uses & 0x7fffffffu);
  return same ? table->slot[at - 1].object : NULL;
}

void *host_table_take(host_table *table, int64_t id) {
  void *object = host_table_find(table, id);
  if (!object) return NULL;
  uint32_t at = (uint32_t)((uint64_t)id & 0xffffffffu) - 1;
  table->slot[at].object = NULL;
  table->unused[table->unused_count++] = at;
  return object;
}

bool host_has(const host *h, int slot) {
  size_t slots = (h->api->struct_size - sizeof *h->api) / sizeof *h->api->slot;
  return (size_t)slot < slots && h->api->slot[slot];
}

static bool take_error(const host *h, void *error, const char *what, host_fault *fault) {
  pjrt_error_message message = {.struct_size = sizeof message, .error = error};
  pjrt_number_of code = {.struct_size = sizeof code, .object = error};
  pjrt_on_object destroy = {.struct_size = sizeof destroy, .object = error};
  h->api->slot[PJRT_ERROR_MESSAGE](&message);
  void *second = h->api->slot[PJRT_ERROR_CODE](&code);
  int known = !second && code.number >= 1 && code.number <= 16 ? code.number : 2;
  host_fill(fault, known, "%s: %.*s", what, (int)(message.bytes > 4000 ? 4000 : message.bytes),
            message.text ? message.text : "");
  h->api->slot[PJRT_ERROR_DESTROY](&destroy);
  return false;
}

bool host_call(const host *h, int slot, void *args, size_t bytes, const char *what, host_fault *fault) {
  if (!host_has(h, slot))
    return host_fail(fault, PJRT_UNIMPLEMENTED, "%s: the plugin has no such function", what);
  memcpy(args, &bytes, sizeof bytes); /* the first field of the struct is its size */
  void *error = h->api->slot[slot](args);
  return error ? take_error(h, error, what, fault) : true;
}

void host_destroy(const host *h, int slot, void *object) {
  host_fault unused;
  pjrt_on_object args = {.object = object};
  if (object) HOST_CALL(h, slot, &args, "destroy", &unused);
}

/* Waits for a short time without sleeping. */
static void spin(const host *h, void *event) {
  host_fault unused;
  pjrt_is_ready args = {.object = event};
  int64_t end = rf_wire_now_ns() + h->spin_ns;
  while (HOST_CALL(h, PJRT_EVENT_IS_READY, &args, "", &unused) && !args.ready && rf_wire_now_ns() < end) {}
}

bool host_await(const host *h, void *event, const char *what, host_fault *fault) {
  pjrt_on_object args = {.object = event};
  if (h->spin_ns) spin(h, event);
  bool done = HOST_CALL(h, PJRT_EVENT_AWAIT, &args, what, fault);
  host_destroy(h, PJRT_EVENT_DESTROY, event);
  return done;
}

bool host_is_named(const pjrt_named *value, const char *name) {
  return value->name_bytes == strlen(name) && !memcmp(value->name, name, value->name_bytes);
}
