/* name.c - parses the argument of `rafter pull`, which names a repository. If the argument is not
 * such a name, the error suggests a repository with safetensors. */
#define PCRE2_CODE_UNIT_WIDTH 8
#define _GNU_SOURCE
#include "hub/hub.h"

#include <ctype.h>
#include <dirent.h>
#include <libgen.h>
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Rules that map other names to repositories. Before a rule is applied, names become lower case and
 * '_' becomes '-'. The first match wins. The rules cover Kaggle's OWNER/MODEL/FRAMEWORK/VARIATION,
 * names of folders, and repositories with other layouts. In PCRE2's replacements, ${1:+a:b} is a if
 * group 1 matched, otherwise b. \U...\E is upper case. */
static const struct {
  const char *pattern, *repository;
} VARIANTS[] = {
    {"(?:^|/)gemma-?3(?:/[a-z]+)?[-/](?:gemma-?3-)?(instruct-)?(270m)(-it)?(?![a-z0-9])",
     "google/gemma-3-$2${1:+-it:}${3:+-it:}"},
    {"(?:^|/)gemma-?3(?:/[a-z]+)?[-/"
     "](?:gemma-?3-)?(?:(instruct-)(1b|4b|12b|27b)|(1b|4b|12b|27b)-it)(?![a-z0-9])",
     "google/gemma-3-$2$3-it"},
    {"(?:^|/)gemma-?3(?:/[a-z]+)?[-/](?:gemma-?3-)?(1b|4b|12b|27b)(?:-pt)?(?![a-z0-9])",
     "google/gemma-3-$1-pt"},
    {"(?:^|/)gemma-?2(?:/[a-z]+)?[-/](?:gemma-?2-)?(instruct-)?(2b|9b|27b)(-it)?(?![a-z0-9])",
     "google/gemma-2-$2${1:+-it:}${3:+-it:}"},
    {"(?:^|/)gemma(?:/[a-z]+/|-)(?:gemma-)?(1\\.1-)?(instruct-)?(1\\.1-)?(2b|7b)(-it)?(?![a-z0-9])",
     "google/gemma-${1:+1.1-:}${3:+1.1-:}$4${2:+-it:}${5:+-it:}"},
    {"(?:^|/)llama-?(3\\.[123])(?:/[a-z]+/|-)([0-9]+b)(-instruct)?(?![a-z0-9])",
     "meta-llama/Llama-$1-\\U$2\\E${3:+-Instruct:}"},
    {"(?:^|/)llama-?3(?:/[a-z]+/|-)(8b|70b)(?:-chat)?(-instruct)?(?![a-z0-9])",
     "meta-llama/Meta-Llama-3-\\U$1\\E${2:+-Instruct:}"},
    {"(?:^|/)llama-?2(?:/[a-z]+/|-)(7b|13b|70b)(-chat)?(?![a-z0-9])", "meta-llama/Llama-2-$1${2:+-chat:}-hf"},
    {"(?:^|/)mistral(?:/[a-z]+/|-)7b(-instruct)?-(v0\\.[123])(?![a-z0-9])",
     "mistralai/Mistral-7B${1:+-Instruct:}-$2"},
    {"(?:^|/)qwen-?(2\\.5|2)(?:/[a-z]+/|-)([0-9.]+b)(-instruct)?(?![a-z0-9])",
     "Qwen/Qwen$1-\\U$2\\E${3:+-Instruct:}"},
    {"(?:^|/)qwen-?3(?:/[a-z]+/|-)([0-9.]+b)(-base)?(?![a-z0-9])", "Qwen/Qwen3-\\U$1\\E${2:+-Base:}"},
    {"^([a-z0-9.-]+/[a-z0-9.-]+)-(?:flax|jax|orbax|maxtext|keras|pytorch|tflite|tpu)$", "$1"},
};

bool rf_hub_variant(const char *name, char repository[208]) {
  char text[512];
  size_t n = 0;
  bool found = false;
  for (; name[n] && n + 1 < sizeof text; n++)
    text[n] = name[n] == '_' ? '-' : (char)tolower((unsigned char)name[n]);
  text[n] = 0;
  for (size_t i = 0; i < sizeof VARIANTS / sizeof *VARIANTS && !found; i++) {
    int code;
    PCRE2_SIZE at, size = 208;
    pcre2_code *pattern =
        pcre2_compile((PCRE2_SPTR)VARIANTS[i].pattern, PCRE2_ZERO_TERMINATED, 0, &code, &at, NULL);
    if (!pattern) continue;
    /* The result contains the replacement, without the text around the match. */
    found = pcre2_substitute(pattern, (PCRE2_SPTR)text, n, 0,
                             PCRE2_SUBSTITUTE_EXTENDED | PCRE2_SUBSTITUTE_REPLACEMENT_ONLY |
                                 PCRE2_SUBSTITUTE_UNSET_EMPTY | PCRE2_SUBSTITUTE_UNKNOWN_UNSET,
                             NULL, NULL, (PCRE2_SPTR)VARIANTS[i].repository, PCRE2_ZERO_TERMINATED,
                             (PCRE2_UCHAR *)repository, &size) > 0;
    pcre2_code_free(pattern);
  }
  return found;
}

