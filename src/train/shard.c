/* shard.c - reads and writes token shards. */
#define _GNU_SOURCE
#include "train/shard.h"

#include "base/partial.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

static const char MAGIC[8] = {'r', 'a', 'f', 't', 'e', 'r', 'T', '1'};
enum { HEADER_BYTES = 64 };
/* Flag in the document table: the document that ends at this entry is an example. */
static const uint64_t EXAMPLE = 1ull << 63;

typedef struct header {
  char magic[8];
  uint32_t token_bytes, vocab;
  uint64_t tokens, documents;
  uint32_t masked;
  uint8_t zero[28];
} header;
_Static_assert(sizeof(header) == HEADER_BYTES, "the shard header is 64 bytes");

static int64_t starts_at(int64_t token_bytes, int64_t tokens) {
  return (HEADER_BYTES + token_bytes * tokens + 7) / 8 * 8;
}

static rf_status open_file(const char *path, rf_shard *shard, int64_t *bytes, rf_error *error) {
  struct stat info;
  *shard = (rf_shard){.file = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK)};
  if (strlen(path) >= sizeof shard->path)
    return RF_FAIL(error, RAFTER_INVALID, NULL, "the path is too long (%zu bytes)", strlen(path));
  strcpy(shard->path, path);
  if (shard->file < 0)
    return RF_FAIL(error, RAFTER_FAILED, "check the path given to --data", "cannot open %s (%s)", path,
                   strerror(errno));
  if (fstat(shard->file, &info) || !S_ISREG(info.st_mode)) {
    rf_shard_close(shard);
    return RF_FAIL(error, RAFTER_FAILED, "give a text file, a .jsonl file or token shards",
                   "%s is not a regular file", path);
  }
  *bytes = info.st_size;
  shard->stamp = rf_file_stamp_of(shard->file);
  return RAFTER_OK;
}

rf_status rf_shard_open_text(const char *path, rf_shard *shard, rf_error *error) {
  int64_t bytes = 0;
  RF_TRY(open_file(path, shard, &bytes, error));
  shard->token_bytes = 1;
  shard->vocab = 256;
  shard->tokens = bytes;
  return RAFTER_OK;
}

rf_status rf_shard_open(const char *path, rf_shard *shard, rf_error *error) {
  int64_t bytes = 0;
  header h;
  RF_TRY(open_file(path, shard, &bytes, error));
  const char *field = NULL;
  long long expected = 0, got = 0;
  if (pread(shard->file, &h, sizeof h, 0) != (ssize_t)sizeof h) {
    field = "header";
    expected = HEADER_BYTES;
    got = bytes;
  } else if (memcmp(h.magic, MAGIC, sizeof MAGIC)) {
    field = "magic";
    expected = 1;
    got = 0;
  } else if (h.token_bytes != 2 && h.token_bytes != 4) {
    field = "token bytes";
    expected = 2;
    got = h.token_bytes;
  } else if (h.vocab == 0 || h.vocab > INT32_MAX) {
    field = "vocab";
    expected = INT32_MAX;
    got = h.vocab;
  } else if (h.tokens > (uint64_t)(bytes - HEADER_BYTES) / h.token_bytes) {
    field = "tokens";
    expected = (long long)((bytes - HEADER_BYTES) / (int64_t)h.token_bytes);
    got = (long long)h.tokens;
  } else if (h.masked > 1 || (h.masked && !h.documents)) {
    field = "masked";
    expected = h.documents ? 1 : 0;
    got = h.masked;
  } else {
    int64_t mask = h.masked ? ((int64_t)h.tokens + 7) / 8 : 0,
            left = bytes - starts_at(h.token_bytes, (int64_t)h.tokens) - mask;
    if (h.documents && (left < 16 || h.documents > (uint64_t)left / 8 - 1)) {
      field = "documents";
      expected = left < 16 ? 0 : left / 8 - 1;
      got = (long long)h.documents;
    }
  }
  if (field) {
    rf_shard_close(shard);
    return RF_FAIL(error, RAFTER_FAILED, "write the shard again with `rafter tokenize --output`",
                   "%s is not a complete token shard (%s: expected %lld, got %lld)", path, field, expected,
                   got);
  }
  shard->token_bytes = (int)h.token_bytes;
  shard->vocab = h.vocab;
  shard->tokens = (int64_t)h.tokens;
  shard->documents = (int64_t)h.documents;
  shard->first_byte = HEADER_BYTES;
  shard->starts_byte = starts_at(h.token_bytes, (int64_t)h.tokens);
  if (h.masked) shard->mask_byte = shard->starts_byte + 8 * (shard->documents + 1);
  return RAFTER_OK;
}

