/* hub.h - downloads the files of a model from a server with the Hugging Face hub's API. This room
 * lists the files, chooses the files that rafter reads, and downloads each of them. The server is
 * not trusted. No path may leave the folder, and no file may exceed its listed size. A file gets
 * its final name only after its checksum was verified. */
#ifndef RF_HUB_H
#define RF_HUB_H

#include "hub/hash.h"
#include "hub/http.h"

/* ---- the name of a model --------------------------------------------------------------------- */

typedef struct rf_hub_name {
  char repository[208]; /* "ORG/NAME" */
  char revision[200];   /* branch, tag or commit; "main" by default */
} rf_hub_name;

/* Reads "hf:ORG/NAME[@REV]", where "hf:" is optional. Other texts are RAFTER_INVALID. If the text
 * is a Kaggle model, or a folder with an Orbax or Flax checkpoint, the error suggests a repository
 * with safetensors. */
rf_status rf_hub_parse(const char *text, rf_hub_name *name, rf_error *error);

/* Finds a repository of the hub that has the model `name` as safetensors. `name` is a Kaggle path
 * ("google/gemma-2/flax/gemma2-2b-it"), or a repository or folder with another layout
 * ("gemma-2b-flax"). Returns false if no repository is known. */
bool rf_hub_variant(const char *name, char repository[208]);

/* ---- the list of files ----------------------------------------------------------------------- */

typedef struct rf_hub_file {
  char *path;    /* safe path below the repository, with '/' between folders */
  int64_t bytes; /* -1: unknown */
  rf_hash_kind kind;
  char hash[RF_HASH_TEXT];
  bool wanted; /* set by rf_hub_choose */
} rf_hub_file;

typedef struct rf_hub_listing {
  char commit[RF_HASH_TEXT]; /* commit of the revision; "" if the server named no commit */
  rf_hub_file *file;
  int count;
} rf_hub_listing;

rf_status rf_hub_list(rf_http *http, const char *endpoint, const rf_hub_name *name, rf_hub_listing *listing,
                      rf_error *error);
/* Parses the JSON text of a listing. */
rf_status rf_hub_read_listing(const char *text, size_t bytes, const char *where, rf_hub_listing *listing,
                              rf_error *error);
void rf_hub_listing_free(rf_hub_listing *listing);
/* True if a path is printable and stays below a folder. Such a path is relative and has no "..",
 * no backslash, no empty part and no part that is too long. */
bool rf_hub_path_is_safe(const char *path);

/* Marks the files that rafter reads, or that match one of `patterns` ('*' also matches '/'). The
 * error gives advice for pickles, for missing weights, and for several GGUF variants. */
rf_status rf_hub_choose(rf_hub_listing *listing, const rf_hub_name *name, const char *const *patterns,
                        int pattern_count, rf_error *error);

/* Names the layout of a list of paths if rafter cannot read it: "an Orbax checkpoint", "a Flax
 * checkpoint", "pickles", ... Otherwise, returns NULL. */
const char *rf_hub_layout_of(const char *const *paths, int count);

/* ---- downloads ------------------------------------------------------------------------------- */

typedef enum rf_hub_state { RF_HUB_DOWNLOADED, RF_HUB_RESUMED, RF_HUB_PRESENT } rf_hub_state;

typedef struct rf_hub_place {
  rf_http *http;
  const char *endpoint;
  const rf_hub_name *name;
  const rf_hub_listing *listing;
  int64_t room;            /* maximum bytes of a file whose size is unknown */
  int folder;              /* opened directory */
  const char *folder_name; /* name of `folder` in errors */
  /* Called with the number of bytes of `file` that are on disk and hashed; may be NULL. */
  void (*progress)(void *self, const rf_hub_file *file, int64_t bytes);
  void *self;
  const volatile int *stop; /* may be NULL */
} rf_hub_place;

/* Downloads one file of the listing, or keeps a correct file. The file gets its final name after
 * its checksum was verified. PATH.part and PATH.part.etag keep a partial download for the next
 * call. */
rf_status rf_hub_fetch(const rf_hub_place *place, const rf_hub_file *file, rf_hub_state *state,
                       rf_error *error);

/* The error for a refused request: 401, 403, 404, 429, 5xx. */
rf_status rf_hub_refused(const rf_http_answer *answer, const rf_hub_name *name, const char *path,
                         const char *endpoint, bool has_token, rf_error *error);

#endif
