/* adapters.h - loads the adapters with which a server starts, and adapters that clients load and
 * unload. */
#ifndef RF_SERVE_ADAPTERS_H
#define RF_SERVE_ADAPTERS_H

#include "serve/names.h"
#include "serve/wrong.h"

struct rf_server;
struct rf_call;

/* Loads the adapters with which the server starts. */
rf_status rf_adapters_start(struct rf_server *server, rf_error *error);
/* These functions answer POST /v1/load_lora_adapter and /v1/unload_lora_adapter. Both functions
 * wait until the current step has ended. */
bool rf_adapters_load(struct rf_call *call, rf_body *out, const char **type);
bool rf_adapters_unload(struct rf_call *call, rf_body *out, const char **type);

/* The engine's thread calls these functions between two steps, under the server's lock. The
 * function rf_adapters_work loads and unloads the adapters for which requests wait. When the engine
 * ends, rf_adapters_refuse refuses these requests. */
void rf_adapters_work(struct rf_server *server);
void rf_adapters_refuse(struct rf_server *server);

#endif
