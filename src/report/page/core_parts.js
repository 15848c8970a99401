/* core_parts.js - shared by several panels: choices, signed numbers, kinds over layers, a run's plans, links between panels. */
(() => {
  const {el} = rafter;

  /* A group of buttons, one of them pressed: choice('Time axis', [[value, text], ...], current, (value) => ...). */
  rafter.choice = (title, options, current, choose) => {
    const buttons = options.map(
        ([value, text]) =>
            el('button', {
              type: 'button',
              'aria-pressed': String(value === current),
              'data-value': value,
              onclick: () => {
                buttons.forEach((button) => button.setAttribute('aria-pressed', String(button.dataset.value === value)));
                choose(value);
              }
            },
               text));
    return el('span', {class: 'group', role: 'group', 'aria-label': title}, buttons);
  };

  /* select('Plan', names, (index) => ...) */
  rafter.select = (title, names, choose, {id, current = 0} = {}) => {
    const node = el('select', {id, onchange: () => choose(Number(node.value))}, names.map((name, i) => el('option', {value: i}, name)));
    node.value = current;
    return el('label', {}, `${title} `, node);
  };

  rafter.signed = (text, value) => (!Number.isFinite(value) ? '–' : value > 0 ? `+${text(value)}` : value < 0 ? `−${text(-value)}` : text(0));

  /* The kind of a name, the same for all blocks, as in the terminal: "block.3/mlp/up/u" -> "block.*\/mlp/up/u". */
  rafter.kindOf = (name) => name.replace(/block\.\d*/, 'block.*');

  /* Differences of bytes between two lists of kinds, largest first. */
  rafter.changes = (mine, theirs) => {
    const a = new Map(mine.map((one) => [one.name, one])), b = new Map(theirs.map((one) => [one.name, one]));
    return [...new Set([...a.keys(), ...b.keys()])]
        .map((name) => {
          const x = a.get(name), y = b.get(name);
          return {name, a: x ? x.bytes : 0, b: y ? y.bytes : 0, change: (y ? y.bytes : 0) - (x ? x.bytes : 0), class: (x || y).class};
        })
        .filter((one) => one.change !== 0)
        .sort((one, other) => Math.abs(other.change) - Math.abs(one.change));
  };

  /* [{name, plan, measured}]: every plan of a run with its measurements (ops[] by id, for one call; count, seconds), or null. */
  rafter.walks = (run) => {
    const walks = rafter.objects(run && run.measured && run.measured.walks), plans = rafter.plans(run);
    return plans.map(
        ({name, plan}) =>
            ({name, plan, measured: walks.find((walk) => walk.walk === plan.name) || (plans.length === 1 && walks.length === 1 ? walks[0] : null)}));
  };

  /* canShowOp: whether the run has a trace viewer; showOp: shows an op there. */
  rafter.canShowOp = () => Boolean(rafter.traceViewer && rafter.traceViewer.view.node.isConnected);
  rafter.showOp = async (name) => {
    if (!rafter.canShowOp()) return;
    const viewer = rafter.traceViewer;
    await rafter.show('trace');
    viewer.input.value = name;
    viewer.find(name);
    viewer.nextOf(name);
    viewer.zoomToSelection();
  };
  /* isTraced: whether the run's trace belongs to a plan. showRunOf: shows an op of a plan in the trace: its selected call, otherwise its first. */
  rafter.isTraced = (plan) => {
    const header = rafter.run() && rafter.run().trace && rafter.run().trace.header;
    return Boolean(header && plan && Array.isArray(header.digests) && header.digests.includes(plan.digest) && rafter.plans(rafter.run()).some((one) => one.plan === plan));
  };
  rafter.showRunOf = async (plan, name) => {
    await rafter.show('trace');
    for (let i = 0; i < 250 && !rafter.canShowOp(); i++) await new Promise((done) => setTimeout(done, 20));
    if (rafter.canShowOp()) rafter.traceViewer.goTo(plan, name);
  };
  /* hasInstant: whether memory at an op is known. showInstant: shows the tensors alive at an op in the memory panel. */
  rafter.hasInstant = (plan, op) => Boolean(plan && op && op.live_bytes !== undefined && Array.isArray(plan.tensors) && plan.tensors.length);
  rafter.showInstant = async (plan, op) => {
    await rafter.show('memory');
    for (let i = 0; i < 250 && !rafter.memoryPanel; i++) await new Promise((done) => setTimeout(done, 20));
    if (rafter.memoryPanel) rafter.memoryPanel.choose(plan, op);
  };

  /* A frame around a picture with wheel zoom: with Ctrl or Meta (pinching sets Ctrl), or after a click until the pointer leaves. Otherwise the
   * wheel scrolls the page, and a hint over the picture explains the zoom. `takes(event)`: whether the picture zooms. */
  rafter.wheelFrame = (parent, attributes = {}) => {
    const key = /Mac|iP(hone|ad)/.test(navigator.platform) ? '⌘' : 'Ctrl', hint = el('div', {class: 'wheel-hint', hidden: true}, `${key} + wheel zooms; after a click, the wheel alone`);
    const frame = el('div', attributes, hint);
    let chosen = false, later = 0;
    frame.classList.add('wheel-frame');
    frame.addEventListener('pointerdown', () => { chosen = true; });
    frame.addEventListener('pointerleave', () => { chosen = false; });
    parent.append(frame);
    const takes = (event) => {
      const taken = chosen || event.ctrlKey || event.metaKey;
      hint.hidden = taken;
      clearTimeout(later);
      if (!taken) later = setTimeout(() => { hint.hidden = true; }, 1500);
      return taken;
    };
    return {frame, takes};
  };

  /* The mean of a key over the rows that have it; NaN: no row has it. */
  rafter.meanOf = (rows, key) => {
    const values = rows.map((row) => row[key]).filter(Number.isFinite);
    return values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : NaN;
  };

  rafter.empty = (...text) => el('p', {class: 'empty'}, ...text);
  rafter.code = (text) => el('code', {}, text);
  rafter.cards = (list) =>
      el('div', {class: 'cards'},
         list.map(
             ([title, figure, beside]) =>
                 el('div', {class: 'card'}, el('div', {class: 'beside'}, title), el('div', {class: 'figure'}, figure),
                    el('div', {class: 'beside'}, beside))));
  rafter.swatch = (colour) => el('span', {class: 'swatch', style: {background: `var(--${colour})`}});

  /* Colours of lines, strongest first. */
  rafter.line = (i) => ['c4', 'c5', 'c2', 'c6', 'c0', 'c1', 'c3', 'c7'][i % 8];

  /* An axis with its title and tick texts. */
  const powersOfTwo = (axis) => {
    const raw = (axis.max - axis.min) / 6, step = 2 ** Math.ceil(Math.log2(raw > 0 ? raw : 1)), ticks = [];
    for (let at = Math.ceil(axis.min / step) * step; at <= axis.max; at += step) ticks.push({value: at});
    axis.ticks = ticks;
  };
  const powersOf32 = (axis) => {
    const ticks = [],
          factor = axis.max / axis.min > 2 ** 16 ? 32 :
        axis.max / axis.min > 64                 ? 8 :
                                                   2;
    for (let at = 1; at <= axis.max; at *= factor)
      if (at >= axis.min) ticks.push({value: at});
    axis.ticks = ticks;
  };
  /* Ticks of a logarithmic axis: powers of ten, over few decades also their multiples by 2 and 5,
   * over less than one decade whole multiples. */
  const powersOfTen = (axis) => {
    const wide = Math.log10(axis.max / axis.min),
          by = wide > 3 ? [1] :
        wide > 1        ? [1, 2, 5] :
        wide > 0.4      ? [1, 1.5, 2, 3, 4, 5, 6, 8] :
                          [1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 9],
          every = Math.ceil(wide / 10), ticks = [];
    for (let power = Math.floor(Math.log10(axis.min)); power <= Math.log10(axis.max); power++)
      if (power % every === 0)
        for (const one of by) {
          const value = Number(`${one}e${power}`);
          if (value >= axis.min && value <= axis.max) ticks.push({value});
        }
    axis.ticks = ticks;
  };
  rafter.axis = (title, text, {type = 'linear', ...more} = {}) => ({
    type,
    title: {display: true, text: title},
    grid: {color: rafter.colour('grid')},
    afterBuildTicks: text === rafter.bytes ? (type === 'logarithmic' ? powersOf32 : powersOfTwo) :
        type === 'logarithmic'             ? powersOfTen :
                                             undefined,
    ticks: {
      maxTicksLimit: type === 'logarithmic' ? undefined : 9,
      maxRotation: 0,
      includeBounds: false,
      callback: rafter.tick(text)
    },
    ...more
  });
})();
