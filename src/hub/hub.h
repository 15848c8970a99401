/* hub.h - a model's files from a server that speaks the Hugging Face hub's API: what is there,
 * which of it is wanted, and each file whole in its place. Whatever the server says is hostile
 * until checked: paths stay below the folder, sizes are bounds, sums must be right before a file
 * gets its name. */
#ifndef RF_HUB_H
#define RF_HUB_H

#include "hub/hash.h"
#include "hub/http.h"

/* ---- what is named --------------------------------------------------------------------------- */

typedef struct rf_hub_name {
  char repository[208]; /* "ORG/NAME" */
  char revision[200];   /* branch, tag or commit; "main" when none is given */
} rf_hub_name;

/* "hf:ORG/NAME[@REV]". RAFTER_INVALID otherwise; for a Kaggle model, or a folder with an Orbax
 * or Flax checkpoint, it names the safetensors variant. */
rf_status rf_hub_parse(const char *text, rf_hub_name *name, rf_error *error);

/* The repository that holds as safetensors what `name` names: a Kaggle path
 * ("google/gemma-2/flax/gemma2-2b-it"), a repository or a folder of another layout
 * ("gemma-2b-flax"). false: not known. */
bool rf_hub_variant(const char *name, char repository[208]);

/* ---- what is there --------------------------------------------------------------------------- */

typedef struct rf_hub_file {
  char *path;    /* below the repository, '/' between folders; checked */
  int64_t bytes; /* -1: not said */
  rf_hash_kind kind;
  char hash[RF_HASH_TEXT];
  bool wanted; /* by rf_hub_choose */
} rf_hub_file;

typedef struct rf_hub_listing {
  char commit[RF_HASH_TEXT]; /* what the revision stood for; "" when the server does not say */
  rf_hub_file *file;
  int count;
} rf_hub_listing;

rf_status rf_hub_list(rf_http *http, const char *endpoint, const rf_hub_name *name, rf_hub_listing *listing,
                      rf_error *error);
/* its JSON */
rf_status rf_hub_read_listing(const char *text, size_t bytes, const char *where, rf_hub_listing *listing,
                              rf_error *error);
void rf_hub_listing_free(rf_hub_listing *listing);
/* Whether a path may be used below a folder: no root, no "..", no empty or overlong part,
 * nothing unprintable, no backslash. */
bool rf_hub_path_is_safe(const char *path);

/* Marks the files that rafter reads, or of these those that match one of `patterns` ('*' also
 * crosses '/'). Refuses, naming what to do: pickles asked for by name, repositories without
 * weights that can be read (Orbax, Flax, pickles), several GGUF variants and none chosen. */
rf_status rf_hub_choose(rf_hub_listing *listing, const rf_hub_name *name, const char *const *patterns,
                        int pattern_count, rf_error *error);

/* What of a list of paths cannot be read here: "an Orbax checkpoint", "a Flax checkpoint",
 * "pickles", ...; NULL: nothing of the kind. */
const char *rf_hub_layout_of(const char *const *paths, int count);

/* ---- into a folder --------------------------------------------------------------------------- */

typedef enum rf_hub_state { RF_HUB_DOWNLOADED, RF_HUB_RESUMED, RF_HUB_PRESENT } rf_hub_state;

typedef struct rf_hub_place {
  rf_http *http;
  const char *endpoint;
  const rf_hub_name *name;
  const rf_hub_listing *listing;
  /* bytes a file may have whose size the listing does not say */
  int64_t room;
  int folder;              /* opened directory */
  const char *folder_name; /* for errors */
  /* of `file` here and checked so far; may be NULL */
  void (*progress)(void *self, const rf_hub_file *file, int64_t bytes);
  void *self;
  const volatile int *stop; /* may be NULL */
} rf_hub_place;

/* One file of the listing under its path, complete and with its sum checked, or not at all.
 * Beside it PATH.part (and PATH.part.etag) hold what came before a cut, and the next call goes
 * on from there. A file that is there and right is left alone. */
rf_status rf_hub_fetch(const rf_hub_place *place, const rf_hub_file *file, rf_hub_state *state,
                       rf_error *error);

/* The error of a refused request: 401, 403, 404, 429, 5xx. */
rf_status rf_hub_refused(const rf_http_answer *answer, const rf_hub_name *name, const char *path,
                         const char *endpoint, bool has_token, rf_error *error);

#endif
