/* late.c - loads libmicrohttpd. The build determines the library's file name. */
#include "serve/late.h"

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

rf_mhd_functions rf_mhd;

#define RF_ROW(name) {"MHD_" #name, offsetof(rf_mhd_functions, name)},
static const struct {
  const char *name;
  size_t at; /* byte offset of the function's pointer in rf_mhd */
} FUNCTIONS[] = {RF_MHD_FUNCTIONS(RF_ROW)};
#undef RF_ROW

rf_status rf_mhd_load(rf_error *error) {
  static const char HINT[] = "install it (Debian: libmicrohttpd12)";
  void *library = dlopen(RF_LIBMICROHTTPD, RTLD_NOW);
  if (!library)
    return RF_FAIL(error, RAFTER_FAILED, HINT, "serving needs %s, which does not load (%.300s)",
                   RF_LIBMICROHTTPD, dlerror());
  for (size_t i = 0; i < sizeof FUNCTIONS / sizeof *FUNCTIONS; i++) {
    void *found = dlsym(library, FUNCTIONS[i].name);
    if (!found)
      return RF_FAIL(error, RAFTER_FAILED, HINT, "%s is too old for serving (it has no %s)", RF_LIBMICROHTTPD,
                     FUNCTIONS[i].name);
    memcpy((char *)&rf_mhd + FUNCTIONS[i].at, &found, sizeof found);
  }
  return RAFTER_OK;
}
