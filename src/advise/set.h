/* set.h - changes of options, written as text. */
#ifndef RF_ADVISE_SET_H
#define RF_ADVISE_SET_H

#include "base/options.h"

/* Applies `text` to the options: a MODEL, NAME=VALUE,NAME=VALUE, or words of a command line. */
rf_status rf_options_apply(rf_options *options, const char *text, rf_error *error);
/* Sets --on to `machine` with the given number of chips. */
rf_status rf_set_chips(rf_options *options, const char *machine, const char *chips, rf_error *error);

#endif
