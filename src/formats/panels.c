/* panels.c - see panels.h. */
#include "formats/panels.h"

#include <stdio.h>
#include <string.h>

#include "formats/quant_blocks.h"

/* ---- forms and places ------------------------------------------------------------------------ */

static const rf_panel_form FORMS[] = {
    {RF_Q_F32, 0, 0, 1, 0},     {RF_Q_BF16, 1, 0, 0, 0},  {RF_Q_F16, 1, 0, 0, 0},
    {RF_Q_Q8_0, 1, 0, 8, 2},    {RF_Q_Q4_0, 1, 0, 4, 2},  {RF_Q_Q4_1, 2, 0, 4, 4},
    {RF_Q_Q5_0, 1, 0, 5, 2},    {RF_Q_Q5_1, 2, 0, 5, 4},  {RF_Q_Q2_K, 2, 80, 20, 0},
    {RF_Q_Q3_K, 1, 108, 27, 0}, {RF_Q_Q4_K, 2, 0, 35, 4}, {RF_Q_Q5_K, 2, 0, 43, 4},
    {RF_Q_Q6_K, 1, 208, 52, 0}, {RF_Q_INT8, 0, 0, 8, 4},
};

static const rf_panel_form *form_of(const rf_quant_type *type) {
  for (size_t i = 0; type && i < sizeof FORMS / sizeof *FORMS; i++)
    if (FORMS[i].type == type->number) return &FORMS[i];
  return NULL;
}

bool rf_panels_take(const rf_quant_type *type) { return form_of(type) != NULL; }

bool rf_panels_have_codes(const rf_panels *panels) {
  for (int i = 0; i < panels->parts; i++) {
    int type = panels->part[i].type->number;
    if (panels->part[i].type->values == 1 || type == RF_Q_Q2_K || type == RF_Q_Q3_K) return false;
    if ((type == RF_Q_INT8) != (panels->part[0].type->number == RF_Q_INT8)) return false;
  }
  return panels->parts > 0;
}

static int64_t panels_of(int64_t outputs) { return rf_ceil_div(outputs, RF_PANEL_LANES); }
static int64_t lane_bytes(const rf_panels *p, int part) {
  return p->part[part].type->head + p->inner / p->part[part].type->values * p->part[part].type->bytes;
}
static int64_t part_bytes(const rf_panels *p, int part) {
  return rf_round_up(p->part[part].outputs, RF_PANEL_GRAIN) * lane_bytes(p, part);
}

int64_t rf_panels_bytes(const rf_panels *panels) {
  int64_t sum = 0;
  for (int i = 0; i < panels->parts; i++) sum += part_bytes(panels, i);
  return sum * rf_panels_experts(panels);
}

rf_panels rf_panels_one(const rf_panels *panels) {
  rf_panels one = *panels;
  one.experts = 0;
  return one;
}

int64_t rf_panels_count(const rf_panels *panels) {
  int64_t sum = 0;
  for (int i = 0; i < panels->parts; i++) sum += panels_of(panels->part[i].outputs);
  return sum;
}

static rf_panel panel_at(const rf_panels *panels, int part, int64_t index, int64_t first, int64_t offset) {
  const rf_quant_type *type = panels->part[part].type;
  int64_t left = panels->part[part].outputs - index * RF_PANEL_LANES;
  int used = left < RF_PANEL_LANES ? (int)left : RF_PANEL_LANES,
      lanes = (int)rf_round_up(used, RF_PANEL_GRAIN);
  return (rf_panel){.type = type,
                    .form = form_of(type),
                    .first = first + index * RF_PANEL_LANES,
                    .used = used,
                    .lanes = lanes,
                    .offset = offset + index * RF_PANEL_LANES * lane_bytes(panels, part) + lanes * type->head,
                    .block_bytes = (int64_t)lanes * type->bytes};
}

rf_panel rf_panels_at(const rf_panels *panels, int64_t index) {
  int64_t first = 0, offset = 0;
  int part = 0;
  for (; part < panels->parts - 1 && index >= panels_of(panels->part[part].outputs); part++) {
    index -= panels_of(panels->part[part].outputs);
    first += panels->part[part].outputs;
    offset += part_bytes(panels, part);
  }
  return panel_at(panels, part, index, first, offset);
}

