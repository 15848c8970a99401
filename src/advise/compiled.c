/* compiled.c - see compiled.h. */
#include "advise/compiled.h"

#include "advise/compiled_target.h"
#include "backend/xla/client.h"
#include "backend/xla/emit.h"
#include "base/file.h"
#include "base/text.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

typedef struct program {
  const char *name;
  const rf_plan *plan;
} program;

static int programs_of(const rafter_plan *plan, program list[2]) {
  int count = 0;
  bool learns = plan->plan->graph->job == RF_JOB_TRAIN;
  if (plan->prefill) list[count++] = (program){"prefill", plan->prefill};
  list[count++] = (program){learns ? "step" : plan->prefill ? "decode" : "forward", plan->plan};
  return count;
}

/* ---- compiling ------------------------------------------------------------------------------- */

static json_t *object_of(const char *name, const rf_plan *plan, const rf_xla_stats *s, bool fits,
                         const char *why) {
  json_t *o = json_pack("{s:s, s:b, s:I, s:f}", "program", name, "fits", fits, "planned_bytes",
                        (json_int_t)plan->arena_bytes, "planned_flops",
                        plan->hardware_flops / (double)rf_mesh_chips(&plan->graph->mesh));
  if (!fits) {
    json_object_set_new(o, "error", json_string(why));
    return o;
  }
  const struct {
    const char *key;
    int64_t bytes;
  } bytes[] = {{"argument_bytes", s->argument},
               {"output_bytes", s->output},
               {"alias_bytes", s->alias},
               {"temporary_bytes", s->temporary},
               {"total_bytes", s->total}};
  for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++)
    json_object_set_new(o, bytes[i].key, json_integer((json_int_t)bytes[i].bytes));
  if (s->flops >= 0) json_object_set_new(o, "flops", json_real(s->flops));
  if (s->bytes_accessed >= 0) json_object_set_new(o, "bytes_accessed", json_real(s->bytes_accessed));
  json_object_set_new(o, "seconds", json_real(s->seconds));
  return o;
}

static void print(FILE *out, const program *p, const rf_xla_stats *s) {
  char a[32], b[32], c[32], d[32], e[32], f[32];
  const double planned = (double)p->plan->arena_bytes, total = (double)s->total,
               flops = p->plan->hardware_flops / (double)rf_mesh_chips(&p->plan->graph->mesh);
  fprintf(out, "  %-8s %10s of memory, planned %s (%+.1f %%)\n", p->name, rf_text_bytes(total, a),
          rf_text_bytes(planned, b), 100 * (planned - total) / total);
  fprintf(out, "           = arguments %s + results %s - shared %s + temporary %s\n",
          rf_text_bytes((double)s->argument, c), rf_text_bytes((double)s->output, d),
          rf_text_bytes((double)s->alias, e), rf_text_bytes((double)s->temporary, f));
  if (s->flops > 0)
    fprintf(out, "           %s, planned %s (%+.1f %%); %s accessed\n", rf_text_flops(s->flops, a),
            rf_text_flops(flops, b), 100 * (flops - s->flops) / s->flops,
            rf_text_bytes(s->bytes_accessed, c));
}

static rf_status compile(rf_xla_client *client, const program *p, const rf_compiled_target *target,
                         const char *flags, rf_xla_stats *stats, rf_error *error) {
  rf_emit_options options = {.target = rf_emit_target_of(target->platform), .codes = true};
  options.known = rf_emit_usual(p->plan->graph, &options.target);
  rf_emitted module;
  RF_TRY(rf_emit_graph(p->plan->graph, &options, &module, error));
  char *all = rf_emit_flags(&options.target, false, flags);
  const rf_xla_compile of = {.text = module.text,
                             .bytes = module.bytes,
                             .replicas = module.replicas,
                             .topology = target->topology,
                             .target = target->config[0] ? target->config : NULL,
                             .flags = all};
  rf_xla_id none;
  rf_status status = rf_xla_program(client, &of, &none, stats, error);
  rf_emitted_free(&module);
  free(all);
  return status;
}

/* Writes the plugin's version, or its file and interface: some plugins know their version only with
 * devices. */
static void name_compiler(const rf_xla_facts *facts, const char *plugin, char text[192]) {
  const char *file = strrchr(plugin, '/') ? strrchr(plugin, '/') + 1 : plugin;
  if (facts->version[0]) snprintf(text, 192, "%s", facts->version);
  else snprintf(text, 192, "%.100s (PJRT API %d.%d)", file, facts->api_major, facts->api_minor);
}

static rf_status compile_all(rafter_plan *plan, const rf_xla_settings *settings, rf_xla_client *client,
                             const rf_compiled_target *target, const char *flags, rf_error *error) {
  program list[2];
  int count = programs_of(plan, list);
  json_t *all = json_array();
  FILE *out = plan->extra_text;
  char compiler[192];
  name_compiler(rf_xla_facts_of(client), settings->plugin, compiler);
  fprintf(out, "\ncompiled  by %s for %s, without a device\n", compiler, target->name);
  json_object_set_new(
      plan->extra, "compiled",
      json_pack("{s:s, s:s, s:o}", "topology", target->name, "version", compiler, "programs", all));
  for (int i = 0; i < count; i++) {
    rf_xla_stats stats = {0};
    rf_error why = {0};
    rf_status status = compile(client, &list[i], target, flags, &stats, &why);
    if (status != RAFTER_OK && status != RAFTER_NO_FIT) {
      if (error) *error = why;
      return status;
    }
    json_array_append_new(all,
                          object_of(list[i].name, list[i].plan, &stats, status == RAFTER_OK, why.message));
    if (status == RAFTER_OK) print(out, &list[i], &stats);
    else
      fprintf(out, "  %-8s does not fit: %s\n           planned %s\n", list[i].name, why.message,
              rf_text_bytes((double)list[i].plan->arena_bytes, (char[32]){0}));
  }
  return RAFTER_OK;
}

