/* whole.c - see whole.h. */
#include "run/whole.h"

#include "graph/mesh/pipeline.h"
#include "run/hosts.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCK_BYTES = 1 << 16 };

struct rf_whole {
  const rf_plan *plan;
  rf_pool *pool;
  rf_device *device;
  int chips;
  int first, local;     /* number of the first chip of this host, and number of its chips */
  rf_tensor *tensor;    /* (tensors) */
  rf_place_part **part; /* for each tensor: the parts of the chips; NULL: every chip has the same bytes */
  /* for each tensor and chip: the first chip that has the same part; RF_NONE: the chip has no
   * part */
  int **twin;
  unsigned char *room; /* memory for the part of one chip, for inputs and outputs */
};

const rf_tensor *rf_whole_tensor(const rf_whole *w, int tensor) { return &w->tensor[tensor]; }

/* ---- the parts of the chips ------------------------------------------------------------------ */

/* The graph without the mesh. In generation, the caller sees the sequences of only one copy of the
 * model, and every copy computes the same tokens. */
static rf_status build_unsharded(const rf_plan *plan, rf_graph **graph, rf_error *error) {
  rf_build_options options = plan->options.build;
  if (options.job == RF_JOB_GENERATE) {
    int64_t copies = rf_mesh_copies(&options.mesh);
    if (options.rows == options.microbatch) options.rows = rf_ceil_div(options.rows, copies);
    options.microbatch = rf_ceil_div(options.microbatch, copies);
    options.sequences = rf_ceil_div(options.sequences, copies);
  }
  options.mesh = (rf_mesh){.zero = options.mesh.zero};
  options.stored_as = NULL;
  options.weights = NULL; /* types of packed matrices; programs on a mesh have no packed matrices */
  return rf_graph_build(&plan->graph->model, &options, NULL, graph, error);
}

/* The tensors of a parameter have the shape of the parameter. Inputs and outputs have the same name
 * and shape as without the mesh. */
static rf_status find_shape(rf_whole *w, const rf_graph *unsharded, int t, rf_error *error) {
  const rf_tensor *mine = &w->plan->graph->tensor[t];
  rf_tensor *whole = &w->tensor[t];
  *whole = *mine;
  whole->spec = (rf_spec){.split = {0}};
  if (mine->class == RF_CLASS_KV) return RAFTER_OK;
  if (mine->param >= 0) {
    const rf_param *param = &w->plan->graph->params.at[mine->param];
    whole->rank = param->rank;
    for (int d = 0; d < param->rank; d++) whole->shape[d] = param->shape[d];
    return RAFTER_OK;
  }
  int twin = rf_graph_find(unsharded, mine->name);
  if (twin == RF_NONE)
    return RF_FAIL(error, RAFTER_FAILED, "this is a bug; please report it",
                   "the program of one chip has a tensor that the unsharded program lacks (%s)", mine->name);
  whole->rank = unsharded->tensor[twin].rank;
  memcpy(whole->shape, unsharded->tensor[twin].shape, sizeof whole->shape);
  return RAFTER_OK;
}

static bool is_elsewhere(const rf_plan *plan, int t) {
  return rf_tensor_is_elsewhere(&plan->graph->tensor[t], &plan->graph->mesh);
}

static bool is_visible(const rf_plan *plan, int t) {
  const rf_tensor *tensor = &plan->graph->tensor[t];
  return (plan->tensor[t].offset >= 0 || is_elsewhere(plan, t)) &&
         (tensor->persistent || tensor->input || tensor->output);
}

/* A tensor of the plan's owner that this plan keeps but does not use. An adapter is such a tensor
 * in the plan of the model without the adapter. The tensor is read and written through the owner's
 * plan. */
static bool is_of_owner(const rf_plan *plan, const rf_graph *unsharded, int t) {
  const rf_tensor *mine = &plan->graph->tensor[t];
  return mine->persistent && mine->param < 0 && mine->class != RF_CLASS_KV &&
         rf_graph_find(unsharded, mine->name) == RF_NONE;
}

