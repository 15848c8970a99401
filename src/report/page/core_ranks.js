/* core_ranks.js - figures of the ranks of a run: a table of their time and memory, and the idle time of
 * pipeline stages. */
(() => {
  const {el} = rafter;

  /* The time and the memory of each rank of a run on several ranks; '' for other runs. */
  rafter.rankTable = (run) => {
    const ranks = (run && run.measured && run.measured.ranks) || {}, all = ranks.seconds,
          rows = rafter.objects(ranks.waits).map((one, rank) => ({...one, rank}));
    if (rows.length < 2 || !(all > 0)) return '';
    const slowest = ranks.slowest && rows[ranks.slowest.rank];
    const time = (title, key) => ({
      title,
      number: true,
      value: (row) => row[key] ?? -1,
      text: (row) => (
          Number.isFinite(row[key]) ? `${rafter.seconds(row[key])} (${rafter.percent(row[key] / all)})` : '–')
    });
    const bytes = (title, key) => ({
      title,
      number: true,
      value: (row) => row[key] ?? -1,
      text: (row) => (Number.isFinite(row[key]) ? rafter.whole(row[key]) : '–')
    });
    rafter.state.rankTable = {rows: rows.length, slowest: slowest ? slowest.rank : null};
    return el(
        'div', {id: 'summary-ranks'}, el('h3', {}, 'By rank'),
        rafter.table(
            [
              {
                title: 'Rank',
                number: true,
                value: (row) => row.rank,
                node: (row) => (row === slowest ? el('strong', {}, `${row.rank} (slow)`) : String(row.rank))
              },
              {title: 'Host', value: (row) => row.host ?? '–'},
              {title: 'Threads', number: true, value: (row) => row.threads ?? '–'},
              time('Own work', 'work_seconds'),
              time('Waits for slower ranks', 'slow_rank_seconds'),
              time('Waits for the network', 'network_seconds'),
              ...(rows.some((row) => row.stage_seconds > 0) ? [time('Waits for other stages', 'stage_seconds')] : []),
              time('Waits between steps', 'between_seconds'),
              bytes('Planned bytes', 'planned_bytes'),
              bytes('Allocated bytes', 'allocated_bytes'),
            ],
            rows, {
              sort: -1,
              limit: 16,
              caption: `All steps together took ${
                  rafter.seconds(all)}. Own work: the time without waits for other ranks.${
                  slowest ? ` Rank ${slowest.rank} is slow: its own work takes ${
                                rafter.seconds(
                                    ranks.slowest
                                        .excess_seconds)} longer in a step than the mean of the others (± ${
                                rafter.seconds(ranks.slowest.noise_seconds)}).` :
                            ' No rank is slower than the others by more than the noise of their steps.'}`
            }));
  };

  /* The measured busy and idle time of each pipeline stage, as the mean of its ranks: [{busy_seconds, ...,
   * ranks}] by stage; null: not measured. */
  rafter.measuredStages = (run) => {
    const ranks = rafter.objects(run && run.trace && run.trace.header && run.trace.header.ranks)
                      .filter((rank) => rank.bubble && Number.isInteger(rank.stage)),
          stages = [];
    for (const {stage} of ranks) {
      const own = ranks.filter((rank) => rank.stage === stage).map((rank) => rank.bubble);
      stages[stage] =
          Object.fromEntries(['seconds', 'busy_seconds', 'idle_seconds', 'fill_seconds', 'drain_seconds']
                                 .map((key) => [key, rafter.meanOf(own, key)])
                                 .concat([['ranks', own.length], ['steps', own[0].steps]]));
    }
    return ranks.length ? stages : null;
  };
})();
