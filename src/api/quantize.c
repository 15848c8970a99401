/* quantize.c - `rafter quantize IN OUT --weights TYPE`: writes a model as a GGUF file with
 * quantized matrices. */
#define _GNU_SOURCE
#include "api/api.h"
#include "base/file.h"
#include "base/text.h"
#include "model/gguf_source.h"
#include "model/run_folder.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A chunk has at most PARTS parts of PART values each. A thread reads and quantizes PAIR parts at a
 * time. PART is a multiple of every block size. */
enum { PART = 1 << 14, PARTS = 64, PAIR = 2 };

/* Values of general.file_type, from llama.cpp's enum llama_ftype. The numbers of K types are those
 * of files with one type for all matrices. */
static const struct {
  const char *type;
  int number;
} FILE_TYPES[] = {{"f32", 0},   {"f16", 1},   {"q4_0", 2},  {"q4_1", 3},  {"q8_0", 7},
                  {"q5_0", 8},  {"q5_1", 9},  {"q2_k", 10}, {"q3_k", 11}, {"q4_k", 14},
                  {"q5_k", 16}, {"q6_k", 18}, {"bf16", 32}};

typedef struct work {
  const rafter_sink *sink;
  rf_gguf_source *source;
  rf_gguf_writer *writer;
  rf_quant_tensor *out; /* tensors of the source with their new types */
  /* For each tensor: RMS of the errors / RMS of the values. A negative value marks a copied
   * tensor. */
  double *error;
  int count, threads;
  int64_t bytes_in, bytes_out, bytes_done;
  float *value;                    /* (PARTS, PART) */
  float *back;                     /* (PARTS, PART) values after quantizing and dequantizing */
  uint8_t *block;                  /* quantized blocks of the chunk */
  double wrong[PARTS], all[PARTS]; /* `wrong`: sums of squared errors. `all`: sums of squared values. */
} work;

/* ---- the type of a tensor -------------------------------------------------------------------- */

static bool is_matrix(const rf_quant_tensor *t) {
  /* Vectors (norms, biases) keep their type. Positions, routers and rotary factors also keep their
   * type, because they are small and their errors do not average out. */
  static const char *const KEPT[] = {"position_embd.weight", "ffn_gate_inp.weight", "rope_freqs.weight"};
  for (size_t i = 0; i < sizeof KEPT / sizeof *KEPT; ++i)
    if (rf_text_ends_with(t->name, KEPT[i])) return false;
  return t->rank >= 2 && rf_text_ends_with(t->name, ".weight");
}

/* The head has six or more bits per weight, because its errors reach every logit. In a tied model,
 * the token table is the head. */
static const rf_quant_type *type_for(const rf_quant_tensor *t, const rf_quant_type *wanted, bool tied) {
  const rf_quant_type *least = rf_quant_type_of(RF_Q_Q6_K);
  if (!is_matrix(t)) return t->type;
  if (strcmp(t->name, tied ? "token_embd.weight" : "output.weight") == 0 &&
      rf_quant_bits(wanted) < rf_quant_bits(least))
    wanted = least;
  return rf_quant_fit(wanted, t->shape[t->rank - 1]);
}

static rf_status choose_types(work *w, const rf_quant_type *wanted, rf_error *error) {
  bool tied = true;
  for (int i = 0; i < w->count; ++i)
    tied = tied && strcmp(rf_gguf_source_at(w->source, i)->name, "output.weight") != 0;
  for (int i = 0; i < w->count; ++i) {
    const rf_quant_tensor *t = rf_gguf_source_at(w->source, i);
    w->out[i] = *t;
    w->out[i].type = type_for(t, wanted, tied);
    w->out[i].bytes = t->count / w->out[i].type->values * w->out[i].type->bytes;
    w->error[i] = -1;
    w->bytes_in += t->bytes;
    w->bytes_out += w->out[i].bytes;
    /* Fails early if rafter cannot read the source's type. */
    if (w->out[i].type != t->type) RF_TRY(rf_gguf_source_read(w->source, i, 0, 0, w->value, error));
  }
  return RAFTER_OK;
}

/* ---- one tensor ------------------------------------------------------------------------------ */

