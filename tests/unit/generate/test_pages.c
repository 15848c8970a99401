/* test_pages.c - tests pages of the KV cache: the number of pages of a sequence against the
 * formula, and the ownership of pages, with planted faults that the checker must find. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "generate/pages.h"
#include "plan/plan.h"

static rf_model model_of(const char *name) {
  rf_model model;
  rf_error error = {0};
  if (rf_model_resolve(name, &model, NULL, &error) != RAFTER_OK) fail_msg("%s", error.message);
  return model;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

/* Gemma 3's cache for one sequence in bf16. The exact size is the sum over layers of 2 K H min(S,
 * W) b. The page rule rounds up: global layers have ceil(S / page) pages, local layers min(that,
 * ceil((W + chunk - 1) / page) + 1), with pages and chunks of 256 tokens. */
static void gemma3_takes_what_the_formula_says(void **state) {
  (void)state;
  static const struct {
    const char *name;
    int64_t context, exact_mib, paged_mib;
  } rows[] = {
      /* 4 of 26 layers are global, W = 512, K H = 256: 1 MiB per layer and 1024 tokens; local
       * layers have 4 pages */
      {"gemma3-1b", 8192, 43, 54},
      {"gemma3-1b", 32768, 139, 150},
      /* 5 of 34 layers are global, W = 1024, K H = 1024: 4 MiB per layer and 1024 tokens; local
       * layers have 6 pages */
      {"gemma3-4b", 8192, 276, 334},
      {"gemma3-4b", 32768, 756, 814},
      {"gemma3-12b", 8192, 832, 992}, /* 8 of 48 layers are global, K H = 2048 */
      {"gemma3-12b", 32768, 2368, 2528},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    rf_model model = model_of(rows[i].name);
    rf_build_options options = {
        .job = RF_JOB_GENERATE, .dtype = RF_BF16, .microbatch = 1, .seq = rows[i].context};
    rf_kv kv = rf_kv_of(&model, &options);
    int64_t exact = 0, paged = 0;
    for (int layer = 0; layer < model.layers; layer++) {
      int64_t window = rf_model_window(&model, layer), s = rows[i].context,
              token = 2 * model.kv_heads * model.head_dim * 2;
      int64_t global = (s + 255) / 256, local = (window + 256 - 1 + 255) / 256 + 1;
      exact += (window && window < s ? window : s) * token;
      paged += (window && local < global ? local : global) * 256 * token;
    }
    print_message("%s at %lld: %.1f MiB by the formula, %.1f MiB in pages\n", rows[i].name,
                  (long long)rows[i].context, (double)exact / 0x1p20, (double)paged / 0x1p20);
    assert_int_equal(exact, rows[i].exact_mib << 20);
    assert_int_equal(paged, rows[i].paged_mib << 20);
    assert_int_equal(rf_kv_sequence_bytes(&kv, rows[i].context), paged);
    assert_int_equal(rf_kv_read_bytes(&kv, rows[i].context), exact);
  }
}

/* The bytes of the cache's tensors are those of its sequences, for every dtype and page size. */
static void the_graph_has_these_bytes(void **state) {
  (void)state;
  static const char *const names[] = {"gemma3-270m", "llama3.2-1b", "gpt2", "gemma2-2b"};
  static const rf_dtype dtypes[] = {RF_F32, RF_BF16, RF_I8};
  for (size_t m = 0; m < sizeof names / sizeof *names; m++)
    for (int d = 0; d < 3; d++)
      for (int64_t page = 32; page <= 512; page *= 4) {
        rf_model model = model_of(names[m]);
        rf_build_options options = {.job = RF_JOB_GENERATE,
                                    .dtype = RF_BF16,
                                    .microbatch = 3,
                                    .sequences = m == 1 ? 5 : 0,
                                    .seq = 1000,
                                    .rows = 3,
                                    .chunk = 100,
                                    .kv_page = page,
                                    .kv_dtype_set = true,
                                    .kv_dtype = dtypes[d]};
        rf_graph *graph = NULL;
        rf_error error = {0};
        if (rf_graph_build(&model, &options, NULL, &graph, &error) != RAFTER_OK)
          fail_msg("%s", error.message);
        rf_kv kv = rf_kv_of(&model, &options);
        int64_t bytes = 0;
        for (int t = 0; t < graph->tensor_count; t++)
          if (graph->tensor[t].class == RF_CLASS_KV) bytes += rf_tensor_bytes(&graph->tensor[t]);
        assert_int_equal(bytes, (m == 1 ? 5 : 3) * rf_kv_sequence_bytes(&kv, 1000));
        rf_graph_free(graph);
      }
}

