/* plugins.h - finds PJRT plugins on this machine, and finds out what each plugin can do. */
#ifndef RF_XLA_PLUGINS_H
#define RF_XLA_PLUGINS_H

#include "backend/xla/client.h"

/* The folder of `./dev setup --xla`: RAFTER_PLUGINS or ~/.cache/rafter-plugins. */
void rf_xla_plugins_folder(char path[4096]);
/* Lists files of plugins: known files in this folder, libtpu of a TPU machine, and the file that
 * RAFTER_PJRT_PLUGIN names. Nothing is loaded. Returns the number of files. */
enum { RF_XLA_PLUGINS = 16 };
int rf_xla_plugins(char path[RF_XLA_PLUGINS][4096]);

typedef struct rf_xla_ability {
  bool runs;       /* it has devices */
  bool topologies; /* true: the plugin can compile for devices that this machine does not have */
  rf_xla_facts facts;
  rf_error problem; /* reason why the plugin does not run; no message: it runs */
} rf_xla_ability;
/* Loads a plugin in a child process. Each attempt takes at most `seconds`. A set *stop ends the
 * attempt early. */
void rf_xla_probe(const char *path, double seconds, const volatile int *stop, rf_xla_ability *ability);

#endif
