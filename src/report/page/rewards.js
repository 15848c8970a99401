/* rewards.js - reinforcement learning: rewards, answers, the policy's change, and the time of each phase. */
(() => {
  const {el, digits} = rafter;

  const LEFT = 78; /* pixels of the left axis: charts below each other have the same left edge */
  const share = (value) => `${Number((100 * value).toPrecision(3))} %`;
  const hasRewards = (run) =>
      rafter.objects(run && run.metrics).some((row) => Number.isFinite(row.reward));
  const column = (rows, xs, key) =>
      rows.map((row, i) => ({x: xs[i], y: row[key]})).filter(({y}) => Number.isFinite(y));
  /* ---- curves -------------------------------------------------------------------------------- */

  const PARTS = ['c4', 'c5', 'c2', 'op-exchange'];
  /* A line of a chart: {label, key or points, colour, dash?, marks?: points only, right?: right axis,
   * low, high and band: keys and label of a band}. */
  const componentLines = (rows, xs) => {
    const names = [...new Set(rows.flatMap(
        (row) => ['rewards', 'eval_rewards'].flatMap((key) => Object.keys(row[key] || {}))))];
    if (names.length < 2) return [];
    return names.flatMap(
        (name, i) => ['rewards', 'eval_rewards'].map(
            (key) => ({
              label: key === 'rewards' ? name : `${name}, evaluation`,
              points: rows.map((row, r) => ({x: xs[r], y: (row[key] || {})[name]}))
                          .filter(({y}) => Number.isFinite(y)),
              colour: PARTS[i % 4],
              dash: [undefined, [6, 3], [2, 3]][Math.floor(i / 4) % 3],
              marks: key === 'eval_rewards'
            })));
  };
  /* A band around the mean: the mean minus and plus the standard deviation. */
  const spreadOf = (rows) => rows.map(
      (row) => ({...row, low: row.reward - row.reward_std, high: row.reward + row.reward_std}));

  const CHARTS = [
    {
      id: 'reward',
      title: 'Reward',
      tall: true,
      left: ['Reward', digits],
      lines: (rows) =>
          [{
            label: 'mean',
            key: 'reward',
            colour: 'c4',
            low: 'low',
            high: 'high',
            rows: spreadOf(rows),
            band: 'mean ± standard deviation'
          },
           {label: 'minimum (dotted)', key: 'reward_min', colour: 'c7', dash: [2, 3]},
           {label: 'maximum (dashed)', key: 'reward_max', colour: 'c7', dash: [6, 3]},
           {label: 'evaluation', key: 'eval_reward', colour: 'c5', marks: true}]
    },
    {
      id: 'components',
      title: 'Components of the reward',
      left: ['Reward', digits],
      lines: componentLines
    },
    {
      id: 'length',
      title: 'Length of answers',
      left: ['Tokens per answer', rafter.count, {beginAtZero: true}],
      right: ['Answers cut off', share, {min: 0, suggestedMax: 0.1}],
      lines: () =>
          [{label: 'mean', key: 'answer_tokens', colour: 'c4'},
           {label: 'maximum (dashed)', key: 'answer_tokens_max', colour: 'c4', dash: [6, 3]},
           {label: 'cut off (right axis)', key: 'cut_fraction', colour: 'c5', right: true}]
    },
    {
      id: 'policy',
      title: 'Entropy and KL divergence',
      left: ['Entropy (nats/token)', digits, {beginAtZero: true}],
      right: ['KL (nats/token)', digits, {beginAtZero: true}],
      lines: () =>
          [{label: 'entropy', key: 'entropy', colour: 'c4'},
           {label: 'KL from the reference (right axis)', key: 'kl', colour: 'c5', right: true}]
    },
    {
      id: 'ratio',
      title: 'Ratio and clipping',
      left: ['Ratio', digits],
      right: ['Tokens clipped', share, {min: 0, suggestedMax: 0.01}],
      lines: () =>
          [{
            label: 'mean',
            key: 'ratio_mean',
            colour: 'c4',
            low: 'ratio_min',
            high: 'ratio_max',
            band: 'minimum to maximum'
          },
           {label: 'clipped (right axis)', key: 'clip_fraction', colour: 'c5', right: true}]
    },
    {
      id: 'loss',
      title: 'Loss and gradient norm',
      left: ['Loss', digits],
      right: ['Gradient norm', digits, {beginAtZero: true}],
      lines: () =>
          [{label: 'loss', key: 'loss', colour: 'c4'},
           {label: 'gradient norm (right axis)', key: 'grad_norm', colour: 'c5', right: true}]
    },
    {
      id: 'flat',
      title: 'Groups without signal',
      left: ['Groups', digits, {beginAtZero: true}],
      lines: (rows) =>
          [{label: 'groups whose answers have equal rewards', key: 'flat_groups', colour: 'c5'},
           {label: 'all groups (dashed)', key: 'groups', colour: 'c7', dash: [6, 3]},
           ...(rows.some((row) => row.prompts > row.groups) ?
                   [{label: 'sampled prompts', key: 'prompts', colour: 'c4'}] :
                   [])]
    },
    {
      id: 'rate',
      title: 'Tokens per second',
      left: ['Tokens/s', rafter.count, {beginAtZero: true}],
      right: ['Fraction of the limit', share, {min: 0, suggestedMax: 1}],
      lines: () =>
          [{label: 'sampling', key: 'sample_tokens_per_second', colour: 'c4'},
           {label: 'training', key: 'train_tokens_per_second', colour: 'c5'}, {
             label: 'sampling, of limit (dotted, right axis)',
             key: 'sample_limit_fraction',
             colour: 'c4',
             dash: [2, 3],
             right: true
           },
           {
             label: 'training, of limit (dotted, right axis)',
             key: 'train_limit_fraction',
             colour: 'c5',
             dash: [2, 3],
             right: true
           }]
    }
  ];

  /* The datasets of a line: first the edges of its band. */
  const datasetsOf = (line, text) => {
    const colour = rafter.colour(line.colour), few = line.points.length < 2;
    const common = {parsing: false, borderColor: colour, yAxisID: line.right ? 'right' : 'y', text};
    const edge = (points, fill, label) => ({
      ...common,
      label,
      data: points,
      band: true,
      fill,
      borderWidth: 0,
      pointRadius: 0,
      pointHitRadius: 0,
      backgroundColor: `${colour}38`
    });
    const pale = line.edges && !few ?
        [edge(line.edges.high, '+1', line.band), edge(line.edges.low, false, '')] :
        [];
    return [
      ...pale, {
        ...common,
        label: line.label,
        data: line.points,
        backgroundColor: colour,
        borderWidth: line.marks ? 1 :
            line.dash           ? 1.4 :
                                  1.8,
        borderDash: line.marks ? [2, 3] : line.dash,
        pointRadius: line.marks || few ? (line.points.length > 60 ? 2 : 5) : 0,
        pointStyle: line.marks ? 'rectRot' : 'circle',
        pointHitRadius: 6,
        clip: {left: 8, right: 8, top: 8, bottom: 8}
      }
    ];
  };

  const chartOf = (place, chart, lines, {name, text, ends, choose}) => {
    const right = lines.some((line) => line.right) && chart.right,
          left = lines.some((line) => !line.right);
    const axisOf = ([title, words, more], position) => ({
      ...rafter.axis(title, words, more),
      position,
      ...(position === 'right' && left ? {grid: {drawOnChartArea: false}} : {}),
      ...(position === 'left' ? {
        afterFit: (axis) => {
          axis.width = LEFT;
        }
      } :
                                {})
    });
    const textOf = (line) => (line.right ? chart.right : chart.left)[1];
    place.append(el('h3', {}, chart.title));
    rafter.chart(place, {
      label: `${chart.title} over ${name}`,
      height: chart.tall          ? 380 :
          window.innerWidth < 700 ? 300 :
                                    250, /* legends are taller on narrow screens */
      config: () => ({
        type: 'line',
        data: {datasets: lines.flatMap((line) => datasetsOf(line, textOf(line)))},
        options: {
          parsing: false,
          normalized: true,
          onClick:
              choose && ((event, found, drawn) => choose(drawn.scales.x.getValueForPixel(event.x))),
          scales: {
            x: rafter.axis(name, text, ends),
            ...(left ? {y: axisOf(chart.left, 'left')} : {}),
            ...(right ? {right: axisOf(chart.right, 'right')} : {})
          },
          interaction: {mode: 'nearest', axis: 'x', intersect: false},
          plugins: {
            decimation: {enabled: true, algorithm: 'min-max'},
            legend: {
              display: lines.length > 1 || lines.some((line) => line.edges),
              labels: {
                usePointStyle: true,
                boxWidth: 24,
                filter: (item) => Boolean(item.text),
                generateLabels: (drawn) =>
                    Chart.defaults.plugins.legend.labels.generateLabels(drawn).map((item) => {
                      const set = drawn.data.datasets[item.datasetIndex];
                      return {
                        ...item,
                        pointStyle: set.band             ? 'rect' :
                            set.pointStyle === 'rectRot' ? 'rectRot' :
                                                           'line'
                      };
                    })
              }
            },
            tooltip: {
              filter: (item) => !item.dataset.band,
              callbacks: {
                title: (items) => (items.length ? `${name} ${text(items[0].parsed.x)}` : ''),
                label: (item) => `${item.dataset.label}: ${item.dataset.text(item.parsed.y)}`
              }
            }
          }
        }
      })
    });
  };

  /* ---- the panel ----------------------------------------------------------------------------- */

  const cardsOf = (rows) => {
    const last = rows[rows.length - 1],
          tested = rows.filter((row) => Number.isFinite(row.eval_reward));
    const best = tested.reduce(
        (high, row) => (!high || row.eval_reward > high.eval_reward ? row : high), null);
    const latest = tested[tested.length - 1], groups = rafter.meanOf(rows, 'groups');
    const rewarded = rows.filter((row) => Number.isFinite(row.reward));
    const list = [
      [
        'Last reward', digits(rewarded[rewarded.length - 1].reward),
        `step ${rafter.whole(rewarded[rewarded.length - 1].step)}; first ${
            digits(rewarded[0].reward)}`
      ],
      best &&
          [
            'Best evaluation', digits(best.eval_reward),
            `step ${rafter.whole(best.step)}; last ${digits(latest.eval_reward)}`
          ],
      Number.isFinite(last.answer_tokens) &&
          [
            'Answer', `${rafter.count(Math.round(last.answer_tokens))} tokens`,
            Number.isFinite(last.cut_fraction) ? `mean; ${share(last.cut_fraction)} cut off` :
                                                 'mean of the last step'
          ],
      Number.isFinite(last.kl) && ['KL', `${digits(last.kl)} nats`, 'per token, last step'],
      groups > 0 && Number.isFinite(rafter.meanOf(rows, 'flat_groups')) &&
          [
            'Without signal', rafter.percent(rafter.meanOf(rows, 'flat_groups') / groups),
            'of all groups'
          ],
      Number.isFinite(rafter.meanOf(rows, 'seconds')) &&
          [
            'Step', rafter.seconds(rafter.meanOf(rows, 'seconds')),
            Number.isFinite(rafter.meanOf(rows, 'predicted_seconds')) ?
                `mean; predicted ${rafter.seconds(rafter.meanOf(rows, 'predicted_seconds'))}` :
                'mean'
          ]
    ];
    const cards = rafter.cards(list.filter(Boolean));
    cards.classList.add('small');
    return cards;
  };

  const render = (element, run) => {
    const rows = rafter.objects(run.metrics).map((row) => ({...row})),
          state = rafter.state.rewards = {by: 'step', charts: {}, phases: []};
    const top = el('div'), grid = el('div', {class: 'columns pairs'});
    const sampled = rafter.hasSamples && rafter.hasSamples(run);
    let elapsed = 0;
    const times = rows.map((row) => (elapsed += (row.seconds || 0) * (row.steps || 1)));
    const redraw = () => {
      const xs = state.by === 'time' ? times : rows.map((row) => row.step),
            across =
                state.by === 'time' ? ['time trained', rafter.seconds] : ['step', rafter.whole];
      const ends = rows.length > 1 ? {
        min: state.by === 'time'                            ? 0 :
            rows[0].step < 0.1 * rows[rows.length - 1].step ? 0 :
                                                              rows[0].step,
        max: xs[xs.length - 1]
      } :
                                     {};
      top.replaceChildren();
      grid.replaceChildren();
      for (const chart of CHARTS) {
        const lines =
            chart.lines(rows, xs)
                .map((line) => ({
                       ...line,
                       points: line.points || column(rows, xs, line.key),
                       edges: line.low &&
                           {
                             low: column(line.rows || rows, xs, line.low),
                                 high: column(line.rows || rows, xs, line.high)
                           }
                     }))
                .map(
                    (line) =>
                        (line.edges && !line.edges.low.length ? {...line, edges: undefined} : line))
                .filter((line) => line.points.length);
        if (!lines.length) continue;
        state.charts[chart.id] = lines.map((line) => ({
                                             label: line.label,
                                             points: line.points.length,
                                             last: line.points[line.points.length - 1].y
                                           }));
        const place = chart.tall ? top : grid.appendChild(el('div'));
        const choose = sampled && state.by === 'step' ?
            (step) => rafter.showSamples(Math.round(step)) :
            undefined;
        chartOf(place, chart, lines, {name: across[0], text: across[1], ends, choose});
        if (chart.tall && choose)
          place.append(el('p', {class: 'note screen'}, 'A click on a step shows its answers.'));
      }
    };
    element.append(
        cardsOf(rows),
        el('div', {class: 'bar'}, 'Over',
           rafter.choice(
               'Abscissa', [['step', 'Steps'], ['time', 'Time']], 'step',
               (by) => {
                 state.by = by;
                 redraw();
               })),
        top, grid);
    redraw();
    rafter.rewardPhases(element, rows.filter((row) => row.step > 0), state);
    if (run.metrics_skipped > 0)
      element.append(
          el('p', {class: 'note'},
             `metrics.jsonl has ${
                 rafter.whole(run.metrics_skipped)} wrong lines or values, which are left out.`));
  };

  rafter.panel({
    id: 'rewards',
    title: 'Rewards',
    order: 52,
    perRun: true,
    about:
        'Reinforcement learning: rewards, answers, the change of the policy, and the time of each phase.',
    available: (model) => rafter.objects(model.runs).some(hasRewards),
    missing: (model, run) => (hasRewards(run) ? '' : 'This run has no rewards.'),
    render(element, model, run) {
      if (hasRewards(run)) render(element, run);
      else
        element.append(
            rafter.empty('This run has no rewards. ', rafter.code('rafter rl'), ' writes them.'));
    },
  });
})();
