/* pull.c - `rafter pull hf:ORG/NAME`: downloads a model from the hub into a folder that other
 * commands take as MODEL. */
#define _GNU_SOURCE
#include "api/api.h"

#include "base/file.h"
#include "base/text.h"
#include "hub/hub.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

typedef struct pull {
  const rafter_sink *sink;
  rf_hub_name name;
  rf_hub_listing listing;
  rf_http *http;
  char *token; /* NULL: none */
  char endpoint[1024], folder_name[1024];
  /* `folder`: file descriptor of the model's folder. `number`: number of the current file, from 1
   * to count. */
  int folder, number, count;
  int64_t total_bytes, transferred_bytes;
  double start, said;  /* seconds */
  int64_t start_bytes; /* bytes of the file at time `start` */
  bool any;
} pull;

static const char *const HOW[] = {"downloaded", "resumed", "present"};

static void show_wait(void *self, const char *why, double seconds) {
  pull *p = self;
  rf_put_bar(p->sink, "%s; again in %.1f s", why, seconds);
}

static void show_progress(void *self, const rf_hub_file *file, int64_t bytes) {
  pull *p = self;
  double now = rf_now_seconds();
  if (p->start == 0) {
    p->start = now;
    p->start_bytes = bytes;
  }
  if (now - p->said < 0.2) return;
  double speed = now > p->start ? (double)(bytes - p->start_bytes) / (now - p->start) : 0,
         left = speed > 0 ? (double)(file->bytes - bytes) / speed : 0;
  p->said = now;
  rf_put_bar(p->sink, "%d of %d  %s  %.1f of %.1f MB  %.1f MB/s  %d:%02d left", p->number, p->count,
             file->path, (double)bytes / 1e6, (double)file->bytes / 1e6, speed / 1e6, (int)left / 60,
             (int)left % 60);
}

/* A token that was read from a file may end with a line break, which read_token removes. A line
 * break inside the token is an error, because it would begin another header of the request. */
static rf_status read_token(pull *p, rf_error *error) {
  const char *text = getenv("HF_TOKEN");
  if (!text) return RAFTER_OK;
  size_t first = strspn(text, " \t\r\n"), bytes = strlen(text);
  while (bytes > first && strchr(" \t\r\n", text[bytes - 1])) bytes--;
  for (size_t i = first; i < bytes; i++)
    if ((unsigned char)text[i] < ' ' || text[i] == 0x7f)
      return RF_FAIL(error, RAFTER_INVALID, "set HF_TOKEN to the token alone, which is one word",
                     "HF_TOKEN has a control character (byte %zu of %zu)", i + 1, strlen(text));
  p->token = strndup(text + first, bytes - first);
  return p->token ? RAFTER_OK : RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
}

static rf_status open_hub(const rf_options *o, pull *p, rf_error *error) {
  const char *endpoint = rf_options_text_or(o, "endpoint", getenv("HF_ENDPOINT"));
  if (!endpoint || !*endpoint) endpoint = "https://huggingface.co";
  size_t bytes = strlen(endpoint);
  while (bytes && endpoint[bytes - 1] == '/') bytes--;
  if (bytes >= sizeof p->endpoint)
    return RF_FAIL(error, RAFTER_INVALID, NULL, "--endpoint is too long (%zu bytes)", bytes);
  snprintf(p->endpoint, sizeof p->endpoint, "%.*s", (int)bytes, endpoint);
  RF_TRY(read_token(p, error));
  rf_http_settings settings = {.endpoint = p->endpoint,
                               .token = p->token,
                               .timeout_seconds = rf_options_float(o, "timeout"),
                               .retries = (int)rf_options_int(o, "retries"),
                               .stop = p->sink->stop,
                               .wait = show_wait,
                               .self = p};
  return rf_http_open(&settings, &p->http, error);
}

/* Sums the bytes of all chosen files and compares the sum with --max-size. */
static rf_status check_total(const rf_options *o, pull *p, rf_error *error) {
  for (int i = 0; i < p->listing.count; i++) {
    const rf_hub_file *file = &p->listing.file[i];
    if (!file->wanted) continue;
    p->count++;
    if (file->bytes < 0) continue;
    if (file->bytes > INT64_MAX / 4 - p->total_bytes)
      return RF_FAIL(error, RAFTER_FAILED, NULL, "the server lists invalid sizes (%s)", file->path);
    p->total_bytes += file->bytes;
  }
  int64_t most = rf_options_int_or(o, "max-size", INT64_MAX);
  if (p->total_bytes <= most) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_FAILED, "raise --max-size, or choose files with --include",
                 "%s@%s is too large (expected at most %lld bytes, got %lld)", p->name.repository,
                 p->name.revision, (long long)most, (long long)p->total_bytes);
}

