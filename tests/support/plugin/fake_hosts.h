/* fake_hosts.h - several hosts in the plugin without a compiler, and programs that rafter writes. A
 * host puts its number of devices into the store and gets that of the others. */
#ifndef FAKE_HOSTS_H
#define FAKE_HOSTS_H

#include "pjrt_host/pjrt_abi.h"

enum { FAKE_NODES = 8, FAKE_RESULTS = 400 };

typedef struct fake_nodes {
  int node, nodes; /* nodes <= 1: one host */
  int devices[FAKE_NODES];
  pjrt_client_create create; /* has the functions of the store */
  int64_t sums;              /* exchanges so far */
} fake_nodes;

/* Joins the other hosts. Returns NULL, or what went wrong. */
const char *fake_join(fake_nodes *n, const pjrt_client_create *create, int devices);
/* Adds up a number over all hosts. */
const char *fake_sum(fake_nodes *n, int64_t *number);

/* The results of @main in a module that rafter writes. */
typedef struct fake_result {
  int alias; /* argument whose memory it takes, or -1 */
  int type;  /* of PJRT */
  int rank;
  int64_t dim[8];
} fake_result;
/* Returns the number of results; 0: the text has no @main. */
int fake_results(const char *text, size_t bytes, fake_result result[FAKE_RESULTS]);

#endif
