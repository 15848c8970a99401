/* version.c - contains the commit id, so that a new commit recompiles only this file. */
#include "rafter.h"

const char *rafter_version(void) { return "rafter " RF_VERSION " (commit " RF_COMMIT ")"; }
