/* pipeline.c - memory and time of each stage of a plan with pipeline parallelism. */
#include "graph/mesh/pipeline.h"

#include "report/parts.h"

#include <stdio.h>
#include <string.h>

json_t *rf_report_pipeline_json(const rf_plan *plan) {
  const rf_mesh *mesh = &plan->graph->mesh;
  int micros = plan->graph->accumulate;
  json_t *stages = json_array();
  for (int i = 0; i < plan->stages; i++) {
    const rf_plan_stage *s = &plan->stage[i];
    json_array_append_new(stages,
                          json_pack("{si sI sI si sI sI sI sf sf sf sf sf sf sf}", "stage", i, "first_layer",
                                    (json_int_t)s->first_layer, "layers", (json_int_t)s->layers, "in_flight",
                                    s->in_flight, "peak_bytes", (json_int_t)s->peak_bytes, "persistent_bytes",
                                    (json_int_t)s->persistent_bytes, "held_bytes", (json_int_t)s->held_bytes,
                                    "forward_seconds", s->forward_seconds, "backward_seconds",
                                    s->backward_seconds, "busy_seconds", s->busy_seconds, "end_seconds",
                                    s->end_seconds, "idle_seconds", s->idle_seconds, "fill_seconds",
                                    s->fill_seconds, "drain_seconds", s->drain_seconds));
  }
  return json_pack("{ss si si si si sf so}", "schedule", rf_pipeline_schedule_name(mesh->schedule), "stages",
                   plan->stages, "chunks", rf_pipeline_chunks(mesh), "microbatches", micros, "shown_stage",
                   mesh->stage, "even_bubble_fraction", rf_pipeline_bubble(mesh, micros), "stage", stages);
}

/* True if the numbers of both stages are equal, so that one line of text describes both stages. */
static bool alike(const rf_plan_stage *a, const rf_plan_stage *b) {
  return a->layers == b->layers && a->in_flight == b->in_flight && a->peak_bytes == b->peak_bytes;
}

void rf_report_print_pipeline(FILE *out, const rf_plan *plan) {
  const rf_mesh *mesh = &plan->graph->mesh;
  /* The first FIRST stages are printed, and then "...". The planned stage and the last stage are
   * always printed. */
  enum { FIRST = 16 };
  char a[32], b[32], c[32], d[32], which[32], chunks[32] = "";
  int micros = plan->graph->accumulate;
  if (rf_pipeline_chunks(mesh) > 1)
    snprintf(chunks, sizeof chunks, " of %d chunks", rf_pipeline_chunks(mesh));
  fprintf(out,
          "\npipeline  %s, %d microbatches, %d stages%s; equal stages would be idle %.1f %% of the time\n",
          rf_pipeline_schedule_name(mesh->schedule), micros, plan->stages, chunks,
          100 * rf_pipeline_bubble(mesh, micros));
  for (int i = 0, j; i < plan->stages; i = j) {
    const rf_plan_stage *s = &plan->stage[i];
    for (j = i + 1; j < plan->stages && alike(s, &plan->stage[j]);) j++;
    bool shown = mesh->stage >= i && mesh->stage < j;
    if (!shown && i >= FIRST && j < plan->stages) {
      fprintf(out, "%s", i == FIRST ? "  ...\n" : "");
      continue;
    }
    if (j > i + 1) snprintf(which, sizeof which, "stages %d-%d", i, j - 1);
    else snprintf(which, sizeof which, "stage %d", i);
    fprintf(out,
            "  %-14s %3lld layers, %3d in flight  %10s  forward %s, backward %s per microbatch, idle %s%s\n",
            which, (long long)s->layers, s->in_flight, rf_text_bytes((double)s->peak_bytes, a),
            rf_text_seconds(s->forward_seconds, b), rf_text_seconds(s->backward_seconds, c),
            rf_text_seconds(s->idle_seconds, d), shown ? "  (shown)" : "");
  }
}
