/* version.c - names the commit. A new commit recompiles only this file. */
#include "rafter.h"

const char *rafter_version(void) { return "rafter " RF_VERSION " (commit " RF_COMMIT ")"; }
