/* constrain.h - answers that must have a form: a regular expression, a JSON schema, or one of
 * several texts. For the text of an answer so far, a mask says which tokens may come next. Each
 * text that the masks allow can be completed. */
#ifndef RF_CONSTRAIN_H
#define RF_CONSTRAIN_H

#include "constrain/trie.h"

typedef enum rf_text_form {
  RF_TEXT_OBJECT, /* any JSON object; the text of the form is empty */
  RF_TEXT_SCHEMA, /* a JSON schema */
  RF_TEXT_REGEX,
  RF_TEXT_CHOICE, /* a JSON list of texts */
  RF_TEXT_PARTS,  /* parts one after the other; see RAFTER_FORM_PARTS */
} rf_text_form;

enum {
  RF_TEXT_BYTES = 1 << 18, /* maximum bytes of a schema, an expression or a list */
  RF_TEXT_CHOICES = 4096,
  RF_TEXT_KEPT = 32 /* number of unused forms that a cache keeps */
};

/* A form that is ready for masks. Several answers may share one constraint, also on different
 * threads. */
typedef struct rf_constraint rf_constraint;

/* Makes a constraint with one reference. RAFTER_INVALID: the text is wrong, or the form is too
 * large. The error of a schema names the keyword and its place. The time and the memory of this
 * function are bounded. */
rf_status rf_constraint_open(rf_trie *trie, rf_text_form form, const char *text, size_t bytes,
                             rf_constraint **constraint, rf_error *error);
int64_t rf_constraint_vocab(const rf_constraint *constraint);
rf_constraint *rf_constraint_hold(rf_constraint *constraint);
/* Releases one reference, and frees the constraint if this was the last reference. NULL is
 * allowed. */
void rf_constraint_release(rf_constraint *constraint);

/* The text of one answer, as its constraint sees it. {0} has no constraint. The functions allocate
 * nothing. */
typedef struct rf_constrained {
  rf_constraint *of;
  int32_t state;
  struct rf_constrained *next, *before; /* answers with the same constraint */
} rf_constrained;
/* Begins an answer. NULL: without a constraint. Releases the constraint of the previous answer. */
void rf_constrained_begin(rf_constrained *answer, rf_constraint *constraint);
/* Sets bit i of `mask` (vocab / 64 words, rounded up) if token i may come next. Sets *ends to true
 * if the answer may end here, and *only to true if no token may come next. RAFTER_INVALID: the form
 * is too ambiguous. */
rf_status rf_constrained_mask(rf_constrained *answer, uint64_t *mask, bool *ends, bool *only,
                              rf_error *error);
/* Adds a token to the answer. RAFTER_INVALID: the mask bars it. */
rf_status rf_constrained_accept(rf_constrained *answer, int32_t token, rf_error *error);

/* ---- cache.c --------------------------------------------------------------------------------- */

/* A cache of the constraints of one model. Any number of threads may use the cache. The vocabulary
 * is read when the first constraint is made. */
typedef struct rf_constraints rf_constraints;
typedef struct rf_constraint_counts {
  int64_t compiled, found;  /* numbers of constraints that were made, and that were found in the cache */
  double compile_seconds;   /* seconds to make constraints, including the time to read the vocabulary */
  int64_t masks, mask_hits; /* numbers of token masks, and of masks that were found in memory */
  double mask_seconds;      /* seconds of all masks and accepted tokens */
} rf_constraint_counts;
/* Without a tokenizer (NULL), the model can have no constraints. */
rf_constraints *rf_constraints_open(const rf_tokenizer *tokenizer, int64_t vocab);
void rf_constraints_close(rf_constraints *constraints); /* close only after all constraints are released */
rf_status rf_constraints_get(rf_constraints *constraints, rf_text_form form, const char *text, size_t bytes,
                             rf_constraint **constraint, rf_error *error);
rf_constraint_counts rf_constraints_counts(rf_constraints *constraints);

#endif
