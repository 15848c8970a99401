/* version.c - names the commit. Only this file is recompiled after a commit. */
#include "rafter.h"

const char *rafter_version(void) { return "rafter " RF_VERSION " (commit " RF_COMMIT ")"; }
