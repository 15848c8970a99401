/* trainer.c - opens a training run, takes steps and validates. */
#define _GNU_SOURCE
#include "train/step.h"
#include "base/file.h"
#include "graph/mesh/pipeline.h"
#include "run/load.h"
#include "run/record.h"
#include "train/checkpoint.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static rf_status find_state(rf_trainer *trainer, rf_error *error) {
  const rf_graph *graph = trainer->plan->graph;
  trainer->state = malloc((size_t)graph->params.count * sizeof *trainer->state);
  if (!trainer->state)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while opening a training run");
  for (int p = 0; p < graph->params.count; p++)
    trainer->state[p] = (rf_state_tensors){RF_NONE, RF_NONE, RF_NONE, RF_NONE};
  for (int t = 0; t < graph->tensor_count; t++) {
    const rf_tensor *tensor = &graph->tensor[t];
    if (tensor->param == RF_NONE || !tensor->persistent) continue;
    rf_state_tensors *s = &trainer->state[tensor->param];
    if (tensor->class == RF_CLASS_WEIGHT || tensor->class == RF_CLASS_ADAPTER) s->weight = t;
    else if (tensor->class == RF_CLASS_MASTER) s->master = t;
    else if (tensor->class == RF_CLASS_MOMENT) *(s->m == RF_NONE ? &s->m : &s->v) = t;
  }
  for (int p = 0; p < graph->params.count; p++)
    if (trainer->state[p].master == RF_NONE) trainer->state[p].master = trainer->state[p].weight;
  for (int i = 0; i < graph->op_count; i++)
    if (graph->op[i].def->probe == RF_PROBE_UPDATE && graph->op[i].section == RF_SECTION_MICRO)
      trainer->early_updates = true;
  return RAFTER_OK;
}

static rf_token_batch batch_of(rf_run *run, int plan) {
  return (rf_token_batch){.tokens = rf_run_named(run, plan, "tokens", NULL),
                          .labels = rf_run_named(run, plan, "labels", NULL),
                          .positions = rf_run_named(run, plan, "positions", NULL),
                          .segments = rf_run_named(run, plan, "segments", NULL)};
}

static rf_source_options data_options(const rf_train_settings *settings) {
  return (rf_source_options){.model = &settings->model,
                             .model_folder = rf_train_tokenizer(settings),
                             .seq = settings->plan.build.seq,
                             .pack = settings->pack,
                             .val_fraction = settings->val_fraction,
                             .loss_on = settings->loss_on,
                             .fields = settings->fields,
                             .template = settings->template,
                             .work_folder = settings->work_folder};
}

static rf_status open_data(rf_trainer *trainer, rf_error *error) {
  const rf_train_settings *settings = &trainer->settings;
  const rf_build_options *build = &settings->plan.build;
  const rf_source_options options = data_options(settings);
  int64_t began = rf_phase_begin();
  RF_TRY(rf_loader_open(settings->data, &options, settings->seed, build->microbatch * build->accumulate,
                        &trainer->loader, error));
  rf_phase_end(RF_PHASE_TOKENIZE, began);
  return RAFTER_OK;
}

/* If the data has more bytes to tokenize, it is opened after the plan is known to fit, because
 * tokenizing takes long. */
static const int64_t SMALL_DATA = 16 << 20;

/* Makes the training plan and opens the data. Errors of the data are reported before errors of the
 * plan. If the data is large, errors that only tokenizing can find are
 * reported later. */
static rf_status plan_and_data(rf_trainer *trainer, rf_error *error) {
  const rf_train_settings *settings = &trainer->settings;
  const rf_source_options options = data_options(settings);
  int64_t converted = 0;
  if (settings->given) {
    RF_TRY(rf_plan_make(&settings->model, &settings->plan, &trainer->plan, error));
    rf_loader_given(&trainer->loader, settings->given);
    return RAFTER_OK;
  }
  RF_TRY(rf_loader_check(settings->data, &options, &converted, error));
  if (converted <= SMALL_DATA) RF_TRY(open_data(trainer, error));
  RF_TRY(rf_plan_make(&settings->model, &settings->plan, &trainer->plan, error));
  RF_TRY(rf_plan_require_fit(trainer->plan, error));
  return converted <= SMALL_DATA ? RAFTER_OK : open_data(trainer, error);
}

