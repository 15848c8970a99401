/* compare.js - shows the program's comparison of two runs, a plan and its run, or two plans: time and bytes by op and by kind, memory, options. */
(() => {
  const {el} = rafter;

  /* All possible sides of a comparison: each plan as predicted, and as measured. */
  const sides = (model) => rafter.objects(model.runs).flatMap((run, r) => {
    const walks = rafter.walks(run).filter(({plan}) => plan.time && plan.memory);
    return walks.flatMap(({name, plan, measured}, w) => {
      const title = walks.length > 1 ? `${rafter.runName(run)}, ${name}` : rafter.runName(run), side = {id: run.id, r, w, plan, walk: plan.name};
      const planned = {...side, title: `${title}: predicted`, ran: false}, ran = {...side, title: `${title}: measured`, ran: true};
      return measured && measured.count > 0 ? [ran, planned] : [planned];
    });
  });

  const plannedOf = (list, side) => list.find((one) => one.r === side.r && one.w === side.w && !one.ran) || side;

  /* Finds the comparison of two sides in compare[] of the model; swaps A and B if needed. */
  const swapped = (row) => {
    const other = {...row, seconds: -row.seconds, bytes: -row.bytes};
    for (const what of ['count', 'seconds', 'bytes']) [other[`a_${what}`], other[`b_${what}`]] = [row[`b_${what}`], row[`a_${what}`]];
    if (row.kernel) other.kernel = row.kernel.split(' → ').reverse().join(' → ');
    return other;
  };
  const comparison = (model, a, b) => {
    const is = (one, side) => one.id === side.id && one.measured === side.ran && (one.walk === side.walk || !one.walk || !side.walk);
    for (const one of rafter.objects(model.compare)) {
      if (is(one.a, a) && is(one.b, b)) return one;
      if (!is(one.a, b) || !is(one.b, a)) continue;
      const lists = Object.fromEntries(['ops', 'kinds', 'tensors', 'classes'].map((key) => [key, rafter.objects(one[key]).map(swapped)]));
      return {...one, ...lists, a: one.b, b: one.a, options: rafter.objects(one.options).map((row) => ({...row, a: row.b, b: row.a}))};
    }
    return null;
  };

  /* The first comparison to show: two measured runs, otherwise two predictions, otherwise a run and its plan. */
  const first = (model, list) => {
    const sides = list.filter((side) => side.w === 0), pairs = (as, bs) => as.flatMap((a) => bs.filter((b) => b !== a && b.r >= a.r).map((b) => [a, b]));
    const ran = sides.filter((side) => side.ran), planned = sides.filter((side) => !side.ran);
    const wanted = [...pairs(ran, ran), ...pairs(planned, planned), ...pairs(planned, ran), ...pairs(sides, list)];
    const found = wanted.find(([a, b]) => comparison(model, a, b));
    return found ? found.map((side) => list.indexOf(side)) : [0, Math.min(1, list.length - 1)];
  };

  /* A change, by the rule of rf_text_ratio: a percentage, and from a factor of 2 on the factor. */
  const part = (a, b) => (!(a > 0) || !Number.isFinite(b) ? '' :
    b >= 2 * a ? rafter.times(b / a) :
    b > 0 && a >= 2 * b ? `1/${(a / b).toFixed(a < 10 * b ? 2 : 0)}` :
    `${b > a ? '+' : b < a ? '−' : ''}${rafter.percent(Math.abs(b - a) / a)}`);
  const figure = (text, value) => (Number.isFinite(value) ? text(value) : '–');
  const classOf = (row) => rafter.opClass(row.op);

  const show = (place, model, list, state, {by, at}) => {
    let [a, b] = at.map((i) => list[i]), found = comparison(model, a, b);
    if (!found) { /* measured times are only compared with measured times; predictions exist for all */
      [a, b] = [a, b].map((side) => plannedOf(list, side));
      found = comparison(model, a, b);
    }
    const sameOps = a.plan === b.plan;
    if (!found) {
      Object.assign(state, {a: a.title, b: b.title, by, rows: [], options: [], kinds: []});
      place.replaceChildren(rafter.empty(
          a === b ? 'Choose two different sides.' :
                    'These two are not compared: their plans are of different kinds, or the report has many runs. Report only these two.'));
      return;
    }
    const whole = by === 'kind', rows = rafter.objects(whole ? found.kinds : found.ops), [x, y] = [found.a, found.b];
    Object.assign(state, {
      a: a.title,
      b: b.title,
      by,
      rows: rows.map((row) => [row.name, row.seconds, row.bytes]),
      peak_change: y.peak_bytes - x.peak_bytes,
      seconds: [x.seconds, y.seconds],
      options: rafter.objects(found.options).map((row) => row.name),
      kinds: rafter.objects(found.tensors).map((row) => [row.name, row.bytes])
    });
    const totals = [
      ['Time of a step', rafter.seconds, 'seconds'], ['Tokens per second', rafter.count, 'tokens_per_second'], ['Peak memory', rafter.bytes, 'peak_bytes'],
      ['FLOPs, including recomputation', rafter.flops, 'flops'], ['Bytes moved', rafter.bytes, 'bytes']
    ].map(([title, text, key]) => ({title, text, a: x[key], b: y[key]})).filter((row) => Number.isFinite(row.a) || Number.isFinite(row.b));
    place.replaceChildren(rafter.table(
        [
          {title: 'Figure', value: (row) => row.title},
          {title: 'A', number: true, value: (row) => row.a, text: (row) => figure(row.text, row.a)},
          {title: 'B', number: true, value: (row) => row.b, text: (row) => figure(row.text, row.b)},
          {title: 'B − A', number: true, value: (row) => row.b - row.a, text: (row) => rafter.signed(row.text, row.b - row.a)},
          {title: 'Change', number: true, value: (row) => row.b / row.a, text: (row) => part(row.a, row.b)},
        ],
        totals, {caption: `A is ${a.title}; B is ${b.title}.`}));
    if (found.doubt) place.append(el('p', {class: 'note'}, found.doubt));
    if (!sameOps && rafter.objects(found.options).length) {
      const said = (value) => (value === undefined || value === null ? '–' : typeof value === 'object' ? JSON.stringify(value) : String(value));
      place.append(
          el('h3', {}, 'Options that differ'),
          rafter.table(
              [{title: 'Option', value: (row) => row.name}, {title: 'A', value: (row) => said(row.a)}, {title: 'B', value: (row) => said(row.b)}],
              found.options));
    }
    place.append(el('h3', {}, whole ? 'Ops by kind over all layers' : 'Ops'));
    if (!a.plan.ops || !b.plan.ops)
      place.append(rafter.empty('A plan without ops has only totals: ', rafter.code('rafter plan MODEL ... --json --tensors --ops'), ' lists them.'));
    else if (!rows.length)
      place.append(el('p', {class: 'note'}, 'No op differs.'));
    else
      place.append(opTable(rows, sameOps));
    if (!sameOps) memory(place, found);
  };

  const one = (title, key, text, dash = true) => ({
    title,
    number: true,
    value: (row) => row[key] ?? (dash ? -1 : 0),
    text: (row) => (Number.isFinite(row[key]) ? text(row[key]) : dash ? '–' : text(0))
  });
  const change = (key, text) => ({title: 'B − A', number: true, value: (row) => row[key], text: (row) => rafter.signed(text, row[key])});
  const opTable = (rows, sameOps) => rafter.table(
      [
        {title: 'Op', value: (row) => row.name},
        {title: 'Class', value: (row) => classOf(row).title, node: (row) => [rafter.swatch(classOf(row).colour), classOf(row).title]},
        one('Time, A', 'a_seconds', rafter.seconds), one('B', 'b_seconds', rafter.seconds), change('seconds', rafter.seconds),
        ...(sameOps ? [{
          title: 'B / A',
          number: true,
          value: (row) => (row.a_seconds ? row.b_seconds / row.a_seconds : -1),
          text: (row) => rafter.times(row.b_seconds / row.a_seconds)
        }] :
                      [
                        one('Bytes, A', 'a_bytes', rafter.bytes), one('B', 'b_bytes', rafter.bytes), change('bytes', rafter.bytes),
                        ...(rows.some((row) => row.kernel) ? [{title: 'Kernel', value: (row) => row.kernel || ''}] : [])
                      ]),
      ],
      rows, {caption: 'Totals of one step, over all microbatches; a dash means that the side has no such op. Largest time differences first.', limit: 20});

  const memory = (place, {classes, tensors}) => {
    const columns = (name) =>
        [{title: name, value: (row) => row.name}, one('A', 'a_bytes', rafter.bytes, false), one('B', 'b_bytes', rafter.bytes, false),
         change('bytes', rafter.bytes)];
    if (rafter.objects(classes).length) place.append(
        el('h3', {}, 'Memory at the peak of each side'),
        el('div', {class: 'columns tables'}, rafter.table(columns('Class'), rafter.objects(classes), {caption: 'By class; only classes that differ.'}),
           rafter.objects(tensors).length > 0 && rafter.table(columns('Tensors of a kind'), tensors, {caption: 'By kind over all layers.', limit: 15})));
  };

  rafter.panel({
    id: 'compare',
    title: 'Compare',
    order: 70,
    about: 'Two runs, a run and its plan, or two plans, op by op.',
    available: (model) => rafter.objects(model.runs).length > 0,
    missing: (model) =>
        (sides(model).length > 1 ?
             '' :
             'There is only one plan. Report two runs, or give --against OPTION=VALUE.'),
    render(element, model) {
      const list = sides(model), state = rafter.state.compare = {sides: list.map((side) => side.title)};
      if (list.length < 2) {
        element.append(rafter.empty(
            'There is only one plan, so there is nothing to compare: ', rafter.code('rafter report RUN RUN'), ' compares two runs, ',
            rafter.code('rafter report RUN --against remat=mlp'), ' compares a run with a plan for another setting.'));
        return;
      }
      const asked = {by: 'kind', at: first(model, list)}, place = el('div'), again = () => show(place, model, list, state, asked),
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
