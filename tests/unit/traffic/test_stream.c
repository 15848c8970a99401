/* test_stream.c - the reader of server-sent events, with a stream that is split at every byte, and
 * the parser of events in the shapes of several servers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "traffic/chunk.h"
#include "traffic/metrics.h"
#include "traffic/sse.h"

typedef struct seen {
  char text[4096];
  size_t bytes;
  int events, most; /* after `most` events, the next one fails; 0: no limit */
} seen;

static rf_status take(void *self, const char *data, size_t bytes, rf_error *error) {
  seen *s = self;
  assert_int_equal(data[bytes], 0);
  if (s->most && s->events == s->most) return RF_FAIL(error, RAFTER_FAILED, NULL, "enough");
  assert_true(s->bytes + bytes + 1 < sizeof s->text);
  memcpy(s->text + s->bytes, data, bytes);
  s->bytes += bytes;
  s->text[s->bytes++] = '|';
  s->events++;
  return RAFTER_OK;
}

/* Feeds the stream in pieces: `first` bytes, then pieces of `step` bytes. */
static void read_in_pieces(const char *stream, size_t bytes, size_t first, size_t step, seen *s) {
  rf_sse sse = {.event = take, .self = s};
  rf_error error = {0};
  for (size_t at = 0; at < bytes;) {
    size_t part = at ? step : first;
    if (part > bytes - at) part = bytes - at;
    /* exactly these bytes are readable, so that a sanitizer notices a read too far */
    char *piece = malloc(part);
    assert_non_null(piece);
    memcpy(piece, stream + at, part);
    assert_int_equal(rf_sse_feed(&sse, piece, part, &error), RAFTER_OK);
    free(piece);
    at += part;
  }
  assert_int_equal(rf_sse_end(&sse, &error), RAFTER_OK);
  rf_sse_free(&sse);
}

static void a_stream_may_be_split_anywhere(void **state) {
  (void)state;
  static const struct {
    const char *stream, *events;
  } cases[] = {{"data: one\n\ndata: two\n\n", "one|two|"},
               {"data: one\r\n\r\ndata: two\r\n\r\n", "one|two|"},
               {"data: one\r\rdata: two\r\r", "one|two|"},
               {"\xef\xbb\xbf"
                "data: mark\n\n",
                "mark|"},
               {"data:no blank\n\ndata:  two blanks\n\ndata\n\n", "no blank| two blanks||"},
               {"data: a\ndata: b\n\n", "a\nb|"},
               {"data: a\r\ndata: b\r\n\r\n", "a\nb|"},
               {": comment\nevent: x\nid: 1\nretry: 5\nunknown\n\ndata: y\n\n", "y|"},
               {"data: \xc3\xa9\xe6\x97\xa5\xf0\x9f\x98\x80\n\n", "\xc3\xa9\xe6\x97\xa5\xf0\x9f\x98\x80|"},
               {"data: [DONE]", "[DONE]|"},
               {"data: [DONE]\n", "[DONE]|"},
               {"\n\n\r\n\r\rdata: z\n\r\n", "z|"},
               {"datax: no\ndat: no\n data: no\n\n", ""},
               {"", ""}};
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    const size_t bytes = strlen(cases[c].stream);
    for (size_t first = 1; first <= bytes + 1; first++)
      for (size_t step = 1; step <= bytes + 1; step += step < 3 ? 1 : bytes) {
        seen s = {.bytes = 0};
        read_in_pieces(cases[c].stream, bytes, first, step, &s);
        s.text[s.bytes] = 0;
        if (strcmp(s.text, cases[c].events))
          fail_msg("case %zu, split at %zu by %zu: '%s'", c, first, step, s.text);
      }
  }
}