rf_status rf_trainer_prepare(const rf_train_settings *settings, rf_trainer **out, rf_error *error) {
  rf_status status = RAFTER_OK;
  rf_trainer *trainer = calloc(1, sizeof *trainer);
  if (!trainer) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while opening a training run");
  trainer->settings = *settings;
  RF_GO(rf_model_require_runnable(&settings->model, error));
  RF_GO(rf_model_require_trainable(&settings->model, error));
  int stages = rf_pipeline_stages(&settings->plan.build.mesh);
  if (settings->given && stages > 1) /* steps over given data have different numbers of microbatches */
    RF_GO(RF_FAIL(error, RAFTER_INVALID, "use other axes of --mesh",
                  "pipelines compute plain losses only (--mesh pipeline: expected 1, got %d)", stages));
  RF_GO(rf_checkpoint_can_save(settings, error));
  const char *template = settings->template ? settings->template : "";
  if (*template && strcmp(template, "none"))
    RF_GO(rf_file_read(template, (size_t)1 << 20, &trainer->template, &trainer->template_bytes, error));
  RF_GO(plan_and_data(trainer, error));
  if (settings->given ? settings->given->validates : rf_loader_held_out(&trainer->loader) > 0) {
    rf_plan_options options = settings->plan;
    options.build.loss_only = true;
    options.build.accumulate = 1;
    options.remat = RF_REMAT_NONE;
    options.owner = trainer->plan;
    RF_GO(rf_plan_make(&settings->model, &options, &trainer->val_plan, error));
  }
  RF_GO(find_state(trainer, error));
  trainer->work = rf_step_work_of(trainer->plan);
done:
  if (status == RAFTER_OK) *out = trainer;
  else rf_trainer_close(trainer);
  return status;
}

int rf_trainer_plans(const rf_trainer *trainer, const rf_plan *plans[2]) {
  plans[0] = trainer->plan;
  plans[1] = trainer->val_plan;
  return trainer->val_plan ? 2 : 1;
}

/* The hosts of a run must train the same weights on the same data, from the same step, with the same
 * learning rates. */
static rf_status check_hosts(const rf_trainer *trainer, rf_error *error) {
  const rf_train_settings *settings = &trainer->settings;
  const rf_schedule *s = &settings->schedule;
  uint64_t peak, lowest, data = 0;
  memcpy(&peak, &s->peak, sizeof peak);
  memcpy(&lowest, &s->floor, sizeof lowest);
  const uint64_t settled[] = {peak,
                              lowest,
                              (uint64_t)s->kind,
                              (uint64_t)s->steps,
                              (uint64_t)s->warmup,
                              (uint64_t)s->decay,
                              (uint64_t)trainer->step,
                              settings->seed};
  uint64_t rest = 0;
  for (size_t i = 0; i < sizeof settled / sizeof *settled; i++) rest = rf_key(rest, settled[i], 0);
  for (int i = 0; i < trainer->loader.count; i++) data = rf_key(data, trainer->loader.source[i].digest, 0);
  RF_TRY(rf_run_same_weights(trainer->run, error));
  RF_TRY(rf_run_same(trainer->run, "other data", data, error));
  return rf_run_same(trainer->run, "another step, seed or schedule", rest, error);
}

