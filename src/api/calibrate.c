/* calibrate.c - `rafter calibrate`: measures this machine and writes its machine file. */
#define _GNU_SOURCE
#include "api/api.h"
#include "backend/mpi/link.h"
#include "base/file.h"
#include "generate/pace.h"
#include "machine/tuned.h"
#include "run/calibrate.h"
#include "run/delayed.h"
#include "base/text.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void say_progress(void *self, const char *what, double part) {
  rf_put_bar_left(self, rf_process_seconds(), part, "calibrating %3.0f %%  %s", 100 * part, what);
}

void rf_say_tuned(const rafter_sink *sink, const rf_tuned *tuned) {
  char usual[64], best[64];
  if (!tuned->cpu[0]) return;
  rf_say(sink, "blocks tuned on %s, %d thread%s%s\n", tuned->cpu, tuned->threads, rf_plural(tuned->threads),
         tuned->here ? "" : "; not used: this machine has another CPU");
  rf_say(sink, "  %-10s %-23s %-5s %-18s %-16s %-16s %7s %7s\n", "op", "shapes", "dtype", "kernel", "default",
         "winner", "gain", "spread");
  for (int i = 0; i < tuned->count; i++) {
    const rf_tuned_row *r = &tuned->row[i];
    const rf_blocks *of[] = {&r->usual, &r->best};
    for (int k = 0; k < 2; k++)
      snprintf(k ? best : usual, sizeof usual, "%lld/%lldK/%lld", (long long)of[k]->kc,
               (long long)of[k]->a_bytes >> 10, (long long)of[k]->nc);
    rf_say(sink, "  %-10s %-23s %-5s %-18s %-16s %-16s %5.1f %% %5.1f %%\n", r->op,
           rf_tuned_class_name(r->class), rf_dtype_name(r->dtype), r->kernel, usual,
           r->best.kc ? best : "default", 100 * r->gain, 100 * r->spread);
  }
}

/* Keeps the tuned block sizes of an existing machine file, if they were tuned on this CPU. */
static void tuned_before(const char *path, rf_tuned *tuned) {
  rf_machine *before = calloc(1, sizeof *before);
  if (before && access(path, R_OK) == 0 && rf_machine_read(path, before, NULL) == RAFTER_OK &&
      before->tuned.here)
    *tuned = before->tuned;
  free(before);
}

static json_t *summary(const rf_machine *m, const char *path, double seconds) {
  json_t *scaling = json_array(), *flops = json_object(), *vectors = json_object();
  for (int i = 0; i < m->scaling_count; i++)
    json_array_append_new(scaling, json_pack("{si sf sf}", "threads", m->scaling[i].threads, "flops",
                                             m->scaling[i].flops, "read_bps", m->scaling[i].read_bps));
  for (int d = 0; d < RF_DTYPES; d++)
    if (m->flops[d] > 0) json_object_set_new(flops, rf_dtype_name((rf_dtype)d), json_real(m->flops[d]));
  for (int d = 0; d < RF_DTYPES; d++)
    if (m->flops_vectors[d] > 0)
      json_object_set_new(vectors, rf_dtype_name((rf_dtype)d), json_real(m->flops_vectors[d]));
  return json_pack("{ss ss ss si so so sf sf sf so si sf sf so}", "command", "calibrate", "file", path, "isa",
                   m->isa, "threads", m->threads, "flops", flops, "flops_vectors", vectors, "read_bps",
                   m->read_bps, "copy_bps", m->copy_bps, "launch_seconds", m->launch_seconds, "scaling",
                   scaling, "curves", m->curve_count, "seconds", seconds, "others_part", m->others_part,
                   "tuned", m->tuned.cpu[0] ? rf_tuned_json(&m->tuned) : json_null());
}

static void say_peak(const rafter_sink *sink, const rf_machine *m, rf_dtype dtype, const char *name,
                     const char *unit) {
  if (m->flops[dtype] > 0) rf_say(sink, ", %s %.0f %s", name, m->flops[dtype] * 1e-9, unit);
  if (m->flops_vectors[dtype] > 0)
    rf_say(sink, " in tiles and %.0f in vectors", m->flops_vectors[dtype] * 1e-9);
}

