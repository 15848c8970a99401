/* eval_choices.c - multiple choice by log-probability, as in lm-evaluation-harness. The model's
 * answer is the choice with the highest log-probability after the context. The score of a choice is
 * its total log-probability, or the mean per character. A row is {"context", "choices": [text,
 * ...], "answer": index}. Rows may also use the key names of other public data sets. */
#define _GNU_SOURCE
#include "api/eval.h"

#include "base/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Keys of the context. A "question" becomes "Question: ...\nAnswer:". */
static const char *const CONTEXTS[] = {"context", "query", "ctx", "question"};
/* Keys of the choices. The value is a list, or {"text": [...], "label": [...]}. */
static const char *const CHOICES[] = {"choices", "endings", "options"};
/* Keys of the right choice: an index from 0 (a number or its digits), or a label such as "B". */
static const char *const ANSWERS[] = {"answer", "label", "gold", "answerKey"};

typedef struct choice {
  /* first, count: range in sheet.ids. The last `own` tokens of this range are the choice. */
  int64_t first, count, own;
  int64_t characters;
  double logprob;
} choice;

typedef struct question {
  /* `first`, `count`: range in sheet.choice. `answer`: index of the right choice. */
  int first, count, answer;
  bool done;
} question;

typedef struct sheet {
  question *question;
  choice *choice;
  int questions, choices;
  rf_ids ids;
  int64_t longest, cut; /* cut: number of contexts that were truncated at the beginning */
} sheet;

static json_t *field(const json_t *row, const char *const *names, size_t count, size_t *which) {
  for (size_t i = 0; i < count; i++) {
    json_t *value = json_object_get(row, names[i]);
    *which = i;
    if (value) return value;
  }
  return NULL;
}
#define FIELD(row, names, which) field(row, names, sizeof names / sizeof *names, which)

/* Returns the index of the right choice, or -1. */
static int answer_of(const json_t *value, const json_t *labels, int count) {
  const char *text = json_string_value(value);
  int64_t number = -1;
  size_t i;
  json_t *label;
  if (json_is_integer(value)) number = json_integer_value(value);
  else if (text) {
    json_array_foreach (labels, i, label)
      if (json_is_string(label) && !strcmp(json_string_value(label), text))
        return (int)i < count ? (int)i : -1;
    if (!rf_text_int(text, &number))
      number = strlen(text) == 1 && *text >= 'A' && *text <= 'Z' ? *text - 'A' : -1;
  }
  return number >= 0 && number < count ? (int)number : -1;
}

static int64_t characters_of(const char *text) {
  int64_t count = 0;
  for (; *text; text++) count += ((unsigned char)*text & 0xc0) != 0x80;
  return count;
}

/* Encodes context and choice as one text, because a token may span the boundary. If the context
 * alone has n tokens, the first n tokens count as context. The remaining tokens count as the
 * choice. */
