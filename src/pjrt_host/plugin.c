/* plugin.c - see host.h: loads a plugin, opens its devices, and reports facts about the plugin. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pjrt_host/host.h"

bool host_load(host *h, const char *path, host_fault *fault) {
  host_load_cuda(path);
  /* The plugin is never unloaded, because plugins register functions in libraries that stay
   * loaded. */
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) return host_fail(fault, RF_WIRE_NO_PLUGIN, "%s", dlerror());
  const void *(*get)(void) = (const void *(*)(void))dlsym(library, "GetPjrtApi");
  if (!get) return host_fail(fault, RF_WIRE_NO_PLUGIN, "it has no function GetPjrtApi");
  h->api = get();
  if (!h->api) return host_fail(fault, RF_WIRE_NO_PLUGIN, "its GetPjrtApi returns nothing");
  int major = h->api->version.major, minor = h->api->version.minor;
  if (major != PJRT_MAJOR || minor < PJRT_OLDEST_MINOR || h->api->struct_size < sizeof *h->api)
    return host_fail(fault, RF_WIRE_BAD_VERSION, "its PJRT API is %d.%d", major, minor);
  pjrt_on_object initialize = {0};
  return HOST_CALL(h, PJRT_PLUGIN_INITIALIZE, &initialize, "initialize the plugin", fault);
}

static bool description_of(const host *h, void *device, void **description, host_fault *fault) {
  pjrt_object_of get = {.object = device};
  if (!HOST_CALL(h, PJRT_DEVICE_DESCRIPTION, &get, "describe a device", fault)) return false;
  *description = get.result;
  return true;
}

bool host_device_id(const host *h, void *device, int32_t *id, host_fault *fault) {
  pjrt_number_of get = {0};
  if (!description_of(h, device, &get.object, fault)) return false;
  if (!HOST_CALL(h, PJRT_DESCRIPTION_ID, &get, "get a device's id", fault)) return false;
  *id = get.number;
  return true;
}

/* libtpu reads its hosts from the environment, and has no options for hosts. */
static bool reads_environment(const char *path) {
  const char *slash = strrchr(path, '/');
  return strstr(slash ? slash : path, "libtpu");
}

pjrt_named host_option(const char *name, int type, size_t count) {
  return (pjrt_named){.struct_size = sizeof(pjrt_named),
                      .name = name,
                      .name_bytes = strlen(name),
                      .type = type,
                      .count = count};
}

static pjrt_named number_option(const char *name, int number) {
  pjrt_named option = host_option(name, PJRT_INT64, 1);
  option.value.number = number;
  return option;
}

static bool process_of(const host *h, void *device, int *process, host_fault *fault) {
  pjrt_number_of get = {0};
  if (!description_of(h, device, &get.object, fault)) return false;
  if (!HOST_CALL(h, PJRT_DESCRIPTION_PROCESS_INDEX, &get, "get a device's host", fault)) return false;
  *process = get.number;
  return true;
}

/* Lists the devices of all hosts, host by host. Every host must have the same number of devices,
 * and the plugin must number the hosts as we do. */
static bool list_all_devices(host *h, host_fault *fault) {
  pjrt_list_of list = {.object = h->client};
  pjrt_number_of mine = {.object = h->client};
  int hosts = h->peers.hosts;
  if (!HOST_CALL(h, PJRT_CLIENT_DEVICES, &list, "list the devices of all hosts", fault)) return false;
  if (list.count != (size_t)h->devices * (size_t)hosts || list.count > RF_WIRE_DEVICES)
    return host_fail(
        fault, RF_WIRE_HOSTS,
        "the plugin has not joined the hosts: it has %zu devices in all (expected %d hosts with %d "
        "each, as this host)",
        list.count, hosts, h->devices);
  if (!HOST_CALL(h, PJRT_CLIENT_PROCESS_INDEX, &mine, "get this host's number", fault)) return false;
  if (mine.number != h->peers.host)
    return host_fail(fault, RF_WIRE_HOSTS, "the plugin numbers this host %d (expected %d of %d)", mine.number,
                     h->peers.host, hosts);
  h->all = calloc(list.count + 1, sizeof *h->all);
  int *count = calloc((size_t)hosts, sizeof *count);
  if (!h->all || !count) abort();
  bool good = true;
  for (size_t i = 0; good && i < list.count; i++) {
    int process = -1;
    good = process_of(h, list.list[i], &process, fault);
    if (good && (process < 0 || process >= hosts || count[process] == h->devices))
      good = host_fail(fault, RF_WIRE_HOSTS,
                       "host %d has other devices (expected %d hosts with %d devices each)", process, hosts,
                       h->devices);
    if (good) h->all[process * h->devices + count[process]++] = list.list[i];
  }
  free(count);
  h->device = h->all + h->peers.host * h->devices;
  return good;
}