rf_panel rf_panels_find(const rf_panels *panels, int64_t output) {
  int64_t first = 0, offset = 0;
  int part = 0;
  for (; part < panels->parts - 1 && output >= first + panels->part[part].outputs; part++) {
    first += panels->part[part].outputs;
    offset += part_bytes(panels, part);
  }
  return panel_at(panels, part, (output - first) / RF_PANEL_LANES, first, offset);
}

const char *rf_panels_name(const rf_panels *panels, char text[64]) {
  int used = 0;
  text[0] = 0;
  for (int i = 0; i < panels->parts; i++) {
    bool seen = false;
    for (int j = 0; j < i; j++) seen |= panels->part[j].type == panels->part[i].type;
    if (!seen)
      used += snprintf(text + used, 64 - (size_t)used, "%s%s", i ? "+" : "", panels->part[i].type->name);
  }
  return text;
}

/* ---- packing sixteen lanes at a time, because each store then fills a cache line ------------- */

typedef uint32_t four __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint16_t eight __attribute__((vector_size(16), aligned(1), may_alias));
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
/* A lane without an output reads these zeros. ZEROS is as long as the largest block. */
static const uint8_t ZEROS[RF_Q6_K_BYTES];

/* For lane i and j < count, copies the 32-bit word from[i] + 4 j to `to` + 4 (j lanes + i). */
static void pack_dwords(const uint8_t *const from[RF_PANEL_GRAIN], int64_t count, int lanes, uint8_t *to) {
  int64_t j = 0;
  for (; j + 4 <= count; j += 4) {
    for (int i = 0; i < RF_PANEL_GRAIN; i += 4) {
      four a = *(const four *)(from[i] + 4 * j), b = *(const four *)(from[i + 1] + 4 * j);
      four c = *(const four *)(from[i + 2] + 4 * j), d = *(const four *)(from[i + 3] + 4 * j);
      four ab = SHUFFLE(a, b, 0, 4, 1, 5), cd = SHUFFLE(c, d, 0, 4, 1, 5), AB = SHUFFLE(a, b, 2, 6, 3, 7),
           CD = SHUFFLE(c, d, 2, 6, 3, 7);
      uint8_t *at = to + 4 * (j * lanes + i);
      int64_t next = 4 * (int64_t)lanes;
      *(four *)at = SHUFFLE(ab, cd, 0, 1, 4, 5);
      *(four *)(at + next) = SHUFFLE(ab, cd, 2, 3, 6, 7);
      *(four *)(at + 2 * next) = SHUFFLE(AB, CD, 0, 1, 4, 5);
      *(four *)(at + 3 * next) = SHUFFLE(AB, CD, 2, 3, 6, 7);
    }
  }
  for (; j < count; j++)
    for (int i = 0; i < RF_PANEL_GRAIN; i++) memcpy(to + 4 * (j * lanes + i), from[i] + 4 * j, 4);
}

/* Like pack_dwords, for 16-bit words. */
static void pack_halves(const uint8_t *const from[RF_PANEL_GRAIN], int64_t count, int lanes, uint8_t *to) {
  int64_t j = 0;
  for (; j + 8 <= count; j += 8) {
    for (int i = 0; i < RF_PANEL_GRAIN; i += 8) {
      eight r[8], s[8];
      for (int k = 0; k < 8; k++) r[k] = *(const eight *)(from[i + k] + 2 * j);
      /* Exchange lanes k and k + 4, then k and k + 2, then k and k + 1. Then the lanes are in the
       * order of j. */
      for (int k = 0; k < 4; k++) {
        s[2 * k] = SHUFFLE(r[k], r[k + 4], 0, 8, 1, 9, 2, 10, 3, 11);
        s[2 * k + 1] = SHUFFLE(r[k], r[k + 4], 4, 12, 5, 13, 6, 14, 7, 15);
      }
      for (int k = 0; k < 4; k++) {
        r[2 * k] = SHUFFLE(s[k], s[k + 4], 0, 8, 1, 9, 2, 10, 3, 11);
        r[2 * k + 1] = SHUFFLE(s[k], s[k + 4], 4, 12, 5, 13, 6, 14, 7, 15);
      }
      for (int k = 0; k < 4; k++) {
        s[2 * k] = SHUFFLE(r[k], r[k + 4], 0, 8, 1, 9, 2, 10, 3, 11);
        s[2 * k + 1] = SHUFFLE(r[k], r[k + 4], 4, 12, 5, 13, 6, 14, 7, 15);
      }
      for (int k = 0; k < 8; k++) *(eight *)(to + 2 * ((j + k) * lanes + i)) = s[k];
    }
  }
  for (; j < count; j++)
    for (int i = 0; i < RF_PANEL_GRAIN; i++) memcpy(to + 2 * (j * lanes + i), from[i] + 2 * j, 2);
}

