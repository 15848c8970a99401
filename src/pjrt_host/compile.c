/* compile.c - see host.h: compiles, loads and stores programs, and gets the statistics of
 * programs. */
#include <stdlib.h>
#include <string.h>

#include "pjrt_host/host.h"

static void get_memory(const host *h, void *executable, rf_wire_program *out) {
  host_fault unused;
  pjrt_memory memory = {.executable = executable};
  out->argument = out->output = out->alias = out->temporary = out->code = -1;
  if (!HOST_CALL(h, PJRT_EXECUTABLE_MEMORY, &memory, "memory of a program", &unused)) return;
  out->argument = memory.argument;
  out->output = memory.output;
  out->alias = memory.alias;
  out->temporary = memory.temporary;
  out->code = memory.code;
}

static void get_costs(const host *h, void *executable, rf_wire_program *out) {
  host_fault unused;
  pjrt_costs costs = {.executable = executable};
  out->flops = out->bytes_accessed = -1;
  if (!HOST_CALL(h, PJRT_EXECUTABLE_COST, &costs, "cost of a program", &unused)) return;
  for (size_t i = 0; i < costs.count; i++) {
    const pjrt_named *value = (const pjrt_named *)costs.value + i;
    if (value->type != PJRT_FLOAT) continue;
    if (host_is_named(value, "flops")) out->flops = value->value.real;
    if (host_is_named(value, "bytes accessed")) out->bytes_accessed = value->value.real;
  }
}

/* Fills order[] with the device of each replica. The plugin lists the devices of a program in the
 * order of its replicas. */
static bool get_order(const host *h, host_program *program, void **list, host_fault *fault) {
  for (int r = 0; r < program->replicas; r++) {
    int at = 0;
    while (at < h->devices && h->device[at] != list[r]) at++;
    if (at == h->devices)
      return host_fail(fault, RF_WIRE_BAD_REQUEST, "the program runs on an unknown device");
    program->order[r] = at;
  }
  return true;
}

/* Adds a loaded program to the table. On failure, destroys the program. */
static bool add_program(host *h, void *loaded, rf_wire_program *out, host_fault *fault) {
  pjrt_object_of get = {.object = loaded};
  pjrt_list_of devices = {.object = loaded};
  pjrt_size_of results = {0};
  host_program *program = NULL;
  bool done = HOST_CALL(h, PJRT_LOADED_EXECUTABLE, &get, "get the executable", fault) &&
              HOST_CALL(h, PJRT_LOADED_DEVICES, &devices, "get the program's devices", fault);
  if (done) {
    results.object = get.result;
    done = HOST_CALL(h, PJRT_EXECUTABLE_OUTPUTS, &results, "count the results", fault);
  }
  if (done) {
    program = calloc(1, sizeof *program + devices.count * sizeof *program->order);
    if (!program) abort();
    program->loaded = loaded;
    program->executable = get.result;
    program->replicas = (int)devices.count;
    program->results = (int)results.number;
    done = get_order(h, program, devices.list, fault);
  }
  if (!done) {
    free(program);
    host_destroy(h, PJRT_EXECUTABLE_DESTROY, get.result);
    host_destroy(h, PJRT_LOADED_DESTROY, loaded);
    return false;
  }
  get_memory(h, program->executable, out);
  get_costs(h, program->executable, out);
  out->replicas = program->replicas;
  out->results = program->results;
  out->program = host_table_add(&h->programs, program);
  return true;
}

void host_free_program(const host *h, host_program *program) {
  host_drop_kept(h, program);
  host_destroy(h, PJRT_EXECUTABLE_DESTROY, program->executable);
  host_destroy(h, PJRT_LOADED_DESTROY, program->loaded);
  free(program);
}

static pjrt_program program_of(host_text text) {
  return (pjrt_program){.struct_size = sizeof(pjrt_program),
                        .code = (char *)text.data,
                        .code_bytes = text.bytes,
                        .format = "mlir",
                        .format_bytes = 4};
}

/* Makes two options of the topology, for plugins that need a description of the devices. */
static void describe(pjrt_named option[2], host_text topology, host_text target) {
  const char *const name[] = {"topology", "target_config"};
  const host_text value[] = {topology, target};
  for (int i = 0; i < 2; i++) {
    option[i] = host_option(name[i], PJRT_STRING, value[i].bytes);
    option[i].value.text = value[i].data;
  }
}

