/* fake_profiler.c - see fake_profiler.h. */
#define _GNU_SOURCE
#include "fake_profiler.h"

#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "support/proto_writer.h"

enum { EXECUTION_US = 4000, NAME = 200 };

static proto_out space; /* what the profile has so far */
static bool recording;

static bool asked(const char *word) {
  const char *all = getenv("FAKE_PLUGIN");
  return all && strstr(all, word);
}

static int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* ---- programs -------------------------------------------------------------------------------- */

char **fake_names(const char *text, size_t bytes) {
  static const char *const BEGIN = " = loc(\"";
  char *copy = strndup(text, bytes), **list = calloc(1, sizeof *list);
  size_t count = 0;
  for (char *at = copy; (at = strstr(at, BEGIN)); count++) {
    at += strlen(BEGIN);
    list = realloc(list, (count + 2) * sizeof *list);
    list[count] = strndup(at, strcspn(at, "\""));
    list[count + 1] = NULL;
  }
  free(copy);
  return list;
}

char *fake_program(char *const *name, size_t *bytes) {
  proto_out module = {0}, with_settings = {0}, computation = {0};
  char text[NAME];
  proto_text(&module, 1, "step");
  proto_text(&computation, 1, "main");
  for (int i = 0; name[i]; i++) {
    snprintf(text, sizeof text, "fusion.%d", i);
    proto_instruction(&computation, (uint64_t)i + 1, text, name[i], 0);
  }
  proto_number(&computation, 5, 1);
  proto_message(&module, 3, &computation);
  proto_message(&with_settings, 1, &module);
  *bytes = with_settings.bytes;
  return with_settings.data;
}

/* ---- profiles -------------------------------------------------------------------------------- */

static bool is_micro(const char *name) { return strstr(name, "/micro/"); }

/* Adds the events of instructions in microbatches, or of all others. */
static void add_events(proto_out *line, char *const *name, bool micro, uint64_t *at, uint64_t each) {
  char text[NAME];
  for (int i = 0; name[i]; i++) {
    if (is_micro(name[i]) != micro) continue;
    snprintf(text, sizeof text, asked("profile_strange") ? "strange.%d" : "fusion.%d", i);
    proto_event(line, 1, *at, each, 1, text, 0);
    *at += each;
  }
}

void fake_profiled(char *const *name) {
  proto_out plane = {0}, line = {0};
  const char *given = getenv("FAKE_PLUGIN"), *times = given ? strstr(given, "rounds=") : NULL;
  int rounds = times ? atoi(times + strlen("rounds=")) : 1;
  uint64_t kernels = 1, at = 0;
  if (!recording) return;
  for (int i = 0; name && name[i]; i++) kernels += is_micro(name[i]) ? (uint64_t)rounds : 1;
  uint64_t each = (uint64_t)EXECUTION_US * 1000000 / kernels;
  int64_t begin = now_ns();
  usleep(EXECUTION_US + 500);
  if (asked("profile_late")) begin += (int64_t)3600 * 1000000000;
  proto_number(&plane, 1, 1);
  proto_text(&plane, 2, "/device:GPU:0");
  proto_text(&line, 2, "Stream #13(Compute)");
  proto_number(&line, 3, (uint64_t)begin);
  proto_event(&line, 2, at, each, 0, NULL, 0);
  at += each;
  for (int r = 0; name && r < rounds; r++) add_events(&line, name, true, &at, each);
  if (name) add_events(&line, name, false, &at, each);
  proto_message(&plane, 3, &line);
  proto_metadata(&plane, 4, 1, "a_kernel", NULL);
  proto_metadata(&plane, 4, 2, "MemcpyH2D", NULL);
  proto_metadata(&plane, 5, 1, "hlo_op", NULL);
  proto_message(&space, 1, &plane);
}

typedef struct failure {
  const char *text;
} failure;

static void *fails(const char *word) {
  static failure made;
  if (!asked(word)) return NULL;
  made.text = "Another profile session is running.";
  return &made;
}

static void *error_destroy(void *p) {
  (void)p;
  return NULL;
}
static void *error_message(void *p) {
  pjrt_profiler_error *args = p;
  args->text = ((failure *)args->error)->text;
  args->bytes = strlen(args->text);
  return NULL;
}
static void *create(void *p) {
  pjrt_profiler_create *args = p;
  static int profile;
  args->profile = &profile;
  space.bytes = 0;
  static failure no_options = {"no options"};
  return args->options_bytes ? fails("profile_create") : &no_options;
}
static void *destroy(void *p) {
  (void)p;
  recording = false;
  return NULL;
}
static void *start(void *p) {
  (void)p;
  recording = true;
  return fails("profile_start");
}
static void *stop(void *p) {
  (void)p;
  recording = false;
  return fails("profile_stop");
}
static void *collect(void *p) {
  pjrt_profiler_collect *args = p;
  if (asked("profile_die")) {
    fprintf(stderr, "F0101 fake.cc:1] Check failed: a profile\n");
    abort();
  }
  proto_byte(&space, 0);
  space.bytes--;
  args->bytes = asked("profile_none") ? 0 : asked("profile_half") ? space.bytes / 2 : space.bytes;
  if (asked("profile_zero")) args->bytes++;
  if (asked("profile_huge") && space.bytes > 2) space.data[1] = 127;
  if (args->data) memcpy(args->data, space.data, args->bytes);
  else if (!asked("profile_twice")) args->data = (uint8_t *)space.data;
  return fails("profile_collect");
}

const pjrt_extension *fake_extensions(void) {
  static const pjrt_profiler profiler = {sizeof profiler, NULL,    error_destroy, error_message, NULL,
                                         create,          destroy, start,         stop,          collect};
  static const pjrt_profiler_extension profile = {{sizeof profile, PJRT_EXTENSION_PROFILER, NULL}, &profiler};
  static const pjrt_extension other = {sizeof other, 99, &profile.base};
  static const pjrt_profiler_extension none = {{sizeof none, PJRT_EXTENSION_PROFILER, NULL}, NULL};
  return asked("no_profiler") ? &none.base : &other;
}
