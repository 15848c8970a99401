/* memory_viewer.js - the memory viewer: addresses of the arena over time, live bytes below, tensors alive at an op, comparison with another plan. */
(() => {
  const {el} = rafter, {read, opAt, tensorAt, aliveAt, align, goneIn} = rafter.arena;
  const GUTTER = 78, RIGHT = 12, PHASES = 9, MAP_TOP = 18, MAP = 400, GAP = 26, CURVE = 130, AXIS = 42, BAND = 34;
  const AXIS_TITLES = {ops: 'ops of the plan, by number', predicted: 'predicted time from the first op on', measured: 'measured time from the first op on'};
  const HEIGHT = MAP_TOP + MAP + GAP + CURVE + AXIS;

  const {shapeText, kindTable} = rafter.memoryParts;

  const ticks = (from, to, wanted) => {
    const raw = (to - from) / Math.max(1, wanted), power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((k) => k * power).find((size) => size >= raw) || raw;
    const list = [];
    for (let x = Math.ceil(from / step) * step; x <= to + step * 1e-9; x += step) list.push(x);
    return list;
  };
  const byteTicks = (from, to, wanted) => {
    const raw = (to - from) / Math.max(1, wanted), step = Math.max(64, 2 ** Math.ceil(Math.log2(raw))), list = [];
    for (let y = Math.ceil(from / step) * step; y <= to; y += step) list.push(y);
    return list;
  };

  /* Sizes as texts; if two texts are equal, sizes are shown relative to the first. */
  const apart = (sizes) => {
    const texts = sizes.map(rafter.bytes);
    return new Set(texts).size === texts.length ? texts : sizes.map((size, i) => (i ? `+${rafter.bytes(size - sizes[0])}` : texts[0]));
  };

  /* ---- the view --------------------------------------------------------------------------------------------------------- */

  const PHASE_COLOUR =
      {data: 'c7', forward: 'c4', head: 'c6', recompute: 'c0', backward: 'c5', accumulate: 'c1', optimizer: 'c3', sample: 'c6', checkpoint: 'c7'};

  const viewer = (element, p, others) => {
    const state = rafter.state.memory = {
      plan: p.name,
      axis: p.edges.predicted[p.n] > 0 ? 'predicted' : 'ops',
      folded: p.persistent > 0.25 * p.arena,
      view: null,
      instant: null,
      hover: null,
      selected: null,
      classes: {},
      curve: {
        peak_bytes: p.ops[p.topOp].top_bytes,
        peak_top_op: p.ops[p.topOp].name,
        live_bytes: p.ops[p.peakOp].live_bytes,
        peak_op: p.ops[p.peakOp].name
      },
      drawn: 0,
      over: null
    };
    const shown = p.classes.map(() => true);
    p.classes.forEach((name) => {
      state.classes[name] = true;
    });
    let over = null, places = null, gone = [], hatched = new Set(), view = null, instant = p.peakOp, hover = null, cursor = null, selected = null;

    const edges = () => p.edges[state.axis];
    const floor = () => (state.folded ? Math.min(p.persistent, p.arena - 64) : 0);
    const extent = () => (over && state.axis === 'predicted' ? Math.max(edges()[p.n], over.edges.predicted[over.n]) : edges()[p.n]);
    const whole = () => ({x0: 0, x1: extent(), y0: floor(), y1: p.arena});
    const axisText = (x) => (state.axis === 'ops' ? rafter.whole(x) : rafter.seconds(x));

    /* ---- places on the canvas ---- */
    let width = 0;
    const mapBottom = MAP_TOP + MAP, curveTop = mapBottom + GAP, curveBottom = curveTop + CURVE;
    const plotWidth = () => Math.max(50, width - GUTTER - RIGHT);
    const band = () => (state.folded ? BAND : 0);
    const X = (x) => GUTTER + (x - view.x0) / (view.x1 - view.x0) * plotWidth();
    const xOf = (px) => view.x0 + (px - GUTTER) / plotWidth() * (view.x1 - view.x0);
    const Y = (address) => {
      if (state.folded && address <= p.persistent && p.persistent > 0) return mapBottom - address / p.persistent * BAND;
      return mapBottom - band() - (address - view.y0) / (view.y1 - view.y0) * (MAP - band());
    };
    const addressOf = (py) => {
      if (state.folded && py > mapBottom - BAND) return (mapBottom - py) / BAND * p.persistent;
      return view.y0 + (mapBottom - band() - py) / (MAP - band()) * (view.y1 - view.y0);
    };
    const low = () => floor(), CY = (bytes) => curveBottom - (bytes - low()) / (Math.max(p.arena, over ? over.arena : 0) * 1.0 - low()) * CURVE;

    /* ---- drawing ---- */
    const drawTensors = (c) => {
      const at = edges(), from = view.x0, to = view.x1;
      let count = 0;
      for (let k = 0; k < p.classes.length; k++) {
        if (!shown[k]) continue;
        c.fillStyle = rafter.colour(rafter.tensorColour(p.classes[k]));
        for (let t = 0; t < p.list.length; t++) {
          if (p.kind[t] !== k) continue;
          const tensor = p.list[t], x0 = at[p.start[t]], x1 = at[p.end[t] + 1];
          if (x1 < from || x0 > to || p.end[t] < p.start[t]) continue;
          if (!p.fixed[t] && (tensor.offset > view.y1 || tensor.offset + tensor.bytes < view.y0)) continue;
          const left = Math.max(GUTTER, X(x0)), right = Math.min(width - RIGHT, X(x1)), bottom = Y(tensor.offset),
                top = Y(tensor.offset + tensor.bytes);
          const w = Math.max(0.5, right - left), h = Math.max(0.4, bottom - top), gapX = w > 4 ? 0.5 : 0, gapY = h > 3 ? 0.5 : 0;
          c.fillRect(left + gapX, top + gapY, w - 2 * gapX, h - 2 * gapY);
          count++;
        }
      }
      state.drawn = count;
    };
    const drawLabels = (c) => {
      const at = edges();
      c.font = `11px ${getComputedStyle(document.body).fontFamily}`;
      c.textBaseline = 'middle', c.textAlign = 'left';
      for (let t = 0; t < p.list.length; t++) {
        if (!shown[p.kind[t]] || p.end[t] < p.start[t] || hatched.has(t)) continue;
        const tensor = p.list[t], left = Math.max(GUTTER, X(at[p.start[t]])), right = Math.min(width - RIGHT, X(at[p.end[t] + 1]));
        const top = Math.max(MAP_TOP, Y(tensor.offset + tensor.bytes)), bottom = Math.min(mapBottom, Y(tensor.offset));
        if (right - left < 60 || bottom - top < 13) continue;
        const text = `${tensor.name}  ${rafter.bytes(tensor.bytes)}`, room = right - left - 8;
        c.fillStyle = tensor.class === 'weight' && rafter.state.theme === 'light' ? '#ffffff' : '#111111'; /* readable on its colour */
        c.save(), c.beginPath(), c.rect(left, top, room + 4, bottom - top), c.clip();
        c.fillText(text, left + 4, (top + bottom) / 2), c.restore();
      }
    };
    const outline = (c, t, colour, thick) => {
      const at = edges(), tensor = p.list[t], left = X(at[p.start[t]]), right = X(at[Math.max(p.start[t], p.end[t]) + 1]),
            top = Y(tensor.offset + tensor.bytes), bottom = Y(tensor.offset);
      c.strokeStyle = colour, c.lineWidth = thick;
      c.strokeRect(left, top, Math.max(1, right - left), Math.max(1, bottom - top));
    };
    const drawGone = (c) => {
      const at = edges();
      const tile = document.createElement('canvas');
      tile.width = tile.height = 8;
      const s = tile.getContext('2d');
      s.strokeStyle = rafter.colour('paper'), s.lineWidth = 3.2;
      for (const shift of [-8, 0, 8]) s.beginPath(), s.moveTo(shift, 8), s.lineTo(shift + 8, 0), s.stroke();
      c.fillStyle = c.createPattern(tile, 'repeat');
      for (const [t, from, to] of gone) {
        if (!shown[p.kind[t]]) continue;
        const tensor = p.list[t], left = X(at[from]), right = X(at[to + 1]), top = Y(tensor.offset + tensor.bytes), bottom = Y(tensor.offset);
        if (right < GUTTER || left > width) continue;
        c.fillRect(left, top, right - left, bottom - top);
      }
    };
    const steps = (c, plan, starts, ends, valueOf) => {
      let moved = false;
      for (let i = 0; i < plan.n; i++) {
        const a = X(starts(i)), b = X(ends(i)), y = CY(valueOf(plan.ops[i]));
        if (!moved)
          c.moveTo(a, y), moved = true;
        else
          c.lineTo(a, y);
        c.lineTo(b, y);
      }
    };
    const drawCurve = (c) => {
      const at = edges(), own = [(i) => at[i], (i) => at[i + 1]];
      c.save(), c.beginPath(), c.rect(GUTTER, curveTop - 8, plotWidth(), CURVE + 8), c.clip();
      c.beginPath(), steps(c, p, ...own, (op) => op.live_bytes);
      c.lineTo(X(at[p.n]), curveBottom), c.lineTo(X(0), curveBottom), c.closePath();
      c.globalAlpha = 0.28, c.fillStyle = rafter.colour('accent'), c.fill(), c.globalAlpha = 1;
      c.beginPath(), steps(c, p, ...own, (op) => op.live_bytes), c.strokeStyle = rafter.colour('accent'), c.lineWidth = 1.5, c.stroke();
      c.beginPath(), steps(c, p, ...own, (op) => op.top_bytes), c.strokeStyle = rafter.colour('muted'), c.lineWidth = 1, c.setLineDash([3, 3]),
                                                                c.stroke(), c.setLineDash([]);
      if (over) {
        const time = state.axis === 'predicted', places_ = places;
        const starts = time ? (j) => over.edges.predicted[j] : (j) => at[Math.min(p.n, places_.begin[j])],
              ends = time ? (j) => over.edges.predicted[j + 1] : (j) => at[Math.min(p.n, places_.end[j])];
        c.beginPath(), steps(c, over, starts, ends, (op) => op.live_bytes), c.strokeStyle = rafter.colour('mark'), c.lineWidth = 1.8, c.stroke();
      }
      c.restore();
    };
    const drawFrame = (c) => {
      c.fillStyle = rafter.colour('raised') === '#888' ? rafter.colour('grid') : rafter.colour('raised');
      c.fillRect(GUTTER, MAP_TOP, plotWidth(), MAP), c.fillRect(GUTTER, curveTop, plotWidth(), CURVE);
    };
    const drawAxes = (c) => {
      c.font = `12px ${getComputedStyle(document.body).fontFamily}`;
      c.fillStyle = rafter.colour('muted'), c.strokeStyle = rafter.colour('grid'), c.lineWidth = 1;
      c.textAlign = 'right', c.textBaseline = 'middle';
      const inView = byteTicks(view.y0, view.y1, 8), texts = apart(inView);
      for (const [i, y] of inView.entries()) {
        const py = Y(y);
        if (py < MAP_TOP - 1 || py > mapBottom - band() + 1 || (state.folded && py > mapBottom - BAND / 2 - 20)) continue; /* the folded band has its own label */
        c.beginPath(), c.moveTo(GUTTER - 4, py), c.lineTo(GUTTER, py), c.stroke(), c.fillText(texts[i], GUTTER - 7, py);
      }
      if (state.folded && p.persistent > 0) {
        c.strokeStyle = rafter.colour('ink'), c.beginPath(), c.moveTo(GUTTER - 6, mapBottom - BAND), c.lineTo(width - RIGHT, mapBottom - BAND),
        c.stroke();
        c.fillText(rafter.bytes(p.persistent), GUTTER - 7, mapBottom - BAND / 2 - 6), c.fillText('folded', GUTTER - 7, mapBottom - BAND / 2 + 8);
      }
      c.strokeStyle = rafter.colour('grid');
      const high = Math.max(p.arena, over ? over.arena : 0);
      /* The axis also labels its start, which is not 0 if persistent tensors are folded. */
      const ofCurve = [low(), ...byteTicks(low(), high, 3).filter((one) => CY(one) < curveBottom - 14)], said = apart(ofCurve);
      for (const [i, y] of ofCurve.entries()) {
        const py = CY(y);
        c.beginPath(), c.moveTo(GUTTER, py), c.lineTo(width - RIGHT, py), c.stroke(), c.fillText(said[i], GUTTER - 7, py);
      }
      c.textAlign = 'center', c.textBaseline = 'top';
      for (const x of ticks(view.x0, view.x1, plotWidth() / 110)) {
        if (state.axis === 'ops' && x !== Math.round(x)) continue;
        const px = X(x);
        c.strokeStyle = rafter.colour('grid'), c.beginPath(), c.moveTo(px, curveBottom), c.lineTo(px, curveBottom + 4), c.stroke();
        c.fillText(axisText(x), px, curveBottom + 7);
      }
      c.textAlign = 'right', c.textBaseline = 'bottom', c.fillText('address', GUTTER - 7, MAP_TOP - 5);
      c.textAlign = 'center', c.fillText(AXIS_TITLES[state.axis], GUTTER + plotWidth() / 2, HEIGHT - 2);
      c.textAlign = 'left', c.fillStyle = rafter.colour('muted');
      c.fillText('live bytes (filled), end of the used arena (dashed)' + (over ? `, live bytes of ${over.name} (line)` : ''), GUTTER, curveTop - 3);
    };
    const drawPhases = (c) => {
      const at = edges();
      for (let i = 0; i < p.n;) {
        let j = i;
        while (j < p.n && p.ops[j].phase === p.ops[i].phase) j++;
        const phase = p.ops[i].phase, left = Math.max(GUTTER, X(at[i])), right = Math.min(width - RIGHT, X(at[j]));
        if (phase && right > left) {
          c.fillStyle = rafter.colour(PHASE_COLOUR[phase] || 'c7'),
          c.fillRect(left, MAP_TOP - 5, Math.max(0.5, right - left - (right - left > 3 ? 1 : 0)), 4);
          if (right - left > 70)
            c.fillStyle = rafter.colour('muted'), c.textAlign = 'center', c.textBaseline = 'bottom', c.font = '11px sans-serif',
            c.fillText(phase, (left + right) / 2, MAP_TOP - 6);
        }
        i = j;
      }
    };
    const drawMarks = (c) => {
      const at = edges(), mark = (op, colour, dash) => {
        const x = X((at[op] + at[op + 1]) / 2);
        if (x < GUTTER || x > width - RIGHT) return;
        c.strokeStyle = colour, c.lineWidth = 1.5, c.setLineDash(dash), c.beginPath(), c.moveTo(x, MAP_TOP), c.lineTo(x, curveBottom), c.stroke(),
        c.setLineDash([]);
      };
      mark(p.peakOp, rafter.colour('fault'), []);
      if (instant !== p.peakOp) mark(instant, rafter.colour('ink'), [5, 3]);
      if (cursor !== null) {
        c.strokeStyle = rafter.colour('muted'), c.lineWidth = 0.75, c.beginPath(), c.moveTo(cursor, MAP_TOP), c.lineTo(cursor, curveBottom),
        c.stroke();
      }
      const x = X((at[p.peakOp] + at[p.peakOp + 1]) / 2), text = `peak ${rafter.bytes(p.ops[p.topOp].top_bytes)}`;
      if (x < GUTTER || x > width - RIGHT) return;
      c.font = `600 12px ${getComputedStyle(document.body).fontFamily}`, c.textBaseline = 'top';
      const wide = c.measureText(text).width, left = x + wide + 12 > width - RIGHT ? x - wide - 8 : x + 6;
      c.fillStyle = rafter.colour('paper'), c.globalAlpha = 0.85, c.fillRect(left - 3, curveTop + 2, wide + 6, 16), c.globalAlpha = 1;
      c.fillStyle = rafter.colour('fault'), c.textAlign = 'left', c.fillText(text, left, curveTop + 4);
      c.beginPath(), c.arc(x, CY(p.ops[p.peakOp].live_bytes), 3.5, 0, 7), c.fill();
    };
    /* Everything that does not follow the pointer is drawn once and kept until the view, the filters or the theme change. */
    const kept = document.createElement('canvas');
    let keptAs = '';
    const drawStill = (c) => {
      drawFrame(c);
      c.save(), c.beginPath(), c.rect(GUTTER, MAP_TOP, plotWidth(), MAP), c.clip();
      drawTensors(c);
      if (over) drawGone(c);
      drawLabels(c);
      if (selected)
        p.list.forEach((tensor, t) => {
          if (rafter.kindOf(tensor.name) === selected) outline(c, t, rafter.colour('mark'), 1.5);
        });
      c.restore();
      drawCurve(c), drawAxes(c), drawPhases(c);
    };
    const draw = (c, w) => {
      width = w;
      if (!view) view = whole();
      const ratio = window.devicePixelRatio || 1, as = JSON.stringify([
        view, width, ratio, rafter.state.theme, state.axis, state.folded, shown, over && over.name, selected
      ]);
      if (as !== keptAs) {
        kept.width = Math.round(width * ratio), kept.height = Math.round(HEIGHT * ratio);
        const still = kept.getContext('2d');
        still.setTransform(ratio, 0, 0, ratio, 0, 0);
        drawStill(still);
        keptAs = as;
      }
      c.drawImage(kept, 0, 0, width, HEIGHT);
      c.save(), c.beginPath(), c.rect(GUTTER, MAP_TOP, plotWidth(), MAP), c.clip();
      if (hover !== null) outline(c, hover, rafter.colour('ink'), 2);
      c.restore();
      drawMarks(c);
      state.view = {...view};
    };

    /* ---- moving and zooming ---- */
    const clamp = () => {
      const all = whole(), least = all.x1 * 1e-7 || 1e-9;
      const keep = (a, b, from, to, size) => {
        const span = Math.min(to - from, Math.max(size, b - a));
        const start = Math.min(to - span, Math.max(from, a));
        return [start, start + span];
      };
      [view.x0, view.x1] = keep(view.x0, view.x1, all.x0, all.x1, state.axis === 'ops' ? 2 : least);
      [view.y0, view.y1] = keep(view.y0, view.y1, all.y0, all.y1, 256);
    };
    const changed = () => {
      clamp();
      picture.redraw();
    };
    const zoom = (factor, px, vertical, py) => {
      if (vertical) {
        const at = py === undefined ? (view.y0 + view.y1) / 2 : addressOf(py);
        view = {...view, y0: at - (at - view.y0) * factor, y1: at + (view.y1 - at) * factor};
      } else {
        const at = px === undefined ? (view.x0 + view.x1) / 2 : xOf(px);
        view = {...view, x0: at - (at - view.x0) * factor, x1: at + (view.x1 - at) * factor};
      }
      changed();
    };
    const pan = (dx, dy) => {
      const w = view.x1 - view.x0, h = view.y1 - view.y0;
      view = {x0: view.x0 + dx * w, x1: view.x1 + dx * w, y0: view.y0 + dy * h, y1: view.y1 + dy * h};
      changed();
    };
    const reset = () => {
      view = whole();
      picture.redraw();
    };
    const setAxis = (axis) => {
      const from = edges(), x0 = opAt(from, view.x0), x1 = opAt(from, view.x1 * (1 - 1e-12)), full = view.x0 <= 0 && view.x1 >= extent() * (1 - 1e-9);
      state.axis = axis;
      const to = edges();
      view = full ? {...view, x0: 0, x1: extent()} : {...view, x0: to[x0], x1: to[x1 + 1]};
      changed();
    };
    const showTensor = (t) => {
      const at = edges(), a = at[p.start[t]], b = at[Math.max(p.start[t], p.end[t]) + 1], w = b - a, tensor = p.list[t];
      view = {...view, x0: a - 0.15 * w, x1: b + 0.15 * w};
      if (!p.fixed[t]) view.y0 = tensor.offset - tensor.bytes, view.y1 = tensor.offset + 2 * tensor.bytes;
      changed();
    };

    /* ---- controls ---- */
    const axes = [['predicted', 'Predicted time'], ['ops', 'Ops']];
    if (p.edges.measured) axes.push(['measured', 'Measured time']);
    const bar =
        el('div', {class: 'bar'}, 'Axis', rafter.choice('Time axis', axes, state.axis, setAxis),
           p.persistent > 0 &&
               rafter.choice(
                   'Persistent tensors', [['fold', 'Persistent folded'], ['scale', 'to scale']], state.folded ? 'fold' : 'scale',
                   (value) => {
                     state.folded = value === 'fold';
                     view = {...view, y0: floor(), y1: p.arena};
                     changed();
                   }),
           el('button', {type: 'button', onclick: reset}, 'Show all'),
           el('button', {type: 'button', onclick: () => setInstant(p.peakOp)}, 'Peak'), el('span', {class: 'spring'}));
    if (others.length) {
      const select =
          el('select', {id: 'memory-over', onchange: () => setOver(select.value)}, el('option', {value: ''}, 'nothing'),
             others.map((other, i) => el('option', {value: i}, other.name)));
      bar.append(el('label', {}, 'Compare with ', select));
    }
    const filter = el('div', {class: 'bar', role: 'group', 'aria-label': 'Classes shown'}, p.classes.map((name, k) => {
      const sum = p.plan.memory.by_class ? p.plan.memory.by_class[name] : undefined;
      const button =
          el('button', {
            type: 'button',
            'aria-pressed': 'true',
            'data-class': name,
            class: 'toggle',
            title: `show or hide ${name}`,
            onclick: () => {
              shown[k] = state.classes[name] = !shown[k];
              button.setAttribute('aria-pressed', String(shown[k]));
              picture.redraw();
            }
          },
             el('span', {class: 'swatch', style: {background: `var(--${rafter.tensorColour(name)})`}}), sum ? `${name} ${rafter.bytes(sum)}` : name);
      return button;
    }));
    element.append(bar, filter);
    const legend = rafter.legend(p.classes.map((name) => ({title: name, colour: rafter.tensorColour(name)})));
    legend.classList.add('on-paper');

    const {frame, takes} = rafter.wheelFrame(element);
    const picture = rafter.canvas(frame, {
      label: `Arena of ${p.name}: addresses over time, with live bytes below; the table below has the same data as text`,
      height: HEIGHT,
      draw,
      focusable: true
    });
    picture.node.style.touchAction = 'pan-y';
    picture.node.id = 'memory-picture';
    element.append(legend);

    /* ---- pointer ---- */
    const inMap = (y) => y >= MAP_TOP && y <= mapBottom;
    const at = (event) => {
      const box = picture.node.getBoundingClientRect();
      return {x: event.clientX - box.left, y: event.clientY - box.top};
    };
    const row = (term, text) => el('div', {}, el('span', {class: 'muted'}, `${term} `), text);
    const describe = (t) => {
      const tensor = p.list[t], name = (op) => (op < 0 ? 'the start' : op >= p.n ? 'the end' : p.ops[op].name);
      return el(
          'div', {}, el('strong', {}, tensor.name), row(tensor.class, `${shapeText(tensor, p.plan.settings)} ${rafter.dtype(tensor.dtype)}`),
          row('bytes', `${rafter.whole(tensor.bytes)} (${rafter.bytes(tensor.bytes)}) from ${rafter.whole(tensor.offset)}`),
          row('first op', name(tensor.first)), row('last op', name(tensor.last)), tensor.reason && row('reason', tensor.reason));
    };
    const describeOp = (op) =>
        el('div', {}, el('strong', {}, p.ops[op].name), row('live', `${rafter.bytes(p.ops[op].live_bytes)} (${rafter.whole(p.ops[op].live_bytes)})`),
           row('arena used up to', rafter.bytes(p.ops[op].top_bytes)), row('predicted', rafter.seconds(p.ops[op].seconds)));
    let grab = null;
    picture.node.addEventListener('pointerdown', (event) => {
      const {x, y} = at(event);
      grab = {x, y, view: {...view}, moved: false};
      picture.node.setPointerCapture(event.pointerId);
    });
    picture.node.addEventListener('pointermove', (event) => {
      const {x, y} = at(event);
      if (grab) {
        grab.moved ||= Math.abs(x - grab.x) + Math.abs(y - grab.y) > 4;
        if (!grab.moved) return;
        const dx = (grab.x - x) / plotWidth() * (grab.view.x1 - grab.view.x0),
              dy = inMap(grab.y) ? (y - grab.y) / (MAP - band()) * (grab.view.y1 - grab.view.y0) : 0;
        view = {x0: grab.view.x0 + dx, x1: grab.view.x1 + dx, y0: grab.view.y0 + dy, y1: grab.view.y1 + dy};
        rafter.tooltip.hide();
        changed();
        return;
      }
      cursor = x >= GUTTER && x <= width - RIGHT ? x : null;
      const op = opAt(edges(), xOf(x)), found = cursor !== null && inMap(y) ? tensorAt(p, op, addressOf(y), shown) : -1;
      hover = found < 0 ? null : found;
      state.hover = hover === null ? null : p.list[hover].name;
      if (hover !== null)
        rafter.tooltip.show(event.clientX, event.clientY, describe(hover));
      else if (cursor !== null && y >= curveTop && y <= curveBottom)
        rafter.tooltip.show(event.clientX, event.clientY, describeOp(op));
      else
        rafter.tooltip.hide();
      picture.redraw();
    });
    picture.node.addEventListener('pointerup', (event) => {
      const {x} = at(event), held = grab;
      grab = null;
      if (held && !held.moved && x >= GUTTER && x <= width - RIGHT) setInstant(opAt(edges(), xOf(x)));
    });
    picture.node.addEventListener('pointercancel', () => {
      grab = null;
    });
    picture.node.addEventListener('pointerleave', () => {
      hover = cursor = state.hover = null;
      rafter.tooltip.hide();
      picture.redraw();
    });
    picture.node.addEventListener('dblclick', () => {
      if (hover !== null) showTensor(hover);
    });
    picture.node.addEventListener('wheel', (event) => {
      const {x, y} = at(event);
      if (x < GUTTER || !takes(event)) return;
      event.preventDefault();
      rafter.tooltip.hide();
      const unit = event.deltaMode === 1 ? 24 : event.deltaMode === 2 ? 240 : 1, shift = event.shiftKey;
      if (!shift && Math.abs(event.deltaX) > Math.abs(event.deltaY))
        pan(event.deltaX * unit / plotWidth(), 0);
      else
        zoom(1.0015 ** ((event.deltaY || event.deltaX) * unit), x, shift, y); /* some systems report a wheel with Shift as horizontal */
    }, {passive: false});

    rafter.keys(element, 'Memory', [
      [['+', '=', 'w'], 'zoom in', () => zoom(0.7)],
      [['-', 's'], 'zoom out', () => zoom(1 / 0.7)],
      [['ArrowLeft', 'a'], 'earlier', () => pan(-0.15, 0)],
      [['ArrowRight', 'd'], 'later', () => pan(0.15, 0)],
      [['ArrowUp'], 'higher addresses', () => pan(0, 0.15)],
      [['ArrowDown'], 'lower addresses', () => pan(0, -0.15)],
      [['W', 'PageUp'], 'zoom addresses in', () => zoom(0.7, undefined, true)],
      [['S', 'PageDown'], 'zoom addresses out', () => zoom(1 / 0.7, undefined, true)],
      [['0', 'f'], 'show all', reset],
      [['p'], 'go to the peak', () => setInstant(p.peakOp)],
      [['t'], 'show this op in Trace', () => toTrace()],
      [[',', '.'], 'previous op, next op', (event) => setInstant(Math.max(0, Math.min(p.n - 1, instant + (event.key === ',' ? -1 : 1))))],
    ]);
    element.append(el(
        'p', {class: 'note screen'},
        'Zoom time: Ctrl and wheel, or the wheel after a click; with Shift, zoom addresses. Move: drag. List the tensors alive at an op: click. Zoom to a tensor: double click. ? lists the keys.'));

    /* ---- tensors alive ---- */
    const about = el('div', {id: 'memory-instant'}), overAbout = el('div', {id: 'memory-difference'});
    element.append(about, overAbout);
    const traced = rafter.isTraced(p.plan), toTrace = () => traced && rafter.showRunOf(p.plan, p.ops[instant].name);
    /* Selects an op; if it is not in view, the view moves without zooming. */
    const showInstant = (op) => {
      const at = edges(), middle = (at[op] + at[op + 1]) / 2, half = (view ? view.x1 - view.x0 : 0) / 2;
      if (view && (at[op] < view.x0 || at[op + 1] > view.x1)) view = {...view, x0: middle - half, x1: middle + half}, clamp();
      setInstant(op);
      picture.node.scrollIntoView({block: 'nearest'});
    };
    const setInstant = (op) => {
      instant = op;
      const rows = aliveAt(p, op), sum = rows.reduce((total, one) => total + one.bytes, 0), what = op === p.peakOp ? 'Alive at the peak' : 'Alive';
      state.instant = {op, name: p.ops[op].name, kinds: rows.length, bytes: sum, first: rows[0] && rows[0].name};
      about.replaceChildren(
          el('h3', {}, `${what}: ${p.ops[op].name}`),
          traced ? el('p', {class: 'screen'}, el('button', {type: 'button', 'data-link': 'trace', onclick: toTrace}, 'This op in Trace (t)')) : '',
          el('p', {},
             `${rafter.whole(rows.reduce((total, one) => total + one.count, 0))} tensors hold ${rafter.bytes(sum)}` +
                 (op !== p.peakOp ? `; the arena is used up to ${rafter.bytes(p.ops[op].top_bytes)}.` :
                      !p.whole ? ` here; another plan of the run needs the arena's ${rafter.bytes(p.arena)}.` :
                                 ` of an arena of ${rafter.bytes(p.arena)} (${rafter.whole(p.arena)} bytes)${
                                     p.arena > sum ? `; the rest, ${rafter.bytes(p.arena - sum)}, is in gaps between them` : ''}.`)),
          kindTable(rows, p.plan, {
            caption: 'Buffers of one kind are summed over all layers. A click on a row outlines its tensors in the picture.',
            onrow: (one) => {
              selected = state.selected = selected === one.name ? null : one.name;
              picture.redraw();
            }
          }));
      rafter.announce(`${what} at ${p.ops[op].name}: ${rafter.bytes(sum)}`);
      picture.redraw();
    };

    /* ---- comparison with another plan ---- */
    const setOver = (index) => {
      const other = index === '' ? null : others[index];
      over = other ? (other.read ||= read(other.name, other.plan)) : null;
      places = over && align(p, over), gone = over ? goneIn(p, over, places) : [], hatched = new Set(gone.map(([t]) => t));
      overAbout.replaceChildren();
      state.over = null;
      if (over) {
        const here = over.ops.findIndex((op) => op.name === p.ops[p.peakOp].name);
        const own = rafter.changes(aliveAt(p, p.peakOp), aliveAt(over, over.peakOp)),
              same = here < 0 ? null : rafter.changes(aliveAt(p, p.peakOp), aliveAt(over, here));
        const peak = over.arena - p.arena, time = over.plan.time.seconds - p.plan.time.seconds;
        state.over = {
          name: over.name,
          peak_bytes: over.arena,
          peak_change: peak,
          seconds_change: time,
          gone: hatched.size,
          same: same && same.map((one) => [one.name, one.change]),
          own: own.map((one) => [one.name, one.change])
        };
        overAbout.append(
            el('h3', {}, `With ${over.name} instead`), rafter.cards([
              ['Peak', rafter.bytes(over.arena), rafter.signed(rafter.bytes, peak), peak / p.arena],
              ['Predicted time', rafter.seconds(over.plan.time.seconds), rafter.signed(rafter.seconds, time), time / p.plan.time.seconds]
            ].map(([title, now, change, part]) => [title, now, `${change} (${part > 0 ? '+' : ''}${rafter.percent(part)})`])),
            el('p', {}, `The hatched parts of ${state.over.gone} tensors in the picture would be free.`),
            el('div', {class: 'columns'},
               [[same, `At ${p.ops[p.peakOp].name}, the present peak`], [own, "At the peak of each plan"]]
                   .filter(([rows]) => rows)
                   .map(
                       ([rows, caption]) =>
                           rafter.table(
                               [
                                 {title: 'Change', number: true, value: (one) => one.change, text: (one) => rafter.signed(rafter.bytes, one.change)},
                                 {title: 'This plan', number: true, value: (one) => one.a, text: (one) => (one.a ? rafter.bytes(one.a) : '–')},
                                 {title: 'Other plan', number: true, value: (one) => one.b, text: (one) => (one.b ? rafter.bytes(one.b) : '–')},
                                 {
                                   title: 'Tensor',
                                   value: (one) => one.name,
                                   node: (one) => [el('span', {title: one.class}, rafter.swatch(rafter.tensorColour(one.class))), one.name]
                                 },
                               ],
                               rows, {caption, limit: 12}))));
      }
      if (view) {
        view.x1 = Math.min(view.x1, extent());
        changed();
      }
    };
    setInstant(p.peakOp);
    const wanted = others.findIndex((other) => other.of === true);
    if (wanted >= 0) {
      bar.querySelector('#memory-over').value = wanted;
      setOver(wanted);
    }
    return {showInstant};
  };

  rafter.memoryParts.viewer = viewer;
})();