/* A sequence never holds more pages than the formula says, however its tokens arrive, and always
 * holds those that its next token reads. */
static void no_sequence_holds_more(void **state) {
  (void)state;
  rf_model model =
      model_of("gemma3:layers=6,width=64,heads=4,kv_heads=2,head_dim=16,ff=96,vocab=64,seq=4096,window=100");
  for (int64_t page = 32; page <= 128; page *= 2)
    for (int64_t chunk = 1; chunk <= 200; chunk = chunk * 3 + 1) {
      rf_build_options options = {
          .job = RF_JOB_GENERATE, .microbatch = 1, .seq = 1000, .chunk = chunk, .kv_page = page};
      rf_kv kv = rf_kv_of(&model, &options);
      rf_pages pages;
      rf_sequence s;
      rf_error error = {0};
      const rf_sequence *all[] = {&s};
      assert_int_equal(rf_pages_open(&kv, &pages, &error), RAFTER_OK);
      assert_int_equal(rf_sequence_open(&pages, 1000, &s, &error), RAFTER_OK);
      memset(s.tokens, 0, 1000 * sizeof *s.tokens);
      int64_t most = 0;
      for (int64_t turn = 0; s.length < 1000; turn++) {
        int64_t count = turn % 3 == 1 ? 1 : chunk;
        if (count > 1000 - s.length) count = 1000 - s.length;
        if (rf_sequence_extend(&pages, &s, count, &error) != RAFTER_OK) fail_msg("%s", error.message);
        int64_t held = s.of[RF_KV_LOCAL].end - s.of[RF_KV_LOCAL].first;
        most = held > most ? held : most;
        assert_in_range(held, 1, rf_kv_pages(&kv, RF_KV_LOCAL, 1000));
        s.length += count;
        if (rf_pages_check(&pages, all, 1, &error) != RAFTER_OK) fail_msg("%s", error.message);
      }
      assert_int_equal(s.of[RF_KV_GLOBAL].end, rf_kv_pages(&kv, RF_KV_GLOBAL, 1000));
      /* The rule's last page is for the page in which the window may begin. */
      assert_true(most >= rf_kv_pages(&kv, RF_KV_LOCAL, 1000) - 1);
      assert_int_equal(rf_sequence_extend(&pages, &s, page, &error), RAFTER_FAILED);
      assert_non_null(strstr(error.message, "out of pages"));
      rf_sequence_release(&pages, &s);
      assert_int_equal(pages.pool[RF_KV_LOCAL].free_count, kv.of[RF_KV_LOCAL].pool);
      rf_sequence_close(&s);
      rf_pages_close(&pages);
    }
}

/* ---- sharing --------------------------------------------------------------------------------- */

enum { CONTEXT = 256, TEXTS = 3 };
typedef struct world {
  rf_pages pages;
  rf_sequence s[TEXTS];
  const rf_sequence *all[TEXTS];
  int copies, freed;
} world;

static void count_moves(void *self, rf_kv_class class, int32_t from, int32_t to) {
  world *w = self;
  (void)class;
  (void)to;
  if (from >= 0) w->copies++;
  else w->freed++;
}

