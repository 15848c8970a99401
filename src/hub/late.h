/* late.h - the functions of libcurl and libcrypto. Both libraries are loaded only when a command
 * first needs the network. Loading them at program start would take longer than most commands. */
#ifndef RF_HUB_LATE_H
#define RF_HUB_LATE_H

#include "base/base.h"

#include <curl/curl.h>
#include <openssl/evp.h>

#define RF_CURL_EASY(X) \
  X(easy_init) X(easy_cleanup) X(easy_reset) X(easy_setopt) X(easy_getinfo) X(easy_perform) X(easy_strerror)
#define RF_CURL_OTHERS(X) \
  X(global_init) X(free) X(slist_append) X(slist_free_all) X(url) X(url_cleanup) X(url_get) X(url_set)
#define RF_CURL_MULTI(X) X(multi_init) X(multi_cleanup) X(multi_setopt) X(multi_strerror) X(multi_add_handle)
#define RF_CURL_TRANSFERS(X) X(multi_remove_handle) X(multi_perform) X(multi_poll) X(multi_info_read)
#define RF_CURL_FUNCTIONS(X) RF_CURL_EASY(X) RF_CURL_OTHERS(X) RF_CURL_MULTI(X) RF_CURL_TRANSFERS(X)
#define RF_EVP_FUNCTIONS(X) \
  X(sha1) X(sha256) X(MD_CTX_new) X(MD_CTX_free) X(DigestInit_ex) X(DigestUpdate) X(DigestFinal_ex)

/* After rf_late_load, rf_curl.easy_init() is curl_easy_init(). */
#define RF_POINTER(name) __typeof__(curl_##name) *name;
typedef struct rf_curl_functions {
  RF_CURL_FUNCTIONS(RF_POINTER)
} rf_curl_functions;
#undef RF_POINTER
#define RF_POINTER(name) __typeof__(EVP_##name) *name;
typedef struct rf_evp_functions {
  RF_EVP_FUNCTIONS(RF_POINTER)
} rf_evp_functions;
#undef RF_POINTER
extern rf_curl_functions rf_curl;
extern rf_evp_functions rf_evp;

/* Loads both libraries once. If a library is missing, the error names this library. */
rf_status rf_late_load(rf_error *error);

#endif
