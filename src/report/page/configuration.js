/* configuration.js - options, machine, model, versions and assumptions of all runs, side by side. */
(() => {
  const {el} = rafter;
  const text = (value) =>
      (value === null || value === undefined ? '–' :
           Array.isArray(value)              ? value.map(text).join(', ') :
           typeof value === 'object'         ? Object.entries(value).map(([key, inner]) => `${key}=${text(inner)}`).join(', ') || 'none' :
                   Number.isInteger(value)   ? rafter.whole(value) :
                   typeof value === 'number' ? String(Number(value.toPrecision(7))) :
                                               String(value));

  /* [key, value] pairs of an object, and with `deep` of its inner objects, in their order. */
  const flat = (object, deep = false) =>
      Object.entries(object || {})
          .flatMap(
              ([key, value]) =>
                  (deep && value && typeof value === 'object' && !Array.isArray(value) ? Object.entries(value).map(([k, v]) => [`${key}.${k}`, v]) :
                                                                                         [[key, value]]));

  /* A table of all runs by key; keys with different values come first, in bold. */
  const beside = (title, all, pairsOf, caption) => {
    const runs = all.filter((run) => pairsOf(run).length);
    const keys = new Map();
    runs.forEach((run, r) => pairsOf(run).forEach(([key, value]) => {
      if (!keys.has(key)) keys.set(key, {key, values: runs.map(() => undefined)});
      keys.get(key).values[r] = value;
    }));
    const rows = [...keys.values()].map((row) => ({...row, differs: new Set(row.values.map(text)).size > 1}));
    if (!rows.length) return null;
    rows.sort((a, b) => Number(b.differs) - Number(a.differs));
    const several = runs.length > 1;
    return [
      el('h3', {}, title),
      rafter.table(
          [
            {title: 'Name', value: (row) => row.key, node: (row) => (several && row.differs ? el('strong', {}, row.key) : row.key)},
            ...runs.map((run, r) => ({
                          title: several ? rafter.runName(run) : 'Value',
                          value: (row) => text(row.values[r]),
                          node: (row) => (several && row.differs ? el('strong', {}, text(row.values[r])) : text(row.values[r]))
                        }))
          ],
          rows, {caption: several ? 'Differences come first, in bold.' : caption})
    ];
  };

  const environment =
      ({
        run,
        plan
      }) => [['program', run && run.rafter], ['command', run && run.command], ['started', run && run.started], ['directory', run && run.directory],
             ['threads', run && run.threads], ['digest of the plan', (run && run.digest) || (plan && plan.digest)],
             ...(plan && plan.machine ?
                     [
                       ['machine', plan.machine.name], ['kind', plan.machine.kind], ['chips', plan.machine.chips],
                       ['source of figures', plan.machine.source],
                       ...Object.entries(plan.machine.ceilings || {})
                           .map(([
                                  key, value
                                ]) => [key.replace(/_/g, ' '), value && (key.includes('flops') ? rafter.rate(value) : rafter.bandwidth(value))])
                     ] :
                     []),
             ...(plan && plan.memory ?
                     [['memory of the machine', rafter.bytes(plan.memory.capacity_bytes)], ['reserved', rafter.bytes(plan.memory.reserve_bytes)], ...(plan.memory.margin_bytes > 0 ? [['margin (--fit)', rafter.bytes(plan.memory.margin_bytes)]] : [])] :
                     [])]
                .filter(([, value]) => value !== undefined && value !== null);
  const outside = ({start}) => flat(start && start.outside_arena_bytes).map(([key, value]) => [key.replace(/_/g, ' '), rafter.bytes(value)]);

  rafter.panel({
    id: 'configuration',
    title: 'Configuration',
    order: 80,
    about: 'Everything needed to repeat a run, and the assumptions of the plan.',
    available: (model) => rafter.objects(model.runs).length > 0,
    render(element, model) {
      const runs = rafter.objects(model.runs);
      rafter.state.configuration = {runs: runs.length, options: runs.map((run) => flat(run.run && run.run.options).length)};
      const parts = [
        beside('Machine and program', runs, environment),
        beside('Options', runs, (run) => flat(run.run && run.run.options), 'Every resolved option, which is enough to repeat the run.'),
        beside('Settings of the plan', runs, (run) => flat(run.plan && run.plan.settings)),
        beside('Model', runs, (run) => flat(run.plan && run.plan.model).filter(([key, value]) => value !== 0 || !key.startsWith('parameters_'))),
        beside('Outside the arena', runs, outside, 'Measured when the run started.')
      ];
      if (!runs.some((run) => run.run))
        element.append(
            el('p', {class: 'note'}, 'Plans without a run have no options. Report the folder of a run (', rafter.code('rafter report runs/ID'), ') to see them.'));
      element.append(...parts.filter(Boolean).flat());
      const said = [...new Set(runs.flatMap((run) => (run.plan && Array.isArray(run.plan.assumptions) ? run.plan.assumptions.map(text) : [])))];
      if (said.length) element.append(el('h3', {}, 'Assumptions'), el('ul', {}, said.map((line) => el('li', {}, line))));
    },
  });
})();
