/* late.c - loads libcurl and libcrypto. The build writes the file names of the libraries into the
 * program. */
#include "hub/late.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>

rf_curl_functions rf_curl;
rf_evp_functions rf_evp;

typedef struct function {
  const char *name;
  size_t at; /* byte offset of the function's pointer in the table of its library */
} function;

#define RF_ROW(name) {"curl_" #name, offsetof(rf_curl_functions, name)},
static const function CURL_FUNCTIONS[] = {RF_CURL_FUNCTIONS(RF_ROW){NULL, 0}};
#undef RF_ROW
#define RF_ROW(name) {"EVP_" #name, offsetof(rf_evp_functions, name)},
static const function EVP_FUNCTIONS[] = {RF_EVP_FUNCTIONS(RF_ROW){NULL, 0}};
#undef RF_ROW

static const struct {
  const char *file, *package;
  const function *functions;
  void *table;
} LIBRARIES[] = {{RF_LIBCURL, "libcurl4", CURL_FUNCTIONS, &rf_curl},
                 {RF_LIBCRYPTO, "libssl3", EVP_FUNCTIONS, &rf_evp}};

static rf_error problem; /* error from loading the libraries */

static rf_status load(rf_error *error) {
  for (size_t l = 0; l < sizeof LIBRARIES / sizeof *LIBRARIES; l++) {
    char hint[80];
    void *library = dlopen(LIBRARIES[l].file, RTLD_NOW);
    snprintf(hint, sizeof hint, "install it (Debian: %s)", LIBRARIES[l].package);
    if (!library)
      return RF_FAIL(error, RAFTER_FAILED, hint, "the network needs %s, which does not load (%.300s)",
                     LIBRARIES[l].file, dlerror());
    for (const function *f = LIBRARIES[l].functions; f->name; f++) {
      void *found = dlsym(library, f->name);
      if (!found)
        return RF_FAIL(error, RAFTER_FAILED, hint, "%s is too old (it has no %s)", LIBRARIES[l].file,
                       f->name);
      memcpy((char *)LIBRARIES[l].table + f->at, &found, sizeof found);
    }
  }
  return RAFTER_OK;
}

static void load_once(void) { load(&problem); }

rf_status rf_late_load(rf_error *error) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, load_once);
  if (problem.status != RAFTER_OK && error) *error = problem;
  return problem.status;
}
