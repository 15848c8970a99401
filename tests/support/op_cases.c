#include "support/op_parts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* ---- one builder per op ---------------------------------------------------------------------- */

static void build_embed(op_harness *h, const op_case *of, const op_size *size) {
  int tokens = case_some_ids(h, "tokens", size->rows, size->columns, false),
      positions = case_some_ids(h, "positions", size->rows, size->rows, false);
  int wte = case_weight(h, "wte", 1, size->columns, size->width);
  int wpe = of->flags & OP_POSITIONS ? case_weight(h, "wpe", 0.5, size->rows, size->width) : RF_NONE;
  rf_attr attr = case_attributes(h, of);
  op_apply(h, "embed", OP_IDS(tokens, positions, wte, wpe), OP_IDS(RF_WANTED), &attr);
}

static void build_embed_bwd(op_harness *h, const op_case *of, const op_size *size) {
  rf_attr attr = case_attributes(h, of);
  int tokens = case_some_ids(h, "tokens", size->rows, size->columns, false),
      positions = case_some_ids(h, "positions", size->rows, size->rows, false);
  int dx = case_activation(h, "dx", 1, size->rows, size->width),
      dwte = case_gradient(h, "dwte", OP_SHAPE(size->columns, size->width));
  int dwpe = of->flags & OP_POSITIONS ? case_gradient(h, "dwpe", OP_SHAPE(size->rows, size->width)) : RF_NONE;
  op_apply(h, "embed_bwd", OP_IDS(tokens, positions, dx), OP_IDS(dwte, dwpe), &attr);
}

/* The forward op of a norm, with inputs x and gain (and bias). The mean is far from zero, so that a
 * one-pass variance would fail. */
static int norm_forward(op_harness *h, const op_case *of, const op_size *size, bool centered, int *x,
                        int *gain) {
  rf_attr attr = case_attributes(h, of);
  *x = op_tensor(h, "x", RF_CLASS_ACTIVATION, h->dtype, (op_fill){1.5, 0.75},
                 OP_SHAPE(size->rows, size->width));
  *gain = case_vector(h, "gain", (op_fill){0.2, 1}, size->width);
  int bias = centered ? case_vector(h, "bias", (op_fill){0.3, 0}, size->width) : RF_NONE;
  return op_apply(h, centered ? "layernorm" : "rmsnorm", centered ? 3 : 2, (int[]){*x, *gain, bias},
                  OP_IDS(RF_WANTED, RF_WANTED), &attr);
}

static void build_norm(op_harness *h, const op_case *of, const op_size *size) {
  int x, gain;
  norm_forward(h, of, size, strcmp(of->op, "layernorm") == 0, &x, &gain);
}

static void build_norm_bwd(op_harness *h, const op_case *of, const op_size *size) {
  bool centered = strcmp(of->op, "layernorm_bwd") == 0;
  rf_attr attr = case_attributes(h, of);
  attr.accumulate[0] = RF_WRITE;
  int x, gain, forward = norm_forward(h, of, size, centered, &x, &gain);
  int dy = case_activation(h, "dy", 1, size->rows, size->width);
  int dres = of->flags & OP_RESIDUE ? case_activation(h, "dres", 1, size->rows, size->width) : RF_NONE;
  int dgain = case_gradient(h, "dgain", OP_SHAPE(size->width)),
      dbias = centered ? case_gradient(h, "dbias", OP_SHAPE(size->width)) : RF_NONE;
  op_apply(h, of->op, OP_IDS(x, gain, op_output(h, forward, 1), dy, dres), centered ? 3 : 2,
           (int[]){RF_WANTED, dgain, dbias}, &attr);
}

static int64_t qkv_width(const op_size *size) {
  return (int64_t)(size->heads + 2 * size->kv_heads) * size->head_dim;
}

static int head_norm_forward(op_harness *h, const op_case *of, const op_size *size, int in[3],
                             rf_attr *attr) {
  *attr = case_attention_attributes(h, of, size);
  in[0] = op_tensor(h, "qkv", RF_CLASS_ACTIVATION, h->dtype, (op_fill){1.5, 0.25},
                    OP_SHAPE(size->rows, qkv_width(size)));
  in[1] = case_vector(h, "q_gain", (op_fill){0.2, 1}, size->head_dim);
  in[2] = case_vector(h, "k_gain", (op_fill){0.3, 0.5}, size->head_dim);
  return op_apply(h, "head_norm", 3, in, OP_IDS(RF_WANTED, RF_WANTED), attr);
}
static void build_head_norm(op_harness *h, const op_case *of, const op_size *size) {
  int in[3];
  rf_attr attr;
  head_norm_forward(h, of, size, in, &attr);
}
static void build_head_norm_bwd(op_harness *h, const op_case *of, const op_size *size) {
  int in[3];
  rf_attr attr;
  int forward = head_norm_forward(h, of, size, in, &attr),
      dy = case_activation(h, "dy", 1, size->rows, qkv_width(size));
  attr.accumulate[0] = RF_WRITE;
  int dq = case_gradient(h, "dq_gain", OP_SHAPE(size->head_dim)),
      dk = case_gradient(h, "dk_gain", OP_SHAPE(size->head_dim));
  op_apply(h, "head_norm_bwd", OP_IDS(in[0], in[1], in[2], op_output(h, forward, 1), dy),
           OP_IDS(RF_WANTED, dq, dk), &attr);
}

static void build_rope(op_harness *h, const op_case *of, const op_size *size) {
  rf_attr attr = case_attention_attributes(h, of, size);
  attr.rope.rotation = case_rotation(of, size);
  if (of->flags & OP_SEGMENTS && size->head_dim >= 4)
    attr.rope.rotation = (rf_rope){.theta = 100, .dim = size->head_dim / 4 * 2, .tail = true};
  int positions = case_some_ids(h, "positions", size->rows, 2048, false);
  int qkv =
      case_activation(h, "qkv", 1, size->rows, (int64_t)(size->heads + 2 * size->kv_heads) * size->head_dim);
  op_apply(h, "rope", OP_IDS(qkv, positions), OP_IDS(RF_WANTED), &attr);
}

static void build_matmul(op_harness *h, const op_case *of, const op_size *size) {
  rf_attr attr = case_attributes(h, of);
  attr.matmul.epilogue = of->flags & OP_GELU       ? RF_EPILOGUE_GELU
                         : of->flags & OP_RESIDUAL ? RF_EPILOGUE_RESIDUAL
                                                   : RF_EPILOGUE_NONE;
  int x = case_activation(h, "x", 1, size->rows, size->width);
  int w = case_linear(h, of, 1 / sqrt((double)size->width), size->width, size->columns);
  int bias = of->flags & OP_BIAS ? case_vector(h, "bias", (op_fill){0.5, 0}, size->columns) : RF_NONE;
  int residual =
      of->flags & OP_RESIDUAL ? case_activation(h, "residual", 1, size->rows, size->columns) : RF_NONE;
  bool plain = attr.matmul.epilogue == RF_EPILOGUE_NONE;
  int outputs[] = {plain || of->flags & OP_KEEP_U ? RF_WANTED : RF_NONE, plain ? RF_NONE : RF_WANTED};
  op_apply(h, "matmul", OP_IDS(x, w, bias, residual), 2, outputs, &attr);
}

static void build_matmul_dx(op_harness *h, const op_case *of, const op_size *size) {
  rf_attr attr = case_attributes(h, of);
  bool gelu = of->flags & OP_GELU;
  int dy = case_activation(h, "dy", 1, size->rows, size->columns);
  int w = case_linear(h, of, 1 / sqrt((double)size->columns), size->width, size->columns);
  int u = gelu ? case_activation(h, "u", 1, size->rows, size->width) : RF_NONE;
  op_apply(h, "matmul_dx", OP_IDS(dy, w, u), OP_IDS(gelu ? RF_NONE : RF_WANTED, gelu ? RF_WANTED : RF_NONE),
           &attr);
}

static void build_matmul_dw(op_harness *h, const op_case *of, const op_size *size) {
  rf_attr attr = case_attributes(h, of);
  int x = case_activation(h, "x", 1, size->rows, size->width),
      dy = case_activation(h, "dy", 1, size->rows, size->columns);
  int dw = case_linear_gradient(h, of, size->width, size->columns);
  int dbias = of->flags & OP_BIAS ? case_gradient(h, "dbias", OP_SHAPE(size->columns)) : RF_NONE;
  op_apply(h, "matmul_dw", OP_IDS(x, dy), OP_IDS(dw, dbias), &attr);
}

/* Two ranges of columns with columns between them that no adapter changes. If there are too few
 * columns, one range has all. */
