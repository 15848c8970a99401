/* ranks.c - see ranks.h. */
#define _GNU_SOURCE
#include "api/ranks.h"

#include "advise/fit_mesh.h"
#include "api/answers.h"
#include "backend/mpi/link.h"
#include "base/file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Opens the link to the other ranks, if a launcher started several processes for one job. */
static rf_status link_of(const rf_options *o, rf_link **link, rf_error *error) {
  rf_hosts hosts;
  *link = NULL;
  if (!rf_runs_on_ranks(o) ||
      !rf_backend_has_ranks(rf_backend_find(rf_options_text_or(o, "backend", "auto"))))
    return RAFTER_OK;
  RF_TRY(rf_hosts_of(o, &hosts, error));
  *link = hosts.hosts > 1 ? rf_link_of_process() : NULL;
  return RAFTER_OK;
}

/* Return the position of MODEL among the arguments (model_at), and the job whose plans --mesh auto
 * compares (job_of). */
static int model_at(const rf_options *o) { return strcmp(rf_options_command(o), "eval") ? 0 : 1; }
static const char *job_of(const rf_options *o) {
  const char *task = rf_options_argument(o, 0);
  if (!model_at(o)) return rf_options_command(o);
  return task && !strcmp(task, "gsm8k") ? "generate" : "score";
}

rf_status rf_ranks_mesh(rf_options *o, const rafter_sink *sink, rf_error *error) {
  char line[240] = "", mesh[160] = "";
  rf_hosts hosts;
  if (!rf_runs_on_ranks(o) || strcmp(rf_options_text_or(o, "mesh", ""), "auto")) return RAFTER_OK;
  const char *backend = rf_options_text_or(o, "backend", "auto");
  if (!rf_backend_has_ranks(rf_backend_find(backend)))
    return RF_FAIL(error, RAFTER_INVALID, "give the axes, as --mesh data=2",
                   "--mesh auto counts the processes of mpirun (--backend: expected cpu, got %s)", backend);
  if (rf_options_knows(o, "resume") && rf_options_is_set(o, "resume"))
    return RF_FAIL(error, RAFTER_INVALID, "leave --mesh out to keep the mesh of the run, or give the axes",
                   "--mesh auto is for a new run (--resume %s)", rf_options_text(o, "resume"));
  RF_TRY(rf_hosts_of(o, &hosts, error));
  rf_options *whole = NULL; /* options whose MODEL is a folder, because MODEL may name a run */
  rf_status status = rf_options_with_model(o, rf_options_argument(o, model_at(o)), &whole, error);
  if (status == RAFTER_OK) status = rf_mesh_auto(whole, job_of(o), hosts.hosts, line, error);
  if (status == RAFTER_OK) snprintf(mesh, sizeof mesh, "%s", rf_options_text_or(whole, "mesh", ""));
  rf_options_free(whole);
  RF_TRY(status);
  if (*line) rf_note(sink, "%s\n", line);
  RF_TRY(rf_link_share(rf_link_of_process(), mesh, sizeof mesh, error));
  return rf_options_set(o, "mesh", mesh, error);
}

/* Rank 0 has the text. The others get it. */
static rf_status share_text(rf_link *link, char **text, size_t *bytes, rf_error *error) {
  int64_t size = *text ? (int64_t)*bytes : -1;
  RF_TRY(rf_link_share(link, &size, sizeof size, error));
  if (link->rank > 0 && size >= 0) { /* rank 0 keeps its text, which the caller frees */
    *text = calloc((size_t)size + 1, 1);
    if (!*text) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory for the input of rank 0");
    *bytes = (size_t)size;
  }
  return size > 0 ? rf_link_share(link, *text, size, error) : RAFTER_OK;
}

rf_status rf_ranks_text(const rf_options *o, char **text, size_t *bytes, rf_error *error) {
  rf_link *link;
  RF_TRY(link_of(o, &link, error));
  return link ? share_text(link, text, bytes, error) : RAFTER_OK;
}

static bool names_stdin(const rf_options *o) {
  static const char *const FILES[] = {"input", "data", "eval-data", "shots-from", "template"};
  for (size_t i = 0; i < sizeof FILES / sizeof *FILES; i++)
    if (rf_options_knows(o, FILES[i]) && rf_options_is_set(o, FILES[i]) &&
        !strcmp(rf_options_text(o, FILES[i]), "/dev/stdin"))
      return true;
  return false;
}

/* Writes these bytes to a file in memory, which becomes the standard input of this process. */
static rf_status replace_stdin(const char *text, size_t bytes, rf_error *error) {
  int fd = memfd_create("input", MFD_CLOEXEC);
  size_t done = 0;
  while (fd >= 0 && done < bytes) {
    ssize_t more = write(fd, text + done, bytes - done);
    if (more <= 0) break;
    done += (size_t)more;
  }
  bool whole = fd >= 0 && done == bytes && dup2(fd, STDIN_FILENO) >= 0;
  int why = errno;
  if (fd >= 0) close(fd);
  return whole ? RAFTER_OK
               : RF_FAIL(error, RAFTER_FAILED, "give a file in place of /dev/stdin",
                         "cannot keep the input of rank 0 in memory (%s)", strerror(why));
}

rf_status rf_ranks_input(const rf_options *o, rf_error *error) {
  const size_t most = (size_t)4 << 30;
  rf_link *link;
  char *text = NULL;
  size_t bytes = 0;
  if (!names_stdin(o)) return RAFTER_OK;
  RF_TRY(link_of(o, &link, error));
  if (!link) return RAFTER_OK;
  rf_status status = link->rank == 0 ? rf_file_read("/dev/stdin", most, &text, &bytes, error) : RAFTER_OK;
  if (status == RAFTER_OK) status = share_text(link, &text, &bytes, error);
  if (status == RAFTER_OK) status = replace_stdin(text, bytes, error);
  free(text);
  return status;
}

rf_status rf_ranks_same(rf_run *run, const char *what, rf_fingerprint *fingerprint, rf_error *error) {
  char text[RF_FINGERPRINT_TEXT];
  rf_fingerprint_end(fingerprint, text);
  return rf_run_same(run, what, rf_name_key(text), error);
}

void rf_ranks_drop_copies(const rf_plan_options *plan, json_t *options) {
  char text[160];
  rf_mesh mesh = plan->build.mesh;
  if (rf_generate_shares(plan) > 1) mesh.of[RF_AXIS_DATA] = 1;
  if (rf_mesh_chips(&mesh) == 1) json_object_del(options, "mesh");
  else json_object_set_new(options, "mesh", json_string(rf_mesh_text(&mesh, text)));
}
