/* stop.h - ends an answer before a stop string, which is found in its bytes as they come.
 *
 * The strings are read once. Any number of answers may use one rf_stop at the same time, each with
 * a state of its own. Time is proportional to the text times the number of strings, whatever they
 * contain. */
#ifndef RF_STOP_H
#define RF_STOP_H

#include "text/tokenizer.h"

enum { RF_STOP_STRINGS = 64, RF_STOP_BYTES = 256 };

typedef struct rf_stop_options {
  const rf_span *strings; /* any bytes; copied */
  int64_t string_count;   /* 0 .. RF_STOP_STRINGS, each of 1 .. RF_STOP_BYTES bytes */
  bool include;           /* the stop string belongs to the text */
} rf_stop_options;

typedef struct rf_stop {
  struct rf_stop_string {
    uint8_t text[RF_STOP_BYTES];
    uint8_t border[RF_STOP_BYTES]; /* bytes of the longest proper prefix of text[0..i] that also ends it */
    int32_t bytes;
  } * string;
  int64_t string_count;
  bool include;
} rf_stop;

/* One answer's state; {0} with stop set is a fresh one. */
typedef struct rf_stop_state {
  const rf_stop *stop;
  uint8_t matched[RF_STOP_STRINGS]; /* bytes at the text's end that begin each string */
  /* bytes not yet released: those of the last call, and those handed out by it */
  uint8_t held[2][RF_STOP_BYTES];
  int32_t held_bytes, side;
  int32_t found; /* 1 + index of the stop string that ended the text; 0: none yet */
} rf_stop_state;

/* What may be shown now: released[0], then released[1]. Valid until the next call with this
 * state and as long as the bytes given. */
typedef struct rf_stop_text {
  rf_span released[2];
} rf_stop_text;

/* RAFTER_INVALID: too many strings, an empty or too long string. */
rf_status rf_stop_open(const rf_stop_options *options, rf_stop *stop, rf_error *error);
void rf_stop_close(rf_stop *stop);
void rf_stop_start(const rf_stop *stop, rf_stop_state *state);

/* The next bytes of an answer, cut anywhere, inside a character too. Releases what can no longer
 * be part of a stop string. Returns true once a string has been found; whichever ends first
 * wins, of those that end together the earlier in the list, and state->found names it. What
 * comes after it is dropped, then and in later calls. Allocates nothing. */
bool rf_stop_next(rf_stop_state *state, const char *bytes, size_t count, rf_stop_text *text);
/* The answer ended otherwise: releases what was held back. */
void rf_stop_end(rf_stop_state *state, rf_stop_text *text);

#endif
