#include "generate/stop.h"

#include <stdlib.h>
#include <string.h>

/* Finds the longest border of each prefix of a string, in linear time (Knuth, Morris and Pratt,
 * 1977). A border is a shorter prefix that is also a suffix. */
static void find_borders(struct rf_stop_string *s) {
  int32_t k = 0;
  s->border[0] = 0;
  for (int32_t i = 1; i < s->bytes; i++) {
    while (k > 0 && s->text[i] != s->text[k]) k = s->border[k - 1];
    if (s->text[i] == s->text[k]) k++;
    s->border[i] = (uint8_t)k; /* at most 255 */
  }
}

rf_status rf_stop_open(const rf_stop_options *o, rf_stop *stop, rf_error *error) {
  *stop = (rf_stop){.include = o->include};
  if (o->string_count < 0 || o->string_count > RF_STOP_STRINGS)
    return RF_FAIL(error, RAFTER_INVALID, "give fewer stop strings",
                   "too many stop strings (expected at most %d, got %lld)", RF_STOP_STRINGS,
                   (long long)o->string_count);
  for (int64_t i = 0; i < o->string_count; i++)
    if (o->strings[i].bytes < 1 || o->strings[i].bytes > RF_STOP_BYTES)
      return RF_FAIL(error, RAFTER_INVALID, NULL,
                     "the length of stop string %lld is out of range (expected 1 to %d bytes, got %zu)",
                     (long long)i, RF_STOP_BYTES, o->strings[i].bytes);
  stop->string = calloc((size_t)o->string_count + 1, sizeof *stop->string);
  if (!stop->string) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while reading stop strings");
  for (; stop->string_count < o->string_count; stop->string_count++) {
    struct rf_stop_string *s = &stop->string[stop->string_count];
    s->bytes = (int32_t)o->strings[stop->string_count].bytes;
    memcpy(s->text, o->strings[stop->string_count].at, (size_t)s->bytes);
    find_borders(s);
  }
  return RAFTER_OK;
}

rf_status rf_stop_of(const char *const *texts, int count, rf_stop *stop, rf_error *error) {
  rf_span span[RF_STOP_STRINGS];
  for (int i = 0; i < count && i < RF_STOP_STRINGS; i++) span[i] = (rf_span){texts[i], strlen(texts[i])};
  return rf_stop_open(&(rf_stop_options){.strings = span, .string_count = count}, stop, error);
}

void rf_stop_close(rf_stop *stop) {
  free(stop->string);
  *stop = (rf_stop){0};
}

void rf_stop_start(const rf_stop *stop, rf_stop_state *state) { *state = (rf_stop_state){.stop = stop}; }

/* Adds one byte. Returns the index of the first stop string that ends with this byte, or -1. */
static int32_t step(rf_stop_state *state, uint8_t byte) {
  int32_t found = -1;
  for (int32_t i = 0; i < (int32_t)state->stop->string_count; i++) {
    const struct rf_stop_string *s = &state->stop->string[i];
    int32_t k = state->matched[i];
    while (k > 0 && s->text[k] != byte) k = s->border[k - 1];
    if (s->text[k] == byte) k++;
    if (k == s->bytes && found < 0) found = i;
    state->matched[i] = (uint8_t)k; /* if no stop string ends here, k is at most 255 */
  }
  return found;
}

/* The held-back bytes, followed by `bytes`, form a text. Releases the first `upto` bytes of this
 * text and holds back the next `keep` bytes. */
static void release(rf_stop_state *state, const char *bytes, size_t upto, size_t keep, rf_stop_text *text) {
  const uint8_t *old = state->held[state->side];
  uint8_t *fresh = state->held[!state->side];
  size_t held = (size_t)state->held_bytes, from_held = upto < held ? upto : held;
  text->released[0] = (rf_span){(const char *)old, from_held};
  text->released[1] = (rf_span){bytes, upto - from_held};
  for (size_t i = 0; i < keep; i++)
    fresh[i] = upto + i < held ? old[upto + i] : (uint8_t)bytes[upto + i - held];
  state->side = !state->side;
  state->held_bytes = (int32_t)keep;
}

bool rf_stop_next(rf_stop_state *state, const char *bytes, size_t count, rf_stop_text *text) {
  *text = (rf_stop_text){{{bytes, 0}, {bytes, 0}}};
  if (state->found) return true;
  for (size_t i = 0; i < count; i++) {
    int32_t found = step(state, (uint8_t)bytes[i]);
    if (found < 0) continue;
    size_t end = (size_t)state->held_bytes + i + 1;
    release(state, bytes, state->stop->include ? end : end - (size_t)state->stop->string[found].bytes, 0,
            text);
    state->found = found + 1;
    return true;
  }
  size_t keep = 0; /* Length of the longest prefix of a stop string with which the text ends. */
  for (int64_t i = 0; i < state->stop->string_count; i++)
    if (state->matched[i] > keep) keep = state->matched[i];
  release(state, bytes, (size_t)state->held_bytes + count - keep, keep, text);
  return false;
}

void rf_stop_end(rf_stop_state *state, rf_stop_text *text) {
  release(state, "", state->found ? 0 : (size_t)state->held_bytes, 0, text);
  memset(state->matched, 0, sizeof state->matched);
}