static rf_status add_choice(rf_evaluation *e, sheet *s, const char *context, const char *text,
                            const char *where, rf_error *error) {
  const char *gap =
      !*context || context[strlen(context) - 1] == ' ' || context[strlen(context) - 1] == '\n' || *text == ' '
          ? ""
          : " ";
  size_t bytes = strlen(context) + strlen(gap) + strlen(text);
  char *whole = malloc(bytes + 1);
  rf_ids context_ids = {0}, both = {0};
  rf_status status = RAFTER_OK;
  if (!whole) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  size_t context_bytes = strlen(context);
  /* Spaces between context and choice count as part of the choice, because most tokenizers join a
   * space with the next word. */
  while (context_bytes && context[context_bytes - 1] == ' ') context_bytes--;
  snprintf(whole, bytes + 1, "%s%s%s", context, gap, text);
  RF_GO(rf_eval_encode(e, context, context_bytes, RF_ENCODE_BOS_EOS, &context_ids, error));
  RF_GO(rf_eval_encode(e, whole, bytes, RF_ENCODE_BOS_EOS, &both, error));
  int64_t own = both.count - context_ids.count, most = e->settings.model.max_seq;
  if (rf_options_given(e->options, "seq")) most = rf_options_int(e->options, "seq");
  int32_t start = rf_tokenizer_bos(e->reader.tokenizer) >= 0 ? rf_tokenizer_bos(e->reader.tokenizer)
                                                             : rf_tokenizer_eos(e->reader.tokenizer);
  bool alone = context_ids.count == 0; /* If the context is empty, the choice follows a start token. */
  if (own < 1 || (alone && start < 0) || own + 1 > most) {
    status = RF_FAIL(error, RAFTER_FAILED, NULL, "a choice cannot be scored (%s: %s)", where,
                     own < 1 ? "the choice has no tokens of its own"
                     : alone ? "no context"
                             : "context and choice are too long");
    goto done;
  }
  int64_t total = both.count + alone, drop = total > most ? total - most : 0;
  bool keep = drop && both.at[0] == start; /* keep the start token */
  s->cut += drop > 0;
  s->choice[s->choices] = (choice){s->ids.count, total - drop, own, characters_of(text), 0};
  if (alone || keep) RF_GO(rf_ids_add(&s->ids, start, error));
  for (int64_t i = drop + keep; i < both.count; i++) RF_GO(rf_ids_add(&s->ids, both.at[i], error));
  if (total - drop > s->longest) s->longest = total - drop;
  s->choices++;
done:
  rf_ids_free(&context_ids);
  rf_ids_free(&both);
  free(whole);
  return status;
}

static rf_status add_question(rf_evaluation *e, sheet *s, const json_t *row, const char *where,
                              rf_error *error) {
  size_t which, ignored, i;
  const json_t *context = FIELD(row, CONTEXTS, &which), *choices = FIELD(row, CHOICES, &ignored),
               *right = FIELD(row, ANSWERS, &ignored);
  const json_t *labels = json_object_get(choices, "label");
  json_t *text;
  if (json_is_object(choices)) choices = json_object_get(choices, "text");
  int count = (int)json_array_size(choices);
  if (!json_is_string(context) || count < 2)
    return RF_FAIL(error, RAFTER_FAILED,
                   "rows are {\"context\": TEXT, \"choices\": [TEXT, ...], \"answer\": INDEX}",
                   "a row has no context or fewer than two choices (%s)", where);
  int answer = answer_of(right, labels, count);
  if (answer < 0)
    return RF_FAIL(error, RAFTER_FAILED, "\"answer\" is an index from 0, or a label",
                   "a row has no valid answer (%s: expected one of %d)", where, count);
  choice *grown = realloc(s->choice, (size_t)(s->choices + count) * sizeof *grown);
  if (!grown) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  s->choice = grown;
  s->question[s->questions++] = (question){s->choices, count, answer, false};
  char *asked = NULL;
  if (asprintf(&asked, !strcmp(CONTEXTS[which], "question") ? "Question: %s\nAnswer:" : "%s",
               json_string_value(context)) < 0)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  rf_status status = RAFTER_OK;
  json_array_foreach (choices, i, text) {
    const char *words = json_string_value(text);
    status = words && *words ? add_choice(e, s, asked, words, where, error)
                             : RF_FAIL(error, RAFTER_FAILED, NULL, "a choice is not text (%s)", where);
    if (status != RAFTER_OK) break;
  }
  free(asked);
  return status;
}

static void take_kept(const rf_evaluation *e, sheet *s) {
  for (int i = 0; i < s->questions; i++) {
    question *q = &s->question[i];
    const json_t *logprobs = json_object_get(rf_eval_kept(e, i), "logprobs");
    q->done = json_array_size(logprobs) == (size_t)q->count;
    for (int c = 0; c < q->count && q->done; c++)
      s->choice[q->first + c].logprob = json_number_value(json_array_get(logprobs, (size_t)c));
  }
}

