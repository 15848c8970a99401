/* core_memory.js - a plan's memory as arrays: offset and lifetime of every tensor, tensors alive at an op, alignment with another plan's ops. */
(() => {
  const read = (name, plan, measured) => {
    const ops = plan.ops, list = plan.tensors.filter((tensor) => tensor.memory !== 'host'), n = ops.length, count = list.length;
    const classes = [...new Set(list.map((tensor) => tensor.class))];
    const p = {
      name,
      plan,
      ops,
      list,
      n,
      classes,
      arena: plan.memory.program ? ops.reduce((most, op) => Math.max(most, op.top_bytes), 0) : plan.memory.peak_bytes,
      persistent: plan.memory.persistent_bytes,
      start: new Int32Array(count),
      end: new Int32Array(count),
      kind: new Uint8Array(count),
      fixed: new Uint8Array(count)
    };
    list.forEach((tensor, t) => {
      p.start[t] = Math.max(0, tensor.first + (tensor.shares === undefined ? 0 : 1)); /* a tensor in another's place counts from its second op on */
      p.end[t] = Math.min(n - 1, tensor.last);
      p.kind[t] = classes.indexOf(tensor.class);
      p.fixed[t] = tensor.offset + tensor.bytes <= p.persistent && tensor.first < 0 ? 1 : 0;
    });
    /* For hit tests: the tensors in each column of ops. */
    p.columns = Math.min(512, Math.max(1, n));
    p.touch = Array.from({length: p.columns}, () => []);
    for (let t = 0; t < count; t++)
      if (!p.fixed[t])
        for (let c = Math.floor(p.start[t] * p.columns / n), last = Math.floor(p.end[t] * p.columns / n); c <= last; c++) p.touch[c].push(t);
    p.fixedByOffset = [...list.keys()].filter((t) => p.fixed[t]).sort((a, b) => list[a].offset - list[b].offset);
    /* If several plans share one arena, `memory` describes only the largest plan. */
    p.peakOp = ops.findIndex((op) => op.name === plan.memory.peak_op && op.live_bytes === plan.memory.live_bytes);
    p.whole = p.peakOp >= 0;
    if (!p.whole) p.peakOp = ops.reduce((best, op, i) => (op.live_bytes > ops[best].live_bytes ? i : best), 0);
    let top = 0;
    for (let i = 1; i < n; i++)
      if (ops[i].top_bytes > ops[top].top_bytes) top = i;
    p.topOp = top;
    const edges = (secondsOf) => {
      const at = new Float64Array(n + 1);
      for (let i = 0; i < n; i++) at[i + 1] = at[i] + secondsOf(ops[i], i);
      return at;
    };
    p.edges = {ops: edges(() => 1), predicted: edges((op) => op.seconds)};
    if (measured) {
      const seconds = new Float64Array(n);
      measured.forEach((row) => {
        if (row.id < n && row.calls > 0) seconds[row.id] = row.seconds;
      });
      p.edges.measured = edges((op, i) => seconds[i]);
    }
    return p;
  };

  /* Index of the op whose edges contain x. */
  const opAt = (edges, x) => {
    let low = 0, high = edges.length - 2;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (edges[middle] <= x)
        low = middle;
      else
        high = middle - 1;
    }
    return low;
  };

  const tensorAt = (p, op, address, shown) => {
    const holds = (t) => shown[p.kind[t]] && address >= p.list[t].offset && address < p.list[t].offset + p.list[t].bytes;
    const near = p.touch[Math.floor(op * p.columns / p.n)];
    for (let i = near.length - 1; i >= 0; i--)
      if (p.start[near[i]] <= op && p.end[near[i]] >= op && holds(near[i])) return near[i];
    const found = p.fixedByOffset.find(holds);
    return found === undefined ? -1 : found;
  };

  /* Tensors by kind over all layers, largest first. */
  const kindsOf = (list) => {
    const kinds = new Map();
    for (const tensor of list) {
      const name = rafter.kindOf(tensor.name);
      if (!kinds.has(name))
        kinds.set(name, {
          name,
          class: tensor.class,
          dtype: tensor.dtype,
          shape: tensor.shape,
          count: 0,
          each_bytes: tensor.bytes,
          bytes: 0,
          reason: tensor.reason
        });
      const kind = kinds.get(name);
      kind.count++, kind.bytes += tensor.bytes;
    }
    return [...kinds.values()].sort((a, b) => b.bytes - a.bytes);
  };
  /* Tensors alive at an op, by kind. At the peak this is the plan's own list. */
  const aliveAt = (p, op) => {
    if (op === p.peakOp && p.whole && p.plan.memory.largest) return p.plan.memory.largest;
    return kindsOf(p.list.filter((tensor, t) => p.start[t] <= op && p.end[t] >= op));
  };

  /* Positions of another plan's ops on this plan's axis, joined by name. Ops that only the other plan has lie between their neighbours and have no
   * width. */
  const align = (p, other) => {
    const at = new Map(p.ops.map((op, i) => [op.name, i]));
    const begin = new Float64Array(other.n), end = new Float64Array(other.n);
    let last = -1;
    for (let j = 0; j < other.n; j++) {
      const i = at.get(other.ops[j].name);
      const same = i !== undefined && i > last;
      if (same) last = i;
      begin[j] = same ? i : last + 1, end[j] = last + 1;
    }
    return {begin, end};
  };

  /* Parts of this plan's tensors that are not alive in the other plan: [tensor, first op, last op]. */
  const goneIn = (p, other, places) => {
    const lives = new Map();
    other.list.forEach(
        (tensor, t) => lives.set(tensor.name, [places.begin[Math.min(other.start[t], other.n - 1)], places.end[Math.max(0, other.end[t])]]));
    const gone = [];
    p.list.forEach((tensor, t) => {
      if (p.fixed[t]) return;
      const life = lives.get(tensor.name);
      if (!life) {
        gone.push([t, p.start[t], p.end[t]]);
        return;
      }
      if (life[0] > p.start[t]) gone.push([t, p.start[t], Math.min(p.end[t], life[0] - 1)]);
      if (life[1] <= p.end[t]) gone.push([t, Math.max(p.start[t], life[1]), p.end[t]]);
    });
    return gone.filter(([, from, to]) => to >= from);
  };

  rafter.arena = {read, opAt, tensorAt, kindsOf, aliveAt, align, goneIn};
})();
