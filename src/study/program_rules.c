/* program_rules.c - the table of what XLA keeps of each op. Sources: the residuals that cross a
 * scan are those of jax 0.10.2's own jaxpr (of a gradient of a scan over the op), checked in the
 * scheduled HLO of libtpu 0.0.51; what one program keeps and works in was read from that HLO. */
#include "study/program_rules.h"

#include <string.h>

#define SAME(count, extent) \
  { count, 0, RF_EXTENT_##extent }
#define PRODUCT(count, extent) \
  { count, RF_PRODUCT, RF_EXTENT_##extent }
#define F32(count, extent) \
  { count, 32, RF_EXTENT_##extent }
#define PRED(count, extent) \
  { count, 8, RF_EXTENT_##extent }

static const rf_kept_rule RULES[] = {
    /* x - mean, (x - mean) again times the gain's side, x itself in f32, and four statistics. */
    {"layernorm", .fuses = true, .input = true, .across_loop = {F32(3, INPUT), F32(4, ROW)},
     .kept = {F32(2, ROW)}, .again = {F32(2, ROW)}},
    {"rmsnorm", .fuses = true, .input = true, .across_loop = {F32(2, INPUT), F32(2, ROW)},
     .kept = {F32(1, ROW)}, .again = {F32(1, ROW)}},
    {"head_norm", .fuses = true, .input = true, .across_loop = {F32(2, INPUT)}},
    /* Cosines and sines belong to positions, not to activations; the turned heads are what
     * attention keeps. */
    {"rope", .fuses = true, .input = true},
    {"matmul", .input_across_loop = true, .input = true},
    {"matmul_experts", .input_across_loop = true, .input = true},
    /* What joins the product is added to it: its gradient goes through; x A is kept for B's. */
    {"lora", .across_loop = {PRODUCT(1, SECOND)}, .kept = {SAME(1, SECOND)}, .again = {SAME(1, SECOND)}},
    /* x, x^2's factor, tanh, its derivative and the cumulative factor: five arrays as wide as x;
     * the product is kept by what multiplies it. */
    {"gelu", .fuses = true, .input = true, .across_loop = {SAME(5, INPUT)}},
    {"gelu_erf", .fuses = true, .input = true, .across_loop = {SAME(3, INPUT)}},
    {"geglu", .fuses = true, .input = true, .across_loop = {SAME(7, HALF)}},
    {"swiglu", .fuses = true, .input = true, .across_loop = {SAME(5, HALF)}},
    /* The exponentials in f32 and the weights as products take them cross the loop; one program
     * keeps the exponentials. In the backward pass the weights and their gradient are there
     * beside them. */
    {"attention", .input_across_loop = true, .input = true,
     .across_loop = {F32(1, SCORES), PRODUCT(1, SCORES)}, .kept = {F32(1, SCORES)}, .again = {F32(1, SCORES)},
     .forward = {F32(1, SCORES), SAME(1, SCORES)}, .backward = {SAME(2, SCORES)}},
    {"attention_kv", .forward = {F32(1, SCORES)}},
    {"add", .fuses = false},
    /* A mask crosses a loop; elsewhere it is drawn again. */
    {"add_dropout", .across_loop = {PRED(1, OUTPUT)}},
    {"dropout", .fuses = true, .across_loop = {PRED(1, OUTPUT)}},
    {"embed", .fuses = false},
    /* Logits in the dtype of the activations, then in f32; their gradient. */
    {"head_loss", .input = true, .kept = {F32(1, LOGITS)}, .forward = {SAME(1, LOGITS)},
     .backward = {SAME(1, LOGITS)}},
};

const rf_kept_rule *rf_kept_rule_of(const char *op) {
  static const rf_kept_rule other = {.input_across_loop = true, .input = true};
  for (size_t i = 0; i < sizeof RULES / sizeof *RULES; i++)
    if (!strcmp(RULES[i].op, op)) return &RULES[i];
  return &other;
}
