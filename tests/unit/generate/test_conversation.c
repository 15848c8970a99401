/* test_conversation.c - the turns of a conversation over a kept cache are, to the bit, one prompt
 * with all turns. Tokens of earlier answers stay, whatever encoding their text again would give. */
#define _GNU_SOURCE
#include "feeding.h"
#include "generate/conversation.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LETTERS = 96, MERGED = LETTERS, START, END, VOCAB, CONTEXT = 256, TOKENS = 20 };
static const char SHAPE[] = "llama:layers=2,width=64,heads=4,kv_heads=2,ff=160,vocab=99,seq=256,init=flax";
static const char TEMPLATE[] =
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

static rf_prompt_reader reader;

/* A byte-level BPE of one token per printable character, and one merge: "ab". */
static int open_text(void **state) {
  (void)state;
  static const char *const marks[] = {"<|im_start|>", "<|im_end|>"};
  json_t *vocab = json_object(), *added = json_array();
  rf_model model = {.vocab = VOCAB, .eos_id = -1};
  for (int i = 0; i < 94; i++) json_object_set_new(vocab, (char[]){(char)(33 + i), 0}, json_integer(i));
  json_object_set_new(vocab, "\xC4\xA0", json_integer(94)); /* a space */
  json_object_set_new(vocab, "\xC4\x8A", json_integer(95)); /* a newline */
  json_object_set_new(vocab, "ab", json_integer(MERGED));
  for (int i = 0; i < 2; i++)
    json_array_append_new(added, json_pack("{si ss sb sb}", "id", START + i, "content", marks[i], "special",
                                           1, "normalized", 0));
  json_t *json = json_pack("{so s{ss sb} s{ss} s{ss so s[s]}}", "added_tokens", added, "pre_tokenizer",
                           "type", "ByteLevel", "add_prefix_space", 0, "decoder", "type", "ByteLevel",
                           "model", "type", "BPE", "vocab", vocab, "merges", "a b");
  char *text = json_dumps(json, 0);
  bool good = text &&
              rf_tokenizer_json_read(text, strlen(text), "test", &reader.tokenizer, NULL) == RAFTER_OK &&
              rf_chat_new(TEMPLATE, strlen(TEMPLATE), "test", NULL, &reader.chat, NULL) == RAFTER_OK &&
              rf_end_ids_of(&model, "", reader.tokenizer, &reader.ends, NULL) == RAFTER_OK &&
              reader.ends.count == 1 && reader.ends.id[0] == END;
  free(text);
  json_decref(json);
  return good ? 0 : -1;
}

static int close_text(void **state) {
  (void)state;
  rf_prompt_reader_close(&reader);
  return 0;
}

static rf_conversation start(const char *system) {
  rf_conversation c = {.reader = &reader};
  rf_conversation_restart(&c, system);
  return c;
}

static json_t *user(const char *text) { return json_pack("{ss ss}", "role", "user", "content", text); }

static void ask_or_fail(rf_conversation *c, const char *text) {
  rf_error error = {0};
  int dropped;
  if (rf_conversation_ask(c, user(text), CONTEXT, &dropped, &error) != RAFTER_OK)
    fail_msg("%s", error.message);
  assert_int_equal(dropped, 0);
}

/* The prompt `ids` with its answer, which must be freed. The token that starts a turn is barred,
 * because it has no text. With `ends_early`, the end-of-turn token is likely, and ends the
 * answer. */
static rf_prompt answer(rf_generator *g, const rf_ids *ids, bool ends_early) {
  static const rf_logit_bias bias[] = {{START, -INFINITY}, {END, 9}};
  rf_prompt p = {.tokens = *ids,
                 .request = {.max_tokens = TOKENS,
                             .sampler = {.temperature = 3, .top_p = 1, .seed = 11, .bias = bias},
                             .top = 3,
                             .keep = true}};
  rf_error error = {0};
  bool stopped;
  p.request.sampler.bias_count = 1 + ends_early;
  reader.ignores_ends = !ends_early;
  if (rf_prompt_submit(&reader, &p, g, &error) != RAFTER_OK ||
      rf_replies_run(g, &(rf_reply_loop){0}, &stopped, &error) != RAFTER_OK)
    fail_msg("%s", error.message);
  p.tokens = (rf_ids){0}; /* belong to the conversation */
  return p;
}

static void expect_whole(const rf_conversation *c) {
  rf_ids whole = {0};
  rf_error error = {0};
  assert_int_equal(rf_chat_encode(reader.chat, reader.tokenizer, c->messages, NULL, &whole, NULL, &error),
                   RAFTER_OK);
  assert_int_equal(c->ids.count, whole.count);
  assert_memory_equal(c->ids.at, whole.at, (size_t)whole.count * sizeof *whole.at);
  rf_ids_free(&whole);
}

static void expect_equal(const rf_reply *a, const rf_reply *b) {
  size_t count = (size_t)a->tokens.count;
  assert_int_equal(a->tokens.count, b->tokens.count);
  assert_memory_equal(a->tokens.at, b->tokens.at, count * sizeof *a->tokens.at);
  assert_memory_equal(a->logprobs, b->logprobs, count * sizeof *a->logprobs);
  assert_memory_equal(a->top_ids, b->top_ids, 3 * count * sizeof *a->top_ids);
  assert_memory_equal(a->top_logprobs, b->top_logprobs, 3 * count * sizeof *a->top_logprobs);
  assert_int_equal(a->finish, b->finish);
}