/* With --network, all ranks calibrate at the same time, each with its share of the cores. */
static rf_status join_ranks(const rf_options *o, rf_calibrate_options *options, rf_error *error) {
  int rank, ranks;
  if (!rf_options_flag(o, "network")) {
    if (!rf_link_launched(&rank, &ranks)) return RAFTER_OK;
    return RF_FAIL(error, RAFTER_INVALID, "add --network, or start the command without mpirun",
                   "calibrate without --network measures one process, but a launcher started several");
  }
  RF_TRY(rf_link_open(&options->link, error));
  if (!options->link || options->link->ranks < 2)
    return RF_FAIL(error, RAFTER_INVALID, "mpirun -n 2 rafter calibrate --network",
                   "--network needs several ranks of MPI (expected 2 or more, got 1)");
  rf_link_cores cores = {options->isa, options->threads};
  int together = options->link->together;
  if (!rf_options_given(o, "threads") && cores.threads == sysconf(_SC_NPROCESSORS_ONLN))
    cores.threads = cores.threads > together ? cores.threads / together : 1;
  RF_TRY(rf_link_agree(options->link, &cores, error));
  options->isa = (rf_isa)cores.isa;
  options->threads = (int)cores.threads;
  return rf_calibrate_check_ranks(options, error);
}

static rf_status measure(const rf_calibrate_options *options, rf_machine *m, rf_error *error) {
  rf_status status = rf_calibrate(options, m, error);
  if (status == RAFTER_OK) status = rf_pace_calibrate(options, m, error);
  if (!options->link || *options->stopped || (status != RAFTER_OK && status != RAFTER_INTERRUPTED))
    return status;
  /* After a signal, this rank still has to call rf_calibrate_meet, because other ranks may wait for
   * this rank and must stop too. */
  RF_TRY(rf_calibrate_meet(options, error));
  return rf_calibrate_network(options, m, error);
}

/* Prints the latency and bytes/s of the ranks, which the cost formulas use. */
static void say_network(const rafter_sink *sink, const rf_machine *m, const char *library) {
  char chips[120];
  const rf_topology *t = &m->topology;
  if (!m->exchange_count) return;
  rf_say(sink, "  network        %s, %s\n", rf_machine_chips_text(m, chips), library);
  if (t->domain > 1)
    rf_say(sink, "  in a node      %.1f us, %.2f GB/s out of a rank\n", t->hop_seconds * 1e6,
           t->oneway_bps * 1e-9);
  if (m->shape_rank > 1) rf_say(sink, "  between nodes  %.3f GB/s out of a node\n", t->node_bps * 1e-9);
  rf_say(sink, "  collectives    %d curves\n", m->exchange_count);
}