rf_status rf_trainer_bind(rf_trainer *trainer, rf_run *run, rf_error *error) {
  const rf_train_settings *settings = &trainer->settings;
  trainer->run = run;
  trainer->batch = batch_of(run, 0);
  trainer->metrics = rf_run_named(run, 0, "metrics", NULL);
  trainer->clip = rf_run_named(run, 0, "clip", NULL);
  if (trainer->val_plan) {
    trainer->val_batch = batch_of(run, 1);
    trainer->val_metrics = rf_run_named(run, 1, "metrics", NULL);
  }
  if (!trainer->batch.tokens) return RAFTER_OK; /* with the null backend, `tokens` is NULL */
  int64_t began = rf_phase_begin();
  rf_status status = settings->resume_folder
                         ? rf_checkpoint_load(trainer, settings->resume_folder, error)
                         : rf_fill_weights(run, 0, trainer->plan, settings->weights_folder, settings->seed,
                                           settings->progress, error);
  if (rf_run_gathers(run)) status = rf_run_settle(run, status, error);
  RF_TRY(status);
  rf_phase_end(RF_PHASE_LOAD, began);
  return check_hosts(trainer, error);
}

rf_status rf_trainer_open(const rf_train_settings *settings, rf_trainer **out, rf_error *error) {
  rf_trainer *trainer = NULL;
  const rf_plan *plans[2];
  RF_TRY(rf_trainer_prepare(settings, &trainer, error));
  trainer->owns = true;
  rf_status status =
      rf_run_open(plans, rf_trainer_plans(trainer, plans), settings->debug, &trainer->run, error);
  if (status == RAFTER_OK) status = rf_trainer_bind(trainer, trainer->run, error);
  if (status == RAFTER_OK) *out = trainer;
  else rf_trainer_close(trainer);
  return status;
}

void rf_trainer_close(rf_trainer *trainer) {
  if (!trainer) return;
  if (trainer->owns) rf_run_close(trainer->run);
  rf_loader_close(&trainer->loader);
  rf_plan_free(trainer->val_plan);
  rf_plan_free(trainer->plan);
  free(trainer->state);
  free(trainer->template);
  free(trainer);
}

rf_run_inputs rf_step_inputs(const rf_trainer *trainer, float loss_scale) {
  int64_t step = trainer->step + 1;
  return (rf_run_inputs){.seed = trainer->settings.seed,
                         .step = step,
                         .loss_scale = loss_scale,
                         .lr = (float)rf_schedule_lr(&trainer->settings.schedule, step),
                         .rows = trainer->plan->graph->rows,
                         /* with several hosts, the hosts agree between steps instead
                          * (rf_run_agree) */
                         .stop = rf_run_hosts(trainer->run) > 1 ? NULL : trainer->settings.progress.stop};
}

static float scale_of(int64_t valid) { return valid ? 1.0f / (float)valid : 0.0f; }

static rf_status lost_data(rf_trainer *trainer, rf_status status) {
  trainer->lost_data |= status != RAFTER_OK;
  return status;
}

/* Fills the inputs of a microbatch. Fails if another program changed the data. So a step with
 * changed data updates no weight. */
static rf_status fill_rows(void *self, int64_t micro, rf_error *error) {
  rf_trainer *trainer = self;
  int rows = (int)trainer->settings.plan.build.microbatch;
  RF_TRY(lost_data(trainer, rf_loader_fill(&trainer->loader, micro * rows, rows, trainer->batch, error)));
  return lost_data(trainer, rf_loader_unchanged(&trainer->loader, error));
}

static rf_status run_microbatches(rf_trainer *trainer, const rf_step_source *source, rf_run_inputs *inputs,
                                  rf_error *error) {
  for (int64_t micro = 0; micro < source->microbatches; micro++) {
    inputs->micro = (int32_t)micro;
    inputs->first_token = micro * trainer->plan->graph->rows;
    int64_t began = rf_phase_begin();
    if (trainer->batch.tokens) RF_TRY(source->fill(source->self, micro, error));
    RF_TRY(rf_run_push(trainer->run, 0, (int)micro, error));
    rf_phase_end(RF_PHASE_DATA, began);
    RF_TRY(rf_run_section(trainer->run, 0, RF_SECTION_MICRO, inputs, error));
    if (!source->take || !trainer->batch.tokens || rf_run_defers(trainer->run, 0)) continue;
    RF_TRY(rf_run_pull(trainer->run, 0, error));
    source->take(source->self, micro);
  }
  return RAFTER_OK;
}

