/* tool_calls.c - see tool_calls.h. The parser reads the text byte by byte. */
#define _GNU_SOURCE /* memmem */
#include "serve/call.h"

#include <stdlib.h>
#include <string.h>

enum state {
  TEXT,      /* reading content, or the start of an opening mark */
  HEAD,      /* reading the name of a call, after an opening mark */
  OBJECT,    /* reading a whole JSON object that does not begin with the name */
  ARGUMENTS, /* reading the arguments of a call whose name is known */
  REST,      /* reading the rest of the call's object, after the arguments */
  BETWEEN    /* after a call */
};
/* Maximum sizes of held text. Without these bounds, a model that writes endless blanks could fill
 * the memory. */
enum { HEAD_BYTES = 1024, NAME_BYTES = 256, BLANK_BYTES = RF_TOOL_BLANKS };

void rf_tool_calls_start(rf_tool_calls *c, const rf_tool_format *format, const json_t *tools, bool single,
                         bool forced, bool streams) {
  *c = (rf_tool_calls){
      .format = format, .tools = tools, .single = single, .streams = streams, .state = forced ? HEAD : TEXT};
}

static void free_call(rf_tool_call *call) {
  free(call->name);
  rf_body_free(&call->head);
  rf_body_free(&call->arguments);
}

void rf_tool_calls_free(rf_tool_calls *c) {
  for (int i = 0; i < c->count; i++) free_call(&c->call[i]);
  free(c->call);
  rf_body_free(&c->content);
  rf_body_free(&c->held);
  *c = (rf_tool_calls){0};
}

static bool is_blank(char c) { return c && strchr(" \t\r\n", c); }

/* Returns the number of blanks at the beginning of the held text. */
static size_t held_blanks(const rf_tool_calls *c) {
  size_t n = 0;
  while (n < c->held.bytes && is_blank(c->held.at[n])) n++;
  return n;
}

static void drop_held(rf_tool_calls *c) { c->held.bytes = 0; }

