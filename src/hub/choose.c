/* choose.c - chooses the files of a repository that rafter reads. If a repository has no such
 * files, the error names the layout that the repository uses. */
#define _GNU_SOURCE
#include "hub/hub.h"

#include "base/text.h"

#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

/* Files that are always chosen, because rafter needs them to use the weights. */
static const char *const DESCRIPTIONS[] = {"config.json",
                                           "generation_config.json",
                                           "tokenizer.json",
                                           "tokenizer.model",
                                           "tokenizer_config.json",
                                           "chat_template.jinja",
                                           "chat_template.json",
                                           "additional_chat_templates/tool_use.jinja",
                                           "added_tokens.json",
                                           "vocab.json",
                                           "merges.txt",
                                           "adapter_config.json",
                                           "special_tokens_map.json",
                                           "model.safetensors.index.json"};
/* Files that a pattern may select. Files of these types cannot contain a program. */
static const char *const READABLE[] = {"*.safetensors", "*.gguf", "*.json", "*.jinja", "*.txt", "*.model"};
static const char *const PICKLES[] = {"*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.pickle"};
/* Paths that identify a layout. The first matching entry decides. '*' also matches '/'. */
static const struct {
  const char *pattern, *layout;
} LAYOUTS[] = {{"*_METADATA", "an Orbax checkpoint"},
               {"*manifest.ocdbt", "an Orbax checkpoint"},
               {"*ocdbt.process_*", "an Orbax checkpoint"},
               {"*/checkpoint", "an Orbax checkpoint"},
               {"checkpoint", "an Orbax checkpoint"},
               {"*.zarray", "an Orbax checkpoint"},
               {"*.msgpack", "a Flax checkpoint"},
               {"*.weights.h5", "Keras weights"},
               {"*.keras", "a Keras model"},
               {"*.h5", "TensorFlow weights"},
               {"*.tflite", "a TensorFlow Lite model"},
               {"*.bin", "PyTorch pickles"},
               {"*.pt", "PyTorch pickles"},
               {"*.pth", "PyTorch pickles"},
               {"*.ckpt", "PyTorch pickles"}};

static bool matches_any(const char *path, const char *const *patterns, int count) {
  for (int i = 0; i < count; i++)
    if (!fnmatch(patterns[i], path, 0)) return true;
  return false;
}
#define IS_ONE_OF(path, table) matches_any(path, table, (int)(sizeof(table) / sizeof *(table)))

const char *rf_hub_layout_of(const char *const *paths, int count) {
  for (size_t i = 0; i < sizeof LAYOUTS / sizeof *LAYOUTS; i++)
    for (int p = 0; p < count; p++)
      if (!fnmatch(LAYOUTS[i].pattern, paths[p], 0)) return LAYOUTS[i].layout;
  return NULL;
}

static bool at_top(const rf_hub_file *file) { return !strchr(file->path, '/'); }

/* Marks the matching files of the top folder and returns their number. */
static int want(rf_hub_listing *listing, const char *pattern) {
  int count = 0;
  for (int i = 0; i < listing->count; i++) {
    rf_hub_file *file = &listing->file[i];
    if (at_top(file) && !fnmatch(pattern, file->path, 0)) {
      file->wanted = true;
      count++;
    }
  }
  return count;
}

/* Marks the same weight files that transformers reads. The choice is the shards, or else
 * model.safetensors, or else all safetensors. The weights of an adapter are marked too. */
static int want_safetensors(rf_hub_listing *listing) {
  int adapters = want(listing, "adapter_model.safetensors"),
      count = want(listing, "model-*-of-*.safetensors");
  if (!count) count = want(listing, "model.safetensors");
  if (!count && !adapters) count = want(listing, "*.safetensors");
  return count + adapters;
}

/* Writes the name of a GGUF file without its part number: "a" for "a-00001-of-00002.gguf". */
static void variant_of(const char *path, char *variant, size_t size) {
  snprintf(variant, size, "%s", path);
  char *of = strstr(variant, "-of-");
  if (of && of - variant > 6 && of[-6] == '-' && strlen(of) == strlen("-of-00002.gguf")) of[-6] = 0;
}

