/* tokenizer_normalize.c - normalizes text: prefix, replacements, Unicode forms and blanks. */
#define _GNU_SOURCE
#include "text/tokenizer_parts.h"

#include <stdlib.h>
#include <utf8proc.h>

static rf_status copy_text(rf_span from, char **to, rf_error *error) {
  *to = malloc(from.bytes + 1);
  if (!*to) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  memcpy(*to, from.at ? from.at : "", from.bytes);
  (*to)[from.bytes] = 0;
  return RAFTER_OK;
}

rf_status rf_normals_add(rf_normals *normals, rf_normal_kind kind, rf_span from, rf_span to,
                         const char *where, rf_error *error) {
  if (normals->count == RF_STEPS_MAX)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "too many normalizers (%s: expected at most %d)", where,
                   (int)RF_STEPS_MAX);
  if (from.bytes > RF_PIECE_MAX || to.bytes > RF_PIECE_MAX)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "a normalizer's text is too long (%s)", where);
  rf_normal *step = &normals->at[normals->count];
  *step = (rf_normal){.kind = kind, .from_bytes = from.bytes, .to_bytes = to.bytes};
  normals->count++;
  RF_TRY(copy_text(from, &step->from, error));
  return copy_text(to, &step->to, error);
}

void rf_normals_free(rf_normals *normals) {
  for (int i = 0; i < normals->count; i++) {
    free(normals->at[i].from);
    free(normals->at[i].to);
    rf_pattern_free(normals->at[i].pattern);
  }
  normals->count = 0;
}

enum { NORMAL_BYTES = 64 << 20, NORMAL_GROWTH = 4 };

rf_effort rf_effort_for(size_t bytes) {
  size_t grown = NORMAL_GROWTH * bytes;
  return (rf_effort){.steps = rf_pattern_steps(bytes), .bytes = grown > NORMAL_BYTES ? grown : NORMAL_BYTES};
}

/* Adds the bytes of a replacement, which may make a text much longer. */
static rf_status add_new(rf_buffer *out, const char *at, size_t bytes, size_t most, rf_error *error) {
  if (out->bytes + bytes > most)
    return RF_FAIL(error, RAFTER_FAILED, "use the tokenizer.json of the model's authors",
                   "the tokenizer's normalizers make a text too long (expected at most %zu bytes)", most);
  return rf_buffer_add(out, at, bytes, error);
}

static rf_status replace_literal(const rf_normal *step, rf_span text, size_t most, rf_buffer *out,
                                 rf_error *error) {
  const char *at = text.at, *end = text.at + text.bytes;
  while (at < end) {
    const char *hit = step->from_bytes == 1 ? memchr(at, step->from[0], (size_t)(end - at))
                                            : memmem(at, (size_t)(end - at), step->from, step->from_bytes);
    RF_TRY(rf_buffer_add(out, at, (size_t)((hit ? hit : end) - at), error));
    if (!hit) break;
    RF_TRY(add_new(out, step->to, step->to_bytes, most, error));
    at = hit + step->from_bytes;
  }
  return RAFTER_OK;
}

static rf_status replace_pattern(const rf_normal *step, rf_span text, rf_effort *effort, rf_buffer *out,
                                 rf_error *error) {
  const char *at = text.at, *end = text.at + text.bytes;
  /* each iteration handles one section of valid UTF-8, because patterns need valid UTF-8 */
  while (at < end) {
    const char *stop = rf_utf8_valid(at, end), *from = at;
    for (rf_span hit = {0};; from = hit.at + hit.bytes) {
      RF_TRY(rf_pattern_next(step->pattern, effort, at, stop, &hit, error));
      if (!hit.at) break;
      RF_TRY(rf_buffer_add(out, from, (size_t)(hit.at - from), error));
      RF_TRY(add_new(out, step->to, step->to_bytes, effort->bytes, error));
    }
    if (stop < end) stop++;
    RF_TRY(rf_buffer_add(out, from, (size_t)(stop - from), error));
    at = stop;
  }
  return RAFTER_OK;
}

