/* hash.c - SHA-256 and Git's blob id, from libcrypto. */
#include "hub/hash.h"

#include "hub/late.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct rf_hash {
  EVP_MD_CTX *context; /* NULL for RF_HASH_NONE */
};

rf_status rf_hash_open(rf_hash_kind kind, int64_t bytes, rf_hash **out, rf_error *error) {
  RF_TRY(rf_late_load(error));
  const EVP_MD *const kinds[] = {NULL, rf_evp.sha256(), rf_evp.sha1()};
  rf_hash *hash = calloc(1, sizeof *hash);
  if (hash && kind != RF_HASH_NONE) hash->context = rf_evp.MD_CTX_new();
  if (!hash || (kind != RF_HASH_NONE &&
                (!hash->context || rf_evp.DigestInit_ex(hash->context, kinds[kind], NULL) != 1))) {
    if (hash) rf_evp.MD_CTX_free(hash->context);
    free(hash);
    return RF_FAIL(error, RAFTER_FAILED, NULL, "libcrypto cannot compute a checksum");
  }
  if (kind == RF_HASH_GIT_BLOB) {
    char head[32];
    rf_hash_add(hash, head, (size_t)snprintf(head, sizeof head, "blob %lld", (long long)bytes) + 1);
  }
  *out = hash;
  return RAFTER_OK;
}

void rf_hash_add(rf_hash *hash, const void *data, size_t bytes) {
  if (hash->context) rf_evp.DigestUpdate(hash->context, data, bytes);
}

void rf_hash_end(rf_hash *hash, char text[RF_HASH_TEXT]) {
  unsigned char sum[EVP_MAX_MD_SIZE];
  unsigned int bytes = 0;
  text[0] = 0;
  if (hash->context) rf_evp.DigestFinal_ex(hash->context, sum, &bytes);
  for (unsigned int i = 0; i < bytes && i < RF_HASH_TEXT / 2; i++) snprintf(text + 2 * i, 3, "%02x", sum[i]);
  rf_evp.MD_CTX_free(hash->context);
  free(hash);
}

bool rf_hash_is(rf_hash_kind kind, const char *text) {
  size_t digits = kind == RF_HASH_SHA256 ? 64 : kind == RF_HASH_GIT_BLOB ? 40 : 0;
  return digits && strlen(text) == digits && strspn(text, "0123456789abcdef") == digits;
}
