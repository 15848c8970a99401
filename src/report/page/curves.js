/* curves.js - loss, learning rate, gradient norm, tokens per second and step time of runs, measured and predicted. */
(() => {
  const {el} = rafter;

  const LEFT = 92; /* pixels of the y axis with its title */
  const quantile = (sorted, part) => sorted[Math.min(sorted.length - 1, Math.max(0, Math.round(part * (sorted.length - 1))))];
  const smooth = (values, weight) => {
    let held = null;
    return values.map(([x, y]) => {
      held = held === null ? y : weight * held + (1 - weight) * y;
      return [x, held];
    });
  };

  /* The choices of the x axis, and its values for a run's rows. */
  const abscissa = {
    step: ['step', (value) => rafter.whole(value)],
    tokens: ['tokens', (value) => rafter.count(value)],
    time: ['time trained', (value) => rafter.seconds(value)]
  };
  /* An evaluation before the first step has no tokens. */
  const across = (rows, by) => {
    let elapsed = 0;
    return rows.map((row) => {
      elapsed += (row.seconds || 0) * (row.steps || 1);
      return {time: elapsed, step: row.step, tokens: row.tokens || 0}[by];
    });
  };

  const render = (element, runs) => {
    const state = rafter.state.curves = {runs: runs.map((run) => rafter.runName(run)), by: 'step', charts: {}};
    let smoothing = false, logarithmic = false;
    const place = el('div');
    const redraw = () => {
      place.replaceChildren();
      state.charts = {};
      CHARTS.forEach(draw);
    };

    /* Colours repeat from the ninth run; its lines get marks. */
    const shapeOf = (set) => (runs.length > 1 && set.r >= 8 && !set.dash ? ['triangle', 'rect', 'crossRot', 'star'][Math.floor(set.r / 8 - 1) % 4] : null);
    const tint = (set) => rafter.colour(rafter.line(runs.length > 1 ? set.r : set.shift || 0));
    /* Pale bands from minimum to maximum, for long runs whose points summarize many steps. */
    const bands = ({run, band, xs, r, shift}) => {
      if (!band || smoothing || !run.metrics.some((row) => row.least)) return [];
      const edge = (which) => run.metrics.map((row, i) => ({x: xs[i], y: (row[which] || {})[band]})).filter(({y}) => Number.isFinite(y)), colour = tint({r, shift});
      const common = {run: rafter.runName(run), band: true, parsing: false, borderWidth: 0, pointRadius: 0, pointHitRadius: 0, borderColor: colour, backgroundColor: `${colour}38`};
      return [{...common, data: edge('most'), fill: '+1'}, {...common, data: edge('least')}];
    };
    /* The x axis begins and ends with the data; it begins at 0 if the data begin near 0. */
    const endsOf = (sets) => {
      const xs = sets.flatMap((set) => set.values.map(([x]) => x)),
            [first, last] = xs.reduce(
                ([low, high], x) => [Math.min(low, x), Math.max(high, x)], [Infinity, -Infinity]);
      return last > first ? {min: first < 0.1 * last ? 0 : first, max: last} : {};
    };
    /* lines(run, xs): [{label, points: [[x, y]], dash?, points only?}] */
    /* End of the y axis if a few outliers would flatten the curve: three times the 99th percentile. Null: all values fit. */
    const cutOf = (sets) => {
      const values = sets.flatMap((set) => set.values.map(([, y]) => y)).sort((a, b) => a - b), most = 3 * quantile(values, 0.99);
      return values.length && values[values.length - 1] > most ? most : null;
    };
    const draw = ({id, title, text, lines, log, cuts, tall, from0}) => {
      const sets = runs.flatMap((run, r) => {
        const xs = across(run.metrics, state.by);
        return lines(run, xs).filter((line) => line.values.length).map((line) => ({run, r, xs, band: line.smooth && line.key, ...line}));
      });
      if (!sets.length) return;
      state.charts[id] = sets.map((set) => ({label: set.label, points: set.values.length, last: set.values[set.values.length - 1][1]}));
      const [name, xText] = abscissa[state.by];
      const ends = endsOf(sets);
      const cut = cuts ? cutOf(sets) : null, above = cut === null ? [] : sets.flatMap((set) => set.values.filter(([, y]) => y > cut));
      state.charts[id].cut = cut;
      place.append(el('h3', {}, title));
      if (above.length) {
        const [x, y] = above.reduce((high, one) => (one[1] > high[1] ? one : high));
        place.append(el('p', {class: 'note'}, `${rafter.whole(above.length)} of the points are above this axis, the highest is ${text(y)} at ${abscissa[state.by][0]} ${abscissa[state.by][1](x)}.`));
      }
      rafter.chart(place, {
        label: `${title} over ${name}`,
        height: tall ? 420 : 260,
        config: () => ({
          type: 'line',
          data: {
            datasets: sets.flatMap(
                (set) => [...bands(set), {
                  run: rafter.runName(set.run),
                  label: runs.length > 1 ? `${rafter.runName(set.run)}: ${set.label}` : set.label,
                  data: (smoothing && set.smooth ?
                             smooth(set.values, Math.max(0.9, 1 - 50 / set.values.length)) :
                             set.values)
                            .map(([x, y]) => ({x, y})),
                  parsing: false,
                  borderColor: tint(set),
                  backgroundColor: tint(set),
                  borderWidth: set.dash || set.marks ? 1.2 : 1.8,
                  borderDash: set.dash || (set.marks ? [2, 3] : undefined),
                  pointRadius: set.marks || set.values.length === 1 ?
                      (set.values.length > 60 ? 2 : 4) :
                      shapeOf(set) ?
                      ({dataIndex}) => (dataIndex % Math.ceil(set.values.length / 12) ? 0 : 4) :
                      0,
                  pointStyle: set.marks ? 'rectRot' : shapeOf(set) || 'circle',
                  shape: shapeOf(set),
                  pointHitRadius: 6,
                  clip: {left: 8, right: 8, top: 0, bottom: 8},
                  showLine: true
                }])
          },
          options: {
            layout: {padding: {right: 12}},
            parsing: false,
            normalized: true,
            scales: {
              x: rafter.axis(name, xText, ends),
              y: {
                ...rafter.axis(
                    title, text,
                    log && logarithmic ? {type: 'logarithmic'} :
                        cut !== null   ? {min: 0, max: cut} :
                                         {beginAtZero: from0}),
                afterFit: (axis) => {
                  axis.width = LEFT; /* all charts have the same left edge */
                }
              }
            },
            interaction: {mode: 'nearest', axis: 'x', intersect: false},
            plugins: {
              decimation: {enabled: true, algorithm: 'min-max'},
              legend: {
                display: sets.length > 1,
                labels: {
                  usePointStyle: true,
                  pointStyle: 'line',
                  filter: (item, data) => !data.datasets[item.datasetIndex].band &&
                      (runs.length < 2 ||
                       data.datasets.findIndex(
                           (set) =>
                               !set.band && set.run === data.datasets[item.datasetIndex].run) ===
                           item.datasetIndex),
                  ...(runs.length < 2 ? {} : {
                    generateLabels: (chart) =>
                        Chart.defaults.plugins.legend.labels.generateLabels(chart).map(
                            (item) => ({
                              ...item,
                              text: chart.data.datasets[item.datasetIndex].run,
                              pointStyle:
                                  chart.data.datasets[item.datasetIndex].shape || item.pointStyle
                            }))
                  })
                }
              },
              tooltip: {
                filter: (item) => !item.dataset.band,
                callbacks: {
                  title: (items) => `${name} ${xText(items[0].parsed.x)}`,
                  label: (item) => `${item.dataset.label}: ${text(item.parsed.y)}`
                }
              }
            }
          }
        })
      });
    };
    const column = (run, xs, key) => run.metrics.map((row, i) => [xs[i], row[key]]).filter(([, y]) => Number.isFinite(y));
    const level = (run, xs, value) => (Number.isFinite(value) && value > 0 && xs.length ? [[xs[0], value], [xs[xs.length - 1], value]] : []);
    const {digits} = rafter;
    const CHARTS = [
      {
        id: 'reward',
        title: 'Reward',
        tall: true,
        text: digits,
        lines: (run, xs) =>
            [{label: 'training', values: column(run, xs, 'reward'), smooth: true, key: 'reward'},
             {label: 'evaluation', values: column(run, xs, 'eval_reward'), marks: true, shift: 1}]
      },
      {
        id: 'loss',
        title: 'Loss',
        tall: true,
        text: digits,
        log: true,
        lines: (run, xs) =>
            [{label: 'training', values: column(run, xs, 'loss'), smooth: true, key: 'loss'},
             {label: 'validation', values: column(run, xs, 'val_loss'), marks: true, shift: 1}]
      },
      {
        id: 'seconds',
        title: 'Step time',
        text: rafter.seconds,
        cuts: true,
        from0: true,
        lines: (run, xs) =>
            [{label: 'measured', values: column(run, xs, 'seconds'), smooth: true, key: 'seconds'},
             {label: 'predicted', values: column(run, xs, 'predicted_seconds'), dash: [6, 4], shift: 1}]
      },
      {
        id: 'rate',
        title: 'Tokens per second',
        text: rafter.count,
        from0: true,
        lines: (run, xs) => {
          const measured = column(run, xs, 'tokens_per_second');
          const plan = run.plan && run.plan.rate && run.plan.rate.tokens_per_second;
          return [
            {label: 'measured', values: measured, smooth: true, key: 'tokens_per_second'}, {
              label: 'predicted',
              values: measured.length ? level(run, xs, plan) : [],
              dash: [6, 4],
              shift: 1
            }
          ];
        }
      },
      {id: 'lr', title: 'Learning rate', text: digits, lines: (run, xs) => [{label: 'learning rate', values: column(run, xs, 'lr')}]},
      {
        id: 'grad_norm',
        title: 'Gradient norm',
        text: digits,
        log: true,
        lines: (run, xs) => [{label: 'gradient norm', values: column(run, xs, 'grad_norm'), smooth: true, key: 'grad_norm'}]
      },
      {
        id: 'accuracy',
        title: 'Accuracy of the next token',
        text: (value) => `${Number((100 * value).toPrecision(3))} %`,
        lines: (run, xs) => [{label: 'training', values: column(run, xs, 'accuracy'), smooth: true, key: 'accuracy'}]
      },
    ];
    const toggle = (title, act) => {
      const button =
          el('button', {
            type: 'button',
            'aria-pressed': 'false',
            'data-toggle': title,
            onclick: () => {
              const on = button.getAttribute('aria-pressed') !== 'true';
              button.setAttribute('aria-pressed', String(on));
              act(on);
              redraw();
            }
          },
             title);
      return button;
    };
    element.append(
        el('div', {class: 'bar'}, 'Over', rafter.choice('Abscissa', [['step', 'Steps'], ['tokens', 'Tokens'], ['time', 'Time']], 'step', (by) => {
          state.by = by;
          redraw();
        }), toggle('Smooth', (on) => {
             smoothing = on;
           }), toggle('Logarithmic', (on) => {
             logarithmic = on;
           })));
    const rows = runs.map((run) => {
      const spread = run.step_seconds || {}, last = run.metrics[run.metrics.length - 1],
            validated = run.metrics.filter((row) => Number.isFinite(row.val_loss));
      return {
        name: rafter.runName(run),
        steps: run.metrics.reduce((sum, row) => sum + (row.step === 0 ? 0 : row.steps || 1), 0),
        loss: last.loss,
        validation: validated.length ? validated[validated.length - 1].val_loss : null,
        median: spread.median,
        low: spread.least,
        p90: spread.p90,
        high: spread.most,
        predicted: last.predicted_seconds
      };
    });
    state.spread = rows;
    element.append(
        rafter.table(
            [
              {title: 'Run', value: (row) => row.name},
              {title: 'Steps', number: true, value: (row) => row.steps, text: (row) => rafter.whole(row.steps)},
              {title: 'Last loss', number: true, value: (row) => row.loss, text: (row) => digits(row.loss ?? NaN)},
              {
                title: 'Last validation',
                number: true,
                value: (row) => row.validation ?? -1,
                text: (row) => (row.validation === null ? '–' : digits(row.validation))
              },
              {title: 'Step, median', number: true, value: (row) => row.median ?? -1, text: (row) => rafter.seconds(row.median)},
              {title: 'minimum', number: true, value: (row) => row.low ?? -1, text: (row) => rafter.seconds(row.low)},
              {title: '90 %', number: true, value: (row) => row.p90 ?? -1, text: (row) => rafter.seconds(row.p90)},
              {title: 'maximum', number: true, value: (row) => row.high ?? -1, text: (row) => rafter.seconds(row.high)},
              {title: 'predicted', number: true, value: (row) => row.predicted ?? -1, text: (row) => rafter.seconds(row.predicted)},
            ],
            rows, {caption: 'Step times leave out the first step, whose caches are cold.'}),
        place);
    redraw();
  };

  rafter.panel({
    id: 'curves',
    title: 'Loss and rates',
    order: 50,
    about: 'Metrics of every training step; predictions are dashed.',
    available: (model) => rafter.objects(model.runs).length > 0,
    missing: (model) =>
        (rafter.objects(model.runs).some((run) => rafter.objects(run.metrics).length) ?
             '' :
             'The report has no training run.'),
    render(element, model) {
      const runs = rafter.objects(model.runs)
                       .filter((run) => rafter.objects(run.metrics).length)
                       .map((run) => ({...run, metrics: rafter.objects(run.metrics)}));
      if (!runs.length) {
        element.append(rafter.empty(
            'The report has no training run. ', rafter.code('rafter train'), ' writes metrics of every step into its folder; ',
            rafter.code('rafter report RUN'), ' shows them.'));
        return;
      }
      render(element, runs);
    },
  });
})();