/* Packs lanes [lane, lane + 16). Plain numbers (f32, bf16, f16) are packed thirty-two at a time. */
static void pack_lanes(const rf_panel *panel, int64_t inner, int lane, const void *const row[RF_PANEL_GRAIN],
                       uint8_t *to) {
  enum { RUN = 32 };
  const rf_panel_form *form = panel->form;
  const uint8_t *half[RF_PANEL_GRAIN], *dword[RF_PANEL_GRAIN];
  bool plain = panel->type->values == 1;
  int64_t run = plain ? RUN : panel->type->values,
          bytes = plain ? RUN * panel->type->bytes : panel->type->bytes;
  for (int64_t k = 0; k < inner; k += run) {
    int64_t now = !plain ? 1 : inner - k < RUN ? inner - k : RUN, block = k / run;
    for (int i = 0; i < RF_PANEL_GRAIN; i++) {
      const uint8_t *stored = row[i] ? (const uint8_t *)row[i] + block * bytes : ZEROS;
      half[i] = stored + (row[i] ? form->half_at : 0);
      dword[i] = stored + (row[i] ? form->dword_at : 0);
    }
    uint8_t *at = to + block * (plain ? RUN : 1) * panel->block_bytes;
    pack_halves(half, now * form->halves, panel->lanes, at + 2 * lane);
    pack_dwords(dword, now * form->dwords, panel->lanes, at + 2 * form->halves * panel->lanes + 4 * lane);
  }
}

void rf_panel_pack(const rf_panel *panel, int64_t inner, const void *const row[RF_PANEL_LANES], void *to) {
  int head = panel->type->head;
  char *heads = (char *)to - panel->lanes * head;
  for (int i = 0; head && i < panel->lanes; i++)
    memcpy(heads + i * head, row[i] ? row[i] : ZEROS, (size_t)head);
  for (int lane = 0; lane < panel->lanes; lane += RF_PANEL_GRAIN)
    pack_lanes(panel, inner, lane, row + lane, to);
}

void rf_panel_block(const rf_panel *panel, const void *at, int lane, int64_t block, void *stored) {
  const rf_panel_form *form = panel->form;
  const uint8_t *from = (const uint8_t *)at + block * panel->block_bytes;
  uint8_t *to = stored;
  memcpy(to, (const uint8_t *)at - (panel->lanes - lane) * panel->type->head, (size_t)panel->type->head);
  for (int h = 0; h < form->halves; h++, from += 2 * panel->lanes)
    memcpy(to + form->half_at + 2 * h, from + 2 * lane, 2);
  for (int d = 0; d < form->dwords; d++, from += 4 * panel->lanes)
    memcpy(to + form->dword_at + 4 * d, from + 4 * lane, 4);
}

void rf_panels_read(const rf_panels *panels, const void *data, int64_t output, int64_t first, int64_t count,
                    float *out) {
  rf_panel panel = rf_panels_find(panels, output);
  const uint8_t *at = (const uint8_t *)data + panel.offset;
  int lane = (int)(output - panel.first), values = panel.type->values;
  while (count > 0) {
    uint8_t stored[RF_Q6_K_BYTES];
    float whole[RF_QUANT_BLOCK_MAX];
    int64_t inside = first % values, now = values - inside < count ? values - inside : count;
    rf_panel_block(&panel, at, lane, first / values, stored);
    panel.type->dequantize(stored, 1, whole);
    memcpy(out, whole + inside, (size_t)now * sizeof *out);
    first += now;
    count -= now;
    out += now;
  }
}
