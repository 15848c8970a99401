/* gnuplot.c - see gnuplot.h. The script and the picture are unnamed temporary files, so no file
 * name has to be quoted for a shell. */
#define _GNU_SOURCE
#include "advise/gnuplot.h"

#include <errno.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/text.h"

extern char **environ;

static bool is_there(void) {
  const char *at = getenv("PATH");
  char path[4096];
  while (at && *at) {
    size_t n = strcspn(at, ":");
    if (n && n + 10 < sizeof path) {
      snprintf(path, sizeof path, "%.*s/gnuplot", (int)n, at);
      if (access(path, X_OK) == 0) return true;
    }
    at += n + (at[n] == ':');
  }
  return false;
}

rf_status rf_gnuplot_check(const char *path, rf_error *error) {
  if (!rf_text_ends_with(path, ".svg") && !rf_text_ends_with(path, ".png"))
    return RF_FAIL(error, RAFTER_INVALID, "name it FILE.svg or FILE.png",
                   "--plot draws SVG and PNG (expected a name that ends in .svg or .png, got %.200s)", path);
  if (is_there()) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_FAILED, "./dev setup installs gnuplot; on Debian: apt-get install gnuplot-nox",
                 "--plot needs gnuplot, which is not on the PATH");
}

rf_status rf_gnuplot_open(const char *path, int width, int height, rf_gnuplot *plot, rf_error *error) {
  *plot = (rf_gnuplot){.path = path};
  RF_TRY(rf_gnuplot_check(path, error));
  plot->script = open_memstream(&plot->text, &plot->bytes);
  if (!plot->script) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while plotting");
  bool svg = rf_text_ends_with(path, ".svg");
  fprintf(plot->script,
          "set encoding utf8\nset terminal %s size %d,%d %s font 'sans,11' background '#ffffff'\n",
          svg ? "svg" : "pngcairo", width, height, svg ? "dynamic" : "noenhanced");
  fputs("set border 3 lc rgb '#444444'\nset tics nomirror out\nset grid lc rgb '#dddddd' lw 1\nset key "
        "opaque\n",
        plot->script);
  return RAFTER_OK;
}

const char *rf_gnuplot_quote(rf_gnuplot *plot, const char *text) {
  char *to = plot->quoted, *end = to + sizeof plot->quoted - 4;
  *to++ = '\'';
  for (; *text && to < end; text++) {
    if (*text == '\'') *to++ = '\'';
    if (*text != '\n' && *text != '\r') *to++ = *text;
  }
  memcpy(to, "'", 2);
  return plot->quoted;
}

static rf_status whole(FILE *file, char **text, size_t *bytes, rf_error *error) {
  long end = fseek(file, 0, SEEK_END) ? -1 : ftell(file);
  *text = end < 0 ? NULL : malloc((size_t)end + 1);
  rewind(file);
  if (!*text || fread(*text, 1, (size_t)end, file) != (size_t)end)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "cannot read the output of gnuplot");
  (*text)[end] = 0;
  *bytes = (size_t)end;
  return RAFTER_OK;
}

static rf_status run(FILE *file[3], rf_error *error) {
  char *arguments[] = {(char *)"gnuplot", NULL};
  posix_spawn_file_actions_t actions;
  pid_t child;
  int status = 0;
  posix_spawn_file_actions_init(&actions);
  for (int i = 0; i < 3; i++) posix_spawn_file_actions_adddup2(&actions, fileno(file[i]), i);
  int fault = posix_spawnp(&child, arguments[0], &actions, NULL, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (fault)
    return RF_FAIL(error, RAFTER_FAILED, "reinstall gnuplot: apt-get install gnuplot-nox",
                   "gnuplot does not start: %s", strerror(fault));
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return RAFTER_OK;
  char *said = NULL;
  size_t bytes;
  rf_status result = RF_FAIL(error, RAFTER_FAILED, NULL, "gnuplot failed without a message");
  if (whole(file[2], &said, &bytes, NULL) == RAFTER_OK && bytes)
    result = RF_FAIL(error, RAFTER_FAILED, NULL, "gnuplot failed: %.300s", said + strspn(said, "\n \t"));
  free(said);
  return result;
}

rf_status rf_gnuplot_close(rf_gnuplot *plot, rf_error *error) {
  rf_status status = RAFTER_OK;
  FILE *file[3] = {0};
  char *picture = NULL;
  size_t bytes = 0;
  bool written = plot->script && fclose(plot->script) == 0;
  for (int i = 0; i < 3; i++)
    if (!(file[i] = tmpfile()))
      RF_GO(RF_FAIL(error, RAFTER_FAILED, NULL, "cannot make a temporary file: %s", strerror(errno)));
  if (!written || fwrite(plot->text, 1, plot->bytes, file[0]) != plot->bytes || fflush(file[0]))
    RF_GO(RF_FAIL(error, RAFTER_FAILED, NULL, "cannot write gnuplot's script"));
  rewind(file[0]);
  RF_GO(run(file, error));
  RF_GO(whole(file[1], &picture, &bytes, error));
  if (!bytes) RF_GO(RF_FAIL(error, RAFTER_FAILED, NULL, "gnuplot made no picture"));
  RF_GO(rf_file_write(plot->path, picture, bytes, error));
done:
  for (int i = 0; i < 3; i++)
    if (file[i]) fclose(file[i]);
  free(picture);
  free(plot->text);
  *plot = (rf_gnuplot){0};
  return status;
}