static void long_lines_and_events_are_refused(void **state) {
  (void)state;
  enum { PART = 1 << 16 };
  char *part = malloc(PART);
  assert_non_null(part);
  for (int kind = 0; kind < 2; kind++) { /* one line without an end; many lines of one event */
    seen s = {.bytes = 0};
    rf_sse sse = {.event = take, .self = &s};
    rf_error error = {0};
    rf_status status = RAFTER_OK;
    int parts = 0;
    memset(part, 'x', PART);
    if (kind) memcpy(part, "data: ", 6);
    if (kind) part[PART - 1] = '\n';
    while (status == RAFTER_OK && parts < 64) {
      status = rf_sse_feed(&sse, part, PART, &error);
      parts++;
    }
    assert_int_equal(status, RAFTER_FAILED);
    assert_true(parts >= RF_SSE_MOST / PART && parts <= RF_SSE_MOST / PART + 1);
    assert_non_null(strstr(error.message, "too long"));
    assert_true(sse.line.capacity <= 3 * RF_SSE_MOST && sse.data.capacity <= 3 * RF_SSE_MOST);
    rf_sse_free(&sse);
  }
  free(part);
}

static void a_failed_event_ends_the_stream(void **state) {
  (void)state;
  seen s = {.most = 1};
  rf_sse sse = {.event = take, .self = &s};
  rf_error error = {0};
  static const char stream[] = "data: a\n\ndata: b\n\ndata: c\n\n";
  assert_int_equal(rf_sse_feed(&sse, stream, strlen(stream), &error), RAFTER_FAILED);
  assert_int_equal(s.events, 1);
  rf_sse_reset(&sse);
  s = (seen){.bytes = 0};
  assert_int_equal(rf_sse_feed(&sse, stream, strlen(stream), &error), RAFTER_OK);
  assert_int_equal(s.events, 3);
  rf_sse_free(&sse);
}

typedef struct event_case {
  const char *data;
  bool last, tokens, finish, refused;
  int64_t input, output;
} event_case;

static void events_of_several_servers(void **state) {
  (void)state;
  static const event_case cases[] = {
      {"[DONE]", true, false, false, false, -1, -1},
      {"{\"choices\":[{\"text\":\" the\",\"finish_reason\":null}]}", false, true, false, false, -1, -1},
      {"{\"choices\":[{\"text\":\"\",\"finish_reason\":null}]}", false, true, false, false, -1, -1},
      {"{\"choices\":[{\"text\":\"\",\"finish_reason\":\"stop\"}]}", false, false, true, false, -1, -1},
      {"{\"choices\":[{\"text\":\"x\",\"finish_reason\":\"length\"}]}", false, true, true, false, -1, -1},
      {"{\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}", false, false, false, false,
       -1, -1},
      {"{\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"Hi\"}}]}", false, true, false, false,
       -1, -1},
      {"{\"choices\":[{\"delta\":{\"content\":\"x\"}}]}", false, true, false, false, -1, -1},
      {"{\"choices\":[{\"delta\":{\"reasoning_content\":\"x\"}}]}", false, true, false, false, -1, -1},
      {"{\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0}]}}]}", false, true, false, false, -1, -1},
      {"{\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}", false, false, true, false, -1, -1},
      {"{\"choices\":[{\"delta\":{\"content\":null}}]}", false, false, false, false, -1, -1},
      {"{\"choices\":[],\"usage\":{\"prompt_tokens\":12,\"completion_tokens\":34}}", false, false, false,
       false, 12, 34},
      {"{\"choices\":[{\"text\":\"a\"}],\"usage\":null}", false, true, false, false, -1, -1},
      {"{\"usage\":{\"completion_tokens\":3}}", false, false, false, false, -1, 3},
      {"{\"error\":{\"message\":\"no\"}}", false, false, false, true, -1, -1},
      {"{\"error\":\"no\"}", false, false, false, true, -1, -1},
      {"{\"error\":null,\"choices\":[{\"text\":\"a\"}]}", false, true, false, false, -1, -1},
      {"{}", false, false, false, false, -1, -1},
      {"{\"choices\":7}", false, false, false, false, -1, -1},
      {"{\"choices\":[7,null,{\"delta\":[]}]}", false, false, false, false, -1, -1}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const event_case *c = &cases[i];
    rf_chunk got;
    rf_error error = {0};
    if (rf_chunk_parse(c->data, strlen(c->data), &got, &error) != RAFTER_OK)
      fail_msg("%s: %s", c->data, error.message);
    if (got.last != c->last || got.tokens != c->tokens || got.finish != c->finish ||
        got.refused != c->refused || got.input_tokens != c->input || got.output_tokens != c->output)
      fail_msg("%s: last %d tokens %d finish %d refused %d, %lld + %lld", c->data, got.last, got.tokens,
               got.finish, got.refused, (long long)got.input_tokens, (long long)got.output_tokens);
  }
}

