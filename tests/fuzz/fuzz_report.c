/* Reads any JSON as the files of a run's folder ({"run", "plan", "report", "metrics",
 * "samples"}). Either an
 * error names file and field, or the run is reported, summarised and compared. */
#include "fuzz_file.h"

#include <string.h>

#include "base/json.h"
#include "report/compare.h"
#include "report/model.h"
#include "report/page.h"
#include "report/summary.h"

static void put(const char *name, const json_t *part) {
  char *text = part ? json_dumps(part, JSON_ENCODE_ANY) : NULL;
  fuzz_file(name, (const uint8_t *)(text ? text : ""), text ? strlen(text) : 0);
  free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  rf_error error;
  json_t *parts = NULL, *model = rf_report_model();
  if (rf_json_parse((const char *)data, bytes, "parts", &parts, &error) == RAFTER_OK) {
    put("run.json", json_object_get(parts, "run")), put("plan.json", json_object_get(parts, "plan"));
    put("report.json", json_object_get(parts, "report")),
        put("metrics.jsonl", json_object_get(parts, "metrics")),
        put("samples.jsonl", json_object_get(parts, "samples"));
    if (rf_report_add(model, NULL, fuzz_folder, &error) == RAFTER_OK) {
      json_t *entry = json_array_get(json_object_get(model, "runs"), 0), *summary = rf_report_summary(entry),
             *both = rf_report_compare(entry, entry),
             *all = rf_report_comparisons(json_object_get(model, "runs"), 3);
      char *text = rf_report_summary_text(summary), *table = rf_report_compare_text(both, 20), *page = NULL;
      size_t size;
      /* A run compared with itself has no differences. */
      if (!summary || !text || !table || json_array_size(json_object_get(both, "ops"))) abort();
      json_object_set_new(entry, "summary", summary);
      if (rf_report_page_html(model, &page, &size, &error) != RAFTER_OK) abort();
      free(text), free(table), free(page);
      json_decref(both), json_decref(all);
    } else if (!*error.message) abort();
  }
  json_decref(parts), json_decref(model);
  return 0;
}
