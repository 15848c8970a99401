/* trace_overhead.c - measures what recording costs a training step. Every other step is recorded.
 * Both kinds of step are timed by the CPU time of the process and by the wall clock.
 *   trace_overhead [MODEL [STEPS [BATCH]]] */
#define _GNU_SOURCE
#include "run/record.h"
#include "train/train.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static int compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double cpu_seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static rf_status measure(const char *spec, int steps, int batch, bool records, rf_error *error) {
  rf_machine machine = {.name = "bench",
                        .kind = RF_MACHINE_CPU,
                        .source = "file",
                        .chips = 1,
                        .memory_bytes = 64e9,
                        .read_bps = 1e10,
                        .copy_bps = 1e10};
  rf_train_settings s = {.data = "random:seed=4", .pack = true, .work_folder = "/tmp", .seed = 11};
  rf_trace_when when = {records ? 1 : steps + 1, records ? steps : steps + 1, 2};
  rf_trainer *t = NULL;
  rf_record *record = NULL;
  rf_status status = RAFTER_OK;
  double *took[2][2], stamps = 0;
  for (int i = 0; i < 4; i++) took[i / 2][i % 2] = rf_must(calloc((size_t)steps + 1, sizeof(double)));
  machine.flops[RF_F32] = 1e11;
  RF_GO(rf_model_resolve(spec, &s.model, NULL, error));
  s.plan = (rf_plan_options){.build = {.job = RF_JOB_TRAIN,
                                       .dtype = RF_F32,
                                       .softmax = RF_F32,
                                       .microbatch = batch,
                                       .seq = s.model.max_seq,
                                       .accumulate = 1,
                                       .beta1 = 0.9f,
                                       .beta2 = 0.95f,
                                       .eps = 1e-8f,
                                       .clip = 1},
                             .backend = &RF_BACKEND_CPU,
                             .isa = rf_isa_detect(),
                             .threads = omp_get_num_procs(),
                             .machine = &machine};
  s.schedule = (rf_schedule){.kind = RF_SCHEDULE_CONSTANT, .peak = 1e-3, .steps = steps};
  RF_GO(rf_trainer_open(&s, &t, error));
  RF_GO(rf_record_open(&when, s.plan.threads, &record, error));
  for (int i = 0; i < steps; i++) {
    rafter_step step;
    double wall = rf_now_seconds(), cpu = cpu_seconds();
    RF_GO(rf_trainer_step(t, &step, error));
    took[i % 2][0][i / 2] = cpu_seconds() - cpu;
    took[i % 2][1][i / 2] = rf_now_seconds() - wall;
  }
  for (int i = 0; i < rf_record_lanes->count; i++) stamps += (double)rf_record_lanes->lane[i].count;
  int n = steps / 2;
  for (int i = 0; i < 4; i++) qsort(took[i / 2][i % 2], (size_t)n, sizeof(double), compare);
  printf("%s, batch %d, %d threads: %s, %.0f stamps a step\n", spec, batch, s.plan.threads,
         records ? "every other step recorded" : "none recorded, to see the noise", stamps / n);
  static const double quantiles[] = {0, 0.1, 0.25, 0.5};
  for (int q = 0; q < 4; q++) {
    int k = (int)(quantiles[q] * n);
    printf("  quantile %.2f   CPU %8.3f ms recorded, %8.3f ms not: %+5.2f %%   wall %8.3f, %8.3f ms: %+5.2f "
           "%%\n",
           quantiles[q], 1e3 * took[0][0][k], 1e3 * took[1][0][k], 100 * (took[0][0][k] / took[1][0][k] - 1),
           1e3 * took[0][1][k], 1e3 * took[1][1][k], 100 * (took[0][1][k] / took[1][1][k] - 1));
  }
done:
  for (int i = 0; i < 4; i++) free(took[i / 2][i % 2]);
  rf_record_close(record);
  rf_trainer_close(t);
  return status;
}

int main(int argc, char **argv) {
  rf_error error = {0};
  const char *spec = argc > 1 ? argv[1] : "gpt:layers=2,width=128,heads=4,ff=512,vocab=1024,seq=64";
  int steps = argc > 2 ? atoi(argv[2]) : 400, batch = argc > 3 ? atoi(argv[3]) : 4;
  if (measure(spec, steps, batch, false, &error) == RAFTER_OK &&
      measure(spec, steps, batch, true, &error) == RAFTER_OK)
    return 0;
  fprintf(stderr, "trace_overhead: %s\n", error.message);
  return 1;
}