/* Lists the names in a folder, two levels of folders deep, which is enough to identify a layout. */
static int names_below(const char *folder, const char *prefix, char names[][256], int count, int most,
                       int depth) {
  DIR *dir = opendir(folder);
  if (!dir) return count;
  for (struct dirent *entry; count < most && (entry = readdir(dir));) {
    char inner[4096];
    if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
    if (snprintf(names[count], sizeof names[count], "%s%s", prefix, entry->d_name) >=
        (int)sizeof names[count])
      continue;
    count++;
    if (depth && snprintf(inner, sizeof inner, "%s/%s", folder, entry->d_name) < (int)sizeof inner) {
      char below[256];
      if (snprintf(below, sizeof below, "%s%s/", prefix, entry->d_name) < (int)sizeof below)
        count = names_below(inner, below, names, count, most, depth - 1);
    }
  }
  closedir(dir);
  return count;
}

/* Writes the error for a name that is a local folder. The folder contains a checkpoint of another
 * layout, or a model that needs no download. */
static rf_status refuse_folder(const char *folder, rf_error *error) {
  enum { MAX = 256 };
  char repository[208], hint[400];
  const char *paths[MAX], *layout = NULL;
  char(*names)[256] = malloc(MAX * sizeof *names);
  if (!names) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  int count = names_below(folder, "", names, 0, MAX, 1);
  for (int i = 0; i < count; i++) paths[i] = names[i];
  layout = rf_hub_layout_of(paths, count);
  free(names);
  if (!layout)
    return RF_FAIL(error, RAFTER_INVALID, "give the folder as MODEL to the other commands",
                   "%s is an existing local folder (expected hf:ORG/NAME)", folder);
  char *full = realpath(folder, NULL);
  if (rf_hub_variant(full ? full : folder, repository))
    snprintf(hint, sizeof hint, "pull the safetensors version: rafter pull hf:%s", repository);
  else
    snprintf(hint, sizeof hint, "pull the same model as safetensors from the hub: rafter pull hf:ORG/NAME");
  free(full);
  return RF_FAIL(error, RAFTER_INVALID, hint, "%s holds %s (expected safetensors or GGUF)", folder, layout);
}

static rf_status refuse_kaggle(const char *text, const char *path, rf_error *error) {
  char repository[208], hint[400];
  if (rf_hub_variant(path, repository))
    snprintf(hint, sizeof hint, "pull the safetensors version: rafter pull hf:%s", repository);
  else
    snprintf(hint, sizeof hint,
             "use the model's safetensors: pull hf:ORG/NAME from the hub, or download the framework "
             "Transformers from Kaggle and give its folder as MODEL");
  return RF_FAIL(error, RAFTER_INVALID, hint,
                 "'%.200s' is on Kaggle, and pull cannot fetch from Kaggle (expected hf:ORG/NAME)", text);
}

static bool is_name(const char *text, size_t bytes) {
  if (!bytes || bytes > 96 || *text == '.' || *text == '-') return false;
  for (size_t i = 0; i < bytes; i++)
    if (!isalnum((unsigned char)text[i]) && !strchr("._-", text[i])) return false;
  return !memmem(text, bytes, "..", 2);
}

rf_status rf_hub_parse(const char *text, rf_hub_name *name, rf_error *error) {
  static const char *const kaggle[] = {"kaggle:", "https://www.kaggle.com/models/",
                                       "https://kaggle.com/models/"};
  struct stat info;
  for (size_t i = 0; i < sizeof kaggle / sizeof *kaggle; i++)
    if (!strncmp(text, kaggle[i], strlen(kaggle[i])))
      return refuse_kaggle(text, text + strlen(kaggle[i]), error);
  bool prefixed = !strncmp(text, "hf:", 3);
  if (!prefixed && !stat(text, &info) && S_ISDIR(info.st_mode)) return refuse_folder(text, error);
  const char *repository = prefixed ? text + 3 : text;
  const char *slash = strchr(repository, '/'), *at = strchr(repository, '@');
  size_t end = at ? (size_t)(at - repository) : strlen(repository);
  bool right = slash && (!at || slash < at) && is_name(repository, (size_t)(slash - repository)) &&
               is_name(slash + 1, end - (size_t)(slash + 1 - repository));
  if (!right)
    return RF_FAIL(
        error, RAFTER_INVALID,
        "for example: rafter pull hf:HuggingFaceTB/SmolLM2-135M-Instruct; a branch, a tag or a commit "
        "may follow after @",
        "not a model of the hub (expected hf:ORG/NAME[@REV], got '%.200s')", text);
  snprintf(name->repository, sizeof name->repository, "%.*s", (int)end, repository);
  snprintf(name->revision, sizeof name->revision, "%s", at ? at + 1 : "main");
  bool printable = *name->revision && (!at || strlen(at + 1) < sizeof name->revision);
  for (const char *c = name->revision; *c; c++) printable = printable && *c > ' ' && *c < 127;
  if (!printable)
    return RF_FAIL(error, RAFTER_INVALID, "give a branch, a tag or a commit after @",
                   "not a revision (expected at most %zu printable characters after @)",
                   sizeof name->revision - 1);
  return RAFTER_OK;
}