void rf_shard_close(rf_shard *shard) {
  if (shard->file >= 0) close(shard->file);
  shard->file = -1;
}

rf_status rf_shard_read(const rf_shard *shard, int64_t first, int64_t count, int64_t vocab, int32_t *ids,
                        rf_error *error) {
  unsigned char buffer[16384];
  int64_t step = (int64_t)sizeof buffer / shard->token_bytes;
  for (int64_t done = 0; done < count; done += step) {
    int64_t now = count - done < step ? count - done : step, bytes = now * shard->token_bytes;
    int64_t at = shard->first_byte + (first + done) * shard->token_bytes;
    if (first < 0 || first + count > shard->tokens || pread(shard->file, buffer, (size_t)bytes, at) != bytes)
      return RF_FAIL(error, RAFTER_FAILED, "do not change the file during a run",
                     "%s has become shorter (expected %lld bytes at %lld)", shard->path, (long long)bytes,
                     (long long)at);
    for (int64_t i = 0; i < now; i++) {
      uint32_t id = shard->token_bytes == 1   ? buffer[i]
                    : shard->token_bytes == 2 ? ((const uint16_t *)buffer)[i]
                                              : ((const uint32_t *)buffer)[i];
      if (id >= (uint64_t)vocab)
        return RF_FAIL(error, RAFTER_FAILED, "tokenize the data with the model's own tokenizer",
                       "token out of range (%s, token %lld: expected below %lld, got %u)", shard->path,
                       (long long)(first + done + i), (long long)vocab, id);
      ids[done + i] = (int32_t)id;
    }
  }
  return RAFTER_OK;
}

rf_status rf_shard_document(const rf_shard *shard, int64_t document, int64_t *start, bool *example,
                            rf_error *error) {
  uint64_t entry = 0, at = 0;
  bool there = pread(shard->file, &entry, 8, shard->starts_byte + 8 * document) == 8;
  at = entry & ~EXAMPLE;
  if (!there || at > (uint64_t)shard->tokens)
    return RF_FAIL(error, RAFTER_FAILED, "write the shard again with `rafter tokenize --output`",
                   "%s has a bad document table (document %lld: expected at most %lld, got %llu)",
                   shard->path, (long long)document, (long long)shard->tokens, (unsigned long long)at);
  *start = (int64_t)at;
  if (example) *example = entry & EXAMPLE;
  return RAFTER_OK;
}

rf_status rf_shard_mask(const rf_shard *shard, int64_t first, int64_t count, uint8_t *mask, rf_error *error) {
  unsigned char bits[1024];
  const int64_t step = 8 * ((int64_t)sizeof bits - 1);
  if (!shard->mask_byte) memset(mask, 1, (size_t)count);
  for (int64_t done = 0; shard->mask_byte && done < count; done += step) {
    int64_t now = count - done < step ? count - done : step, from = (first + done) / 8,
            last = (first + done + now - 1) / 8;
    ssize_t bytes = (ssize_t)(last - from + 1);
    if (first < 0 || first + count > shard->tokens ||
        pread(shard->file, bits, (size_t)bytes, shard->mask_byte + from) != bytes)
      return RF_FAIL(error, RAFTER_FAILED, "do not change the file during a run",
                     "%s has become shorter (loss mask of tokens %lld to %lld)", shard->path,
                     (long long)first, (long long)(first + count));
    for (int64_t i = 0; i < now; i++) {
      int64_t t = first + done + i;
      mask[done + i] = bits[t / 8 - from] >> (t % 8) & 1;
    }
  }
  return RAFTER_OK;
}