static rf_attr lora_attributes(op_harness *h, const op_case *of, const op_size *size, int64_t *joined) {
  rf_attr attr = case_attributes(h, of);
  int32_t n = (int32_t)size->columns, rank = size->width < 21 ? (int32_t)size->width : 21;
  attr.lora.scale = 1.7f;
  attr.lora.parts = n < 4 ? (rf_lora_parts){1, rank, {0}, {n}, {0}}
                          : (rf_lora_parts){2, rank, {0, n / 2}, {n / 3, n - n / 2}, {0, 1}};
  *joined = attr.lora.parts.columns[0] + attr.lora.parts.columns[1];
  return attr;
}
static int lora_inputs(op_harness *h, const rf_attr *attr, const op_size *size, int64_t joined, int *b) {
  *b = op_tensor(h, "b", RF_CLASS_ADAPTER, h->wide, (op_fill){0.3, 0},
                 OP_SHAPE(attr->lora.parts.rank, joined));
  return case_activation(h, "h", 1, size->rows, (int64_t)attr->lora.parts.count * attr->lora.parts.rank);
}
static void build_lora(op_harness *h, const op_case *of, const op_size *size) {
  int64_t joined;
  int b;
  rf_attr attr = lora_attributes(h, of, size, &joined);
  int u = case_activation(h, "u", 1, size->rows, size->columns), x = lora_inputs(h, &attr, size, joined, &b);
  op_apply(h, "lora", OP_IDS(u, x, b), OP_IDS(RF_WANTED), &attr);
}
/* Three slots, whose parts have different ranks; some rows and some parts have no adapter. */
static void build_lora_slots(op_harness *h, const op_case *of, const op_size *size) {
  enum { SLOTS = 3 };
  int64_t joined;
  rf_attr attr = lora_attributes(h, of, size, &joined);
  const rf_lora_parts *parts = &attr.lora.parts;
  int32_t ranks[SLOTS * RF_LORA_PARTS], *slot = malloc((size_t)size->rows * sizeof *slot);
  assert_non_null(slot);
  for (int i = 0; i < SLOTS * parts->count; i++) ranks[i] = (int32_t)((3 * i + 1) % (parts->rank + 1));
  ranks[parts->count] = parts->rank;
  for (int64_t m = 0; m < size->rows; m++) slot[m] = (int32_t)(case_draw(7, m / 2) % (SLOTS + 1)) - 1;
  int u = case_activation(h, "u", 1, size->rows, size->columns),
      x = case_activation(h, "x", 1, size->rows, size->width);
  int a = op_tensor(h, "a", RF_CLASS_ADAPTER, h->wide, (op_fill){1 / sqrt((double)size->width), 0},
                    OP_SHAPE(SLOTS, size->width, (int64_t)parts->count * parts->rank));
  int b =
      op_tensor(h, "b", RF_CLASS_ADAPTER, h->wide, (op_fill){0.3, 0}, OP_SHAPE(SLOTS, parts->rank, joined));
  int table = op_ids(h, "ranks", SLOTS * parts->count, ranks), rows = op_ids(h, "slot", size->rows, slot);
  op_as_matrix(h, table, SLOTS, parts->count);
  free(slot);
  op_apply(h, "lora_slots", OP_IDS(u, x, a, b, table, rows), OP_IDS(RF_WANTED), &attr);
}
static void build_lora_bwd(op_harness *h, const op_case *of, const op_size *size) {
  int64_t joined;
  int b;
  rf_attr attr = lora_attributes(h, of, size, &joined);
  int dy = case_activation(h, "dy", 1, size->rows, size->columns),
      x = lora_inputs(h, &attr, size, joined, &b);
  attr.accumulate[0] = RF_WRITE;
  op_apply(h, "lora_bwd", OP_IDS(dy, x, b),
           OP_IDS(RF_WANTED, case_gradient(h, "db", OP_SHAPE(attr.lora.parts.rank, joined))), &attr);
}

static void build_gelu(op_harness *h, const op_case *of, const op_size *size) {
  op_apply(h, of->op, OP_IDS(case_activation(h, "u", 3, size->rows, size->width)), OP_IDS(RF_WANTED),
           &(rf_attr){0});
}

static void build_gelu_bwd(op_harness *h, const op_case *of, const op_size *size) {
  int u = case_activation(h, "u", 3, size->rows, size->width),
      dg = case_activation(h, "dg", 1, size->rows, size->width);
  op_apply(h, of->op, OP_IDS(u, dg), OP_IDS(RF_WANTED), &(rf_attr){0});
}

static void build_gated(op_harness *h, const op_case *of, const op_size *size) {
  op_apply(h, of->op, OP_IDS(case_activation(h, "gate_up", 3, size->rows, 2 * size->width)),
           OP_IDS(RF_WANTED), &(rf_attr){0});
}

static void build_gated_bwd(op_harness *h, const op_case *of, const op_size *size) {
  int gate_up = case_activation(h, "gate_up", 3, size->rows, 2 * size->width),
      dh = case_activation(h, "dh", 1, size->rows, size->width);
  op_apply(h, of->op, OP_IDS(gate_up, dh), OP_IDS(RF_WANTED), &(rf_attr){0});
}

/* Experts: the field heads has the number of experts, kv_heads the number that a row uses. */

/* OP_CLIP: every expert has room for the average number of rows, and drops the rest. */
static int64_t room_of(const op_case *of, const op_size *size) {
  return of->flags & OP_CLIP ? (size->rows * size->kv_heads + size->heads - 1) / size->heads : 0;
}
static rf_attr experts_attributes(op_harness *h, const op_case *of, const op_size *size) {
  rf_attr attr = case_attributes(h, of);
  attr.experts.experts = size->heads;
  attr.experts.used = size->kv_heads;
  attr.experts.room = room_of(of, size);
  return attr;
}
/* OP_INVERSE: sigmoids. OP_SCALED: the raw scores times a scale. OP_SEGMENTS: two of four groups of
 * experts, or one of two if there are not enough experts. */
static rf_attr router_attributes(op_harness *h, const op_case *of, const op_size *size) {
  rf_attr attr = experts_attributes(h, of, size);
  attr.experts.router = (rf_router){.sigmoid = of->flags & OP_INVERSE,
                                    .as_is = of->flags & OP_SCALED,
                                    .scale = of->flags & OP_SCALED ? 1.7f : 0};
  int groups = attr.experts.experts % 4 == 0 && attr.experts.experts >= 8 ? 4 : 2;
  if (of->flags & OP_SEGMENTS && attr.experts.experts % groups == 0 &&
      attr.experts.used <= attr.experts.experts / 2 && attr.experts.experts / groups >= 2) {
    attr.experts.router.groups = groups;
    attr.experts.router.groups_used = groups / 2;
  }
  return attr;
}
static int64_t sorted_rows(const op_case *of, const op_size *size) {
  int64_t room = room_of(of, size);
  return room > 0 ? size->heads * room : size->rows * size->kv_heads;
}

/* Assigns experts to every row. The first experts have most rows, and the last expert has none if
 * there is one to spare. */
static void some_routes(op_harness *h, const op_case *of, const op_size *size, int *place, int *starts) {
  int64_t rows = size->rows, experts = size->heads, used = size->kv_heads, count = rows * used;
  int32_t *chosen = malloc((size_t)count * sizeof *chosen), *at = malloc((size_t)count * sizeof *at),
          *first = malloc((size_t)(experts + 1) * sizeof *first);
  assert_true(chosen && at && first);
  /* Each row uses `used` neighbours in a ring of all experts except the last. */
  for (int64_t r = 0; r < rows; r++) {
    int64_t ring = used < experts ? experts - 1 : experts,
            from = r % 3 ? 0 : case_draw(7, r) % (uint32_t)ring;
    for (int64_t j = 0; j < used; j++) chosen[r * used + j] = (int32_t)((from + j) % ring);
  }
  int32_t next = 0;
  for (int64_t e = 0; e < experts; e++) {
    first[e] = next;
    for (int64_t i = 0; i < count; i++)
      if (chosen[i] == e) at[i] = next++;
  }
  first[experts] = next;
  int64_t room = room_of(of, size);
  for (int64_t i = 0; room > 0 && i < count; i++) {
    int64_t index = at[i] - first[chosen[i]];
    at[i] = index < room ? (int32_t)(chosen[i] * room + index) : -1;
  }
  for (int64_t e = 0; room > 0 && e <= experts; e++) first[e] = (int32_t)(e * room);
  if (place) *place = op_ids(h, "place", count, at);
  if (starts) *starts = op_ids(h, "starts", experts + 1, first);
  free(chosen);
  free(at);
  free(first);
}

