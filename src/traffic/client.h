/* client.h - structures of a client, which client.c (opening, pages) and send.c (requests)
 * share. */
#ifndef RF_TRAFFIC_CLIENT_H
#define RF_TRAFFIC_CLIENT_H

#include "hub/late.h"
#include "traffic/sse.h"
#include "traffic/traffic.h"

enum {
  RF_TRAFFIC_URL = 4096,   /* maximum bytes of an address */
  RF_TRAFFIC_POLL_MS = 100 /* maximum milliseconds until the client notices a request to stop */
};

/* A request that is sent. */
typedef struct rf_transfer {
  CURL *curl;
  rf_traffic_client *client;
  rf_traffic_record *record; /* record of the request; NULL: the transfer is free */
  char *body;
  rf_sse sse;
  rf_error error;        /* the reason of RF_TRAFFIC_BROKEN */
  rf_traffic_fault seen; /* first fault in the stream */
  bool events, done, finish;
  int64_t received;
  double latest; /* time of the latest event with tokens */
  char refusal[2048], problem[CURL_ERROR_SIZE];
  size_t refusal_bytes;
} rf_transfer;

/* A small page, which the client keeps as a whole. */
typedef struct rf_page {
  CURL *curl;
  char *text;
  size_t bytes;
  bool active;
  char problem[CURL_ERROR_SIZE];
} rf_page;

struct rf_traffic_client {
  rf_traffic_settings settings;
  char url[RF_TRAFFIC_URL]; /* address of the server, without a slash or /v1 at the end */
  char *token;
  CURLM *multi;
  struct curl_slist *headers;
  rf_transfer **transfer; /* (transfers) */
  int64_t transfers;
  double start; /* of the run */
  rf_page page;
};

/* Sets the options that all transfers of a client have in common. */
void rf_traffic_set_common(rf_traffic_client *client, CURL *curl, char *problem, double timeout_seconds);
rf_status rf_traffic_no_memory(rf_error *error);
/* Begins to fetch a page, such as /metrics. Drops the previous page. */
bool rf_traffic_begin_page(rf_traffic_client *client, const char *path);
/* Returns the text of a completely fetched page; NULL: the server does not have the page. */
const char *rf_traffic_end_page(rf_traffic_client *client, CURLcode code);
void rf_traffic_drop_page(rf_traffic_client *client);
/* Removes the transfer of an ended or cancelled request. */
void rf_traffic_release(rf_transfer *transfer);

#endif