/* Three turns reuse the cache. Each answer has the bits of an answer to one prompt with an empty
 * cache. An answer ends at its maximum length, or at the end-of-turn token. */
static void turns_are_one_prompt(void **state) {
  (void)state;
  static const char *const lines[] = {"Hello", "and then?", "Why?"};
  for (int early = 0; early < 2; early++) {
    rf_generator *g = open_shape(SHAPE, 1, CONTEXT, true), *fresh = open_shape(SHAPE, 1, CONTEXT, false);
    rf_conversation c = start("");
    rf_error error = {0};
    int64_t known = 0;
    int ended = 0;
    for (int turn = 0; turn < 3; turn++) {
      ask_or_fail(&c, lines[turn]);
      int64_t reused = rf_generator_counts(g).reused;
      rf_prompt one = answer(g, &c.ids, early), other = answer(fresh, &c.ids, early);
      expect_equal(one.replies.reply, other.replies.reply);
      /* The last token of an answer was chosen but not computed. */
      assert_int_equal(rf_generator_counts(g).reused - reused, turn ? known - 1 : 0);
      assert_int_equal(rf_generator_counts(fresh).reused, 0);
      assert_int_equal(rf_conversation_answered(&c, one.replies.reply, &error), RAFTER_OK);
      known = c.ids.count;
      ended += c.closed;
      rf_prompt_free(&one);
      rf_prompt_free(&other);
    }
    assert_int_equal(json_array_size(c.messages), 6);
    assert_int_equal(ended > 0, early);
    rf_conversation_close(&c);
    rf_generator_close(g);
    rf_generator_close(fresh);
  }
}

static rf_reply said(rf_ids *ids, const char *text) {
  return (rf_reply){
      .tokens = *ids, .text = (char *)(uintptr_t)text, .bytes = strlen(text), .finish = RF_FINISH_STOP};
}

/* An answer of the tokens "a", "b" and the end of the turn keeps its tokens, although its text
 * encodes as "ab". After a stop text, all text is encoded again. */
static void earlier_tokens_stay(void **state) {
  (void)state;
  int32_t tokens[] = {'a' - 33, 'b' - 33, END};
  rf_error error = {0};
  for (int count = 2; count <= 3; count++)
    for (int cut = 0; cut < 2; cut++) {
      rf_conversation c = start("");
      ask_or_fail(&c, "Hello");
      expect_whole(&c);
      int64_t prompt = c.ids.count;
      rf_ids ids = {tokens, count, count};
      rf_reply reply = said(&ids, "ab");
      reply.state.found = cut;
      assert_int_equal(rf_conversation_answered(&c, &reply, &error), RAFTER_OK);
      assert_int_equal(c.ids.count, cut ? 0 : prompt + count);
      ask_or_fail(&c, "Why?");
      if (cut) expect_whole(&c);
      else {
        assert_memory_equal(c.ids.at + prompt, tokens, 2 * sizeof *tokens);
        assert_int_equal(c.ids.at[prompt + 2], END); /* sampled, or from the template */
        assert_int_equal(c.ids.at[prompt + 3], 95);
        assert_int_equal(c.ids.at[prompt + 4], START);
      }
      rf_conversation_close(&c);
    }
}

/* A full context loses its oldest questions, and never the system message. A message that is too
 * long alone is refused, and the conversation continues without it. */
static void a_full_context(void **state) {
  (void)state;
  rf_conversation c = start("Be brief");
  rf_error error = {0};
  int dropped;
  int32_t token = 'x' - 33;
  rf_ids ids = {&token, 1, 1};
  rf_reply reply = said(&ids, "x");
  for (int i = 0; i < 3; i++) {
    ask_or_fail(&c, "123456789");
    assert_int_equal(rf_conversation_answered(&c, &reply, &error), RAFTER_OK);
  }
  int64_t before = c.ids.count;
  assert_int_equal(rf_conversation_ask(&c, user("12"), before, &dropped, &error), RAFTER_OK);
  assert_int_equal(dropped, 1);
  assert_true(c.ids.count < before);
  expect_whole(&c);
  assert_int_equal(json_array_size(c.messages), 6);
  assert_int_equal(rf_conversation_ask(&c, user("123456789"), 40, &dropped, &error), RAFTER_INVALID);
  assert_non_null(strstr(error.message, "longer than the context of 40 tokens"));
  for (int i = 0; i < 2; i++) {
    rf_conversation_restart(&c, NULL);
    assert_int_equal(json_array_size(c.messages), 1);
    assert_string_equal(rf_json_text_at(json_array_get(c.messages, 0), "content"), "Be brief");
  }
  rf_conversation_restart(&c, "");
  assert_int_equal(json_array_size(c.messages), 0);
  ask_or_fail(&c, "Hi");
  expect_whole(&c);
  rf_conversation_close(&c);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(turns_are_one_prompt),
      cmocka_unit_test(earlier_tokens_stay),
      cmocka_unit_test(a_full_context),
  };
  return cmocka_run_group_tests(tests, open_text, close_text);
}