static rf_status check_room(const rf_options *o, const pull *p, int64_t *room, rf_error *error) {
  struct statvfs disk;
  int64_t missing = 0;
  for (int i = 0; i < p->listing.count; i++) {
    const rf_hub_file *file = &p->listing.file[i];
    struct stat info;
    char part[1100];
    if (!file->wanted || file->bytes < 0) continue;
    snprintf(part, sizeof part, "%s.part", file->path);
    if (!fstatat(p->folder, file->path, &info, AT_SYMLINK_NOFOLLOW) && info.st_size == file->bytes) continue;
    missing +=
        file->bytes - (!fstatat(p->folder, part, &info, AT_SYMLINK_NOFOLLOW) && info.st_size <= file->bytes
                           ? info.st_size
                           : 0);
  }
  int64_t free_bytes =
      fstatvfs(p->folder, &disk) ? INT64_MAX / 4 : (int64_t)disk.f_bavail * (int64_t)disk.f_frsize;
  *room = free_bytes;
  if (rf_options_is_set(o, "max-size")) {
    int64_t most = rf_options_int(o, "max-size");
    if (most - p->total_bytes < *room) *room = most - p->total_bytes;
  }
  if (missing > free_bytes)
    return RF_FAIL(error, RAFTER_FAILED, "free some space or choose another folder with --out",
                   "no room in %s for %s@%s (%lld more bytes are needed, %lld are free)", p->folder_name,
                   p->name.repository, p->name.revision, (long long)missing, (long long)free_bytes);
  return RAFTER_OK;
}