static void build_route(op_harness *h, const op_case *of, const op_size *size) {
  rf_attr attr = router_attributes(h, of, size);
  int logits = case_activation(h, "logits", 2, size->rows, size->heads);
  int choice = of->flags & OP_BIAS ? case_vector(h, "choice", (op_fill){0.4, 0}, size->heads) : RF_NONE;
  op_apply(h, "route", OP_IDS(logits, choice), OP_IDS(RF_WANTED, RF_WANTED, RF_WANTED, RF_WANTED), &attr);
}
static void build_route_bwd(op_harness *h, const op_case *of, const op_size *size) {
  rf_attr attr = router_attributes(h, of, size);
  int logits = case_activation(h, "logits", 2, size->rows, size->heads);
  int forward =
      op_apply(h, "route", OP_IDS(logits), OP_IDS(RF_WANTED, RF_WANTED, RF_WANTED, RF_WANTED), &attr);
  int dweights = op_tensor(h, "dweights", RF_CLASS_ACTIVATION, h->wide, (op_fill){1, 0},
                           OP_SHAPE(size->rows, size->kv_heads));
  op_apply(h, "route_bwd", OP_IDS(logits, op_output(h, forward, 0), op_output(h, forward, 1), dweights),
           OP_IDS(RF_WANTED), &attr);
}
static void build_dispatch(op_harness *h, const op_case *of, const op_size *size) {
  rf_attr attr = experts_attributes(h, of, size);
  int place, x = case_activation(h, "x", 1, size->rows, size->width);
  some_routes(h, of, size, &place, NULL);
  op_apply(h, "dispatch", OP_IDS(x, place), OP_IDS(RF_WANTED), &attr);
}
static void build_dispatch_bwd(op_harness *h, const op_case *of, const op_size *size) {
  rf_attr attr = experts_attributes(h, of, size);
  int place, sorted = case_activation(h, "drows", 1, sorted_rows(of, size), size->width);
  some_routes(h, of, size, &place, NULL);
  op_apply(h, "dispatch_bwd", OP_IDS(sorted, place), OP_IDS(RF_WANTED), &attr);
}
static void build_matmul_experts(op_harness *h, const op_case *of, const op_size *size) {
  rf_attr attr = experts_attributes(h, of, size);
  int starts, x = case_activation(h, "x", 1, sorted_rows(of, size), size->width);
  int w = case_weight(h, "w", 1 / sqrt((double)size->width), size->heads * size->width, size->columns);
  some_routes(h, of, size, NULL, &starts);
  op_apply(h, "matmul_experts", OP_IDS(x, w, starts), OP_IDS(RF_WANTED), &attr);
}
static void build_matmul_experts_dx(op_harness *h, const op_case *of, const op_size *size) {
  rf_attr attr = experts_attributes(h, of, size);
  int starts, dy = case_activation(h, "dy", 1, sorted_rows(of, size), size->columns);
  int w = case_weight(h, "w", 1 / sqrt((double)size->columns), size->heads * size->width, size->columns);
  some_routes(h, of, size, NULL, &starts);
  op_apply(h, "matmul_experts_dx", OP_IDS(dy, w, starts), OP_IDS(RF_WANTED), &attr);
}
static void build_matmul_experts_dw(op_harness *h, const op_case *of, const op_size *size) {
  rf_attr attr = experts_attributes(h, of, size);
  int starts, x = case_activation(h, "x", 1, sorted_rows(of, size), size->width),
              dy = case_activation(h, "dy", 1, sorted_rows(of, size), size->columns);
  int dw = case_gradient(h, "dw", OP_SHAPE(size->heads * size->width, size->columns));
  some_routes(h, of, size, NULL, &starts);
  op_apply(h, "matmul_experts_dw", OP_IDS(x, dy, starts), OP_IDS(dw), &attr);
}
static int route_weights(op_harness *h, const op_size *size) {
  return op_tensor(h, "weights", RF_CLASS_ACTIVATION, h->wide, (op_fill){0.3, 0.5},
                   OP_SHAPE(size->rows, size->kv_heads));
}
static void build_combine(op_harness *h, const op_case *of, const op_size *size) {
  rf_attr attr = experts_attributes(h, of, size);
  int place, said = case_activation(h, "h", 1, sorted_rows(of, size), size->width),
             weights = route_weights(h, size);
  some_routes(h, of, size, &place, NULL);
  op_apply(h, "combine", OP_IDS(said, weights, place), OP_IDS(RF_WANTED), &attr);
}
static void build_combine_bwd(op_harness *h, const op_case *of, const op_size *size) {
  rf_attr attr = experts_attributes(h, of, size);
  int place, said = case_activation(h, "h", 1, sorted_rows(of, size), size->width),
             weights = route_weights(h, size);
  int dy = case_activation(h, "dy", 1, size->rows, size->width);
  some_routes(h, of, size, &place, NULL);
  op_apply(h, "combine_bwd", OP_IDS(said, weights, place, dy), OP_IDS(RF_WANTED, RF_WANTED), &attr);
}

static void build_add(op_harness *h, const op_case *of, const op_size *size) {
  rf_attr attr = case_attributes(h, of);
  int a = case_activation(h, "a", 1, size->rows, size->width),
      b = case_activation(h, "b", 1, size->rows, size->width);
  op_apply(h, of->op, OP_IDS(a, b), OP_IDS(RF_WANTED), &attr);
}

/* A group of one chip: the part is the whole. */
static void build_collective(op_harness *h, const op_case *of, const op_size *size) {
  rf_attr attr = {.group = 1, .accumulate = {case_accumulation(h, of->flags)}};
  if (rf_op_find(of->op)->fields == RF_FIELDS_COLLECTIVE) attr.collective.to = 1;
  if (of->flags & (OP_ADD | OP_MICRO | OP_FIRST_MICRO))
    op_apply(h, of->op, OP_IDS(case_gradient(h, "x", OP_SHAPE(size->rows, size->width))),
             OP_IDS(case_gradient(h, "y", OP_SHAPE(size->rows, size->width))), &attr);
  else
    op_apply(h, of->op, OP_IDS(case_activation(h, "x", 1, size->rows, size->width)), OP_IDS(RF_WANTED),
             &attr);
}

static void build_transfer(op_harness *h, const op_case *of, const op_size *size) {
  rf_attr attr = {.group = 1, .accumulate = {case_accumulation(h, of->flags)}};
  int x = of->flags & OP_ADD ? case_gradient(h, "y", OP_SHAPE(size->rows, size->width))
                             : case_activation(h, "x", 1, size->rows, size->width);
  if (!strcmp(of->op, "send")) op_apply(h, of->op, OP_IDS(x), 0, NULL, &attr);
  else op_apply(h, of->op, 0, NULL, OP_IDS(x), &attr);
}

static void build_dropout(op_harness *h, const op_case *of, const op_size *size) {
  rf_attr attr = case_attributes(h, of);
  op_apply(h, "dropout", OP_IDS(case_activation(h, "dy", 1, size->rows, size->width)), OP_IDS(RF_WANTED),
           &attr);
}

typedef struct head_inputs {
  int x, w, bias, labels;
} head_inputs;

static head_inputs head_of(op_harness *h, const op_case *of, const op_size *size) {
  head_inputs in = {.x = case_activation(h, "x", 1, size->rows, size->width)};
  in.w = case_linear(h, of, 1.5 / sqrt((double)size->width), size->width, size->columns);
  in.bias = of->flags & OP_BIAS ? case_vector(h, "bias", (op_fill){0.5, 0}, size->columns) : RF_NONE;
  in.labels = case_some_ids(h, "labels", size->rows, size->columns, of->flags & OP_IGNORED);
  return in;
}

/* OP_WEIGHT: a gradient of nll for each row, which replaces loss_scale. */
static void build_head_loss(op_harness *h, const op_case *of, const op_size *size) {
  rf_attr attr = case_attributes(h, of);
  head_inputs in = head_of(h, of, size);
  op_apply(h, "head_loss", OP_IDS(in.x, in.w, in.bias, in.labels), OP_IDS(RF_WANTED, RF_WANTED, RF_WANTED),
           &attr);
}

static void build_head_part(op_harness *h, const op_case *of, const op_size *size) {
  rf_attr attr = case_attributes(h, of);
  head_inputs in = head_of(h, of, size);
  int part = op_apply(h, "head_part", OP_IDS(in.x, in.w, in.bias, in.labels), OP_IDS(RF_WANTED), &attr);
  if (strcmp(of->op, "head_merge")) return;
  op_apply(h, "head_merge", OP_IDS(op_output(h, part, 0), in.labels),
           OP_IDS(RF_WANTED, RF_WANTED, RF_WANTED, RF_WANTED), &attr);
}

static void build_head_loss_bwd(op_harness *h, const op_case *of, const op_size *size) {
  rf_attr attr = case_attributes(h, of);
  head_inputs in = head_of(h, of, size);
  int forward = op_apply(h, "head_loss", OP_IDS(in.x, in.w, in.bias, in.labels),
                         OP_IDS(RF_WANTED, RF_WANTED, RF_WANTED), &attr);
  int dw = case_linear_gradient(h, of, size->width, size->columns),
      dbias = of->flags & OP_BIAS ? case_gradient(h, "dbias", OP_SHAPE(size->columns)) : RF_NONE;
  int dnll = of->flags & OP_WEIGHT
                 ? op_tensor(h, "dnll", RF_CLASS_ACTIVATION, h->wide, (op_fill){1, 0}, OP_SHAPE(size->rows))
                 : RF_NONE;
  op_apply(h, "head_loss_bwd", OP_IDS(in.x, in.w, in.bias, in.labels, op_output(h, forward, 2), dnll),
           OP_IDS(RF_WANTED, dw, dbias), &attr);
}

