/* xla_step.h - runs a training step of a world as a module that a PJRT plugin compiles and runs,
 * with one device for each chip. */
#ifndef RF_TESTS_XLA_STEP_H
#define RF_TESTS_XLA_STEP_H

#include "backend/xla/client.h"
#include "backend/xla/emit.h"
#include "support/world.h"

/* Begins with the values that the world has, and with the inputs that world_fill gives for each
 * microbatch. `flags`: options for the compiler, or NULL. Fails the test on an error. */
void xla_step(rf_xla_client *client, world *w, const rf_graph *whole, const rf_emit_options *options,
              const char *flags);
/* A new world with the first values of a step, and these inputs of the run. */
world *step_world(const rf_graph *graph, const rf_graph *whole, const rf_run_inputs *run);

/* Tensor of the exact step for a tensor of the step under test: a master is the exact weight. */
int exact_tensor(const rf_graph *exact, const rf_tensor *t);
/* |got - want| / |want| over all elements on all chips; a value that is not finite gives infinity.
 * `exact` is a world of one chip. */
double step_error(const world *got, int tensor, const world *exact);
/* Compares each tensor with the exact step. A weight is compared with the weight that AdamW
 * computes in f64 from the step's own moments, because the first step divides each gradient g by
 * |g| + eps. If |g| is about eps, a rounding of g changes the weight visibly. The error of the
 * moments shows if the gradient of the whole tensor is exact enough.
 *
 * Both steps round as often, and their sums have other orders. So the error of a tensor may be four
 * times the largest error of the reference in a tensor of its class, or what roundings of about 40
 * ops in sequence explain: in f32 also of sums of about 160 terms. NULL: close enough. */
const char *step_difference(const world *got, const world *reference, const world *exact, rf_dtype dtype,
                            char text[400]);

#endif
