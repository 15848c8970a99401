/* Reads any bytes as an optimized program and as a profile of XLA. Either they are refused, or
 * every kernel has a time and an instruction of the program, and times of ops are in order. */
#include <stdlib.h>
#include <string.h>

#include "backend/xla/profile.h"

static rf_op OPS[] = {{.name = "step/micro/up", .section = RF_SECTION_MICRO},
                      {.name = "step/end/adamw", .section = RF_SECTION_END}};
static const rf_graph GRAPH = {.op = OPS, .op_count = 2, .accumulate = 3};

/* Instructions f, g and h, of which f and h have ops. */
static const char PROGRAM[] = "\x1a\x35\x12\x17\x0a\x01"
                              "f\x3a\x0f\x12\x0d"
                              "step/micro/up\x98\x02\x01"
                              "\x12\x03\x0a\x01"
                              "g\x12\x15\x0a\x01"
                              "h\x3a\x10\x12\x0e"
                              "step/end/adamw";

static void read_times(const rf_xla_kernels *kernels, const rf_xla_instructions *in) {
  rf_xla_op_times times;
  rf_error error;
  if (rf_xla_op_times_of(kernels, in, &GRAPH, &times, &error) != RAFTER_OK) abort();
  for (int i = 0; i < times.count; i++) {
    const rf_xla_op_time *t = &times.at[i];
    if (t->op < RF_NONE || t->op >= GRAPH.op_count || t->call < 0 || t->call > 2) abort();
    if (t->end <= t->begin || (i && t->begin < times.at[i - 1].end)) abort();
  }
  free(times.at);
}

static void read_profile(const uint8_t *data, size_t bytes, const rf_xla_instructions *in) {
  rf_xla_kernels kernels;
  rf_error error;
  const rf_proto_bytes space = {(const char *)data, bytes};
  if (rf_xla_kernels_read(space, in, &kernels, &error) != RAFTER_OK) return;
  for (int i = 0; i < kernels.count; i++) {
    const rf_xla_kernel *k = &kernels.at[i];
    if (k->end <= k->begin || k->instruction < RF_NONE || k->instruction >= in->count) abort();
    if (i && k->begin < kernels.at[i - 1].begin) abort();
  }
  read_times(&kernels, in);
  free(kernels.at);
}

static bool read_program(const void *data, size_t bytes, rf_xla_instructions *in) {
  rf_error error;
  char *copy = malloc(bytes + 1);
  if (!copy) abort();
  if (bytes) memcpy(copy, data, bytes);
  if (rf_xla_instructions_read(copy, bytes, &GRAPH, in, &error) != RAFTER_OK) return false;
  for (int i = 0; i < in->count; i++)
    if (in->at[i].number < RF_NONE || in->at[i].number >= GRAPH.op_count) abort();
  return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  rf_xla_instructions in;
  if (!read_program(PROGRAM, sizeof PROGRAM - 1, &in)) abort();
  read_profile(data, bytes, &in);
  rf_xla_instructions_free(&in);
  if (!read_program(data, bytes, &in)) return 0;
  read_profile(data, bytes, &in);
  rf_xla_instructions_free(&in);
  return 0;
}
