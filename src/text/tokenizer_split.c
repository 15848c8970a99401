/* tokenizer_split.c - splits text into words by a list of regular expressions (PCRE2). Each
 * expression splits the parts that the expression before it has made. The words are encoded
 * separately. */
#define _GNU_SOURCE
#include "text/tokenizer_parts.h"

#include <stdlib.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

enum { LITERAL_MAX = 1 << 16, PATTERN_MAX = 1 << 14 };
/* A quick search tries at most AHEAD starts, and reads as many further bytes. If the pattern has
 * more than AHEAD_BYTES / AHEAD bytes, both numbers are smaller. A start has FREE_STEPS steps of
 * PCRE2. A counted search counts its steps, and a limit applies to the steps of the whole text. The
 * patterns of real models need two steps for each blank in a long run of blanks. */
enum { FREE_STEPS = 64, AHEAD = 128, AHEAD_BYTES = 24576 };
enum { TEXT_STEPS = 10000000, BYTE_STEPS = 100 };
/* In a counted search, MOVE bytes between two items cost one step. Each item costs one step per
 * REPEAT of the pattern's largest repetition, because PCRE2 does not say how far a failed item has
 * read. */
enum { MOVE = 16, REPEAT = 32, HEAP_KIB = 1 << 18 };

struct rf_pattern {
  pcre2_code *code;    /* NULL: the pattern is a literal */
  pcre2_code *counted; /* the same pattern, with a callout for each item */
  uint64_t item_steps; /* steps of an item */
  size_t ahead;        /* number of starts of a quick search, and of bytes that it reads after these starts */
  bool refers;         /* true: an item may compare with the whole text of a group */
  bool empty;          /* true: a match may be empty */
  bool jit;
  size_t bytes;
  char text[]; /* NUL-terminated */
};

/* Hugging Face's tokenizers use the engine Oniguruma. The following classes give the same result in
 * PCRE2: \s excludes U+180E (White_Space), \w includes marks, and \h is a hexadecimal digit. Sets
 * inside sets are errors. \b is an error too, because Oniguruma treats a cluster of characters as
 * one character. */
#define BLANKS "\\t-\\r\\x{85}\\p{Z}"
#define WORDS "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"
static const struct {
  char letter;
  const char *inside, *outside;
} CLASSES[] = {{'s', BLANKS, "[" BLANKS "]"}, {'S', NULL, "[^" BLANKS "]"},      {'w', WORDS, "[" WORDS "]"},
               {'W', NULL, "[^" WORDS "]"},   {'h', "0-9A-Fa-f", "[0-9A-Fa-f]"}, {'H', NULL, "[^0-9A-Fa-f]"}};

static rf_status refuse_pattern(const char *what, const char *text, size_t bytes, rf_error *error) {
  return RF_FAIL(error, RAFTER_FAILED, NULL, "unsupported pattern of a tokenizer (%s, in '%.*s')", what,
                 (int)(bytes < 100 ? bytes : 100), text);
}

static rf_status with_own_classes(const char *text, size_t bytes, rf_buffer *out, rf_error *error) {
  bool inside = false;
  for (size_t i = 0; i < bytes; i++) {
    if (text[i] == '\\' && i + 1 < bytes) {
      const char *as = NULL;
      char c = text[++i];
      for (size_t k = 0; k < sizeof CLASSES / sizeof *CLASSES; k++)
        if (CLASSES[k].letter == c) as = inside ? CLASSES[k].inside : CLASSES[k].outside;
      if (inside && (c == 'W' || c == 'H'))
        return refuse_pattern(c == 'W' ? "\\W inside []" : "\\H inside []", text, bytes, error);
      if (c == 'G') return refuse_pattern("the start of the search", text, bytes, error);
      if (c == 'b' || c == 'B') return refuse_pattern("a word boundary", text, bytes, error);
      RF_TRY(as ? rf_buffer_add(out, as, strlen(as), error) : rf_buffer_add(out, text + i - 1, 2, error));
      continue;
    }
    if (inside && text[i] == '[') return refuse_pattern("[ inside []", text, bytes, error);
    if (inside && text[i] == '&' && i + 1 < bytes && text[i + 1] == '&')
      return refuse_pattern("&& inside []", text, bytes, error);
    if (text[i] == '[') inside = true;
    if (text[i] == ']') inside = false;
    RF_TRY(rf_buffer_add(out, text + i, 1, error));
  }
  return RAFTER_OK;
}

