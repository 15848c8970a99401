/* gelu.c - GELU in two forms (tanh approximation, exact), and their backward ops. */
#include "graph/mesh/shard.h"

const rf_op_def RF_OP_GELU = {
    .name = "gelu",
    .formula = "g = round(gelu(u)), gelu(u) = 0.5*u*(1 + tanh(c*(u + 0.044715*u^3))), c = sqrt(2/pi); in f32",
    .inputs = {"u (n,F)"},
    .outputs = {"g (n,F)"},
    RF_POINTWISE,
    RF_INPLACE({0, 0}),
    .gradient = {&RF_OP_GELU_BWD, {RF_X(0), RF_DY(0)}},
    .tolerance = {2e-6f, 1e-2f},
    .timed_like = {&RF_OP_SWIGLU},
    /* Arrays that XLA stores: x, the x^2 factor, tanh, the derivative of tanh, and the factor of x
     * in gelu(x). */
    .kept = RF_KEEPS(.fuses = true, .input = true, .across_loop = {RF_KEPT_SAME(5, INPUT)}),
};

const rf_op_def RF_OP_GELU_BWD = {
    .name = "gelu_bwd",
    .formula = "du = round(dg*gelu'(u)), gelu'(u) = 0.5*(1 + t) + 0.5*u*(1 - t^2)*c*(1 + 3*0.044715*u^2), t "
               "= tanh(c*(u + 0.044715*u^3)), c = sqrt(2/pi); in f32",
    .inputs = {"u (n,F)", "dg (n,F)"},
    .outputs = {"du (n,F)"},
    RF_POINTWISE,
    RF_INPLACE({0, 1}, {0, 0}),
    .tolerance = {2e-6f, 1e-2f},
    .timed_like = {&RF_OP_SWIGLU_BWD, &RF_OP_GELU},
};

const rf_op_def RF_OP_GELU_ERF = {
    .name = "gelu_erf",
    .formula = "g = round(0.5*u*(1 + erf(u/sqrt(2)))); in f32",
    .inputs = {"u (n,F)"},
    .outputs = {"g (n,F)"},
    RF_POINTWISE,
    RF_INPLACE({0, 0}),
    .gradient = {&RF_OP_GELU_ERF_BWD, {RF_X(0), RF_DY(0)}},
    .tolerance = {2e-6f, 1e-2f},
    .timed_like = {&RF_OP_GELU, &RF_OP_SWIGLU},
    .kept = RF_KEEPS(.fuses = true, .input = true, .across_loop = {RF_KEPT_SAME(3, INPUT)}),
};

const rf_op_def RF_OP_GELU_ERF_BWD = {
    .name = "gelu_erf_bwd",
    .formula = "du = round(dg*(0.5*(1 + erf(u/sqrt(2))) + u*exp(-u^2/2)/sqrt(2 pi))); in f32",
    .inputs = {"u (n,F)", "dg (n,F)"},
    .outputs = {"du (n,F)"},
    RF_POINTWISE,
    RF_INPLACE({0, 1}, {0, 0}),
    .tolerance = {2e-6f, 1e-2f},
    .timed_like = {&RF_OP_GELU_BWD, &RF_OP_GELU},
};
