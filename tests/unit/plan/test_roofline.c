/* test_roofline.c - compares answers of roofline.h with counting by hand: pairs of attention one by
 * one, contractions element by element, thresholds from both sides. */
#include "study/roofline.h"
#include "plan/job.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* The command as in the program, without the options that every command has. */
static const rf_command ROOFLINE = {
    .name = "roofline",
    .arguments = "OP",
    .most = 8,
    .options = {{RF_MODEL_OPTIONS, "on"}, {RF_LAYOUT_OPTIONS, "price"}, {RF_ROOFLINE_OPTIONS, NULL}}};
static const rf_command *const COMMANDS[] = {&ROOFLINE};
static const rf_commands ALL = {.command = COMMANDS, .count = 1};

static rf_answer answer;

/* Runs a command line; its words are separated by single blanks. */
static void ask(const char *line) {
  char text[512], *words[48];
  int count = 0;
  rf_options *options;
  rf_error error = {0};
  snprintf(text, sizeof text, "%s", line);
  for (char *rest = text, *word; (word = strsep(&rest, " "));) words[count++] = word;
  assert_int_equal(rf_options_new(&ALL, "roofline", &options, &error), RAFTER_OK);
  if (rf_options_parse(options, count, words, &error) != RAFTER_OK) fail_msg("%s: %s", line, error.message);
  if (rf_roofline_answer(options, &answer, &error) != RAFTER_OK) fail_msg("%s: %s", line, error.message);
  rf_options_free(options);
}

static double figure(const char *key) {
  for (int i = 0; i < answer.count; i++)
    if (!strcmp(answer.fact[i].key, key)) return answer.fact[i].value;
  fail_msg("%s has no %s", answer.op, key);
  return 0;
}

static const char *text_of(const char *key) {
  for (int i = 0; i < answer.count; i++)
    if (!strcmp(answer.fact[i].key, key)) return answer.fact[i].text;
  return "";
}

static void close_to(double got, double expected, double relative) {
  if (!(fabs(got - expected) <= relative * fabs(expected)))
    fail_msg("%s: got %.12g, expected %.12g", answer.op, got, expected);
}

static void attention_counts_every_pair(void **state) {
  (void)state;
  for (int seq = 1; seq <= 9; seq += 4)
    for (int context = seq; context <= 21; context += 6)
      for (int window = 0; window <= 12; window += 3)
        for (int causal = 0; causal <= 1; causal++) {
          double pairs = 0;
          for (int i = 0; i < seq; i++)
            for (int k = 0; k < context; k++) {
              int place = context - seq + i; /* position of the query among the keys */
              if (causal && (k > place || (window && k <= place - window))) continue;
              if (!causal && window && k >= window) continue;
              pairs++;
            }
          char line[256];
          snprintf(line, sizeof line,
                   "attention --on l4 --batch 3 --heads 8 --kv-heads 2 --head-dim 16 --seq %d --context %d "
                   "--window %d%s",
                   seq, context, window, causal ? "" : " --non-causal");
          ask(line);
          close_to(figure("flops"), 4.0 * 3 * 8 * 16 * pairs, 1e-12);
          close_to(figure("flops_full"), 4.0 * 3 * 8 * 16 * seq * context, 1e-12);
        }
  ask("attention --on tpu-v5e --batch 32 --heads 32 --kv-heads 8 --head-dim 128 --seq 1 --context 8192");
  close_to(figure("intensity"), 4, 0.01); /* decoding: each key serves its group of queries */
}

/* The same op in a graph. */
static void attention_is_that_of_the_op_table(void **state) {
  (void)state;
  rf_model model = {.layers = 1,
                    .width = 1,
                    .heads = 1,
                    .kv_heads = 1,
                    .head_dim = 1,
                    .ff = 1,
                    .vocab = 1,
                    .max_seq = 1,
                    .init = "gpt2"};
  for (int window = 0; window <= 64; window += 64) {
    rf_graph *graph = rf_graph_new(&model);
    graph->seq = 256;
    graph->rows = 512;
    graph->accumulate = 1;
    int id[2] = {rf_graph_tensor(graph, "qkv", RF_CLASS_ACTIVATION, RF_BF16, 2,
                                 (const int64_t[]){512, (8 + 2 * 2) * 64}),
                 rf_graph_tensor(graph, "segments", RF_CLASS_ACTIVATION, RF_I32, 1, (const int64_t[]){513})};
    rf_attr attr = {
        .attention = {
            .heads = 8, .kv_heads = 2, .head_dim = 64, .window = window, .scale = 1, .softmax = RF_F32}};
    int op = rf_graph_emit(graph, &RF_OP_ATTENTION, "attention", RF_SECTION_MICRO, (rf_slots){id, 2},
                           RF_ALL_NEW, &attr, NULL);
    assert_true(op >= 0);
    rf_work work = graph->op[op].def->work(graph, &graph->op[op]);
    char line[200];
    snprintf(line, sizeof line,
             "attention --on l4 --batch 2 --heads 8 --kv-heads 2 --head-dim 64 --seq 256 --window %d",
             window);
    ask(line);
    close_to(figure("flops"), work.flops, 1e-12);
    close_to(figure("flops_full"), work.flops_full, 1e-12);
    rf_graph_free(graph);
  }
}

