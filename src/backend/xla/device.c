/* device.c - see device.h: opens the plugin, and moves bytes between the host, the image and
 * buffers. */
#define _GNU_SOURCE
#include "backend/xla/device.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Bytes of address space after the arena, for data of programs. Only pages that are written use
 * memory. */
static const int64_t EXTRA_BYTES = (int64_t)1 << 32;

/* Opens the plugin with `chips` devices on this host. An option of the client sets the number of
 * devices of a CPU plugin. */
static rf_status open_client(rf_xla_device *d, int chips, rf_error *error) {
  const rf_hosts *hosts = &d->settings.hosts;
  rf_xla_settings of = {.plugin = d->settings.plugin,
                        .hosts = {hosts->host, hosts->hosts, hosts->address, hosts->port},
                        .stop = d->settings.stop};
  RF_TRY(rf_xla_open(&of, &d->client, error));
  const rf_xla_facts *facts = rf_xla_facts_of(d->client);
  if (facts->devices < chips && d->device.hosts == 1 && !strcmp(facts->platform, "cpu")) {
    const rf_xla_option count = {.name = "cpu_device_count", .number = chips};
    rf_xla_close(d->client);
    d->client = NULL;
    of.option = &count;
    of.options = 1;
    RF_TRY(rf_xla_open(&of, &d->client, error));
    facts = rf_xla_facts_of(d->client);
  }
  if (facts->devices >= chips) return RAFTER_OK;
  int have = facts->devices;
  rf_xla_close(d->client);
  d->client = NULL;
  if (d->device.hosts > 1)
    return RF_FAIL(error, RAFTER_INVALID, "use a --mesh of fewer chips, or more hosts",
                   "each host has too few devices for its part of the mesh (%s: expected %d, got %d)",
                   d->settings.plugin, chips, have);
  return RF_FAIL(error, RAFTER_INVALID, "use a --mesh of fewer chips, or a plugin with more devices",
                 "the plugin has too few devices for the mesh (%s: expected %d, got %d)", d->settings.plugin,
                 chips, have);
}

static rf_status open_device(rf_device **out, const rf_device_settings *settings, rf_error *error) {
  if (!settings->plugin || !*settings->plugin)
    return RF_FAIL(error, RAFTER_INVALID, "`rafter doctor` lists plugins; `./dev setup --xla` installs some",
                   "--backend xla needs a PJRT plugin (--plugin FILE, or RAFTER_PJRT_PLUGIN)");
  rf_xla_device *d = calloc(1, sizeof *d);
  if (!d) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while opening a device");
  d->settings = *settings;
  d->device.chips = settings->chips > 1 ? settings->chips : 1;
  d->device.hosts = settings->hosts.hosts > 1 ? settings->hosts.hosts : 1;
  d->device.host = d->device.hosts > 1 ? settings->hosts.host : 0;
  rf_status status = RAFTER_OK;
  if (d->device.chips % d->device.hosts)
    status = RF_FAIL(error, RAFTER_INVALID, "make the number of chips in --mesh a multiple of the hosts",
                     "%d chips cannot be shared equally among %d hosts (--mesh)", d->device.chips,
                     d->device.hosts);
  if (status == RAFTER_OK) status = open_client(d, d->device.chips / d->device.hosts, error);
  if (status == RAFTER_OK) *out = &d->device;
  else free(d);
  return status;
}

static void close_device(rf_device *device) {
  rf_xla_device *d = (rf_xla_device *)device;
  rf_xla_close(d->client);
  free(d);
}

static rf_status allocate(rf_device *device, int64_t bytes, rf_memory **out, rf_error *error) {
  rf_xla_memory *m = calloc(1, sizeof *m);
  if (!m) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while opening a device");
  enum { PAGE = 4096 };
  int chips = device->chips / device->hosts;
  int64_t block = chips > 1 ? (bytes + PAGE - 1) / PAGE * PAGE : (bytes + 63) / 64 * 64;
  *m = (rf_xla_memory){.memory = {.device = device, .bytes = bytes, .chip_bytes = chips > 1 ? block : 0},
                       .device = (rf_xla_device *)device,
                       .chips = chips,
                       .extra = chips * block};
  rf_status status = rf_xla_share(m->device->client, m->extra + EXTRA_BYTES, &m->image, error);
  if (status != RAFTER_OK) {
    free(m);
    return status;
  }
  pthread_mutex_init(&m->lock, NULL);
  *out = &m->memory;
  return RAFTER_OK;
}

