/* gather.c - see gather.h. All hosts know the blocks and the place of every part. So each host
 * knows the messages that it sends and receives, and no host has to ask. A message has the pieces
 * of all parts that one host sends to another, in the order of chips, runs and elements. */
#include "run/gather.h"

#include "backend/mpi/link.h"
#include "run/hosts.h"

#include <stdlib.h>
#include <string.h>

typedef struct passing {
  const rf_whole *whole;
  rf_memory *memory;
  const rf_run_block *block;
  int64_t size;           /* bytes of an element */
  int64_t base;           /* where the part of a local chip begins in `memory` */
  int64_t first, row;     /* the run that the function visits: its first element and its number */
  unsigned char *to;      /* the block; NULL: the block of another host */
  unsigned char *message; /* the message; NULL: only the bytes of the message are counted */
  int64_t bytes;          /* bytes of the message so far */
} passing;

static unsigned char *place_in_block(const passing *p, int64_t whole) {
  return p->to + (p->row * p->block->count + whole - p->first) * p->size;
}

static rf_status count_piece(void *context, int64_t mine, int64_t whole, int64_t count, rf_error *error) {
  passing *p = context;
  (void)mine;
  (void)whole;
  (void)error;
  p->bytes += count * p->size;
  return RAFTER_OK;
}

static rf_status pack_piece(void *context, int64_t mine, int64_t whole, int64_t count, rf_error *error) {
  passing *p = context;
  (void)whole;
  RF_TRY(rf_memory_read(p->memory, p->base + mine * p->size, p->message + p->bytes, count * p->size, error));
  p->bytes += count * p->size;
  return RAFTER_OK;
}

static rf_status unpack_piece(void *context, int64_t mine, int64_t whole, int64_t count, rf_error *error) {
  passing *p = context;
  (void)mine;
  (void)error;
  memcpy(place_in_block(p, whole), p->message + p->bytes, (size_t)(count * p->size));
  p->bytes += count * p->size;
  return RAFTER_OK;
}

static rf_status copy_piece(void *context, int64_t mine, int64_t whole, int64_t count, rf_error *error) {
  const passing *p = context;
  return rf_memory_read(p->memory, p->base + mine * p->size, place_in_block(p, whole), count * p->size,
                        error);
}

/* Visits the pieces of a block that host `from` sends to host `to`. */
static rf_status visit_block(passing *p, int from, int to, rf_place_visit visit, rf_error *error) {
  const rf_run_block *block = p->block;
  for (int chip = 0; chip < rf_whole_chips(p->whole); chip++) {
    int giver = rf_whole_giver(p->whole, block->tensor, chip, to);
    if (giver == RF_NONE || rf_whole_host(p->whole, giver) != from) continue;
    p->base = rf_whole_base(p->whole, p->memory, block->tensor, giver);
    for (p->row = 0; p->row < block->rows; p->row++) {
      p->first = block->first + p->row * block->stride;
      RF_TRY(rf_place_pieces(rf_whole_part(p->whole, block->tensor, chip), p->first, block->count, visit, p,
                             error));
    }
  }
  return RAFTER_OK;
}

/* A message that this host sends or receives. */
typedef struct parcel {
  passing with;
  int host;
  bool out;
  int64_t bytes;
} parcel;

static passing passing_of(const rf_whole *whole, rf_memory *memory, const rf_run_block *block) {
  return (passing){.whole = whole,
                   .memory = memory,
                   .block = block,
                   .size = rf_dtype_bytes(rf_whole_tensor(whole, block->tensor)->dtype)};
}

/* Allocates a message: if `out` is true, the message that this host sends to of->host, otherwise
 * the message that it receives. If of->bytes is 0, the hosts exchange no message. */
static rf_status make(const rf_device *device, parcel *of, rf_error *error) {
  passing *p = &of->with;
  int mine = device->host, from = of->out ? mine : of->host, to = of->out ? of->host : mine;
  RF_TRY(visit_block(p, from, to, count_piece, error));
  of->bytes = p->bytes;
  p->bytes = 0;
  if (of->bytes) p->message = malloc((size_t)of->bytes);
  if (of->bytes && !p->message)
    return RF_FAIL(error, RAFTER_FAILED, "free some memory; --resume continues from the last checkpoint",
                   "out of memory for a message of %lld bytes to another rank", (long long)of->bytes);
  return RAFTER_OK;
}

static rf_status begin(const rf_device *device, parcel *of, rf_error *error) {
  passing *p = &of->with;
  if (!of->bytes) return RAFTER_OK;
  if (!of->out) rf_link_begin_receive(device->link, 0, of->host, p->message, of->bytes);
  else {
    RF_TRY(visit_block(p, device->host, of->host, pack_piece, error));
    rf_link_begin_send(device->link, 0, of->host, p->message, of->bytes);
  }
  return rf_link_status(device->link, NULL, error);
}

static rf_status make_all(const rf_whole *whole, rf_memory *memory, const rf_run_block *block, void *to,
                          parcel *all, int *parcels, rf_error *error) {
  const rf_device *device = memory->device;
  int mine = device->host;
  if (!all) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while exchanging a tensor");
  for (int host = 0; host < device->hosts; host++) {
    if (host == mine) continue;
    if (block[mine].rows > 0) {
      all[*parcels] = (parcel){passing_of(whole, memory, &block[mine]), host, false, 0};
      all[*parcels].with.to = to;
      RF_TRY(make(device, &all[(*parcels)++], error));
    }
    if (block[host].rows == 0) continue;
    all[*parcels] = (parcel){passing_of(whole, memory, &block[host]), host, true, 0};
    RF_TRY(make(device, &all[(*parcels)++], error));
  }
  return RAFTER_OK;
}

rf_status rf_gather(const rf_whole *whole, rf_memory *memory, const rf_run_block *block, void *to,
                    rf_error *error) {
  rf_device *device = memory->device;
  int mine = device->host, parcels = 0;
  bool flying = false;
  parcel *all = calloc(2 * (size_t)device->hosts, sizeof *all);
  rf_status status = make_all(whole, memory, block, to, all, &parcels, error);
  uint32_t fails = status != RAFTER_OK;
  /* no host may send to a host that cannot receive */
  rf_status agreed = rf_hosts_agree(device, &fails, status == RAFTER_OK ? error : NULL);
  if (status == RAFTER_OK) status = agreed;
  if (agreed == RAFTER_OK && fails) status = rf_hosts_settle(device, status, error);
  if (status != RAFTER_OK) goto done;
  flying = true;
  for (int i = 0; i < parcels; i++) RF_GO(begin(device, &all[i], error));
  if (block[mine].rows > 0) {
    passing own = passing_of(whole, memory, &block[mine]);
    own.to = to;
    RF_GO(visit_block(&own, mine, mine, copy_piece, error));
  }
  rf_link_wait(device->link, 0);
  RF_GO(rf_link_status(device->link, NULL, error));
  flying = false;
  for (int i = 0; i < parcels; i++)
    if (all[i].with.to && all[i].bytes)
      RF_GO(visit_block(&all[i].with, all[i].host, mine, unpack_piece, error));
done:
  /* After a failure, the messages stay allocated, because the library may still write to them. */
  for (int i = 0; i < parcels && !flying; i++) free(all[i].with.message);
  free(all);
  return status;
}