/* Returns the largest number of a repetition such as {2,1000}. */
static uint64_t largest_repeat(const char *text) {
  uint64_t largest = 0;
  for (const char *at = text; (at = strpbrk(at, "{,")) != NULL;) {
    uint64_t number = strtoull(++at, NULL, 10);
    if (number > largest) largest = number;
  }
  return largest;
}

/* Compiles the pattern twice: for quick searches and for counted searches. */
static bool compile(rf_pattern *made, rf_buffer own, int *code) {
  PCRE2_SIZE at = 0;
  uint32_t references = 0, empty = 0,
           options =
               PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_USE_OFFSET_LIMIT;
  made->code = pcre2_compile((PCRE2_SPTR)own.at, own.bytes, options, code, &at, NULL);
  if (!made->code) return false;
  made->counted = pcre2_compile((PCRE2_SPTR)own.at, own.bytes, options | PCRE2_AUTO_CALLOUT, code, &at, NULL);
  if (!made->counted) return false;
  pcre2_pattern_info(made->code, PCRE2_INFO_BACKREFMAX, &references);
  pcre2_pattern_info(made->code, PCRE2_INFO_MATCHEMPTY, &empty);
  made->refers = references > 0;
  made->empty = empty;
  size_t ahead = AHEAD_BYTES / made->bytes;
  made->ahead = ahead < AHEAD ? ahead + 1 : AHEAD;
  made->item_steps = 1 + largest_repeat(made->text) / REPEAT;
  made->jit = pcre2_jit_compile(made->code, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD) == 0;
  return true;
}

rf_status rf_pattern_new(const char *text, size_t bytes, bool literal, const char *where,
                         rf_pattern **pattern, rf_error *error) {
  *pattern = NULL;
  size_t most = literal ? LITERAL_MAX : PATTERN_MAX;
  if (bytes < 1 || bytes > most)
    return RF_FAIL(error, RAFTER_FAILED, NULL,
                   "a pattern's length is out of range (%s: expected 1 to %zu bytes, got %zu)", where, most,
                   bytes);
  rf_pattern *made = calloc(1, sizeof *made + bytes + 1);
  if (!made) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  memcpy(made->text, text, bytes);
  made->bytes = bytes;
  if (literal) {
    *pattern = made;
    return RAFTER_OK;
  }
  rf_buffer own = {0};
  rf_status status = with_own_classes(text, bytes, &own, error);
  int code = 0;
  if (status == RAFTER_OK && !compile(made, own, &code)) {
    char why[120];
    pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
    status = RF_FAIL(error, RAFTER_FAILED, NULL, "a pattern is invalid (%s: %s, in '%.*s')", where, why,
                     (int)(bytes < 100 ? bytes : 100), text);
  }
  free(own.at);
  if (status != RAFTER_OK) rf_pattern_free(made);
  else *pattern = made;
  return status;
}

const char *rf_pattern_text(const rf_pattern *pattern) { return pattern->text; }

void rf_pattern_free(rf_pattern *pattern) {
  if (!pattern) return;
  pcre2_code_free(pattern->code);
  pcre2_code_free(pattern->counted);
  free(pattern);
}

uint64_t rf_pattern_steps(size_t bytes) { return TEXT_STEPS + (uint64_t)BYTE_STEPS * bytes; }

void rf_effort_free(rf_effort *effort) {
  pcre2_match_data_free(effort->data);
  pcre2_match_context_free(effort->context);
  effort->data = effort->context = NULL;
}

static rf_status too_many_steps(const rf_pattern *pattern, rf_error *error) {
  return RF_FAIL(error, RAFTER_FAILED, "give a shorter text, or a tokenizer.json with a simpler pattern",
                 "a pattern of the tokenizer takes too many steps for this text (pattern '%.100s')",
                 pattern->text);
}

/* Returns a position between two characters of the text, at `at` or shortly after it. */
static size_t character(rf_span text, size_t at) {
  while (at < text.bytes && ((unsigned char)text.at[at] & 0xC0) == 0x80) at++;
  return at < text.bytes ? at : text.bytes;
}

