/* roofline.c - `rafter roofline OP`: prints the roofline time of one operation on one machine, as a
 * table or as JSON. */
#include "api/api.h"
#include "study/roofline.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *number_text(double value, char text[32]) {
  double size = fabs(value);
  if (size >= 1e15 || (size < 1e-3 && size > 0)) return rf_text_figures(value, 4, text);
  else if (value == floor(value)) return rf_text_whole((int64_t)value, text);
  else if (size >= 1000) return rf_text_count(value, text);
  else snprintf(text, 32, size < 10 ? "%.3f" : "%.2f", value);
  return text;
}

static const char *percent_text(double percent, char text[32]) {
  char number[32];
  snprintf(text, 32, "%.29s %%",
           fabs(percent) < 1000 ? rf_text_figures(percent, 4, number) : number_text(percent, number));
  return text;
}

/* A reader would take "256 B" for bytes. */
static const char *count_text(double count, char text[32]) {
  char *unit = strchr(rf_text_count(count, text), 'B');
  if (unit) strcpy(unit, "billion");
  return text;
}

/* Rounds counts to whole numbers. The tolerance covers rounding errors of the arithmetic. */
static double whole(double value, rf_unit unit) {
  const double tolerance = 1e-9 * fabs(value);
  return unit == RF_UNIT_MINIMUM   ? ceil(value - tolerance)
         : unit == RF_UNIT_MAXIMUM ? floor(value + tolerance)
         : unit == RF_UNIT_NEAREST ? fmax(1, round(value))
                                   : value;
}

static const char *fact_text(const rf_fact *fact, char text[32]) {
  if (fact->unit == RF_UNIT_TEXT) return fact->text;
  if (!isfinite(fact->value)) return "never";
  switch (fact->unit) {
  case RF_UNIT_BYTES: return rf_text_bytes(fact->value, text);
  case RF_UNIT_SECONDS: return rf_text_seconds(fact->value, text);
  case RF_UNIT_FLOPS: return rf_text_flops(fact->value, text);
  case RF_UNIT_COUNT: return count_text(fact->value, text);
  case RF_UNIT_BPS: return rf_text_rate(fact->value, text);
  case RF_UNIT_PERCENT: return percent_text(fact->value * 100, text);
  case RF_UNIT_USD: return rf_text_usd(fact->value, text);
  case RF_UNIT_TRUTH: return fact->value != 0 ? "yes" : "no";
  default: return number_text(whole(fact->value, fact->unit), text);
  }
}

static json_t *fact_json(const rf_fact *fact) {
  if (fact->unit == RF_UNIT_TEXT) return fact->text[0] ? json_string(fact->text) : json_null();
  if (!isfinite(fact->value)) return json_null();
  return fact->unit == RF_UNIT_TRUTH ? json_boolean(fact->value != 0) : json_real(fact->value);
}

static void list_ops(const rafter_sink *sink) {
  const char *help, *name;
  json_t *ops = json_array();
  for (int i = 0; (name = rf_roofline_op(i, &help)); i++) {
    rf_say(sink, "  %-16s %s\n", name, help);
    json_array_append_new(ops, json_pack("{ss ss}", "op", name, "help", help));
  }
  rf_put_json(sink, json_pack("{ss so}", "command", "roofline", "ops", ops));
}

static rf_status rf_command_roofline(const rafter_job *job, const rafter_sink *sink, rf_error *error) {
  if (!rf_options_argument(job->options, 0)) return list_ops(sink), RAFTER_OK;
  rf_note_machine(job->options, sink);
  rf_answer *answer = rf_must(calloc(1, sizeof *answer));
  rf_status status = rf_roofline_answer(job->options, answer, error);
  char text[32];
  if (status != RAFTER_OK) goto done;
  rf_say(sink, "%s on %s\n", answer->op, answer->machine);
  json_t *json = json_pack("{ss ss ss}", "command", "roofline", "op", answer->op, "machine", answer->machine),
         *notes = json_array();
  for (int i = 0; i < answer->count; i++) {
    const rf_fact *fact = &answer->fact[i];
    bool silent = !fact->what || (fact->unit == RF_UNIT_TEXT ? !fact->text[0] : isnan(fact->value));
    if (!silent) rf_say(sink, "  %-62s %16s\n", fact->what, fact_text(fact, text));
    json_object_set_new(json, fact->key, fact_json(fact));
  }
  for (int i = 0; i < answer->notes; i++) {
    rf_say(sink, "  (%s)\n", answer->note[i]);
    json_array_append_new(notes, json_string(answer->note[i]));
  }
  json_object_set_new(json, "notes", notes);
  rf_put_json(sink, json);
done:
  free(answer);
  return status;
}

const rf_command RF_COMMAND_ROOFLINE = {
    RF_COMMAND_HEAD("roofline", "OP", 0, 8, "Plan",
                    "Compute FLOPs, bytes, time and bound of one operation on a machine; without OP, list "
                    "all operations."),
    .options = {{RF_MODEL_OPTIONS, "on"},
                {RF_LAYOUT_OPTIONS, "price"},
                RF_TABLE(RF_ROOFLINE_OPTIONS),
                RF_TABLE(RF_EVERY_OPTIONS)},
    .common = "on dtype weight-dtype model batch seq tokens m k n context heads kv-heads head-dim bytes axes "
              "strategy chips link json",
    .examples = {"roofline matmul --m 512 --k 4096 --n 14336 --on h100-sxm # compute- or memory-bound?",
                 "roofline attention --batch 8 --seq 1 --context 8k --on h100-sxm --dtype bf16",
                 "roofline allreduce --bytes 1GiB --on tpu-v5e:4x4",
                 "roofline cost --parameters 8B --tokens 15T --mfu 0.4 --on h100-sxm:1024"},
    .run = rf_command_roofline};
