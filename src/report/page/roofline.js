/* roofline.js - ops under the machine's ceilings: FLOP/s over intensity, and bytes per second of ops without matrix products. */
(() => {
  const {el} = rafter;

  /* The ops of a plan as points, with predicted and, if available, measured rates. */
  const points = (walk) => {
    const measured = new Map(rafter.objects(walk.measured && walk.measured.ops).map((row) => [row.id, row]));
    return walk.plan.ops.map((op) => {
      const row = measured.get(op.id);
      return {
        op,
        class: rafter.opClass(op.op),
        intensity: op.intensity,
        bytes: op.bytes,
        predicted: {flops: op.flops_per_second, bytes: op.bytes_per_second, seconds: op.seconds},
        measured: row && row.calls > 0 && row.seconds > 0 ?
            {flops: row.flops_per_second, bytes: row.bytes_per_second, seconds: row.seconds, limit: row.limit_seconds, calls: row.calls} :
            null
      };
    });
  };

  /* The range of the positive values, rounded outwards to powers of ten. */
  const decades = (values) => {
    let low = Infinity, high = 0;
    for (const value of values)
      if (value > 0) {
        low = Math.min(low, value);
        high = Math.max(high, value);
      }
    return high ? [10 ** Math.floor(Math.log10(low)), 10 ** Math.ceil(Math.log10(high * 1.05))] : [1, 10];
  };

  const roofs = (ceilings, [low, high]) => {
    const list = [], colour = rafter.colour('ink'), flops = ceilings.flops_per_second;
    const add = (label, data, dash) => list.push({
      label,
      data,
      showLine: true,
      pointRadius: 0,
      pointStyle: 'line',
      pointHitRadius: 0,
      borderColor: colour,
      borderWidth: 1.6,
      borderDash: dash,
      order: 9,
      roof: true
    });
    const slope = (label, bandwidth, dash) => {
      const ridge = flops ? flops / bandwidth : high;
      if (ridge > low) add(label, [{x: low, y: low * bandwidth}, {x: Math.min(ridge, high), y: Math.min(ridge, high) * bandwidth}], dash);
    };
    if (flops) add(`arithmetic ${rafter.rate(flops)}`, [{x: low, y: flops}, {x: high, y: flops}]);
    if (ceilings.read_bytes_per_second) slope(`reading ${rafter.bandwidth(ceilings.read_bytes_per_second)}`, ceilings.read_bytes_per_second);
    return list;
  };

  const scatter = (parent, {label, all, which, x, y, xTitle, yTitle, xText, yText, lines, ridge}) => {
    const chosen = all.filter((point) => point[which] && x(point) > 0 && y(point[which]) > 0);
    if (!chosen.length) return null;
    const across = decades([...chosen.map(x), ...(ridge ? [ridge / 4, ridge * 4] : [])]), up = decades(chosen.map((point) => y(point[which])));
    const view = rafter.chart(parent, {
      label,
      height: 420,
      config: () => {
        const classes = [...new Set(chosen.map((point) => point.class))], hollow = which === 'predicted';
        return {
          type: 'scatter',
          data: {
            datasets: [
              ...classes.map((one) => ({
                               label: one.title,
                               data: chosen.filter((point) => point.class === one).map((point) => ({x: x(point), y: y(point[which]), point})),
                               backgroundColor: hollow ? 'transparent' : `${rafter.colour(one.colour)}b0`,
                               borderColor: rafter.colour(one.colour),
                               borderWidth: hollow ? 1.4 : 0.6,
                               pointRadius: 4,
                               pointHoverRadius: 6
                             })),
              ...lines(across)
            ]
          },
          options: {
            scales: {
              x: rafter.axis(xTitle, xText, {type: 'logarithmic', min: across[0], max: across[1]}),
              y: rafter.axis(
                  yTitle, yText,
                  {type: 'logarithmic', min: up[0], max: Math.max(up[1], ...lines(across).flatMap((line) => line.data.map((at) => at.y * 1.3)))})
            },
            interaction: {mode: 'nearest', intersect: true},
            plugins: {
              legend: {labels: {usePointStyle: true, boxHeight: 7}},
              tooltip: {callbacks: {label: ({raw}) => (raw.point ? describe(raw.point, which) : '')}}
            },
            onClick: (event, found) => {
              const hit = found[0] && view.chart.data.datasets[found[0].datasetIndex].data[found[0].index].point;
              if (hit) rafter.showOp(hit.op.name);
            },
          }
        };
      }
    });
    return {shown: chosen.length};
  };

  const describe = ({
    op,
    measured
  }) => [op.name, `${op.kernel}: ${rafter.flops(op.hardware_flops)}, ${rafter.bytes(op.bytes)}, ${op.intensity.toPrecision(3)} FLOP per byte`,
         `predicted ${rafter.seconds(op.seconds)}${op.flops_per_second ? ` (${rafter.rate(op.flops_per_second)})` : ''}`,
         measured &&
             `measured ${rafter.seconds(measured.seconds)}${
                 measured.flops ? ` (${rafter.rate(measured.flops)})` :
                     measured.bytes ? ` (${rafter.bandwidth(measured.bytes)})` :
                                      ''}`,
         `the ${op.limit === 'compute' ? 'arithmetic' : 'memory'} ceiling allows ${rafter.seconds(op.limit_seconds)}`]
            .filter(Boolean);

  /* One row per kind over all layers, with its time per step. */
  const kinds = (all) => {
    const rows = new Map();
    for (const {op, measured, class: kind} of all) {
      const name = rafter.kindOf(op.name);
      if (!rows.has(name))
        rows.set(name, {name, kind, intensity: op.intensity, limit: op.limit, count: 0, predicted: 0, measured: null, least: 0, kernel: op.kernel});
      const row = rows.get(name);
      row.count++;
      row.predicted += op.seconds * op.calls;
      if (measured) {
        row.measured = (row.measured || 0) + measured.seconds * op.calls;
        row.least += measured.limit * op.calls;
      }
    }
    return [...rows.values()];
  };

  const show = (body, walk, run) => {
    const all = points(walk), ceilings = walk.plan.machine.ceilings || {}, ran = all.some((point) => point.measured);
    const state = rafter.state.roofline = {walk: walk.name, which: null, points: 0, streams: 0};
    const place = el('div');
    const fill = (which) => {
      place.replaceChildren(el('p', {class: 'note'}, 'Point at an op to see its figures', run.trace ? '; a click shows it in the trace.' : '.'));
      state.which = which;
      const products = scatter(place, {
        label: 'FLOP per second over FLOP per byte, by op',
        all,
        which,
        x: (point) => point.intensity,
        y: (value) => value.flops,
        xTitle: 'intensity (FLOP per byte)',
        yTitle: 'FLOP/s',
        xText: (value) => String(Number(value.toPrecision(3))),
        yText: rafter.rate,
        ridge: ceilings.flops_per_second / ceilings.read_bytes_per_second,
        lines: (across) => roofs(ceilings, across)
      });
      state.points = products ? products.shown : 0;
      if (!products) place.append(rafter.empty('No op of this plan has matrix products.'));
      const head = el('h3', {}, 'Ops without matrix products: bytes per second');
      const note = el('p', {class: 'note'}, 'The line is the memory bandwidth. Ops above it found their data in caches.');
      place.append(head, note);
      const lines = (across) =>
          (ceilings.read_bytes_per_second ? [{
            label: `reading ${rafter.bandwidth(ceilings.read_bytes_per_second)}`,
            data: across.map((x) => ({x, y: ceilings.read_bytes_per_second})),
            showLine: true,
            pointRadius: 0,
            pointStyle: 'line',
            pointHitRadius: 0,
            borderColor: rafter.colour('ink'),
            borderWidth: 1.6,
            order: 9,
            roof: true
          }] :
                                            []);
      const streams = scatter(place, {
        label: 'Bytes per second over bytes, ops without matrix products',
        all: all.filter((point) => !point.intensity),
        which,
        x: (point) => point.bytes,
        y: (value) => value.bytes,
        xTitle: 'bytes read and written',
        yTitle: 'bytes/s',
        xText: rafter.bytes,
        yText: rafter.bandwidth,
        lines
      });
      state.streams = streams ? streams.shown : 0;
      if (!streams) {
        head.remove();
        note.remove();
      }
    };
    body.replaceChildren(
        el('div', {class: 'bar'},
           ran ? rafter.choice('Speed', [['measured', 'Measured'], ['predicted', 'Predicted']], 'measured', fill) :
                 el('span', {class: 'note'}, 'These speeds are predictions. A run (train, generate, score) measures every op.')),
        place);
    fill(ran ? 'measured' : 'predicted');
    const rows = kinds(all);
    body.append(
        el('h3', {}, 'By kind, slowest first'),
        rafter.table(
            [
              {title: 'Op', value: (row) => row.name},
              {title: 'Class', value: (row) => row.kind.title, node: (row) => [rafter.swatch(row.kind.colour), row.kind.title]},
              {title: 'Ops', number: true, value: (row) => row.count},
              {title: 'FLOP/byte', number: true, value: (row) => row.intensity, text: (row) => row.intensity ? row.intensity.toPrecision(3) : '–'},
              {title: 'Predicted', number: true, value: (row) => row.predicted, text: (row) => rafter.seconds(row.predicted)},
              ...(ran ?
                      [
                        {title: 'Measured', number: true, value: (row) => row.measured ?? -1, text: (row) => rafter.seconds(row.measured)}, {
                          title: 'Ceiling / measured',
                          number: true,
                          value: (row) => (row.measured ? row.least / row.measured : -1),
                          text: (row) => (row.measured ? rafter.percent(row.least / row.measured) : '–')
                        }
                      ] :
                      []),
              {title: 'Ceiling', value: (row) => (row.limit === 'compute' ? 'arithmetic' : row.limit)},
              {title: 'Kernel', value: (row) => row.kernel},
            ],
            rows, {caption: 'Seconds per step, summed over all layers and microbatches.', sort: ran ? 5 : 4, limit: 20}));
  };

  rafter.panel({
    id: 'roofline',
    title: 'Roofline',
    order: 40,
    perRun: true,
    about: 'The speed of each op and the machine\'s ceilings: a point on a line reaches the ceiling of arithmetic or memory.',
    available: (model) => rafter.objects(model.runs).length > 0,
    render(element, model, run) {
      const walks =
          rafter.walks(run).filter((walk) => Array.isArray(walk.plan.ops) && walk.plan.ops.length && walk.plan.ops[0].flops_per_second !== undefined);
      if (!walks.length) {
        element.append(
            rafter.empty('This plan lists no ops. Report a run, or the output of ', rafter.code('rafter plan MODEL ... --json --ops'), '.'));
        return;
      }
      const body = el('div');
      if (walks.length > 1)
        element.append(el(
            'div', {class: 'bar'}, rafter.select('Step', walks.map((walk) => walk.name), (i) => show(body, walks[i], run), {id: 'roofline-walk'})));
      element.append(body);
      show(body, walks[0], run);
    },
  });
})();