/* Makes a quick search for a match that begins in [from, end). The search reads only few bytes
 * after `end`, so the time for each start is bounded. Returns as pcre2_match does.
 * PCRE2_ERROR_PARTIAL: bytes after those decide. PCRE2_ERROR_MATCHLIMIT: a start needs more
 * steps. */
static int quick_search(const rf_pattern *pattern, const rf_effort *e, rf_span text, size_t from,
                        size_t end) {
  PCRE2_SPTR subject = (PCRE2_SPTR)text.at;
  size_t bytes = character(text, end + pattern->ahead);
  uint32_t partial = bytes < text.bytes ? PCRE2_PARTIAL_HARD : 0;
  pcre2_set_match_limit(e->context, FREE_STEPS);
  pcre2_set_offset_limit(e->context, end - 1);
  if (pattern->jit) return pcre2_jit_match(pattern->code, subject, bytes, from, partial, e->data, e->context);
  return pcre2_match(pattern->code, subject, bytes, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT | partial,
                     e->data, e->context);
}

/* The steps that a counted search has taken so far. */
typedef struct counter {
  uint64_t item, moved, limit; /* in 1/MOVE of a step */
  size_t at;                   /* position of the last item */
} counter;

static int count_item(pcre2_callout_block *block, void *self) {
  counter *c = self;
  size_t now = block->current_position;
  c->moved += c->item + (now > c->at ? now - c->at : c->at - now);
  c->at = now;
  return c->moved > c->limit ? PCRE2_ERROR_MATCHLIMIT : 0;
}

/* Matches at `from` and reads all of the text. The steps count against the limit of the text.
 * Returns as pcre2_match does. */
static int counted_match(const rf_pattern *pattern, rf_effort *e, rf_span text, size_t from) {
  uint64_t item = pattern->item_steps + (pattern->refers ? text.bytes / REPEAT : 0);
  counter c = {.item = item * MOVE, .limit = e->steps * MOVE, .at = from};
  pcre2_set_match_limit(e->context, UINT32_MAX);
  pcre2_set_heap_limit(e->context, HEAP_KIB);
  pcre2_set_offset_limit(e->context, from);
  pcre2_set_callout(e->context, count_item, &c);
  int found = pcre2_match(pattern->counted, (PCRE2_SPTR)text.at, text.bytes, from,
                          PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT | PCRE2_ANCHORED, e->data, e->context);
  pcre2_set_callout(e->context, NULL, NULL);
  uint64_t steps = c.moved / MOVE;
  e->steps -= steps < e->steps ? steps : e->steps;
  return found;
}

/* Searches from `from` on. A search is quick unless a start is difficult. PCRE2 limits the steps of
 * a start, but a repetition of one class may read all of the text in a single step. Returns as
 * pcre2_match does. */
static int match_from(const rf_pattern *pattern, rf_effort *e, rf_span text, size_t from) {
  while (from < text.bytes) {
    size_t end = character(text, from + pattern->ahead);
    int found = quick_search(pattern, e, text, from, end);
    if (found >= 0) return found;
    if (found == PCRE2_ERROR_NOMATCH) {
      from = end;
      continue;
    }
    if (found == PCRE2_ERROR_PARTIAL) { /* the starts before this start do not match */
      from = pcre2_get_startchar(e->data);
      end = from + 1;
    }
    for (; from < end; from += (size_t)rf_utf8_length(text.at + from, text.at + text.bytes)) {
      found = counted_match(pattern, e, text, from);
      if (found != PCRE2_ERROR_NOMATCH) return found;
    }
  }
  /* only an empty match begins at the end of the text */
  return pattern->empty ? counted_match(pattern, e, text, text.bytes) : PCRE2_ERROR_NOMATCH;
}

