/* remat_policy.c - the tensors that a policy drops: parts of a block, or all tensors except named
 * ones. */
#include "graph/remat.h"

#include "base/text.h"
#include "graph/passes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- names ----------------------------------------------------------------------------------- */

/* The names are short forms of MaxText's checkpoint names (query_proj, context, out_proj, mlpwi,
 * mlpwo). The sizes of these tensors are those of MaxText too. In a gated MLP, mlpwi is the tensor
 * of gate and up together. */
const rf_saved RF_SAVED[RF_SAVED_NAMES] = {
    /* a block is recomputed from its input, so the input is always stored */
    [RF_SAVED_X] = {.name = "x", .width = 1},
    [RF_SAVED_Q] = {.name = "q", .heads = 1, .within = "qkv"},
    [RF_SAVED_K] = {.name = "k", .kv = 1, .within = "qkv"},
    [RF_SAVED_V] = {.name = "v", .kv = 1, .within = "qkv"},
    [RF_SAVED_QKV] = {.name = "qkv", .heads = 1, .kv = 2},
    [RF_SAVED_CONTEXT] = {.name = "context", .heads = 1},
    [RF_SAVED_OUT] = {.name = "out", .width = 1},
    [RF_SAVED_GATE] = {.name = "gate", .ff = 1, .within = "mlpwi"},
    [RF_SAVED_UP] = {.name = "up", .ff = 1, .within = "mlpwi"},
    [RF_SAVED_MLPWI] = {.name = "mlpwi", .ff = 2},
    [RF_SAVED_MLPACT] = {.name = "mlpact", .ff = 1},
    [RF_SAVED_MLPWO] = {.name = "mlpwo", .width = 1},
    [RF_SAVED_DOWN] = {.name = "down", .width = 1, .within = "mlpwo"},
    [RF_SAVED_NORM] = {.name = "norm", .width = 1, .within = "norm1 and norm2"},
    [RF_SAVED_NORM1] = {.name = "norm1", .width = 1},
    [RF_SAVED_NORM2] = {.name = "norm2", .width = 1},
};

int rf_saved_find(const char *text, size_t length) {
  for (int i = 0; i < RF_SAVED_NAMES; i++)
    if (strlen(RF_SAVED[i].name) == length && !strncmp(RF_SAVED[i].name, text, length)) return i;
  return RF_NONE;
}

void rf_saved_list(bool parts, char text[160]) {
  *text = 0;
  for (int i = 0; i < RF_SAVED_NAMES; i++)
    if (parts || !RF_SAVED[i].within) rf_text_append(text, 160, "%s%s", *text ? ", " : "", RF_SAVED[i].name);
}

static const char *const POLICIES[] = {"none", "mlp", "attn", "mlp+attn", "block", "auto"};

/* MaxText's policies, and the names of the tensors that each policy stores. */
static const struct {
  const char *policy, *saves;
} SETS[] = {{"full", "x"},
            {"minimal", "qkv,out,mlpwi,mlpwo"},
            {"minimal_with_context", "qkv,context,out,mlpwi,mlpwo"},
            {"save_out_proj", "out"},
            {"save_qkv_proj", "qkv"},
            {"save_dot_except_mlp", "qkv,out"},
            {"save_dot_with_context_except_mlp", "qkv,context,out"},
            {"save_dot_except_mlpwi", "qkv,out,mlpwo"}};

static rf_status parse_saved(const char *names, rf_remat *remat, rf_error *error) {
  char list[160], hint[200];
  unsigned set = RF_REMAT_SAVE;
  rf_saved_list(false, list);
  snprintf(hint, sizeof hint, "name some of %s", list);
  for (const char *at = names;;) {
    size_t length = strcspn(at, ",+");
    int i = rf_saved_find(at, length);
    if (i == RF_NONE)
      return RF_FAIL(error, RAFTER_INVALID, hint, "--remat save: does not know '%.*s'",
                     (int)(length < 40 ? length : 40), at);
    if (RF_SAVED[i].within)
      return RF_FAIL(error, RAFTER_INVALID, hint,
                     "--remat save: cannot store %s by itself (expected %s, got %s)", RF_SAVED[i].name,
                     RF_SAVED[i].within, RF_SAVED[i].name);
    set |= 1u << i;
    if (!at[length]) break;
    at += length + 1;
  }
  *remat = (rf_remat)set;
  return RAFTER_OK;
}

rf_status rf_remat_parse(const char *text, rf_remat *remat, rf_error *error) {
  for (int i = 0; i <= RF_REMAT_AUTO; i++)
    if (!strcmp(POLICIES[i], text)) return *remat = (rf_remat)i, RAFTER_OK;
  for (size_t i = 0; i < sizeof SETS / sizeof *SETS; i++)
    if (!strcmp(SETS[i].policy, text)) return parse_saved(SETS[i].saves, remat, error);
  if (!strncmp(text, "save:", 5)) return parse_saved(text + 5, remat, error);
  return RF_FAIL(error, RAFTER_INVALID,
                 "`rafter plan --help` lists the policies; save:qkv,out stores only qkv and out",
                 "--remat does not know '%.60s'", text);
}

int rf_remat_named(rf_remat list[RF_REMAT_NAMED]) {
  int count = 0;
  for (int i = RF_REMAT_NONE + 1; i < RF_REMAT_AUTO; i++) list[count++] = (rf_remat)i;
  /* SETS[0], "full", is the policy "block" */
  for (size_t i = 1; i < sizeof SETS / sizeof *SETS; i++)
    count += parse_saved(SETS[i].saves, &list[count], NULL) == RAFTER_OK;
  return count;
}

