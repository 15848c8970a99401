/* hub.h - downloads a model's files from a server with the Hugging Face hub's API: lists them,
 * chooses, and fetches each file whole. Nothing the server says is trusted: paths stay below the
 * folder, sizes are limits, and a file gets its name only after its sum was checked. */
#ifndef RF_HUB_H
#define RF_HUB_H

#include "hub/hash.h"
#include "hub/http.h"

/* ---- what is named --------------------------------------------------------------------------- */

typedef struct rf_hub_name {
  char repository[208]; /* "ORG/NAME" */
  char revision[200];   /* branch, tag or commit; "main" when none is given */
} rf_hub_name;

/* Reads "hf:ORG/NAME[@REV]". RAFTER_INVALID otherwise; for a Kaggle model, or a folder with an
 * Orbax or Flax checkpoint, the error names the safetensors variant. */
rf_status rf_hub_parse(const char *text, rf_hub_name *name, rf_error *error);

/* Finds the repository with the safetensors variant of `name`: a Kaggle path
 * ("google/gemma-2/flax/gemma2-2b-it"), a repository or a folder of another layout
 * ("gemma-2b-flax"). Returns false if none is known. */
bool rf_hub_variant(const char *name, char repository[208]);

/* ---- what is there --------------------------------------------------------------------------- */

typedef struct rf_hub_file {
  char *path;    /* path below the repository, with '/' between folders; checked */
  int64_t bytes; /* -1: unknown */
  rf_hash_kind kind;
  char hash[RF_HASH_TEXT];
  bool wanted; /* set by rf_hub_choose */
} rf_hub_file;

typedef struct rf_hub_listing {
  char commit[RF_HASH_TEXT]; /* the revision's commit; "" if the server does not say */
  rf_hub_file *file;
  int count;
} rf_hub_listing;

rf_status rf_hub_list(rf_http *http, const char *endpoint, const rf_hub_name *name, rf_hub_listing *listing,
                      rf_error *error);
/* its JSON */
rf_status rf_hub_read_listing(const char *text, size_t bytes, const char *where, rf_hub_listing *listing,
                              rf_error *error);
void rf_hub_listing_free(rf_hub_listing *listing);
/* Whether a path is safe below a folder: no root, no "..", no empty or overlong part, nothing
 * unprintable, no backslash. */
bool rf_hub_path_is_safe(const char *path);

/* Marks the files that rafter reads, or those of them that match one of `patterns` ('*' also
 * crosses '/'). Refuses, with advice: pickles asked for by name; repositories without readable
 * weights (Orbax, Flax, pickles); several GGUF variants of which none is chosen. */
rf_status rf_hub_choose(rf_hub_listing *listing, const rf_hub_name *name, const char *const *patterns,
                        int pattern_count, rf_error *error);

/* The unreadable layout that a list of paths belongs to: "an Orbax checkpoint", "a Flax
 * checkpoint", "pickles", ...; NULL if none. */
const char *rf_hub_layout_of(const char *const *paths, int count);

/* ---- into a folder --------------------------------------------------------------------------- */

typedef enum rf_hub_state { RF_HUB_DOWNLOADED, RF_HUB_RESUMED, RF_HUB_PRESENT } rf_hub_state;

typedef struct rf_hub_place {
  rf_http *http;
  const char *endpoint;
  const rf_hub_name *name;
  const rf_hub_listing *listing;
  /* maximum bytes of a file whose size the listing does not give */
  int64_t room;
  int folder;              /* opened directory */
  const char *folder_name; /* for errors */
  /* bytes of `file` that are here and checked; may be NULL */
  void (*progress)(void *self, const rf_hub_file *file, int64_t bytes);
  void *self;
  const volatile int *stop; /* may be NULL */
} rf_hub_place;

/* Downloads one file of the listing to its path, complete and with its sum checked, or not at
 * all. PATH.part (and PATH.part.etag) hold a partial download, which the next call continues. A
 * correct file that is already there is left alone. */
rf_status rf_hub_fetch(const rf_hub_place *place, const rf_hub_file *file, rf_hub_state *state,
                       rf_error *error);

/* The error for a refused request: 401, 403, 404, 429, 5xx. */
rf_status rf_hub_refused(const rf_http_answer *answer, const rf_hub_name *name, const char *path,
                         const char *endpoint, bool has_token, rf_error *error);

#endif
