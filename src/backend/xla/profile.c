/* profile.c - see profile.h: the kernels of a device, from an XSpace. GPUs have a line of events
 * for each stream. TPUs have the line "XLA Ops", in which an event can contain others. */
#include <stdlib.h>
#include <string.h>

#include "backend/xla/profile.h"

enum { /* numbers of fields, from tsl/profiler/protobuf/xplane.proto */
       SPACE_PLANES = 1,
       PLANE_NAME = 2,
       PLANE_LINES = 3,
       PLANE_EVENT_METADATA = 4,
       PLANE_STAT_METADATA = 5,
       MAP_KEY = 1,
       MAP_VALUE = 2,
       METADATA_NAME = 2,
       METADATA_SHOWN_NAME = 4,
       METADATA_STATS = 5,
       LINE_NAME = 2,
       LINE_TIME = 3,
       LINE_EVENTS = 4,
       LINE_SHOWN_NAME = 11,
       EVENT_METADATA = 1,
       EVENT_OFFSET = 2,
       EVENT_DURATION = 3,
       EVENT_STATS = 4,
       STAT_METADATA = 1,
       STAT_TEXT = 5,
       STAT_BYTES = 6,
       STAT_REFERENCE = 7
};
enum { DEEPEST = 64 /* maximum depth of events that contain each other */ };
static const uint64_t LATEST_NS = (uint64_t)1 << 62, LONGEST_PS = (uint64_t)1 << 62;

/* An entry of the map from numbers to metadata. */
typedef struct meta {
  uint64_t key;
  rf_proto_bytes value; /* the message */
} meta;
typedef struct map {
  meta *at;
  int count, room;
} map;

typedef struct event {
  int64_t begin, end; /* ns */
  int instruction, number;
} event;
typedef struct reader {
  const rf_xla_instructions *in;
  map events, stats; /* metadata of the plane */
  bool named;        /* the metadata of an event have the name of its instruction */
  event *event;      /* of the line */
  int count, room;
  int number; /* of the next event */
  rf_xla_kernels *out;
  int out_room;
  bool full;
} reader;

bool rf_xla_grow(void **list, int count, int *room, size_t size) {
  enum { MOST = 1 << 22 };
  if (count < *room) return true;
  int more = *room ? 2 * *room : 256;
  void *grown = more <= MOST ? realloc(*list, (size_t)more * size) : NULL;
  if (!grown) return false;
  *list = grown;
  *room = more;
  return true;
}

/* ---- metadata -------------------------------------------------------------------------------- */

static int by_key(const void *a, const void *b) {
  uint64_t x = ((const meta *)a)->key, y = ((const meta *)b)->key;
  return (x > y) - (x < y);
}

static bool add_meta(map *to, rf_proto_bytes entry) {
  rf_proto_field f;
  meta made = {0};
  for (rf_proto p = rf_proto_of(entry); rf_proto_next(&p, &f);) {
    if (f.number == MAP_KEY && f.is_number) made.key = f.value;
    if (f.number == MAP_VALUE && !f.is_number) made.value = f.bytes;
  }
  if (!rf_xla_grow((void **)&to->at, to->count, &to->room, sizeof *to->at)) return false;
  to->at[to->count++] = made;
  return true;
}

static rf_proto_bytes find_meta(const map *in, uint64_t key) {
  meta of = {.key = key};
  const meta *found = in->count ? bsearch(&of, in->at, (size_t)in->count, sizeof of, by_key) : NULL;
  return found ? found->value : (rf_proto_bytes){NULL, 0};
}

static bool read_metadata(reader *r, rf_proto_bytes plane) {
  rf_proto_field f;
  r->events.count = r->stats.count = 0;
  for (rf_proto p = rf_proto_of(plane); rf_proto_next(&p, &f);) {
    if (f.is_number || (f.number != PLANE_EVENT_METADATA && f.number != PLANE_STAT_METADATA)) continue;
    if (!add_meta(f.number == PLANE_EVENT_METADATA ? &r->events : &r->stats, f.bytes)) return false;
  }
  if (r->events.count) qsort(r->events.at, (size_t)r->events.count, sizeof *r->events.at, by_key);
  if (r->stats.count) qsort(r->stats.at, (size_t)r->stats.count, sizeof *r->stats.at, by_key);
  return true;
}

/* ---- instructions ---------------------------------------------------------------------------- */

/* The instruction that a statistic names, or RF_NONE if the statistic does not name an
 * instruction. */
