/* constrain.c - constraints, and the answers that they constrain. */
#include "constrain/mask.h"

#include "base/json.h"

#include <stdlib.h>
#include <string.h>

/* ---- forms ----------------------------------------------------------------------------------- */

static rf_status read_json(const char *text, size_t bytes, const char *what, json_t **json, rf_error *error) {
  rf_status status = rf_json_parse(text, bytes, what, json, error);
  if (status != RAFTER_OK && error) error->status = RAFTER_INVALID;
  return status == RAFTER_OK ? status : RAFTER_INVALID;
}

static rf_status add_choices(rf_grammar *g, const char *text, size_t bytes, int32_t from, int32_t to,
                             rf_error *error) {
  json_t *list = NULL, *one;
  size_t i;
  RF_TRY(read_json(text, bytes, "choice", &list, error));
  rf_status status = RAFTER_OK;
  if (!json_is_array(list) || !json_array_size(list) || json_array_size(list) > RF_TEXT_CHOICES)
    status = RF_FAIL(error, RAFTER_INVALID, NULL, "choice is not a list of 1 to %d texts", RF_TEXT_CHOICES);
  json_array_foreach (list, i, one) {
    if (status != RAFTER_OK) break;
    if (json_string_length(one))
      rf_grammar_skip(g, rf_grammar_share(g, from, json_string_value(one), json_string_length(one)), to);
    else
      status =
          RF_FAIL(error, RAFTER_INVALID, NULL, "a choice is not a text of at least 1 byte (choice %zu)", i);
  }
  json_decref(list);
  return status;
}

static rf_status add_form(rf_grammar *g, rf_text_form form, const char *text, size_t bytes, int32_t from,
                          int32_t to, rf_error *error) {
  json_t *schema = NULL;
  if (bytes > RF_TEXT_BYTES)
    return RF_FAIL(error, RAFTER_INVALID, NULL, "the form is too long (expected at most %d bytes, got %zu)",
                   RF_TEXT_BYTES, bytes);
  switch (form) {
  case RF_TEXT_OBJECT: rf_schema_add_object(g, from, to); return RAFTER_OK;
  case RF_TEXT_REGEX: return rf_regex_add(g, text, bytes, RF_REGEX_PLAIN, "regex", from, to, error);
  case RF_TEXT_CHOICE: return add_choices(g, text, bytes, from, to, error);
  default: break;
  }
  bool parts = form == RF_TEXT_PARTS;
  RF_TRY(read_json(text, bytes, parts ? "the form" : "the schema", &schema, error));
  rf_status status =
      parts ? rf_parts_add(g, schema, from, to, error) : rf_schema_add(g, schema, from, to, error);
  json_decref(schema);
  return status;
}

/* The error of a form that exceeds the memory of the automaton. `when` is " during the answer" or
 * "". */
static rf_status too_large(rf_automaton_result result, const char *when, rf_error *error) {
  static const char *const HINT = "use fewer alternatives or smaller counts";
  if (result == RF_AUTOMATON_FULL)
    return RF_FAIL(error, RAFTER_INVALID, HINT,
                   "the form needs too many states%s (expected at most %d for one token)", when,
                   RF_AUTOMATON_STATES);
  return RF_FAIL(error, RAFTER_INVALID, HINT,
                 "the form is too ambiguous%s (expected at most %d ways to read a text)", when,
                 RF_AUTOMATON_WIDTH);
}

/* Computes the first mask, and refuses forms with a reachable state that is too ambiguous. If the
 * memory is full, a mask starts again with empty memory, so the first mask must fit into the
 * memory. */
static rf_status try_out(rf_constraint *c, rf_error *error) {
  enum { STATES = 256 };
  rf_automaton *a = &c->automaton;
  int slot;
  rf_automaton_result result = rf_mask_of(c, &a->start, &slot);
  if (result) return too_large(result, "", error);
  for (int32_t s = 1; s < STATES && s < a->now->states && !result; s++)
    for (int class = 0; class < a->grammar.classes && !result; class ++) {
      int32_t next;
      result = rf_automaton_step(a, s, class, &next);
    }
  return result == RF_AUTOMATON_WIDE ? too_large(result, "", error) : RAFTER_OK;
}

static rf_status open_masks(rf_constraint *c, rf_error *error) {
  int64_t bytes = c->trie->words * (int64_t)sizeof(uint64_t), slots = RF_MASK_BYTES / bytes;
  c->slots = slots < 16 ? 16 : slots > 512 ? 512 : (int)slots;
  c->slot = calloc((size_t)c->slots, sizeof *c->slot);
  c->mask = malloc((size_t)c->slots * (size_t)bytes);
  return c->slot && c->mask ? RAFTER_OK
                            : RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while reading a form");
}

