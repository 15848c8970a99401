/* client.c - see traffic.h: opens a client, and fetches small pages such as /metrics. The client
 * follows no redirects, so only the named server gets the API key. */
#define _GNU_SOURCE
#include "traffic/client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

enum { PAGE_MOST = 8 << 20 /* maximum bytes of a page */ };
static const double PAGE_SECONDS = 10;

void rf_traffic_set_common(rf_traffic_client *c, CURL *curl, char *problem, double timeout_seconds) {
  rf_curl.easy_reset(curl);
  *problem = 0;
  rf_curl.easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  rf_curl.easy_setopt(curl, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
  rf_curl.easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  rf_curl.easy_setopt(curl, CURLOPT_ERRORBUFFER, problem);
  rf_curl.easy_setopt(curl, CURLOPT_USERAGENT, "rafter/" RF_VERSION);
  rf_curl.easy_setopt(curl, CURLOPT_TIMEOUT_MS, (long)(timeout_seconds * 1000));
  rf_curl.easy_setopt(curl, CURLOPT_HTTPHEADER, c->headers);
  if (c->settings.direct) rf_curl.easy_setopt(curl, CURLOPT_PROXY, "");
  if (c->token) {
    rf_curl.easy_setopt(curl, CURLOPT_HTTPAUTH, CURLAUTH_BEARER);
    rf_curl.easy_setopt(curl, CURLOPT_XOAUTH2_BEARER, c->token);
  }
}

rf_status rf_traffic_no_memory(rf_error *error) {
  return RF_FAIL(error, RAFTER_FAILED, "send fewer requests at the same time",
                 "out of memory while sending requests");
}

/* ---- pages ----------------------------------------------------------------------------------- */

static size_t on_page(char *data, size_t one, size_t bytes, void *self) {
  rf_page *p = self;
  (void)one;
  char *grown = p->bytes + bytes > PAGE_MOST ? NULL : realloc(p->text, p->bytes + bytes + 1);
  if (!grown) return 0;
  p->text = grown;
  memcpy(p->text + p->bytes, data, bytes);
  p->bytes += bytes;
  p->text[p->bytes] = 0;
  return bytes;
}

void rf_traffic_drop_page(rf_traffic_client *c) {
  if (c->page.active) rf_curl.multi_remove_handle(c->multi, c->page.curl);
  free(c->page.text);
  c->page.text = NULL;
  c->page.bytes = 0;
  c->page.active = false;
}

bool rf_traffic_begin_page(rf_traffic_client *c, const char *path) {
  char url[RF_TRAFFIC_URL + 32];
  rf_page *p = &c->page;
  rf_traffic_drop_page(c);
  if (!p->curl) p->curl = rf_curl.easy_init();
  if (!p->curl) return false;
  rf_traffic_set_common(c, p->curl, p->problem, PAGE_SECONDS);
  snprintf(url, sizeof url, "%s%s", c->url, path);
  rf_curl.easy_setopt(p->curl, CURLOPT_URL, url);
  rf_curl.easy_setopt(p->curl, CURLOPT_WRITEFUNCTION, on_page);
  rf_curl.easy_setopt(p->curl, CURLOPT_WRITEDATA, p);
  p->active = !rf_curl.multi_add_handle(c->multi, p->curl);
  return p->active;
}

const char *rf_traffic_end_page(rf_traffic_client *c, CURLcode code) {
  long http = 0;
  rf_curl.easy_getinfo(c->page.curl, CURLINFO_RESPONSE_CODE, &http);
  rf_curl.multi_remove_handle(c->multi, c->page.curl);
  c->page.active = false;
  return code == CURLE_OK && http == 200 ? c->page.text : NULL;
}

static rf_status model_of(const char *text, char **name, rf_error *error) {
  json_t *json = json_loads(text, 0, NULL);
  const char *id = json_string_value(json_object_get(json_array_get(json_object_get(json, "data"), 0), "id"));
  *name = id ? strdup(id) : NULL;
  json_decref(json);
  if (*name) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_FAILED, "name the model that requests ask for: --served-model NAME",
                 "the server lists no model (/v1/models: expected {\"data\": [{\"id\": ...}]})");
}

rf_status rf_traffic_model(rf_traffic_client *c, char **name, rf_error *error) {
  int running = 1;
  if (!rf_traffic_begin_page(c, "/v1/models")) return rf_traffic_no_memory(error);
  while (running) {
    rf_curl.multi_perform(c->multi, &running);
    if (running) rf_curl.multi_poll(c->multi, NULL, 0, RF_TRAFFIC_POLL_MS, NULL);
    if (!rf_flag_is_set(c->settings.stop)) continue;
    rf_traffic_drop_page(c);
    return RF_FAIL(error, RAFTER_INTERRUPTED, NULL, "stopped before the first request");
  }
  int more;
  long http = 0;
  CURLMsg *message = rf_curl.multi_info_read(c->multi, &more);
  CURLcode code = message ? message->data.result : CURLE_OK;
  rf_curl.easy_getinfo(c->page.curl, CURLINFO_RESPONSE_CODE, &http);
  const char *text = rf_traffic_end_page(c, code);
  if (text) return model_of(text, name, error);
  if (code != CURLE_OK)
    return RF_FAIL(error, RAFTER_FAILED, "check the address, and whether the server runs",
                   "cannot reach the server at %s (%s)", c->url,
                   *c->page.problem ? c->page.problem : rf_curl.easy_strerror(code));
  return RF_FAIL(error, RAFTER_FAILED,
                 http == 401 || http == 403
                     ? "give the API key: --api-key-file FILE, or the environment variable OPENAI_API_KEY"
                     : "name the model that requests ask for: --served-model NAME",
                 "the server lists no models (%s/v1/models answers %ld)", c->url, http);
}

