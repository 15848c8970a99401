/* core_trace.js - decodes a recorded trace into typed arrays, rows of non-overlapping spans, and block sums for drawing at any zoom. */
(() => {
  const TYPES = {u8: Uint8Array, i8: Int8Array, u16: Uint16Array, i16: Int16Array, u32: Uint32Array, i32: Int32Array, f32: Float32Array, f64: Float64Array};
  const BLOCK = 64; /* spans per block of sums */
  const MOST_DEPTH = 4;

  const fromBase64 = (text) => {
    if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
    const raw = atob(text), bytes = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
    return bytes;
  };
  const gunzip = async (bytes) => new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'))).arrayBuffer();

  /* Values of a column whose bytes are stored as first bytes of all values, then second bytes, and so on. 64-bit integers become doubles, exact to 2^53 ns (104 days). */
  const gather = (type, size, bytes, at, count) => {
    if (type === 'i64' || type === 'u64') {
      const values = new Float64Array(count), planes = [0, 1, 2, 3, 4, 5, 6, 7].map((b) => bytes.subarray(at + b * count, at + (b + 1) * count));
      const [b0, b1, b2, b3, b4, b5, b6, b7] = planes;
      for (let i = 0; i < count; i++) {
        const high = b4[i] | b5[i] << 8 | b6[i] << 16 | b7[i] << 24;
        values[i] = (type === 'i64' ? high : high >>> 0) * 4294967296 + ((b0[i] | b1[i] << 8 | b2[i] << 16 | b3[i] << 24) >>> 0);
      }
      return values;
    }
    const raw = new Uint8Array(count * size);
    for (let b = 0; b < size; b++) for (let i = 0, from = at + b * count, to = b; i < count; i++, to += size) raw[to] = bytes[from + i];
    return new TYPES[type](raw.buffer);
  };

  /* header.columns: [{name, type, coding}] in the order of the bytes, each of header.count values. */
  const decodeColumns = (header, bytes) => {
    const columns = {}, count = header.count;
    let at = 0;
    for (const {name, type, coding} of header.columns) {
      const size = type === 'i64' || type === 'u64' ? 8 : TYPES[type] && TYPES[type].BYTES_PER_ELEMENT;
      if (!size) throw new Error(`the trace has a column of an unknown type (${type})`);
      if (at + size * count > bytes.length) throw new Error('the trace is shorter than its header says');
      const values = gather(type, size, bytes, at, count);
      if (coding === 'difference') for (let i = 1; i < count; i++) values[i] += values[i - 1];
      if (coding === 'after begin') for (let i = 0; i < count; i++) values[i] += columns.begin[i];
      columns[name] = values;
      at += size * count;
    }
    return columns;
  };

  /* ---- names and colours of spans -------------------------------------------------------------------------------------- */

  /* Colours of gaps. Waits and gaps are pale, so that work stands out. */
  const GAP_PAINT = {
    'slow rank': 'gap-rank',
    network: 'gap-network',
    launch: 'gap-launch',
    wait: 'gap-wait',
    serial: 'gap-serial',
    'page fault': 'gap-system',
    allocation: 'gap-system',
    io: 'gap-system',
    'other threads': 'gap-others',
    stopped: 'gap-stopped',
    unexplained: 'gap-unknown'
  };
  /* Phases are shades of grey; colours are for classes of ops. */
  const PHASE_SHADE = {forward: 'phase-1', recompute: 'phase-2', backward: 'phase-2', accumulate: 'phase-3', optimizer: 'phase-3', sample: 'phase-2'};

  class Things {
    constructor(header, plans) {
      this.title = []; this.paint = []; this.op = []; this.plan = [];
      this.paints = rafter.opClasses.map(({id, title, colour}) => ({id, title, colour}));
      this.plans = plans;
      this.paintIndex = new Map(this.paints.map((paint, i) => [paint.id, i]));
      const classOf = (kind) => this.paintIndex.get(rafter.opClass(kind).id);
      this.base = plans.map((plan) => {
        const base = this.title.length;
        for (const op of rafter.objects(plan && plan.ops)) this.add(String(op.name), classOf(op.op), op, plan);
        return base;
      });
      this.ops = this.title.length;
      this.wait = this.add('waiting for other threads', this.paintOf('gap-wait', 'waiting', 'gap-wait'));
      this.unknown = this.add('unknown', classOf('?'));
      this.gap = (header.gaps || []).map((name) => this.add(String(name), this.paintOf(GAP_PAINT[name] || 'gap-unknown', name, GAP_PAINT[name] || 'gap-unknown')));
      this.phase = (header.phases || []).map((name) => this.add(String(name), this.paintOf(`phase-${name}`, name, PHASE_SHADE[name] || 'phase-0')));
      this.step = this.add('step', this.paintOf('step', 'step', 'step'));
      this.dim = this.paintOf('dim', 'not chosen', 'dim');
      this.shown = Uint8Array.from(this.paint);
    }
    add(title, paint, op = null, plan = null) {
      this.title.push(title); this.paint.push(paint); this.op.push(op); this.plan.push(plan);
      return this.title.length - 1;
    }
    paintOf(id, title, colour) {
      if (!this.paintIndex.has(id)) { this.paintIndex.set(id, this.paints.length); this.paints.push({id, title, colour}); }
      return this.paintIndex.get(id);
    }
    of(kind, plan, id) {
      if (kind === 'wait') return this.wait;
      if (kind === 'step') return this.step;
      if (kind === 'gap') return this.gap[id] ?? this.unknown;
      if (kind === 'phase') return this.phase[id] ?? this.unknown;
      const base = this.base[plan], key = base + id;
      return base !== undefined && id >= 0 && key < (this.base[plan + 1] ?? this.ops) ? key : this.unknown;
    }
  }

  /* ---- rows ------------------------------------------------------------------------------------------------------------ */

  /* Spans in order of time that do not overlap, with sums of time by paint over blocks of spans, for fast drawing. */
  class Row {
    constructor(id, title, kind, count, height) {
      Object.assign(this, {id, title, kind, height, count: 0});
      this.begin = new Float64Array(count); this.end = new Float64Array(count);
      this.key = new Uint32Array(count); this.event = new Uint32Array(count);
    }
    push(begin, end, key, event) {
      const i = this.count++;
      this.begin[i] = begin; this.end[i] = end; this.key[i] = key; this.event[i] = event;
    }
    /* Computes the sums of time by paint for all blocks; called again when the filter changes. */
    recount(things) {
      const paints = things.paints.length, blocks = Math.ceil(this.count / BLOCK);
      if (!this.sums || this.sums.length !== blocks * paints) this.sums = new Float32Array(blocks * paints);
      else this.sums.fill(0);
      for (let i = 0; i < this.count; i++) this.sums[((i / BLOCK) | 0) * paints + things.shown[this.key[i]]] += this.end[i] - this.begin[i];
    }
    /* Index of the first span that ends after `time`. */
    after(time) {
      let low = 0, high = this.count;
      while (low < high) {
        const middle = (low + high) >>> 1;
        if (this.end[middle] > time) high = middle; else low = middle + 1;
      }
      return low;
    }
    /* Index of the span at `time`, or within `slack` of it; -1: none. */
    at(time, slack = 0) {
      const i = this.after(time - slack);
      return i < this.count && this.begin[i] <= time + slack ? i : -1;
    }
    /* Adds to `into` the time (ns) of each paint in spans from to to-1. */
    sumSpans(things, from, to, into) {
      const paints = things.paints.length;
      let i = from;
      while (i < to) {
        if (i % BLOCK === 0 && i + BLOCK <= to) {
          const at = (i / BLOCK) * paints;
          for (let p = 0; p < paints; p++) into[p] += this.sums[at + p];
          i += BLOCK;
        } else {
          into[things.shown[this.key[i]]] += this.end[i] - this.begin[i];
          i++;
        }
      }
    }
    /* Adds to `into` the time (ns) of each paint between times a and b; spans at the edges are cut. */
    sumTime(things, a, b, into) {
      const from = this.after(a);
      let to = from, high = this.count;
      while (to < high) { /* find the first span that begins at b or later */
        const middle = (to + high) >>> 1;
        if (this.begin[middle] >= b) high = middle; else to = middle + 1;
      }
      if (to <= from) return [from, from];
      if (to - from === 1) {
        into[things.shown[this.key[from]]] += Math.min(b, this.end[from]) - Math.max(a, this.begin[from]);
        return [from, to];
      }
      into[things.shown[this.key[from]]] += this.end[from] - Math.max(a, this.begin[from]);
      into[things.shown[this.key[to - 1]]] += Math.min(b, this.end[to - 1]) - this.begin[to - 1];
      this.sumSpans(things, from + 1, to - 1, into);
      return [from, to];
    }
  }

  /* A counter: value[i] holds from time begin[i]. */
  class Counter {
    constructor(id, title, unit) { Object.assign(this, {id, title, unit, kind: 'counter', height: 40, count: 0, most: 0, begin: [], value: []}); }
    push(begin, value) { this.begin.push(begin); this.value.push(value); this.count++; if (value > this.most) this.most = value; }
    finish() { this.begin = Float64Array.from(this.begin); this.value = Float64Array.from(this.value); }
    /* Index of the last change at or before `time`; -1: none. */
    at(time) {
      let low = 0, high = this.count;
      while (low < high) {
        const middle = (low + high) >>> 1;
        if (this.begin[middle] <= time) low = middle + 1; else high = middle;
      }
      return low - 1;
    }
  }

  const ORDER = ['step', 'phase', 'predicted', 'op', 'thread'];
  const HEIGHT = {step: 18, rank: 32, phase: 20, predicted: 30, op: 36, thread: 26};
  const ROW_OF = {step: 'step', phase: 'phase', predicted: 'predicted', op: 'op', busy: 'thread', wait: 'thread', gap: 'thread'};
  const TITLE = {step: 'steps', phase: 'phases', predicted: 'predicted', op: 'measured'};

  /* The innermost span at each time, for spans that contain each other: calls emit(from, to, span) in order of time, without empty pieces. */
  const flatten = ({begin, end}, spans, emit) => {
    const open = [];
    let at = -Infinity;
    const upTo = (time, span) => { if (time > at) { emit(at, time, span); at = time; } };
    for (const i of spans) {
      while (open.length && end[open[open.length - 1]] <= begin[i]) { const span = open.pop(); upTo(end[span], span); }
      if (open.length) upTo(begin[i], open[open.length - 1]);
      if (begin[i] > at) at = begin[i];
      open.push(i);
    }
    while (open.length) { const span = open.pop(); upTo(end[span], span); }
  };

  /* Distributes spans that contain or overlap others over several rows: calls emit(begin, end, span, depth). */
  const stack = ({begin, end}, spans, emit) => {
    const ends = [];
    for (const i of spans) {
      let depth = 0;
      while (depth < ends.length && ends[depth] > begin[i] && depth < MOST_DEPTH - 1) depth++;
      ends[depth] = Math.max(end[i], ends[depth] ?? -Infinity);
      emit(begin[i], end[i], i, depth);
    }
  };

  /* Rows of predicted times: at each op's begin, cut where the next op begins (`cut`), and end to end from the begin of each step. `twin` gives the
   * predicted span of each measured span, by event: both kinds are in execution order. Null if they do not match. */
  const predictedRows = (steps, twin, {begin, end}, spans, ops, keyOf) => {
    const n = spans.length;
    if (!n || ops.length !== n || spans.some((p, i) => keyOf(p) !== keyOf(ops[i]))) return null;
    const from = new Float64Array(n), to = new Float64Array(n);
    const row = new Row('predicted', TITLE.predicted, 'predicted', n, HEIGHT.predicted);
    row.cut = new Uint8Array(n);
    let at = -Infinity, step = 0;
    for (let i = 0; i < n; i++) {
      const p = spans[i], op = ops[i], takes = end[p] - begin[p], room = i + 1 < n ? begin[ops[i + 1]] - begin[op] : Infinity;
      twin[op] = twin[p] = p;
      row.cut[i] = takes > room ? 1 : 0;
      row.push(begin[op], begin[op] + Math.min(takes, room), keyOf(p), p);
      for (; step < steps.length && begin[op] >= steps[step].begin; step++) at = steps[step].begin;
      from[i] = at === -Infinity ? begin[op] : at;
      to[i] = at = from[i] + takes;
    }
    const order = Array.from(from.keys()).sort((a, b) => from[a] - from[b] || a - b), counts = [], placed = {begin: from, end: to};
    stack(placed, order, (a, b, i, depth) => { counts[depth] = (counts[depth] || 0) + 1; });
    const inOrder = counts.map((count, depth) => new Row(depth ? `predicted.${depth}` : 'predicted', depth ? '' : TITLE.predicted, 'predicted', count, Math.round((depth ? 0.6 : 1) * HEIGHT.predicted)));
    stack(placed, order, (a, b, i, depth) => inOrder[depth].push(a, b, keyOf(spans[i]), spans[i]));
    return {atOps: [row], inOrder};
  };

  /* The processes of a trace, each with its lanes. Only ranks have a number. */
  const ranksOf = (header) => {
    const ranks =
        rafter.objects(header.ranks).map(({rank, host, first_lane: first, lanes, threads, steps}) => ({
                                           rank,
                                           host: String(host ?? ''),
                                           first,
                                           end: first + lanes,
                                           threads,
                                           steps: rafter.objects(steps)
                                         }));
    return ranks.length ? ranks : [{
      rank: null,
      host: '',
      first: 0,
      end: Infinity,
      threads: header.threads || 1,
      steps: rafter.objects(header.steps)
    }];
  };

  /* The spans of each row and the counters of a rank. */
  const groupsOf = (header, {begin, end, id, lane, kind, value}, ranks, all) => {
    const names = header.kinds.map(String), rowOfKind = names.map((name) => ROW_OF[name]),
          counter = names.indexOf('counter');
    for (const rank of ranks) Object.assign(rank, {groups: new Map(), counters: new Map()});
    const groupOf = (rank, row, at) => {
      const key = row === 'thread' ? `thread ${at - rank.first}` : row;
      if (!rank.groups.has(key))
        rank.groups.set(key, {key, kind: row, lane: at, spans: [], before: -Infinity});
      return rank.groups.get(key);
    };
    const put = (group, i) => {
      if (begin[i] < group.before) throw new Error(`spans of ${group.key} are out of order`);
      group.before = begin[i];
      group.spans.push(i);
    };
    let r = 0;
    for (let i = 0; i < header.count; i++) {
      while (lane[i] >= ranks[r].end && r + 1 < ranks.length) r++; /* lanes are in order of ranks */
      const rank = ranks[r], row = rowOfKind[kind[i]];
      if (kind[i] === counter) {
        if (!rank.counters.has(id[i])) {
          const said = (header.counters || [])[id[i]] || {};
          rank.counters.set(
              id[i],
              new Counter(`counter-${id[i]}`, String(said.name ?? 'counter'), String(said.unit || '')));
        }
        rank.counters.get(id[i]).push(begin[i], value[i]);
      } else if (row) {
        if (row !== 'thread') put(groupOf(rank, row, lane[i]), i);
        if (row === 'thread' || row === 'op')
          put(groupOf(rank, 'thread', lane[i]), i); /* an op occupies its thread from call to return */
        if (begin[i] < all.from) all.from = begin[i];
        if (end[i] > all.to) all.to = end[i];
      }
    }
  };

  /* The rows of a rank: `lane` is the work of its own thread and the causes of its waits; it is shown if
   * there are several ranks. */
  const rowsOfRank = (rank, r, several, columns, twin, keyOf) => {
    const {groups} = rank, id = (key) => (several ? `rank ${rank.rank} ${key}` : key),
          spansOf = (row) => (groups.has(row) ? groups.get(row).spans : []);
    const made = (key, title, of, spans, walk) => {
      const counts = [];
      walk(columns, spans, (a, b, i, depth = 0) => { counts[depth] = (counts[depth] || 0) + 1; });
      const rows = counts.map(
          (count, depth) => new Row(
              depth ? `${key}.${depth}` : key, depth ? '' : title, of, count,
              Math.round((depth ? 0.6 : 1) * HEIGHT[of])));
      walk(columns, spans, (a, b, i, depth = 0) => rows[depth].push(a, b, keyOf(i), i));
      return rows;
    };
    const rowsOf =
        (kind) => [...groups.values()]
                      .filter((group) => group.kind === kind)
                      .sort((a, b) => a.lane - b.lane)
                      .flatMap(
                          ({key, spans}) => made(
                              id(key), TITLE[kind] || key, kind, spans, kind === 'thread' ? flatten : stack));
    const list = Object.fromEntries(ORDER.map((kind) => [kind, kind === 'predicted' ? [] : rowsOf(kind)]));
    rank.predicted = predictedRows(rank.steps, twin, columns, spansOf('predicted'), spansOf('op'), keyOf);
    if (rank.predicted)
      rank.predicted.atOps.concat(rank.predicted.inOrder).forEach((row) => {
        row.id = id(row.id);
      });
    else
      list.predicted = rowsOf('predicted');
    rank.lane = several ?
        made(`rank ${rank.rank}`, `rank ${rank.rank}`, 'rank', spansOf('thread 0'), flatten)[0] ||
            new Row(`rank ${rank.rank}`, `rank ${rank.rank}`, 'rank', 0, HEIGHT.rank) :
        null;
    rank.list = list;
    rank.threadRows = list.thread.filter((row) => row.title);
    rank.main = list.op[0] || list.thread[0] || ORDER.flatMap((kind) => list[kind])[0];
    rank.counters = [...rank.counters.values()];
    rank.counters.forEach((one) => one.finish());
    for (const row
             of [rank.lane, ...Object.values(list).flat(),
                 ...(rank.predicted ? [...rank.predicted.atOps, ...rank.predicted.inOrder] : [])]
                 .filter(Boolean))
      row.rank = r;
  };

  /* Rows from the columns, which are sorted by lane and begin; a span comes before the spans that it
   * contains. */
  const rowsOf = (header, columns, things) => {
    const names = header.kinds.map(String), ranks = ranksOf(header), all = {from: Infinity, to: -Infinity},
          twin = new Int32Array(header.count).fill(-1);
    groupsOf(header, columns, ranks, all);
    const keyOf = (i) => things.of(names[columns.kind[i]], columns.plan[i], columns.id[i]);
    ranks.forEach((rank, r) => rowsOfRank(rank, r, ranks.length > 1, columns, twin, keyOf));
    const {predicted, counters} = ranks[0];
    return {
      ranks,
      rows: [],
      predicted,
      twin,
      counters,
      from: Number.isFinite(all.from) ? all.from : 0,
      to: Number.isFinite(all.to) ? all.to : 1
    };
  };

  /* The plans whose ops a trace recorded: the run's own by digest or name, otherwise the ops in the trace's header. */
  const plansOf = (run, header) => (header.plans || []).map((name, place) => {
    const list = rafter.plans(run).filter(({plan}) => rafter.objects(plan.ops).length), digest = (header.digests || [])[place];
    const found = list.find(({plan}) => digest && plan.digest === digest) || (digest ? null : list.find((one) => one.name === name) || list[place]);
    return found ? found.plan : {ops: rafter.objects((header.ops || [])[place]), tensors: []};
  });

  const decode = async (run) => {
    const {header, columns} = run.trace;
    const buffer = await gunzip(fromBase64(columns));
    const table = decodeColumns(header, new Uint8Array(buffer));
    const things = new Things(header, plansOf(run, header));
    return {header, things, columns: table, ...rowsOf(header, table, things)};
  };

  /* Predicted seconds and limit of a span: its own, for the rows that the step had; otherwise the plan's. */
  rafter.priceOf = (trace, event, op) => {
    const own = trace.twin ? trace.twin[event] : -1, {begin, end, value} = trace.columns;
    return own < 0 ? {seconds: op.seconds, limit: op.limit_seconds, own: false} : {seconds: (end[own] - begin[own]) / 1e9, limit: value[own] / 1e9, own: true};
  };

  const decoded = new WeakMap();
  /* A promise of {header, things, columns, ranks, rows, predicted, twin, counters, from, to}, times in ns;
   * null without a trace. `rows` are those that the viewer shows. */
  rafter.trace = (run) => {
    if (!run || !run.trace || !run.trace.header) return Promise.resolve(null);
    if (!decoded.has(run)) decoded.set(run, decode(run));
    return decoded.get(run);
  };
})();
