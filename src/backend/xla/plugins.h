/* plugins.h - finds PJRT plugins on this machine, and says what each can do. */
#ifndef RF_XLA_PLUGINS_H
#define RF_XLA_PLUGINS_H

#include "backend/xla/client.h"

/* The folder of `./dev setup --xla`: RAFTER_PLUGINS or ~/.cache/rafter-plugins. */
void rf_xla_plugins_folder(char path[4096]);
/* Files of plugins: known files in this folder, libtpu of a TPU machine, and the file that
 * RAFTER_PJRT_PLUGIN names. Nothing is loaded. Returns the number of files. */
enum { RF_XLA_PLUGINS = 16 };
int rf_xla_plugins(char path[RF_XLA_PLUGINS][4096]);

typedef struct rf_xla_ability {
  bool runs;       /* it has devices */
  bool topologies; /* it compiles for devices that are not here */
  rf_xla_facts facts;
  rf_error problem; /* why it does not run; no message: it runs */
} rf_xla_ability;
/* Loads a plugin in a child process, for at most `seconds` per try. It ends early if *stop is
 * set. */
void rf_xla_probe(const char *path, double seconds, const volatile int *stop, rf_xla_ability *ability);

#endif
