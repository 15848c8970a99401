/* forms.h - forms without a model, for tests of the room constrain. */
#ifndef RF_TEST_FORMS_H
#define RF_TEST_FORMS_H

#include "constrain/automaton.h"
#include "constrain/constrain.h"

#include <jansson.h>
#include <string.h>

/* Makes the automaton of a regular expression, a schema or parts. */
static inline rf_status form_open(const char *text, rf_text_form form, rf_automaton *a, rf_error *error) {
  json_t *json = form == RF_TEXT_REGEX ? NULL : json_loads(text, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
  if (form != RF_TEXT_REGEX && !json) return RAFTER_FAILED; /* the test is wrong */
  rf_grammar g = {0};
  bool has[256];
  memset(has, 1, sizeof has);
  *a = (rf_automaton){0};
  rf_grammar_state(&g);
  g.start = rf_grammar_state(&g);
  int32_t end = rf_grammar_end(&g);
  rf_status status = form == RF_TEXT_PARTS ? rf_parts_add(&g, json, g.start, end, error)
                     : form == RF_TEXT_SCHEMA
                         ? rf_schema_add(&g, json, g.start, end, error)
                         : rf_regex_add(&g, text, strlen(text), RF_REGEX_PLAIN, "regex", g.start, end, error);
  json_decref(json);
  if (status == RAFTER_OK) status = rf_grammar_finish(&g, has, error);
  if (status == RAFTER_OK) status = rf_automaton_open(a, &g, error);
  rf_grammar_free(&g);
  return status;
}

/* The state after a text; RF_AUTOMATON_DEAD: it is not the beginning of an allowed text. */
static inline int32_t form_after(rf_automaton *a, const char *text, size_t bytes) {
  int32_t state = a->start;
  for (size_t i = 0; i < bytes && state > 0; i++)
    if (rf_automaton_step(a, state, a->grammar.class_of[(uint8_t)text[i]], &state)) return -2;
  return state;
}

static inline bool form_allows(rf_automaton *a, const char *text) {
  int32_t state = form_after(a, text, strlen(text));
  return state > 0 && rf_automaton_at(a, state)->ends;
}

#endif
