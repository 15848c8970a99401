/* tokenizer_unigram.c - SentencePiece's unigram model. The model splits a text into the pieces with
 * the highest sum of scores (log probabilities). The Viterbi search runs from left to right.
 * Source: Kudo 2018, "Subword Regularization". Ties are resolved as in SentencePiece's function
 * EncodeOptimized. */
#include "text/tokenizer_parts.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

static inline uint64_t edge_slot(const rf_unigram *u, uint32_t node, uint8_t byte) {
  uint64_t key = ((uint64_t)node << 8 | byte) * UINT64_C(0x9E3779B97F4A7C15);
  return (key >> 32 ^ key) & u->mask;
}

static uint32_t child_of(const rf_unigram *u, uint32_t node, uint8_t byte) {
  for (uint64_t slot = edge_slot(u, node, byte);; slot = (slot + 1) & u->mask) {
    const rf_edge *edge = &u->edges[slot];
    if (!edge->child || (edge->node == node && edge->byte == byte)) return edge->child;
  }
}

static void insert_piece(rf_unigram *u, rf_span piece, int32_t id) {
  uint32_t node = 0;
  for (size_t i = 0; i < piece.bytes; i++) {
    uint8_t byte = (uint8_t)piece.at[i];
    uint64_t slot = edge_slot(u, node, byte);
    while (u->edges[slot].child && (u->edges[slot].node != node || u->edges[slot].byte != byte))
      slot = (slot + 1) & u->mask;
    if (!u->edges[slot].child) {
      u->piece[u->nodes] = -1;
      u->edges[slot] = (rf_edge){node, u->nodes++, byte};
    }
    node = u->edges[slot].child;
  }
  u->piece[node] = id;
}

rf_status rf_unigram_build(rf_tokenizer *tokenizer, const double *scores, bool sentencepiece,
                           const char *where, rf_error *error) {
  enum { UNKNOWN_PENALTY = 10 };
  rf_unigram *u = &tokenizer->unigram;
  const rf_pieces *pieces = &tokenizer->pieces;
  uint64_t bytes = 1, slots = 16;
  double least = DBL_MAX, most = -DBL_MAX;
  for (int64_t id = 0; id < pieces->count; id++) {
    if (!isfinite(scores[id]))
      return RF_FAIL(error, RAFTER_FAILED, NULL, "a score is not finite (%s, id %lld)", where, (long long)id);
    bytes += pieces->row[id].bytes;
    if (sentencepiece && pieces->row[id].type != RF_PIECE_NORMAL) continue;
    if (scores[id] < least) least = scores[id];
    if (scores[id] > most) most = scores[id];
  }
  if (bytes >= UINT32_MAX / 4)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "the vocabulary is too large (%s)", where);
  while (slots < bytes * 2) slots *= 2;
  u->mask = slots - 1;
  u->single = sentencepiece;
  u->unknown = least - UNKNOWN_PENALTY;
  u->nodes = 1;
  u->edges = calloc(slots, sizeof *u->edges);
  u->piece = malloc(bytes * sizeof *u->piece);
  u->score = malloc((size_t)pieces->count * sizeof *u->score + 1);
  if (!u->edges || !u->piece || !u->score) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  u->piece[0] = -1;
  if (u->single) u->unknown = (float)u->unknown;
  for (int64_t id = 0; id < pieces->count; id++) {
    int type = pieces->row[id].type;
    rf_span piece = rf_pieces_at(pieces, id);
    /* The score of a user piece is the number of its bytes times the best score, so the piece wins
     * over other splits. */
    u->score[id] =
        sentencepiece && type == RF_PIECE_USER ? (float)((double)piece.bytes * most - 0.1) : scores[id];
    if (sentencepiece ? type == RF_PIECE_NORMAL || type == RF_PIECE_USER : type != 0)
      insert_piece(u, piece, (int32_t)id);
  }
  return RAFTER_OK;
}

void rf_unigram_free(rf_unigram *u) {
  free(u->edges);
  free(u->piece);
  free(u->score);
}