static void build_head_loss_grad(op_harness *h, const op_case *of, const op_size *size) {
  rf_attr attr = case_attributes(h, of);
  head_inputs in = head_of(h, of, size);
  int dw = case_linear_gradient(h, of, size->width, size->columns),
      dbias = of->flags & OP_BIAS ? case_gradient(h, "dbias", OP_SHAPE(size->columns)) : RF_NONE;
  int dnll = of->flags & OP_WEIGHT
                 ? op_tensor(h, "dnll", RF_CLASS_ACTIVATION, h->wide, (op_fill){1, 0}, OP_SHAPE(size->rows))
                 : RF_NONE;
  op_apply(h, "head_loss_grad", OP_IDS(in.x, in.w, in.bias, in.labels, dnll),
           OP_IDS(RF_WANTED, RF_WANTED, RF_WANTED, dw, dbias), &attr);
}

static void build_loss_sum(op_harness *h, const op_case *of, const op_size *size) {
  rf_attr attr = case_attributes(h, of);
  int nll = op_tensor(h, "nll", RF_CLASS_ACTIVATION, h->wide, (op_fill){1, 4}, OP_SHAPE(size->rows));
  int argmax = case_some_ids(h, "argmax", size->rows, 3, false),
      labels = case_some_ids(h, "labels", size->rows, 2, of->flags & OP_IGNORED);
  int metrics = op_tensor(h, "metrics", RF_CLASS_IO, RF_F64, (op_fill){0, 7}, OP_SHAPE(4));
  op_apply(h, "loss_sum", OP_IDS(nll, argmax, labels), OP_IDS(metrics), &attr);
}

static void build_head_logits(op_harness *h, const op_case *of, const op_size *size) {
  rf_attr attr = case_attributes(h, of);
  head_inputs in = head_of(h, of, size);
  int64_t count = size->rows / 2 + 2;
  count += count % 3 == 2; /* the last id is not ignored: kernels may not write logits after it */
  int rows = case_some_ids(h, "rows", count, size->rows, of->flags & OP_IGNORED);
  op_apply(h, "head_logits", OP_IDS(in.x, in.w, in.bias, rows),
           OP_IDS(RF_WANTED, of->flags & OP_KEEP_U ? RF_WANTED : RF_NONE), &attr);
}

static void build_head_score(op_harness *h, const op_case *of, const op_size *size) {
  rf_attr attr = case_attributes(h, of);
  head_inputs in = head_of(h, of, size);
  bool top = of->flags & OP_KEEP_U;
  attr.head.top = top ? (int32_t)(size->columns < 20 ? size->columns : 20) : 0;
  op_apply(h, "head_score", OP_IDS(in.x, in.w, in.bias, in.labels),
           OP_IDS(RF_WANTED, top ? RF_WANTED : RF_NONE, top ? RF_WANTED : RF_NONE), &attr);
}

/* Every row has another rule. OP_CLIP: all logits are equal. OP_WEIGHT: no rule filters. */
static void build_sample(op_harness *h, const op_case *of, const op_size *size) {
  static const float RULES[][RF_RULES] = {
      {0, 0, 1, 0, 0.5f},           {1, 0, 1, 0, 0.31f},      {0.7f, 3, 1, 0, 0.83f},
      {1.3f, 0, 0.8137f, 0, 0.47f}, {1, 0, 1, 0.2f, 0.9431f}, {2, 4, 0.9043f, 0.1f, 0.66f},
      {1, 1, 1, 0, 0.99f},          {1, 0, 1, 0, 0},          {1, 0, 0.0625f, 0, 0.9f},
      {1, 0, 1, 1, 0.5f},           {3, 2, 0.9871f, 0, 0},    {1, 9, 0.5f, 0.01f, 0.1f},
  };
  enum { COUNT = sizeof RULES / sizeof *RULES };
  int64_t rows = size->rows, ends = 3;
  float *rules = malloc((size_t)(rows * RF_RULES) * sizeof *rules);
  int32_t *barred = malloc((size_t)(rows * ends) * sizeof *barred);
  int64_t shift = of->flags & OP_IGNORED ? 5 : 0; /* small sizes have few rows: other rules */
  for (int64_t r = 0; r < rows; r++) {
    float *rule = rules + r * RF_RULES;
    memcpy(rule, RULES[(r + shift) % COUNT], sizeof *RULES);
    if (!(of->flags & OP_WEIGHT)) continue;
    rule[RF_RULE_TOP_K] = rule[RF_RULE_MIN_P] = 0;
    rule[RF_RULE_TOP_P] = 1;
  }
  for (int64_t i = 0; i < rows * ends; i++)
    barred[i] = of->flags & OP_IGNORED && i % 2 ? (int32_t)(i % size->columns) : -1;
  int logits = op_tensor(h, "logits", RF_CLASS_LOGITS, h->wide, (op_fill){of->flags & OP_CLIP ? 0 : 2, 0.5},
                         OP_SHAPE(rows, size->columns)),
      lse = op_tensor(h, "lse", RF_CLASS_LOGITS, h->wide, (op_fill){0.1, 3}, OP_SHAPE(rows)),
      of_rows = op_floats(h, "rules", rows, RF_RULES, rules), list = op_ids(h, "barred", rows * ends, barred);
  op_as_matrix(h, list, rows, ends);
  op_apply(h, "sample", OP_IDS(logits, lse, of_rows, list), OP_IDS(RF_WANTED, RF_WANTED), NULL);
  free(rules);
  free(barred);
}

static void build_norm_sq(op_harness *h, const op_case *of, const op_size *size) {
  int sums = op_tensor(h, "sums", RF_CLASS_ACTIVATION, RF_F64, (op_fill){0, 3}, OP_SHAPE(5));
  rf_attr attr = {.sums = {.element = 2}};
  if (of->flags & OP_KEEP_U) attr.group = 3;
  if (of->flags & OP_IGNORED) {
    attr.sums.own_columns = size->width / 2;
    attr.sums.copies = 2;
  }
  op_apply(h, "norm_sq", OP_IDS(case_gradient(h, "grad", OP_SHAPE(size->rows, size->width))), OP_IDS(sums),
           &attr);
}

static void build_norm_total(op_harness *h, const op_case *of, const op_size *size) {
  (void)of;
  int sums = op_tensor(h, "sums", RF_CLASS_ACTIVATION, RF_F64, (op_fill){0, 3}, OP_SHAPE(size->rows));
  op_apply(h, "norm_total", OP_IDS(sums), OP_IDS(RF_WANTED), NULL);
}

static void build_clip(op_harness *h, const op_case *of, const op_size *size) {
  int sums = op_tensor(h, "sums", RF_CLASS_ACTIVATION, RF_F64, (op_fill){0, 3}, OP_SHAPE(size->rows));
  op_apply(h, "clip", OP_IDS(sums), OP_IDS(RF_WANTED),
           &(rf_attr){.clip = {of->flags & OP_CLIP ? 1.0f : 0.0f}});
}

static void build_adamw(op_harness *h, const op_case *of, const op_size *size) {
  rf_attr attr = {
      .adamw = {
          .eps = 1e-8f, .beta1 = 0.9f, .beta2 = 0.95f, .weight_decay = of->flags & OP_DECAY ? 0.1f : 0.0f}};
  int grad = case_gradient(h, "grad", OP_SHAPE(size->rows, size->width));
  int master =
      op_tensor(h, "master", RF_CLASS_MASTER, h->wide, (op_fill){0.02, 0}, OP_SHAPE(size->rows, size->width));
  int m = op_tensor(h, "m", RF_CLASS_MOMENT, h->wide, (op_fill){0.1, 0}, OP_SHAPE(size->rows, size->width));
  int v =
      op_tensor(h, "v", RF_CLASS_MOMENT, h->wide, (op_fill){0.05, 0.5}, OP_SHAPE(size->rows, size->width));
  int clip = of->flags & OP_CLIP ? op_tensor(h, "clip", RF_CLASS_IO, RF_F32, (op_fill){0, 0.37}, OP_SHAPE(2))
                                 : RF_NONE;
  int sums = of->flags & OP_KEEP_U
                 ? op_tensor(h, "sums", RF_CLASS_ACTIVATION, RF_F64, (op_fill){0, 3}, OP_SHAPE(5))
                 : RF_NONE;
  if (sums >= 0) attr.adamw.element = 2;
  op_apply(h, "adamw", OP_IDS(grad, master, m, v, clip),
           OP_IDS(master, m, v, of->flags & OP_WEIGHT ? RF_WANTED : RF_NONE, sums), &attr);
}

