/* adapters.h - the adapters that a server starts with, and those that clients load and unload. */
#ifndef RF_SERVE_ADAPTERS_H
#define RF_SERVE_ADAPTERS_H

#include "serve/names.h"
#include "serve/wrong.h"

struct rf_server;
struct rf_call;

/* Loads the adapters that the server starts with. */
rf_status rf_adapters_start(struct rf_server *server, rf_error *error);
/* Answer POST /v1/load_lora_adapter and /v1/unload_lora_adapter. They wait for the end of a
 * step. */
bool rf_adapters_load(struct rf_call *call, rf_body *out, const char **type);
bool rf_adapters_unload(struct rf_call *call, rf_body *out, const char **type);

/* Called by the engine's thread between two steps, under the server's lock. Loads and unloads the
 * adapters for which requests wait. When the engine ends, refuses these requests. */
void rf_adapters_work(struct rf_server *server);
void rf_adapters_refuse(struct rf_server *server);

#endif
