/* trace_ranks.js - the trace viewer's ranks: which lanes are shown, and a table of the ranks' time. */
(() => {
  const {el} = rafter, FEW = 16;
  const nameOf = ({rank, host}) => `rank ${rank}${host ? ` (${host})` : ''}`;

  /* Makes a rank the one of the sums, tables and search. */
  const setRank = (viewer, r) => {
    if (r === viewer.rank || !viewer.trace.ranks[r] || !viewer.trace.ranks[r].main) return;
    Object.assign(
        viewer,
        {rank: r, main: viewer.trace.ranks[r].main, latest: null, cursor: null, minimapPicture: null});
    viewer.state.rank = r;
    viewer.recount();
    viewer.countMatches();
    rafter.traceParts.gaps(viewer);
    rafter.traceParts.details(viewer);
    viewer.changed();
  };
  const shown = (viewer) => {
    viewer.state.open = [...viewer.open].sort((a, b) => a - b);
    (viewer.rankNodes ||
     []).forEach((button, r) => button.setAttribute('aria-pressed', String(viewer.open.has(r))));
    viewer.layOut();
    viewer.fillLegend();
    viewer.changed();
  };
  const toggleRank = (viewer, r) => {
    if (viewer.open.has(r))
      viewer.open.delete(r);
    else
      viewer.open.add(r);
    if (viewer.selected && !viewer.open.has(viewer.selected.row.rank) && viewer.selected.row.kind !== 'rank')
      viewer.select(null);
    setRank(viewer, r);
    shown(viewer);
    rafter.announce(`${nameOf(viewer.trace.ranks[r])} ${viewer.open.has(r) ? 'open' : 'closed'}`);
  };
  const openRank = (viewer, r) => {
    if (viewer.open.has(r)) return;
    viewer.open.add(r);
    shown(viewer);
  };
  const toggleAll = (viewer) => {
    const all = viewer.trace.ranks.map((rank, r) => r);
    viewer.open = new Set(viewer.open.size < all.length ? all : []);
    shown(viewer);
  };

  /* Buttons that open and close the lanes of each rank; with many ranks, a list. Null: the trace has one
   * process. */
  const rankButtons = (viewer) => {
    const {ranks} = viewer.trace;
    if (ranks.length < 2) return null;
    if (ranks.length > FEW)
      return el(
          'select', {
            'aria-label': 'Open a rank',
            onchange: (event) => {
              setRank(viewer, Number(event.target.value));
              openRank(viewer, Number(event.target.value));
            }
          },
          ranks.map((rank, r) => el('option', {value: r}, nameOf(rank))));
    viewer.rankNodes = ranks.map(
        (rank, r) =>
            el('button', {
              type: 'button',
              'aria-pressed': String(viewer.open.has(r)),
              'data-rank': r,
              'aria-label': `Lanes of ${nameOf(rank)}`,
              title: `Open or close the lanes of ${nameOf(rank)} (r)`,
              onclick: () => toggleRank(viewer, r)
            },
               String(rank.rank)));
    return el('span', {class: 'group'}, viewer.rankNodes);
  };

  /* Seconds of a rank's own thread by cause, as means of a step from its begin to the begin of the next one.
   */
  const timesOf = ({header, ranks}, rank) => {
    const names = (header.gaps || []).map(String),
          steps = rank.steps.filter((step) => Array.isArray(step.gaps));
    const pieces = steps.flatMap((step) => (step.after ? [step, step.after] : [step]));
    const gap = (name) => pieces.reduce(
        (all, {gaps}) => all +
            gaps.reduce((sum, list) => sum + ((Array.isArray(list) && list[names.indexOf(name)]) || 0), 0),
        0);
    const whole = steps.reduce(
                      (all, step) => all + ((step.after ? step.after.end : step.end) - step.begin) / 1e9, 0) *
        (rank.threads || 1),
          count = (steps.length || 1) * (rank.threads || 1);
    const work = pieces.reduce((all, piece) => all + (piece.work || 0), 0), slow = gap('slow rank'),
          network = gap('network');
    return {
      rank,
      index: ranks.indexOf(rank),
      steps: steps.length,
      work: work / count,
      slow: slow / count,
      network: network / count,
      other: Math.max(0, whole - work - slow - network) / count,
      whole: whole / count
    };
  };

  const tableOfRanks = (viewer, element) => {
    const {trace} = viewer, {ranks, header} = trace;
    if (ranks.length < 2) return;
    const rows = ranks.map((rank) => timesOf(trace, rank)), said = rafter.objects(header.ranks);
    const time = (title, key) => ({
      title,
      number: true,
      value: (row) => row[key],
      text: (row) => `${rafter.seconds(row[key])} (${rafter.percent(row[key] / row.whole)})`
    });
    viewer.state.ranks =
        rows.map(({index, work, slow, network, whole}) => ({index, work, slow, network, whole}));
    element.append(
        el('h3', {}, 'Ranks'),
        rafter.table(
            [
              {title: 'Rank', number: true, value: (row) => row.rank.rank},
              {title: 'Host', value: (row) => row.rank.host || '–'},
              {title: 'Threads', number: true, value: (row) => row.rank.threads},
              {
                title: 'Step',
                number: true,
                value: (row) => row.whole,
                text: (row) => rafter.seconds(row.whole)
              },
              time('In ops', 'work'),
              time('Waits for slower ranks', 'slow'),
              time('Waits for the network', 'network'),
              time('Other', 'other'),
              {
                title: 'Clock',
                number: true,
                value: (row) => said[row.index].clock_error_seconds ?? 0,
                text: (row) =>
                    (row.index ?
                         `${rafter.signed(rafter.seconds, said[row.index].clock_ahead_seconds || 0)} ± ${
                             rafter.seconds(said[row.index].clock_error_seconds || 0)}` :
                         '–')
              },
            ],
            rows, {
              caption:
                  'Means of a recorded step, from its begin to the begin of the next one, over the threads of ' +
                  'a rank. Clock: how far the clock of the rank is ahead of that of rank 0. Its times in the ' +
                  'lanes are corrected by this, and are wrong by at most the number after ±. A click on a row ' +
                  'opens the lanes of the rank.',
              sort: -1,
              onrow: (row) => {
                setRank(viewer, row.index);
                openRank(viewer, row.index);
              }
            }));
  };

  Object.assign(
      rafter.traceParts,
      {setRank, openRank, toggleRank, toggleAll, rankButtons, ranks: tableOfRanks, nameOf});
})();