static void release(rf_memory *memory) {
  rf_xla_memory *m = (rf_xla_memory *)memory;
  for (int i = 0; i < m->slots; i++) {
    for (int c = 0; c < m->chips; c++)
      if (m->slot[i].on[c].buffer) rf_xla_free(m->device->client, &m->slot[i].on[c].buffer, 1);
    free(m->slot[i].on);
  }
  rf_xla_unshare(m->device->client, &m->image);
  pthread_mutex_destroy(&m->lock);
  free(m->slot);
  free(m);
}

rf_status rf_xla_reserve(rf_xla_memory *m, int64_t bytes, int64_t *at, rf_error *error) {
  if (m->extra + bytes > m->image.bytes)
    return RF_FAIL(error, RAFTER_FAILED, "use fewer microbatches",
                   "the inputs of a step are too large for one transfer (%lld bytes)", (long long)bytes);
  *at = m->extra;
  m->extra += (bytes + 63) / 64 * 64;
  return RAFTER_OK;
}

/* ---- slots ----------------------------------------------------------------------------------- */

rf_xla_shape rf_xla_shape_of(rf_val v) {
  static const int DTYPES[RF_HLO_TYPES] = {
      [RF_HLO_F32] = RF_F32,     [RF_HLO_BF16] = RF_BF16,  [RF_HLO_F16] = RF_F16, [RF_HLO_F64] = RF_F64,
      [RF_HLO_I32] = RF_I32,     [RF_HLO_I64] = RF_I64,    [RF_HLO_I8] = RF_I8,   [RF_HLO_U8] = RF_U8,
      [RF_HLO_U16] = RF_XLA_U16, [RF_HLO_U32] = RF_XLA_U32};
  rf_xla_shape shape = {.dtype = DTYPES[v.type], .rank = v.rank};
  for (int i = 0; i < v.rank; i++) shape.dim[i] = v.dim[i];
  return shape;
}

bool rf_xla_same_shape(const rf_xla_shape *a, const rf_xla_shape *b) {
  return a->dtype == b->dtype && a->rank == b->rank &&
         memcmp(a->dim, b->dim, (size_t)a->rank * sizeof *a->dim) == 0;
}

rf_status rf_xla_slot_of(rf_xla_memory *m, const rf_tensor *tensor, const rf_xla_shape *shape, int64_t offset,
                         rf_xla_slot **slot, rf_error *error) {
  int at = 0;
  while (at < m->slots && m->slot[at].offset < offset) at++;
  if (at == m->slots || m->slot[at].offset != offset) {
    rf_xla_slot *more = realloc(m->slot, (size_t)(m->slots + 1) * sizeof *more);
    if (more) m->slot = more;
    rf_xla_value *on = calloc((size_t)m->chips, sizeof *on);
    if (!more || !on) {
      free(on);
      return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while compiling a plan");
    }
    for (int c = 0; c < m->chips; c++) on[c].on_host = true;
    memmove(more + at + 1, more + at, (size_t)(m->slots++ - at) * sizeof *more);
    more[at] = (rf_xla_slot){.offset = offset, .bytes = rf_xla_shape_bytes(shape), .shape = *shape, .on = on};
  }
  *slot = &m->slot[at];
  if (rf_xla_same_shape(&m->slot[at].shape, shape)) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_INVALID, NULL, "two plans keep different tensors in one place (%s)",
                 tensor->name);
}

rf_xla_slot *rf_xla_find_slot(rf_xla_memory *m, int64_t at) {
  int low = 0, high = m->slots;
  while (low < high) {
    int middle = (low + high) / 2;
    if (m->slot[middle].offset <= at) low = middle + 1;
    else high = middle;
  }
  return low > 0 && at < m->slot[low - 1].offset + m->slot[low - 1].bytes ? &m->slot[low - 1] : NULL;
}

/* Returns pages of the image to the system. Afterwards, these pages read as zeros. */
static void drop_pages(const rf_xla_memory *m, int64_t at, int64_t bytes) {
  enum { PAGE = 4096 };
  int64_t begin = (at + PAGE - 1) / PAGE * PAGE, end = (at + bytes) / PAGE * PAGE;
  if (begin < end) madvise(rf_xla_at(m, begin), (size_t)(end - begin), MADV_REMOVE);
}

rf_status rf_xla_to_device(rf_xla_memory *m, rf_xla_slot *slot, int chip, rf_error *error) {
  rf_xla_value *value = &slot->on[chip];
  int64_t at = rf_memory_at(&m->memory, chip, slot->offset);
  if (value->on_device) return RAFTER_OK;
  if (value->buffer) rf_xla_free(m->device->client, &value->buffer, 1);
  value->buffer = 0;
  RF_TRY(rf_xla_put(m->device->client, chip, &slot->shape, &m->image, at, &value->buffer, error));
  value->on_device = true;
  value->on_host = false;
  drop_pages(m, at, slot->bytes);
  return RAFTER_OK;
}

