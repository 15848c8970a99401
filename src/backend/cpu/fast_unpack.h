/* fast_unpack.h - unpacks a part of a panel for products of many rows. The including file defines
 * CODE_BIAS. If CODE_BIAS is 0 or 128, an unpacked code is q - z + CODE_BIAS. If CODE_BIAS is -1,
 * an unpacked code is q. */

RF_INLINE rf_fast_block unpack_blocks(int type, const rf_panel *panel, const char *at, int64_t k0, int64_t k1,
                                      char *room) {
  const int values = form_of(type).values, halves = form_of(type).halves;
  /* words of zeros between the two halves of a run */
  const int zero = zero_bits(type), turns = type == RF_Q_Q6_K ? 2 : 1,
            between = turns == 2 && CODE_BIAS == 0 ? 4 : 0;
  const int64_t group = (8 + between) * 4 * RF_PANEL_LANES;
  float *d = (float *)(void *)(room + RF_FAST_CODES), *e = d + RF_FAST_KC / RF_FAST_BLOCK * RF_PANEL_LANES;
  const w_word shift = W(set1_epi8)((char)(zero < 0 || CODE_BIAS < 0 ? 0 : CODE_BIAS - (1 << zero)));
  rf_fast_block block = {.codes = room,
                         .stride = group,
                         .d = d,
                         .count = (int)((k1 - k0) / RF_FAST_BLOCK),
                         .lanes = panel->lanes,
                         .halves = turns == 2,
                         .type = type};
  if (zero < 0) block.e = e;
  char *to = room;
  for (int64_t k = k0; k < k1;
       k += RF_FAST_BLOCK, to += group, d += turns * RF_PANEL_LANES, e += RF_PANEL_LANES) {
    const char *stored = at + k / values * panel->block_bytes;
    const int run = (int)(k % values / RF_FAST_BLOCK);
    for (int l = 0; l < panel->lanes; l += W_LANES) {
      w_block b = {stored + 2 * l, stored + 2 * halves * panel->lanes + 4 * l, panel->lanes};
      w_run fifth = {.fifths = w_set_word(0)};
      if (type == RF_Q_Q5_0 || type == RF_Q_Q5_1) fifth.fifths = block_word(&b, 0);
#pragma GCC unroll 2
      for (int h = 0; h < 2; h++) {
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
          w_word codes =
              operand_codes(type, run_low(type, &b, run, h, j), run_high(type, &b, run, h, j, &fifth));
          w_store_word(to + 4 * (((4 + between) * h + j) * RF_PANEL_LANES + l), W(add_epi8)(codes, shift));
          if (h && between) w_store_word(to + 4 * ((4 + j) * RF_PANEL_LANES + l), w_set_word(0));
        }
        if (h && turns == 1) continue;
        w_float scale = w_set(0), offset = scale;
        run_scale(type, &b, run, h, &scale, &offset);
        W(storeu_ps)(d + h * RF_PANEL_LANES + l, scale);
        if (zero < 0) W(storeu_ps)(e + l, offset);
      }
    }
  }
  return block;
}
/* Unpacks one stored block of q4_k or q5_k. The including file defines this function. */
RF_INLINE rf_fast_block unpack_long(int type, const rf_panel *panel, const char *at, int64_t k0, char *room);
static rf_fast_block unpack(const rf_panel *panel, const char *at, int64_t k0, int64_t k1, void *room) {
#define UNPACK(name, type, ...) \
  case type: \
    if (type == RF_Q_Q4_K || type == RF_Q_Q5_K) return unpack_long(type, panel, at, k0, room); \
    return unpack_blocks(type, panel, at, k0, k1, room);
  switch (panel->type->number) {
    EACH_CODED(UNPACK)
  default: return (rf_fast_block){0};
  }
#undef UNPACK
}
RF_INLINE rf_fast_block long_block(int type, const rf_panel *panel, char *room) {
  float *d = (float *)(void *)(room + RF_FAST_CODES);
  rf_fast_block block = {.codes = room,
                         .d = d,
                         .e = d + RF_PANEL_LANES,
                         .count = RF_FAST_KC / RF_FAST_BLOCK,
                         .lanes = panel->lanes,
                         .type = type};
  block.c = (const int32_t *)(const void *)(d + 2 * RF_PANEL_LANES);
  block.m = block.c + 8 * RF_PANEL_LANES;
  return block;
}

/* A prefetch cursor over [at, end). Each call of come() prefetches the next `each` bytes. */
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
