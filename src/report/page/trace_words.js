/* trace_words.js - texts of the trace viewer: details of a span, sums of a range, causes of gaps. */
(() => {
  const {el} = rafter;
  const seconds = (ns) => rafter.seconds(ns / 1e9);

  const tensorOf = (plan, id) => {
    if (!plan.byId) Object.defineProperty(plan, 'byId', {value: new Map(rafter.objects(plan.tensors).map((tensor) => [tensor.id, tensor]))});
    return plan.byId.get(id);
  };
  const shapeText = (tensor) => tensor && `${tensor.name} [${(tensor.shape || []).join(', ')}] ${rafter.dtype(tensor.dtype)}`;

  const WHY = {
    'launch':
        'Time between two ops, and until a thread starts its part of an op. Many small ops cause many such gaps; a larger microbatch causes fewer.',
    'wait':
        'The thread has done its part and waits for the others: the work was not split evenly, or another thread was slowed down.',
    'serial':
        'Only one thread has work: the op is too small for more, or the phase is serial, such as reading data.',
    'page fault': 'The system maps a memory page at its first use. There should be few after the first step.',
    'allocation': 'The heap grew. This should not happen between the first step and the last.',
    'io': 'Data was read from disk, or files were written.',
    'other threads':
        'The thread was ready to run, but its core was in use: by another program, or because there are more threads than cores.',
    'phases outside ops':
        'The main thread reads data, samples or prepares, as the phases lane shows. Meanwhile the other threads have no work (serial).',
    'stopped':
        'No thread worked, was ready to run or waited for a disk: the process was stopped by a signal or a debugger, or the machine slept.',
    'slow rank': 'This rank is ready for an exchange, but another rank has not begun it.',
    'network': 'All ranks have begun the exchange, and their messages are on the way.',
    'unexplained': 'No measurement explains this time.',
  };
  const why = (name) => WHY[name] || '';
  /* The other rank of a wait between ranks. */
  const otherRank = ({ranks, columns}, title, event) => {
    const other = ranks[columns.value[event]];
    if (ranks.length < 2 || !other || (title !== 'slow rank' && title !== 'network')) return '';
    return title === 'network' ? `The last message came from ${rafter.traceParts.nameOf(other)}.` :
                                 `It waits for ${rafter.traceParts.nameOf(other)}.`;
  };

  const what = (viewer, {row, i}) => {
    const {trace} = viewer, {things, columns, header} = trace, event = row.event[i], key = row.key[i], kind = header.kinds[columns.kind[event]];
    const own = kind === 'wait' ? things.of('op', columns.plan[event], columns.id[event]) : key;
    return {event, kind, key, title: kind === 'step' ? `step ${columns.value[event]}` : things.title[key], op: things.op[own], plan: things.plan[own], took: columns.end[event] - columns.begin[event]};
  };

  rafter.traceParts.hint = (viewer, hit, time) => {
    if (hit.row.kind === 'counter') return el('div', {}, `${hit.row.title}: ${rafter.traceParts.amount(hit.row, hit.row.value[hit.i])}`);
    const {title, op, took, kind} = what(viewer, hit);
    const lines = [el('strong', {}, title), ` ${seconds(took)}`];
    const more = [];
    if (kind === 'wait' && op) more.push(`in ${op.name}`);
    else if (op) more.push(`${op.kernel || op.op}`, kind === 'predicted' ? 'predicted' : `predicted ${rafter.seconds(rafter.priceOf(viewer.trace, hit.row.event[hit.i], op).seconds)}`);
    else if (kind === 'gap')
      more.push(otherRank(viewer.trace, title, hit.row.event[hit.i]) || why(title));
    return el('div', {}, el('div', {}, lines), more.length ? el('div', {class: 'muted'}, more.join(' · ')) : null, el('div', {class: 'muted'}, `at ${seconds(time - viewer.zero)}`));
  };

  /* Paint of each op by its ratio of measured to predicted time, over all its recorded calls. */
  const RATIOS = [[0.8, 'r0', 'less than 0.8× predicted'], [1.25, 'r1', '0.8× to 1.25× predicted'], [2, 'r2', '1.25× to 2× predicted'], [4, 'r3', '2× to 4× predicted'], [Infinity, 'r4', 'more than 4× predicted']];
  rafter.traceParts.ratioPaints = (viewer) => {
    const {things} = viewer.trace, row = viewer.main, took = new Float64Array(things.ops), planned = new Float64Array(things.ops);
    const paints = RATIOS.map(([most, colour, title]) => [most, things.paintOf(`ratio-${colour}`, title, colour)]);
    for (let i = 0; i < row.count; i++) if (row.key[i] < things.ops) {
      took[row.key[i]] += row.end[i] - row.begin[i];
      planned[row.key[i]] += 1e9 * rafter.priceOf(viewer.trace, row.event[i], things.op[row.key[i]]).seconds;
    }
    return Uint8Array.from(took, (sum, key) => (planned[key] > 0 ? paints.find(([most]) => sum / planned[key] <= most)[1] : things.paint[key]));
  };

  /* Durations of all calls of one op in the measured lane, sorted. */
  const runsOf = (viewer, key) => {
    const row = viewer.main, took = [];
    for (let i = 0; i < row.count; i++) if (row.key[i] === key) took.push(row.end[i] - row.begin[i]);
    took.sort((a, b) => a - b);
    return took;
  };

  /* A table of the ops that exceed their predictions most, over all recorded calls; a click selects the longest call. */
  const latest = (viewer) => {
    if (!viewer.latest) {
      const {main, trace: {things}} = viewer, rows = new Map();
      for (let i = 0; i < main.count; i++) {
        const key = main.key[i], took = main.end[i] - main.begin[i];
        if (!things.op[key]) continue;
        if (!rows.has(key)) rows.set(key, {key, name: things.title[key], took: 0, predicted: 0, longest: i, runs: 0});
        const row = rows.get(key);
        row.took += took;
        row.predicted += 1e9 * rafter.priceOf(viewer.trace, main.event[i], things.op[key]).seconds;
        row.runs++;
        if (took > main.end[row.longest] - main.begin[row.longest]) row.longest = i;
      }
      viewer.latest = [...rows.values()].sort((a, b) => b.took - b.predicted - a.took + a.predicted).slice(0, 8).filter((row) => row.took > row.predicted);
    }
    if (!viewer.latest.length) return '';
    return rafter.table(
        [
          {title: 'Op', value: (row) => row.name},
          {title: 'Calls', value: (row) => row.runs, number: true},
          {
            title: 'Measured',
            value: (row) => row.took,
            text: (row) => seconds(row.took),
            number: true
          },
          {
            title: 'Predicted',
            value: (row) => row.predicted,
            text: (row) => seconds(row.predicted),
            number: true
          },
          {
            title: 'Excess',
            value: (row) => row.took - row.predicted,
            text: (row) => seconds(row.took - row.predicted),
            number: true
          },
        ],
        viewer.latest, {
          caption:
              'Ops that exceed their predictions most: time in excess, summed over all recorded calls',
          sort: 4,
          onrow: (row) => {
            viewer.select({row: viewer.main, i: row.longest});
            viewer.reveal({row: viewer.main, i: row.longest});
          }
        });
  };

  rafter.traceParts.details = (viewer) => {
    const box = viewer.details;
    if (!viewer.selected) {
      box.replaceChildren(
          el('h3', {class: 'screen'}, 'Op'),
          el('p', {class: 'note screen'}, 'Click a span, or move along its lane with the keys ',
             el('kbd', {}, ','), ' and ', el('kbd', {}, '.'), ', to see its details.'),
          latest(viewer));
      return;
    }
    const {row, i} = viewer.selected, {title, op, plan, took, kind, key} = what(viewer, viewer.selected);
    const parts = [el('h3', {}, title)];
    const facts = [['Lane', row.title || row.id], ['Begins at', seconds(viewer.trace.columns.begin[row.event[i]] - viewer.zero)]];
    if (op && kind !== 'wait') {
      const took1 = kind === 'predicted' ? null : took / 1e9, {seconds: planned, limit, own} = rafter.priceOf(viewer.trace, viewer.selected.row.event[viewer.selected.i], op);
      facts.push(['Layer', op.layer === undefined ? null : String(op.layer)], ['Op', op.op], ['Kernel', op.kernel],
        ['Measured', kind === 'op' ? seconds(took) : null], ['Work of this thread', kind === 'busy' ? seconds(took) : null], ['Predicted', rafter.seconds(planned)],
        ['Measured / predicted', kind === 'op' && planned > 0 ? rafter.times(took1 / planned) : null],
        ['Limit', limit > 0 ? `${rafter.seconds(limit)}${op.limit ? ` (${op.limit})` : ''}` : null], ['Of the limit', kind === 'op' && limit > 0 ? rafter.percent(limit / took1) : null],
        ['Bound by', op.bound], ['FLOPs', rafter.flops(op.flops)], ['Bytes', rafter.bytes(op.bytes)], ['Phase', op.phase]);
      parts.push(rafter.facts(facts));
      if (rafter.hasInstant(plan, op)) parts.push(el('p', {class: 'screen'}, el('button', {type: 'button', 'data-link': 'memory', onclick: () => viewer.toMemory()}, 'Memory at this op (m)'), ` ${rafter.bytes(op.live_bytes)} are live at this op.`));
      if (own && Math.abs(planned - op.seconds) > 1e-3 * op.seconds) parts.push(el('p', {class: 'note'}, `This step had fewer rows or keys than the plan allows. Prediction and limit are for its actual rows; FLOPs and bytes are the plan's, whose prediction is ${rafter.seconds(op.seconds)}.`));
      const runs = kind === 'predicted' ? [] : runsOf(viewer, key);
      if (runs.length > 1) parts.push(el('p', {class: 'note'}, `${rafter.whole(runs.length)} calls in this trace: minimum ${seconds(runs[0])}, median ${seconds(runs[runs.length >> 1])}, maximum ${seconds(runs[runs.length - 1])}.`));
      if (!op.outputs && op.shape) parts.push(el('h4', {}, 'Shape'), el('p', {}, el('code', {}, `[${op.shape.join(', ')}] ${rafter.dtype(op.dtype)}`)));
      const list = (ids, name) => {
        const texts = (ids || []).map((id) => shapeText(tensorOf(plan, id))).filter(Boolean);
        return texts.length ? [el('h4', {}, name), el('ul', {class: 'plain'}, texts.map((text) => el('li', {}, el('code', {}, text))))] : [];
      };
      parts.push(...list(op.outputs, 'Writes'), ...list(op.inputs, 'Reads'));
    } else {
      facts.push(['Duration', seconds(took)], ['In op', kind === 'wait' && op ? op.name : null]);
      parts.push(
          rafter.facts(facts),
          kind === 'gap' || kind === 'wait' ?
              el('p', {}, why(kind === 'wait' ? 'wait' : title), ' ',
                 kind === 'gap' ? otherRank(viewer.trace, title, row.event[i]) : '') :
              '');
    }
    box.replaceChildren(...parts);
  };

  /* ---- sums of a range ----------------------------------------------------------------------------------------------------------- */

  /* The recorded steps and the times between them, each with the use of its threads' time. */
  const piecesOf = (steps) =>
      steps.flatMap((step) => (step.after ? [step, {...step.after, begin: step.end}] : [step]));

  /* Time lost inside ops, by gap, in ns. It is counted per step and not shown in the lanes; a range gets its proportional part of each step. */
  const lostInside = (header, steps, a, b) => {
    const lost = new Map(), names = (header.gaps || []).map(String);
    for (const {begin, end, gaps} of piecesOf(steps)) {
      const cut = Math.min(b, end) - Math.max(a, begin), inside = Array.isArray(gaps) && Array.isArray(gaps[1]) ? gaps[1] : [];
      if (cut > 0)
        names.forEach((name, i) => {
          if (inside[i] > 0) lost.set(name, (lost.get(name) || 0) + 1e9 * inside[i] * cut / (end - begin));
        });
    }
    return lost;
  };

  /* Time of the main thread in phases outside ops, in ns. Nested time counts for the inner phase; writing files counts as a gap. */
  const OF_OPS = new Set(['forward', 'recompute', 'backward', 'accumulate', 'optimizer']), WRITES = new Set(['write', 'checkpoint']);
  const besideOps = (trace, rank, a, b) => {
    const {header, columns: {begin, end, id, kind, lane}} = trace, open = [], sums = new Map();
    if (!rank.phaseSpans) {
      const phase = header.kinds.indexOf('phase');
      rank.phaseSpans = [];
      for (let i = 0; i < header.count; i++)
        if (kind[i] === phase && lane[i] >= rank.first && lane[i] < rank.end) rank.phaseSpans.push(i);
    }
    for (const i of rank.phaseSpans) {
      if (end[i] <= a || begin[i] >= b) continue;
      while (open.length && end[open[open.length - 1]] <= begin[i]) open.pop();
      const cut = Math.min(b, end[i]) - Math.max(a, begin[i]), add = (of, by) => { const name = header.phases[id[of]]; sums.set(name, (sums.get(name) || 0) + by); };
      add(i, cut);
      if (open.length) add(open[open.length - 1], -cut);
      open.push(i);
    }
    return [...sums].reduce((sum, [name, ns]) => sum + (OF_OPS.has(name) || WRITES.has(name) ? 0 : ns), 0);
  };

  /* The part of a range, in ns, that is outside all recorded steps. */
  const besideSteps = ({steps}, a, b) => {
    const inside =
        steps.reduce((sum, step) => sum + Math.max(0, Math.min(b, step.end) - Math.max(a, step.begin)), 0);
    return steps.length ? Math.max(0, b - a - inside) : 0;
  };

  rafter.traceParts.sums = (viewer) => {
    if (!viewer.element.isConnected) return;
    const {trace, main} = viewer, {things} = trace, rank = trace.ranks[viewer.rank],
                  [a, b] = viewer.selection || [viewer.from, viewer.to];
    const kinds = things.paints.map((paint) => ({paint, measured: 0, predicted: 0, count: 0}));
    for (let i = main.after(a); i < main.count && main.begin[i] < b; i++) {
      const key = main.key[i], whole = main.end[i] - main.begin[i], cut = Math.min(b, main.end[i]) - Math.max(a, main.begin[i]), row = kinds[things.paint[key]];
      row.measured += cut;
      row.count++;
      if (things.op[key]) row.predicted += 1e9 * rafter.priceOf(trace, main.event[i], things.op[key]).seconds * (whole > 0 ? cut / whole : 1);
    }
    const shown = kinds.filter((row) => row.count), all = shown.reduce((sum, row) => sum + row.measured, 0);
    const gaps = new Map();
    const lanes = rank.threadRows.map((row) => {
      let work = 0, gap = 0;
      for (let i = row.after(a); i < row.count && row.begin[i] < b; i++) {
        const cut = Math.min(b, row.end[i]) - Math.max(a, row.begin[i]);
        if (rafter.traceParts.isGap(things, things.paint[row.key[i]])) {
          const name = row.key[i] === things.wait ? 'wait' : things.title[row.key[i]];
          gap += cut;
          gaps.set(name, (gaps.get(name) || 0) + cut);
        } else
          work += cut;
      }
      return {row, work, gap};
    });
    const time = lanes.length * (b - a), lost = lostInside(trace.header, rank.steps, a, b);
    let worked = lanes.reduce((sum, lane) => sum + lane.work, 0);
    const shares = lanes.map((lane) => (worked > 0 ? lane.work / worked : 0)), least = worked;
    for (const [name, sum] of lost) {
      const here = Math.min(sum, worked);
      worked -= here;
      gaps.set(name, (gaps.get(name) || 0) + here);
    }
    lanes.forEach((lane, i) => { const here = shares[i] * (least - worked); lane.work -= here; lane.gap += here; });
    const rest = [...gaps].sort((x, y) => y[1] - x[1]).filter(([, sum]) => sum > 0.01 * time).map(([name, sum]) => `${name} ${rafter.percent(sum / time)}`);
    const phases = besideOps(trace, rank, a, b);
    if (phases > 0.01 * time) rest.push(`phases outside ops ${rafter.percent(phases / time)}`);
    const [first, last] = viewer.wholes[viewer.wholes.length - 1],
                  beside = besideSteps(rank, Math.max(a, first), Math.min(b, last));
    const apart = beside > 0.01 * (b - a) ? ` ${rafter.percent(beside / (b - a))} of this time is between steps.` : '';
    viewer.summed = true;
    viewer.state.sums = {range: b - a, classes: Object.fromEntries(shown.map((row) => [row.paint.id, row.measured])), lanes: Object.fromEntries(lanes.map((lane) => [lane.row.id, lane.work])), gaps: Object.fromEntries(gaps), worked, phases, beside};
    viewer.sums
        .replaceChildren(
            ...[el('h3', {},
                   `${viewer.selection ? 'Selected' : 'In view'}: ${seconds(b - a)}${
                       trace.ranks.length > 1 ? ` of ${rafter.traceParts.nameOf(rank)}` : ''}`),
                rafter.table(
                    [
                      {
                        title: 'Class',
                        value: (row) => row.paint.title,
                        node: (row) => el(
                            'span', {},
                            el('span', {class: 'swatch', style: {background: `var(--${row.paint.colour})`}}),
                            row.paint.title)
                      },
                      {
                        title: 'Calls',
                        value: (row) => row.count,
                        text: (row) => rafter.whole(row.count),
                        number: true
                      },
                      {
                        title: 'Measured',
                        value: (row) => row.measured,
                        text: (row) => seconds(row.measured),
                        number: true
                      },
                      {
                        title: 'Predicted',
                        value: (row) => row.predicted,
                        text: (row) => seconds(row.predicted),
                        number: true
                      },
                      {
                        title: 'Share',
                        value: (row) => row.measured,
                        text: (row) => rafter.percent(row.measured / all),
                        number: true
                      },
                    ],
                    shown, {sort: 2}),
                lanes.length ? el('p', {class: 'note'},
                                  `Threads worked ${rafter.percent(worked / time)} of this time${
                                      rest.length ? `; ${rest.join(', ')}` : ''}.${apart}`) :
                                                    null,
                lanes.length ? rafter.table(
                                                        [
                                     {title: 'Lane', value: (lane) => lane.row.title},
                                     {
                                                            title: 'Worked',
                                                            value: (lane) => lane.work,
                                                            text: (lane) => seconds(lane.work),
                                                            number: true
                                     },
                                     {
                                                            title: 'Share of the range',
                                                            value: (lane) => lane.work,
                                                            text: (lane) => rafter.percent(lane.work / (b - a)),
                                                            number: true
                                     },
                                     {
                                                            title: 'Waits and gaps',
                                                            value: (lane) => lane.gap,
                                                            text: (lane) => seconds(lane.gap),
                                                            number: true
                                     },
                                                        ],
                                                        lanes, {limit: 16}) :
                                                    null]
                .filter(Boolean));
  };

  /* ---- causes of gaps ------------------------------------------------------------------------------------------------------------ */

  rafter.traceParts.gaps = (viewer) => {
    const {trace} = viewer, {header} = trace, rank = trace.ranks[viewer.rank], element = viewer.causes,
          names = (header.gaps || []).map(String),
          steps = rank.steps.filter((step) => Array.isArray(step.gaps));
    element.replaceChildren();
    if (header.dropped > 0)
      element.append(el(
          'p', {class: 'note'},
          `${
              rafter.whole(
                  header
                      .dropped)} older spans did not fit into the trace's memory and are missing: trace fewer steps to keep all spans.`));
    if (!names.length || !steps.length) return;
    const pieces = piecesOf(steps), sum = (list, of) => list.reduce((all, one) => all + of(one), 0),
          length = ({begin, end}) => (end - begin) / 1e9;
    const total = (list, i) => sum(list, ({gaps}) => sum(gaps, (group) => (Array.isArray(group) ? group[i] || 0 : 0)));
    const threads = rank.threads || 1, span = sum(pieces, length) * threads,
          work = sum(pieces, (one) => one.work || 0), phases = sum(pieces, (one) => one.phases || 0);
    const rows = names.map((name, i) => ({name, seconds: total(pieces, i)}));
    if (phases > 0) rows.push({name: 'phases outside ops', seconds: phases});
    const behind = sum(pieces, length) - sum(steps, length), by = new Map();
    for (const {after} of steps)
      for (const [name, seconds] of Object.entries((after && after.by_phase) || {}))
        by.set(name, (by.get(name) || 0) + seconds);
    const into = [...by].sort((x, y) => y[1] - x[1]).filter(([, seconds]) => seconds > 0.01 * behind).map(([name, seconds]) => `${name} ${rafter.seconds(seconds)}`).join(', ');
    const between = behind > 0.001 * sum(pieces, length) ? ` ${rafter.percent(behind / sum(pieces, length))} of the time is between steps${into ? `: ${into}` : ''}.` : '';
    viewer.state.causes = {span, work, phases, gaps: Object.fromEntries(rows.map((row) => [row.name, row.seconds])), behind};
    element.append(
        el('h3', {},
           `Why the threads${
               trace.ranks.length > 1 ? ` of ${rafter.traceParts.nameOf(rank)}` : ''} did not work`),
        el('p', {class: 'note'},
           `${threads} thread${threads > 1 ? 's' : ''} spent ${rafter.seconds(work)} of ${
               rafter.seconds(span)} in ops, in ${steps.length} steps.${
               between} The system often reports how long a thread had no core, but not when. This time is in these sums and in those of a selection; in the lanes it looks like work.`),
        rafter.table(
            [
              {title: 'Gap', value: (row) => row.name},
              {
                title: 'Thread time',
                value: (row) => row.seconds,
                text: (row) => rafter.seconds(row.seconds),
                number: true
              },
              {
                title: `Share of the steps`,
                value: (row) => row.seconds,
                text: (row) => rafter.percent(row.seconds / span),
                number: true
              },
              {title: 'Meaning', wide: true, value: (row) => why(row.name)},
            ],
            rows, {sort: 1}));
  };
})();
