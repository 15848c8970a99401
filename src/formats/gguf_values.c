/* gguf_values.c - looks up metadata values by key and kind. Errors name the expected kind and
 * range. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/gguf_parts.h"
#include "formats/quant_blocks.h"

/* Reads item `i` of a value with an integer kind. A u64 above INT64_MAX becomes INT64_MAX. Every
 * caller refuses this number, because it is too large. */
static int64_t int_at(rf_gguf_kind kind, const uint8_t *at, int64_t i) {
  switch (kind) {
  case RF_GGUF_U8: return at[i];
  case RF_GGUF_I8: return (int8_t)at[i];
  case RF_GGUF_BOOL: return at[i];
  case RF_GGUF_U16: return rf_load_u16(at + 2 * i);
  case RF_GGUF_I16: return (int16_t)rf_load_u16(at + 2 * i);
  case RF_GGUF_U32: return rf_load_u32(at + 4 * i);
  case RF_GGUF_I32: return (int32_t)rf_load_u32(at + 4 * i);
  case RF_GGUF_I64: return (int64_t)rf_load_u64(at + 8 * i);
  case RF_GGUF_U64: {
    uint64_t value = rf_load_u64(at + 8 * i);
    return value > INT64_MAX ? INT64_MAX : (int64_t)value;
  }
  default: return 0;
  }
}

static bool is_whole(rf_gguf_kind kind) {
  return kind == RF_GGUF_U8 || kind == RF_GGUF_I8 || kind == RF_GGUF_U16 || kind == RF_GGUF_I16 ||
         kind == RF_GGUF_U32 || kind == RF_GGUF_I32 || kind == RF_GGUF_U64 || kind == RF_GGUF_I64;
}

static double float_at(rf_gguf_kind kind, const uint8_t *at, int64_t i) {
  float single;
  double wide;
  if (kind == RF_GGUF_F32) {
    memcpy(&single, at + 4 * i, 4);
    return (double)single;
  }
  if (kind == RF_GGUF_F64) {
    memcpy(&wide, at + 8 * i, 8);
    return wide;
  }
  return (double)int_at(kind, at, i);
}

static rf_status missing(const rf_gguf *file, const char *key, rf_error *error) {
  return RF_FAIL(error, RAFTER_FAILED, "the file may be incomplete, or rafter may not support its model",
                 "%s has no metadata \"%s\"", rf_gguf_path(file), key);
}

static rf_status other_kind(const rf_gguf *file, const rf_gguf_value *value, const char *expected,
                            rf_error *error) {
  bool array = value->kind == RF_GGUF_ARRAY;
  return RF_FAIL(error, RAFTER_FAILED, NULL, "%s: metadata \"%s\" has the wrong type (expected %s, got %s%s)",
                 rf_gguf_path(file), value->key, expected, rf_gguf_kind_name(value->item),
                 array ? " array" : "");
}

static rf_status outside(const rf_gguf *file, const char *key, double least, double most, double got,
                         rf_error *error) {
  return RF_FAIL(error, RAFTER_FAILED, NULL,
                 "%s: metadata \"%s\" is out of range (expected %.15g to %.15g, got %.15g)",
                 rf_gguf_path(file), key, least, most, got);
}

rf_status rf_gguf_int_or(const rf_gguf *file, const char *key, int64_t least, int64_t most, int64_t otherwise,
                         int64_t *result, rf_error *error) {
  const rf_gguf_value *value = rf_gguf_value_find(file, key);
  *result = otherwise;
  if (!value) return RAFTER_OK;
  if (!is_whole(value->kind)) return other_kind(file, value, "a whole number", error);
  int64_t got = int_at(value->kind, value->data, 0);
  if (got < least || got > most) return outside(file, key, (double)least, (double)most, (double)got, error);
  *result = got;
  return RAFTER_OK;
}

rf_status rf_gguf_int(const rf_gguf *file, const char *key, int64_t least, int64_t most, int64_t *result,
                      rf_error *error) {
  if (!rf_gguf_value_find(file, key)) return missing(file, key, error);
  return rf_gguf_int_or(file, key, least, most, 0, result, error);
}

rf_status rf_gguf_float_or(const rf_gguf *file, const char *key, double least, double most, double otherwise,
                           double *result, rf_error *error) {
  const rf_gguf_value *value = rf_gguf_value_find(file, key);
  *result = otherwise;
  if (!value) return RAFTER_OK;
  if (!is_whole(value->kind) && value->kind != RF_GGUF_F32 && value->kind != RF_GGUF_F64)
    return other_kind(file, value, "a number", error);
  double got = float_at(value->kind, value->data, 0);
  if (!(got >= least && got <= most)) return outside(file, key, least, most, got, error);
  *result = got;
  return RAFTER_OK;
}

rf_status rf_gguf_float(const rf_gguf *file, const char *key, double least, double most, double *result,
                        rf_error *error) {
  if (!rf_gguf_value_find(file, key)) return missing(file, key, error);
  return rf_gguf_float_or(file, key, least, most, 0, result, error);
}