static rf_status open_folder(const rf_options *o, pull *p, rf_error *error) {
  const char *out = rf_options_text(o, "out");
  if (out && strlen(out) >= sizeof p->folder_name)
    return RF_FAIL(error, RAFTER_INVALID, "choose a shorter path",
                   "--out is too long (expected at most %zu bytes, got %zu)", sizeof p->folder_name - 1,
                   strlen(out));
  snprintf(p->folder_name, sizeof p->folder_name, "%s%s", out ? "" : "models/",
           out ? out : p->name.repository);
  RF_TRY(rf_make_folders(p->folder_name, error));
  p->folder = open(p->folder_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  return p->folder < 0 ? RF_FAIL(error, RAFTER_FAILED, NULL, "cannot open %s", p->folder_name) : RAFTER_OK;
}

static rf_status fetch_all(pull *p, int64_t room, json_t *files, rf_error *error) {
  rf_hub_place place = {.http = p->http,
                        .endpoint = p->endpoint,
                        .name = &p->name,
                        .listing = &p->listing,
                        .room = room,
                        .folder = p->folder,
                        .folder_name = p->folder_name,
                        .progress = show_progress,
                        .self = p,
                        .stop = p->sink->stop};
  for (int i = 0; i < p->listing.count; i++) {
    const rf_hub_file *file = &p->listing.file[i];
    rf_hub_state state;
    struct stat info;
    if (!file->wanted) continue;
    p->number++;
    p->start = 0;
    RF_TRY(rf_hub_fetch(&place, file, &state, error));
    rf_put_bar(p->sink, "%s", "");
    int64_t bytes = fstatat(p->folder, file->path, &info, 0) ? file->bytes : info.st_size;
    if (state != RF_HUB_PRESENT) p->transferred_bytes += bytes;
    rf_say(p->sink, "  %-10s %12lld  %-9s %s\n", HOW[state], (long long)bytes,
           file->kind == RF_HASH_SHA256     ? "sha256 ok"
           : file->kind == RF_HASH_GIT_BLOB ? "git ok"
                                            : "no sum",
           file->path);
    json_t *row =
        json_pack("{ss sI ss}", "path", file->path, "bytes", (json_int_t)bytes, "state", HOW[state]);
    if (file->kind != RF_HASH_NONE)
      json_object_set_new(row, file->kind == RF_HASH_SHA256 ? "sha256" : "git_blob", json_string(file->hash));
    json_array_append_new(files, row);
  }
  return RAFTER_OK;
}

/* Writes the MODEL argument for other commands: the folder, or its first GGUF file. */
static void model_of(const pull *p, char *model, size_t size) {
  const char *gguf = NULL;
  bool folder = false;
  for (int i = 0; i < p->listing.count; i++) {
    const rf_hub_file *file = &p->listing.file[i];
    if (!file->wanted) continue;
    folder |= rf_text_ends_with(file->path, ".safetensors");
    if (!gguf && rf_text_ends_with(file->path, ".gguf")) gguf = file->path;
  }
  snprintf(model, size, "%s%s%s", p->folder_name, !folder && gguf ? "/" : "", !folder && gguf ? gguf : "");
}

static rf_status run(const rf_options *o, pull *p, rf_error *error) {
  int patterns = 0;
  const char *const *pattern = rf_options_texts(o, "include", &patterns);
  char model[2200];
  double start = rf_now_seconds();
  int64_t room;
  RF_TRY(rf_hub_parse(rf_options_argument(o, 0), &p->name, error));
  RF_TRY(open_hub(o, p, error));
  RF_TRY(rf_hub_list(p->http, p->endpoint, &p->name, &p->listing, error));
  RF_TRY(rf_hub_choose(&p->listing, &p->name, pattern, patterns, error));
  RF_TRY(check_total(o, p, error));
  RF_TRY(open_folder(o, p, error));
  RF_TRY(check_room(o, p, &room, error));
  rf_say(p->sink, "%s@%s%s%s: %d of %d files, %.1f MB, into %s\n", p->name.repository, p->name.revision,
         *p->listing.commit ? " = " : "", p->listing.commit, p->count, p->listing.count,
         (double)p->total_bytes / 1e6, p->folder_name);
  json_t *files = json_array();
  rf_status status = fetch_all(p, room, files, error);
  if (status != RAFTER_OK) {
    json_decref(files);
    return status;
  }
  double seconds = rf_now_seconds() - start;
  model_of(p, model, sizeof model);
  rf_say(p->sink, "complete in %.1f s; MODEL is %s\n", seconds, model);
  rf_put_json(p->sink, json_pack("{ss ss ss ss ss ss sI sf so}", "command", "pull", "repository",
                                 p->name.repository, "revision", p->name.revision, "commit",
                                 p->listing.commit, "folder", p->folder_name, "model", model, "bytes",
                                 (json_int_t)p->total_bytes, "seconds", seconds, "files", files));
  return RAFTER_OK;
}

static rf_status rf_command_pull(const rafter_job *job, const rafter_sink *sink, rf_error *error) {
  pull *p = calloc(1, sizeof *p);
  if (!p) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  p->sink = sink;
  p->folder = -1;
  rf_status status = run(job->options, p, error);
  rf_put_bar(sink, "%s", "");
  if (p->folder >= 0) close(p->folder);
  rf_hub_listing_free(&p->listing);
  rf_http_close(p->http);
  free(p->token);
  free(p);
  return status;
}

static const rf_option PULL[] = {
    RF_WORDS("include", TEXTS, "PATTERN", NULL, "Files",
             "fetch only files whose path matches, such as '*Q4_K_M*'; may be repeated"),
    RF_NUMBER("max-size", SIZE, "BYTES", 0, 0x1p60, NULL, "Files", "refuse a larger download"),
    RF_WORDS("out", PATH, "DIR", NULL, "Files", "folder of the model; unset: models/ORG/NAME"),
    RF_WORDS("endpoint", TEXT, "URL", NULL, "Network",
             "hub to fetch from; unset: HF_ENDPOINT, or https://huggingface.co\nHF_TOKEN is sent to this hub "
             "only."),
    RF_NUMBER("retries", INT, NULL, 0, 100, "5", "Network",
              "fail after this many attempts in a row without a new byte"),
    RF_NUMBER("timeout", DURATION, NULL, 0.1, 3600, "30s", "Network",
              "time without a byte after which the connection is retried"),
    {.name = NULL},
};

const rf_command RF_COMMAND_PULL = {
    RF_COMMAND_HEAD("pull", "hf:ORG/NAME[@REV]", 1, 1, "Files",
                    "Fetch a model from the hub: safetensors or GGUF, tokenizer and config files."),
    .options = {RF_TABLE(PULL), RF_TABLE(RF_EVERY_OPTIONS)},
    .examples = {"pull hf:HuggingFaceTB/SmolLM2-135M-Instruct",
                 "pull hf:bartowski/Llama-3.2-1B-Instruct-GGUF --include '*Q4_K_M*' --max-size 2GB"},
    .run = rf_command_pull};