rf_status rf_pattern_next(const rf_pattern *pattern, rf_effort *effort, const char *text, const char *end,
                          rf_span *hit, rf_error *error) {
  const char *last = hit->at ? hit->at + hit->bytes : NULL, *at = last ? last : text;
  *hit = (rf_span){0};
  if (!pattern->code) {
    hit->at = memmem(at, (size_t)(end - at), pattern->text, pattern->bytes);
    hit->bytes = pattern->bytes;
    return RAFTER_OK;
  }
  if (!effort->data) effort->data = pcre2_match_data_create(1, NULL);
  if (!effort->context) effort->context = pcre2_match_context_create(NULL);
  if (!effort->data || !effort->context) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  while (text < end) {
    size_t from = (size_t)(at - text), bytes = (size_t)(end - text);
    int found = match_from(pattern, effort, (rf_span){text, bytes}, from);
    if (found == PCRE2_ERROR_NOMATCH) return RAFTER_OK;
    if (found < 0) return too_many_steps(pattern, error);
    const PCRE2_SIZE *span = pcre2_get_ovector_pointer(effort->data);
    /* A match is ignored if it is empty and touches the previous match, or if \K moved its start out
     * of the searched range. */
    bool again = span[1] == span[0] && text + span[0] == last;
    if (span[1] >= span[0] && span[0] >= from && span[1] <= bytes && !again) {
      *hit = (rf_span){text + span[0], span[1] - span[0]};
      return RAFTER_OK;
    }
    if (at == end) return RAFTER_OK;
    at = (span[1] > from ? text + span[1] : at) + (span[1] > from ? 0 : rf_utf8_length(at, end));
  }
  return RAFTER_OK;
}

/* ---- the splits of a tokenizer --------------------------------------------------------------- */

const char RF_GPT2_PATTERN[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

#define LLAMA3_PATTERN \
  "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| " \
  "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define QWEN2_PATTERN \
  "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| " \
  "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* Pre-tokenizers with their names in GGUF files (tokenizer.ggml.pre) and their patterns. */
static const struct named {
  const char *name, *pattern[2];
  bool ignore_merges;
} NAMED[] = {
    {"gpt-2", {RF_GPT2_PATTERN}, false},
    {"gpt2", {RF_GPT2_PATTERN}, false},
    {"olmo", {RF_GPT2_PATTERN}, false},
    {"llama-bpe", {LLAMA3_PATTERN}, true},
    {"llama3", {LLAMA3_PATTERN}, true},
    {"llama-v3", {LLAMA3_PATTERN}, true},
    {"qwen2", {QWEN2_PATTERN}, false},
    {"smollm", {"\\p{N}", RF_GPT2_PATTERN}, false},
    {"starcoder", {"\\p{N}", RF_GPT2_PATTERN}, false},
    {"refact", {"\\p{N}", RF_GPT2_PATTERN}, false},
    {"codeshell", {"\\p{N}", RF_GPT2_PATTERN}, false},
};

rf_status rf_splits_add(rf_splits *splits, const char *text, size_t bytes, bool literal,
                        rf_behaviour behaviour, bool invert, const char *where, rf_error *error) {
  if (splits->count == RF_STEPS_MAX)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "too many pre-tokenizers (%s: expected at most %d)", where,
                   (int)RF_STEPS_MAX);
  rf_split *split = &splits->at[splits->count];
  *split = (rf_split){.behaviour = behaviour, .invert = invert};
  RF_TRY(rf_pattern_new(text, bytes, literal, where, &split->pattern, error));
  splits->count++;
  return RAFTER_OK;
}

rf_status rf_splits_named(const char *name, rf_splits *splits, bool *ignore_merges, const char *where,
                          rf_error *error) {
  for (size_t i = 0; name && i < sizeof NAMED / sizeof NAMED[0]; i++) {
    if (strcmp(NAMED[i].name, name)) continue;
    for (int p = 0; p < 2 && NAMED[i].pattern[p]; p++)
      RF_TRY(rf_splits_add(splits, NAMED[i].pattern[p], strlen(NAMED[i].pattern[p]), false, RF_SPLIT_ISOLATED,
                           false, where, error));
    *ignore_merges = NAMED[i].ignore_merges;
    return RAFTER_OK;
  }
  return RF_FAIL(error, RAFTER_FAILED, "supported: gpt-2, llama-bpe, qwen2, smollm, starcoder and olmo",
                 "unknown pre-tokenizer (%s: '%s')", where, name ? name : "none named");
}

const char *rf_pattern_literal(const rf_pattern *pattern) { return pattern->code ? NULL : pattern->text; }

