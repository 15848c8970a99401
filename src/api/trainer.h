/* trainer.h - the trainer of rafter.h, as `rafter train` uses it. */
#ifndef RF_API_TRAINER_H
#define RF_API_TRAINER_H

#include "api/answers.h"
#include "api/handles.h"
#include "journal/journal.h"
#include "journal/traced.h"
#include "rl/preferences.h"

struct rafter_trainer {
  rf_settings settings;
  /* tokenizer: folder of the tokenizer's copy in `out`; "": no copy */
  char out[4096], resume[4096], tokenizer[4200];
  bool command; /* true for a command, false for a trainer of rafter.h */
  bool again;   /* true if --resume names a run without a checkpoint, which begins again */
  bool hidden;  /* true on hosts other than 0, where `out` is a temporary folder */
  int lock;     /* file descriptor of the lock of `out`; -1: none */
  rf_trainer *trainer;
  rf_preferences *preferences; /* owner of `trainer` if the loss is a loss of preferences; otherwise NULL */
};

/* Sets `run` to the folder of a run. `resume` names this run or one of its checkpoints. */
void rf_run_folder_of_resume(const char *resume, char run[4096]);
bool rf_same_folder(const char *a, const char *b);
/* Returns true if the options give the length of training in epochs. */
bool rf_trains_by_epochs(const rf_options *o);
bool rf_trains_with_trace(const rf_options *o);
/* Opens a trainer. `sink` is NULL for a trainer of rafter.h, whose caller runs the steps. */
rf_status rf_trainer_of_job(const rafter_job *job, const rafter_sink *sink, rafter_trainer **out,
                            rf_error *error);
/* Chooses, makes and locks the run's folder t->out, for a command that makes its own trainer. Sets
 * t->resume to the checkpoint of --resume. The caller must set t->lock to -1 before. If the folder
 * is new, sets *ours, and the caller must remove the folder if the run does not begin. */
rf_status rf_trainer_begin_folder(rafter_trainer *t, const rf_options *o, bool *ours, rf_error *error);
/* Computes the learning rates from --lr, --schedule, --warmup, --decay and --min-lr. */
rf_status rf_schedule_of(const rf_options *o, int64_t steps, rf_schedule *schedule, rf_error *error);
/* Take a step (rf_take_step), or validate `rows` rows or pairs (rf_take_validation). A loss of
 * preferences sets *preference, which may be NULL. */
rf_status rf_take_step(rafter_trainer *t, rafter_step *step, rf_preference *preference, rf_error *error);
rf_status rf_take_validation(rafter_trainer *t, int64_t rows, double *loss, rf_preference *preference,
                             rf_error *error);
/* Lists the trainer's plans (training, validation, reference) with measurements. Returns their
 * number. */
enum { RF_TRAINER_PASSES = 3 };
int rf_trainer_passes(const rafter_trainer *t, rf_report_pass pass[RF_TRAINER_PASSES]);

#endif