/* True if the stage of this chip stores the tensor. */
static bool is_on(const rf_graph *graph, int chip, int t) {
  int32_t place[RF_AXES];
  rf_place_of(&graph->mesh, chip, place);
  return !graph->tensor[t].stages || graph->tensor[t].stages >> place[RF_AXIS_PIPELINE] & 1;
}

static void find_parts(rf_whole *w, int t) {
  const rf_graph *graph = w->plan->graph;
  if (graph->tensor[t].class == RF_CLASS_KV) return;
  w->part[t] = rf_pool_alloc(w->pool, (size_t)w->chips * sizeof *w->part[t]);
  w->twin[t] = rf_pool_alloc(w->pool, (size_t)w->chips * sizeof **w->twin);
  for (int chip = 0; chip < w->chips; chip++) {
    rf_place_part *part = &w->part[t][chip];
    w->twin[t][chip] = RF_NONE;
    if (!is_on(graph, chip, t)) continue; /* an empty part */
    *part = rf_place_part_of(graph, chip, t, &w->tensor[t], w->pool);
    w->twin[t][chip] = chip;
    for (int other = 0; other < chip; other++)
      if (rf_place_same(part, &w->part[t][other])) {
        *part = w->part[t][other];
        w->twin[t][chip] = other;
        break;
      }
  }
}

