/* trace_draw.js - draws a frame of the trace viewer: overview, ruler, lanes, counters. The work depends on the number of pixels, not of spans. */
(() => {
  const FONT = 11;

  /* Black or white, whichever is readable on a colour. */
  const inkOn = new Map();
  const readable = (colour) => {
    if (!inkOn.has(colour)) {
      const parts = /^#(..)(..)(..)$/.exec(colour);
      const light = parts ? [0.2126, 0.7152, 0.0722].reduce((sum, weight, i) => sum + weight * (parseInt(parts[i + 1], 16) / 255) ** 2.2, 0) : 0.5;
      inkOn.set(colour, light > 0.19 ? '#000000' : '#ffffff');
    }
    return inkOn.get(colour);
  };

  /* Shorter labels of "step/micro/block.3/mlp/up/bwd/weight": 3/mlp/up/bwd/weight, 3/mlp/up/bwd, 3/mlp/up, mlp/up, up. The longest that fits is drawn. */
  const spellings = new Map();
  const spellingsOf = (name) => {
    if (!spellings.has(name)) {
      const list = [name.replace(/^(step|decode|prefill|score|eval)\//, '').replace(/^(micro|end)\//, '').replace(/^block\./, '')];
      list.push(list[0].replace(/\/(weight|bias|gain)$/, ''));
      list.push(list[1].replace(/\/(fwd|bwd|again|adamw|norm_sq)(\/.*)?$/, ''));
      list.push(list[2].replace(/\/(weight|bias|gain)$/, ''));
      list.push(list[3].replace(/^\d+\//, ''));
      list.push(list[4].replace(/^.*\//, ''));
      spellings.set(name, list);
    }
    return spellings.get(name);
  };
  const LETTER = 6.1;
  const labelOf = (viewer, row, i, room) => {
    const {things, columns} = viewer.trace, key = row.key[i], most = (room - 7) / LETTER;
    if (key === things.step) { const text = `step ${columns.value[row.event[i]]}`; return text.length <= most ? text : ''; }
    return spellingsOf(things.title[key]).find((text) => text.length <= most) || '';
  };

  /* Rectangles grouped by paint, so that each colour is set once per frame. */
  class Batch {
    constructor(things) { this.things = things; this.list = things.paints.map(() => []); this.labels = []; this.cuts = []; this.count = 0;
      this.order = [...this.list.keys()].sort((a, b) => isGap(things, b) - isGap(things, a)); /* draw work over gaps in the same pixel */
    }
    put(paint, x, y, w, h) { this.list[paint].push(x, y, w, h); this.count++; }
    flush(context) {
      for (const paint of this.order) {
        const quads = this.list[paint];
        if (!quads.length) continue;
        context.fillStyle = rafter.colour(this.things.paints[paint].colour);
        for (let i = 0; i < quads.length; i += 4) context.fillRect(quads[i], quads[i + 1], quads[i + 2], quads[i + 3]);
      }
      context.fillStyle = rafter.colour('ink');
      for (let i = 0; i < this.cuts.length; i += 3) context.fillRect(this.cuts[i], this.cuts[i + 1], 2, this.cuts[i + 2]);
      context.font = `${FONT}px ${rafter.colour('sans')}`;
      context.textBaseline = 'middle';
      context.textAlign = 'left';
      for (const {text, x, y, paint} of this.labels) {
        context.fillStyle = readable(rafter.colour(this.things.paints[paint].colour));
        context.fillText(text, x + 4, y);
      }
      return this.count + this.labels.length;
    }
  }
  const isGap = (things, paint) => things.paints[paint].id.startsWith('gap-');
  rafter.traceParts.isGap = isGap;

  /* Draws a lane between two times into x0 to x0+width: single spans if there are few, otherwise pixel by pixel from sums. */
  const drawLane = (viewer, batch, row, y, from, to, x0, width, height, labels = true) => {
    const {things} = viewer.trace, scale = width / (to - from);
    const first = row.after(from), last = row.after(to);
    const label = (i, x, room, paint) => {
      const text = labels && room > 20 ? labelOf(viewer, row, i, room) : '';
      if (text) batch.labels.push({text, x, y: y + height / 2 + 0.5, paint});
    };
    const span = (i) => {
      const a = Math.max(x0, x0 + (row.begin[i] - from) * scale), b = Math.min(x0 + width, x0 + (row.end[i] - from) * scale), paint = things.shown[row.key[i]];
      if (b <= a && row.end[i] > row.begin[i]) return;
      const w = Math.max(b - a, 0.6);
      /* Narrow gaps are drawn low, because many of them would hide the ops between them. */
      const low = w < 3 && isGap(things, paint) ? Math.round(0.6 * height) : 0;
      batch.put(paint, a, y + low, w > 3 ? w - 0.6 : w, height - low);
      if (row.cut && row.cut[i] && w > 8) batch.cuts.push(b - 2.6, y, height); /* the prediction continues over the next op */
      label(i, a, w, paint);
    };
    if (last - first <= 2 * width) {
      for (let i = first; i <= last && i < row.count; i++) if (row.begin[i] < to) span(i);
      return;
    }
    const sums = new Float64Array(things.paints.length), step = 1 / scale;
    let runX = 0, runPaint = -1, runHeight = 0, backX = 0, backPaint = -1;
    const endRun = (px) => {
      if (runPaint >= 0 && px > runX) batch.put(runPaint, x0 + runX, y + height - runHeight, px - runX, runHeight);
      runPaint = -1;
    };
    const endBack = (px) => {
      if (backPaint >= 0 && px > backX) batch.put(backPaint, x0 + backX, y, px - backX, height);
      backPaint = -1;
    };
    const fronts = [];
    for (let px = 0; px < width; px++) {
      const a = from + px * step, b = a + step;
      sums.fill(0);
      const [i] = row.sumTime(things, a, b, sums);
      let front = -1, back = -1, work = 0, gap = 0;
      for (let p = 0; p < sums.length; p++) {
        if (!sums[p]) continue;
        if (isGap(things, p)) { gap += sums[p]; if (back < 0 || sums[p] > sums[back]) back = p; }
        else {
          work += sums[p];
          if (front < 0 || front === things.dim || (sums[p] > sums[front] && p !== things.dim)) front = p;
        }
      }
      if (gap === 0) back = -1;
      if (back !== backPaint) { endBack(px); backX = px; backPaint = back; }
      const share = front < 0 ? 0 : Math.max(1.5, Math.round(Math.min(1, work / step) * height));
      if (front !== runPaint || share !== runHeight) { endRun(px); runX = px; runPaint = front; runHeight = share; }
      if (i < row.count && row.begin[i] <= a && row.end[i] > b + 20 * step) fronts.push([i, px]);
    }
    endRun(width);
    endBack(width);
    let lastLabel = -1;
    for (const [i, px] of fronts) {
      if (i === lastLabel) continue;
      lastLabel = i;
      label(i, x0 + px, Math.min(width - px, (row.end[i] - from) * scale - px), things.shown[row.key[i]]);
    }
  };

  /* ---- ruler ------------------------------------------------------------------------------------------------------------ */

  const UNITS = [[1e9, 's'], [1e6, 'ms'], [1e3, 'us'], [1, 'ns']];
  const ticks = (from, to, width) => {
    const rough = (to - from) / Math.max(2, width / 110), power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
    const [size, unit] = UNITS.find(([one]) => step >= one) || UNITS[3];
    const digits = Math.max(0, -Math.floor(Math.log10(step / size) + 1e-9));
    const list = [];
    for (let i = Math.ceil(from / step); i * step <= to; i++) list.push([i * step, `${(i * step / size).toFixed(digits)} ${unit}`]);
    return list;
  };
  rafter.traceParts.ticks = ticks;

  /* ---- counters --------------------------------------------------------------------------------------------------------------- */

  const drawCounter = (viewer, context, counter, y, x0, width, paint = 'c1') => {
    const {from, to} = viewer, scale = width / (to - from), height = counter.height, top = counter.most || 1;
    const yOf = (value) => y + height - (height - 4) * (value / top);
    let i = Math.max(0, counter.at(from));
    context.beginPath();
    context.moveTo(x0, y + height);
    let level = counter.count && counter.begin[i] <= from ? counter.value[i] : 0;
    context.lineTo(x0, yOf(level));
    for (let px = 0; px < width; px++) {
      const b = from + (px + 1) / scale;
      let most = level, least = level;
      while (i < counter.count && counter.begin[i] < b) {
        level = counter.value[i++];
        if (level > most) most = level;
        if (level < least) least = level;
      }
      context.lineTo(x0 + px, yOf(most));
      if (least < most) context.lineTo(x0 + px, yOf(least));
      context.lineTo(x0 + px + 1, yOf(level));
    }
    context.lineTo(x0 + width, y + height);
    context.closePath();
    context.globalAlpha = 0.35;
    context.fillStyle = rafter.colour(paint);
    context.fill();
    context.globalAlpha = 1;
    context.strokeStyle = rafter.colour(paint);
    context.lineWidth = 1;
    context.stroke();
    /* Blank the times of steps that were not recorded. */
    context.fillStyle = rafter.colour('paper');
    for (let s = 1; s < viewer.steps.length; s++) {
      const before = viewer.steps[s - 1], a = Math.max(from, before.after ? before.after.end : before.end), b = Math.min(to, viewer.steps[s].begin);
      if (b > a) context.fillRect(x0 + (a - from) * scale, y - 1, (b - a) * scale, height + 2);
    }
  };
  const amount = (counter, value) => (counter.unit === 'bytes' || counter.unit === 'B' ? rafter.bytes(value) : `${rafter.whole(value)}${counter.unit ? ` ${counter.unit}` : ''}`);
  rafter.traceParts.amount = amount;

  /* ---- the frame ---------------------------------------------------------------------------------------------------------------- */

  const drawMinimap = (viewer, context, width) => {
    const {trace, gutter, minimap} = viewer, [first, last] = viewer.whole, plot = width - gutter - 2, height = minimap - 10;
    if (!viewer.minimapPicture || viewer.minimapPicture.forWidth !== width) {
      const picture = document.createElement('canvas'), ratio = window.devicePixelRatio || 1;
      picture.width = Math.round(plot * ratio); picture.height = Math.round(height * ratio);
      picture.forWidth = width;
      const inner = picture.getContext('2d');
      inner.scale(ratio, ratio);
      const batch = new Batch(trace.things);
      drawLane(viewer, batch, viewer.main, 0, first, last, 0, plot, height, false);
      batch.flush(inner);
      viewer.minimapPicture = picture;
    }
    context.fillStyle = rafter.colour('raised');
    context.fillRect(gutter, 4, plot, height);
    context.drawImage(viewer.minimapPicture, gutter, 4, plot, height);
    const scale = plot / (last - first), a = gutter + Math.max(0, (viewer.from - first) * scale), b = gutter + Math.min(plot, (viewer.to - first) * scale);
    context.fillStyle = rafter.colour('paper');
    context.globalAlpha = 0.65;
    context.fillRect(gutter, 4, a - gutter, height);
    context.fillRect(b, 4, gutter + plot - b, height);
    context.globalAlpha = 1;
    context.strokeStyle = rafter.colour('accent');
    context.lineWidth = 1.5;
    context.strokeRect(a, 4, Math.max(b - a, 2), height);
  };

  const outline = (viewer, context, hit, colour, line) => {
    const lane = viewer.lanes.find((one) => one.row === hit.row);
    if (!lane || hit.row.kind === 'counter' || hit.i < 0) return;
    const a = Math.max(viewer.gutter, viewer.xAt(hit.row.begin[hit.i])), b = Math.min(viewer.view.width, viewer.xAt(hit.row.end[hit.i]));
    if (b < viewer.gutter || a > viewer.view.width) return;
    context.strokeStyle = rafter.colour(colour);
    context.lineWidth = line;
    context.strokeRect(a - 1, lane.y - 1, Math.max(b - a, 1) + 2, hit.row.height + 2);
  };

  rafter.traceParts.draw = (viewer, context, width, height) => {
    const start = performance.now(), {trace, gutter, from, to, state} = viewer, plot = width - gutter - 2;
    if (plot < 10) return;
    const rulerTop = viewer.minimap, batch = new Batch(trace.things);
    drawMinimap(viewer, context, width);
    context.font = `${FONT}px ${rafter.colour('sans')}`;
    context.textBaseline = 'middle';
    context.lineWidth = 1;
    for (const [time, text] of ticks(from - viewer.zero, to - viewer.zero, plot)) {
      const x = Math.round(viewer.xAt(time + viewer.zero)) + 0.5;
      context.strokeStyle = rafter.colour('grid');
      context.beginPath();
      context.moveTo(x, rulerTop + 2);
      context.lineTo(x, height);
      context.stroke();
      context.fillStyle = rafter.colour('muted');
      if (x + 4 + context.measureText(text).width <= width) context.fillText(text, x + 4, rulerTop + viewer.ruler / 2);
    }
    for (const lane of viewer.lanes) {
      if (lane.row.kind === 'counter') drawCounter(viewer, context, lane.row, lane.y, gutter, plot);
      else drawLane(viewer, batch, lane.row, lane.y, from, to, gutter, plot, lane.row.height);
    }
    state.drawn = batch.flush(context);
    if (viewer.selection) {
      const [a, b] = viewer.selection.map((time) => Math.min(Math.max(viewer.xAt(time), gutter), width));
      context.fillStyle = rafter.colour('select');
      context.fillRect(a, rulerTop, b - a, height - rulerTop);
      context.fillStyle = rafter.colour('accent');
      context.fillRect(a - 0.5, rulerTop, 1, height - rulerTop);
      context.fillRect(b - 0.5, rulerTop, 1, height - rulerTop);
    }
    if (viewer.hover) outline(viewer, context, viewer.hover, 'muted', 1);
    if (viewer.selected) {
      const {row, i} = viewer.selected;
      for (const twin of trace.rows) /* the predicted or measured span of the same call */
        if (twin !== row && (twin.kind === 'op' || twin.kind === 'predicted') && (row.kind === 'op' || row.kind === 'predicted') && twin.key[i] === row.key[i]) outline(viewer, context, {row: twin, i}, 'ink', 1);
      outline(viewer, context, viewer.selected, 'ink', 2);
    }
    context.fillStyle = rafter.colour('paper');
    context.fillRect(0, 0, gutter - 1, height);
    context.textAlign = 'right';
    context.font = `12px ${rafter.colour('sans')}`;
    for (const lane of viewer.lanes) {
      const counter = lane.row.kind === 'counter';
      const rank = lane.row.kind === 'rank',
            mark = rank ? (viewer.open.has(lane.row.rank) ? '▾ ' : '▸ ') : '';
      context.fillStyle = rafter.colour(lane.row.kind === 'op' || rank ? 'ink' : 'muted');
      context.fillText(
          `${mark}${lane.row.title}`, gutter - 10,
          lane.y + (counter ? lane.row.height / 2 - 7 : lane.row.height / 2 + 0.5), gutter - 14);
      if (counter) context.fillText(`≤ ${amount(lane.row, lane.row.most)}`, gutter - 10, lane.y + lane.row.height / 2 + 8, gutter - 14);
    }
    context.fillStyle = rafter.colour('muted');
    context.fillText('overview', gutter - 10, 4 + (viewer.minimap - 10) / 2);
    context.textAlign = 'left';
    state.frames++;
    state.frameSeconds = (performance.now() - start) / 1e3;
  };
})();
