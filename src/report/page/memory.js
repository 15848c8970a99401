/* memory.js - the memory panel: figures of a plan, stages of a pipeline, tables of tensors by kind. memory_viewer.js draws the picture. */
(() => {
  const {el} = rafter, {read, kindsOf} = rafter.arena;

  /* A shape as text; the rows of an activation are shown as sequences times tokens. */
  const shapeText = ({shape, class: of}, {microbatch = 0, seq = 0} = {}) => {
    const rows = ['activation', 'logits', 'io'].includes(of) && microbatch > 1 && seq > 1 ? microbatch * seq : -1;
    return `(${shape.map((size, i) => (i === 0 && size === rows ? `${microbatch} × ${seq}` : size)).join(', ')})`;
  };

  const kindTable = (kinds, plan, options) => rafter.table(
      [
        {title: 'Bytes', number: true, value: (one) => one.bytes, text: (one) => rafter.bytes(one.bytes)},
        {
          title: 'Each',
          number: true,
          value: (one) => one.each_bytes,
          text: (one) => (one.count > 1 ? `${one.count} × ${rafter.bytes(one.each_bytes)}` : '')
        },
        {title: 'Tensor', value: (one) => one.name},
        {title: 'Shape', value: (one) => shapeText(one, plan.settings)},
        {title: 'Type', value: (one) => rafter.dtype(one.dtype)},
        {title: 'Class', value: (one) => one.class, node: (one) => [rafter.swatch(rafter.tensorColour(one.class)), one.class]},
        {title: 'Reason', value: (one) => one.reason || ''},
      ],
      kinds, {sort: 0, limit: 15, ...options});

  rafter.memoryParts = {shapeText, kindTable};

  const pictured = (plan) => plan && Array.isArray(plan.tensors) && plan.tensors.length > 0 && Array.isArray(plan.ops) && plan.ops.length > 0 &&
      plan.ops[0].live_bytes !== undefined;

  /* Notes on the picture if it shows another program or only one pipeline stage. */
  const about = (body, plan, run) => {
    const program = plan.memory.program, pipeline = plan.pipeline;
    if (program)
      body.append(
          el('p', {class: 'note'},
             `The figures are for a ${
                 program.name} program compiled by XLA; the picture shows rafter's own arena for the same model.`));
    if (!pipeline || !Array.isArray(pipeline.stage)) return;
    const stages = rafter.objects(pipeline.stage), found = rafter.measuredStages(run),
          rows = stages.flatMap(
              (stage, i) =>
                  [{...stage, of: 'predicted'},
                   ...(found && found[i] ? [{...found[i], stage: stage.stage, of: 'measured'}] : [])]);
    const value = (key, text) => ({
      number: true,
      value: (row) => row[key] ?? -1,
      text: (row) => (Number.isFinite(row[key]) ? text(row[key]) : '')
    }),
          seconds = (key) => value(key, rafter.seconds), bytes = (key) => value(key, rafter.bytes);
    const whole = (row) => row.seconds ?? (row.busy_seconds + (row.end_seconds || 0) + row.idle_seconds),
          share = (row) => row.idle_seconds / whole(row);
    rafter.state.stages =
        rows.map((row) => ({stage: row.stage, of: row.of, busy: row.busy_seconds, idle: row.idle_seconds}));
    body.append(
        el('p', {class: 'note'},
           `The picture shows stage ${pipeline.shown_stage} of ${pipeline.stages} (schedule ${
               pipeline.schedule}, ${pipeline.microbatches} microbatches).${
               found ?
                   ` Measured times are means of ${
                       rafter.whole(
                           found.find(Boolean)
                               .steps)} recorded steps. A stage is idle while it receives or sends, and after its last microbatch while it waits for slower ranks.` :
                   ''}`),
        rafter.table(
            [
              {title: 'Stage', number: true, value: (row) => row.stage},
              ...(found ? [{title: 'Figures', value: (row) => row.of}] : []),
              {
                title: 'Layers',
                value: (row) => row.first_layer ?? -1,
                text: (row) => (
                    row.of === 'predicted' ? `${row.first_layer} to ${row.first_layer + row.layers - 1}` : '')
              },
              {
                title: 'In flight',
                number: true,
                value: (row) => row.in_flight ?? -1,
                text: (row) => (row.of === 'predicted' ? String(row.in_flight) : '')
              },
              {title: 'Peak', ...bytes('peak_bytes')},
              {title: 'Persistent', ...bytes('persistent_bytes')},
              {title: 'Held for microbatches', ...bytes('held_bytes')},
              {title: 'Busy', ...seconds('busy_seconds')},
              {title: 'Idle', ...seconds('idle_seconds')},
              {title: 'Idle share', number: true, value: share, text: (row) => rafter.percent(share(row))},
              {title: 'Before its first work', ...seconds('fill_seconds')},
              {title: 'After its last work', ...seconds('drain_seconds')},
            ],
            rows));
  };

  const cards = (plan) => {
    const m = plan.memory, list = [['Peak', rafter.bytes(m.peak_bytes), `${rafter.whole(m.peak_bytes)} bytes, at ${m.peak_op}`]];
    if (m.capacity_bytes)
      list.push([
        'Machine memory', rafter.bytes(m.capacity_bytes),
        `${m.reserve_bytes > 0 ? `${rafter.bytes(m.reserve_bytes)} reserved; ` : ''}${m.margin_bytes > 0 ? `${rafter.bytes(m.margin_bytes)} margin; ` : ''}${m.fits ? `fits, ${rafter.bytes(m.headroom_bytes)} left` : `does not fit: ${rafter.bytes(-m.headroom_bytes)} too large`}`
      ]);
    list.push(['Persistent', rafter.bytes(m.persistent_bytes), 'weights and states, kept between steps']);
    if (m.live_bytes)
      list.push(
          ['Live at the peak', rafter.bytes(m.live_bytes), `${rafter.bytes(m.by_class && m.by_class.padding)} of the arena are alignment and gaps`]);
    if (m.host_bytes) list.push(['In the host\'s memory', rafter.bytes(m.host_bytes), 'copied to the chip and back']);
    return rafter.cards(list);
  };

  rafter.panel({
    id: 'memory',
    title: 'Memory',
    order: 30,
    perRun: true,
    about: 'The arena: every tensor at its address, from the first op that needs it to the last.',
    available: (model) => rafter.objects(model.runs).some((run) => run.plan && run.plan.memory),
    missing: (model, run) => (run && run.plan && run.plan.memory ? '' : 'This run has no plan.'),
    render(element, model, run) {
      const plans = rafter.walks(run);
      rafter.memoryPanel = null;
      if (!plans.length) {
        element.append(
            el('p', {class: 'empty'}, 'This run has no plan. Report the output of `rafter plan MODEL --json --tensors --ops`.'));
        return;
      }
      const body = el('div');
      let now = -1, viewer = null, list = null;
      const place = (index) => {
        const {name, plan, measured} = plans[index];
        now = index, viewer = null;
        body.replaceChildren(cards(plan));
        if (!pictured(plan)) {
          body.append(el(
              'p', {class: 'empty'},
              'This plan lists no tensors, so there is no picture. Report a run, or the output of `rafter plan MODEL ... --json --tensors --ops`.'));
          if (plan.memory.largest) body.append(kindTable(plan.memory.largest, plan, {caption: 'Alive at the peak, largest first.'}));
          rafter.state.memory = {plan: name, curve: null};
          return;
        }
        const others = rafter.runs().flatMap(
            (other) =>
                rafter.plans(other).filter((one) => one.plan !== plan && pictured(one.plan)).map((one) => ({
                                                                                                   name: other === run ?
                                                                                                       one.name :
                                                                                                       rafter.plans(other).length > 1 ?
                                                                                                       `${rafter.runName(other)}: ${one.name}` :
                                                                                                       rafter.runName(other),
                                                                                                   plan: one.plan,
                                                                                                   of: other.of !== undefined && other.of === run.id
                                                                                                 })));
        about(body, plan, run);
        const host = plan.tensors.filter((tensor) => tensor.memory === 'host');
        const holder = el('div'); /* keys are removed with this element */
        body.append(holder);
        viewer = rafter.memoryParts.viewer(holder, read(name, plan, measured && rafter.objects(measured.ops)), others);
        if (host.length)
          body.append(el('h3', {}, 'In the host\'s memory'), kindTable(kindsOf(host), plan, {caption: 'These tensors are not in the arena; they are copied to the chip and back.'}));
      };
      /* The plan that needs most of the arena is shown first. */
      const needs = plans.map(({plan}) => (pictured(plan) ? plan.ops.reduce((most, op) => Math.max(most, op.top_bytes), 0) : 0)),
            first = needs.indexOf(Math.max(...needs));
      if (plans.length > 1) {
        list = rafter.select('Plan', plans.map((one) => one.name), place, {id: 'memory-plan', current: first});
        element.append(el('div', {class: 'bar'}, list));
      }
      /* Interface for other panels: shows an op of a plan. */
      rafter.memoryPanel = {
        choose(plan, op) {
          const index = plans.findIndex((one) => one.plan === plan);
          if (index < 0) return;
          if (index !== now) {
            if (list) list.querySelector('select').value = index;
            place(index);
          }
          if (viewer) viewer.showInstant(op.id);
        }
      };
      element.append(body);
      place(first);
    },
  });
})();
