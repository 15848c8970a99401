/* profile.c - see host.h: the plugin's profiler, which is an extension of its table of
 * functions. */
#include <stdlib.h>
#include <string.h>

#include "pjrt_host/host.h"

/* A ProfileOptions: device_tracer_level 1, version 1. The levels of the host stay 0, because only
 * kernels of devices are read. */
static const char OPTIONS[] = {0x18, 1, 0x28, 1};

static const pjrt_profiler *profiler_of(const host *h) {
  const pjrt_extension *at = h->api->extension;
  for (int i = 0; at && i < PJRT_EXTENSIONS; at = at->next, i++) {
    if (at->type != PJRT_EXTENSION_PROFILER) continue;
    const pjrt_profiler *p = at->struct_size >= sizeof(pjrt_profiler_extension)
                                 ? ((const pjrt_profiler_extension *)at)->profiler
                                 : NULL;
    bool whole = p && p->struct_size >= sizeof *p && p->error_destroy && p->error_message && p->create &&
                 p->destroy && p->start && p->stop && p->collect;
    return whole ? p : NULL;
  }
  return NULL;
}

bool host_profiles(const host *h) { return profiler_of(h) != NULL; }

/* Calls a function of the profiler. `args` is a struct of pjrt_abi.h of `bytes` bytes. */
static bool call(const pjrt_profiler *p, void *(*function)(void *args), void *args, size_t bytes,
                 const char *what, host_fault *fault) {
  memcpy(args, &bytes, sizeof bytes); /* the first field of the struct is its size */
  void *failed = function(args);
  if (!failed) return true;
  pjrt_profiler_error error = {.struct_size = sizeof error, .error = failed};
  p->error_message(&error);
  host_fill(fault, RF_WIRE_PROFILER, "%s: %.*s", what, (int)(error.bytes > 4000 ? 4000 : error.bytes),
            error.text ? error.text : "");
  p->error_destroy(&error);
  return false;
}

static bool lacks_profiler(host_fault *fault) {
  return host_fail(fault, PJRT_UNIMPLEMENTED, "the plugin has no profiler");
}

static void destroy(host *h, const pjrt_profiler *p) {
  host_fault unused;
  pjrt_profiler_collect args = {.profile = h->profile};
  call(p, p->destroy, &args, sizeof args, "destroy a profile", &unused);
  h->profile = NULL;
}

bool host_profile_begin(host *h, host_fault *fault) {
  const pjrt_profiler *p = profiler_of(h);
  if (!p) return lacks_profiler(fault);
  if (h->profile) return host_fail(fault, RF_WIRE_BAD_REQUEST, "a profile is recorded already");
  pjrt_profiler_create create = {.options = OPTIONS, .options_bytes = sizeof OPTIONS};
  if (!call(p, p->create, &create, sizeof create, "make a profile", fault)) return false;
  h->profile = create.profile;
  if (!h->profile) return host_fail(fault, RF_WIRE_PROFILER, "the plugin made no profile");
  pjrt_profiler_collect start = {.profile = h->profile};
  bool started = call(p, p->start, &start, sizeof start, "start a profile", fault);
  if (!started) destroy(h, p);
  return started;
}

static bool collect(host *h, const pjrt_profiler *p, char **result, size_t *bytes, host_fault *fault) {
  enum { LIMIT = 1 << 30 };
  pjrt_profiler_collect args = {.profile = h->profile};
  if (!call(p, p->collect, &args, sizeof args, "read a profile", fault)) return false;
  if (args.bytes > LIMIT)
    return host_fail(fault, RF_WIRE_PROFILER, "a profile has %zu bytes (expected at most %d)", args.bytes,
                     LIMIT);
  *bytes = args.bytes;
  *result = calloc(*bytes + 1, 1);
  if (!*result) return host_fail(fault, RF_WIRE_PROFILER, "out of memory while reading a profile");
  if (args.data) {
    memcpy(*result, args.data, *bytes);
    return true;
  }
  args.data = (uint8_t *)*result;
  if (call(p, p->collect, &args, sizeof args, "read a profile", fault)) {
    if (args.bytes < *bytes) *bytes = args.bytes;
    return true;
  }
  free(*result);
  *result = NULL;
  return false;
}

bool host_profile_end(host *h, char **result, size_t *bytes, host_fault *fault) {
  const pjrt_profiler *p = profiler_of(h);
  if (!p) return lacks_profiler(fault);
  if (!h->profile) return host_fail(fault, RF_WIRE_BAD_REQUEST, "no profile is recorded");
  pjrt_profiler_collect stop = {.profile = h->profile};
  bool done =
      call(p, p->stop, &stop, sizeof stop, "stop a profile", fault) && collect(h, p, result, bytes, fault);
  destroy(h, p);
  return done;
}