rf_status rf_whole_open(const rf_plan *plan, rf_device *device, rf_whole **out, rf_error *error) {
  rf_graph *unsharded = NULL;
  size_t tensors = (size_t)plan->graph->tensor_count + 1;
  int64_t room = 0;
  *out = NULL;
  if (rf_mesh_chips(&plan->graph->mesh) == 1) return RAFTER_OK;
  RF_TRY(build_unsharded(plan, &unsharded, error));
  rf_whole *w = calloc(1, sizeof *w);
  rf_status status = RAFTER_OK;
  if (!w || !(w->pool = rf_pool_new()))
    RF_GO(RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while binding the plan"));
  w->plan = plan;
  w->device = device;
  w->chips = (int)rf_mesh_chips(&plan->graph->mesh);
  w->local = w->chips / device->hosts;
  w->first = device->host * w->local;
  w->tensor = rf_pool_alloc(w->pool, tensors * sizeof *w->tensor);
  w->part = rf_pool_alloc(w->pool, tensors * sizeof *w->part);
  w->twin = rf_pool_alloc(w->pool, tensors * sizeof *w->twin);
  for (int t = 0; t < plan->graph->tensor_count; t++) {
    w->tensor[t] = plan->graph->tensor[t];
    if (!is_visible(plan, t) || is_of_owner(plan, unsharded, t)) continue;
    RF_GO(find_shape(w, unsharded, t, error));
    find_parts(w, t);
    if (plan->graph->tensor[t].persistent) continue;
    int64_t bytes = rf_tensor_bytes(&plan->graph->tensor[t]);
    if (bytes > room) room = bytes;
  }
  w->room = rf_pool_alloc(w->pool, (size_t)room + 1);
done:
  rf_graph_free(unsharded);
  if (status == RAFTER_OK) *out = w;
  else rf_whole_close(w);
  return status;
}

void rf_whole_close(rf_whole *w) {
  if (!w) return;
  if (w->pool) rf_pool_free(w->pool);
  free(w);
}

/* The offset at which the part of any chip begins in the memory of that chip. Stages have other
 * offsets. */
static int64_t offset_on(const rf_whole *w, int tensor, int chip) {
  const rf_plan *plan = w->plan;
  int32_t place[RF_AXES];
  if (!plan->stage_plan) return plan->tensor[tensor].offset;
  rf_place_of(&plan->graph->mesh, chip, place);
  const rf_plan *of = rf_plan_of_stage(plan, place[RF_AXIS_PIPELINE]);
  return of->tensor[rf_graph_find(of->graph, plan->graph->tensor[tensor].name)].offset;
}

/* ---- ranges ---------------------------------------------------------------------------------- */

/* A range of a whole tensor in the host's memory, and a chip that has a part of this range. */
typedef struct transfer {
  rf_memory *memory;
  int64_t at, size; /* at: offset of the chip's part in `memory`; size: bytes of an element */
  int64_t first;    /* number of the element of the whole tensor at `data` */
  unsigned char *data;
  uint32_t word;
  unsigned char *fetched; /* a part from another host */
} transfer;

static rf_status write_piece(void *context, int64_t mine, int64_t whole, int64_t count, rf_error *error) {
  const transfer *x = context;
  return rf_memory_write(x->memory, x->at + mine * x->size, x->data + (whole - x->first) * x->size,
                         count * x->size, error);
}

static rf_status read_piece(void *context, int64_t mine, int64_t whole, int64_t count, rf_error *error) {
  const transfer *x = context;
  return rf_memory_read(x->memory, x->at + mine * x->size, x->data + (whole - x->first) * x->size,
                        count * x->size, error);
}

static rf_status fill_piece(void *context, int64_t mine, int64_t whole, int64_t count, rf_error *error) {
  const transfer *x = context;
  (void)whole;
  return rf_memory_fill(x->memory, x->at + mine * x->size, x->word, count * x->size, error);
}

/* Begins a transfer of bytes [at, at + bytes) of a whole tensor. Returns the number of elements. */
static int64_t begin(const rf_whole *w, transfer *x, int tensor, int64_t at, int64_t bytes) {
  x->size = rf_dtype_bytes(w->tensor[tensor].dtype);
  x->first = at / x->size;
  return bytes / x->size;
}

/* Visits the pieces of the tensor on one chip of this host. */
static rf_status on_chip(const rf_whole *w, transfer *x, int tensor, int chip, int64_t count,
                         rf_place_visit visit, rf_error *error) {
  x->at = rf_memory_at(x->memory, chip - w->first, w->plan->tensor[tensor].offset);
  if (!w->part[tensor]) return visit(x, x->first, x->first, count, error);
  return rf_place_pieces(&w->part[tensor][chip], x->first, count, visit, x, error);
}

static rf_status on_chips(const rf_whole *w, transfer *x, int tensor, int64_t count, rf_place_visit visit,
                          rf_error *error) {
  for (int chip = w->first; chip < w->first + w->local; chip++)
    RF_TRY(on_chip(w, x, tensor, chip, count, visit, error));
  return RAFTER_OK;
}

/* The first chip of a host that has the part of `chip`, or RF_NONE. */
static int chip_of_host(const rf_whole *w, int tensor, int chip, int host) {
  for (int c = host * w->local; c < (host + 1) * w->local; c++)
    if (w->twin[tensor][c] == chip) return c;
  return RF_NONE;
}

static int near_chip(const rf_whole *w, int tensor, int chip) {
  return chip_of_host(w, tensor, chip, w->device->host);
}

int rf_whole_chips(const rf_whole *w) { return w->chips; }
int rf_whole_host(const rf_whole *w, int chip) { return chip / w->local; }
const rf_place_part *rf_whole_part(const rf_whole *w, int tensor, int chip) { return &w->part[tensor][chip]; }

int rf_whole_giver(const rf_whole *w, int tensor, int chip, int to) {
  if (w->twin[tensor][chip] != chip) return RF_NONE;
  int near = chip_of_host(w, tensor, chip, to);
  return near == RF_NONE ? chip : near;
}

int64_t rf_whole_base(const rf_whole *w, const rf_memory *memory, int tensor, int chip) {
  return rf_memory_at(memory, chip % w->local, w->plan->tensor[tensor].offset);
}

/* The elements of a part that a transfer needs. */
typedef struct range {
  int64_t low, high;
} range;

static rf_status widen(void *context, int64_t mine, int64_t whole, int64_t count, rf_error *error) {
  range *r = context;
  (void)whole;
  (void)error;
  if (r->high == 0 || mine < r->low) r->low = mine;
  if (mine + count > r->high) r->high = mine + count;
  return RAFTER_OK;
}

/* Elements of a part that came from another host. `at` is the first element that came. */
static rf_status take_piece(void *context, int64_t mine, int64_t whole, int64_t count, rf_error *error) {
  const transfer *x = context;
  (void)error;
  memcpy(x->data + (whole - x->first) * x->size, x->fetched + (mine - x->at) * x->size,
         (size_t)(count * x->size));
  return RAFTER_OK;
}

/* Reads a part that another host has. One message has all pieces of the part. */
static rf_status read_remote(const rf_whole *w, transfer *x, int tensor, int chip, int64_t count,
                             rf_error *error) {
  const rf_place_part *part = &w->part[tensor][chip];
  range r = {0};
  RF_TRY(rf_place_pieces(part, x->first, count, widen, &r, error));
  if (r.high == 0) return RAFTER_OK;
  int64_t bytes = (r.high - r.low) * x->size;
  int64_t from = rf_memory_at(x->memory, chip % w->local, offset_on(w, tensor, chip)) + r.low * x->size;
  x->at = r.low;
  x->fetched = malloc((size_t)bytes);
  rf_status status = RAFTER_OK;
  if (!x->fetched) status = RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while reading a tensor");
  if (status == RAFTER_OK)
    status = rf_hosts_fetch(w->device, chip / w->local, from, x->fetched, bytes, error);
  if (status == RAFTER_OK) status = rf_place_pieces(part, x->first, count, take_piece, x, error);
  free(x->fetched);
  return status;
}

rf_status rf_whole_write(const rf_whole *w, rf_memory *memory, int tensor, int64_t at, const void *from,
                         int64_t bytes, rf_error *error) {
  transfer x = {.memory = memory, .data = (unsigned char *)(uintptr_t)from};
  return on_chips(w, &x, tensor, begin(w, &x, tensor, at, bytes), write_piece, error);
}

rf_status rf_whole_read(const rf_whole *w, rf_memory *memory, int tensor, int64_t at, void *to, int64_t bytes,
                        rf_error *error) {
  transfer x = {.memory = memory, .data = to};
  int64_t count = begin(w, &x, tensor, at, bytes);
  if (!w->part[tensor]) return on_chip(w, &x, tensor, w->first, count, read_piece, error);
  for (int chip = 0; chip < w->chips; chip++) {
    if (w->twin[tensor][chip] != chip) continue;
    int near = near_chip(w, tensor, chip);
    if (near == RF_NONE) RF_TRY(read_remote(w, &x, tensor, chip, count, error));
    else RF_TRY(on_chip(w, &x, tensor, near, count, read_piece, error));
  }
  return RAFTER_OK;
}

rf_status rf_whole_fill(const rf_whole *w, rf_memory *memory, int tensor, int64_t at, uint32_t word,
                        int64_t bytes, rf_error *error) {
  transfer x = {.memory = memory, .word = word};
  return on_chips(w, &x, tensor, begin(w, &x, tensor, at, bytes), fill_piece, error);
}

rf_status rf_whole_copy(const rf_whole *w, rf_memory *memory, int tensor, int64_t to, int64_t from,
                        int64_t bytes, rf_error *error) {
  unsigned char block[BLOCK_BYTES];
  for (int chip = 0; chip < w->local; chip++) {
    int64_t base = rf_memory_at(memory, chip, w->plan->tensor[tensor].offset);
    for (int64_t done = 0, n; done < bytes; done += n) {
      n = bytes - done < BLOCK_BYTES ? bytes - done : BLOCK_BYTES;
      RF_TRY(rf_memory_read(memory, base + from + done, block, n, error));
      RF_TRY(rf_memory_write(memory, base + to + done, block, n, error));
    }
  }
  return RAFTER_OK;
}

/* ---- inputs and outputs ---------------------------------------------------------------------- */

typedef struct staged {
  unsigned char *mine, *whole;
  int64_t size; /* bytes of an element */
  bool out;     /* true if the transfer goes from the chip's part to the whole tensor */
} staged;

static rf_status copy_piece(void *context, int64_t mine, int64_t whole, int64_t count, rf_error *error) {
  const staged *s = context;
  (void)error;
  unsigned char *a = s->mine + mine * s->size, *b = s->whole + whole * s->size;
  memcpy(s->out ? b : a, s->out ? a : b, (size_t)(count * s->size));
  return RAFTER_OK;
}

/* The list of segment starts is not split like other inputs. The axes context and sequence shard
 * the rows of a segment, and every chip along these axes has the list of all their rows. */
static bool is_list_of_starts(const rf_whole *w, int tensor) {
  const rf_tensor *mine = &w->plan->graph->tensor[tensor], *whole = &w->tensor[tensor];
  return mine->input && !strcmp(mine->name, "segments") && mine->shape[0] < whole->shape[0];
}

static void take_starts(const rf_whole *w, int tensor, int chip, const int32_t *all) {
  const rf_mesh *mesh = &w->plan->graph->mesh;
  rf_axes axes = w->plan->graph->tensor[tensor].spec.split[0] &
                 (rf_axes) ~(RF_AXIS_BIT(RF_AXIS_CONTEXT) | RF_AXIS_BIT(RF_AXIS_SEQUENCE));
  int64_t rows = w->plan->graph->tensor[tensor].shape[0] - 1, count = 0;
  int32_t place[RF_AXES], *mine = (int32_t *)(void *)w->room;
  rf_place_of(mesh, chip, place);
  int64_t first = rf_mesh_rank(mesh, axes, place) * rows;
  for (int64_t i = 0; i < w->tensor[tensor].shape[0] && count < rows; i++)
    if (all[i] >= first && all[i] < first + rows) mine[count++] = (int32_t)(all[i] - first);
  while (count <= rows) mine[count++] = (int32_t)rows;
}

rf_status rf_whole_push(const rf_whole *w, rf_memory *memory, int tensor, int micro, const void *from,
                        rf_error *error) {
  const rf_tensor *mine = &w->plan->graph->tensor[tensor];
  if (is_elsewhere(w->plan, tensor)) return RAFTER_OK;
  for (int chip = w->first; chip < w->first + w->local; chip++) {
    staged s = {w->room, (unsigned char *)(uintptr_t)from, rf_dtype_bytes(mine->dtype), false};
    if (is_list_of_starts(w, tensor)) take_starts(w, tensor, chip, from);
    else
      RF_TRY(rf_place_pieces(&w->part[tensor][chip], 0, rf_tensor_count(&w->tensor[tensor]), copy_piece, &s,
                             error));
    int64_t at = rf_memory_at(memory, chip - w->first, w->plan->tensor[tensor].offset);
    RF_TRY(rf_memory_write(memory, at + rf_slot_at(mine, micro), w->room, rf_tensor_bytes(mine), error));
  }
  return RAFTER_OK;
}

/* Every host needs the part of `chip`. The host of the chip sends the part to the hosts that lack
 * it. */
static rf_status share_part(const rf_whole *w, int tensor, int chip, int64_t bytes, rf_error *error) {
  const rf_device_type *type = w->device->type;
  int owner = chip / w->local;
  for (int host = 0; host < w->device->hosts; host++) {
    bool has = false;
    for (int c = host * w->local; c < (host + 1) * w->local; c++) has |= w->twin[tensor][c] == chip;
    if (has) continue;
    if (w->device->host == owner) RF_TRY(type->send(w->device, host, w->room, bytes, error));
    if (w->device->host == host) RF_TRY(type->receive(w->device, owner, w->room, bytes, error));
  }
  return RAFTER_OK;
}

rf_status rf_whole_pull(const rf_whole *w, rf_memory *memory, int tensor, void *to, rf_error *error) {
  const rf_tensor *mine = &w->plan->graph->tensor[tensor];
  for (int chip = 0; chip < w->chips; chip++) {
    if (w->twin[tensor][chip] != chip) continue;
    staged s = {w->room, to, rf_dtype_bytes(mine->dtype), true};
    int near = near_chip(w, tensor, chip);
    if (near != RF_NONE) {
      int64_t at = rf_memory_at(memory, near - w->first, w->plan->tensor[tensor].offset);
      RF_TRY(rf_memory_read(memory, at, w->room, rf_tensor_bytes(mine), error));
    }
    RF_TRY(share_part(w, tensor, chip, rf_tensor_bytes(mine), error));
    RF_TRY(rf_place_pieces(&w->part[tensor][chip], 0, rf_tensor_count(&w->tensor[tensor]), copy_piece, &s,
                           error));
  }
  return RAFTER_OK;
}