static rf_status rf_command_calibrate(const rafter_job *job, const rafter_sink *sink, rf_error *error) {
  const rf_options *o = job->options;
  double start = rf_now_seconds();
  rf_calibrate_options options = {.threads = (int)rf_options_int_or(o, "threads", omp_get_num_procs()),
                                  .tune = rf_options_flag(o, "tune"),
                                  .quick = rf_options_flag(o, "quick"),
                                  .say = say_progress,
                                  .self = (void *)sink,
                                  .stop = sink->stop};
  bool stopped = false;
  options.stopped = &stopped;
  RF_TRY(rf_isa_resolve(rf_options_text(o, "cpu"), &options.isa, error));
  RF_TRY(join_ranks(o, &options, error));
  bool first = !options.link || options.link->rank == 0;
  const rafter_sink silent = {.size = sizeof silent, .stop = sink->stop};
  if (!first) options.self = (void *)(uintptr_t)(sink = &silent); /* rank 0 speaks for all */
  char path[4096], folder[4096];
  if (options.link && !rf_options_is_set(o, "out"))
    rf_machine_ranks_path(options.isa, options.link->ranks, path);
  else if (rf_options_is_set(o, "out")) snprintf(path, sizeof path, "%s", rf_options_text(o, "out"));
  else rf_machine_local_path(options.isa, path);
  snprintf(folder, sizeof folder, "%s", path);
  char *slash = strrchr(folder, '/');
  if (slash) *slash = 0;
  if (first && slash && *folder) /* an invalid path must fail now, not after minutes of measuring */
    RF_TRY(rf_make_folders(folder, error));
  rf_machine *m = calloc(1, sizeof *m);
  if (!m) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while calibrating");
  rf_tuned tuned = {0};
  if (!options.tune) {
    tuned_before(path, &tuned);
    options.tuned = &tuned;
  }
  rf_delays begin = rf_delays_now();
  rf_status status = measure(&options, m, error);
  /* more threads than cores wait for each other */
  m->others_part = options.threads <= omp_get_num_procs() ? rf_delays_part(&begin) : 0;
  rf_put_bar(sink, "%s", "");
  if (status == RAFTER_OK && first) status = rf_machine_write(m, path, error);
  if (status == RAFTER_OK && first) {
    double seconds = rf_now_seconds() - start;
    rf_say(sink, "%s, %s, %d thread%s\n", m->name, m->isa, m->threads, rf_plural(m->threads));
    rf_say(sink, "  arithmetic     f32 %.0f GFLOP/s", m->flops[RF_F32] * 1e-9);
    say_peak(sink, m, RF_BF16, "bf16", "GFLOP/s");
    say_peak(sink, m, RF_I8, "int8", "GOP/s");
    rf_say(sink, "\n  memory         read %.1f GB/s, copy %.1f GB/s (read + written)\n", m->read_bps * 1e-9,
           m->copy_bps * 1e-9);
    for (int i = 0; i < m->scaling_count; i++)
      rf_say(sink, "  %2d thread%s     %.0f GFLOP/s, %.1f GB/s\n", m->scaling[i].threads,
             m->scaling[i].threads > 1 ? "s" : " ", m->scaling[i].flops * 1e-9,
             m->scaling[i].read_bps * 1e-9);
    rf_say(sink, "  kernels        %d curves, %.2f us to start an op\n", m->curve_count,
           m->launch_seconds * 1e6);
    say_network(sink, m, options.link ? options.link->library : "");
    rf_say_tuned(sink, &m->tuned);
    bool lower = options.isa != rf_isa_detect();
    rf_say(sink, "written to %s in %.0f s; `--on %s%s%s` uses these figures\n", path, seconds,
           rf_options_is_set(o, "out") ? path : "local", lower ? " --cpu " : "", lower ? m->isa : "");
    char busy[200];
    if (rf_machine_busy_calibration(m, busy)) rf_note(sink, "notice: %s\n", busy);
    rf_put_json(sink, summary(m, path, seconds));
  }
  free(m);
  return status;
}

static const rf_option CALIBRATE[] = {
    RF_FLAG("quick", "Calibration", "measure coarser curves, in less than half of the time"),
    RF_FLAG("network", "Calibration",
            "measure all ranks of mpirun at the same time, and the collectives between them\nPlans for as "
            "many chips then predict steps on these ranks (docs/many-machines.md)."),
    RF_FLAG("tune", "Calibration",
            "first find faster block sizes for f32 and bf16 products, and save them for this CPU and number "
            "of threads; takes about two more minutes; results do not change"),
    RF_WORDS("out", PATH, "FILE", NULL, "Output",
             "machine file to write; unset: the file of --on local, one for each level of --cpu"),
    {.name = NULL},
};

const rf_command RF_COMMAND_CALIBRATE = {
    RF_COMMAND_HEAD("calibrate", "", 0, 0, "Plan", "Measure this machine, so that plans predict its speed."),
    .options = {RF_TABLE(CALIBRATE), {RF_MODEL_OPTIONS, "threads cpu"}, RF_TABLE(RF_EVERY_OPTIONS)},
    .examples = {"calibrate", "calibrate --cpu avx2 # for plans with --cpu avx2",
                 "calibrate --threads 4 --out four.json # then plan --on four.json"},
    .run = rf_command_calibrate};