bool rf_remat_valid(rf_remat remat) {
  unsigned value = remat, names = value & (RF_REMAT_SAVE - 1);
  if (value <= RF_REMAT_AUTO) return true;
  for (int i = 0; i < RF_SAVED_NAMES; i++)
    if (names >> i & 1 && RF_SAVED[i].within) return false;
  return (value & ~names) == RF_REMAT_SAVE;
}

const char *rf_remat_write(rf_remat remat, char text[RF_REMAT_TEXT]) {
  rf_remat set;
  for (size_t i = 0; remat >= RF_REMAT_SAVE && i < sizeof SETS / sizeof *SETS; i++)
    if (parse_saved(SETS[i].saves, &set, NULL) == RAFTER_OK && set == remat)
      return snprintf(text, RF_REMAT_TEXT, "%s", SETS[i].policy), text;
  snprintf(text, RF_REMAT_TEXT, "%s", remat < RF_REMAT_SAVE ? POLICIES[remat] : "save:");
  for (int i = 0, many = 0; i < RF_SAVED_NAMES; i++)
    if (rf_remat_saves(remat, i))
      rf_text_append(text, RF_REMAT_TEXT, "%s%s", many++ ? "," : "", RF_SAVED[i].name);
  return text;
}

/* ---- what is dropped ------------------------------------------------------------------------- */

static bool in_block(const rf_op *op) {
  return op->at.sublayer == RF_SUBLAYER_ATTN || op->at.sublayer == RF_SUBLAYER_MLP;
}

/* Returns the output that is the new residual stream, or RF_NONE if the op has no such output. */
static int stream_of(const rf_op *op) {
  if (op->def == &RF_OP_ADD || op->def == &RF_OP_ADD_DROPOUT) return op->output[0];
  if (op->def == &RF_OP_MATMUL && op->attr.matmul.epilogue == RF_EPILOGUE_RESIDUAL) return op->output[1];
  return RF_NONE;
}

void rf_saved_begin(rf_saved_seen *seen) {
  for (size_t i = 0; i < sizeof seen->layer / sizeof *seen->layer; i++) seen->layer[i] = RF_NONE;
}

bool rf_saved_first(rf_remat policy, const rf_tensor *tensor, int32_t layer, rf_saved_seen *seen) {
  int32_t *met = &seen->layer[tensor->saved];
  if (!tensor->saved || *met == layer || !rf_remat_saves(policy, (tensor->saved - 1) / RF_SAVED_CHAINS))
    return false;
  *met = layer;
  return true;
}

/* Removes from `drop` all results of the ops that make a tensor named by the policy. */
static void keep_named(const rf_graph *graph, rf_remat policy, const bool *backward_read, bool *drop) {
  rf_saved_seen seen;
  rf_saved_begin(&seen);
  for (int o = 0; o < graph->op_count; o++) {
    const rf_op *op = &graph->op[o];
    for (int i = 0; i < op->output_count && rf_remat_forward(op) && in_block(op); i++) {
      int t = op->output[i];
      if (t < 0 || !backward_read[t] || !rf_saved_first(policy, &graph->tensor[t], op->at.layer, &seen))
        continue;
      for (int k = 0; k < op->output_count; k++)
        if (op->output[k] >= 0 && (k == i || op->def != &RF_OP_MATMUL)) drop[op->output[k]] = false;
    }
  }
}

void rf_remat_policy(const rf_graph *graph, rf_remat policy, bool *drop) {
  bool block = policy == RF_REMAT_BLOCK || policy >= RF_REMAT_SAVE;
  bool mlp = block || policy == RF_REMAT_MLP || policy == RF_REMAT_MLP_ATTN,
       attn = block || policy == RF_REMAT_ATTN || policy == RF_REMAT_MLP_ATTN;
  int stream = RF_NONE;           /* the residual stream, as the last sublayer leaves it */
  int32_t stream_layer = RF_NONE; /* layer of that sublayer */
  size_t tensors = (size_t)graph->tensor_count;
  if (tensors) memset(drop, 0, tensors);
  bool *backward_read = calloc(tensors + 1, 1);
  if (!backward_read) return;
  for (int o = 0; o < graph->op_count; o++)
    for (int i = 0; graph->op[o].backward && i < graph->op[o].input_count; i++)
      if (graph->op[o].input[i] >= 0) backward_read[graph->op[o].input[i]] = true;
  for (int o = 0; o < graph->op_count; o++) {
    const rf_op *op = &graph->op[o];
    if (!rf_remat_forward(op) || !in_block(op)) continue;
    int out = stream_of(op);
    if (out != RF_NONE) {
      /* the residual stream after a block's last sublayer stays stored, because it is the input of
       * the next block */
      if (block && stream != RF_NONE && stream_layer == op->at.layer) drop[stream] = true;
      stream = out;
      stream_layer = op->at.layer;
    }
    if (op->at.sublayer == RF_SUBLAYER_MLP ? !mlp : !attn) continue;
    for (int i = 0; i < op->output_count; i++) {
      int t = op->output[i];
      if (t >= 0 && t != out && backward_read[t] && !rf_remat_outside(&graph->tensor[t])) drop[t] = true;
    }
  }
  if (policy >= RF_REMAT_SAVE) keep_named(graph, policy, backward_read, drop);
  free(backward_read);
}