static rf_status want_gguf(rf_hub_listing *listing, const rf_hub_name *name, int *count, rf_error *error) {
  char first[1100] = "", variant[1100], names[560] = "";
  int variants = 0;
  *count = 0;
  for (int i = 0; i < listing->count; i++) {
    rf_hub_file *file = &listing->file[i];
    if (fnmatch("*.gguf", file->path, 0) || !fnmatch("*mmproj*", file->path, 0)) continue;
    variant_of(file->path, variant, sizeof variant);
    (*count)++;
    file->wanted = true;
    if (!strcmp(variant, first)) continue;
    strcpy(first, variant);
    rf_text_append(names, sizeof names, "%s%s (%.2f GB)", variants++ ? ", " : "", file->path,
                   (double)file->bytes / 1e9);
  }
  if (variants < 2) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_INVALID, "choose one, for example --include '*Q4_K_M*'",
                 "%s@%s has %d GGUF variants: %s", name->repository, name->revision, variants, names);
}

/* Reports that no weights of the repository are readable. The error names the layout and suggests
 * another download. */
static rf_status say_layout(const rf_hub_listing *listing, const rf_hub_name *name, rf_error *error) {
  char repository[208], hint[400];
  const char *layout = NULL;
  for (size_t i = 0; i < sizeof LAYOUTS / sizeof *LAYOUTS && !layout; i++)
    for (int f = 0; f < listing->count && !layout; f++)
      if (!fnmatch(LAYOUTS[i].pattern, listing->file[f].path, 0)) layout = LAYOUTS[i].layout;
  if (rf_hub_variant(name->repository, repository) && strcasecmp(repository, name->repository))
    snprintf(hint, sizeof hint, "pull the safetensors version: rafter pull hf:%s", repository);
  else if (strcmp(name->revision, "main"))
    snprintf(hint, sizeof hint, "pull the safetensors version: rafter pull hf:%s@main", name->repository);
  else
    snprintf(hint, sizeof hint,
             "pull a repository of this model with safetensors; or convert it in Python: "
             "transformers.AutoModelForCausalLM.from_pretrained(...).save_pretrained(DIR, "
             "safe_serialization=True)");
  for (int f = 0; f < listing->count; f++)
    if (!fnmatch("*.safetensors", listing->file[f].path, 0))
      return RF_FAIL(error, RAFTER_FAILED, "choose with --include, for example --include 'FOLDER/*'",
                     "%s@%s has safetensors in folders only (for example %.200s)", name->repository,
                     name->revision, listing->file[f].path);
  return RF_FAIL(error, RAFTER_FAILED, hint,
                 "%s@%s has no weights that rafter reads (expected safetensors or GGUF, got %s)",
                 name->repository, name->revision,
                 layout           ? layout
                 : listing->count ? "other files only"
                                  : "nothing");
}

static rf_status want_patterns(rf_hub_listing *listing, const rf_hub_name *name, const char *const *patterns,
                               int count, rf_error *error) {
  int wanted = 0;
  const char *refused = NULL;
  for (int i = 0; i < listing->count; i++) {
    rf_hub_file *file = &listing->file[i];
    if (!matches_any(file->path, patterns, count)) continue;
    if (IS_ONE_OF(file->path, READABLE)) {
      file->wanted = true;
      wanted++;
    } else if (!refused || IS_ONE_OF(file->path, PICKLES)) refused = file->path;
  }
  if (wanted) return RAFTER_OK;
  if (!refused)
    return RF_FAIL(error, RAFTER_FAILED, "'*' matches any characters; put the pattern in quotes",
                   "--include matches none of the %d files of %s@%s (got '%.100s')", listing->count,
                   name->repository, name->revision, patterns[0]);
  return RF_FAIL(error, RAFTER_FAILED, "take the safetensors or GGUF files of the model",
                 "%.200s is not downloaded (expected safetensors, GGUF, tokenizer or config files, got %s)",
                 refused,
                 IS_ONE_OF(refused, PICKLES) ? "a pickle file, which can run any program" : "another kind");
}

rf_status rf_hub_choose(rf_hub_listing *listing, const rf_hub_name *name, const char *const *patterns,
                        int pattern_count, rf_error *error) {
  if (pattern_count) return want_patterns(listing, name, patterns, pattern_count, error);
  int weights = want_safetensors(listing);
  if (!weights) RF_TRY(want_gguf(listing, name, &weights, error));
  if (!weights) return say_layout(listing, name, error);
  for (int i = 0; i < listing->count; i++) {
    rf_hub_file *file = &listing->file[i];
    file->wanted |= IS_ONE_OF(file->path, DESCRIPTIONS);
  }
  return RAFTER_OK;
}