static void open_world(world *w) {
  rf_model model =
      model_of("gemma3:layers=6,width=64,heads=4,kv_heads=2,head_dim=16,ff=96,vocab=64,seq=4096,window=48");
  rf_build_options options = {
      .job = RF_JOB_GENERATE, .microbatch = TEXTS, .seq = CONTEXT, .chunk = 32, .kv_page = 32};
  rf_kv kv = rf_kv_of(&model, &options);
  rf_error error = {0};
  memset(w, 0, sizeof *w);
  assert_int_equal(rf_pages_open(&kv, &w->pages, &error), RAFTER_OK);
  w->pages.moved = count_moves;
  w->pages.self = w;
  for (int i = 0; i < TEXTS; i++) {
    assert_int_equal(rf_sequence_open(&w->pages, CONTEXT, &w->s[i], &error), RAFTER_OK);
    w->all[i] = &w->s[i];
  }
}
static void close_world(world *w) {
  for (int i = 0; i < TEXTS; i++) {
    rf_sequence_release(&w->pages, &w->s[i]);
    rf_sequence_close(&w->s[i]);
  }
  rf_pages_close(&w->pages);
}
static void grow(world *w, int i, int64_t count, int32_t token) {
  rf_error error = {0};
  while (count > 0) {
    int64_t now = count < 32 ? count : 32;
    if (rf_sequence_extend(&w->pages, &w->s[i], now, &error) != RAFTER_OK) fail_msg("%s", error.message);
    for (int64_t k = 0; k < now; k++) w->s[i].tokens[w->s[i].length++] = token;
    count -= now;
  }
}
static void prove(world *w) {
  rf_error error = {0};
  if (rf_pages_check(&w->pages, w->all, TEXTS, &error) != RAFTER_OK) fail_msg("%s", error.message);
}

static void a_prefix_is_shared(void **state) {
  (void)state;
  world w;
  open_world(&w);
  grow(&w, 0, 70, 1);
  assert_true(rf_sequence_share(&w.pages, &w.s[1], &w.s[0], 70));
  prove(&w);
  assert_int_equal(w.s[1].of[RF_KV_GLOBAL].page[1], w.s[0].of[RF_KV_GLOBAL].page[1]);
  grow(&w, 0, 1, 2); /* It writes to its own page, so nothing moves. */
  assert_int_equal(w.copies, 0);
  grow(&w, 1, 1, 3); /* Both sequences began with this page, so it is copied, in each class. */
  assert_int_equal(w.copies, 2);
  assert_int_not_equal(w.s[1].of[RF_KV_GLOBAL].page[2], w.s[0].of[RF_KV_GLOBAL].page[2]);
  prove(&w);
  grow(&w, 0, 100, 2);
  assert_int_equal(w.copies, 2);
  assert_false(rf_sequence_reaches(&w.pages, &w.s[0], 70)); /* Its window no longer includes the position. */
  assert_false(rf_sequence_share(&w.pages, &w.s[2], &w.s[0], 70));
  assert_int_equal(w.s[2].length, 0);
  assert_true(rf_sequence_share(&w.pages, &w.s[2], &w.s[1], 64)); /* Whole pages are shared without a copy. */
  grow(&w, 2, 5, 4);
  assert_int_equal(w.copies, 2);
  prove(&w);
  rf_sequence_release(&w.pages, &w.s[0]);
  prove(&w);
  /* It is cut within a page that another sequence reads, so the page is copied before the next
   * write. */
  assert_true(rf_sequence_cut(&w.pages, &w.s[1], 50));
  grow(&w, 1, 3, 5);
  assert_int_equal(w.copies, 4);
  prove(&w);
  close_world(&w);
  assert_true(w.freed > 0);
}

