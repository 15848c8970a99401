/* memory.js - the memory panel: figures of a plan, the stages of a pipeline, tables of kinds of tensors; the picture is memory_viewer.js's. */
(() => {
  const {el} = rafter, {read, kindsOf} = rafter.arena;

  /* The rows of an activation as sequences times their length. */
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
        {title: 'Type', value: (one) => one.dtype},
        {title: 'Class', value: (one) => one.class, node: (one) => [rafter.swatch(rafter.tensorColour(one.class)), one.class]},
        {title: 'Why it is there', value: (one) => one.reason || ''},
      ],
      kinds, {sort: 0, limit: 15, ...options});

  rafter.memoryParts = {shapeText, kindTable};

  const pictured = (plan) => plan && Array.isArray(plan.tensors) && plan.tensors.length > 0 && Array.isArray(plan.ops) && plan.ops.length > 0 &&
      plan.ops[0].live_bytes !== undefined;

  /* What the picture is of where it is not all there is. */
  const about = (body, plan) => {
    const program = plan.memory.program, pipeline = plan.pipeline;
    if (program)
      body.append(
          el('p', {class: 'note'},
             `The figures are those of a ${
                 program.name} program as XLA compiles it; the picture is of the same model's arena as this program lays it out.`));
    if (!pipeline || !Array.isArray(pipeline.stage)) return;
    const seconds = (key) => ({number: true, value: (row) => row[key], text: (row) => rafter.seconds(row[key])}),
          bytes = (key) => ({number: true, value: (row) => row[key], text: (row) => rafter.bytes(row[key])});
    body.append(
        el('p', {class: 'note'},
           `The picture is of stage ${pipeline.shown_stage} of ${pipeline.stages} (schedule ${pipeline.schedule}, ${
               pipeline.microbatches} microbatches).`),
        rafter.table(
            [
              {title: 'Stage', number: true, value: (row) => row.stage},
              {title: 'Layers', value: (row) => row.first_layer, text: (row) => `${row.first_layer} to ${row.first_layer + row.layers - 1}`},
              {title: 'In flight', number: true, value: (row) => row.in_flight},
              {title: 'Peak', ...bytes('peak_bytes')},
              {title: 'Persistent', ...bytes('persistent_bytes')},
              {title: 'Held for microbatches', ...bytes('held_bytes')},
              {title: 'Busy', ...seconds('busy_seconds')},
              {title: 'Idle', ...seconds('idle_seconds')},
            ],
            rafter.objects(pipeline.stage)));
  };

  const cards = (plan) => {
    const m = plan.memory, list = [['Peak', rafter.bytes(m.peak_bytes), `${rafter.whole(m.peak_bytes)} bytes, at ${m.peak_op}`]];
    if (m.capacity_bytes)
      list.push([
        'Room', rafter.bytes(m.capacity_bytes),
        `${m.reserve_bytes > 0 ? `${rafter.bytes(m.reserve_bytes)} of it kept back; ` : ''}${m.fits ? `fits, ${rafter.bytes(m.headroom_bytes)} to spare` : `does not fit by ${rafter.bytes(-m.headroom_bytes)}`}`
      ]);
    list.push(['Persistent', rafter.bytes(m.persistent_bytes), 'weights and states, kept between steps']);
    if (m.live_bytes)
      list.push(
          ['Live at the peak', rafter.bytes(m.live_bytes), `${rafter.bytes(m.by_class && m.by_class.padding)} of the arena is alignment and gaps`]);
    if (m.host_bytes) list.push(['In the host\'s memory', rafter.bytes(m.host_bytes), 'copied to the chip and back']);
    return rafter.cards(list);
  };

  rafter.panel({
    id: 'memory',
    title: 'Memory',
    order: 30,
    perRun: true,
    about: 'The arena as it was planned and mapped: every tensor from the first op that holds it to the last, at its address.',
    available: (model) => rafter.objects(model.runs).some((run) => run.plan && run.plan.memory),
    render(element, model, run) {
      const plans = rafter.walks(run);
      rafter.memoryPanel = null;
      if (!plans.length) {
        element.append(
            el('p', {class: 'empty'}, 'This run has no plan. `rafter plan MODEL --json --tensors --ops` writes one that can be reported.'));
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
              'This plan names no tensors, so there is no picture: report a run, or the output of `rafter plan MODEL ... --json --tensors --ops`.'));
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
        about(body, plan);
        const host = plan.tensors.filter((tensor) => tensor.memory === 'host');
        const holder = el('div'); /* its own: keys end with it */
        body.append(holder);
        viewer = rafter.memoryParts.viewer(holder, read(name, plan, measured && rafter.objects(measured.ops)), others);
        if (host.length)
          body.append(el('h3', {}, 'In the host\'s memory'), kindTable(kindsOf(host), plan, {caption: 'Not in the arena: copied to the chip and back.'}));
      };
      /* The walk that needs the arena stands first. */
      const needs = plans.map(({plan}) => (pictured(plan) ? plan.ops.reduce((most, op) => Math.max(most, op.top_bytes), 0) : 0)),
            first = needs.indexOf(Math.max(...needs));
      if (plans.length > 1) {
        list = rafter.select('Plan', plans.map((one) => one.name), place, {id: 'memory-plan', current: first});
        element.append(el('div', {class: 'bar'}, list));
      }
      /* Another panel shows an op's instant here. */
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