rf_status rf_constraint_open(rf_trie *trie, rf_text_form form, const char *text, size_t bytes,
                             rf_constraint **out, rf_error *error) {
  rf_status status;
  rf_grammar grammar = {0};
  rf_constraint *c = calloc(1, sizeof *c);
  if (!c) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while reading a form");
  c->references = 1;
  c->trie = trie;
  pthread_mutex_init(&c->lock, NULL);
  rf_grammar_state(&grammar); /* state 0 */
  grammar.start = rf_grammar_state(&grammar);
  int32_t end = rf_grammar_end(&grammar);
  RF_GO(add_form(&grammar, form, text, bytes, grammar.start, end, error));
  RF_GO(rf_grammar_finish(&grammar, trie->has, error));
  RF_GO(rf_automaton_open(&c->automaton, &grammar, error));
  RF_GO(open_masks(c, error));
  RF_GO(try_out(c, error));
done:
  rf_grammar_free(&grammar);
  if (status == RAFTER_OK) *out = c;
  else rf_constraint_release(c);
  return status;
}

int64_t rf_constraint_vocab(const rf_constraint *c) { return c->trie->vocab; }

rf_constraint *rf_constraint_hold(rf_constraint *c) {
  if (c) c->references++;
  return c;
}

void rf_constraint_release(rf_constraint *c) {
  if (!c || --c->references) return;
  rf_automaton_close(&c->automaton);
  pthread_mutex_destroy(&c->lock);
  free(c->slot);
  free(c->mask);
  free(c);
}

/* ---- answers --------------------------------------------------------------------------------- */

static void leave(rf_constrained *answer) {
  rf_constraint *c = answer->of;
  if (!c) return;
  pthread_mutex_lock(&c->lock);
  if (answer->before) answer->before->next = answer->next;
  else c->answers = answer->next;
  if (answer->next) answer->next->before = answer->before;
  pthread_mutex_unlock(&c->lock);
  *answer = (rf_constrained){0};
  rf_constraint_release(c);
}

void rf_constrained_begin(rf_constrained *answer, rf_constraint *c) {
  /* take this reference before `leave`, because `leave` may release the same constraint */
  rf_constraint_hold(c);
  leave(answer);
  if (!c) return;
  pthread_mutex_lock(&c->lock);
  *answer = (rf_constrained){.of = c, .state = c->automaton.start, .next = c->answers};
  if (c->answers) c->answers->before = answer;
  c->answers = answer;
  pthread_mutex_unlock(&c->lock);
}

rf_status rf_constrained_mask(rf_constrained *answer, uint64_t *mask, bool *ends, bool *only,
                              rf_error *error) {
  rf_constraint *c = answer->of;
  size_t words = (size_t)c->trie->words;
  int64_t began = rf_now_ns();
  int slot;
  pthread_mutex_lock(&c->lock);
  rf_automaton_result result = answer->state > 0 ? rf_mask_of(c, &answer->state, &slot) : RF_AUTOMATON_WIDE;
  if (!result) {
    memcpy(mask, c->mask + (size_t)slot * words, words * sizeof *mask);
    *ends = rf_automaton_at(&c->automaton, answer->state)->ends;
    *only = c->slot[slot].only;
  }
  pthread_mutex_unlock(&c->lock);
  c->trie->mask_ns += rf_now_ns() - began;
  return result ? too_large(result, " during the answer", error) : RAFTER_OK;
}

/* Follows one byte. If the memory is full, moves to a new generation and tries once more. */
static rf_automaton_result follow(rf_constraint *c, int32_t *state, uint8_t byte) {
  int32_t next;
  int class = c->automaton.grammar.class_of[byte];
  rf_automaton_result result = rf_automaton_step(&c->automaton, *state, class, &next);
  if (result == RF_AUTOMATON_FULL) {
    result = rf_mask_move(c, state);
    if (!result) result = rf_automaton_step(&c->automaton, *state, class, &next);
  }
  if (!result) *state = next;
  return result;
}

rf_status rf_constrained_accept(rf_constrained *answer, int32_t token, rf_error *error) {
  rf_constraint *c = answer->of;
  const bool known = token >= 0 && token < c->trie->vocab &&
                     (c->automaton.grammar.free || !rf_trie_is_special(c->trie, token));
  const rf_span text = known ? c->trie->text[token] : (rf_span){0};
  rf_automaton_result result = RF_AUTOMATON_OK;
  int64_t began = rf_now_ns();
  pthread_mutex_lock(&c->lock);
  for (size_t i = 0; i < text.bytes && !result && answer->state > 0; i++)
    result = follow(c, &answer->state, (uint8_t)text.at[i]);
  bool dead = !text.bytes || answer->state < 0;
  pthread_mutex_unlock(&c->lock);
  c->trie->mask_ns += rf_now_ns() - began;
  if (result) return too_large(result, " during the answer", error);
  return dead ? RF_FAIL(error, RAFTER_INVALID, NULL, "the form of the answer does not allow token %d", token)
              : RAFTER_OK;
}
