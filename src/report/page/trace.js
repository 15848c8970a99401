/* trace.js - the trace viewer's panel: its view, mouse and keys. trace_draw.js draws it, trace_words.js makes its texts. */
(() => {
  const {el} = rafter;
  const GUTTER = 116, MINIMAP = 40, RULER = 20, LEAST_NS = 200;

  class Viewer {
    constructor(element, run, trace) {
      Object.assign(this, {element, run, trace, gutter: GUTTER, minimap: MINIMAP, ruler: RULER});
      /* Complete steps only. Loading comes before them, and older steps may have lost spans. */
      const steps = this.steps = rafter.objects(trace.header.steps).filter((step) => step.whole !== false);
      this.wholes = [[trace.from, trace.to]];
      if (steps.length) this.wholes.unshift([steps[0].begin, steps[steps.length - 1].end]);
      [this.from, this.to] = this.whole = this.wholes[0];
      this.zero = this.from; /* times are shown relative to the first recorded step */
      this.selection = null; this.selected = null; this.hover = null; this.search = ''; this.only = new Set(); this.matches = 0;
      this.aligned = true;
      this.painted = 0;
      this.open = new Set([0]); /* ranks whose lanes are shown */
      this.rank = 0;            /* the rank of the sums, tables and search */
      this.main = trace.ranks[0].main;
      rafter.state.trace = this.state = {events: trace.header.count, drawn: 0, frames: 0, rank: 0};
      this.layOut();
      this.build();
      this.changed();
    }

    /* The rows of all open ranks, from the top. `aligned`: predictions are above their ops. */
    rowsShown(aligned) {
      return this.trace.ranks.flatMap((rank, r) => {
        const {list, predicted, lane} = rank, open = this.open.has(r),
                                shown = predicted ? (aligned ? predicted.atOps : predicted.inOrder) :
                                                    list.predicted;
        return [
          ...(r ? [] : list.step), ...(lane ? [lane] : []),
          ...(open ? [...list.phase, ...shown, ...list.op, ...list.thread] : [])
        ];
      });
    }
    /* Sets the positions of all lanes. The height is enough for both ways to show predictions. */
    layOut() {
      const {trace} = this, counters = trace.counters.filter((counter) => counter.most > 0);
      const place = (rows) => {
        let y = MINIMAP + RULER + 4;
        const lanes = [...rows, ...counters].map((row) => {
          const lane = {row, y};
          y += row.height + (row.kind === 'thread' || row.title === '' ? 2 : 5);
          return lane;
        });
        return {lanes, height: y + 6};
      };
      trace.rows = this.rowsShown(this.aligned);
      const {lanes, height} = place(trace.rows);
      this.lanes = lanes;
      this.height = Math.max(height, place(this.rowsShown(!this.aligned)).height);
      if (this.view) this.view.setHeight(this.height);
      this.recount();
    }
    /* Sums the rows that are new in the view, or have other colours than before. */
    recount() {
      for (const row of [...this.trace.rows, this.main])
        if (row && row.painted !== this.painted) {
          row.recount(this.trace.things);
          row.painted = this.painted;
        }
    }

    /* ---- the panel's elements --------------------------------------------------------------------------------------- */

    build() {
      const {element} = this, button = (text, label, action) => el('button', {type: 'button', 'aria-label': label, title: label, onclick: action}, text);
      this.input = el('input', {type: 'search', id: 'trace-search', placeholder: 'Search ops by name', 'aria-label': 'Search ops by name', size: 26, oninput: () => this.find(this.input.value),
        onkeydown: (event) => {
          if (event.key === 'Enter') { event.preventDefault(); this.next(event.shiftKey ? -1 : 1); this.view.node.focus(); }
          if (event.key === 'Escape') { this.input.value = ''; this.find(''); this.view.node.focus(); }
        }});
      this.found = el('span', {class: 'note', 'aria-live': 'polite'});
      element.append(el('div', {class: 'bar'}, this.input, button('‹', 'Previous match (N)', () => this.next(-1)), button('›', 'Next match (n)', () => this.next(1)), this.found,
        el('span', {class: 'spring'}),
        el('span', {class: 'group'}, button('−', 'Zoom out (−)', () => this.zoom(1.6)), button('+', 'Zoom in (+)', () => this.zoom(1 / 1.6)), button('Fit', 'Show all steps (0); again: the complete recording', () => this.fit())),
        button('Zoom to selection', 'Zoom to the selection (z)', () => this.zoomToSelection())));
      const {steps} = this, choices = el('div', {class: 'bar'}), pair = (title, ...nodes) => el('span', {class: 'pair'}, el('span', {class: 'note'}, title), ...nodes);
      element.append(choices);
      const showStep = (step) => this.look(step.begin, step.end);
      if (steps.length > 1 && steps.length <= 12) choices.append(pair('Step', el('span', {class: 'group'}, steps.map((step) => button(String(step.step), `Show step ${step.step}`, () => showStep(step))))));
      else if (steps.length > 12) choices.append(pair('Step', el('select', {'aria-label': `Show a step`, onchange: (event) => (event.target.value ? showStep(steps[event.target.value]) : this.look(...this.wholes[0]))},
        el('option', {value: ''}, 'all'), steps.map((step, i) => el('option', {value: i}, String(step.step))))));
      const byClass = button('class', 'Colour by class of op', () => this.colourBy('class')), byRatio = button('measured / predicted', 'Colour by the ratio of measured to predicted time', () => this.colourBy('ratio'));
      this.colourButtons = {class: byClass, ratio: byRatio};
      if (this.trace.ranks.some((rank) => rank.list.op.length))
        choices.append(pair('Colour by', el('span', {class: 'group'}, byClass, byRatio)));
      if (this.trace.predicted) {
        const atOps = button('above its op', 'Draw each prediction above its op', () => this.align(true)), inOrder = button('end to end', `Draw predictions end to end from the begin of the step: the schedule of the plan`, () => this.align(false));
        this.alignButtons = [inOrder, atOps];
        choices.append(pair('Predicted', el('span', {class: 'group'}, atOps, inOrder)));
      }
      const ranks = rafter.traceParts.rankButtons(this);
      if (ranks) choices.append(pair('Rank', ranks));
      this.legend = el('div', {class: 'bar paints', role: 'group', 'aria-label': 'Show only'});
      element.append(this.legend);
      this.onPaper = el('ul', {class: 'legend on-paper'});
      element.append(this.onPaper);
      const {frame, takes} = rafter.wheelFrame(element, {class: 'trace'});
      this.takesWheel = takes;
      this.view = rafter.canvas(frame, {label: this.label(), height: this.height, focusable: true, role: 'application', draw: (context, w, h) => rafter.traceParts.draw(this, context, w, h)});
      element.append(el('p', {class: 'note'}, el('span', {class: 'screen'}, 'Zoom: Ctrl and wheel, or the wheel after a click. Move: drag. Select a range: Shift and drag. Show an op: click. ',
        el('kbd', {}, '?'), ' lists the keys. '), 'A dark end means that the prediction is cut by the next op. If many ops share a pixel, the height of the bar is the share of time with work, and its colour is that of the class with most time.'));
      this.words = el('div', {class: 'columns tables'});
      element.append(this.words);
      this.details = el('section', {'aria-live': 'polite'});
      this.sums = el('section', {});
      this.words.append(this.details, this.sums);
      this.causes = el('section', {});
      element.append(this.causes);
      rafter.traceParts.ranks(this, element);
      rafter.traceParts.gaps(this);
      rafter.traceParts.details(this);
      this.colourBy('class');
      this.align(true);
      this.listen();
      rafter.onTheme(() => { this.minimapPicture = null; });
    }

    label() {
      const {trace} = this;
      return `Trace of ${rafter.seconds((trace.to - trace.from) / 1e9)}: ${rafter.whole(trace.header.count)} spans in ${trace.rows.length} lanes. ` +
        'Plus and minus zoom, left and right move, up and down change the lane, comma and full stop step from op to op.';
    }

    /* 'class': by class of op; 'ratio': by the ratio of measured to predicted time of all calls of an op. */
    colourBy(what) {
      this.colouring = what;
      this.state.colouring = what;
      for (const [name, button] of Object.entries(this.colourButtons)) button.setAttribute('aria-pressed', String(name === what));
      if (what === 'ratio' && !this.ratioPaint) this.ratioPaint = rafter.traceParts.ratioPaints(this);
      this.only.clear();
      this.repaint();
      this.fillLegend();
      this.changed();
    }
    align(atOps) {
      if (!this.trace.predicted) return;
      this.aligned = this.state.aligned = atOps;
      this.alignButtons.forEach((button, i) => button.setAttribute('aria-pressed', String(Boolean(i) === atOps)));
      this.layOut();
      if (this.selected && this.selected.row.kind === 'predicted') this.select(null);
      this.changed();
    }
    paintOf(key) { return this.colouring === 'ratio' && key < this.trace.things.ops ? this.ratioPaint[key] : this.trace.things.paint[key]; }

    fillLegend() {
      const seen = new Set();
      for (const row of this.trace.rows)
        if (row.kind === 'op' || row.kind === 'thread' || row.kind === 'rank')
          for (let i = 0; i < row.count; i++) seen.add(this.paintOf(row.key[i]));
      const {things} = this.trace, order = [...things.paints.keys()].filter((index) => seen.has(index)).sort((a, b) => rafter.traceParts.isGap(things, a) - rafter.traceParts.isGap(things, b) || a - b);
      this.onPaper.replaceChildren(...order.map((index) => things.paints[index]).map((paint) => el('li', {}, el('span', {class: 'swatch', style: {background: `var(--${paint.colour})`}}), paint.title)));
      this.legend.replaceChildren(
          ...order.map((index) => [index, things.paints[index]])
              .map(
                  ([index, paint]) =>
                      el('button', {
                        type: 'button',
                        class: 'paint',
                        'aria-pressed': String(this.only.has(index)),
                        'data-paint': paint.id,
                        onclick: (event) => this.toggle(index, event.currentTarget)
                      },
                         el('span',
                            {class: `swatch ${paint.colour}`, style: {background: `var(--${paint.colour})`}}),
                         paint.title)));
    }

    /* ---- the view ------------------------------------------------------------------------------------------- */

    /* Shows the times from `from` to `to`, kept inside the trace. */
    look(from, to) {
      const part = 0.02 * (this.whole[1] - this.whole[0]), all = this.wholes[this.wholes.length - 1];
      /* A view beyond the steps extends the overview to the complete recording. */
      if (this.whole !== all && (from < this.whole[0] - part || to > this.whole[1] + part)) { this.whole = all; this.minimapPicture = null; }
      const [first, last] = this.whole, whole = last - first, room = 0.02 * whole;
      const width = Math.min(Math.max(to - from, LEAST_NS), whole + 2 * room);
      const middle = (from + to) / 2;
      let start = middle - width / 2;
      start = Math.min(Math.max(start, first - room), Math.max(first - room, last + room - width));
      this.from = start; this.to = start + width;
      this.changed();
    }
    /* Shows the recorded steps; called again, also the times before and after them. */
    fit() {
      const all = this.from === this.whole[0] && this.to === this.whole[1] && this.whole === this.wholes[0];
      this.whole = this.wholes[all ? this.wholes.length - 1 : 0];
      this.minimapPicture = null;
      this.look(...this.whole);
    }
    /* A factor above 1 shows more time; the time `at` keeps its position. */
    zoom(factor, at = (this.from + this.to) / 2) { this.look(at - (at - this.from) * factor, at + (this.to - at) * factor); }
    pan(fraction) { const by = fraction * (this.to - this.from); this.look(this.from + by, this.to + by); }
    zoomToSelection() {
      if (this.selection) this.look(...this.selection);
      else if (this.selected) {
        const {row, i} = this.selected, room = 0.5 * (row.end[i] - row.begin[i]);
        this.look(row.begin[i] - room, row.end[i] + room);
      }
    }
    scale() { return (this.view.width - GUTTER - 2) / (this.to - this.from); }
    timeAt(x) { return this.from + (x - GUTTER) / this.scale(); }
    xAt(time) { return GUTTER + (time - this.from) * this.scale(); }

    changed() {
      const {state} = this;
      Object.assign(state, {from: this.from, to: this.to, selection: this.selection, search: this.search, matches: this.matches, only: [...this.only].map((i) => this.trace.things.paints[i].id)});
      if (this.view) this.view.redraw();
      clearTimeout(this.later);
      this.later = setTimeout(() => rafter.traceParts.sums(this), this.summed ? 120 : 0);
    }

    /* ---- selection ------------------------------------------------------------------------------------------------------ */

    hit(x, y) {
      if (x < GUTTER) return null;
      const lane = this.lanes.find((one) => y >= one.y && y < one.y + one.row.height);
      if (!lane) return null;
      if (lane.row.kind === 'counter') return {row: lane.row, i: lane.row.at(this.timeAt(x))};
      const i = lane.row.at(this.timeAt(x), 2 / this.scale());
      return i < 0 ? null : {row: lane.row, i};
    }
    select(hit) {
      this.selected = hit && hit.row.kind !== 'counter' && hit.i >= 0 ? hit : null;
      if (this.selected) rafter.traceParts.setRank(this, hit.row.rank);
      if (this.selected && hit.row.kind !== 'rank' && hit.row.kind !== 'step')
        rafter.traceParts.openRank(this, hit.row.rank);
      this.state.selected = this.selected && this.trace.things.title[this.selected.row.key[this.selected.i]];
      this.state.selectedRow = this.selected && this.selected.row.id;
      rafter.traceParts.details(this);
      if (this.selected) rafter.announce(`${this.state.selected}, ${rafter.seconds((hit.row.end[hit.i] - hit.row.begin[hit.i]) / 1e9)}, on ${hit.row.id}`);
      this.view.redraw();
    }
    /* Brings a span into view and zooms out only if needed. */
    reveal({row, i}) {
      const middle = (row.begin[i] + row.end[i]) / 2, width = Math.max(this.to - this.from, 1.2 * (row.end[i] - row.begin[i]));
      if (row.begin[i] < this.from || row.end[i] > this.to) this.look(middle - width / 2, middle + width / 2);
    }
    step(by) {
      const now = this.selected || {row: this.main, i: this.main.after(this.from) - (by > 0 ? 1 : 0)};
      const i = Math.min(Math.max(now.i + by, 0), now.row.count - 1);
      if (i < 0) return;
      this.select({row: now.row, i});
      this.reveal({row: now.row, i});
    }
    lane(by) {
      const rows = this.trace.rows, now = this.selected,
            home = rows.includes(this.main) ? this.main : this.trace.ranks[this.rank].lane,
            time = now ? (now.row.begin[now.i] + now.row.end[now.i]) / 2 : (this.from + this.to) / 2;
      for (let at = (now ? rows.indexOf(now.row) : rows.indexOf(home) - by) + by; at >= 0 && at < rows.length;
           at += by) {
        const i = Math.min(rows[at].after(time), rows[at].count - 1);
        if (i >= 0) { this.select({row: rows[at], i}); this.reveal({row: rows[at], i}); return; }
      }
    }

    /* ---- search and filter ------------------------------------------------------------------------------------------------ */

    find(text) {
      this.search = text.trim().toLowerCase();
      this.cursor = null;
      this.repaint();
      this.countMatches();
      this.changed();
    }
    countMatches() {
      const row = this.main;
      this.matches = 0;
      if (this.search) for (let i = 0; i < row.count; i++) if (this.isMatch[row.key[i]]) this.matches++;
      this.found.textContent = !this.search ? '' :
          this.matches                      ? `${rafter.whole(this.matches)} runs of ${
                             rafter.whole(this.isMatch.reduce((sum, one) => sum + one, 0))} ops` :
                                              'nothing has that name';
    }
    toggle(paint, button) {
      if (this.only.has(paint)) this.only.delete(paint); else this.only.add(paint);
      button.setAttribute('aria-pressed', String(this.only.has(paint)));
      this.repaint();
      this.changed();
    }
    /* Dims all ops that do not match the search or the selected classes. */
    repaint() {
      const {things} = this.trace;
      this.isMatch = new Uint8Array(things.title.length);
      for (let key = 0; key < things.title.length; key++) {
        const named = this.search && key < things.ops && things.title[key].toLowerCase().includes(this.search);
        if (named) this.isMatch[key] = 1;
        const shown = (!this.search || named) && (!this.only.size || this.only.has(this.paintOf(key)));
        things.shown[key] = shown || things.paints[things.paint[key]].id.startsWith('phase-') || key === things.step ? this.paintOf(key) : things.dim;
      }
      this.painted++;
      this.recount();
      this.minimapPicture = null;
    }
    /* Selects the first call of the op with exactly this name. */
    nextOf(name) {
      const row = this.main, i = row.key.indexOf(this.trace.things.title.indexOf(name));
      if (i < 0 || i >= row.count) return;
      this.cursor = i;
      this.select({row, i});
      this.reveal({row, i});
    }
    /* Selects a call of a plan's op with this name, the selected one or the first, and shows it with its surroundings. */
    goTo(plan, name) {
      const {things} = this.trace, key = things.title.findIndex((title, i) => title === name && things.plan[i] === plan), now = this.selected;
      let at = now && now.row === this.main && now.row.key[now.i] === key ? now.i : this.main.key.indexOf(key);
      if (key < 0 || at < 0 || at >= this.main.count) { this.found.textContent = 'this op was not recorded'; return; }
      this.select({row: this.main, i: at});
      const {begin, end} = this.main, width = end[at] - begin[at];
      if (begin[at] < this.from || end[at] > this.to || width < 0.01 * (this.to - this.from)) this.look(begin[at] - 4 * width, end[at] + 4 * width);
    }
    /* Shows the selected op in the memory panel. */
    toMemory() {
      const {row, i} = this.selected || {}, {things} = this.trace, key = row ? row.key[i] : -1;
      if (row && rafter.hasInstant(things.plan[key], things.op[key])) rafter.showInstant(things.plan[key], things.op[key]);
    }
    next(by) {
      if (!this.matches) return;
      const row = this.main;
      let i = this.cursor !== null ? this.cursor : this.selected && this.selected.row === row ? this.selected.i : row.after(this.from) - (by > 0 ? 1 : 0);
      for (let seen = 0; seen < row.count; seen++) {
        i = (i + by + row.count) % row.count;
        if (this.isMatch[row.key[i]]) {
          this.cursor = i;
          this.select({row, i});
          this.reveal({row, i});
          return;
        }
      }
    }

    /* ---- mouse and keys ----------------------------------------------------------------------------------------------------- */

    listen() {
      const {node} = this.view, place = (event) => { const box = node.getBoundingClientRect(); return [event.clientX - box.x, event.clientY - box.y]; };
      let drag = null;
      node.addEventListener('pointerdown', (event) => {
        if (event.button) return;
        const [x, y] = place(event);
        node.focus({preventScroll: true});
        node.setPointerCapture(event.pointerId);
        drag = {x, y, from: this.from, to: this.to, moved: false, kind: y < MINIMAP ? 'minimap' : event.shiftKey || (y < MINIMAP + RULER) ? 'select' : 'pan'};
        if (drag.kind === 'minimap') this.centreOnMinimap(x);
        rafter.tooltip.hide();
      });
      node.addEventListener('pointermove', (event) => {
        const [x, y] = place(event);
        if (!drag) { this.point(event, x, y); return; }
        if (Math.abs(x - drag.x) + Math.abs(y - drag.y) > 3) drag.moved = true;
        if (drag.kind === 'minimap') this.centreOnMinimap(x);
        else if (drag.kind === 'select' && drag.moved) {
          const a = this.timeAt(Math.max(GUTTER, drag.x)), b = this.timeAt(Math.max(GUTTER, x));
          this.selection = a < b ? [a, b] : [b, a];
          this.changed();
        } else if (drag.kind === 'pan' && drag.moved) {
          const by = (drag.x - x) * (drag.to - drag.from) / (this.view.width - GUTTER);
          this.look(drag.from + by, drag.to + by);
        }
      });
      node.addEventListener('pointerup', (event) => {
        const [x, y] = place(event);
        if (drag && !drag.moved && drag.kind !== 'minimap') {
          const lane = x < GUTTER &&
              this.lanes.find((one) => one.row.kind === 'rank' && y >= one.y && y < one.y + one.row.height);
          if (lane)
            rafter.traceParts.toggleRank(this, lane.row.rank);
          else if (drag.kind === 'select') {
            this.selection = null;
            this.changed();
          } else
            this.select(this.hit(x, y));
        }
        drag = null;
      });
      node.addEventListener('pointercancel', () => { drag = null; });
      node.addEventListener('pointerleave', () => { rafter.tooltip.hide(); this.hover = null; this.view.redraw(); });
      node.addEventListener('dblclick', (event) => { const hit = this.hit(...place(event)); if (hit && hit.row.kind !== 'counter') { this.select(hit); this.zoomToSelection(); } });
      node.addEventListener('wheel', (event) => {
        const [x] = place(event);
        if (x < GUTTER || !this.takesWheel(event)) return; /* elsewhere the wheel scrolls the page */
        event.preventDefault();
        const unit = event.deltaMode === 1 ? 24 : event.deltaMode === 2 ? 240 : 1;
        const across = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
        if (Math.abs(across) > Math.abs(event.deltaY) || event.shiftKey) this.pan(across * unit / (this.view.width - GUTTER));
        else this.zoom(Math.exp(event.deltaY * unit * 0.002), this.timeAt(x));
      }, {passive: false});
      const clear = () => { this.selection = null; this.select(null); this.changed(); };
      rafter.keys(this.element, 'Trace', [
        [['+', '=', 'w'], 'zoom in', () => this.zoom(1 / 1.6)],
        [['-', '_', 's'], 'zoom out', () => this.zoom(1.6)],
        [['ArrowLeft', 'a'], 'move to earlier', () => this.pan(-0.2)],
        [['ArrowRight', 'd'], 'move to later', () => this.pan(0.2)],
        [['0', 'f'], 'show all steps; again: the complete recording', () => this.fit()],
        [['z', 'Enter'], 'zoom to the selected range or op', () => this.zoomToSelection()],
        [
          ['/'], 'search',
          () => {
            this.input.focus();
            this.input.select();
          }
        ],
        [['n'], 'next match', () => this.next(1)],
        [['N'], 'previous match', () => this.next(-1)],
        [['.'], 'next op in the lane', () => this.step(1)],
        [[','], 'previous op in the lane', () => this.step(-1)],
        [['ArrowUp'], 'lane above', () => this.lane(-1)],
        [['ArrowDown'], 'lane below', () => this.lane(1)],
        [
          ['c'], 'colour by class, or by measured / predicted',
          () => this.colourBy(this.colouring === 'class' ? 'ratio' : 'class')
        ],
        [['p'], 'predictions above their ops, or end to end', () => this.align(!this.aligned)],
        [['m'], 'tensors alive during the op, in Memory', () => this.toMemory()],
        ...(this.trace.ranks.length > 1 ?
                [
                  [
                    ['r'], 'open or close the lanes of the rank',
                    () => rafter.traceParts.toggleRank(this, this.rank)
                  ],
                  [['R'], 'open or close the lanes of all ranks', () => rafter.traceParts.toggleAll(this)]
                ] :
                []),
        [
          ['v'], 'select the range in view',
          () => {
            this.selection = [this.from, this.to];
            this.changed();
          }
        ],
        [['Escape'], 'clear the selection', clear],
      ]);
    }
    centreOnMinimap(x) {
      const [first, last] = this.whole, time = first + (x - GUTTER) / (this.view.width - GUTTER - 2) * (last - first), half = (this.to - this.from) / 2;
      this.look(time - half, time + half);
    }
    point(event, x, y) {
      const hit = this.hit(x, y), before = this.hover;
      this.hover = hit;
      if (!hit || hit.i < 0) rafter.tooltip.hide(); else rafter.tooltip.show(event.clientX, event.clientY, rafter.traceParts.hint(this, hit, this.timeAt(x)));
      if ((hit && hit.i) !== (before && before.i) || (hit && hit.row) !== (before && before.row)) this.view.redraw();
    }
  }

  rafter.traceParts = {};
  rafter.panel({
    id: 'trace',
    title: 'Trace',
    order: 20,
    perRun: true,
    about: 'Every recorded op on its thread, below its predicted time.',
    available: (model) => rafter.objects(model.runs).length > 0,
    missing: (model, run) =>
        (run && run.trace ?
             '' :
             'This run was not traced. --trace steps=2..3 records the ops of two steps.'),
    async render(element, model, run) {
      const trace = await rafter.trace(run);
      rafter.state.trace = null;
      if (!trace)
        element.append(
            el('p', {class: 'empty'}, 'This run was not traced. Run it again with ',
               el('code', {}, '--trace steps=2..3'), ' and report it again.'));
      else if (!trace.ranks.some((rank) => rank.main))
        element.append(
            el('p', {class: 'empty'},
               'The trace of this run has no spans: the run had none of the steps to trace.'));
      else
        rafter.traceViewer = new Viewer(element, run, trace);
    },
  });
})();