static void faults_are_found(void **state) {
  (void)state;
  static const struct {
    const char *what, *says;
  } faults[] = {{"handed out twice", "belongs to two sequences"},
                {"freed twice", "free twice"},
                {"freed while held", "both free and listed"},
                {"read after release", "released a page"},
                {"lost", "is lost"},
                {"named twice", "twice"},
                {"a holder too many", "listed by"},
                {"a page that is none", "out of range"}};
  for (size_t f = 0; f < sizeof faults / sizeof *faults; f++) {
    world w;
    rf_error error = {0};
    open_world(&w);
    grow(&w, 0, 70, 1);
    grow(&w, 1, 40, 2);
    prove(&w);
    struct rf_page_pool *pool = &w.pages.pool[RF_KV_GLOBAL];
    int32_t *page = w.s[0].of[RF_KV_GLOBAL].page;
    world sound = w;
    int32_t first = page[0], second = page[1], last = page[2], holders = pool->holders[first],
            top = pool->free[pool->free_count - 1];
    if (f == 0) {
      pool->holders[page[1]]--;
      page[1] = w.s[1].of[RF_KV_GLOBAL].page[0];
      pool->holders[page[1]]++;
      pool->free[pool->free_count++] = second;
    }
    if (f == 1) {
      pool->free[pool->free_count] = top;
      pool->free_count++;
    }
    if (f == 2) pool->free[pool->free_count++] = first;
    if (f == 3) {
      page[2] = -1;
      pool->holders[last]--;
      pool->free[pool->free_count++] = last;
    }
    if (f == 4) pool->free_count--;
    if (f == 5) {
      page[2] = page[1];
      pool->holders[second]++;
      pool->holders[last]--;
      pool->free[pool->free_count++] = last;
    }
    if (f == 6) pool->holders[first]++;
    if (f == 7) page[0] = (int32_t)w.pages.kv.of[RF_KV_GLOBAL].pool;
    assert_int_equal(rf_pages_check(&w.pages, w.all, TEXTS, &error), RAFTER_FAILED);
    if (!strstr(error.message, faults[f].says))
      fail_msg("%s: expected '%s' in '%s'", faults[f].what, faults[f].says, error.message);
    print_message("%s: %s\n", faults[f].what, error.message);
    /* Undo the fault. */
    page[0] = first;
    page[1] = second;
    page[2] = last;
    pool->free_count = sound.pages.pool[RF_KV_GLOBAL].free_count;
    pool->holders[first] = holders;
    pool->holders[second] = pool->holders[last] = 1;
    pool->holders[w.s[1].of[RF_KV_GLOBAL].page[0]] = 1;
    prove(&w);
    close_world(&w);
  }
}

/* rf_sequence_takes says what rf_sequence_extend takes from the free pages, copies included. */
static void room_is_counted_before_it_is_needed(void **state) {
  (void)state;
  world w;
  rf_error error = {0};
  open_world(&w);
  grow(&w, 0, 70, 1);
  assert_true(rf_sequence_share(&w.pages, &w.s[1], &w.s[0], 70));
  assert_int_equal(rf_sequence_takes(&w.pages, &w.s[0], RF_KV_GLOBAL, 26), 0);
  assert_int_equal(rf_sequence_takes(&w.pages, &w.s[1], RF_KV_GLOBAL, 26), 1);
  assert_int_equal(rf_sequence_takes(&w.pages, &w.s[1], RF_KV_GLOBAL, 27), 2);
  for (int i = 0; i < 60; i++) {
    rf_sequence *s = &w.s[i % TEXTS];
    const int64_t count = 1 + i % 3, before = w.pages.pool[RF_KV_GLOBAL].free_count,
                  takes = rf_sequence_takes(&w.pages, s, RF_KV_GLOBAL, count);
    assert_int_equal(rf_sequence_extend(&w.pages, s, count, &error), RAFTER_OK);
    assert_int_equal(before - w.pages.pool[RF_KV_GLOBAL].free_count, takes);
    for (int64_t k = 0; k < count; k++) s->tokens[s->length++] = i;
  }
  prove(&w);
  close_world(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(gemma3_takes_what_the_formula_says),
      cmocka_unit_test(the_graph_has_these_bytes),
      cmocka_unit_test(no_sequence_holds_more),
      cmocka_unit_test(a_prefix_is_shared),
      cmocka_unit_test(faults_are_found),
      cmocka_unit_test(room_is_counted_before_it_is_needed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