rf_status rf_gguf_bool_or(const rf_gguf *file, const char *key, bool otherwise, bool *result,
                          rf_error *error) {
  const rf_gguf_value *value = rf_gguf_value_find(file, key);
  *result = otherwise;
  if (!value) return RAFTER_OK;
  if (value->kind != RF_GGUF_BOOL) return other_kind(file, value, "bool", error);
  *result = *(const uint8_t *)value->data != 0;
  return RAFTER_OK;
}

/* Returns the text whose length is stored at `at`. rf_gguf_open has already checked the length. */
static rf_gguf_text text_at(const uint8_t *at) {
  return (rf_gguf_text){(const char *)at + 8, (int64_t)rf_load_u64(at)};
}

rf_status rf_gguf_text_or(const rf_gguf *file, const char *key, const char *otherwise, rf_gguf_text *result,
                          rf_error *error) {
  const rf_gguf_value *value = rf_gguf_value_find(file, key);
  *result = (rf_gguf_text){otherwise, otherwise ? (int64_t)strlen(otherwise) : 0};
  if (!value) return RAFTER_OK;
  if (value->kind != RF_GGUF_TEXT) return other_kind(file, value, "text", error);
  *result = text_at(value->data);
  return RAFTER_OK;
}

rf_status rf_gguf_text_of(const rf_gguf *file, const char *key, rf_gguf_text *result, rf_error *error) {
  if (!rf_gguf_value_find(file, key)) return missing(file, key, error);
  return rf_gguf_text_or(file, key, NULL, result, error);
}

static rf_status no_memory(const rf_gguf *file, const char *key, rf_error *error) {
  return RF_FAIL(error, RAFTER_FAILED, NULL, "no memory for metadata \"%s\" of %s", key, rf_gguf_path(file));
}

rf_status rf_gguf_text_count(const rf_gguf *file, const char *key, int64_t *count, rf_error *error) {
  const rf_gguf_value *value = rf_gguf_value_find(file, key);
  *count = 0;
  if (value && (value->kind != RF_GGUF_ARRAY || value->item != RF_GGUF_TEXT))
    return other_kind(file, value, "text array", error);
  if (value) *count = value->count;
  return RAFTER_OK;
}

rf_status rf_gguf_texts(const rf_gguf *file, const char *key, rf_gguf_text **items, int64_t *count,
                        rf_error *error) {
  const rf_gguf_value *value = rf_gguf_value_find(file, key);
  *items = NULL;
  RF_TRY(rf_gguf_text_count(file, key, count, error));
  if (!value) return RAFTER_OK;
  rf_gguf_text *all = malloc(((size_t)value->count + 1) * sizeof *all);
  if (!all) return no_memory(file, key, error);
  const uint8_t *at = value->data;
  for (int64_t i = 0; i < value->count; ++i) {
    all[i] = text_at(at);
    at += 8 + all[i].bytes;
  }
  *items = all;
  return RAFTER_OK;
}

rf_status rf_gguf_ints(const rf_gguf *file, const char *key, int64_t least, int64_t most, int32_t **items,
                       int64_t *count, rf_error *error) {
  const rf_gguf_value *value = rf_gguf_value_find(file, key);
  *items = NULL;
  *count = 0;
  if (!value) return RAFTER_OK;
  if (value->kind != RF_GGUF_ARRAY || !(is_whole(value->item) || value->item == RF_GGUF_BOOL))
    return other_kind(file, value, "an array of whole numbers", error);
  int32_t *all = malloc(((size_t)value->count + 1) * sizeof *all);
  if (!all) return no_memory(file, key, error);
  if (least < INT32_MIN) least = INT32_MIN;
  if (most > INT32_MAX) most = INT32_MAX;
  for (int64_t i = 0; i < value->count; ++i) {
    int64_t got = int_at(value->item, value->data, i);
    if (got < least || got > most) {
      free(all);
      return RF_FAIL(error, RAFTER_FAILED, NULL,
                     "%s: item %lld of metadata \"%s\" is out of range (expected %lld to %lld, got %lld)",
                     rf_gguf_path(file), (long long)i, key, (long long)least, (long long)most,
                     (long long)got);
    }
    all[i] = (int32_t)got;
  }
  *items = all;
  *count = value->count;
  return RAFTER_OK;
}

rf_status rf_gguf_floats(const rf_gguf *file, const char *key, float **items, int64_t *count,
                         rf_error *error) {
  const rf_gguf_value *value = rf_gguf_value_find(file, key);
  *items = NULL;
  *count = 0;
  if (!value) return RAFTER_OK;
  if (value->kind != RF_GGUF_ARRAY ||
      !(is_whole(value->item) || value->item == RF_GGUF_F32 || value->item == RF_GGUF_F64))
    return other_kind(file, value, "an array of numbers", error);
  float *all = malloc(((size_t)value->count + 1) * sizeof *all);
  if (!all) return no_memory(file, key, error);
  for (int64_t i = 0; i < value->count; ++i) all[i] = (float)float_at(value->item, value->data, i);
  *items = all;
  *count = value->count;
  return RAFTER_OK;
}
