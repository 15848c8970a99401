/* summary.js - the summary panel: the program's sentence and advice; time, memory and throughput as measured, predicted and limit. */
(() => {
  const {el} = rafter;
  const WALKS = {train: 'a step', decode: 'a decode step', prefill: 'a prefill step', score: 'a scoring step', validation: 'a validation step'};
  const titleOf = (walk) => WALKS[walk.walk] || walk.walk;
  const ratio = (a, b) => (a > 0 && b > 0 ? rafter.times(a / b) : '–');

  /* Median step of a run that has metrics but no report. */
  const stepsOf = (summary, walk) => (walk.walk === 'train' && summary.steps) || {};

  const glance = (summary, walk, measured) => {
    const memory = summary.memory || {}, rows = [];
    rows.push({
      title: `Time of ${titleOf(walk)}`,
      text: rafter.seconds,
      measured: measured ? walk.seconds : stepsOf(summary, walk).seconds ?? null,
      predicted: walk.predicted_seconds,
      limit: walk.limit_seconds
    });
    if (walk.rate)
      rows.push({
        title: 'Tokens per second',
        text: rafter.count,
        measured: measured ? walk.rate.tokens_per_second : stepsOf(summary, walk).tokens_per_second ?? null,
        predicted: walk.rate.predicted,
        limit: walk.rate.limit
      });
    rows.push(
        {title: 'Memory', text: rafter.bytes, measured: memory.measured_bytes ?? null, predicted: memory.predicted_bytes, limit: memory.limit_bytes});
    const show = (row, value) => (Number.isFinite(value) ? row.text(value) : '–');
    return rafter.table(
        [
          {title: 'Figure', value: (row) => row.title},
          {title: 'Measured', number: true, value: (row) => row.measured, text: (row) => show(row, row.measured)},
          {title: 'Predicted', number: true, value: (row) => row.predicted, text: (row) => show(row, row.predicted)},
          {title: 'Limit', number: true, value: (row) => row.limit, text: (row) => show(row, row.limit)},
          {title: 'Measured / predicted', number: true, value: (row) => row.measured, text: (row) => ratio(row.measured, row.predicted)},
        ],
        rows, {
          caption:
              'The limit of time is the roofline, op by op: FLOPs at the machine\'s highest rate, or bytes at its highest measured bandwidth for that size, whichever takes longer. The limit of memory is that of the plan: the machine\'s memory without its reserve and without the margin of --fit.'
        });
  };

  /* Horizontal bars: measured, predicted and limit of each group. */
  const bars = (parent, label, groups, measured) => {
    const shown = groups.filter((group) => group.seconds > 0 || group.predicted_seconds > 0).slice(0, 12);
    if (!shown.length) return;
    const sets =
        [measured && ['measured', 'seconds', 'c4'], ['predicted', 'predicted_seconds', 'c0'], ['limit', 'limit_seconds', 'c7']].filter(Boolean);
    rafter.chart(parent, {
      label,
      height: 60 + shown.length * (measured ? 44 : 32),
      config: () => ({
        type: 'bar',
        data: {
          labels: shown.map((group) => group.name),
          datasets: sets.map(([name, key, colour]) => ({
                               label: name,
                               data: shown.map((group) => group[key]),
                               backgroundColor: rafter.colour(colour),
                               borderWidth: 0,
                               barPercentage: 0.92,
                               categoryPercentage: 0.78
                             }))
        },
        options: {
          indexAxis: 'y',
          scales: {
            x: rafter.axis('seconds', rafter.seconds, {
              beginAtZero: true,
              ticks: {
                maxTicksLimit: 5,
                maxRotation: 0,
                includeBounds: false,
                callback: rafter.tick(rafter.seconds)
              }
            }),
            y: {grid: {display: false}, ticks: {autoSkip: false}}
          },
          plugins: {
            legend: {labels: {usePointStyle: true, pointStyle: 'rect'}},
            tooltip: {
              callbacks: {label: (item) => `${item.dataset.label} ${rafter.seconds(item.parsed.x)}`}
            }
          }
        }
      })
    });
  };

  const groupTable =
      (groups, measured, caption, more = {}) =>
          rafter.table(
              [
                {title: 'Part', value: (group) => group.name},
                ...(measured ?
                        [
                          {title: 'Measured', number: true, value: (group) => group.seconds, text: (group) => rafter.seconds(group.seconds)},
                          {title: 'Share', number: true, value: (group) => group.share, text: (group) => rafter.percent(group.share)}
                        ] :
                        []),
                {
                  title: 'Predicted',
                  number: true,
                  value: (group) => group.predicted_seconds,
                  text: (group) => rafter.seconds(group.predicted_seconds)
                },
                {title: 'Limit', number: true, value: (group) => group.limit_seconds, text: (group) => rafter.seconds(group.limit_seconds)},
                {
                  title: measured ? 'Limit / measured' : 'Limit / predicted',
                  number: true,
                  value: (group) => group.limit_fraction ?? -1,
                  text: (group) => group.beaten ?? rafter.percent(group.limit_fraction ?? NaN)
                },
                ...(measured ?
                        [{
                          title: 'Measured / predicted',
                          number: true,
                          value: (group) => group.missed ?? -1,
                          text: (group) => (group.missed ? rafter.times(group.missed) : '–')
                        }] :
                        []),
                {title: 'FLOPs', number: true, value: (group) => group.flops, text: (group) => (group.flops ? rafter.flops(group.flops) : '–')},
                {title: 'Bytes', number: true, value: (group) => group.bytes, text: (group) => (group.bytes ? rafter.bytes(group.bytes) : '–')},
              ],
              groups, {caption, sort: 1, ...more});

  const advice = (summary) => {
    const rows = rafter.objects(summary.advice);
    return rows.length > 0 && el(
        'div', {}, el('h3', {}, 'Effect of one change'),
        rafter.table(
            [
              {title: 'Change', value: (row) => row.change},
              {title: 'Time', number: true, value: (row) => row.seconds, text: (row) => rafter.seconds(row.seconds)},
              {title: 'Gain', number: true, value: (row) => row.gain, text: (row) => rafter.speed(row.gain)},
              {title: 'Memory', number: true, value: (row) => row.more_bytes, text: (row) => rafter.signed(rafter.bytes, row.more_bytes)},
              {title: 'Fits', value: (row) => (row.fits === false ? 'no' : 'yes')},
              {title: 'Results', value: (row) => (row.approximate ? 'change' : row.exact ? 'equal bits' : 'equal up to rounding')},
            ],
            rows, {caption: summary.measured ? 'Each row is a complete plan, corrected by this run\'s efficiency.' : 'Each row is a complete plan.', limit: 10}));
  };

  /* Rate, cost and bounds of a plan that was not run. */
  const priced = (element, {plan, run}) => {
    if (run || !plan || !plan.rate || !plan.cost || !plan.time) return;
    const {rate, cost, time} = plan;
    const share = (bound) => time[`${bound}_seconds`] / time.seconds;
    const split = ['compute', 'memory', 'network', 'latency'].filter((bound) => share(bound) > 0);
    const usd = (value, unit) => (Number.isFinite(value) ? `${rafter.usd(value)}${unit}` : null);
    element.append(el('h3', {}, 'Rate and cost'), rafter.facts([
      ['MFU', rafter.percent(rate.mfu)],
      ['HFU', rafter.percent(rate.hfu)],
      ['Time by bound', split.map((bound) => `${bound} ${rafter.percent(share(bound))}`).join(', ')],
      ['Price of a chip', usd(cost.usd_per_chip_hour, ' per hour') ?? 'unknown'],
      ['Price of a million tokens', usd(cost.usd_per_million_tokens, '')],
      ['Tokens per dollar', Number.isFinite(cost.tokens_per_usd) ? rafter.count(cost.tokens_per_usd) : null]
    ]));
  };

  /* A plan that lists no ops: its figures, and for serving the latencies of requests. */
  const planned = (element, run, summary) => {
    const {plan} = run, {serving} = plan || {};
    if (!plan || !plan.time) return;
    if (!summary.sentence) element.append(el('p', {class: 'sentence'}, `Predicted to be bound by ${plan.time.bound}.`));
    element.append(glance(summary, {walk: serving ? 'decode' : plan.name || plan.job, predicted_seconds: plan.time.seconds, rate: plan.rate && {predicted: plan.rate.tokens_per_second}}, false));
    if (serving) {
      const spread = (times) => (times ? `median ${rafter.seconds(times.p50)}, 99th percentile ${rafter.seconds(times.p99)}` : null);
      element.append(el('h3', {}, 'Serving'), rafter.facts([['Time to the first token', spread(serving.ttft_seconds)], ['Time per further token', spread(serving.tpot_seconds)],
        ['Answers at once', Number.isFinite(serving.slots) ? rafter.whole(serving.slots) : null], ['Tokens per prompt', serving.prompt_tokens && rafter.count(serving.prompt_tokens)], ['Tokens per answer', serving.answer_tokens && rafter.count(serving.answer_tokens)]]));
    }
    element.append(
        el('p', {class: 'note'}, rafter.code('rafter plan --ops'),
           ' adds the ops, with their bounds by kind and by phase.'),
        advice(summary) || '');
  };

  /* Vertical bars of all layers in order. */
  const layerBars = (parent, label, layers, measured) => {
    rafter.chart(parent, {
      label,
      height: 260,
      config: () => ({
        type: 'bar',
        data: {
          labels: layers.map((group) => String(group.layer)),
          datasets: [
            measured && ['measured', 'seconds', 'c4'], ['predicted', 'predicted_seconds', 'c0'],
            ['limit', 'limit_seconds', 'c7']
          ].filter(Boolean)
                        .map(([name, key, colour]) => ({
                               label: name,
                               data: layers.map((layer) => layer[key]),
                               backgroundColor: rafter.colour(colour),
                               borderWidth: 0,
                               barPercentage: 0.95,
                               categoryPercentage: 0.8
                             }))
        },
        options: {
          scales: {
            x: {
              title: {display: true, text: 'layer'},
              grid: {display: false},
              ticks: {maxRotation: 0}
            },
            y: rafter.axis('seconds', rafter.seconds, {
              beginAtZero: true,
              ticks: {maxTicksLimit: 6, callback: rafter.tick(rafter.seconds)}
            })
          },
          plugins: {
            legend: {labels: {usePointStyle: true, pointStyle: 'rect'}},
            tooltip: {
              callbacks: {
                title: ([item]) => layers[item.dataIndex].name,
                label: (item) => `${item.dataset.label} ${rafter.seconds(item.parsed.y)}`
              }
            }
          }
        }
      })
    });
  };

  /* Caption of a table of seconds: which step, and the number of steps of a mean. */
  const captionOf = (run, walk, measured) => {
    const stopped = run.summary.threads && run.summary.threads.gaps && run.summary.threads.gaps.stopped > 0.02;
    return `Seconds of ${titleOf(walk)}${measured && walk.count > 1 ? `, the mean of ${rafter.whole(walk.count)}${stopped ? ', including the time when the process was stopped' : ''}` : ''}.`;
  };

  const detail = (at, place, run, walk, measured) => {
    const charted = el('div', {class: 'charted'}), tables = el('div', {class: 'columns tables'});
    at.replaceChildren(glance(run.summary, walk, measured));
    place.replaceChildren(charted, tables);
    const caption = captionOf(run, walk, measured);
    for (const [key, title, draw, more] of [['kinds', 'By kind of op', bars], ['phases', 'By phase', bars],
      ['layers', 'By layer', (parent, label, groups) => layerBars(parent, label, groups.filter((group) => group.layer !== undefined), measured), {sort: -1, limit: 13}]]) {
      const groups = rafter.objects(walk[key]);
      if (!groups.length) continue;
      const chart = el('div');
      charted.append(
          el('h3', {}, title),
          el('div', {class: 'columns beside'}, chart, groupTable(groups, measured, caption, more)));
      draw(chart, `${title}: measured, predicted and limit`, groups, measured);
    }
    const losses = rafter.objects(walk.losses),
          lostOf = (row) => (measured ? row.seconds : row.predicted_seconds) - row.limit_seconds;
    if (losses.length)
      tables.append(
          el('div', {}, el('h3', {}, 'Ops that lose most time against their limit'),
             rafter.table(
                 [
                   {title: 'Op', value: (row) => row.name},
                   ...(measured ? [{
                     title: 'Measured',
                     number: true,
                     value: (row) => row.seconds,
                     text: (row) => rafter.seconds(row.seconds)
                   }] :
                                  []),
                   {
                     title: 'Predicted',
                     number: true,
                     value: (row) => row.predicted_seconds,
                     text: (row) => rafter.seconds(row.predicted_seconds)
                   },
                   {
                     title: 'Limit',
                     number: true,
                     value: (row) => row.limit_seconds,
                     text: (row) => rafter.seconds(row.limit_seconds)
                   },
                   {
                     title: 'Lost',
                     number: true,
                     value: lostOf,
                     text: (row) => rafter.seconds(lostOf(row))
                   }
                 ],
                 losses, {
                   sort: measured ? 4 : 3,
                   ...(run.trace ? {
                     onrow: (row) => rafter.showOp(row.name),
                     caption: 'A click on a row shows the op in the trace.'
                   } :
                                   {})
                 })));
    const priced = advice(run.summary);
    if (priced) tables.append(priced);
  };

  rafter.panel({
    id: 'summary',
    title: 'Summary',
    order: 10,
    perRun: true,
    available: (model) => rafter.objects(model.runs).length > 0,
    render(element, model, run) {
      const summary = run.summary, plan = run.plan || {},
            state = rafter.state.summary = {run: rafter.runName(run), sentence: summary && summary.sentence, walk: null};
      const words = [
        plan.model && plan.model.name, plan.model && plan.model.parameters && `${rafter.count(plan.model.parameters)} parameters`,
        (run.run && run.run.command) || plan.job, plan.machine && plan.machine.name, plan.settings && plan.settings.dtype,
        plan.settings && plan.settings.batch && `${plan.settings.batch} × ${plan.settings.seq} tokens`
      ].filter(Boolean);
      element.append(el('p', {class: 'about'}, words.join(' · ')));
      if (!summary) {
        if (plan.time && plan.memory)
          element.append(rafter.cards([
            ['Predicted time', rafter.seconds(plan.time.seconds), `bound by ${plan.time.bound}`],
            ['Memory', rafter.bytes(plan.memory.peak_bytes), plan.memory.fits ? 'fits' : 'does not fit'],
            [
              'Predicted rate', `${rafter.count(plan.rate && plan.rate.tokens_per_second)} tokens/s`,
              plan.rate && `MFU ${rafter.percent(plan.rate.mfu)}`
            ]
          ]));
        else
          element.append(rafter.empty(
              'This run has no plan: ', rafter.code('rafter report RUN'), ' needs the folder of a run, or the output of ',
              rafter.code('rafter plan MODEL --json'), '.'));
        return;
      }
      const walks = rafter.objects(summary.walks), measured = Boolean(summary.measured),
            notes = [...(Array.isArray(summary.notes) ? summary.notes : []), summary.threads && summary.threads.sentence].filter((note) => typeof note === 'string');
      const said =
                el('div', {}, el('p', {class: 'sentence'}, summary.sentence || ''),
                   rafter.wordsLine()),
            at = el('div');
      if (notes.length) said.append(el('ul', {}, notes.map((note) => el('li', {}, note))));
      if (!measured)
        said.append(el(
            'p', {class: 'note'},
            summary.steps ? 'Steps were measured, but ops were not: times of ops are predictions.' :
                            'These figures are predictions; nothing was measured.'));
      if (!walks.length) {
        element.append(said);
        priced(element, run);
        planned(element, run, summary);
        return;
      }
      const place = el('div'), figures = el('div', {}, at),
            most = Math.max(0, walks.findIndex((walk) => walk.walk === summary.walk)),
            show = (i) => {
              state.walk = walks[i].walk;
              detail(at, place, run, walks[i], measured);
            };
      if (walks.length > 1)
        figures.prepend(
            el('div', {class: 'bar'},
               rafter.select(
                   'Step', walks.map((walk) => walk.walk), show,
                   {id: 'summary-walk', current: most})));
      priced(figures, run);
      element.append(el('div', {class: 'columns lead'}, said, figures), rafter.rankTable(run), place);
      show(most);
    },
  });
})();