/* Sums the squared errors of part `p`. A NaN in the part makes the sums NaN. */
static void add_errors(work *w, int p, int64_t values) {
  const float *x = w->value + (int64_t)p * PART, *y = w->back + (int64_t)p * PART;
  double wrong = 0, all = 0;
  for (int64_t i = 0; i < values; ++i) {
    double e = (double)x[i] - (double)y[i];
    wrong += e * e;
    all += (double)x[i] * (double)x[i];
  }
  w->wrong[p] = wrong;
  w->all[p] = all;
}

/* Sums the squared errors of parts `p` and `p` + 1. The two sums are independent, so the CPU
 * computes them at the same time. */
static void add_errors_of_pair(work *w, int p) {
  const float *x = w->value + (int64_t)p * PART, *y = w->back + (int64_t)p * PART;
  double wrong[PAIR] = {0}, all[PAIR] = {0};
  for (int64_t i = 0; i < PART; ++i)
    for (int k = 0; k < PAIR; ++k) {
      double value = (double)x[k * PART + i], e = value - (double)y[k * PART + i];
      wrong[k] += e * e;
      all[k] += value * value;
    }
  memcpy(w->wrong + p, wrong, sizeof wrong);
  memcpy(w->all + p, all, sizeof all);
}

/* Reads and quantizes at most PAIR parts of a chunk, from part `p` on, and sums their errors.
 * `first` is the index of the chunk's first element, `values` is the chunk's number of elements. */
static rf_status do_pair(work *w, int index, int p, int64_t first, int64_t values, rf_error *error) {
  const rf_quant_type *type = w->out[index].type;
  int64_t from = (int64_t)p * PART, left = values - from, count = left < PAIR * PART ? left : PAIR * PART;
  float *x = w->value + from, *y = w->back + from;
  uint8_t *block = w->block + from / type->values * type->bytes;
  RF_TRY(rf_gguf_source_read(w->source, index, first + from, count, x, error));
  type->quantize(x, count / type->values, block);
  type->dequantize(block, count / type->values, y);
  if (count == PAIR * PART) add_errors_of_pair(w, p);
  else
    for (int64_t at = 0; at < count; at += PART, ++p) add_errors(w, p, count - at < PART ? count - at : PART);
  return RAFTER_OK;
}

static rf_status do_chunk(work *w, int index, int64_t first, int64_t values, rf_error *error) {
  int parts = (int)((values + PART - 1) / PART), failed = 0;
#pragma omp parallel for num_threads(w->threads) schedule(dynamic, 1)
  for (int p = 0; p < parts; p += PAIR) {
    rf_error mine;
    if (do_pair(w, index, p, first, values, &mine) == RAFTER_OK) continue;
#pragma omp critical(rf_quantize_failed)
    {
      if (!failed && error) *error = mine;
      failed = 1;
    }
  }
  return failed ? RAFTER_FAILED : RAFTER_OK;
}

static rf_status not_finite(const work *w, const rf_quant_tensor *t, int64_t first, int64_t values,
                            rf_error *error) {
  for (int64_t i = 0; i < values; ++i)
    if (!isfinite(w->value[i]))
      return RF_FAIL(error, RAFTER_FAILED, "the model was damaged while it was trained or stored",
                     "tensor \"%.100s\" holds %g (element %lld)", t->name, (double)w->value[i],
                     (long long)(first + i));
  return RF_FAIL(error, RAFTER_FAILED, "choose f32 or bf16",
                 "tensor \"%.100s\" has values too large for %s (elements %lld to %lld)", t->name,
                 t->type->name, (long long)first, (long long)(first + values));
}