static rf_status run_step(rf_trainer *trainer, const rf_step_source *source, rf_run_inputs *inputs,
                          rf_error *error) {
  RF_TRY(rf_run_section(trainer->run, 0, RF_SECTION_BEGIN, inputs, error));
  RF_TRY(run_microbatches(trainer, source, inputs, error));
  if (trainer->early_updates)
    inputs->stop = NULL; /* the loop continues, because the other weights must be updated too */
  RF_TRY(rf_run_section(trainer->run, 0, RF_SECTION_END, inputs, error));
  if (!source->take || !trainer->batch.tokens || !rf_run_defers(trainer->run, 0))
    return rf_run_pull(trainer->run, 0, error);
  for (int64_t micro = 0; micro < source->microbatches; micro++) {
    RF_TRY(rf_run_pull_micro(trainer->run, 0, (int)micro, error));
    source->take(source->self, micro);
  }
  return RAFTER_OK;
}

/* Hosts compute a step to its end even if the loss of one host is not finite. So all hosts compare
 * the same sums here. */
static rf_status check_loss(const rf_trainer *trainer, rf_error *error) {
  bool alone = rf_run_hosts(trainer->run) == 1 || trainer->plan->stages || !trainer->metrics;
  if (alone || isfinite(trainer->metrics[0])) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_FAILED,
                 "lower --lr, raise --warmup, or set --clip 1; the last checkpoint is untouched",
                 "the loss is not finite (step %lld)", (long long)(trainer->step + 1));
}

/* This function is called if a loss or a gradient norm is not finite. The function runs the
 * microbatches again and checks every output. So the error can name the first op whose output is
 * not finite. Several hosts call this function together. */
static rf_status name_first_op(rf_trainer *trainer, const rf_step_source *source, rf_run_inputs *inputs,
                               rf_error *error) {
  rf_error first = {0};
  /* with --debug, the error already names the op, and other hosts may still be in the step */
  if (trainer->settings.debug.find_nan) return RAFTER_FAILED;
  rf_run_set_debug(trainer->run, (rf_run_debug){.find_nan = true, .poison = trainer->settings.debug.poison});
  rf_status status = run_microbatches(trainer, source, inputs, &first);
  /* a rank that found the op ends all ranks after its message, so the others wait here */
  if (status == RAFTER_OK && rf_run_gathers(trainer->run)) rf_run_settle(trainer->run, RAFTER_OK, NULL);
  if (status == RAFTER_FAILED && error && !rf_run_lost_ranks(trainer->run)) *error = first;
  return RAFTER_FAILED; /* if no such op was found, the function keeps the first error */
}

/* A device that compiles gets the weights in its first step. So the time of this first step counts
 * only if the run has no other step. */
static void count_step(rf_trainer *trainer, int64_t tokens, double seconds) {
  struct rf_trainer_counts *counted = &trainer->counted;
  if (trainer->plan->options.backend->compiles && counted->steps == 1 && !counted->later) {
    counted->steps = counted->tokens = 0;
    counted->step_seconds = 0;
    counted->later = true;
  }
  counted->steps++;
  counted->tokens += tokens;
  counted->step_seconds += seconds;
}