static rf_status unicode_form(const rf_normal *step, rf_span text, size_t most, rf_buffer *out,
                              rf_error *error) {
  const char *at = text.at, *end = text.at + text.bytes;
  while (at < end) {
    const char *stop = rf_utf8_valid(at, end);
    utf8proc_uint8_t *form = NULL;
    if (stop > at) {
      utf8proc_ssize_t n =
          utf8proc_map((const utf8proc_uint8_t *)at, stop - at, &form, (utf8proc_option_t)step->unicode);
      if (n < 0)
        return RF_FAIL(error, RAFTER_FAILED, NULL, "cannot normalize a text (%s)", utf8proc_errmsg(n));
      rf_status status = add_new(out, (const char *)form, (size_t)n, most, error);
      free(form);
      RF_TRY(status);
    }
    if (stop < end) RF_TRY(rf_buffer_add(out, stop++, 1, error));
    at = stop;
  }
  return RAFTER_OK;
}

/* Squeezes spaces as SentencePiece does. The function removes the spaces at both ends, and replaces
 * each run of spaces by one space. With `marks`, also removes every U+2581 at the end, because
 * SentencePiece strips the end after it has replaced spaces by U+2581. */
static rf_status squeeze_blanks(rf_span text, bool marks, rf_buffer *out, rf_error *error) {
  const char *at = text.at, *end = text.at + text.bytes;
  while (at < end && *at == ' ') at++;
  for (bool cut = true; cut;) {
    cut = false;
    if (end > at && end[-1] == ' ') {
      end--;
      cut = true;
    } else if (marks && end - at >= 3 && !memcmp(end - 3, RF_SPACE_MARK, 3)) {
      end -= 3;
      cut = true;
    }
  }
  RF_TRY(rf_buffer_reserve(out, (size_t)(end - at), error));
  for (; at < end; at++)
    if (*at != ' ' || at[-1] != ' ') out->at[out->bytes++] = *at;
  return RAFTER_OK;
}

static rf_span strip_blanks(const rf_normal *step, rf_span text) {
  const char *at = text.at, *end = text.at + text.bytes;
  for (int n; step->left && (n = rf_blank_at(at, end));) at += n;
  for (int n; step->right && (n = rf_blank_before(at, end, end));) end -= n;
  return (rf_span){at, (size_t)(end - at)};
}

static bool is_ascii(rf_span text) {
  for (size_t i = 0; i < text.bytes; i++)
    if (text.at[i] & 0x80) return false;
  return true;
}

rf_status rf_normalize(const rf_normals *normals, rf_span text, rf_effort *effort, rf_buffer *buffer,
                       rf_buffer *spare, rf_span *result, rf_error *error) {
  for (int i = 0; i < normals->count && text.bytes; i++) {
    const rf_normal *step = &normals->at[i];
    if (step->kind == RF_NORMAL_STRIP) {
      text = strip_blanks(step, text);
      continue;
    }
    if (step->kind == RF_NORMAL_UNICODE && is_ascii(text)) continue;
    rf_buffer *out =
        text.at >= buffer->at && buffer->at && text.at < buffer->at + buffer->capacity ? spare : buffer;
    out->bytes = 0;
    RF_TRY(rf_buffer_reserve(out, text.bytes + text.bytes / 2 + step->to_bytes, error));
    if (step->kind == RF_NORMAL_PREPEND) {
      RF_TRY(rf_buffer_add(out, step->to, step->to_bytes, error));
      RF_TRY(rf_buffer_add(out, text.at, text.bytes, error));
    } else if (step->kind == RF_NORMAL_SQUEEZE) RF_TRY(squeeze_blanks(text, step->right, out, error));
    else if (step->kind == RF_NORMAL_UNICODE) RF_TRY(unicode_form(step, text, effort->bytes, out, error));
    else if (step->pattern) RF_TRY(replace_pattern(step, text, effort, out, error));
    else RF_TRY(replace_literal(step, text, effort->bytes, out, error));
    text = (rf_span){out->at, out->bytes};
  }
  effort->bytes -= text.bytes < effort->bytes ? text.bytes : effort->bytes;
  *result = text;
  return RAFTER_OK;
}
