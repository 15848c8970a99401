/* stop.h - ends an answer at a stop string, although the text arrives piece by piece.
 *
 * The strings are compiled once. Any number of answers may share one rf_stop; each answer has its
 * own rf_stop_state. The time is proportional to the length of the text multiplied by the number of
 * strings. */
#ifndef RF_STOP_H
#define RF_STOP_H

#include "text/tokenizer.h"

enum { RF_STOP_STRINGS = 64, RF_STOP_BYTES = 256 };

typedef struct rf_stop_options {
  const rf_span *strings; /* Strings of any bytes, which rf_stop_open copies. */
  int64_t string_count;   /* 0 to RF_STOP_STRINGS. A string has 1 to RF_STOP_BYTES bytes. */
  bool include;           /* true: the text includes the stop string. */
} rf_stop_options;

typedef struct rf_stop {
  struct rf_stop_string {
    uint8_t text[RF_STOP_BYTES];
    /* border[i]: length of the longest proper prefix of text[0..i] that is also its suffix. */
    uint8_t border[RF_STOP_BYTES];
    int32_t bytes;
  } * string;
  int64_t string_count;
  bool include;
} rf_stop;

/* State of one answer. The initial state is {.stop = stop}. */
typedef struct rf_stop_state {
  const rf_stop *stop;
  /* Per stop string: length of the string's longest prefix with which the text so far ends. */
  uint8_t matched[RF_STOP_STRINGS];
  /* `held[side]`: bytes that are held back now. `held[!side]`: bytes that were held back before the
   * last call. */
  uint8_t held[2][RF_STOP_BYTES];
  int32_t held_bytes, side;
  int32_t found; /* 1 + index of the found stop string; 0: no stop string. */
} rf_stop_state;

/* Text that may be shown now: released[0], then released[1]. The spans are valid until the next
 * call with the same state, and while the input bytes exist. */
typedef struct rf_stop_text {
  rf_span released[2];
} rf_stop_text;

/* Returns RAFTER_INVALID if there are too many strings, or if a string is empty or too long. */
rf_status rf_stop_open(const rf_stop_options *options, rf_stop *stop, rf_error *error);
/* Like rf_stop_open, from NUL-terminated strings. */
rf_status rf_stop_of(const char *const *texts, int count, rf_stop *stop, rf_error *error);
void rf_stop_close(rf_stop *stop);
void rf_stop_start(const rf_stop *stop, rf_stop_state *state);

/* Adds the next bytes of an answer, which may end inside a UTF-8 character. Releases the bytes that
 * cannot be part of a stop string. If the text contains a stop string, returns true and sets
 * state->found. Among several stop strings, takes the string that ends first. If several strings
 * end together, takes the first of the list. Text after the stop string is dropped. Allocates
 * nothing. */
bool rf_stop_next(rf_stop_state *state, const char *bytes, size_t count, rf_stop_text *text);
/* Ends an answer that has no stop string, and releases the held-back bytes. */
void rf_stop_end(rf_stop_state *state, rf_stop_text *text);

#endif