/* Moves the held text to the content. */
static void give_held(rf_tool_calls *c) {
  rf_body_bytes(&c->content, c->held.at, c->held.bytes);
  drop_held(c);
  c->state = TEXT;
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* Begins a call. Without an opening mark, any JSON object could look like a call. So the call must
 * have the name of a tool; otherwise returns false. */
static bool begin_call(rf_tool_calls *c, const char *name, size_t bytes) {
  const rf_tool_format *f = c->format;
  if (!*f->opening && c->head == 0 && !rf_tool_known(c->tools, name, bytes)) return false;
  c->dropped = c->single && c->count;
  if (c->dropped) return true;
  if (c->count == c->room) {
    c->room = c->room ? 2 * c->room : 4;
    c->call = rf_must(realloc(c->call, (size_t)c->room * sizeof *c->call));
  }
  rf_tool_call *call = &c->call[c->count++];
  *call = (rf_tool_call){.name = rf_must(malloc(bytes + 1))};
  memcpy(call->name, name, bytes);
  call->name[bytes] = 0;
  rf_body_text(&call->arguments, "");
  char hex[25];
  rf_random_hex(hex, 12);
  if (f->short_ids) memcpy(call->id, hex, 9);
  else snprintf(call->id, sizeof call->id, "call_%s", hex);
  return true;
}

static void add_arguments(rf_tool_calls *c, const char *text, size_t bytes) {
  if (!c->dropped) rf_body_bytes(&c->call[c->count - 1].arguments, text, bytes);
}

/* Reads the next byte of a JSON object. Returns true after its last brace. */
static bool scan(rf_tool_calls *c, char byte) {
  if (c->escaped) c->escaped = false;
  else if (c->in_string) {
    c->escaped = byte == '\\';
    c->in_string = byte != '"';
  } else if (byte == '"') c->in_string = true;
  else if (byte == '{' || byte == '[') c->depth++;
  else if (byte == '}' || byte == ']') return --c->depth <= 0;
  return false;
}

static void begin_scan(rf_tool_calls *c, int depth) {
  c->depth = depth;
  c->in_string = c->escaped = false;
}

/* Reads JSON. Whole numbers above 64 bits and NUL characters (\u0000) in strings are valid. Jansson
 * refuses three things that the grammar of JSON allows: numbers that are too large for a double
 * (1e400), one half of a surrogate pair (\ud83d), and NUL characters in keys. Arguments with these
 * things count as wrong. */
static json_t *read_json(const char *text, size_t bytes) {
  return json_loadb(text, bytes, JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL, NULL);
}

/* Returns true if arguments are a JSON object. */
static bool are_json(const char *text, size_t bytes) {
  json_t *read = read_json(text, bytes);
  bool is_object = json_is_object(read);
  json_decref(read);
  return is_object;
}

/* Appends the value of an object's member as the model wrote it, without blanks between tokens.
 * So numbers keep all their digits. The last member of this name counts, as in Jansson. */
static void add_value(const char *text, size_t bytes, const char *name, rf_body *value) {
  rf_body token = {0}; /* a key or a value */
  bool in_string = false, escaped = false, takes = false;
  int depth = 0;
  for (size_t i = 0; i < bytes; i++) {
    const char byte = text[i];
    const bool quoted = in_string;
    if (escaped) escaped = false;
    else if (byte == '\\') escaped = true;
    else if (byte == '"') in_string = !in_string;
    if (!quoted && is_blank(byte)) continue;
    if (!quoted && (byte == '}' || byte == ']')) depth--;
    if (!quoted && (byte == '{' || byte == '[') && depth++ == 0) continue;
    bool key = !quoted && depth == 1 && byte == ':', ends = !quoted && depth < 2 && (byte == ',' || !depth);
    if (!key && !ends) {
      rf_body_bytes(&token, &byte, 1);
      continue;
    }
    if (takes) {
      value->bytes = 0;
      rf_body_bytes(value, token.at, token.bytes);
    }
    takes = key && token.bytes == strlen(name) + 2 && !memcmp(token.at + 1, name, strlen(name));
    token.bytes = 0;
  }
  rf_body_free(&token);
}

/* Appends the arguments of the call in a JSON object. Arguments may be a text, which has to be JSON
 * as well. Returns false if the object has no good arguments. */
static bool add_given(const rf_tool_calls *c, const json_t *call, bool inner, rf_body *value) {
  const char *key = json_object_get(call, "arguments") ? "arguments" : "parameters";
  const json_t *given = json_object_get(call, key);
  const size_t bytes = json_string_length(given);
  if (json_is_string(given)) {
    if (bytes) rf_body_bytes(value, json_string_value(given), bytes);
    return c->streams || are_json(json_string_value(given), bytes);
  }
  if (!given) rf_body_text(value, "{}");
  if (!json_is_object(given)) return !given;
  rf_body whole = {0};
  const char *text = c->held.at + c->object;
  if (inner) add_value(text, c->held.bytes - c->object, "function", &whole);
  else rf_body_bytes(&whole, text, c->held.bytes - c->object);
  add_value(whole.at, whole.bytes, key, value);
  rf_body_free(&whole);
  return value->bytes; /* none: the key is written with escapes */
}

/* Takes the call from a whole JSON object. */
static void take_object(rf_tool_calls *c) {
  json_t *object = read_json(c->held.at + c->object, c->held.bytes - c->object);
  const json_t *inner = json_object_get(object, "function"), *of = json_is_object(inner) ? inner : object;
  const char *name = json_string_value(json_object_get(of, "name"));
  const size_t bytes = json_string_length(json_object_get(of, "name"));
  rf_body value = {0};
  bool good = name && strlen(name) == bytes && add_given(c, of, of == inner, &value);
  if (good && begin_call(c, name, bytes)) {
    if (value.bytes) add_arguments(c, value.at, value.bytes);
    drop_held(c);
    c->state = BETWEEN;
  } else give_held(c);
  rf_body_free(&value);
  json_decref(object);
}

static void begin_object(rf_tool_calls *c, size_t at) {
  c->state = OBJECT;
  c->object = at;
  begin_scan(c, 0);
  for (size_t i = at; i < c->held.bytes; i++)
    if (scan(c, c->held.at[i])) {
      take_object(c);
      return;
    }
}

/* ---- the head of a call ---------------------------------------------------------------------- */

typedef struct cursor {
  const char *at, *end;
  bool more, bad; /* `more`: the text ends too early. `bad`: the text differs from the expected text. */
} cursor;

static void blanks(cursor *r) {
  while (r->at < r->end && is_blank(*r->at)) r->at++;
}

/* Reads a text after blanks. */
static bool reads(cursor *r, const char *text) {
  if (r->more || r->bad) return false;
  blanks(r);
  size_t bytes = strlen(text), left = (size_t)(r->end - r->at);
  if (memcmp(r->at, text, left < bytes ? left : bytes)) r->bad = true;
  else if (left < bytes) r->more = true;
  else r->at += bytes;
  return !r->more && !r->bad;
}

/* Reads text up to the mark `end`. */
static bool reads_until(cursor *r, const char *end, const char **name, size_t *bytes) {
  size_t left = (size_t)(r->end - r->at);
  const char *found = r->more || r->bad ? NULL : memmem(r->at, left, end, strlen(end));
  if (found) {
    *name = r->at;
    *bytes = (size_t)(found - r->at);
    r->at = found + strlen(end);
  } else if (!r->bad) {
    r->more = true;
    r->bad = left > HEAD_BYTES;
  }
  return found;
}

/* Begins a call when its head is complete. The head ends with the first brace of the arguments. */
static void end_head(rf_tool_calls *c, const char *name, size_t bytes) {
  if (!begin_call(c, name, bytes)) {
    give_held(c);
    return;
  }
  if (!c->dropped && !c->streams) rf_body_bytes(&c->call[c->count - 1].head, c->held.at, c->held.bytes);
  drop_held(c);
  c->state = ARGUMENTS;
  begin_scan(c, 1);
  add_arguments(c, "{", 1);
}

/* Gives the text of a call back to the content if its arguments are not JSON. */
static void check_arguments(rf_tool_calls *c) {
  if (c->dropped || c->streams) return;
  rf_tool_call *call = &c->call[c->count - 1];
  if (are_json(call->arguments.at, call->arguments.bytes)) return;
  rf_body_bytes(&c->content, call->head.at, call->head.bytes - 1); /* without the first brace */
  rf_body_bytes(&c->content, call->arguments.at, call->arguments.bytes);
  free_call(call);
  c->count--;
  c->state = TEXT;
}

/* After the last brace of the arguments. */
static void end_arguments(rf_tool_calls *c) {
  c->state = c->format->json ? REST : BETWEEN;
  begin_scan(c, 1);
  check_arguments(c);
}

static bool reads_key(cursor *r) {
  cursor other = *r;
  if (reads(r, "\"arguments\"")) return true;
  if (reads(&other, "\"parameters\"") || (r->bad && other.more)) *r = other;
  return !r->more && !r->bad;
}

/* {"name": "NAME", "arguments": { */
static void read_json_head(rf_tool_calls *c) {
  const char *name = NULL, *base = c->held.at;
  size_t bytes = 0;
  cursor r = {.at = base + c->head, .end = base + c->held.bytes}, list = r;
  if (reads(&list, "[")) r = list;
  blanks(&r);
  size_t object = (size_t)(r.at - base);
  bool is_object = reads(&r, "{");
  if (r.bad || r.more) {
    if (r.bad || c->held.bytes - c->head > HEAD_BYTES) give_held(c);
    return;
  }
  if (reads(&r, "\"name\"") && reads(&r, ":") && reads(&r, "\"") && reads_until(&r, "\"", &name, &bytes) &&
      reads(&r, ",") && reads_key(&r) && reads(&r, ":") && reads(&r, "{") && bytes <= NAME_BYTES &&
      !memchr(name, '\\', bytes))
    end_head(c, name, bytes);
  else if (is_object && (r.bad || !r.more || c->held.bytes - c->head > HEAD_BYTES)) begin_object(c, object);
}

/* Reads the head of a call with the form: mark, NAME, mark, arguments, mark. */
static void read_named_head(rf_tool_calls *c) {
  const rf_tool_format *f = c->format;
  const char *name = NULL;
  size_t bytes = 0, prefix = strlen(f->prefix), repeated = f->again[0] ? strlen(f->again[0]) : 0;
  cursor r = {.at = c->held.at + c->head, .end = c->held.at + c->held.bytes};
  /* The mark of a further call is also the start of `prefix`, so this part is not read again. */
  bool again = repeated && prefix >= repeated && c->head >= repeated &&
               !memcmp(c->held.at + c->head - repeated, f->again[0], repeated);
  reads(&r, f->prefix + (again ? repeated : 0));
  blanks(&r);
  if (reads_until(&r, f->name_end, &name, &bytes) && reads(&r, "{")) {
    const char *mark = memmem(name, bytes, "[CALL_ID]", 9);
    if (mark) bytes = (size_t)(mark - name);
    while (bytes && is_blank(name[bytes - 1])) bytes--;
    if (!bytes || bytes > NAME_BYTES) give_held(c);
    else end_head(c, name, bytes);
  } else if (r.bad || c->held.bytes - c->head > HEAD_BYTES) give_held(c);
}

static void read_head(rf_tool_calls *c) {
  if (c->format->json) read_json_head(c);
  else read_named_head(c);
}

/* ---- text ------------------------------------------------------------------------------------ */

/* Compares a text with a mark. Returns 0 if the text cannot become the mark, 1 if more text may
 * complete the mark, and 2 if the text is the mark. */
static int match(const char *text, size_t bytes, const char *mark) {
  size_t whole = mark ? strlen(mark) : 0;
  if (!whole || bytes > whole || memcmp(text, mark, bytes)) return 0;
  return bytes == whole ? 2 : 1;
}

static void begin_head(rf_tool_calls *c) {
  c->state = HEAD;
  c->head = c->held.bytes;
}

/* Compares the held text, after its blanks, with the mark of a first call. Returns a result of
 * match(). */
static int find_opening(const rf_tool_calls *c, size_t blanks) {
  return match(c->held.at + blanks, c->held.bytes - blanks, rf_tool_mark(c->format));
}

/* Moves held text to the content if it cannot be the beginning of an opening mark. Drops blanks
 * before an opening mark. */
static void read_text(rf_tool_calls *c) {
  while (c->held.bytes) {
    size_t blanks = held_blanks(c);
    if (blanks == c->held.bytes && blanks <= BLANK_BYTES) return;
    if (blanks == c->held.bytes) {
      give_held(c);
      return;
    }
    bool starts = !c->content.bytes && !c->count && !*c->format->opening;
    int found = find_opening(c, blanks);
    if (found == 2) begin_head(c);
    if (found) return;
    if (starts && c->held.at[blanks] == '{') {
      c->state = HEAD;
      c->head = 0;
      read_head(c);
      return;
    }
    rf_body_bytes(&c->content, c->held.at, blanks + 1);
    c->held.bytes -= blanks + 1;
    memmove(c->held.at, c->held.at + blanks + 1, c->held.bytes);
  }
}

static void read_between(rf_tool_calls *c) {
  const rf_tool_format *f = c->format;
  size_t blanks = held_blanks(c), bytes = c->held.bytes - blanks;
  bool waits = !bytes;
  for (int i = 0; i < RF_TOOL_MARKS && bytes; i++) {
    int skips = match(c->held.at + blanks, bytes, f->skip[i]),
        again = match(c->held.at + blanks, bytes, f->again[i]);
    if (skips == 2) {
      drop_held(c);
      return;
    }
    if (again == 2) {
      begin_head(c);
      return;
    }
    waits |= skips || again;
  }
  if (!bytes && blanks > BLANK_BYTES) drop_held(c);
  if (waits) return;
  c->state = TEXT;
  read_text(c);
}

static void add_byte(rf_tool_calls *c, char byte) {
  bool ends;
  switch (c->state) {
  case ARGUMENTS:
    ends = scan(c, byte);
    add_arguments(c, &byte, 1);
    if (ends) end_arguments(c);
    return;
  case REST:
    if (scan(c, byte)) c->state = BETWEEN;
    return;
  default: break;
  }
  rf_body_bytes(&c->held, &byte, 1);
  if (c->state == TEXT) read_text(c);
  else if (c->state == HEAD) read_head(c);
  else if (c->state == BETWEEN) read_between(c);
  else if (scan(c, byte)) take_object(c);
}

void rf_tool_calls_add(rf_tool_calls *c, const char *text, size_t bytes) {
  for (size_t i = 0; i < bytes; i++) add_byte(c, text[i]);
}

void rf_tool_calls_end(rf_tool_calls *c, bool cut) {
  /* A model that ends its answer within the arguments may have left out a quote or a brace. */
  if (c->state == ARGUMENTS && !cut) check_arguments(c);
  bool is_text = c->state == TEXT || c->state == HEAD || c->state == OBJECT;
  if (is_text && (!c->count || held_blanks(c) < c->held.bytes)) give_held(c);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

/* Writes one call, or the part of the call that a stream has not yet written. */
static void put_call(const rf_tool_call *call, int index, size_t from, bool begun, bool streams,
                     rf_body *out) {
  rf_body_text(out, "{");
  if (streams) rf_body_format(out, "\"index\":%d,", index);
  if (!begun) rf_body_format(out, "\"id\":\"%s\",\"type\":\"function\",", call->id);
  rf_body_text(out, "\"function\":{");
  if (!begun) {
    rf_body_text(out, "\"name\":");
    rf_body_string(out, call->name, strlen(call->name));
    rf_body_text(out, ",");
  }
  rf_body_text(out, "\"arguments\":");
  rf_body_string(out, call->arguments.at + from, call->arguments.bytes - from);
  rf_body_text(out, "}}");
}

void rf_tool_calls_message(const rf_tool_calls *c, rf_body *out) {
  rf_body_text(out, "\"content\":");
  if (c->content.bytes || !c->count)
    rf_body_string(out, c->content.at ? c->content.at : "", c->content.bytes);
  else rf_body_text(out, "null");
  for (int i = 0; i < c->count; i++) {
    rf_body_text(out, i ? "," : ",\"tool_calls\":[");
    put_call(&c->call[i], i, 0, false, false, out);
  }
  if (c->count) rf_body_text(out, "]");
}

static bool has_news(const rf_tool_call *call) { return !call->begun || call->sent < call->arguments.bytes; }

/* Returns the index of the first call that the stream has not written completely. A call ends
 * before the next call begins, so only the last calls can be incomplete. */
static int first_new(const rf_tool_calls *c) {
  int i = c->count;
  while (i > 0 && has_news(&c->call[i - 1])) i--;
  return i;
}

bool rf_tool_calls_news(const rf_tool_calls *c) {
  return c->content.bytes > c->content_sent || first_new(c) < c->count;
}

void rf_tool_calls_delta(rf_tool_calls *c, rf_body *out) {
  size_t bytes = c->content.bytes - c->content_sent;
  int first = first_new(c);
  rf_body_text(out, "{");
  if (bytes) {
    rf_body_text(out, "\"content\":");
    rf_body_string(out, c->content.at + c->content_sent, bytes);
    c->content_sent = c->content.bytes;
  }
  if (first < c->count) rf_body_text(out, bytes ? ",\"tool_calls\":[" : "\"tool_calls\":[");
  for (int i = first; i < c->count; i++) {
    rf_tool_call *call = &c->call[i];
    rf_body_text(out, i > first ? "," : "");
    put_call(call, i, call->sent, call->begun, true, out);
    call->begun = true;
    call->sent = call->arguments.bytes;
  }
  rf_body_text(out, first < c->count ? "]}" : "}");
}