rf_status rf_shard_scan(const rf_shard *shard, int64_t vocab, uint64_t *digest, rf_error *error) {
  int32_t ids[4096];
  uint64_t sum = 0;
  for (int64_t at = 0; at < shard->tokens; at += 4096) {
    int64_t count = shard->tokens - at < 4096 ? shard->tokens - at : 4096;
    RF_TRY(rf_shard_read(shard, at, count, vocab, ids, error));
    sum = XXH3_64bits_withSeed(ids, (size_t)count * sizeof *ids, sum);
  }
  for (int64_t d = 0; shard->documents && d <= shard->documents; d++) {
    int64_t start = 0;
    bool example = false;
    RF_TRY(rf_shard_document(shard, d, &start, &example, error));
    start |= (int64_t)example << 62; /* this bit is above every token position */
    sum = XXH3_64bits_withSeed(&start, sizeof start, sum);
  }
  for (int64_t at = 0; shard->mask_byte && at < shard->tokens; at += 4096) {
    uint8_t mask[4096];
    int64_t count = shard->tokens - at < 4096 ? shard->tokens - at : 4096;
    RF_TRY(rf_shard_mask(shard, at, count, mask, error));
    sum = XXH3_64bits_withSeed(mask, (size_t)count, sum);
  }
  if (digest) *digest = sum;
  return RAFTER_OK;
}

struct rf_shard_writer {
  /* Document table and loss mask are in temporary files until the shard is complete. If `mask` is
   * NULL, the loss counts all tokens. */
  FILE *file, *starts, *mask;
  char path[1024], part[1040];
  rf_partial *partial;
  header head;
  unsigned char bits; /* the bits of the last byte of the mask, which is not yet full */
};

void rf_shard_discard(rf_shard_writer *writer) {
  if (!writer) return;
  if (writer->file) {
    fclose(writer->file);
    unlink(writer->part);
  }
  rf_partial_done(writer->partial);
  if (writer->starts) fclose(writer->starts);
  if (writer->mask) fclose(writer->mask);
  free(writer);
}

static rf_status write_failed(const rf_shard_writer *writer, rf_error *error) {
  return RF_FAIL(error, RAFTER_FAILED, "free some space or choose another folder", "cannot write %s (%s)",
                 writer->path, strerror(errno));
}

rf_status rf_shard_create(const char *path, int64_t vocab, rf_shard_writer **out, rf_error *error) {
  rf_status status = RAFTER_OK;
  rf_shard_writer *writer = calloc(1, sizeof *writer);
  if (!writer || strlen(path) >= sizeof writer->path) {
    free(writer);
    return RF_FAIL(error, RAFTER_FAILED, NULL, "cannot write a shard to %s", path);
  }
  strcpy(writer->path, path);
  snprintf(writer->part, sizeof writer->part, "%s.part", path);
  memcpy(writer->head.magic, MAGIC, sizeof MAGIC);
  writer->head.token_bytes = vocab <= 65536 ? 2 : 4;
  writer->head.vocab = (uint32_t)vocab;
  writer->file = fopen(writer->part, "wbe");
  if (writer->file) writer->partial = rf_partial_add(writer->part, fileno(writer->file));
  writer->starts = tmpfile();
  uint64_t zero = 0;
  if (!writer->file || !writer->starts || fwrite(&writer->head, sizeof(header), 1, writer->file) != 1 ||
      fwrite(&zero, 8, 1, writer->starts) != 1) {
    status = write_failed(writer, error);
    rf_shard_discard(writer);
    return status;
  }
  *out = writer;
  return RAFTER_OK;
}