bool host_open(host *h, const char *path, const pjrt_named *option, size_t options, host_fault *fault) {
  pjrt_named all[RF_WIRE_OPTIONS + 2 + HOST_CUDA_OPTIONS];
  memcpy(all, option, options * sizeof *option);
  options += host_cuda_options(path, all + options);
  if (h->peers.client && !reads_environment(path)) {
    all[options++] = number_option("node_id", h->peers.host);
    all[options++] = number_option("num_nodes", h->peers.hosts);
  }
  pjrt_client_create create = {.option = all, .options = options};
  host_callbacks(h, &create);
  if (!HOST_CALL(h, PJRT_CLIENT_CREATE, &create, "open the devices", fault)) return false;
  h->client = create.client;
  pjrt_list_of list = {.object = h->client};
  if (!HOST_CALL(h, PJRT_CLIENT_ADDRESSABLE_DEVICES, &list, "list the devices", fault)) return false;
  if (list.count > RF_WIRE_DEVICES)
    return host_fail(fault, RF_WIRE_BAD_REQUEST, "the plugin has %zu devices (expected at most %d)",
                     list.count, RF_WIRE_DEVICES);
  h->device = list.list;
  h->devices = (int)list.count;
  return !h->peers.client || list_all_devices(h, fault);
}

static void copy_text(char *to, size_t size, const host *h, int slot, void *object) {
  host_fault unused;
  pjrt_text_of get = {.object = object};
  if (object && HOST_CALL(h, slot, &get, "get a text", &unused) && get.text)
    snprintf(to, size, "%.*s", (int)(get.bytes < size ? get.bytes : size), get.text);
}

static void get_version(const pjrt_named *value, const char *name, int32_t version[3]) {
  if (value->type != PJRT_INT64_LIST || value->count != 3 || !host_is_named(value, name)) return;
  for (int i = 0; i < 3; i++) version[i] = (int32_t)value->value.list[i];
}

static void get_attributes(const host *h, rf_wire_facts *facts) {
  host_fault unused;
  pjrt_attributes get = {0};
  if (!HOST_CALL(h, PJRT_PLUGIN_ATTRIBUTES, &get, "get attributes", &unused)) return;
  for (size_t i = 0; i < get.count; i++) {
    const pjrt_named *value = (const pjrt_named *)get.value + i;
    get_version(value, "stablehlo_current_version", facts->stablehlo);
    get_version(value, "stablehlo_minimum_version", facts->stablehlo_oldest);
  }
}

void host_facts(const host *h, rf_wire_facts *facts) {
  host_fault unused;
  *facts = (rf_wire_facts){.api_major = h->api->version.major, .api_minor = h->api->version.minor};
  facts->devices = h->devices;
  facts->has_cost = host_has(h, PJRT_EXECUTABLE_COST);
  facts->profiles = host_profiles(h);
  facts->stores = host_has(h, PJRT_EXECUTABLE_SERIALIZE) && host_has(h, PJRT_DESERIALIZE);
  get_attributes(h, facts);
  copy_text(facts->platform, sizeof facts->platform, h, PJRT_CLIENT_PLATFORM_NAME, h->client);
  copy_text(facts->version, sizeof facts->version, h, PJRT_CLIENT_PLATFORM_VERSION, h->client);
  if (h->devices) {
    void *description = NULL;
    if (description_of(h, h->device[0], &description, &unused))
      copy_text(facts->kind, sizeof facts->kind, h, PJRT_DESCRIPTION_KIND, description);
    pjrt_memory_stats stats = {.device = h->device[0]};
    facts->has_memory_stats = HOST_CALL(h, PJRT_DEVICE_MEMORY_STATS, &stats, "memory of a device", &unused);
    if (facts->has_memory_stats && stats.has_limit) facts->memory_bytes = stats.limit;
  }
  /* A plugin that knows topologies refuses this name. A plugin without topologies reports that it
   * lacks the function. */
  pjrt_topology_create topology = {.name = "?", .name_bytes = 1};
  host_fault fault = {0};
  facts->has_topologies = HOST_CALL(h, PJRT_TOPOLOGY_CREATE, &topology, "describe a topology", &fault) ||
                          fault.code != PJRT_UNIMPLEMENTED;
  if (!fault.code) host_destroy(h, PJRT_TOPOLOGY_DESTROY, topology.topology);
}

void host_close(host *h) {
  host_land_all(h);
  for (uint32_t i = 0; i < h->buffers.count; i++)
    host_destroy(h, PJRT_BUFFER_DESTROY, h->buffers.slot[i].object);
  for (uint32_t i = 0; i < h->programs.count; i++)
    if (h->programs.slot[i].object) host_free_program(h, h->programs.slot[i].object);
  host_destroy(h, PJRT_CLIENT_DESTROY, h->client);
  free(h->all);
}
