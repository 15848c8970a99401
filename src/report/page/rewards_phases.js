/* rewards_phases.js - the time of each phase of reinforcement learning, measured next to predicted. */
(() => {
  const {el} = rafter;

  /* A step's phases, in their order. The colours are far apart for all readers. */
  const PHASES = [
    {key: 'sample', title: 'sampling', colour: 'c4'},
    {key: 'reward', title: 'rewards', colour: 'op-exchange'},
    {key: 'score', title: 'scoring', colour: 'c2'}, {key: 'train', title: 'training', colour: 'c5'}
  ];

  /* At most `most` bars, each of which has the same number of steps: [{text, rows}]. */
  const barsOf = (rows, most) => {
    const each = Math.ceil(rows.length / most);
    return Array.from({length: Math.ceil(rows.length / each)}, (_, i) => {
      const part = rows.slice(i * each, (i + 1) * each);
      const [first, last] = [part[0].step - (part[0].steps || 1) + 1, part[part.length - 1].step];
      return {
        text: first < last ? `${rafter.whole(first)}–${rafter.whole(last)}` : rafter.whole(last),
        rows: part
      };
    });
  };

  /* Shows the seconds of each phase. `state` gets the means. */
  rafter.rewardPhases = (element, rows, state) => {
    const keyOf = (phase, side) =>
        `${side === 'predicted' ? 'predicted_' : ''}${phase.key}_seconds`;
    const timed = PHASES.filter(
        (phase) => rows.some(
            (row) => Number.isFinite(row[keyOf(phase, 'measured')]) ||
                Number.isFinite(row[keyOf(phase, 'predicted')])));
    if (!timed.length) return;
    const sides = ['measured', 'predicted'].filter(
        (side) => timed.some((phase) => Number.isFinite(rafter.meanOf(rows, keyOf(phase, side)))));
    const bars = barsOf(rows, Math.max(8, Math.min(60, Math.floor(window.innerWidth / 36))));
    state.phases =
        sides
            .flatMap(
                (side) => timed.map(
                    (phase) => ({side, phase: phase.key, mean: rafter.meanOf(rows, keyOf(phase, side))})))
            .filter(({mean}) => Number.isFinite(mean));
    const chart = el('div'), both = sides.length === 2;
    element.append(
        el('h3', {}, 'Time of each phase'),
        el('p', {class: 'note'},
           both ? 'Each pair of bars: measured (left, solid) and predicted (right, pale).' :
                  `The times are ${sides[0]}.`,
           bars.length < rows.length ? ' A bar is the mean of several steps.' : ''));
    rafter.chart(chart, {
      label: 'Seconds of each phase per step, measured and predicted',
      height: 300,
      config: () => ({
        type: 'bar',
        data: {
          labels: bars.map((bar) => bar.text),
          datasets: sides.flatMap(
              (side) => timed.map((phase) => ({
                                    label: `${phase.title}, ${side}`,
                                    side,
                                    stack: side,
                                    data: bars.map((bar) => rafter.meanOf(bar.rows, keyOf(phase, side))),
                                    backgroundColor: `${rafter.colour(phase.colour)}${
                                        side === 'predicted' ? '66' : ''}`,
                                    borderColor: rafter.colour(phase.colour),
                                    borderWidth: side === 'predicted' ? 1 : 0,
                                    categoryPercentage: 0.78,
                                    barPercentage: 1
                                  })))
        },
        options: {
          scales: {
            x: {
              stacked: true,
              title: {display: true, text: 'step'},
              grid: {display: false},
              ticks: {maxRotation: 0, autoSkipPadding: 12}
            },
            y: {
              ...rafter.axis('Seconds per step', rafter.seconds, {beginAtZero: true}),
              stacked: true
            }
          },
          interaction: {mode: 'index', intersect: false},
          plugins: {
            legend: {
              labels: {
                boxWidth: 12,
                filter: (item, data) => data.datasets[item.datasetIndex].side === sides[0],
                generateLabels: (drawn) =>
                    Chart.defaults.plugins.legend.labels.generateLabels(drawn).map(
                        (item, i) => ({...item, text: timed[i % timed.length].title}))
              }
            },
            tooltip: {
              filter: (item) => Number.isFinite(item.parsed.y),
              callbacks: {
                title: (items) => (items.length ? `step ${items[0].label}` : ''),
                label: (item) => `${item.dataset.label}: ${rafter.seconds(item.parsed.y)}`
              }
            }
          }
        }
      })
    });
    const whole = {
      title: 'whole step',
      measured: rafter.meanOf(rows, 'seconds'),
      predicted: rafter.meanOf(rows, 'predicted_seconds')
    };
    const table = [
      ...timed.map((phase) => ({
                     title: phase.title,
                     measured: rafter.meanOf(rows, keyOf(phase, 'measured')),
                     predicted: rafter.meanOf(rows, keyOf(phase, 'predicted')),
                     rate: rafter.meanOf(rows, `${phase.key}_tokens_per_second`),
                     limit: rafter.meanOf(rows, `${phase.key}_limit_fraction`)
                   })),
      ...(Number.isFinite(whole.measured) ? [whole] : [])
    ];
    const number = (title, value, text) => ({
      title,
      number: true,
      value,
      text: (row) => (Number.isFinite(value(row)) ? text(value(row)) : '–')
    });
    element.append(
        el('div', {class: 'columns beside'}, chart,
           rafter.table(
               [
                 {title: 'Phase', value: (row) => row.title},
                 number('Measured', (row) => row.measured, rafter.seconds),
                 number('Predicted', (row) => row.predicted, rafter.seconds),
                 number('Ratio', (row) => row.measured / row.predicted, rafter.times),
                 number('Tokens/s', (row) => row.rate, rafter.count),
                 number('Of limit', (row) => row.limit, rafter.percent)
               ],
               table, {caption: 'Means over all steps.'})));
  };
})();
