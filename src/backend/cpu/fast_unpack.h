/* fast_unpack.h - a part of a panel taken out of its words for products of many rows, with 512-bit vectors. Included after
 * fast_codes.h by files that define CODE_BIAS: what is added to (q - z), 128 or 0. */

RF_INLINE rf_fast_block unpack_blocks(int type, int values, int halves, const rf_panel *panel, const char *at, int64_t k0, int64_t k1, char *room) {
  enum { GROUP = RF_FAST_BLOCK * RF_PANEL_LANES };
  const int zero = zero_bits(type), turns = type == RF_Q_Q6_K ? 2 : 1;
  float *d = (float *)(void *)(room + RF_FAST_KC * RF_PANEL_LANES), *e = d + RF_FAST_KC / 16 * RF_PANEL_LANES;
  const w_word shift = _mm512_set1_epi8((char)(zero < 0 ? 0 : CODE_BIAS - (1 << zero)));
  rf_fast_block block = {room, GROUP, d, zero < 0 ? e : NULL, (int)((k1 - k0) / RF_FAST_BLOCK), panel->lanes, turns == 2};
  char *to = room;
  for (int64_t k = k0; k < k1; k += RF_FAST_BLOCK, to += GROUP, d += turns * RF_PANEL_LANES, e += RF_PANEL_LANES) {
    const char *stored = at + k / values * panel->block_bytes;
    int run = (int)(k % values / RF_FAST_BLOCK);
    for (int l = 0; l < panel->lanes; l += W_LANES) {
      w_block b = {stored + 2 * l, stored + 2 * halves * panel->lanes + 4 * l, panel->lanes};
      w_run fifth = {.fifths = w_set_word(0)};
      if (type == RF_Q_Q5_0 || type == RF_Q_Q5_1) fifth.fifths = block_word(&b, 0);
#pragma GCC unroll 2
      for (int h = 0; h < 2; h++) {
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
          w_word codes = run_codes(type, run_low(type, &b, run, h, j), run_high(type, &b, run, h, j, &fifth));
          _mm512_storeu_si512(to + 4 * ((4 * h + j) * RF_PANEL_LANES + l), _mm512_add_epi8(codes, shift));
        }
        if (h && turns == 1) continue;
        w_float scale = w_set(0), offset = scale;
        run_scale(type, &b, run, h, &scale, &offset);
        _mm512_storeu_ps(d + h * RF_PANEL_LANES + l, scale);
        if (zero < 0) _mm512_storeu_ps(e + l, offset);
      }
    }
  }
  return block;
}
static rf_fast_block unpack(const rf_panel *panel, const char *at, int64_t k0, int64_t k1, void *room) {
#define UNPACK(type, values, halves) \
  case type: return unpack_blocks(type, values, halves, panel, at, k0, k1, room);
  switch (panel->type->number) {
    UNPACK(RF_Q_Q8_0, 32, 1)
    UNPACK(RF_Q_Q4_0, 32, 1)
    UNPACK(RF_Q_Q4_1, 32, 2)
    UNPACK(RF_Q_Q5_0, 32, 1)
    UNPACK(RF_Q_Q5_1, 32, 2)
    UNPACK(RF_Q_Q4_K, 256, 2)
    UNPACK(RF_Q_Q5_K, 256, 2)
  default: return unpack_blocks(RF_Q_Q6_K, 256, 1, panel, at, k0, k1, room);
  }
}

/* Lines of what comes later that are asked for with each of `times` steps. */
typedef struct coming {
  const char *at, *end;
  int64_t each;
} coming;
RF_INLINE coming coming_of(const char *ahead, int64_t bytes, int times) {
  return (coming){ahead, ahead + bytes, ((bytes + 63) / 64 + times - 1) / times * 64};
}
RF_INLINE void come(coming *c) {
  for (int64_t b = 0; b < c->each && c->at < c->end; b += 64, c->at += 64) _mm_prefetch(c->at, _MM_HINT_T1);
}