static int of_stat(const reader *r, rf_proto_bytes stat) {
  rf_proto_field f;
  uint64_t kind = 0;
  rf_proto_bytes text = {NULL, 0};
  for (rf_proto p = rf_proto_of(stat); rf_proto_next(&p, &f);) {
    if (f.number == STAT_METADATA && f.is_number) kind = f.value;
    if ((f.number == STAT_TEXT || f.number == STAT_BYTES) && !f.is_number) text = f.bytes;
    if (f.number == STAT_REFERENCE && f.is_number)
      text = rf_proto_find(find_meta(&r->stats, f.value), METADATA_NAME);
  }
  bool named = text.count && rf_proto_is(rf_proto_find(find_meta(&r->stats, kind), METADATA_NAME), "hlo_op");
  return named ? rf_xla_instructions_find(r->in, text) : RF_NONE;
}

/* An instruction may run inside another instruction, such as a loop. The statistics name the
 * innermost instruction last. */
static int of_stats(const reader *r, rf_proto_bytes message, uint32_t number) {
  rf_proto_field f;
  int found = RF_NONE;
  for (rf_proto p = rf_proto_of(message); rf_proto_next(&p, &f);) {
    int one = f.number == number && !f.is_number ? of_stat(r, f.bytes) : RF_NONE;
    if (one != RF_NONE) found = one;
  }
  return found;
}

/* A TPU's events have the text of the instruction as their name: "%fusion.3 = bf16[8] fusion(...)". */
static rf_proto_bytes first_word(rf_proto_bytes text) {
  if (text.count && *text.data == '%') {
    text.data++;
    text.count--;
  }
  for (size_t i = 0; i < text.count; i++)
    if (text.data[i] == ' ') text.count = i;
  return text;
}

/* The kernel of a GPU has the name of the function, which several instructions can share. */
static int instruction_of(const reader *r, rf_proto_bytes bytes, uint64_t metadata) {
  int found = of_stats(r, bytes, EVENT_STATS);
  if (found != RF_NONE || !r->named) return found;
  rf_proto_bytes about = find_meta(&r->events, metadata);
  found = of_stats(r, about, METADATA_STATS);
  if (found == RF_NONE) found = rf_xla_instructions_find(r->in, rf_proto_find(about, METADATA_SHOWN_NAME));
  if (found == RF_NONE)
    found = rf_xla_instructions_find(r->in, first_word(rf_proto_find(about, METADATA_NAME)));
  return found;
}

/* ---- lines ----------------------------------------------------------------------------------- */

/* Adds an event, if the event has a time. */
static bool add_event(reader *r, rf_proto_bytes bytes, uint64_t line_ns) {
  rf_proto_field f;
  uint64_t metadata = 0, offset = 0, duration = 0;
  for (rf_proto p = rf_proto_of(bytes); rf_proto_next(&p, &f);) {
    if (!f.is_number) continue;
    if (f.number == EVENT_METADATA) metadata = f.value;
    if (f.number == EVENT_OFFSET) offset = f.value;
    if (f.number == EVENT_DURATION) duration = f.value;
  }
  if (duration == 0 || offset > LONGEST_PS || duration > LONGEST_PS) return true;
  if (!rf_xla_grow((void **)&r->event, r->count, &r->room, sizeof *r->event)) return false;
  r->event[r->count++] = (event){.begin = (int64_t)(line_ns + offset / 1000),
                                 .end = (int64_t)(line_ns + (offset + duration) / 1000),
                                 .instruction = instruction_of(r, bytes, metadata),
                                 .number = r->number++};
  return true;
}

static int outer_first(const void *a, const void *b) {
  const event *x = a, *y = b;
  if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
  if (x->end != y->end) return x->end > y->end ? -1 : 1;
  return x->number < y->number ? -1 : 1;
}

static void put_kernel(reader *r, const event *e, int64_t begin, int64_t end) {
  rf_xla_kernels *out = r->out;
  if (end <= begin) return;
  r->full = r->full || !rf_xla_grow((void **)&out->at, out->count, &r->out_room, sizeof *out->at);
  if (r->full) return;
  out->at[out->count++] = (rf_xla_kernel){begin, end, e->instruction, e->number};
  out->known += e->instruction != RF_NONE;
}

/* Makes kernels from the events of the line. An event that contains other events gets only the time
 * outside these events. */
static void put_events(reader *r) {
  const event *open[DEEPEST];
  int depth = 0;
  int64_t at = 0;
  if (r->count) qsort(r->event, (size_t)r->count, sizeof *r->event, outer_first);
  for (int i = 0; i <= r->count; i++) {
    const event *e = i < r->count ? &r->event[i] : NULL;
    for (; depth && (!e || open[depth - 1]->end <= e->begin); depth--) {
      put_kernel(r, open[depth - 1], at, open[depth - 1]->end);
      if (open[depth - 1]->end > at) at = open[depth - 1]->end;
    }
    if (!e) break;
    if (depth) put_kernel(r, open[depth - 1], at, e->begin);
    if (!depth || e->begin > at) at = e->begin;
    if (depth == DEEPEST) depth--;
    open[depth++] = e;
  }
}