bool host_compile_for(host *h, host_text text, host_text options, host_text topology, host_text target,
                      rf_wire_program *out, host_fault *fault) {
  *out = (rf_wire_program){0};
  pjrt_program program = program_of(text);
  pjrt_named described[2];
  pjrt_topology_create create = {.name = topology.data, .name_bytes = topology.bytes};
  describe(described, topology, target);
  if (target.bytes) {
    create.option = described;
    create.options = 2;
  }
  if (!HOST_CALL(h, PJRT_TOPOLOGY_CREATE, &create, "describe the topology", fault)) return false;
  pjrt_compile compile = {.topology = create.topology,
                          .program = &program,
                          .options = options.data,
                          .options_bytes = options.bytes};
  bool done = HOST_CALL(h, PJRT_COMPILE, &compile, "compile", fault);
  if (done) {
    pjrt_size_of results = {.object = compile.executable};
    done = HOST_CALL(h, PJRT_EXECUTABLE_OUTPUTS, &results, "count the results", fault);
    out->results = (int64_t)results.number;
    get_memory(h, compile.executable, out);
    get_costs(h, compile.executable, out);
    host_destroy(h, PJRT_EXECUTABLE_DESTROY, compile.executable);
  }
  host_destroy(h, PJRT_TOPOLOGY_DESTROY, create.topology);
  return done;
}

bool host_compile(host *h, host_text text, host_text options, rf_wire_program *out, host_fault *fault) {
  *out = (rf_wire_program){0};
  pjrt_program program = program_of(text);
  if (!h->client) return host_fail(fault, RF_WIRE_BAD_REQUEST, "compile: the devices are not open");
  pjrt_client_compile compile = {
      .client = h->client, .program = &program, .options = options.data, .options_bytes = options.bytes};
  if (!HOST_CALL(h, PJRT_CLIENT_COMPILE, &compile, "compile", fault)) return false;
  return add_program(h, compile.loaded, out, fault);
}

bool host_load_program(host *h, host_text stored, rf_wire_program *out, host_fault *fault) {
  *out = (rf_wire_program){0};
  if (!h->client) return host_fail(fault, RF_WIRE_BAD_REQUEST, "load: the devices are not open");
  pjrt_deserialize load = {.client = h->client, .data = stored.data, .bytes = stored.bytes};
  if (!HOST_CALL(h, PJRT_DESERIALIZE, &load, "load a stored program", fault)) return false;
  return add_program(h, load.loaded, out, fault);
}

static bool find_program(const host *h, int64_t id, host_program **program, host_fault *fault) {
  *program = host_table_find(&h->programs, id);
  return *program ? true : host_fail(fault, RF_WIRE_BAD_REQUEST, "no program has this number");
}

bool host_store_program(const host *h, int64_t id, char **result, size_t *bytes, host_fault *fault) {
  host_program *program = NULL;
  if (!find_program(h, id, &program, fault)) return false;
  pjrt_serialize store = {.executable = program->executable};
  if (!HOST_CALL(h, PJRT_EXECUTABLE_SERIALIZE, &store, "store the program", fault)) return false;
  *result = malloc(store.bytes + 1);
  *bytes = store.bytes;
  if (*result) memcpy(*result, store.data, store.bytes);
  if (store.release) store.release(store.owner);
  return *result ? true : host_fail(fault, RF_WIRE_BAD_REQUEST, "store the program: out of memory");
}

bool host_optimized(const host *h, int64_t id, char **result, size_t *bytes, host_fault *fault) {
  host_program *program = NULL;
  if (!find_program(h, id, &program, fault)) return false;
  pjrt_program text = {.struct_size = sizeof text};
  pjrt_optimized get = {.executable = program->executable, .program = &text};
  if (!HOST_CALL(h, PJRT_EXECUTABLE_OPTIMIZED, &get, "get the optimized program", fault)) return false;
  text.code = malloc(text.code_bytes + 1);
  if (!text.code) return host_fail(fault, RF_WIRE_BAD_REQUEST, "get the optimized program: out of memory");
  *result = text.code;
  if (!HOST_CALL(h, PJRT_EXECUTABLE_OPTIMIZED, &get, "get the optimized program", fault)) return false;
  *bytes = text.code_bytes;
  return true;
}