static void broken_events_are_refused(void **state) {
  (void)state;
  static const char *const bad[] = {"",
                                    "[",
                                    "7",
                                    "\"text\"",
                                    "[]",
                                    "{\"choices\":[",
                                    "{\"a\":\"\xff\"}",
                                    "{\"usage\":{\"completion_tokens\":-1}}",
                                    "{\"usage\":{\"completion_tokens\":1e99}}",
                                    "{\"usage\":{\"prompt_tokens\":\"many\"}}",
                                    "{} {}"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    rf_chunk chunk;
    rf_error error = {0};
    if (rf_chunk_parse(bad[i], strlen(bad[i]), &chunk, &error) != RAFTER_FAILED)
      fail_msg("'%s' was accepted", bad[i]);
    assert_true(*error.message);
  }
}

/* Texts of a server are printed, so they may not move the cursor. */
static void error_texts_are_printable(void **state) {
  (void)state;
  static const struct {
    const char *body, *text;
  } cases[] = {{"{\"error\":{\"message\":\"too \\u001b[2Jmany\"}}", "too [2Jmany"},
               {"{\"error\":\"plain\"}", "plain"},
               {"{\"message\":\"m\"}", "m"},
               {"{\"detail\":\"Not Found\"}", "Not Found"},
               {"<html>\x1b[31m\nbad</html>", "<html>[31mbad</html>"},
               {"", ""}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char text[32];
    rf_chunk_error_text(cases[i].body, strlen(cases[i].body), text, sizeof text);
    assert_string_equal(text, cases[i].text);
  }
  char text[8];
  rf_chunk_printable(text, sizeof text, "a long text", 11);
  assert_string_equal(text, "a long ");
}

static void metrics_of_several_servers(void **state) {
  (void)state;
  static const struct {
    const char *page;
    bool found;
    double running, waiting;
  } cases[] = {
      {"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{model=\"a b}\",x=\"\\\"\"} 3.0\n"
       "vllm:num_requests_waiting{model=\"m\"} 2\nvllm:num_requests_waiting{model=\"n\"} 5\n",
       true, 3, 7},
      {"rafter:num_requests_running 4\r\nrafter:num_requests_waiting 1\r\n", true, 4, 1},
      {"sglang:num_running_reqs{a=\"b\"} 6\nsglang:num_queue_reqs{a=\"b\"} 1e1\n", true, 6, 10},
      {"llamacpp:requests_processing 1\nllamacpp:requests_deferred 0\n", true, 1, 0},
      {"vllm:num_requests_running NaN\nvllm:num_requests_waiting -1\n", false, 0, 0},
      {"vllm:num_requests_running_total 3\nnum_requests_waiting_x 2\n", false, 0, 0},
      {"vllm:num_requests_running{", false, 0, 0},
      {"vllm:num_requests_running", false, 0, 0},
      {"<html>404</html>", false, 0, 0},
      {"", false, 0, 0}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    double running = -1, waiting = -1;
    const bool found = rf_traffic_read_metrics(cases[i].page, &running, &waiting);
    if (found != cases[i].found || running != cases[i].running || waiting != cases[i].waiting)
      fail_msg("case %zu: %d %g %g", i, found, running, waiting);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_stream_may_be_split_anywhere), cmocka_unit_test(long_lines_and_events_are_refused),
      cmocka_unit_test(a_failed_event_ends_the_stream), cmocka_unit_test(events_of_several_servers),
      cmocka_unit_test(broken_events_are_refused),      cmocka_unit_test(error_texts_are_printable),
      cmocka_unit_test(metrics_of_several_servers),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