/* ---- opening --------------------------------------------------------------------------------- */

static bool take_part(CURLU *url, CURLUPart part, char *text, size_t size) {
  char *found = NULL;
  *text = 0;
  bool there = !rf_curl.url_get(url, part, &found, 0);
  if (there) snprintf(text, size, "%s", found);
  rf_curl.free(found);
  return there;
}

/* Accepts only http and https. Refuses a password in the URL, because other users of this machine
 * could read the command line. */
static rf_status check_url(const char *text, rf_error *error) {
  char scheme[16] = "", other[16];
  CURLU *url = rf_curl.url();
  bool read = url && strlen(text) < RF_TRAFFIC_URL - 1 && !rf_curl.url_set(url, CURLUPART_URL, text, 0) &&
              take_part(url, CURLUPART_SCHEME, scheme, sizeof scheme) &&
              (!strcmp(scheme, "http") || !strcmp(scheme, "https"));
  bool more = read && (take_part(url, CURLUPART_USER, other, sizeof other) ||
                       take_part(url, CURLUPART_QUERY, other, sizeof other) ||
                       take_part(url, CURLUPART_FRAGMENT, other, sizeof other));
  rf_curl.url_cleanup(url);
  if (more)
    return RF_FAIL(error, RAFTER_INVALID,
                   "give an API key with --api-key-file FILE, or in the environment variable OPENAI_API_KEY",
                   "URL is not the address of a server (expected no user, no password, and no ? or #)");
  if (read) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_INVALID, "for example rafter bench-serve http://127.0.0.1:8000",
                 "URL is not the address of a server (expected http://HOST:PORT or https://HOST, got %.200s)",
                 text);
}

/* A line break inside the key would begin another header of the request. */
static rf_status check_token(const char *token, rf_error *error) {
  for (const char *c = token ? token : ""; *c; c++)
    if ((unsigned char)*c < ' ' || *c == 0x7f)
      return RF_FAIL(error, RAFTER_INVALID, "an API key is one word",
                     "the API key has a control character (byte %d of %d)", (int)(c - token) + 1,
                     (int)strlen(token));
  return RAFTER_OK;
}

rf_status rf_traffic_open(const rf_traffic_settings *settings, rf_traffic_client **client, rf_error *error) {
  RF_TRY(rf_late_load(error));
  if (rf_curl.global_init(CURL_GLOBAL_DEFAULT))
    return RF_FAIL(error, RAFTER_FAILED, NULL, "libcurl does not start");
  RF_TRY(check_url(settings->url, error));
  RF_TRY(check_token(settings->token, error));
  rf_traffic_client *c = calloc(1, sizeof *c);
  if (!c) return rf_traffic_no_memory(error);
  c->settings = *settings;
  snprintf(c->url, sizeof c->url, "%s", settings->url);
  size_t bytes = strlen(c->url);
  while (bytes && c->url[bytes - 1] == '/') c->url[--bytes] = 0;
  if (bytes > 3 && !strcmp(c->url + bytes - 3, "/v1")) c->url[bytes - 3] = 0;
  c->multi = rf_curl.multi_init();
  c->headers = rf_curl.slist_append(NULL, "Content-Type: application/json");
  /* Without this empty header, libcurl waits for the server's consent before sending a long body. */
  struct curl_slist *more = rf_curl.slist_append(c->headers, "Expect:");
  c->token = settings->token && *settings->token ? strdup(settings->token) : NULL;
  bool lost = settings->token && *settings->token && !c->token;
  if (!c->multi || !c->headers || !more || lost) {
    rf_traffic_close(c);
    return rf_traffic_no_memory(error);
  }
  *client = c;
  return RAFTER_OK;
}

void rf_traffic_close(rf_traffic_client *c) {
  if (!c) return;
  rf_traffic_drop_page(c);
  if (c->page.curl) rf_curl.easy_cleanup(c->page.curl);
  for (int64_t i = 0; i < c->transfers; i++) {
    if (c->transfer[i]->record) rf_traffic_release(c->transfer[i]);
    rf_curl.easy_cleanup(c->transfer[i]->curl);
    rf_sse_free(&c->transfer[i]->sse);
    free(c->transfer[i]);
  }
  free(c->transfer);
  if (c->multi) rf_curl.multi_cleanup(c->multi);
  rf_curl.slist_free_all(c->headers);
  free(c->token);
  free(c);
}
