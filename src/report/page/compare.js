/* compare.js - two runs, a plan and its run, or two plans: time and bytes op by op and kind by kind, memory, options; largest differences first. */
(() => {
  const {el} = rafter;

  /* Everything that can stand on a side: a plan as predicted, and as it ran. */
  const sides = (model) => rafter.objects(model.runs).flatMap((run, r) => {
    const walks = rafter.walks(run).filter(({plan}) => plan.time && plan.memory);
    return walks.flatMap(({name, plan, measured}, w) => {
      const title = walks.length > 1 ? `${rafter.runName(run)}, ${name}` : rafter.runName(run), side = {run, r, w, plan, walk: name};
      const planned = {...side, title: `${title}: as planned`, measured: null, seconds: plan.time.seconds};
      const ran = measured && {
        ...side,
        title: `${title}: as it ran`,
        measured: new Map(rafter.objects(measured.ops).map((row) => [row.id, row])),
        seconds: measured.count > 0 && measured.seconds > 0 ? measured.seconds / measured.count : null
      };
      return ran ? [ran, planned] : [planned];
    });
  });

  const plannedOf = (list, side) => list.find((one) => one.r === side.r && one.w === side.w && !one.measured) || side;

  /* What is most likely asked: two runs as they ran, else a run's plan beside another plan, else a run beside its plan, else two plans. */
  const first = (list) => {
    const ran = list.filter((side) => side.measured && side.w === 0), other = ran.find((side) => side.r !== ran[0].r);
    if (other) return [list.indexOf(ran[0]), list.indexOf(other)];
    const plan = ran.length ? list.findIndex((side) => side.r !== ran[0].r && side.w === 0 && !side.measured) : -1;
    if (plan >= 0) return [list.indexOf(plannedOf(list, ran[0])), plan];
    if (ran.length) return [list.findIndex((side) => side.r === ran[0].r && side.w === 0 && !side.measured), list.indexOf(ran[0])];
    return [0, Math.min(1, list.length - 1)];
  };

  /* Seconds and bytes of a step's ops by name, or by kind over all layers. */
  const sums = (side, whole) => {
    const rows = new Map();
    rafter.objects(side.plan.ops).forEach((op) => {
      const row = side.measured && side.measured.get(op.id), name = whole ? rafter.kindOf(op.name) : op.name;
      if (!rows.has(name)) rows.set(name, {name, class: rafter.opClass(op.op), ops: 0, seconds: 0, bytes: 0, kernel: op.kernel});
      const one = rows.get(name);
      one.ops++;
      one.seconds += (side.measured ? (row && row.calls > 0 ? row.seconds : 0) : op.seconds) * op.calls;
      one.bytes += op.bytes * op.calls;
    });
    return rows;
  };

  const join = (a, b) => [...new Set([...a.keys(), ...b.keys()])].map((name) => {
    const x = a.get(name), y = b.get(name);
    return {
      name,
      class: (x || y).class,
      a: x,
      b: y,
      seconds: (y ? y.seconds : 0) - (x ? x.seconds : 0),
      bytes: (y ? y.bytes : 0) - (x ? x.bytes : 0),
      kernel: x && y && x.kernel !== y.kernel ? `${x.kernel} → ${y.kernel}` : ''
    };
  });

  const part = (a, b) => (a > 0 && Number.isFinite(b) ? `${b > a ? '+' : b < a ? '−' : ''}${rafter.percent(Math.abs(b - a) / a)}` : '');
  const total = (title, text, a, b) => ({title, text, a, b});

  const show = (place, list, state, {by, at}) => {
    let [a, b] = at.map((i) => list[i]);
    /* What was measured stands beside another plan as it was predicted: the error of a prediction is no saving. */
    const mixed = a.plan !== b.plan && Boolean(a.measured) !== Boolean(b.measured);
    if (mixed) [a, b] = [a, b].map((side) => plannedOf(list, side));
    const whole = by === 'kind';
    const rows = join(sums(a, whole), sums(b, whole)).filter((row) => row.seconds !== 0 || row.bytes !== 0 || !row.a || !row.b);
    rows.sort((x, y) => Math.abs(y.seconds) - Math.abs(x.seconds));
    const sameOps = a.plan === b.plan;
    Object.assign(state, {
      a: a.title,
      b: b.title,
      by,
      rows: rows.map((row) => [row.name, row.seconds, row.bytes]),
      peak_change: b.plan.memory.peak_bytes - a.plan.memory.peak_bytes,
      seconds: [a.seconds, b.seconds]
    });
    const totals = [
      total('Time of a step', rafter.seconds, a.seconds, b.seconds),
      total('Peak memory', rafter.bytes, a.plan.memory.peak_bytes, b.plan.memory.peak_bytes),
      total('FLOPs, recomputation included', rafter.flops, a.plan.work && a.plan.work.hardware_flops, b.plan.work && b.plan.work.hardware_flops),
      total('Bytes moved', rafter.bytes, a.plan.work && a.plan.work.bytes, b.plan.work && b.plan.work.bytes)
    ].filter((row) => Number.isFinite(row.a) || Number.isFinite(row.b));
    const figure = (text, value) => (Number.isFinite(value) ? text(value) : '–');
    place.replaceChildren(rafter.table(
        [
          {title: 'Figure', value: (row) => row.title},
          {title: 'A', number: true, value: (row) => row.a, text: (row) => figure(row.text, row.a)},
          {title: 'B', number: true, value: (row) => row.b, text: (row) => figure(row.text, row.b)},
          {title: 'B less A', number: true, value: (row) => row.b - row.a, text: (row) => rafter.signed(row.text, row.b - row.a)},
          {title: 'Change', number: true, value: (row) => row.b / row.a, text: (row) => part(row.a, row.b)},
        ],
        totals, {caption: `A is ${a.title}; B is ${b.title}.${mixed ? ' Only one of the two was measured, so both stand as predicted.' : ''}`}));

    const differ = options(a, b);
    state.options = differ.map((row) => row.name);
    if (differ.length)
      place.append(
          el('h3', {}, 'Options that differ'),
          rafter.table(
              [{title: 'Option', value: (row) => row.name}, {title: 'A', value: (row) => row.a}, {title: 'B', value: (row) => row.b}], differ));

    place.append(el('h3', {}, whole ? 'Ops by kind over all layers' : 'Ops'));
    if (!a.plan.ops || !b.plan.ops)
      place.append(rafter.empty('A plan without ops has totals only: ', rafter.code('rafter plan MODEL ... --json --tensors --ops'), ' names them.'));
    else if (!rows.length)
      place.append(el('p', {class: 'note'}, 'Every op takes the same.'));
    else
      place.append(
          rafter.table(
              [
                {title: 'Op', value: (row) => row.name},
                {title: 'Class', value: (row) => row.class.title, node: (row) => [rafter.swatch(row.class.colour), row.class.title]},
                {
                  title: 'Time, A',
                  number: true,
                  value: (row) => (row.a ? row.a.seconds : -1),
                  text: (row) => (row.a ? rafter.seconds(row.a.seconds) : '–')
                },
                {
                  title: 'B',
                  number: true,
                  value: (row) => (row.b ? row.b.seconds : -1),
                  text: (row) => (row.b ? rafter.seconds(row.b.seconds) : '–')
                },
                {title: 'B less A', number: true, value: (row) => row.seconds, text: (row) => rafter.signed(rafter.seconds, row.seconds)},
                ...(sameOps ?
                        [{
                          title: 'B / A',
                          number: true,
                          value: (row) => (row.a && row.a.seconds ? row.b.seconds / row.a.seconds : -1),
                          text: (row) => rafter.times(row.b.seconds / row.a.seconds)
                        }] :
                        [
                          {
                            title: 'Bytes, A',
                            number: true,
                            value: (row) => (row.a ? row.a.bytes : -1),
                            text: (row) => (row.a ? rafter.bytes(row.a.bytes) : '–')
                          },
                          {
                            title: 'B',
                            number: true,
                            value: (row) => (row.b ? row.b.bytes : -1),
                            text: (row) => (row.b ? rafter.bytes(row.b.bytes) : '–')
                          },
                          {title: 'B less A', number: true, value: (row) => row.bytes, text: (row) => rafter.signed(rafter.bytes, row.bytes)},
                          ...(rows.some((row) => row.kernel) ? [{title: 'Kernel', value: (row) => row.kernel}] : [])
                        ]),
              ],
              rows, {
                caption: 'Of one step or walk, all microbatches; an op that only one has stands with a dash. Largest differences of time first.',
                limit: 20
              }));

    if (!sameOps) memory(place, a.plan, b.plan, state);
  };

  const memory = (place, a, b, state) => {
    const classes = Object.keys({...a.memory.by_class, ...b.memory.by_class})
                        .map((name) => ({name, a: (a.memory.by_class || {})[name] || 0, b: (b.memory.by_class || {})[name] || 0}))
                        .filter((row) => row.a || row.b);
    const kinds = rafter.changes(a.memory.largest || [], b.memory.largest || []);
    state.kinds = kinds.map((row) => [row.name, row.change]);
    const columns = (name) =>
        [{title: name, value: (row) => row.name}, {title: 'A', number: true, value: (row) => row.a, text: (row) => rafter.bytes(row.a)},
         {title: 'B', number: true, value: (row) => row.b, text: (row) => rafter.bytes(row.b)},
         {title: 'B less A', number: true, value: (row) => row.b - row.a, text: (row) => rafter.signed(rafter.bytes, row.b - row.a)}];
    classes.sort((x, y) => Math.abs(y.b - y.a) - Math.abs(x.b - x.a));
    place.append(
        el('h3', {}, 'Memory at each one\'s peak'),
        el('div', {class: 'columns'}, rafter.table(columns('Class'), classes, {caption: 'By class; they sum to the arena.'}),
           kinds.length > 0 && rafter.table(columns('Tensors of a kind'), kinds, {caption: 'By kind over all layers.', limit: 15})));
  };

  const options = (a, b) => {
    const of = (side) => ({
      ...side.plan.settings,
      model: side.plan.model && side.plan.model.name,
      machine: side.plan.machine && side.plan.machine.name,
      ...(side.run.run && side.run.run.options)
    });
    const x = of(a), y = of(b), both = Boolean(a.run.run && b.run.run),
          text = (value) =>
              (value === undefined           ? '–' :
                   typeof value === 'object' ? JSON.stringify(value) :
                                               String(value));
    return Object.keys({...x, ...y})
        .filter((name) => text(x[name]) !== text(y[name]) && (both || (x[name] !== undefined && y[name] !== undefined)))
        .map((name) => ({name, a: text(x[name]), b: text(y[name])}));
  };

  rafter.panel({
    id: 'compare',
    title: 'Compare',
    order: 70,
    about: 'Two runs, a run and its plan, or two plans, op by op.',
    available: (model) => rafter.objects(model.runs).length > 0,
    render(element, model) {
      const list = sides(model), state = rafter.state.compare = {sides: list.map((side) => side.title)};
      if (list.length < 2) {
        element.append(rafter.empty(
            'There is one plan and nothing beside it: ', rafter.code('rafter report RUN RUN'), ' compares two runs, ',
            rafter.code('rafter report RUN --against remat=mlp'), ' a run with what another setting would give.'));
        return;
      }
      const asked = {by: 'kind', at: first(list)}, place = el('div'), again = () => show(place, list, state, asked),
            names = list.map((side) => side.title);
      const pick = (k) => rafter.select('AB'[k], names, (i) => {
        asked.at[k] = i;
        again();
      }, {id: `compare-${'ab'[k]}`, current: asked.at[k]});
      element.append(
          el('div', {class: 'bar'}, pick(0), pick(1),
             el('button', {
               type: 'button',
               onclick: () => {
                 asked.at.reverse();
                 ['a', 'b'].forEach((name, k) => {
                   element.querySelector(`#compare-${name}`).value = asked.at[k];
                 });
                 again();
               }
             },
                'Swap'),
             rafter.choice(
                 'Rows', [['kind', 'Kinds over layers'], ['op', 'Every op']], 'kind',
                 (by) => {
                   asked.by = by;
                   again();
                 })),
          place);
      again();
    },
  });
})();
