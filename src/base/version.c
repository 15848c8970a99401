/* version.c - names the commit. Only this file is compiled again when the commit changes. */
#include "rafter.h"

const char *rafter_version(void) { return "rafter " RF_VERSION " (commit " RF_COMMIT ")"; }