static rf_proto_bytes name_of_line(rf_proto_bytes line) {
  rf_proto_bytes shown = rf_proto_find(line, LINE_SHOWN_NAME);
  return shown.count ? shown : rf_proto_find(line, LINE_NAME);
}

static bool read_line(reader *r, rf_proto_bytes line) {
  rf_proto_field f;
  uint64_t time = 0;
  for (rf_proto p = rf_proto_of(line); rf_proto_next(&p, &f);)
    if (f.number == LINE_TIME && f.is_number) time = f.value;
  if (time > LATEST_NS) return true;
  r->count = 0;
  for (rf_proto p = rf_proto_of(line); rf_proto_next(&p, &f);)
    if (f.number == LINE_EVENTS && !f.is_number && !add_event(r, f.bytes, time)) return false;
  put_events(r);
  return !r->full;
}

/* ---- planes ---------------------------------------------------------------------------------- */

/* Number of the device in "/device:GPU:0"; -1: another plane. */
static int device_of(rf_proto_bytes name) {
  static const char *const KINDS[] = {"/device:GPU:", "/device:TPU:"};
  enum { DIGITS = 3 };
  for (size_t k = 0; k < sizeof KINDS / sizeof *KINDS; k++) {
    size_t length = strlen(KINDS[k]);
    int number = 0;
    if (name.count <= length || name.count > length + DIGITS || memcmp(name.data, KINDS[k], length)) continue;
    for (size_t i = length; i < name.count && number >= 0; i++)
      number = name.data[i] >= '0' && name.data[i] <= '9' ? 10 * number + name.data[i] - '0' : -1;
    return number;
  }
  return -1;
}

static bool has_line(rf_proto_bytes plane, const char *name) {
  rf_proto_field f;
  for (rf_proto p = rf_proto_of(plane); rf_proto_next(&p, &f);)
    if (f.number == PLANE_LINES && !f.is_number && rf_proto_is(name_of_line(f.bytes), name)) return true;
  return false;
}

static bool read_plane(reader *r, rf_proto_bytes plane) {
  static const char *const OPS = "XLA Ops";
  rf_proto_field f;
  r->named = has_line(plane, OPS); /* as on TPUs */
  if (!read_metadata(r, plane)) return false;
  for (rf_proto p = rf_proto_of(plane); rf_proto_next(&p, &f);) {
    if (f.number != PLANE_LINES || f.is_number) continue;
    rf_proto_bytes name = name_of_line(f.bytes);
    bool stream = name.count >= 6 && !memcmp(name.data, "Stream", 6);
    if ((r->named ? rf_proto_is(name, OPS) : stream) && !read_line(r, f.bytes)) return false;
  }
  return true;
}

/* Reads the first device whose number is above `after`. Sets *device to its number, or -1. */
static bool read_device(reader *r, rf_proto_bytes space, int after, int *device) {
  rf_proto_field f;
  rf_proto_bytes plane = {NULL, 0};
  *device = -1;
  for (rf_proto p = rf_proto_of(space); rf_proto_next(&p, &f);) {
    if (f.number != SPACE_PLANES || f.is_number) continue;
    int number = device_of(rf_proto_find(f.bytes, PLANE_NAME));
    if (number <= after || (*device >= 0 && number >= *device)) continue;
    *device = number;
    plane = f.bytes;
  }
  return *device < 0 || read_plane(r, plane);
}

static int by_begin(const void *a, const void *b) {
  const rf_xla_kernel *x = a, *y = b;
  if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
  return (x->event > y->event) - (x->event < y->event);
}

rf_status rf_xla_kernels_read(rf_proto_bytes space, const rf_xla_instructions *in, rf_xla_kernels *out,
                              rf_error *error) {
  reader r = {.in = in, .out = out};
  rf_status status = RAFTER_OK;
  *out = (rf_xla_kernels){0};
  /* some plugins also count a zero byte after the message */
  if (!rf_proto_is_whole(space) && space.count && !space.data[space.count - 1]) space.count--;
  if (!rf_proto_is_whole(space)) return RF_FAIL(error, RAFTER_FAILED, NULL, "the profile is damaged");
  for (int device = -1, last = -1; !out->count; last = device) {
    if (!read_device(&r, space, last, &device))
      RF_GO(RF_FAIL(error, RAFTER_FAILED, "trace fewer steps", "the profile of a step is too large"));
    if (device < 0) RF_GO(RF_FAIL(error, RAFTER_FAILED, NULL, "the profile has no kernels of a device"));
  }
  qsort(out->at, (size_t)out->count, sizeof *out->at, by_begin);
done:
  free(r.events.at);
  free(r.stats.at);
  free(r.event);
  if (status != RAFTER_OK) {
    free(out->at);
    *out = (rf_xla_kernels){0};
  }
  return status;
}
