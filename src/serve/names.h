/* names.h - maps the names of a server's adapters to the generator's ids. */
#ifndef RF_SERVE_NAMES_H
#define RF_SERVE_NAMES_H

#include "base/base.h"

enum { RF_ADAPTER_NAME = 200 }; /* maximum bytes of a name */

/* Any number of threads may use the list at the same time. */
typedef struct rf_named_adapters rf_named_adapters;
rf_named_adapters *rf_named_adapters_new(void);
void rf_named_adapters_free(rf_named_adapters *list); /* NULL is allowed */
/* Returns the generator's id of an adapter; 0: no adapter has this name. *created (may be NULL) is
 * the time at which the adapter was loaded, in seconds since 1970. */
int64_t rf_named_adapter(rf_named_adapters *list, const char *name, int64_t *created);
/* Copies the name of loaded adapter `index`. Returns false after the last adapter. */
bool rf_named_adapter_at(rf_named_adapters *list, int index, char name[RF_ADAPTER_NAME + 1],
                         int64_t *created);
/* Reserves a name for an adapter that will be loaded. Returns false if the list already has this
 * name. */
bool rf_named_adapter_reserve(rf_named_adapters *list, const char *name);
/* Sets the id of a reserved name. For id 0, removes the name, and returns its old id. */
int64_t rf_named_adapter_settle(rf_named_adapters *list, const char *name, int64_t id);

#endif
