/* runnable.c - finds plans that can be made but not run. The room run refuses such a plan, and a
 * report says this in its first lines. */
#include "plan/plan.h"

#include <stddef.h>

static rf_status check_program(const rf_plan *plan, rf_error *error) {
  if (plan->options.program.program == RF_PROGRAM_RAFTER) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_INVALID, "leave out --program",
                 "programs of JAX can be planned but not run (--program)");
}

/* Narrow dtypes need a kernel. An int8 cache has kernels, unless it holds latent rows of
 * attention. */
static rf_status check_dtypes(const rf_graph *graph, rf_error *error) {
  bool latent = graph->model.kv_rank > 0, unknown = graph->matmul != RF_DTYPES;
  const char *what = unknown ? "products in 8 bits" : NULL;
  for (int t = 0; t < graph->tensor_count && !what; t++) {
    const rf_tensor *tensor = &graph->tensor[t];
    bool scaled = tensor->dtype == RF_I8 && tensor->class == RF_CLASS_KV && !latent;
    if (rf_dtype_is_narrow(tensor->dtype) && !scaled) what = tensor->name;
  }
  if (!what) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_INVALID, "choose another dtype; `rafter plan` supports it",
                 "no kernel supports this dtype (%s)", what);
}

rf_status rf_plan_require_runnable(const rf_plan *plan, rf_error *error) {
  const rf_graph *graph = plan->graph;
  const rf_build_options *build = &plan->options.build;
  RF_TRY(rf_model_require_runnable(&graph->model, error));
  if (build->job == RF_JOB_TRAIN && !build->loss_only)
    RF_TRY(rf_model_require_trainable(&graph->model, error));
  RF_TRY(check_program(plan, error));
  for (int t = 0; t < graph->tensor_count; t++)
    if (graph->tensor[t].host)
      return RF_FAIL(error, RAFTER_INVALID, "run without --offload",
                     "tensors in host memory can be planned but not run (%s)", graph->tensor[t].name);
  return check_dtypes(graph, error);
}
