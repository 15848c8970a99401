/* sweep.js - sweeps of plans with their cliffs, throughput over latency, request rates, frontiers of --fit, and results of `rafter bench`. */
(() => {
  const {el} = rafter;
  const number = (text) => (/^-?[\d.]+(e[-+]?\d+)?$/i.test(String(text)) ? Number(text) : NaN);
  const WHAT = {time: 'time', rate: 'rate', memory: 'memory', fit: 'fit', bound: 'bound', scaling: 'scaling'};

  /* A container for charts side by side; each call of the result gives the element for the next chart. */
  const cellsIn = (element) => {
    const charts = el('div', {class: 'columns wide'});
    element.append(charts);
    return () => {
      const box = el('div');
      charts.append(box);
      return box;
    };
  };

  const read = (sweep) => {
    const rows = rafter.objects(sweep.rows).map((row) => ({
                                                  value: row[sweep.sweep],
                                                  row,
                                                  bytes: row.memory && row.memory.peak_bytes,
                                                  seconds: row.time && row.time.seconds,
                                                  rate: row.rate && row.rate.tokens_per_second,
                                                  fits: Boolean(row.memory && row.memory.fits),
                                                  error: row.error,
                                                  latency: row.serving ? row.serving.decode_step_seconds : row.time && row.time.seconds,
                                                  bound: row.time && row.time.bound
                                                }));
    const numeric = rows.every((row) => Number.isFinite(number(row.value)));
    rows.forEach((row, i) => {
      row.x = numeric ? number(row.value) : i;
    });
    const xs = rows.map((row) => row.x);
    return {
      name: sweep.sweep,
      title: sweep.name || `--sweep ${sweep.sweep}`,
      rows,
      numeric,
      spread: numeric && xs.length > 3 && Math.min(...xs) > 0 && Math.max(...xs) / Math.min(...xs) > 20,
      cliffs: rafter.objects(sweep.cliffs)
    };
  };

  /* A line over the swept value, with marks at cliffs. */
  const line = (parent, sweep, {label, text, value, limit}) => {
    const rows = sweep.rows.filter((row) => Number.isFinite(value(row)));
    if (!rows.length) return;
    const names = new Map(sweep.rows.map((row) => [row.x, String(row.value)]));
    const xText = (x) => names.get(x) ?? (sweep.numeric ? rafter.count(x) : '');
    rafter.chart(parent, {
      label: `${label} over ${sweep.name}`,
      height: 260,
      config: () => {
        const colour = rafter.colour('c4'), cliffs = rows.filter((row) => sweep.cliffs.some((cliff) => String(cliff.at) === String(row.value)));
        const sets = [{
          label,
          data: rows.map((row) => ({x: row.x, y: value(row), row})),
          showLine: true,
          borderColor: colour,
          backgroundColor: rows.map((row) => (row.fits ? colour : rafter.colour('paper'))),
          pointBorderColor: colour,
          borderWidth: 1.8,
          pointRadius: 4.5,
          order: 2
        }];
        if (cliffs.length)
          sets.push({
            label: 'cliff',
            data: cliffs.map((row) => ({x: row.x, y: value(row), row})),
            pointStyle: 'rectRot',
            pointRadius: 9,
            borderWidth: 2,
            borderColor: rafter.colour('fault'),
            backgroundColor: 'transparent',
            order: 1
          });
        if (limit)
          sets.push({
            label: limit.label,
            data: [{x: rows[0].x, y: limit.value}, {x: rows[rows.length - 1].x, y: limit.value}],
            showLine: true,
            pointRadius: 0,
            borderColor: rafter.colour('fault'),
            borderDash: [6, 4],
            borderWidth: 1.4,
            order: 3
          });
        const exact = sweep.rows.map((row) => ({value: row.x}));
        return {
          type: 'scatter',
          data: {datasets: sets.map((set) => ({clip: 12, ...set}))},
          options: {
            layout: {padding: {right: 24}},
            scales: {
              x: {
                ...rafter.axis(sweep.name, xText, {
                  type: sweep.spread ? 'logarithmic' : 'linear',
                  min: Math.min(...sweep.rows.map((row) => row.x)), /* over all swept values, including those without a plan */
                  max: Math.max(...sweep.rows.map((row) => row.x)),
                  afterBuildTicks: (axis) => {
                    axis.ticks = exact;
                  }
                }),
                ticks: {callback: xText, maxRotation: 0, autoSkip: true}
              },
              y: rafter.axis(label, text, {beginAtZero: true})
            },
            plugins: {
              legend:
                  {display: Boolean(limit), labels: {usePointStyle: true, pointStyle: 'line', filter: (item) => item.text.startsWith('memory of')}},
              tooltip: {callbacks: {label: ({raw}) => (raw.row ? say(sweep, raw.row, text(raw.y)) : text(raw.y))}}
            }
          }
        };
      }
    });
  };
  const say = (sweep, row, shown) =>
      [`${sweep.name} ${row.value}: ${shown}`,
       `${rafter.seconds(row.seconds)}, ${rafter.count(row.rate)} tokens/s, ${rafter.bytes(row.bytes)}${row.fits ? '' : ', does not fit'}`,
       ...sweep.cliffs.filter((cliff) => String(cliff.at) === String(row.value)).map((cliff) => `${WHAT[cliff.what] || cliff.what}: ${cliff.cause}`)];

  const spread = (groups) => {
    const xs = groups.flatMap((group) => group.points.map((at) => at.x)), low = Math.min(...xs);
    return low > 0 ? Math.max(...xs) / low : 2;
  };
  /* Throughput over latency, one point per setting. */
  const trade = (parent, {label, xTitle, yTitle, groups}) => rafter.chart(parent, {
    label,
    height: 340,
    config: () => ({
      type: 'scatter',
      data: {
        datasets: groups.map((group, i) => ({
                               label: group.label,
                               data: group.points,
                               showLine: true,
                               borderColor: rafter.colour(rafter.line(i)),
                               backgroundColor: group.points.map((at) => (at.hollow ? rafter.colour('paper') : rafter.colour(rafter.line(i)))),
                               pointBorderColor: rafter.colour(rafter.line(i)),
                               borderWidth: 1.4,
                               pointRadius: 4.5
                             }))
      },
      options: {
        scales: {
          x: rafter.axis(xTitle, rafter.seconds, spread(groups) > 30 ? {type: 'logarithmic'} : {beginAtZero: spread(groups) > 1.5}),
          y: rafter.axis(yTitle, rafter.count, {beginAtZero: true})
        },
        plugins: {
          legend: {display: groups.length > 1, labels: {usePointStyle: true, boxHeight: 7}},
          tooltip: {
            callbacks: {
              label:
                  ({raw,
                    dataset}) => [`${dataset.label} ${raw.name}`, `${rafter.count(raw.y)} tokens/s at ${rafter.seconds(raw.x)}`, ...(raw.more || [])]
            }
          }
        }
      }
    })
  });

  const showSweep = (element, given) => {
    const sweep = read(given);
    rafter.state.sweep.sweeps.push({name: sweep.title, rows: sweep.rows.length, cliffs: sweep.cliffs.length});
    element.append(el('h3', {}, sweep.title));
    const serving = sweep.rows.some((row) => row.row.serving);
    if (sweep.cliffs.length)
      element.append(
          el('ul', {class: 'cliffs'},
             sweep.cliffs.map(
                 (cliff) => el('li', {}, el('strong', {}, `${WHAT[cliff.what] || cliff.what} at ${sweep.name} ${cliff.at}`), `: ${cliff.cause}`))));
    else
      element.append(el('p', {class: 'note'}, 'There are no cliffs: no value changes abruptly.'));
    const room = sweep.rows.find((row) => row.row.memory && row.row.memory.capacity_bytes);
    const cell = cellsIn(element);
    line(cell(), sweep, {label: 'tokens/s', text: rafter.count, value: (row) => row.rate});
    line(cell(), sweep, {label: serving ? 'seconds of a decode step' : 'seconds of a step', text: rafter.seconds, value: (row) => row.latency});
    const capacity = room && room.row.memory.capacity_bytes, most = Math.max(...sweep.rows.map((row) => row.bytes || 0));
    line(cell(), sweep, {
      label: 'peak memory',
      text: rafter.bytes,
      value: (row) => row.bytes,
      limit: capacity && capacity < 3 * most ? {label: `memory of the machine: ${rafter.bytes(capacity)}${room.row.memory.reserve_bytes > 0 ? `, ${rafter.bytes(room.row.memory.reserve_bytes)} reserved` : ''}`, value: capacity} : null
    });
    const priced = sweep.rows.filter((row) => row.rate && row.latency);
    if (priced.length > 1)
      trade(cell(), {
        label: 'tokens per second over latency',
        xTitle: serving ? 'seconds between two tokens of a sequence' : 'seconds of a step',
        yTitle: 'tokens/s',
        groups: [{
          label: sweep.name,
          points: priced.map((row) => ({x: row.latency, y: row.rate, name: row.value, hollow: !row.fits, more: row.fits ? [] : ['does not fit']}))
        }]
      });
    element.append(rafter.table(
        [
          {title: sweep.name, number: sweep.numeric, value: (row) => row.x, text: (row) => String(row.value)},
          {title: 'Memory', number: true, value: (row) => row.bytes ?? -1, text: (row) => rafter.bytes(row.bytes)},
          {title: 'Time', number: true, value: (row) => row.seconds ?? -1, text: (row) => rafter.seconds(row.seconds)},
          {title: 'Tokens/s', number: true, value: (row) => row.rate ?? -1, text: (row) => rafter.count(row.rate)},
          {title: 'Fits',
           value: (row) =>
               (row.error    ? 'no plan' :
                    row.fits ? 'yes' :
                               'no')},
          {title: 'Bound', value: (row) => row.bound || row.error || ''},
        ],
        sweep.rows, {caption: 'Hollow points do not fit.'}));
  };

  /* Request rates of `plan --job serve --rate`. */
  const showRates = (element, name, serving) => {
    const rates = rafter.objects(serving.rates);
    rafter.state.sweep.rates.push({name, rates: rates.length});
    const points = (key, part) => rates.map((rate) => ({
                                              x: rate[key][part],
                                              y: rate.tokens_per_second,
                                              name: `${rate.requests_per_second} requests/s`,
                                              hollow: rate.saturated,
                                              more: rate.saturated ? ['saturated: requests wait longer and longer'] : []
                                            }));
    const first = rates.find((rate) => rate.saturated);
    element.append(
        el('h3', {}, `Serving: ${name}`),
        el('p', {class: 'note'},
           first ? `From ${first.requests_per_second} requests per second, requests wait longer and longer (hollow points).` :
                   'All rates are sustained.'));
    const cell = cellsIn(element);
    for (const [key, title] of [
             ['ttft_seconds', 'time to the first token'], ['tpot_seconds', 'time per further token'],
             ['latency_seconds', 'time of an answer']])
      if (rates.every((rate) => rate[key]))
        trade(cell(), {
          label: `tokens per second over ${title}`,
          xTitle: title,
          yTitle: 'tokens/s',
          groups: ['p50', 'p95', 'p99'].map((part) => ({label: part, points: points(key, part)}))
        });
    const three = (value) => (value ? `${rafter.seconds(value.p50)} / ${rafter.seconds(value.p95)} / ${rafter.seconds(value.p99)}` : '–');
    element.append(rafter.table(
        [
          {title: 'Requests/s', number: true, value: (rate) => rate.requests_per_second},
          {title: 'Tokens/s', number: true, value: (rate) => rate.tokens_per_second, text: (rate) => rafter.count(rate.tokens_per_second)},
          {title: 'First token (50 / 95 / 99 %)', value: (rate) => rate.ttft_seconds.p50, text: (rate) => three(rate.ttft_seconds)},
          {title: 'Per further token', value: (rate) => rate.tpot_seconds.p50, text: (rate) => three(rate.tpot_seconds)},
          {title: 'Answer', value: (rate) => rate.latency_seconds.p50, text: (rate) => three(rate.latency_seconds)},
          {title: 'Slots used', number: true, value: (rate) => rate.slots_used, text: (rate) => rate.slots_used.toFixed(1)},
          {title: 'Maximum waiting', number: true, value: (rate) => rate.waiting_most},
          {title: 'Sustained', value: (rate) => (rate.saturated ? 'no' : 'yes')},
        ],
        rates, {caption: 'Requests arrive at random times with this mean rate.'}));
  };

  const showFrontier = (element, name, rows) => {
    rafter.state.sweep.frontiers.push({name, rows: rows.length});
    element.append(el('h3', {}, `Settings that no other setting beats: ${name}`));
    rafter.chart(element, {
      label: 'seconds over memory of each setting that no other beats',
      height: 320,
      config: () => ({
        type: 'scatter',
        data: {
          datasets: [{
            label: 'settings',
            data: rows.map((row) => ({x: row.peak_bytes, y: row.seconds, row})),
            showLine: true,
            borderWidth: 1,
            borderColor: rafter.colour('muted'),
            pointRadius: 5,
            pointBorderColor: rafter.colour('c4'),
            backgroundColor: rows.map((row) => (row.fits ? rafter.colour('c4') : rafter.colour('paper')))
          }]
        },
        options: {
          scales: {x: rafter.axis('peak memory', rafter.bytes, {}), y: rafter.axis('seconds of a step', rafter.seconds, {})},
          plugins: {
            legend: {display: false},
            tooltip: {
              callbacks: {
                label: ({raw}) =>
                    [`${raw.row.dtype}, remat ${raw.row.remat}, ${raw.row.accumulate} x ${raw.row.microbatch}`,
                     `${rafter.bytes(raw.row.peak_bytes)}, ${rafter.seconds(raw.row.seconds)}`, raw.row.why]
              }
            }
          }
        }
      })
    });
    element.append(rafter.table(
        [
          {title: 'Type', value: (row) => row.dtype}, {title: 'Remat', value: (row) => row.remat}, {
            title: 'Microbatches',
            value: (row) => row.accumulate,
            text: (row) => `${row.accumulate} × ${row.microbatch}`
          },
          {title: 'Mesh', value: (row) => row.mesh}, {
            title: 'Memory',
            number: true,
            value: (row) => row.peak_bytes,
            text: (row) => rafter.bytes(row.peak_bytes)
          },
          {
            title: 'Time',
            number: true,
            value: (row) => row.seconds,
            text: (row) => rafter.seconds(row.seconds)
          },
          {title: 'Fits', value: (row) => (row.fits ? 'yes' : 'no')},
          {title: 'Saving', value: (row) => row.why}
        ],
        rows, {
          caption:
              '--fit tried more settings. Each setting that is missing here needs more memory and more time than one of these.'
        }));
  };

  /* The quantity that a bench test's name varies: answers at once, tokens of context before decoding, or tokens of the prompt. */
  const VARIES = [
    [/^batch(\d+)$/, () => 'batch', 'answers at once'], [/^(tg\d+)(?:@d(\d+))?$/, (found) => found[1], 'tokens of context'],
    [/^pp(\d+)$/, () => 'pp', 'tokens of the prompt']
  ];
  const placeOf = (row) => {
    if (row.sweep) return {group: row.test, over: row.sweep, x: number(row.value)};
    for (const [pattern, group, over] of VARIES) {
      const found = pattern.exec(row.test);
      if (found) return {group: group(found), over, x: Number(found[found.length - 1] || 0)};
    }
    return {group: row.test, over: '', x: NaN};
  };

  /* Measured and predicted throughput, and for several answers at once the time between two tokens. */
  const showBench = (element, bench) => {
    const rows = rafter.objects(bench.rows).map((row) => ({...placeOf(row), row})), groups = new Map();
    for (const one of rows)
      if (Number.isFinite(one.x)) groups.set(`${one.group} ${one.over}`, [...(groups.get(`${one.group} ${one.over}`) || []), one]);
    const drawn = [...groups.values()].filter((points) => points.length > 1).map((points) => points.sort((a, b) => a.x - b.x));
    rafter.state.sweep.benches.push({name: bench.name, rows: rows.length, charts: drawn.map((points) => ({over: points[0].over, points: points.map(({x, row}) => [x, row.tokens_per_second])}))});
    element.append(el('h3', {}, `Measured: ${bench.name}`));
    const cell = cellsIn(element);
    for (const points of drawn) {
      const {group, over} = points[0], wide = points[0].x > 0 && points[points.length - 1].x / points[0].x > 20;
      const set = (label, key, colour, dash) => ({
        label,
        data: points.filter(({row}) => row[key] > 0).map(({x, row}) => ({x, y: row[key], row})),
        showLine: true,
        borderColor: rafter.colour(colour),
        backgroundColor: rafter.colour(colour),
        borderDash: dash,
        borderWidth: 1.8,
        pointRadius: dash.length ? 2.5 : 4.5
      });
      const spreadOf = ({seconds, n}) => `median ${rafter.seconds(seconds.median)}, ${rafter.seconds(seconds.min)} to ${rafter.seconds(seconds.max)}${n ? `, ${n} times` : ''}`;
      rafter.chart(cell(), {
        label: `tokens per second over ${over}, measured and predicted`,
        height: 280,
        config: () => ({
          type: 'scatter',
          data: {datasets: [set('measured', 'tokens_per_second', 'c4', []), set('predicted', 'predicted_tokens_per_second', 'c0', [6, 4])]},
          options: {
            scales: {
              x: rafter.axis(over, (x) => String(x), {type: wide ? 'logarithmic' : 'linear', afterBuildTicks: (axis) => { axis.ticks = points.map(({x}) => ({value: x})); }}),
              y: rafter.axis(`${group}: tokens/s`, rafter.count, {beginAtZero: true})
            },
            plugins: {
              legend: {labels: {usePointStyle: true, boxHeight: 7}},
              tooltip: {callbacks: {label: ({raw, dataset}) => [`${raw.row.test}: ${dataset.label} ${rafter.count(raw.y)} tokens/s`, spreadOf(raw.row.seconds)]}}
            }
          }
        })
      });
      if (over === 'answers at once') {
        const against = (label, key) => ({label, points: points.filter(({row}) => row[key] > 0).map(({x, row}) => ({x: x / row[key], y: row[key], name: `${x} at once`}))});
        trade(cell(), {
          label: 'tokens per second over the time between two tokens of an answer',
          xTitle: 'seconds between two tokens of an answer',
          yTitle: 'tokens/s',
          groups: [against('measured', 'tokens_per_second'), against('predicted', 'predicted_tokens_per_second')].filter((one) => one.points.length)
        });
      }
    }
    element.append(rafter.table(
        [
          {title: 'Test', value: ({row}) => (row.sweep ? `${row.test}, ${row.sweep} ${row.value}` : row.test)},
          {title: 'Model', value: ({row}) => row.model}, {title: 'Type', value: ({row}) => row.dtype},
          {title: 'Tokens/s', number: true, value: ({row}) => row.tokens_per_second, text: ({row}) => rafter.count(row.tokens_per_second)},
          {title: 'Predicted', number: true, value: ({row}) => row.predicted_tokens_per_second ?? -1, text: ({row}) => (row.predicted_tokens_per_second > 0 ? rafter.count(row.predicted_tokens_per_second) : '–')},
          {title: 'Median', number: true, value: ({row}) => row.seconds.median, text: ({row}) => rafter.seconds(row.seconds.median)},
          {title: 'Minimum', number: true, value: ({row}) => row.seconds.min, text: ({row}) => rafter.seconds(row.seconds.min)},
          {title: 'Maximum', number: true, value: ({row}) => row.seconds.max, text: ({row}) => rafter.seconds(row.seconds.max)},
          {title: 'Limit / measured', number: true, value: ({row}) => row.limit_fraction, text: ({row}) => rafter.percent(row.limit_fraction)},
          {title: 'Limit', value: ({row}) => row.limit || ''},
        ],
        rows, {caption: 'The limits were measured between the tests.'}));
  };

  /* What the panel shows of a report. */
  const contentOf = (model) => {
    const plans = rafter.objects(model.runs)
                      .flatMap(
                          (run) => rafter.plans(run).map(
                              (one) => ({name: rafter.runName(run), plan: one.plan})));
    return {
      sweeps:
          rafter.objects(model.sweeps).filter((sweep) => sweep.sweep && Array.isArray(sweep.rows)),
      rates: plans.filter(({plan}) => plan.serving && rafter.objects(plan.serving.rates).length),
      frontiers: plans.filter(({plan}) => rafter.objects(plan.frontier).length),
      benches: rafter.objects(model.benches).filter((bench) => rafter.objects(bench.rows).length)
    };
  };

  rafter.panel({
    id: 'sweep',
    title: 'Sweeps and serving',
    order: 60,
    about: 'Throughput, latency and memory over one setting, with the causes of cliffs.',
    available: (model) => ['runs', 'sweeps', 'benches'].some(
        (key) => rafter.objects(model[key]).length > 0),
    missing: (model) =>
        (Object.values(contentOf(model)).some((list) => list.length) ?
             '' :
             'The report has no sweep, no request rates, no --fit and no bench.'),
    render(element, model) {
      rafter.state.sweep = {sweeps: [], rates: [], frontiers: [], benches: []};
      const {sweeps, rates, frontiers, benches} = contentOf(model);
      sweeps.forEach((sweep) => showSweep(element, sweep));
      rates.forEach(({name, plan}) => showRates(element, name, plan.serving));
      frontiers.forEach(
          ({name, plan}) => showFrontier(element, name, rafter.objects(plan.frontier)));
      benches.forEach((bench) => showBench(element, bench));
      if (!element.childElementCount)
        element.append(rafter.empty(
            'The report has no sweep. ', rafter.code('rafter plan MODEL --sweep batch=1..256 --json > sweep.json'), ' makes one, ',
            rafter.code('--job serve --rate 1..64'), ' plans request rates, ', rafter.code('--fit'), ' searches settings that fit, ',
            rafter.code('rafter bench MODEL --test batch1,batch2,batch4 --json > bench.jsonl'), ' measures; ',
            rafter.code('rafter report RUN sweep.json'), ' shows them here.'));
    },
  });
})();