rf_status rf_shard_append_stream(rf_shard_writer *writer, const int32_t *ids, int64_t count,
                                 rf_error *error) {
  for (int64_t i = 0; i < count; i++)
    if (ids[i] < 0 || (uint32_t)ids[i] >= writer->head.vocab)
      return RF_FAIL(error, RAFTER_FAILED, "use ids of the model's own tokenizer",
                     "token out of range (document %llu, token %lld: expected below %u, got %d)",
                     (unsigned long long)writer->head.documents, (long long)i, writer->head.vocab, ids[i]);
  for (int64_t i = 0; i < count; i++) {
    uint32_t wide = (uint32_t)ids[i];
    uint16_t narrow = (uint16_t)wide;
    if (fwrite(writer->head.token_bytes == 2 ? (void *)&narrow : (void *)&wide, writer->head.token_bytes, 1,
               writer->file) != 1)
      return write_failed(writer, error);
  }
  writer->head.tokens += (uint64_t)count;
  return RAFTER_OK;
}

/* Writes the mask bits of the tokens [at, at + count). If `mask` is NULL, the loss counts all of
 * these tokens. */
static bool put_mask(rf_shard_writer *writer, uint64_t at, const uint8_t *mask, int64_t count) {
  for (int64_t i = 0; i < count; i++, at++) {
    writer->bits |= (unsigned char)((!mask || mask[i]) << (at % 8));
    if (at % 8 < 7) continue;
    if (fputc(writer->bits, writer->mask) == EOF) return false;
    writer->bits = 0;
  }
  return true;
}

static rf_status append(rf_shard_writer *writer, const int32_t *ids, const uint8_t *mask, int64_t count,
                        rf_error *error) {
  uint64_t before = writer->head.tokens;
  RF_TRY(rf_shard_append_stream(writer, ids, count, error));
  if (mask && !writer->mask) { /* the loss counts all tokens that precede the first mask */
    writer->mask = tmpfile();
    if (!writer->mask || !put_mask(writer, 0, NULL, (int64_t)before)) return write_failed(writer, error);
  }
  if (writer->mask && !put_mask(writer, before, mask, count)) return write_failed(writer, error);
  writer->head.documents++;
  uint64_t entry = writer->head.tokens | (mask ? EXAMPLE : 0);
  return fwrite(&entry, 8, 1, writer->starts) == 1 ? RAFTER_OK : write_failed(writer, error);
}

rf_status rf_shard_append(rf_shard_writer *writer, const int32_t *ids, int64_t count, rf_error *error) {
  return append(writer, ids, NULL, count, error);
}

rf_status rf_shard_append_example(rf_shard_writer *writer, const int32_t *ids, const uint8_t *mask,
                                  int64_t count, rf_error *error) {
  return append(writer, ids, mask, count, error);
}

static bool append_file(FILE *from, FILE *to) {
  char buffer[8192];
  size_t got;
  if (fseek(from, 0, SEEK_SET)) return false;
  while ((got = fread(buffer, 1, sizeof buffer, from)) > 0)
    if (fwrite(buffer, 1, got, to) != got) return false;
  return !ferror(from);
}

rf_status rf_shard_finish(rf_shard_writer *writer, rf_error *error) {
  static const char zeros[8];
  size_t pad = (size_t)(starts_at(writer->head.token_bytes, (int64_t)writer->head.tokens) - HEADER_BYTES -
                        (int64_t)writer->head.token_bytes * (int64_t)writer->head.tokens);
  rf_status status = RAFTER_OK;
  writer->head.masked = writer->mask != NULL;
  bool ok = fwrite(zeros, 1, pad, writer->file) == pad &&
            (!writer->head.documents || append_file(writer->starts, writer->file));
  if (writer->mask && writer->head.tokens % 8) ok = ok && fputc(writer->bits, writer->mask) != EOF;
  if (writer->mask) ok = ok && append_file(writer->mask, writer->file);
  ok = ok && !fseek(writer->file, 0, SEEK_SET) &&
       fwrite(&writer->head, sizeof(header), 1, writer->file) == 1 && !fflush(writer->file) &&
       !fsync(fileno(writer->file));
  if (!ok || rename(writer->part, writer->path)) status = write_failed(writer, error);
  else {
    fclose(writer->file);
    writer->file = NULL;
  }
  rf_shard_discard(writer);
  return status;
}