static rf_status to_host(rf_xla_memory *m, rf_xla_slot *slot, int chip, rf_error *error) {
  rf_xla_value *value = &slot->on[chip];
  if (value->on_host) return RAFTER_OK;
  RF_TRY(rf_xla_get(m->device->client, value->buffer, &m->image, rf_memory_at(&m->memory, chip, slot->offset),
                    slot->bytes, error));
  value->on_host = true;
  return RAFTER_OK;
}

/* Copies the newest value of the tensor at `at` to the image. If `write`, the caller will also
 * write the image. */
static rf_status use_host(rf_xla_memory *m, int64_t at, bool write, rf_error *error) {
  int chip = m->memory.chip_bytes ? (int)(at / m->memory.chip_bytes) : 0;
  pthread_mutex_lock(&m->lock);
  rf_xla_slot *slot = rf_xla_find_slot(m, at - rf_memory_at(&m->memory, chip, 0));
  rf_status status = slot ? to_host(m, slot, chip, error) : RAFTER_OK;
  if (slot && write && status == RAFTER_OK) slot->on[chip].on_device = false;
  pthread_mutex_unlock(&m->lock);
  return status;
}

/* A tensor loses its value if neither this plan nor the first plan has the tensor. At its next use,
 * the tensor begins as zeros, because masked elements must not have the bytes of other tensors. */
static void enter(rf_memory *memory, int plan) {
  rf_xla_memory *m = (rf_xla_memory *)memory;
  for (int i = 0; i < m->slots; i++) {
    rf_xla_slot *slot = &m->slot[i];
    bool has = slot->plans & (uint64_t)1 << plan % 64, clears = has && slot->lost;
    if (slot->plans & 1 || (has && !clears)) continue;
    for (int chip = 0; chip < m->chips; chip++) {
      rf_xla_value *value = &slot->on[chip];
      if (value->buffer) rf_xla_free(m->device->client, &value->buffer, 1);
      *value = (rf_xla_value){.on_host = true};
      if (clears) memset(rf_xla_at(m, rf_memory_at(memory, chip, slot->offset)), 0, (size_t)slot->bytes);
    }
    slot->lost = !clears;
  }
}

static rf_status upload(rf_memory *memory, int64_t at, const void *from, int64_t bytes, rf_error *error) {
  rf_xla_memory *m = (rf_xla_memory *)memory;
  RF_TRY(use_host(m, at, true, error));
  memcpy(rf_xla_at(m, at), from, (size_t)bytes);
  return RAFTER_OK;
}

static rf_status fill(rf_memory *memory, int64_t at, uint32_t word, int64_t bytes, rf_error *error) {
  rf_xla_memory *m = (rf_xla_memory *)memory;
  RF_TRY(use_host(m, at, true, error));
  for (int64_t i = 0; i + 4 <= bytes; i += 4) memcpy(rf_xla_at(m, at + i), &word, 4);
  return RAFTER_OK;
}

static rf_status download(rf_memory *memory, int64_t at, void *to, int64_t bytes, rf_error *error) {
  rf_xla_memory *m = (rf_xla_memory *)memory;
  RF_TRY(use_host(m, at, false, error));
  memcpy(to, rf_xla_at(m, at), (size_t)bytes);
  return RAFTER_OK;
}

/* ---- other hosts ----------------------------------------------------------------------------- */

static rf_status send_to(rf_device *device, int host, const void *data, int64_t bytes, rf_error *error) {
  return rf_xla_send(((rf_xla_device *)device)->client, host, data, bytes, error);
}

static rf_status receive_from(rf_device *device, int host, void *data, int64_t bytes, rf_error *error) {
  return rf_xla_receive(((rf_xla_device *)device)->client, host, data, bytes, error);
}

/* ---- the backend ----------------------------------------------------------------------------- */

/* For this backend, plans show the name of the compiler instead of the name of a kernel. A program
 * calls no kernel. */
static const rf_kernel ROWS[] = {{.op = RF_ANY_OP, .name = "xla"}, {0}};
static const rf_kernel *const TABLES[] = {ROWS, NULL};
static const rf_device_type DEVICE = {.open = open_device,
                                      .close = close_device,
                                      .allocate = allocate,
                                      .release = release,
                                      .fill = fill,
                                      .upload = upload,
                                      .download = download,
                                      .enter = enter,
                                      .send = send_to,
                                      .receive = receive_from,
                                      .compile = rf_xla_compile_plan};

const rf_backend RF_BACKEND_XLA = {.name = "xla",
                                   .tables = TABLES,
                                   .device = &DEVICE,
                                   .plain_weights = true,
                                   .compiles = true,
                                   .many_chips = true};