static void a_matmul_turns_where_it_says(void **state) {
  (void)state;
  ask("matmul --m 64 --k 4096 --n 14336 --weight-dtype i8 --on tpu-v5p");
  double turn = figure("critical_m");
  for (int side = -1; side <= 1; side += 2) {
    char line[160];
    snprintf(line, sizeof line, "matmul --m %.0f --k 4096 --n 14336 --weight-dtype i8 --on tpu-v5p",
             turn + side);
    ask(line);
    assert_string_equal(text_of("bound"), side > 0 ? "compute" : "memory");
  }
  /* A contraction is a matmul in any notation. */
  ask("matmul --m 48 --k 96 --n 160 --on h100-sxm");
  double flops = figure("flops"), bytes = figure("bytes"), seconds = figure("seconds"),
         critical = figure("critical");
  ask("einsum bs,sf->bf b=48,s=96 f=160 --on h100-sxm");
  assert_true(figure("flops") == flops && figure("bytes") == bytes && figure("seconds") == seconds &&
              figure("critical") == critical);
  double exact = 0;
  for (int b = 0; b < 48; b++)
    for (int f = 0; f < 160; f++) exact += 96 + 95; /* as many multiplications, and one addition less */
  assert_true(figure("flops_exact") == exact);
  assert_true(figure("intensity_limit") == INFINITY);
}

static void strategies_turn_where_they_say(void **state) {
  (void)state;
  static const struct {
    const char *with, *key;
    double scale;
  } rows[] = {
      {"parallelism --strategy fsdp --axes 2 --on tpu-v5p:8x8x8 --width 8192 --ff 28672 --matrices 2 "
       "--tokens %.0f",
       "critical_tokens", 1},
      {"parallelism --strategy dp --axes 1 --on tpu-v6e:16x16 --width 8192 --ff 28672 --tokens %.0f",
       "critical_tokens", 1},
      {"parallelism --strategy fsdp+tp --axes 2,1 --on tpu-v5p:16x16x16 --ff 28672 --tokens %.0f",
       "critical_tokens", 1},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    char line[256];
    snprintf(line, sizeof line, rows[i].with, 1e6);
    ask(line);
    double turn = figure(rows[i].key);
    for (int side = -1; side <= 1; side += 2) {
      snprintf(line, sizeof line, rows[i].with, round(turn * (1 + 0.01 * side)));
      ask(line);
      assert_string_equal(text_of("bound"), side > 0 ? "compute" : "network");
      if (i) continue;
      /* The seconds of the layer have the same threshold: 4DF forward and 8DF backward against 12
       * nDF, with the backward pass as the limit. */
      assert_true((figure("layer_compute_seconds") > figure("layer_network_seconds")) == (side > 0));
    }
  }
}

static void decoding_reads_what_it_must(void **state) {
  (void)state;
  /* One token uses one expert of eight; many tokens use all of them. */
  ask("decode --parameters 9e9 --active-parameters 2e9 --experts 8 --experts-used 1 --kv-bytes 0 --batch 1 "
      "--on h100-sxm");
  double one = figure("load_seconds");
  close_to(one, 2e9 * 2 / 3.35e12, 1e-9);
  ask("decode --parameters 9e9 --active-parameters 2e9 --experts 8 --experts-used 1 --kv-bytes 0 --batch "
      "4096 --on h100-sxm");
  close_to(figure("load_seconds"), 9e9 * 2 / 3.35e12, 1e-9);
  ask("kv --layers 26 --kv-heads 1 --head-dim 256 --window 512 --window-period 6 --context 1024 --on l4");
  double bytes = 0;
  for (int layer = 0; layer < 26; layer++) bytes += ((layer + 1) % 6 ? 512 : 1024) * 2 * 256 * 2.0;
  assert_true(figure("bytes_per_sequence") == bytes);
  ask("kv --model deepseek-v3 --context 100 --on l4");
  assert_true(figure("bytes_per_token") == 61 * (512 + 64) * 2.0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(attention_counts_every_pair),  cmocka_unit_test(attention_is_that_of_the_op_table),
      cmocka_unit_test(a_matmul_turns_where_it_says), cmocka_unit_test(strategies_turn_where_they_say),
      cmocka_unit_test(decoding_reads_what_it_must),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