op_harness *op_case_build(const op_case *of, const op_size *size, rf_dtype dtype) {
  op_harness *h = op_harness_new(dtype, size->rows);
  of->build(h, of, size);
  op_fill_all(h, 42);
  return h;
}

double op_tolerance(const rf_op *op, const rf_tensor *output) {
  bool sums = output->class == RF_CLASS_GRADIENT && op->def->fields == RF_FIELDS_HEAD;
  bool narrow = output->dtype == RF_BF16 || (sums && op->attr.head.gradient == RF_BF16);
  return (double)(narrow ? op->def->tolerance.bf16 : op->def->tolerance.f32);
}

/* Sizes: small ones first, then sizes around the widths of vectors, tiles and blocks. */

/* rows, width, columns, heads, kv_heads, head_dim */
static const op_size ROW_SIZES[] = {{3, 7, 5, 0, 0, 0},      {6, 16, 9, 0, 0, 0},    {1, 1, 1, 0, 0, 0},
                                    {37, 65, 50, 0, 0, 0},   {5, 768, 129, 0, 0, 0}, {130, 31, 300, 0, 0, 0},
                                    {29, 1000, 17, 0, 0, 0}, {0, 0, 0, 0, 0, 0}};
/* The gradient of a norm over one or two elements is only cancellation, so a relative tolerance
 * would have no meaning. */
static const op_size NORM_SIZES[] = {{3, 7, 0, 0, 0, 0},     {6, 16, 0, 0, 0, 0},  {1, 3, 0, 0, 0, 0},
                                     {37, 65, 0, 0, 0, 0},   {5, 768, 0, 0, 0, 0}, {130, 31, 0, 0, 0, 0},
                                     {29, 1000, 0, 0, 0, 0}, {0, 0, 0, 0, 0, 0}};
static const op_size MATMUL_SIZES[] = {
    {3, 5, 4, 0, 0, 0},      {5, 3, 7, 0, 0, 0},     {1, 1, 1, 0, 0, 0},      {1, 129, 65, 0, 0, 0},
    {2, 64, 32, 0, 0, 0},    {13, 33, 31, 0, 0, 0},  {37, 129, 100, 0, 0, 0}, {70, 600, 33, 0, 0, 0},
    {30, 1100, 40, 0, 0, 0}, {200, 40, 67, 0, 0, 0}, {0, 0, 0, 0, 0, 0}};
/* The sum of dW runs over the rows of x and dy. */
static const op_size DW_SIZES[] = {{3, 5, 4, 0, 0, 0},     {5, 3, 7, 0, 0, 0},      {1, 1, 1, 0, 0, 0},
                                   {1, 65, 33, 0, 0, 0},   {33, 13, 31, 0, 0, 0},   {129, 37, 100, 0, 0, 0},
                                   {600, 40, 33, 0, 0, 0}, {1100, 14, 35, 0, 0, 0}, {0, 0, 0, 0, 0, 0}};
static const op_size ATTENTION_SIZES[] = {{4, 0, 0, 2, 1, 4},   {7, 0, 0, 2, 2, 2},   {1, 0, 0, 1, 1, 2},
                                          {37, 0, 0, 6, 2, 10}, {33, 0, 0, 3, 3, 64}, {70, 0, 0, 2, 1, 80},
                                          {0, 0, 0, 0, 0, 0}};
/* The gradients of queries have no other gradients in their tensor, so none may be zero. */
static const op_size PART_SIZES[] = {{4, 0, 0, 2, 1, 4},   {7, 0, 0, 2, 2, 2},   {3, 0, 0, 1, 1, 2},
                                     {37, 0, 0, 6, 2, 10}, {33, 0, 0, 3, 3, 64}, {70, 0, 0, 2, 1, 80},
                                     {0, 0, 0, 0, 0, 0}};
static const op_size HEAD_NORM_SIZES[] = {{4, 0, 0, 2, 1, 4},   {7, 0, 0, 2, 2, 6},   {1, 0, 0, 1, 1, 5},
                                          {37, 0, 0, 6, 2, 10}, {33, 0, 0, 3, 3, 64}, {70, 0, 0, 2, 1, 80},
                                          {0, 0, 0, 0, 0, 0}};
static const op_size ATTENTION_LONG[] = {
    {4, 0, 0, 2, 1, 4}, {6, 0, 0, 4, 2, 6}, {530, 0, 0, 1, 1, 4}, {270, 0, 0, 2, 1, 16}, {0, 0, 0, 0, 0, 0}};
static const op_size DECODE_SIZES[] = {{4, 0, 0, 2, 1, 4},  {7, 0, 0, 2, 2, 2},  {1, 0, 0, 1, 1, 2},
                                       {6, 0, 0, 6, 2, 10}, {5, 0, 0, 3, 3, 64}, {4, 0, 0, 2, 1, 80},
                                       {0, 0, 0, 0, 0, 0}};
static const op_size LATENT_SIZES[] = {
    {4, 0, 0, 2, 2, 4}, {7, 0, 0, 3, 3, 6}, {1, 0, 0, 1, 1, 4}, {20, 0, 0, 4, 4, 10}, {0, 0, 0, 0, 0, 0}};
/* rows, latent, rotated elements */
static const op_size LATENT_NORM_SIZES[] = {
    {4, 3, 2, 0, 0, 0}, {5, 6, 4, 0, 0, 0}, {1, 1, 2, 0, 0, 0}, {37, 40, 16, 0, 0, 0}, {0, 0, 0, 0, 0, 0}};
/* The reference reads a row once for each token of it, so rows are short. */
static const op_size SAMPLE_SIZES[] = {{3, 0, 6, 0, 0, 0},    {5, 0, 9, 0, 0, 0}, {12, 0, 129, 0, 0, 0},
                                       {13, 0, 300, 0, 0, 0}, {1, 0, 5, 0, 0, 0}, {0, 0, 0, 0, 0, 0}};
static const op_size HEAD_SIZES[] = {{3, 4, 6, 0, 0, 0},     {5, 3, 9, 0, 0, 0},     {1, 1, 5, 0, 0, 0},
                                     {4, 2, 2, 0, 0, 0},     {7, 33, 65, 0, 0, 0},   {20, 16, 257, 0, 0, 0},
                                     {33, 48, 600, 0, 0, 0}, {70, 130, 50, 0, 0, 0}, {0, 0, 0, 0, 0, 0}};
/* Fields: rows, width, columns, experts, experts used. Cases: one expert that all rows use, one of
 * many, more rows than the streaming kernel takes, every expert used. */
static const op_size EXPERT_SIZES[] = {
    {3, 5, 4, 4, 2, 0},      {4, 3, 7, 3, 3, 0},      {1, 1, 1, 1, 1, 0},
    {1, 33, 65, 8, 2, 0},    {13, 40, 31, 5, 1, 0},   {70, 65, 33, 8, 2, 0},
    {33, 17, 20, 40, 20, 0}, {200, 130, 48, 4, 2, 0}, {0, 0, 0, 0, 0, 0}};
static const op_size FLAT_SIZES[] = {{1, 1, 0, 0, 0, 0},    {3, 17, 0, 0, 0, 0},    {1, 4096, 0, 0, 0, 0},
                                     {1, 4097, 0, 0, 0, 0}, {67, 1000, 0, 0, 0, 0}, {0, 0, 0, 0, 0, 0}};