rf_status rf_plan_compile(rafter_plan *plan, const rf_options *options, const volatile int *stop,
                          rf_error *error) {
  rf_compiled_target target;
  rf_xla_client *client = NULL;
  RF_TRY(rf_compiled_target_of(plan->plan->options.machine, &target, error));
  const rf_xla_settings settings = {
      .plugin = rf_options_text(options, "compile"), .compile_only = true, .stop = stop};
  RF_TRY(rf_xla_open(&settings, &client, error));
  rf_status status =
      compile_all(plan, &settings, client, &target, rf_options_text(options, "xla-flags"), error);
  rf_xla_close(client);
  return status;
}

/* ---- writing --------------------------------------------------------------------------------- */

static void describe_ports(FILE *out, const rf_graph *g, const char *title, const rf_emit_port *port,
                           int count) {
  fprintf(out, "\n| %s | type | shape | tensor |\n| --- | --- | --- | --- |\n", title);
  for (int i = 0; i < count; i++) {
    fprintf(out, "| %d | %s | ", i, rf_hlo_type_name(port[i].of.type));
    for (int d = 0; d < port[i].of.rank; d++)
      fprintf(out, "%s%lld", d ? " x " : "", (long long)port[i].of.dim[d]);
    fprintf(out, " | %s", port[i].tensor == RF_NONE ? "(see below)" : g->tensor[port[i].tensor].name);
    if (port[i].alias >= 0) fprintf(out, ", shares memory with %d", port[i].alias);
    fprintf(out, " |\n");
  }
}

/* Writes which inputs a program is right for, and which compiler options it needs. */
static void describe_limits(FILE *out, const rf_graph *graph, const rf_emit_options *options) {
  const rf_emit_known *known = &options->known;
  bool samples = false, caches = false;
  for (int i = 0; i < graph->op_count; i++) {
    const rf_op_def *def = graph->op[i].def;
    samples = samples || def == &RF_OP_SAMPLE;
    caches = caches || def == &RF_OP_ATTENTION_KV || def == &RF_OP_ATTENTION_LATENT_KV;
  }
  if (known->whole_rows) fprintf(out, "Each row of a batch must be one segment.\n");
  if (known->greedy && samples) fprintf(out, "The temperature of all answers must be 0.\n");
  if (known->reach && caches) fprintf(out, "All positions must be below %lld.\n", (long long)known->reach);
  if (options->target.flags) fprintf(out, "Compile with %s.\n", options->target.flags);
}

/* If the compiler of the plan's accelerator is known, writes the program that runs there with usual
 * inputs. Otherwise, writes a program for all devices and inputs. */
static rf_status write_program(const program *p, const char *folder, FILE *text, rf_error *error) {
  rf_compiled_target target;
  rf_emit_options options = {0};
  if (rf_compiled_target_of(p->plan->options.machine, &target, NULL) == RAFTER_OK) {
    options.target = rf_emit_target_of(target.platform);
    options.known = rf_emit_usual(p->plan->graph, &options.target);
  }
  char path[4400];
  rf_emitted module;
  RF_TRY(rf_emit_graph(p->plan->graph, &options, &module, error));
  snprintf(path, sizeof path, "%s/%s.mlir", folder, p->name);
  rf_status status = rf_file_write(path, module.text, module.bytes, error);
  fprintf(text, "\n## %s.mlir\n\nThe function `main` runs on %d device%s, one replica on each.\n", p->name,
          module.replicas, rf_plural(module.replicas));
  describe_limits(text, p->plan->graph, &options);
  describe_ports(text, p->plan->graph, "argument", module.argument, module.arguments);
  describe_ports(text, p->plan->graph, "result", module.result, module.results);
  rf_emitted_free(&module);
  return status;
}

rf_status rf_plan_write_programs(const rafter_plan *plan, const char *folder, rf_error *error) {
  program list[2];
  int count = programs_of(plan, list);
  char *chars = NULL, path[4400];
  size_t bytes = 0;
  if (mkdir(folder, 0777) && errno != EEXIST)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "cannot make the folder %s: %s", folder, strerror(errno));
  FILE *text = open_memstream(&chars, &bytes);
  if (!text) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while writing programs");
  fprintf(
      text,
      "# %s as StableHLO\n\nEach file holds one module in the text form of MLIR. A PJRT plugin compiles it:\n"
      "give the text with the format \"mlir\", and compile options with as many replicas as devices\n"
      "(`1a 04 20 NN 28 01`, NN replicas and one partition). If an argument shares memory with a result, it "
      "is\n"
      "donated: the call frees its buffer, and the result uses this memory.\n\n"
      "One argument is not a tensor of the plan. This argument has seven u32 words: seed (low), seed\n"
      "(high), step (from 1), loss scale (bits of an f32), learning rate (bits of an f32), and two unused\n"
      "words. The loss scale is 1 / (valid tokens of the step). One result is not a tensor of the plan.\n"
      "This result has the values that must be finite. If one of these values is not finite, the step has\n"
      "changed no weight.\n",
      plan->settings.model.name);
  rf_status status = RAFTER_OK;
  for (int i = 0; i < count && status == RAFTER_OK; i++)
    status = write_program(&list[i], folder, text, error);
  fclose(text);
  snprintf(path, sizeof path, "%s/README.md", folder);
  if (status == RAFTER_OK) status = rf_file_write(path, chars, bytes, error);
  free(chars);
  return status;
}
