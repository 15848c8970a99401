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

  /* The range of the positive values, with a margin on both sides. */
  const around = (values, margin = 1.6) => {
    const some = values.filter((value) => value > 0 && Number.isFinite(value)),
          [low, high] = some.reduce(
              ([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, 0]);
    return some.length ? [low / margin, high * margin] : [1, 10];
  };

  /* Area of a point: time of the op in a step. */
  const SMALL = 3, LARGE = 13;
  const timeOf = (point, which) => (point[which] ? point[which].seconds * point.op.calls : 0);
  /* Predictions of all layers coincide: there, the area is the time of all ops of the kind. */
  const radii = (points, which) => {
    const times = new Map(),
          key = ({op}) => (which === 'predicted' ? rafter.kindOf(op.name) : op.id);
    for (const point of points)
      times.set(key(point), (times.get(key(point)) || 0) + timeOf(point, which));
    const longest = [...times.values()].reduce((most, time) => Math.max(most, time), 0);
    return (point) => Math.max(
               SMALL, LARGE * Math.sqrt(longest > 0 ? times.get(key(point)) / longest : 0));
  };

  /* The kinds of ops (over all layers) that take most time: {text, at: their slowest op}. */
  const SHARE = 0.005, LABEL_WIDTH = 95; /* LABEL_WIDTH: pixels of the chart's width for each label */
  const labelled = (points, which, whole) => {
    const kinds = new Map();
    for (const point of points) {
      const name = rafter.kindOf(point.op.name), time = timeOf(point, which),
            kind = kinds.get(name) || {name, time: 0, at: point};
      kind.time += time;
      if (time > timeOf(kind.at, which)) kind.at = point;
      kinds.set(name, kind);
    }
    return [...kinds.values()]
        .sort((a, b) => b.time - a.time)
        .filter(({time}) => time > SHARE * whole)
        .map(({name, time, at}) => ({
               text: `${name.replace(/^step\/(micro|end)\//, '').replace(/^block\.\*\//, '')} ${
                   rafter.percent(time / whole)}`,
               at
             }));
  };

  /* Draws labels next to their points. A label that would cover a point or another label moves away
   * from its point, with a line to it; a label without any free place is left out. */
  const overlap = (a, b) =>
      a.x < b.x + b.w && b.x < a.x + a.w && a.y < b.y + b.h && b.y < a.y + a.h;
  const placeLabels = (labels, dots, area, wide) => {
    const taken = dots.map(({x, y, r}) => ({x: x - r, y: y - r, w: 2 * r, h: 2 * r})), placed = [];
    for (const label of labels) {
      const {x, y, r} = label.dot, w = wide(label.text), h = 14;
      let best = null;
      for (let away = 4; away <= 130 && !best; away += 9)
        for (const [dx, dy] of [
                 [1, 0], [-1, 0], [0, 1], [0, -1], [1, 1], [1, -1], [-1, 1], [-1, -1]]) {
          const long = (r + away) * (dx && dy ? 0.75 : 1);
          const box = {
            x: x + dx * long -
                (dx < 0 ? w :
                     dx ? 0 :
                          w / 2),
            y: y + dy * long - h / 2 + dy * h / 2,
            w,
            h,
            text: label.text,
            dot: label.dot,
            away
          };
          if (box.x < area.left || box.x + w > area.right || box.y < area.top ||
              box.y + h > area.bottom || taken.some((one) => overlap(one, box)))
            continue;
          best = box;
          break;
        }
      if (best) taken.push(best), placed.push(best);
    }
    return placed;
  };
  const placesOf = (wanted, state) => (chart) => {
    const c = chart.ctx, dots = new Map(), of = new Map();
    chart.data.datasets.forEach((set, i) => {
      if (set.roof || !chart.isDatasetVisible(i)) return;
      chart.getDatasetMeta(i).data.forEach((element, k) => {
        const dot = {x: element.x, y: element.y, r: element.options.radius};
        dots.set(`${Math.round(dot.x)} ${Math.round(dot.y)} ${Math.round(dot.r)}`, dot);
        of.set(set.data[k].point, dot);
      });
    });
    state.dots = [...dots.values()];
    state.labels = placeLabels(
        wanted.filter(({at}) => of.has(at))
            .slice(0, Math.max(3, chart.width / LABEL_WIDTH))
            .map(({text, at}) => ({text, dot: of.get(at)})),
        state.dots, chart.chartArea, (text) => c.measureText(text).width);
  };
  const labels = (find, state) => ({
    id: 'labels',
    afterDatasetsDraw(chart) {
      const c = chart.ctx;
      c.save();
      c.font = `12px ${getComputedStyle(document.body).fontFamily}`;
      c.textBaseline = 'middle';
      const as = JSON.stringify([
        chart.width, chart.height, chart.data.datasets.map((set, i) => chart.isDatasetVisible(i))
      ]);
      if (as !== state.as)
        find(chart), state.as = as; /* places stay the same while the pointer moves */
      for (const {text, x, y, w, h, dot, away} of state.labels) {
        if (away > 12) {
          const tx = Math.max(x, Math.min(x + w, dot.x)),
                ty = Math.max(y + 2, Math.min(y + h - 2, dot.y));
          c.strokeStyle = rafter.colour('muted'), c.lineWidth = 0.8, c.beginPath(),
          c.moveTo(dot.x, dot.y), c.lineTo(tx, ty), c.stroke();
        }
        c.strokeStyle = rafter.colour('paper'), c.lineWidth = 3,
        c.strokeText(text, x, y + h / 2); /* readable over grid and ceilings */
        c.fillStyle = rafter.colour('ink'), c.fillText(text, x, y + h / 2);
      }
      c.restore();
    }
  });

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

  const scatter = (parent, {
    label,
    all,
    which,
    x,
    y,
    xTitle,
    yTitle,
    xText,
    yText,
    lines,
    ceilings,
    ridge,
    whole,
    state
  }) => {
    const chosen = all.filter((point) => point[which] && x(point) > 0 && y(point[which]) > 0);
    if (!chosen.length) return null;
    const across = around([...chosen.map(x), ...(ridge ? [ridge] : [])], 2),
          up = around([...chosen.map((point) => y(point[which])), ...ceilings]),
          radius = radii(chosen, which), wanted = labelled(chosen, which, whole);
    Object.assign(state, {across, up});
    const view = rafter.chart(parent, {
      label,
      height: 460,
      config: () => {
        const classes = [...new Set(chosen.map((point) => point.class))], hollow = which === 'predicted';
        return {
          type: 'scatter',
          plugins: [labels(placesOf(wanted, state), state)],
          data: {
            datasets: [
              ...classes.map(
                  (one) => ({
                    label: one.title,
                    data: chosen.filter((point) => point.class === one)
                              .map((point) => ({x: x(point), y: y(point[which]), point})),
                    backgroundColor: hollow ? 'transparent' : `${rafter.colour(one.colour)}a0`,
                    borderColor: rafter.colour(one.colour),
                    borderWidth: hollow ? 1.4 : 0.6,
                    pointRadius: ({raw}) => (raw ? radius(raw.point) : SMALL),
                    pointHoverRadius: ({raw}) => (raw ? radius(raw.point) + 2 : SMALL)
                  })),
              ...lines(across)
            ]
          },
          options: {
            scales: {
              x: rafter.axis(xTitle, xText, {type: 'logarithmic', min: across[0], max: across[1]}),
              y: rafter.axis(yTitle, yText, {type: 'logarithmic', min: up[0], max: up[1]})
            },
            interaction: {mode: 'nearest', intersect: true},
            plugins: {
              legend: {labels: {usePointStyle: true, boxHeight: 7}},
              tooltip:
                  {callbacks: {label: ({raw}) => (raw.point ? describe(raw.point, which) : '')}}
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

  const describe =
      ({op,
        measured}) => [op.name,
                       `${op.kernel}: ${rafter.flops(op.hardware_flops)}, ${
                           rafter.bytes(op.bytes)}, ${rafter.count(op.intensity)} FLOP per byte`,
                       `predicted ${rafter.seconds(op.seconds)}${
                           op.flops_per_second ? ` (${rafter.rate(op.flops_per_second)})` : ''}`,
                       measured &&
                           `measured ${rafter.seconds(measured.seconds)}${
                               measured.flops ? ` (${rafter.rate(measured.flops)})` :
                                   measured.bytes ? ` (${rafter.bandwidth(measured.bytes)})` :
                                                    ''}`,
                       `the ${op.limit === 'compute' ? 'arithmetic' : 'memory'} ceiling allows ${
                           rafter.seconds(op.limit_seconds)}`]
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
      place.replaceChildren(el(
          'p', {class: 'note'},
          `The area of a point is the time of its ${
              which === 'predicted' ?
                  'kind of ops' :
                  'op'} in a step. A label names a kind of ops over all layers, and its share of the time. Point at an op to see its figures`,
          run.trace ? '; a click shows it in the trace.' : '.'));
      state.which = which;
      const whole = all.reduce((sum, point) => sum + timeOf(point, which), 0);
      const products = scatter(place, {
        label: 'FLOP per second over FLOP per byte, by op',
        all,
        which,
        x: (point) => point.intensity,
        y: (value) => value.flops,
        xTitle: 'intensity (FLOP per byte)',
        yTitle: 'FLOP/s',
        xText: rafter.count,
        yText: rafter.rate,
        ceilings: [ceilings.flops_per_second],
        ridge: ceilings.flops_per_second / ceilings.read_bytes_per_second,
        whole,
        state: state.products = {},
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
        ceilings: [ceilings.read_bytes_per_second],
        whole,
        state: state.bytes = {},
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
              {
                title: 'Class',
                value: (row) => row.kind.title,
                node: (row) => [rafter.swatch(row.kind.colour), row.kind.title]
              },
              {title: 'Ops', number: true, value: (row) => row.count},
              {
                title: 'FLOP/byte',
                number: true,
                value: (row) => row.intensity,
                text: (row) => row.intensity ? rafter.count(row.intensity) : '–'
              },
              {
                title: 'Predicted',
                number: true,
                value: (row) => row.predicted,
                text: (row) => rafter.seconds(row.predicted)
              },
              ...(ran ?
                      [
                        {
                          title: 'Measured',
                          number: true,
                          value: (row) => row.measured ?? -1,
                          text: (row) => rafter.seconds(row.measured)
                        },
                        {
                          title: 'Ceiling / measured',
                          number: true,
                          value: (row) => (row.measured ? row.least / row.measured : -1),
                          text: (row) =>
                              (row.measured ? rafter.percent(row.least / row.measured) : '–')
                        }
                      ] :
                      []),
              {
                title: 'Ceiling',
                value: (row) => (row.limit === 'compute' ? 'arithmetic' : row.limit)
              },
              {title: 'Kernel', value: (row) => row.kernel},
            ],
            rows, {
              caption: 'Seconds per step, summed over all layers and microbatches.',
              sort: ran ? 5 : 4,
              limit: 20
            }));
  };

  const walksOf = (run) => rafter.walks(run).filter(
      ({plan}) =>
          Array.isArray(plan.ops) && plan.ops.length && plan.ops[0].flops_per_second !== undefined);

  rafter.panel({
    id: 'roofline',
    title: 'Roofline',
    order: 40,
    perRun: true,
    about:
        'The speed of each op and the machine\'s ceilings: a point on a line reaches the ceiling of arithmetic or memory.',
    available: (model) => rafter.objects(model.runs).length > 0,
    missing: (model, run) => (
        walksOf(run).length ?
            '' :
            'This plan lists no ops. `rafter plan MODEL --report FILE` writes a page with all ops.'),
    render(element, model, run) {
      const walks = walksOf(run);
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