const op_case OP_CASES[] = {
    {"embed", "tokens", build_embed, ROW_SIZES, OP_EXACT},
    {"embed", "tokens and positions", build_embed, ROW_SIZES, OP_POSITIONS | OP_EXACT},
    {"embed", "scaled", build_embed, ROW_SIZES, OP_SCALED | OP_EXACT},
    {"embed_bwd", "write", build_embed_bwd, ROW_SIZES, OP_EXACT},
    {"embed_bwd", "scaled", build_embed_bwd, ROW_SIZES, OP_SCALED | OP_ADD},
    {"embed_bwd", "add, with positions", build_embed_bwd, ROW_SIZES, OP_POSITIONS | OP_ADD | OP_EXACT},
    {"embed_bwd", "first microbatch", build_embed_bwd, ROW_SIZES, OP_POSITIONS | OP_FIRST_MICRO | OP_EXACT},
    {"embed_bwd", "second microbatch", build_embed_bwd, ROW_SIZES, OP_POSITIONS | OP_MICRO | OP_EXACT},
    {"layernorm", "plain", build_norm, NORM_SIZES, 0},
    {"layernorm_bwd", "write", build_norm_bwd, NORM_SIZES, 0},
    {"layernorm_bwd", "add, with dres", build_norm_bwd, NORM_SIZES, OP_RESIDUE | OP_ADD},
    {"layernorm_bwd", "second microbatch", build_norm_bwd, NORM_SIZES, OP_RESIDUE | OP_MICRO},
    {"rmsnorm", "plain", build_norm, NORM_SIZES, 0},
    {"rmsnorm_bwd", "first microbatch", build_norm_bwd, NORM_SIZES, OP_FIRST_MICRO},
    {"rmsnorm_bwd", "add, with dres", build_norm_bwd, NORM_SIZES, OP_RESIDUE | OP_ADD},
    {"rmsnorm", "offset", build_norm, NORM_SIZES, OP_SCALED},
    {"rmsnorm_bwd", "offset", build_norm_bwd, NORM_SIZES, OP_SCALED | OP_ADD},
    {"head_norm", "plain", build_head_norm, HEAD_NORM_SIZES, 0},
    {"head_norm", "offset", build_head_norm, HEAD_NORM_SIZES, OP_SCALED},
    {"head_norm_bwd", "write", build_head_norm_bwd, HEAD_NORM_SIZES, 0},
    {"head_norm_bwd", "offset, add", build_head_norm_bwd, HEAD_NORM_SIZES, OP_SCALED | OP_ADD},
    {"rope", "forward", build_rope, ATTENTION_SIZES, 0},
    {"rope", "part of a head, scaled", build_rope, ATTENTION_SIZES, OP_SCALED},
    {"rope", "divisors", build_rope, ATTENTION_SIZES, OP_TABLE},
    {"rope", "tail", build_rope, ATTENTION_SIZES, OP_SEGMENTS},
    {"rope", "inverse", build_rope, ATTENTION_SIZES, OP_INVERSE},
    {"matmul", "plain", build_matmul, MATMUL_SIZES, OP_EXACT},
    {"matmul", "bias", build_matmul, MATMUL_SIZES, OP_BIAS | OP_EXACT},
    {"matmul", "transposed, bias", build_matmul, MATMUL_SIZES, OP_TRANSPOSE | OP_BIAS | OP_EXACT},
    {"matmul", "bias, gelu", build_matmul, MATMUL_SIZES, OP_BIAS | OP_GELU},
    {"matmul", "gelu, u kept", build_matmul, MATMUL_SIZES, OP_BIAS | OP_GELU | OP_KEEP_U},
    {"matmul", "residual", build_matmul, MATMUL_SIZES, OP_RESIDUAL | OP_BIAS | OP_EXACT},
    {"matmul", "residual, dropout", build_matmul, MATMUL_SIZES,
     OP_RESIDUAL | OP_BIAS | OP_DROPOUT | OP_EXACT},
    {"matmul", "residual, dropout, every third token", build_matmul, MATMUL_SIZES,
     OP_RESIDUAL | OP_DROPOUT | OP_SCALED | OP_EXACT},
    {"matmul", "transposed, residual, dropout, u kept", build_matmul, MATMUL_SIZES,
     OP_TRANSPOSE | OP_RESIDUAL | OP_DROPOUT | OP_KEEP_U | OP_EXACT},
    {"matmul_dx", "plain", build_matmul_dx, MATMUL_SIZES, OP_EXACT},
    {"matmul_dx", "transposed", build_matmul_dx, MATMUL_SIZES, OP_TRANSPOSE | OP_EXACT},
    {"matmul_dx", "gelu", build_matmul_dx, MATMUL_SIZES, OP_GELU},
    {"matmul_dx", "transposed, gelu", build_matmul_dx, MATMUL_SIZES, OP_TRANSPOSE | OP_GELU},
    {"matmul_dw", "write", build_matmul_dw, DW_SIZES, OP_EXACT},
    {"matmul_dw", "add, bias", build_matmul_dw, DW_SIZES, OP_BIAS | OP_ADD | OP_EXACT},
    {"matmul_dw", "transposed, first microbatch", build_matmul_dw, DW_SIZES,
     OP_TRANSPOSE | OP_BIAS | OP_FIRST_MICRO | OP_EXACT},
    {"matmul_dw", "transposed, second microbatch", build_matmul_dw, DW_SIZES,
     OP_TRANSPOSE | OP_BIAS | OP_MICRO | OP_EXACT},
    {"lora", "two runs", build_lora, MATMUL_SIZES, OP_EXACT},
    {"lora_slots", "three adapters", build_lora_slots, MATMUL_SIZES, OP_EXACT},
    {"lora_bwd", "write", build_lora_bwd, DW_SIZES, OP_EXACT},
    {"lora_bwd", "add", build_lora_bwd, MATMUL_SIZES, OP_ADD | OP_EXACT},
    {"lora_bwd", "first microbatch", build_lora_bwd, MATMUL_SIZES, OP_FIRST_MICRO | OP_EXACT},
    {"lora_bwd", "second microbatch", build_lora_bwd, MATMUL_SIZES, OP_MICRO | OP_EXACT},
    {"gelu", "plain", build_gelu, ROW_SIZES, 0},
    {"gelu_bwd", "plain", build_gelu_bwd, ROW_SIZES, 0},
    {"gelu_erf", "plain", build_gelu, ROW_SIZES, 0},
    {"gelu_erf_bwd", "plain", build_gelu_bwd, ROW_SIZES, 0},
    {"swiglu", "plain", build_gated, ROW_SIZES, 0},
    {"swiglu_bwd", "plain", build_gated_bwd, ROW_SIZES, 0},
    {"geglu", "plain", build_gated, ROW_SIZES, 0},
    {"geglu_bwd", "plain", build_gated_bwd, ROW_SIZES, 0},
    {"route", "plain", build_route, EXPERT_SIZES, 0},
    {"route", "choice", build_route, EXPERT_SIZES, OP_BIAS},
    {"route", "sigmoid", build_route, EXPERT_SIZES, OP_INVERSE},
    {"route", "as it is, groups", build_route, EXPERT_SIZES, OP_SCALED | OP_SEGMENTS},
    {"route", "sigmoid, as it is", build_route, EXPERT_SIZES, OP_INVERSE | OP_SCALED},
    {"route", "sigmoid, choice, groups", build_route, EXPERT_SIZES, OP_INVERSE | OP_BIAS | OP_SEGMENTS},
    {"route", "room", build_route, EXPERT_SIZES, OP_CLIP},
    {"route_bwd", "plain", build_route_bwd, EXPERT_SIZES, 0},
    {"route_bwd", "sigmoid, groups", build_route_bwd, EXPERT_SIZES, OP_INVERSE | OP_SEGMENTS},
    {"route_bwd", "as it is", build_route_bwd, EXPERT_SIZES, OP_SCALED},
    {"route_bwd", "sigmoid, as it is", build_route_bwd, EXPERT_SIZES, OP_INVERSE | OP_SCALED},
    {"dispatch", "plain", build_dispatch, EXPERT_SIZES, OP_EXACT},
    {"dispatch", "room", build_dispatch, EXPERT_SIZES, OP_CLIP | OP_EXACT},
    {"dispatch_bwd", "plain", build_dispatch_bwd, EXPERT_SIZES, OP_EXACT},
    {"dispatch_bwd", "room", build_dispatch_bwd, EXPERT_SIZES, OP_CLIP | OP_EXACT},
    {"matmul_experts", "plain", build_matmul_experts, EXPERT_SIZES, OP_EXACT},
    {"matmul_experts", "room", build_matmul_experts, EXPERT_SIZES, OP_CLIP | OP_EXACT},
    {"matmul_experts_dx", "plain", build_matmul_experts_dx, EXPERT_SIZES, OP_EXACT},
    {"matmul_experts_dx", "room", build_matmul_experts_dx, EXPERT_SIZES, OP_CLIP | OP_EXACT},
    {"matmul_experts_dw", "write", build_matmul_experts_dw, EXPERT_SIZES, OP_EXACT},
    {"matmul_experts_dw", "add", build_matmul_experts_dw, EXPERT_SIZES, OP_ADD | OP_EXACT},
    {"matmul_experts_dw", "room", build_matmul_experts_dw, EXPERT_SIZES, OP_CLIP | OP_EXACT},
    {"matmul_experts_dw", "first microbatch", build_matmul_experts_dw, EXPERT_SIZES,
     OP_FIRST_MICRO | OP_EXACT},
    {"matmul_experts_dw", "second microbatch", build_matmul_experts_dw, EXPERT_SIZES, OP_MICRO | OP_EXACT},
    {"combine", "plain", build_combine, EXPERT_SIZES, OP_EXACT},
    {"combine", "room", build_combine, EXPERT_SIZES, OP_CLIP | OP_EXACT},
    {"combine_bwd", "plain", build_combine_bwd, EXPERT_SIZES, 0},
    {"combine_bwd", "room", build_combine_bwd, EXPERT_SIZES, OP_CLIP},
    {"add", "plain", build_add, ROW_SIZES, OP_EXACT},
    {"add_dropout", "p = 0.3", build_add, ROW_SIZES, OP_DROPOUT | OP_EXACT},
    {"add_dropout", "every third token", build_add, ROW_SIZES, OP_DROPOUT | OP_SCALED | OP_EXACT},
    {"add_dropout", "p = 0", build_add, ROW_SIZES, OP_EXACT},
    {"dropout", "p = 0.3", build_dropout, ROW_SIZES, OP_DROPOUT | OP_EXACT},
    {"dropout", "every third token", build_dropout, ROW_SIZES, OP_DROPOUT | OP_SCALED | OP_EXACT},
    {"attention", "causal", build_attention, ATTENTION_SIZES, 0},
    {"attention", "segments", build_attention, ATTENTION_SIZES, OP_SEGMENTS},
    {"attention", "window, segments", build_attention, ATTENTION_SIZES, OP_WINDOW | OP_SEGMENTS},
    {"attention", "window, long", build_attention, ATTENTION_LONG, OP_WINDOW},
    {"attention", "segments, long", build_attention, ATTENTION_LONG, OP_SEGMENTS},
    {"attention", "long", build_attention, ATTENTION_LONG, 0},
    {"attention", "bf16 softmax", build_attention, ATTENTION_SIZES, OP_BF16_SOFTMAX | OP_SEGMENTS},
    {"attention", "softcap", build_attention, ATTENTION_SIZES, OP_SOFTCAP | OP_SEGMENTS | OP_WINDOW},
    {"attention", "softcap, bf16 softmax", build_attention, ATTENTION_SIZES, OP_SOFTCAP | OP_BF16_SOFTMAX},
    {"attention_bwd", "causal", build_attention_bwd, ATTENTION_SIZES, 0},
    {"attention_bwd", "softcap", build_attention_bwd, ATTENTION_SIZES, OP_SOFTCAP | OP_SEGMENTS | OP_WINDOW},
    {"attention_bwd", "segments", build_attention_bwd, ATTENTION_SIZES, OP_SEGMENTS},
    {"attention_bwd", "window, segments", build_attention_bwd, ATTENTION_SIZES, OP_WINDOW | OP_SEGMENTS},
    {"attention_bwd", "window, segments, long", build_attention_bwd, ATTENTION_LONG, OP_WINDOW | OP_SEGMENTS},
    {"attention_bwd", "bf16 softmax", build_attention_bwd, ATTENTION_SIZES, OP_BF16_SOFTMAX | OP_SEGMENTS},
    {"kv_rows", "plain", build_attention_part, ATTENTION_SIZES, OP_EXACT},
    {"kv_join", "plain", build_attention_part, ATTENTION_SIZES, OP_EXACT},
    {"attention_part", "segments, window", build_attention_part, ATTENTION_SIZES, OP_SEGMENTS | OP_WINDOW},
    {"attention_part", "softcap", build_attention_part, ATTENTION_SIZES, OP_SOFTCAP},
    {"attention_part_bwd", "segments, window", build_attention_part, PART_SIZES, OP_SEGMENTS | OP_WINDOW},
    {"attention_part", "group", build_attention_part, ATTENTION_SIZES, OP_SEGMENTS | OP_WINDOW | OP_GROUP},
    {"attention_part_bwd", "group", build_attention_part, PART_SIZES, OP_SEGMENTS | OP_WINDOW | OP_GROUP},
    {"attention_merge", "two parts", build_attention_merge, ATTENTION_SIZES, 0},
    {"attention_part_bwd", "softcap", build_attention_part, PART_SIZES, OP_SOFTCAP},
    {"attention_kv", "decode", build_attention_kv, DECODE_SIZES, 0},
    {"attention_kv", "decode, window", build_attention_kv, DECODE_SIZES, OP_WINDOW},
    {"attention_kv", "decode, softcap", build_attention_kv, DECODE_SIZES, OP_SOFTCAP},
    {"attention_kv", "prefill", build_attention_kv, ATTENTION_SIZES, OP_PREFILL},
    {"attention_kv", "prefill, long", build_attention_kv, ATTENTION_LONG, OP_PREFILL | OP_WINDOW},
    {"attention_kv", "decode, int8", build_attention_kv, DECODE_SIZES, OP_NARROW | OP_WINDOW},
    {"attention_kv", "prefill, int8", build_attention_kv, ATTENTION_SIZES, OP_PREFILL | OP_NARROW},
    {"attention_kv", "prefill, long, int8", build_attention_kv, ATTENTION_LONG, OP_PREFILL | OP_NARROW},
    {"attention_kv", "prefill, bf16 softmax", build_attention_kv, ATTENTION_SIZES,
     OP_PREFILL | OP_BF16_SOFTMAX},
    {"attention_kv", "decode, group", build_attention_kv, DECODE_SIZES, OP_GROUP | OP_WINDOW},
    {"attention_kv", "prefill, group, int8", build_attention_kv, ATTENTION_SIZES,
     OP_PREFILL | OP_GROUP | OP_NARROW},
    {"latent_norm", "plain", build_latent_norm, LATENT_NORM_SIZES, 0},
    {"latent_norm_bwd", "write", build_latent_norm_bwd, LATENT_NORM_SIZES, 0},
    {"latent_norm_bwd", "add", build_latent_norm_bwd, LATENT_NORM_SIZES, OP_ADD},
    {"attention_latent", "causal", build_attention_latent, LATENT_SIZES, 0},
    {"attention_latent", "segments", build_attention_latent, LATENT_SIZES, OP_SEGMENTS},
    {"attention_latent_bwd", "causal", build_attention_latent_bwd, LATENT_SIZES, 0},
    {"attention_latent_bwd", "segments", build_attention_latent_bwd, LATENT_SIZES, OP_SEGMENTS},
    {"attention_latent_rows", "causal", build_attention_latent_rows, LATENT_SIZES, 0},
    {"attention_latent_rows", "segments", build_attention_latent_rows, LATENT_SIZES, OP_SEGMENTS},
    {"attention_latent_kv", "decode", build_attention_latent_kv, LATENT_SIZES, 0},
    {"attention_latent_kv", "prefill", build_attention_latent_kv, LATENT_SIZES, OP_PREFILL},
    {"attention_latent_kv", "prefill, group", build_attention_latent_kv, LATENT_SIZES, OP_PREFILL | OP_GROUP},
    {"head_loss", "plain", build_head_loss, HEAD_SIZES, 0},
    {"head_loss", "transposed, bias, ignored labels", build_head_loss, HEAD_SIZES,
     OP_TRANSPOSE | OP_BIAS | OP_IGNORED},
    {"head_loss_bwd", "write", build_head_loss_bwd, HEAD_SIZES, OP_BIAS},
    {"head_loss_bwd", "transposed, add, ignored labels", build_head_loss_bwd, HEAD_SIZES,
     OP_TRANSPOSE | OP_ADD | OP_IGNORED},
    {"head_loss", "weighted rows", build_head_loss, HEAD_SIZES, OP_WEIGHT | OP_BIAS | OP_IGNORED},
    {"head_loss_bwd", "weighted rows", build_head_loss_bwd, HEAD_SIZES, OP_WEIGHT | OP_BIAS | OP_IGNORED},
    {"head_loss_bwd", "weighted rows, transposed, softcap", build_head_loss_bwd, HEAD_SIZES,
     OP_WEIGHT | OP_TRANSPOSE | OP_SOFTCAP | OP_MICRO},
    {"policy_loss", "tokens", build_policy_loss, ROW_SIZES, OP_IGNORED},
    {"policy_loss", "tokens, clipped", build_policy_loss, ROW_SIZES, OP_CLIP | OP_SEGMENTS},
    {"policy_loss", "tokens, clipped, reference", build_policy_loss, ROW_SIZES,
     OP_CLIP | OP_RESIDUE | OP_SEGMENTS | OP_IGNORED},
    {"policy_loss", "tokens, capped", build_policy_loss, ROW_SIZES, OP_SOFTCAP},
    {"policy_loss", "tokens, ratio as weight", build_policy_loss, ROW_SIZES, OP_WEIGHT | OP_RESIDUE},
    {"policy_loss", "mean, clipped", build_policy_loss, ROW_SIZES, OP_WINDOW | OP_CLIP | OP_SEGMENTS},
    {"policy_loss", "mean, clipped, reference", build_policy_loss, ROW_SIZES,
     OP_WINDOW | OP_CLIP | OP_RESIDUE | OP_SEGMENTS | OP_IGNORED},
    {"policy_loss", "mean, ratio as weight", build_policy_loss, ROW_SIZES,
     OP_WINDOW | OP_WEIGHT | OP_SEGMENTS},
    {"policy_loss", "sum, capped", build_policy_loss, ROW_SIZES,
     OP_PREFILL | OP_SOFTCAP | OP_SEGMENTS | OP_IGNORED},
    {"policy_loss", "tokens, old log-probabilities", build_policy_loss, ROW_SIZES,
     OP_CLIP | OP_RESIDUE | OP_ADD | OP_IGNORED},
    {"policy_loss", "mean, old log-probabilities", build_policy_loss, ROW_SIZES,
     OP_WINDOW | OP_CLIP | OP_SEGMENTS | OP_ADD},
    {"policy_loss", "ratio as weight, old log-probabilities", build_policy_loss, ROW_SIZES,
     OP_WEIGHT | OP_RESIDUE | OP_ADD},
    {"pair_loss", "dpo", build_pair_loss, ROW_SIZES, OP_SEGMENTS},
    {"pair_loss", "dpo, smoothed", build_pair_loss, ROW_SIZES, OP_SEGMENTS | OP_DECAY | OP_IGNORED},
    {"pair_loss", "ipo", build_pair_loss, ROW_SIZES, OP_SEGMENTS | OP_INVERSE | OP_IGNORED},
    {"pair_loss", "simpo", build_pair_loss, ROW_SIZES, OP_SEGMENTS | OP_SCALED},
    {"head_loss_grad", "first microbatch", build_head_loss_grad, HEAD_SIZES, OP_BIAS | OP_FIRST_MICRO},
    {"head_loss_grad", "transposed, second microbatch, ignored labels", build_head_loss_grad, HEAD_SIZES,
     OP_TRANSPOSE | OP_BIAS | OP_MICRO | OP_IGNORED},
    {"head_loss", "softcap", build_head_loss, HEAD_SIZES, OP_SOFTCAP | OP_BIAS},
    {"head_loss_bwd", "softcap", build_head_loss_bwd, HEAD_SIZES, OP_SOFTCAP | OP_TRANSPOSE | OP_IGNORED},
    {"head_loss_grad", "softcap", build_head_loss_grad, HEAD_SIZES, OP_SOFTCAP | OP_BIAS},
    {"head_logits", "softcap", build_head_logits, HEAD_SIZES, OP_SOFTCAP},
    {"head_loss_bwd", "rounded", build_head_loss_bwd, HEAD_SIZES, OP_NARROW | OP_BIAS},
    {"head_loss_bwd", "rounded, transposed", build_head_loss_bwd, HEAD_SIZES,
     OP_NARROW | OP_TRANSPOSE | OP_BIAS},
    {"head_loss_bwd", "rounded, transposed, weighted rows, second microbatch", build_head_loss_bwd,
     HEAD_SIZES, OP_NARROW | OP_TRANSPOSE | OP_BIAS | OP_WEIGHT | OP_MICRO | OP_IGNORED},
    {"head_loss_grad", "rounded, softcap", build_head_loss_grad, HEAD_SIZES,
     OP_NARROW | OP_BIAS | OP_SOFTCAP | OP_IGNORED},
    {"head_loss_grad", "rounded, transposed, temperature", build_head_loss_grad, HEAD_SIZES,
     OP_NARROW | OP_TRANSPOSE | OP_BIAS | OP_INVERSE},
    {"head_loss", "temperature", build_head_loss, HEAD_SIZES, OP_INVERSE | OP_BIAS},
    {"head_loss_bwd", "temperature", build_head_loss_bwd, HEAD_SIZES, OP_INVERSE | OP_BIAS},
    {"head_loss_bwd", "temperature, softcap, weighted rows", build_head_loss_bwd, HEAD_SIZES,
     OP_INVERSE | OP_SOFTCAP | OP_WEIGHT | OP_TRANSPOSE},
    {"head_loss", "temperature, softcap", build_head_loss, HEAD_SIZES, OP_INVERSE | OP_SOFTCAP},
    {"head_loss_grad", "temperature, softcap", build_head_loss_grad, HEAD_SIZES, OP_INVERSE | OP_SOFTCAP},
    {"head_loss_grad", "weighted rows, ignored labels", build_head_loss_grad, HEAD_SIZES,
     OP_WEIGHT | OP_BIAS | OP_IGNORED},
    {"head_logits", "temperature", build_head_logits, HEAD_SIZES, OP_INVERSE | OP_BIAS | OP_EXACT},
    {"head_logits", "temperature, softcap, with lse", build_head_logits, HEAD_SIZES,
     OP_INVERSE | OP_SOFTCAP | OP_KEEP_U},
    {"head_score", "temperature, likeliest", build_head_score, HEAD_SIZES, OP_INVERSE | OP_KEEP_U},
    {"head_part", "temperature", build_head_part, HEAD_SIZES, OP_INVERSE | OP_BIAS | OP_IGNORED},
    {"head_logits", "with lse", build_head_logits, HEAD_SIZES, OP_KEEP_U | OP_IGNORED},
    {"head_score", "plain", build_head_score, HEAD_SIZES, OP_BIAS | OP_IGNORED},
    {"head_score", "likeliest", build_head_score, HEAD_SIZES, OP_KEEP_U | OP_TRANSPOSE},
    {"head_score", "softcap, likeliest", build_head_score, HEAD_SIZES, OP_KEEP_U | OP_SOFTCAP},
    {"head_part", "plain", build_head_part, HEAD_SIZES, OP_BIAS | OP_IGNORED},
    {"head_part", "transposed, softcap", build_head_part, HEAD_SIZES, OP_TRANSPOSE | OP_SOFTCAP},
    {"head_merge", "one part", build_head_part, HEAD_SIZES, OP_IGNORED},
    {"loss_sum", "write", build_loss_sum, ROW_SIZES, OP_IGNORED},
    {"loss_sum", "second microbatch", build_loss_sum, ROW_SIZES, OP_IGNORED | OP_MICRO},
    {"head_logits", "plain", build_head_logits, HEAD_SIZES, OP_EXACT},
    {"head_logits", "transposed, bias, idle rows", build_head_logits, HEAD_SIZES,
     OP_TRANSPOSE | OP_BIAS | OP_IGNORED | OP_EXACT},
    {"sample", "plain", build_sample, SAMPLE_SIZES, 0},
    {"sample", "barred tokens", build_sample, SAMPLE_SIZES, OP_IGNORED},
    {"sample", "equal logits", build_sample, SAMPLE_SIZES, OP_CLIP},
    {"sample", "unfiltered", build_sample, SAMPLE_SIZES, OP_WEIGHT},
    {"norm_sq", "plain", build_norm_sq, FLAT_SIZES, 0},
    {"norm_sq", "of three chips", build_norm_sq, FLAT_SIZES, OP_KEEP_U},
    {"norm_sq", "of six chips, columns of two", build_norm_sq, FLAT_SIZES, OP_KEEP_U | OP_IGNORED},
    {"norm_total", "plain", build_norm_total, ROW_SIZES, 0},
    {"clip", "clipped", build_clip, ROW_SIZES, OP_CLIP},
    {"clip", "measured only", build_clip, ROW_SIZES, 0},
    {"adamw", "plain", build_adamw, FLAT_SIZES, 0},
    {"adamw", "with the gradient's norm", build_adamw, FLAT_SIZES, OP_KEEP_U | OP_DECAY | OP_WEIGHT},
    {"adamw", "decay, clip, weight copy", build_adamw, FLAT_SIZES, OP_DECAY | OP_CLIP | OP_WEIGHT},
    {"all_gather", "alone", build_collective, ROW_SIZES, OP_EXACT},
    {"reduce_scatter", "alone", build_collective, ROW_SIZES, OP_EXACT},
    {"all_reduce", "alone", build_collective, ROW_SIZES, OP_EXACT},
    {"all_to_all", "alone", build_collective, ROW_SIZES, OP_EXACT},
    {"permute", "alone", build_collective, ROW_SIZES, OP_EXACT},
    {"send", "alone", build_transfer, ROW_SIZES, OP_EXACT},
    {"recv", "alone", build_transfer, ROW_SIZES, OP_EXACT},
    {"recv", "add", build_transfer, ROW_SIZES, OP_ADD | OP_EXACT},
    {"offload_out", "alone", build_collective, ROW_SIZES, OP_EXACT},
    {"offload_in", "alone", build_collective, ROW_SIZES, OP_EXACT},
    {"reduce_scatter", "first microbatch", build_collective, ROW_SIZES, OP_FIRST_MICRO | OP_EXACT},
    {"reduce_scatter", "second microbatch", build_collective, ROW_SIZES, OP_MICRO | OP_EXACT},
    {"reduce_scatter", "add", build_collective, ROW_SIZES, OP_ADD | OP_EXACT},
    {"all_reduce", "second microbatch", build_collective, ROW_SIZES, OP_MICRO | OP_EXACT},
    {"take_run", "alone", build_collective, ROW_SIZES, OP_EXACT},
    {"all_gather_start", "alone", build_collective, ROW_SIZES, OP_EXACT},
    {"reduce_scatter_start", "alone", build_collective, ROW_SIZES, OP_EXACT},
    {"reduce_scatter_start", "add", build_collective, ROW_SIZES, OP_ADD | OP_EXACT},
    {"all_reduce_start", "alone", build_collective, ROW_SIZES, OP_EXACT},
    {"exchange_wait", "add", build_collective, ROW_SIZES, OP_ADD | OP_EXACT},
    {NULL, NULL, NULL, NULL, 0},
};