static rf_status convert(work *w, int index, double *wrong, double *all, rf_error *error) {
  const rf_quant_tensor *t = &w->out[index];
  *wrong = *all = 0;
  for (int64_t first = 0, values; first < t->count; first += values) {
    values = t->count - first < (int64_t)PART * PARTS ? t->count - first : (int64_t)PART * PARTS;
    int parts = (int)((values + PART - 1) / PART);
    RF_TRY(do_chunk(w, index, first, values, error));
    /* The sums of the parts are added in order, so the result does not depend on the number of
     * threads. */
    for (int p = 0; p < parts; ++p) {
      *wrong += w->wrong[p];
      *all += w->all[p];
    }
    if (!isfinite(*wrong)) return not_finite(w, t, first, values, error);
    RF_TRY(rf_gguf_writer_put_bytes(w->writer, w->block, values / t->type->values * t->type->bytes, error));
    if (rf_asked_to_stop(w->sink))
      return RF_FAIL(error, RAFTER_INTERRUPTED, NULL, "stopped by a signal; nothing was written");
    rf_put_bar(w->sink, "quantizing %s  %.0f %%", t->name,
               100 * (double)(w->bytes_done + first / t->type->values * t->type->bytes) /
                   (double)(w->bytes_out + 1));
  }
  w->error[index] = *all > 0 ? sqrt(*wrong / *all) : 0;
  return RAFTER_OK;
}

/* Copies a tensor that keeps its type. If the source does not have the bytes of this type, reads
 * and writes values instead. */
static rf_status keep(work *w, int index, rf_error *error) {
  const rf_quant_tensor *t = &w->out[index];
  if (t->data) return rf_gguf_writer_put_bytes(w->writer, t->data, t->bytes, error);
  for (int64_t first = 0, values; first < t->count; first += values) {
    values = t->count - first < (int64_t)PART * PARTS ? t->count - first : (int64_t)PART * PARTS;
    RF_TRY(rf_gguf_source_read(w->source, index, first, values, w->value, error));
    RF_TRY(rf_gguf_writer_put(w->writer, w->value, values, error));
  }
  return RAFTER_OK;
}

/* ---- the command ----------------------------------------------------------------------------- */

static rf_status mark_file(rf_gguf_meta *meta, const char *type, const char *name, rf_error *error) {
  bool done = rf_gguf_set_int(meta, "general.quantization_version", RF_GGUF_U32, 2);
  if (name) done = done && rf_gguf_set_text(meta, "general.name", name);
  for (size_t i = 0; i < sizeof FILE_TYPES / sizeof *FILE_TYPES; ++i)
    if (strcmp(FILE_TYPES[i].type, type) == 0)
      done = done && rf_gguf_set_int(meta, "general.file_type", RF_GGUF_U32, FILE_TYPES[i].number);
  return done ? RAFTER_OK : RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
}

static void report(const work *w, const char *in, const char *out, double wrong, double all, double seconds) {
  char from[32], to[32], types[256] = "";
  json_t *tensors = json_array();
  int64_t values = 0;
  for (int i = 0; i < w->count; ++i) {
    const rf_quant_tensor *t = &w->out[i];
    values += t->count;
    json_t *row =
        json_pack("{ss ss ss sI}", "name", t->name, "from", rf_gguf_source_at(w->source, i)->type->name,
                  "type", t->type->name, "bytes", (json_int_t)t->bytes);
    if (w->error[i] >= 0) json_object_set_new(row, "error", json_real(w->error[i]));
    json_array_append_new(tensors, row);
  }
  for (int k = 0; k < RF_QUANT_TYPE_COUNT; ++k) {
    int n = 0;
    for (int i = 0; i < w->count; ++i) n += w->out[i].type == &RF_QUANT_TYPES[k];
    if (n) rf_text_append(types, sizeof types, "%s%d %s", *types ? ", " : "", n, RF_QUANT_TYPES[k].name);
  }
  double relative = all > 0 ? sqrt(wrong / all) : 0;
  rf_say(w->sink, "%s: %d tensors (%s), %s of %s, %.2f bits per weight\n", out, w->count, types,
         rf_text_bytes((double)w->bytes_out, to), rf_text_bytes((double)w->bytes_in, from),
         8 * (double)w->bytes_out / (double)(values ? values : 1));
  rf_say(w->sink, "error %.3f %% (root mean square, over the quantized weights), %.1f s\n", 100 * relative,
         seconds);
  if (!rf_gguf_source_has_tokenizer(w->source))
    rf_say(w->sink, "the file has no tokenizer: %s\n", rf_gguf_source_note(w->source));
  rf_put_json(w->sink, json_pack("{ss ss ss sI sI sf sf so}", "command", "quantize", "in", in, "out", out,
                                 "bytes_in", (json_int_t)w->bytes_in, "bytes", (json_int_t)w->bytes_out,
                                 "error", relative, "seconds", seconds, "tensors", tensors));
}