const char *rf_splits_name(const rf_splits *splits, bool ignore_merges) {
  for (size_t i = 0; i < sizeof NAMED / sizeof NAMED[0]; i++) {
    int count = 0;
    while (count < 2 && NAMED[i].pattern[count]) count++;
    bool same = count == splits->count && NAMED[i].ignore_merges == ignore_merges;
    for (int p = 0; p < count && same; p++) {
      const rf_split *split = &splits->at[p];
      same = split->pattern->code && !split->invert && split->behaviour == RF_SPLIT_ISOLATED &&
             !strcmp(split->pattern->text, NAMED[i].pattern[p]);
    }
    if (same) return NAMED[i].name;
  }
  return NULL;
}

void rf_splits_free(rf_splits *splits) {
  for (int i = 0; i < splits->count; i++) rf_pattern_free(splits->at[i].pattern);
  splits->count = 0;
}

/* The state of one split of a text into sections. */
typedef struct cutting {
  const rf_splits *splits;
  rf_effort *effort;
  rf_word_function *word;
  void *self;
  rf_error *error;
} cutting;
typedef struct pending {
  /* the section that waits, because the next section may be joined to it; NULL: no section waits */
  const char *at, *end;
  bool is_match;
} pending;

static rf_status split_text(const cutting *c, int step, const char *at, const char *end);

static rf_status flush_pending(const cutting *c, int step, pending *wait) {
  if (!wait->at) return RAFTER_OK;
  const char *at = wait->at;
  wait->at = NULL;
  return split_text(c, step + 1, at, wait->end);
}

static rf_status add_section(const cutting *c, int step, pending *wait, const char *at, const char *end,
                             bool is_match) {
  const rf_split *split = &c->splits->at[step];
  is_match ^= split->invert;
  /* This section waits, because it may be joined with the next section. */
  bool waits = split->behaviour == RF_SPLIT_CONTIGUOUS ||
               (split->behaviour == RF_SPLIT_PREVIOUS ? !is_match : is_match);
  switch (split->behaviour) {
  case RF_SPLIT_REMOVED: return is_match ? RAFTER_OK : split_text(c, step + 1, at, end);
  case RF_SPLIT_ISOLATED: return split_text(c, step + 1, at, end);
  case RF_SPLIT_PREVIOUS:
  case RF_SPLIT_NEXT:
    if (!waits && wait->at) {
      const char *from = wait->at;
      wait->at = NULL;
      return split_text(c, step + 1, from, end);
    }
    break;
  case RF_SPLIT_CONTIGUOUS:
    if (wait->at && wait->is_match == is_match) return wait->end = end, RAFTER_OK;
    break;
  }
  RF_TRY(flush_pending(c, step, wait));
  if (waits) return *wait = (pending){at, end, is_match}, RAFTER_OK;
  return split_text(c, step + 1, at, end);
}

/* The depth of the recursion is the number of splits. */
static rf_status split_text(const cutting *c, int step, const char *at, const char *end) {
  if (at == end) return RAFTER_OK; /* an empty match only divides the text */
  if (step == c->splits->count) return c->word(c->self, at, (size_t)(end - at), c->error);
  pending wait = {0};
  while (at < end) { /* handles one section of valid UTF-8 at a time; each invalid byte becomes a word */
    const char *stop = rf_utf8_valid(at, end), *from = at;
    for (rf_span hit = {0};; from = hit.at + hit.bytes) {
      RF_TRY(rf_pattern_next(c->splits->at[step].pattern, c->effort, at, stop, &hit, c->error));
      const char *next = hit.at ? hit.at : stop;
      if (from < next) RF_TRY(add_section(c, step, &wait, from, next, false));
      if (!hit.at) break;
      RF_TRY(add_section(c, step, &wait, hit.at, hit.at + hit.bytes, true));
    }
    if (stop < end) RF_TRY(add_section(c, step, &wait, stop, stop + 1, false));
    at = stop + (stop < end);
  }
  return flush_pending(c, step, &wait);
}

rf_status rf_split_words(const rf_splits *splits, rf_effort *effort, const char *text, size_t bytes,
                         rf_word_function *word, void *self, rf_error *error) {
  if (!bytes) return RAFTER_OK;
  cutting c = {splits, effort, word, self, error};
  return split_text(&c, 0, text, text + bytes);
}