rf_status rf_step_take(rf_trainer *trainer, const rf_step_source *source, double start, rafter_step *out,
                       rf_error *error) {
  rf_run_inputs inputs = rf_step_inputs(trainer, source->loss_scale);
  rf_status status = run_step(trainer, source, &inputs, error);
  if (status == RAFTER_OK) status = check_loss(trainer, error);
  /* this is needed because a stage of a pipeline does not learn of failures in other stages */
  if (status == RAFTER_FAILED && trainer->metrics && !trainer->lost_data && !trainer->plan->stages)
    status = name_first_op(trainer, source, &inputs, error);
  rf_guard_end();
  rf_record_step_end(source->tokens);
  if (status != RAFTER_OK) return status;
  trainer->step++;
  trainer->tokens += source->tokens;
  trainer->loss_tokens += source->valid;
  double seconds = rf_now_seconds() - start;
  trainer->flops += source->flops;
  count_step(trainer, source->tokens, seconds);
  *out = (rafter_step){.step = trainer->step,
                       .tokens = trainer->tokens,
                       .loss_tokens = trainer->loss_tokens,
                       .epoch = rf_loader_epoch(&trainer->loader),
                       .lr = (double)inputs.lr,
                       .seconds = seconds,
                       .predicted_seconds = trainer->plan->step_seconds,
                       .tokens_per_second = (double)source->tokens / seconds};
  double peak = rf_plan_peak_flops(trainer->plan);
  if (peak > 0) out->mfu = source->flops / (seconds * peak);
  if (trainer->clip) out->grad_norm = (double)trainer->clip[0];
  return RAFTER_OK;
}

rf_status rf_trainer_step(rf_trainer *trainer, rafter_step *out, rf_error *error) {
  double start = rf_now_seconds();
  const rf_loader_state before = trainer->loader.state;
  rf_step_source source = {
      .microbatches = trainer->settings.plan.build.accumulate, .self = trainer, .fill = fill_rows};
  rf_record_step(trainer->step + 1);
  rf_guard_begin("a training step");
  int64_t began = rf_phase_begin();
  rf_loader_draw(&trainer->loader, &source.tokens, &source.valid);
  rf_phase_end(RF_PHASE_DATA, began);
  source.loss_scale = scale_of(source.valid);
  source.flops = rf_step_flops(&trainer->work, &trainer->loader, source.tokens);
  rf_status status = rf_step_take(trainer, &source, start, out, error);
  if (status == RAFTER_INTERRUPTED || trainer->lost_data) trainer->loader.state = before;
  if (status == RAFTER_OK && trainer->metrics && trainer->metrics[1] > 0) {
    out->loss = trainer->metrics[0] / trainer->metrics[1];
    out->accuracy = trainer->metrics[2] / trainer->metrics[1];
  }
  return status;
}

rf_status rf_trainer_validate(rf_trainer *trainer, int64_t rows, double *loss, rf_error *error) {
  int64_t have = rf_loader_held_out(&trainer->loader), batch = trainer->settings.plan.build.microbatch;
  if (!trainer->val_plan)
    return RF_FAIL(error, RAFTER_INVALID, "hold rows out with --val-fraction",
                   "there are no validation rows (expected at least 1, got 0)");
  double nll = 0, labels = 0;
  int64_t began = rf_phase_begin();
  for (int64_t at = 0; at < have && at < rows; at += batch) {
    int64_t valid = 0, fills = rf_phase_begin();
    RF_TRY(lost_data(
        trainer, rf_loader_fill_held_out(&trainer->loader, at, batch, trainer->val_batch, &valid, error)));
    RF_TRY(lost_data(trainer, rf_loader_unchanged(&trainer->loader, error)));
    rf_phase_end(RF_PHASE_DATA, fills);
    rf_run_inputs inputs = rf_step_inputs(trainer, scale_of(valid));
    double start = rf_now_seconds();
    RF_TRY(rf_run_all(trainer->run, 1, &inputs, error));
    trainer->counted.validation_passes++;
    trainer->counted.validation_seconds += rf_now_seconds() - start;
    nll += trainer->val_metrics[0];
    labels += trainer->val_metrics[1];
  }
  rf_phase_end(RF_PHASE_VALIDATION, began);
  *loss = labels > 0 ? nll / labels : 0;
  return RAFTER_OK;
}