rf_status rf_write_gguf(const char *in, const char *shown, const char *name, const char *out,
                        const char *type, int threads, const rafter_sink *sink, rf_error *error) {
  rf_status status = RAFTER_OK;
  double begin = rf_now_seconds(), wrong = 0, all = 0;
  if (!rf_text_ends_with(out, ".gguf"))
    return RF_FAIL(error, RAFTER_INVALID, "give OUT a name that ends in .gguf",
                   "OUT must be a .gguf file (got %s)", out);
  RF_TRY(rf_out_is_not_input(out, in, error));
  const rf_quant_type *wanted = rf_quant_type_named(type);
  work w = {.sink = sink, .threads = threads};
  RF_TRY(rf_gguf_source_open(in, &w.source, error));
  w.count = rf_gguf_source_count(w.source);
  w.out = calloc((size_t)w.count + 1, sizeof *w.out);
  w.error = calloc((size_t)w.count + 1, sizeof *w.error);
  w.value = malloc(sizeof(float) * PART * PARTS);
  w.back = malloc(sizeof(float) * PART * PARTS);
  w.block = malloc(sizeof(float) * PART * PARTS);
  if (!w.out || !w.error || !w.value || !w.back || !w.block) {
    status = RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
    goto done;
  }
  RF_GO(choose_types(&w, wanted, error));
  RF_GO(mark_file(rf_gguf_source_meta(w.source), wanted->name, name, error));
  RF_GO(rf_gguf_writer_open(out, rf_gguf_source_meta(w.source), w.out, w.count, &w.writer, error));
  for (int i = 0; i < w.count; ++i) {
    double part_wrong = 0, part_all = 0;
    if (w.out[i].type == rf_gguf_source_at(w.source, i)->type) RF_GO(keep(&w, i, error));
    else RF_GO(convert(&w, i, &part_wrong, &part_all, error));
    wrong += part_wrong;
    all += part_all;
    w.bytes_done += w.out[i].bytes;
  }
  RF_GO(rf_gguf_source_unchanged(w.source, error));
  rf_gguf_writer *writer = w.writer;
  w.writer = NULL;
  RF_GO(rf_gguf_writer_commit(writer, error));
  report(&w, shown, out, wrong, all, rf_now_seconds() - begin);
done:
  rf_gguf_writer_discard(w.writer);
  rf_gguf_source_close(w.source);
  free(w.out);
  free(w.error);
  free(w.value);
  free(w.back);
  free(w.block);
  return status;
}

static rf_status rf_command_quantize(const rafter_job *job, const rafter_sink *sink, rf_error *error) {
  const rf_options *o = job->options;
  const char *in = rf_options_argument(o, 0), *out = rf_options_argument(o, 1);
  if (!in || !out)
    return RF_FAIL(error, RAFTER_INVALID, "for example `rafter quantize model.gguf small.gguf`",
                   "quantize needs IN and OUT");
  int threads = (int)rf_options_int_or(o, "threads", omp_get_max_threads());
  char folder[4096];
  RF_TRY(rf_run_weights(in, folder, error));
  return rf_write_gguf(folder, folder, NULL, out, rf_options_text(o, "weights"), threads, sink, error);
}

static const rf_option QUANTIZE[] = {
    RF_CHOICE("weights", "f32|f16|bf16|q8_0|q4_0|q4_1|q5_0|q5_1|q2_k|q3_k|q4_k|q5_k|q6_k", "q4_k", "Model",
              "type of the matrices; norms and biases are copied"),
    {.name = NULL},
};

const rf_command RF_COMMAND_QUANTIZE = {
    RF_COMMAND_HEAD("quantize", "IN OUT", 2, 2, "Files",
                    "Write a model as a GGUF file with smaller weights."),
    .options = {RF_TABLE(QUANTIZE), {RF_MODEL_OPTIONS, "threads"}, RF_TABLE(RF_EVERY_OPTIONS)},
    .examples = {"quantize models/org/name model-q4_k.gguf --weights q4_k"}, .run = rf_command_quantize};
