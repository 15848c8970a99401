/* profile_program.c - see profile.h: the names of instructions and of the ops to which they belong,
 * from an HloModuleProto. */
#include <stdlib.h>
#include <string.h>

#include "backend/xla/profile.h"

enum { /* field numbers of xla/service/hlo.proto and xla/xla_data.proto */
       CONFIGURED_MODULE = 1,
       MODULE_COMPUTATIONS = 3,
       COMPUTATION_INSTRUCTIONS = 2,
       COMPUTATION_ID = 5,
       COMPUTATION_ROOT = 6,
       INSTRUCTION_NAME = 1,
       INSTRUCTION_METADATA = 7,
       INSTRUCTION_ID = 35,
       INSTRUCTION_CALLED = 38,
       METADATA_OP_NAME = 2
};
enum { DEEPEST = 8 /* maximum depth of computations that call each other */ };

typedef struct instruction {
  rf_xla_instruction own; /* first field */
  uint64_t id, called;    /* called: id of the first called computation, if `calls` is true */
  bool calls;
} instruction;
typedef struct computation {
  uint64_t id, root;
  int first, count; /* its instructions */
} computation;
typedef struct module {
  instruction *instruction;
  computation *computation;
  int instructions, computations, instruction_room, computation_room;
} module;

static instruction read_instruction(rf_proto_bytes bytes) {
  rf_proto_field f;
  instruction made = {.own.number = RF_NONE};
  for (rf_proto p = rf_proto_of(bytes); rf_proto_next(&p, &f);) {
    if (f.number == INSTRUCTION_ID && f.is_number) made.id = f.value;
    if (f.number == INSTRUCTION_CALLED && !made.calls) made.calls = rf_proto_first(&f, &made.called);
    if (f.is_number) continue;
    if (f.number == INSTRUCTION_NAME) made.own.name = f.bytes;
    if (f.number == INSTRUCTION_METADATA) made.own.op = rf_proto_find(f.bytes, METADATA_OP_NAME);
  }
  return made;
}

static int by_id(const void *a, const void *b) {
  uint64_t x = ((const instruction *)a)->id, y = ((const instruction *)b)->id;
  return (x > y) - (x < y);
}
static int computation_by_id(const void *a, const void *b) {
  uint64_t x = ((const computation *)a)->id, y = ((const computation *)b)->id;
  return (x > y) - (x < y);
}
static int by_name(const void *a, const void *b) {
  return rf_proto_compare(((const rf_xla_instruction *)a)->name, ((const rf_xla_instruction *)b)->name);
}

static bool read_computation(module *m, rf_proto_bytes bytes) {
  rf_proto_field f;
  computation made = {.first = m->instructions};
  for (rf_proto p = rf_proto_of(bytes); rf_proto_next(&p, &f);) {
    if (f.number == COMPUTATION_ID && f.is_number) made.id = f.value;
    if (f.number == COMPUTATION_ROOT && f.is_number) made.root = f.value;
    if (f.number != COMPUTATION_INSTRUCTIONS || f.is_number) continue;
    if (!rf_xla_grow((void **)&m->instruction, m->instructions, &m->instruction_room, sizeof *m->instruction))
      return false;
    m->instruction[m->instructions++] = read_instruction(f.bytes);
  }
  made.count = m->instructions - made.first;
  if (made.count) qsort(m->instruction + made.first, (size_t)made.count, sizeof *m->instruction, by_id);
  if (!rf_xla_grow((void **)&m->computation, m->computations, &m->computation_room, sizeof *m->computation))
    return false;
  m->computation[m->computations++] = made;
  return true;
}

/* The name of an instruction's op. Without such a name, the name of the op of the root of the
 * called computation. */
