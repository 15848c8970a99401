/* late.h - the functions of libmicrohttpd. A server loads the library when it starts. Other
 * commands do not load libmicrohttpd, because this also loads a TLS library, which would take
 * longer than most commands. */
#ifndef RF_SERVE_LATE_H
#define RF_SERVE_LATE_H

#include "base/base.h"

#include <microhttpd.h>

#define RF_MHD_RESPONSES(X) \
  X(create_response_from_buffer) X(create_response_from_callback) X(destroy_response) X(add_response_header)
#define RF_MHD_CONNECTIONS(X) \
  X(queue_response) \
  X(lookup_connection_value) X(get_connection_info) X(suspend_connection) X(resume_connection)
#define RF_MHD_FUNCTIONS(X) \
  X(start_daemon) X(stop_daemon) X(get_version) RF_MHD_RESPONSES(X) RF_MHD_CONNECTIONS(X)

/* After rf_mhd_load, rf_mhd.start_daemon() is MHD_start_daemon(). */
#define RF_POINTER(name) __typeof__(MHD_##name) *name;
typedef struct rf_mhd_functions {
  RF_MHD_FUNCTIONS(RF_POINTER)
} rf_mhd_functions;
#undef RF_POINTER
extern rf_mhd_functions rf_mhd;

/* Loads the library once. If the library is missing, the error has its name. */
rf_status rf_mhd_load(rf_error *error);

#endif
