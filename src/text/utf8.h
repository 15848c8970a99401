/* utf8.h - UTF-8 decoding and encoding, and character classes. */
#ifndef RF_UTF8_H
#define RF_UTF8_H

#include <stdbool.h>
#include <stdint.h>

/* Returns the number of bytes (1 to 4) of the UTF-8 character at `at`. Returns 0 if the bytes
 * before `end` are not valid UTF-8. */
int rf_utf8_length(const char *at, const char *end);
/* Returns the code point of a valid character of `bytes` bytes. */
uint32_t rf_utf8_code(const char *at, int bytes);
/* Encodes a code point into `out` and returns the number of bytes. */
int rf_utf8_put(uint32_t code, char out[4]);
/* Returns the end of the section of valid UTF-8 that begins at `at`. */
const char *rf_utf8_valid(const char *at, const char *end);
/* Returns the start of the character that ends at `at`. `at` must be after `text`. */
const char *rf_utf8_before(const char *text, const char *at);
bool rf_code_is_blank(uint32_t code); /* the Unicode property White_Space */
bool rf_code_is_word(uint32_t code);  /* true for a letter, mark, digit or connector */
/* rf_blank_at returns the number of bytes of the blank character that begins at `at`.
 * rf_blank_before does this for the blank character that ends at `at`. Both functions return 0 if
 * this character is not blank. */
int rf_blank_at(const char *at, const char *end);
int rf_blank_before(const char *text, const char *at, const char *end);

#endif
