/* remat_policy.c - what a policy drops: all of some parts of every block, or all of a block but
 * the tensors it names. */
#include "graph/remat.h"

#include "base/text.h"
#include "graph/passes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- names ----------------------------------------------------------------------------------- */

/* Names and extents: MaxText's checkpoint names (query_proj, context, out_proj, mlpwi, mlpwo)
 * without their tails; a gated MLP's mlpwi is gate and up. */
const rf_saved RF_SAVED[RF_SAVED_NAMES] = {
    {.name = "x", .width = 1}, /* a block is computed again from it, so that it stays whatever is named */
    {.name = "q", .heads = 1, .within = "qkv"},
    {.name = "k", .kv = 1, .within = "qkv"},
    {.name = "v", .kv = 1, .within = "qkv"},
    {.name = "qkv",
     .heads = 1,
     .kv = 2,
     .chain = {{"attn/qkv/u", "attn/qkv/lora/y", "attn/q/u", "attn/q_b/u", "attn/head_norm/normed",
                "attn/rope/rotated"},
               {"attn/kv_b/u", "attn/kv_b/lora/y"},
               {"attn/rope_key/rotated"}}},
    {.name = "context", .heads = 1, .chain = {{"attn/attention/ctx"}}},
    {.name = "out", .width = 1, .chain = {{"attn/out/u", "attn/out/lora/y", "attn/residual/y"}}},
    {.name = "gate", .ff = 1, .within = "mlpwi"},
    {.name = "up", .ff = 1, .within = "mlpwi"},
    {.name = "mlpwi",
     .ff = 2,
     .chain = {{"mlp/gate_up/u", "mlp/gate_up/lora/y", "mlp/up/u", "mlp/up/lora/y"},
               {"mlp/experts/gate_up/u"},
               {"mlp/shared/gate_up/u", "mlp/shared/gate_up/lora/y"}}},
    {.name = "mlpact",
     .ff = 1,
     .chain = {{"mlp/gelu/g", "mlp/gelu_erf/g", "mlp/swiglu/h", "mlp/geglu/h"},
               {"mlp/shared/swiglu/h", "mlp/shared/geglu/h"}}},
    {.name = "mlpwo",
     .width = 1,
     .chain = {{"mlp/down/u", "mlp/down/lora/y", "mlp/residual/y"},
               {"mlp/experts/down/u"},
               {"mlp/shared/down/u"}}},
    {.name = "down", .width = 1, .within = "mlpwo"},
    {.name = "norm", .width = 1, .within = "norm1 and norm2"},
    {.name = "norm1", .width = 1, .chain = {{"attn/norm/y"}}},
    {.name = "norm2", .width = 1, .chain = {{"mlp/norm/y"}}},
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

/* Whether tensor path "block.3/attn/qkv/u", whole or one chip's, is this link of a chain. */
static bool is_link(const char *path, const char *link) {
  const char *slash = strncmp(path, "block.", 6) ? NULL : strchr(path, '/');
  size_t length = strlen(link);
  return slash && !strncmp(slash + 1, link, length) && (!slash[1 + length] || slash[1 + length] == '/');
}

static const char *const POLICIES[] = {"none", "mlp", "attn", "mlp+attn", "block", "auto"};

/* Policies of the literature (MaxText), by the names they save. */
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
                     "--remat save: cannot keep %s by itself (expected %s, got %s)", RF_SAVED[i].name,
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
                 "`rafter plan --help` lists the policies; save:qkv,out keeps what it names",
                 "--remat does not know '%.60s'", text);
}

