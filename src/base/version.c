/* version.c - the one file that knows the commit: it alone is compiled again when that changes. */
#include "rafter.h"

const char *rafter_version(void) { return "rafter " RF_VERSION " (commit " RF_COMMIT ")"; }