static rf_status reserve_path(rf_encoding *e, size_t bytes, rf_error *error) {
  if (bytes <= e->path_capacity) return RAFTER_OK;
  size_t capacity = bytes + bytes / 2;
  free(e->path_score);
  free(e->path_from);
  free(e->path_id);
  e->path_score = malloc(capacity * sizeof *e->path_score);
  e->path_from = malloc(capacity * sizeof *e->path_from);
  e->path_id = malloc(capacity * sizeof *e->path_id);
  e->path_capacity = e->path_score && e->path_from && e->path_id ? capacity : 0;
  return e->path_capacity ? RAFTER_OK : RF_FAIL(error, RAFTER_FAILED, "give a shorter text", "out of memory");
}

enum { NOT_REACHED = -2, UNKNOWN = -1 };

static inline void update_path(rf_encoding *e, uint32_t from, uint32_t to, int32_t id, double score) {
  double sum = e->path_score[from] + score;
  bool single = e->tokenizer->unigram.single;
  /* SentencePiece stores path scores as floats. To compare a stored score with a new sum,
   * SentencePiece computes the sum in double for a piece, but in float for an unknown character. */
  if (single && id == UNKNOWN) sum = (float)sum;
  if (e->path_id[to] != NOT_REACHED && !(sum > e->path_score[to])) return;
  e->path_score[to] = single ? (float)sum : sum;
  e->path_from[to] = from;
  e->path_id[to] = id;
}

static bool unknown_is_named(const rf_encoding *e, const char *at, size_t bytes) {
  int32_t id = e->tokenizer->unk_id;
  if (id < 0) return false;
  rf_span name = rf_pieces_at(&e->tokenizer->pieces, id);
  return name.bytes == bytes && !memcmp(name.at, at, bytes);
}

static rf_status put_unknown(rf_encoding *e, const char *at, size_t bytes, bool named, rf_error *error) {
  if (!bytes) return RAFTER_OK;
  return named ? rf_ids_add(e->ids, e->tokenizer->unk_id, error) : rf_encode_unknown(e, at, bytes, error);
}

rf_status rf_unigram_word(void *encoding, const char *word, size_t bytes, rf_error *error) {
  rf_encoding *e = encoding;
  const rf_unigram *u = &e->tokenizer->unigram;
  if (rf_utf8_length(word, word + bytes)) e->word_ids = e->ids->count;
  RF_TRY(reserve_path(e, bytes + 1, error));
  for (size_t i = 1; i <= bytes; i++) e->path_id[i] = NOT_REACHED;
  e->path_score[0] = 0;
  for (uint32_t at = 0; at < bytes;) {
    int n = rf_utf8_length(word + at, word + bytes);
    uint32_t character = n ? (uint32_t)n : 1, node = 0;
    bool alone = false; /* true: some piece is exactly this character */
    for (uint32_t to = at; to < bytes && (node = child_of(u, node, (uint8_t)word[to])); to++) {
      int32_t id = u->piece[node];
      if (id < 0) continue;
      update_path(e, at, to + 1, id, u->score[id]);
      alone |= to + 1 - at == character;
    }
    if (!alone) update_path(e, at, at + character, UNKNOWN, u->unknown);
    at += character;
  }
  /* Reverses the path in place. Then path_from[i] is the end of the piece that begins at i. */
  uint32_t end = (uint32_t)bytes;
  for (uint32_t at = end; at > 0;) {
    uint32_t from = e->path_from[at];
    e->path_from[at] = end;
    end = at;
    at = from;
  }
  e->path_from[0] = end;
  /* Adjacent unknown characters form one run. The run is encoded as its bytes or as one unknown id.
   * In Hugging Face's model, the name of the unknown piece also matches in the text. Such a name
   * joins a run of unknown characters. If such a name is the whole run, it keeps its own id. */
  uint32_t unknown = 0, pieces = 0; /* start of the run of unknown characters; number of pieces in the run */
  for (uint32_t at = 0; at < bytes;) {
    uint32_t to = at ? e->path_from[at] : end;
    int32_t id = e->path_id[to];
    bool named = id >= 0 && id == e->tokenizer->unk_id;
    if (id >= 0 && !named) {
      RF_TRY(put_unknown(e, word + unknown, at - unknown,
                         pieces == 1 && unknown_is_named(e, word + unknown, at - unknown), error));
      RF_TRY(rf_ids_add(e->ids, id, error));
      unknown = to;
      pieces = 0;
    } else pieces++;
    at = to;
  }
  return put_unknown(e, word + unknown, bytes - unknown,
                     pieces == 1 && unknown_is_named(e, word + unknown, bytes - unknown), error);
}