int rf_remat_named(rf_remat list[RF_REMAT_NAMED]) {
  int count = 0;
  for (int i = RF_REMAT_NONE + 1; i < RF_REMAT_AUTO; i++) list[count++] = (rf_remat)i;
  /* full is block */
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

/* Which part of which block an op belongs to, from its path "step/micro/block.3/mlp/...". */
typedef struct place {
  long block;
  bool mlp, attn;
} place;

static place place_of(const rf_op *op) {
  place none = {-1, false, false};
  const char *path = strncmp(op->name, "step/micro/block.", 17) == 0 ? op->name + 17 : NULL;
  if (!path) return none;
  char *rest;
  long block = strtol(path, &rest, 10);
  return (place){block, strncmp(rest, "/mlp/", 5) == 0, strncmp(rest, "/attn/", 6) == 0};
}

/* The output that carries the residual stream on, or RF_NONE. */
static int stream_of(const rf_op *op) {
  if (op->def == &RF_OP_ADD || op->def == &RF_OP_ADD_DROPOUT) return op->output[0];
  if (op->def == &RF_OP_MATMUL && op->attr.matmul.epilogue == RF_EPILOGUE_RESIDUAL) return op->output[1];
  return RF_NONE;
}

void rf_saved_begin(rf_saved_seen *seen) {
  for (int i = 0; i < RF_SAVED_NAMES * RF_SAVED_CHAINS; i++)
    seen->block[i / RF_SAVED_CHAINS][i % RF_SAVED_CHAINS] = -1;
}

bool rf_saved_names(rf_remat policy, const char *path, long block, rf_saved_seen *seen) {
  bool named = false;
  for (int n = 0; n < RF_SAVED_NAMES; n++)
    for (int c = 0; c < RF_SAVED_CHAINS && rf_remat_saves(policy, n); c++)
      for (int l = 0; l < RF_SAVED_LINKS && RF_SAVED[n].chain[c][l] && seen->block[n][c] != block; l++)
        if (is_link(path, RF_SAVED[n].chain[c][l])) {
          seen->block[n][c] = block;
          named = true;
        }
  return named;
}

/* Takes what the policy names out of `drop`, with all that its op makes beside it. */
static void keep_named(const rf_graph *graph, rf_remat policy, const bool *backward_read, bool *drop) {
  rf_saved_seen seen;
  rf_saved_begin(&seen);
  for (int o = 0; o < graph->op_count; o++) {
    const rf_op *op = &graph->op[o];
    place at = place_of(op);
    for (int i = 0; i < op->output_count && rf_remat_forward(op) && at.block >= 0; i++) {
      int t = op->output[i];
      if (t < 0 || !backward_read[t] || !rf_saved_names(policy, graph->tensor[t].name, at.block, &seen))
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
  int stream = RF_NONE;   /* the residual stream behind the last sublayer seen */
  long stream_block = -1; /* and its block */
  size_t tensors = (size_t)graph->tensor_count;
  if (tensors) memset(drop, 0, tensors);
  bool *backward_read = calloc(tensors + 1, 1);
  if (!backward_read) return;
  for (int o = 0; o < graph->op_count; o++)
    for (int i = 0; graph->op[o].backward && i < graph->op[o].input_count; i++)
      if (graph->op[o].input[i] >= 0) backward_read[graph->op[o].input[i]] = true;
  for (int o = 0; o < graph->op_count; o++) {
    const rf_op *op = &graph->op[o];
    place at = place_of(op);
    if (!rf_remat_forward(op) || at.block < 0) continue;
    int out = stream_of(op);
    if (out != RF_NONE) {
      /* a block's last stream is the next block's input and stays */
      if (block && stream != RF_NONE && stream_block == at.block) drop[stream] = true;
      stream = out;
      stream_block = at.block;
    }
    if (!(at.mlp && mlp) && !(at.attn && attn)) continue;
    for (int i = 0; i < op->output_count; i++) {
      int t = op->output[i];
      if (t >= 0 && t != out && backward_read[t] && !rf_remat_outside(&graph->tensor[t])) drop[t] = true;
    }
  }
  if (policy >= RF_REMAT_SAVE) keep_named(graph, policy, backward_read, drop);
  free(backward_read);
}
