/* roofline.c - `rafter roofline matmul|attention`: one op against one machine. */
#include "api/api.h"
#include "plan/roofline.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int64_t or_else(const rf_options *o, const char *name, int64_t otherwise) {
  return rf_options_is_set(o, name) ? rf_options_int(o, name) : otherwise;
}

static rf_status compute(const rf_options *o, const char *op, const rf_machine *machine, rf_roofline *r, json_t *shape, rf_error *error) {
  rf_dtype dtype, weight;
  RF_TRY(rf_dtype_parse(rf_options_text(o, "dtype"), &dtype, error));
  weight = dtype;
  if (rf_options_is_set(o, "weight-dtype")) RF_TRY(rf_dtype_parse(rf_options_text(o, "weight-dtype"), &weight, error));
  json_object_set_new(shape, "dtype", json_string(rf_dtype_name(dtype)));
  if (!strcmp(op, "matmul")) {
    int64_t m = rf_options_int(o, "m"), k = rf_options_int(o, "k"), n = rf_options_int(o, "n");
    json_object_update_new(
        shape, json_pack("{sI sI sI ss}", "m", (json_int_t)m, "k", (json_int_t)k, "n", (json_int_t)n, "weight_dtype", rf_dtype_name(weight)));
    return rf_roofline_matmul(machine, m, k, n, dtype, weight, r, error);
  }
  if (strcmp(op, "attention"))
    return RF_FAIL(error, RAFTER_INVALID, "one of matmul, attention", "unknown operation (expected matmul or attention, got %s)", op);
  int64_t batch = rf_options_int(o, "batch"), seq = rf_options_int(o, "seq"), heads = rf_options_int(o, "heads"), kv = or_else(o, "kv-heads", heads),
          dim = rf_options_int(o, "head-dim"), window = rf_options_int(o, "window");
  json_object_update_new(shape, json_pack("{sI sI sI sI sI sI}", "batch", (json_int_t)batch, "seq", (json_int_t)seq, "heads", (json_int_t)heads,
                                          "kv_heads", (json_int_t)kv, "head_dim", (json_int_t)dim, "window", (json_int_t)window));
  return rf_roofline_attention(machine, batch, seq, (int)heads, (int)kv, (int)dim, (int)window, dtype, r, error);
}

rf_status rf_command_roofline(const rafter_job *job, const rafter_sink *sink, rf_error *error) {
  static const char *const bound[] = {"compute", "memory", "latency"};
  const rf_options *o = job->options;
  const char *op = rf_options_argument(o, 0);
  rf_status status = RAFTER_OK;
  rf_roofline r;
  char a[32], b[32], c[32];
  json_t *shape = json_object();
  rf_machine *machine = calloc(1, sizeof *machine);
  if (!machine) {
    status = RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
    goto done;
  }
  RF_GO(op ? RAFTER_OK
           : RF_FAIL(error, RAFTER_INVALID, "for example `rafter roofline matmul --m 512 --k 2048 --n 2048`",
                     "which operation? (expected matmul or attention)"));
  RF_GO(rf_machine_find(rf_options_text(o, "on"), machine, error));
  RF_GO(compute(o, op, machine, &r, shape, error));
  rf_say(sink, "%s on %s: %s bound, %s at best\n", op, machine->name, bound[r.bound], rf_text_seconds(r.seconds, a));
  rf_say(sink, "  arithmetic   %12s %10s at %s/s\n", rf_text_flops(r.flops, a), rf_text_seconds(r.compute_seconds, b),
         rf_text_flops(r.flops / r.compute_seconds, c));
  rf_say(sink, "  memory       %12s %10s at %.1f GB/s\n", rf_text_bytes(r.bytes, a), rf_text_seconds(r.memory_seconds, b), machine->read_bps * 1e-9);
  rf_say(sink, "  intensity    %12.1f FLOP/byte; compute-bound from %.1f on\n", r.intensity, r.critical_intensity);
  if (isfinite(r.critical_m)) rf_say(sink, "  rows         compute-bound from m = %.0f on\n", ceil(r.critical_m));
  json_t *json = json_pack("{ss ss ss sf sf sf sf sf sf sf ss so}", "command", "roofline", "op", op, "machine", machine->name, "flops", r.flops,
                           "flops_full", r.flops_full, "bytes", r.bytes, "intensity", r.intensity, "seconds", r.seconds, "compute_seconds",
                           r.compute_seconds, "memory_seconds", r.memory_seconds, "bound", bound[r.bound], "critical",
                           isfinite(r.critical_m) ? json_pack("{sf sf}", "intensity", r.critical_intensity, "m", r.critical_m)
                                                  : json_pack("{sf}", "intensity", r.critical_intensity));
  json_object_update(json, shape);
  rf_put_json(sink, json);
done:
  json_decref(shape);
  free(machine);
  return status;
}