static rf_proto_bytes op_of(const module *m, const instruction *at) {
  for (int depth = 0; depth < DEEPEST && at && !at->own.op.count && at->calls; depth++) {
    computation of = {.id = at->called};
    const computation *c =
        bsearch(&of, m->computation, (size_t)m->computations, sizeof of, computation_by_id);
    instruction root = {.id = c ? c->root : 0};
    at = c && c->count ? bsearch(&root, m->instruction + c->first, (size_t)c->count, sizeof root, by_id)
                       : NULL;
  }
  return at ? at->own.op : (rf_proto_bytes){NULL, 0};
}

/* ---- ops of the graph ------------------------------------------------------------------------ */

typedef struct named_op {
  rf_proto_bytes name;
  int number;
} named_op;

static int by_op_name(const void *a, const void *b) {
  return rf_proto_compare(((const named_op *)a)->name, ((const named_op *)b)->name);
}

static bool number_ops(rf_xla_instructions *in, const rf_graph *graph) {
  size_t ops = (size_t)graph->op_count;
  named_op *list = malloc((ops + 1) * sizeof *list);
  if (!list) return false;
  for (size_t i = 0; i < ops; i++) {
    const char *name = graph->op[i].name;
    list[i] = (named_op){{name, strlen(name)}, (int)i};
  }
  if (ops) qsort(list, ops, sizeof *list, by_op_name);
  for (int i = 0; i < in->count && ops; i++) {
    named_op of = {in->at[i].op, 0};
    const named_op *found = of.name.count ? bsearch(&of, list, ops, sizeof of, by_op_name) : NULL;
    in->at[i].number = found ? found->number : RF_NONE;
  }
  free(list);
  return true;
}

/* ---- reading --------------------------------------------------------------------------------- */

static rf_status read_module(rf_proto_bytes bytes, module *m, rf_error *error) {
  rf_proto_field f;
  rf_proto p = rf_proto_of(bytes);
  while (rf_proto_next(&p, &f))
    if (f.number == MODULE_COMPUTATIONS && !f.is_number && !read_computation(m, f.bytes))
      return RF_FAIL(error, RAFTER_FAILED, NULL,
                     "the compiled program has too many instructions to be profiled");
  if (p.damaged || !m->instructions)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "the plugin's description of the compiled program is damaged");
  qsort(m->computation, (size_t)m->computations, sizeof *m->computation, computation_by_id);
  return RAFTER_OK;
}

rf_status rf_xla_instructions_read(char *program, size_t bytes, const rf_graph *graph,
                                   rf_xla_instructions *out, rf_error *error) {
  module m = {0};
  rf_proto_bytes all = {program, bytes};
  *out = (rf_xla_instructions){.program = program};
  /* A message that wraps a module and its configuration has no computations itself. */
  if (!rf_proto_find(all, MODULE_COMPUTATIONS).count) all = rf_proto_find(all, CONFIGURED_MODULE);
  rf_status status = read_module(all, &m, error);
  if (status == RAFTER_OK) {
    out->at = malloc((size_t)m.instructions * sizeof *out->at);
    if (!out->at)
      status = RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while reading a compiled program");
  }
  for (int i = 0; out->at && i < m.instructions; i++) {
    out->at[i] = m.instruction[i].own;
    out->at[i].op = op_of(&m, &m.instruction[i]);
  }
  if (status == RAFTER_OK) {
    out->count = m.instructions;
    qsort(out->at, (size_t)out->count, sizeof *out->at, by_name);
    if (!number_ops(out, graph))
      status = RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while reading a compiled program");
  }
  free(m.instruction);
  free(m.computation);
  if (status != RAFTER_OK) rf_xla_instructions_free(out);
  return status;
}

void rf_xla_instructions_free(rf_xla_instructions *of) {
  free(of->at);
  free(of->program);
  *of = (rf_xla_instructions){0};
}

int rf_xla_instructions_find(const rf_xla_instructions *in, rf_proto_bytes name) {
  rf_xla_instruction of = {.name = name};
  const rf_xla_instruction *found =
      in->count && name.count ? bsearch(&of, in->at, (size_t)in->count, sizeof of, by_name) : NULL;
  return found ? (int)(found - in->at) : RF_NONE;
}