static rf_status pass(rf_evaluation *e, sheet *s, rf_error *error) {
  rf_status status = RAFTER_OK;
  rf_scorer *scorer = NULL;
  rf_scored *scored = calloc((size_t)s->choices, sizeof *scored);
  float *logprobs = malloc((size_t)s->ids.count * sizeof *logprobs);
  int64_t count = 0, done = 0, at = 0;
  if (!scored || !logprobs) {
    status = RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
    goto done;
  }
  for (int i = 0; i < s->questions; i++)
    for (int c = s->question[i].first;
         c < s->question[i].first + s->question[i].count && !s->question[i].done; c++)
      scored[count++] = (rf_scored){.tokens = s->ids.at + s->choice[c].first,
                                    .count = s->choice[c].count,
                                    .logprobs = logprobs + s->choice[c].first};
  if (!count) goto done;
  RF_GO(rf_eval_open_scorer(e, s->longest, &scorer, error));
  RF_GO(rf_eval_score(e, scorer, scored, count, &done, error));
  for (int i = 0; i < s->questions; i++) {
    question *q = &s->question[i];
    if (q->done) continue;
    if (at + q->count > done) break;
    for (int c = q->first; c < q->first + q->count; c++, at++)
      for (int64_t t = s->choice[c].count - s->choice[c].own; t < s->choice[c].count; t++)
        s->choice[c].logprob += (double)scored[at].logprobs[t];
    q->done = true;
  }
done:
  rf_scorer_close(scorer);
  free(scored);
  free(logprobs);
  return status;
}

/* Returns the likeliest choice of a question, by total log-probability, or by the mean per
 * character if `by_character`. Among equal choices, returns the first. */
static int likeliest(const sheet *s, const question *q, bool by_character) {
  int best = 0;
  double most = -INFINITY;
  for (int i = 0; i < q->count; i++) {
    const choice *c = &s->choice[q->first + i];
    double value = by_character ? c->logprob / (double)(c->characters ? c->characters : 1) : c->logprob;
    if (value > most) {
      most = value;
      best = i;
    }
  }
  return best;
}

static void answer(rf_evaluation *e, const sheet *s, const json_t *rows) {
  int64_t plain = 0, normal = 0, n = 0;
  for (int i = 0; i < s->questions; i++) {
    const question *q = &s->question[i];
    if (!q->done) continue;
    int first = likeliest(s, q, false), second = likeliest(s, q, true);
    json_t *logprobs = json_array(), *id = json_object_get(json_array_get(rows, (size_t)i), "id");
    for (int c = 0; c < q->count; c++)
      json_array_append_new(logprobs, json_real(s->choice[q->first + c].logprob));
    n++;
    plain += first == q->answer;
    normal += second == q->answer;
    json_t *row = json_pack("{si si si so}", "answer", q->answer, "likeliest", first,
                            "likeliest_by_character", second, "logprobs", logprobs);
    if (id) json_object_set(row, "id", id);
    rf_eval_put_row(e, i, row);
  }
  json_object_set_new(e->result, "n", json_integer(n));
  if (s->cut)
    rf_say(e->sink, "%lld contexts were too long and were truncated at the beginning\n", (long long)s->cut);
  json_object_set_new(e->result, "contexts_cut", json_integer(s->cut));
  if (!n) return; /* the evaluation stopped before its first answer */
  rf_eval_put_share(e, "accuracy", plain, n);
  rf_eval_put_share(e, "accuracy_normalised", normal, n);
}

rf_status rf_eval_choices(rf_evaluation *e, rf_error *error) {
  const char *path = rf_options_text(e->options, "data");
  json_t *rows = NULL, *row;
  size_t i;
  sheet s = {0};
  rf_status status = rf_eval_read_rows(path, rf_options_int(e->options, "limit"), &rows, error);
  if (status != RAFTER_OK) return status;
  s.question = calloc(json_array_size(rows), sizeof *s.question);
  if (!s.question) status = RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  json_array_foreach (rows, i, row) {
    char where[600];
    if (status != RAFTER_OK) break;
    snprintf(where, sizeof where, "%.500s, row %zu", path, i + 1);
    status = add_question(e, &s, row, where, error);
  }
  if (status == RAFTER_OK) {
    take_kept(e, &s);
    status = pass(e, &s, error);
  }
  if (status == RAFTER_OK) answer(e, &s, rows);
  json_decref(rows);
  rf_ids_free(&s.ids);
  free(s.question);
  free(s.choice);
  return status;
}
