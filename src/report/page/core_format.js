/* core_format.js - numbers with units as the program prints them (src/report/units.c;
 * tests/data/numbers.tsv tests both), classes of ops with their colours, tables. */
(() => {
  /* units: [[size, name, {from: smallest value in sizes, plain: without trailing zeros}]]. Values
   * that round up to a unit use it: 0.9996 s is 1.00 s. */
  const scaled = (units) => (value) => {
    if (value === null || value === undefined || !Number.isFinite(value)) return '–';
    const [size, name, {plain = false} = {}] =
        units.find(([one, , {from = 1} = {}]) => Math.abs(value) >= 0.9995 * from * one) ||
        units[units.length - 1];
    const shown = value / size, a = Math.abs(shown);
    const digits = size === 1 && Number.isInteger(shown) ? 0 :
        a < 9.995                                        ? 2 :
        a < 99.95                                        ? 1 :
                                                           0,
          text = shown.toFixed(digits);
    return `${plain && digits ? text.replace(/\.?0+$/, '') : text}${name && ' '}${name}`;
  };
  const MANY = {plain: true}, LONG = {from: 2, plain: true};
  rafter.bytes = scaled([[2 ** 40, 'TiB'], [2 ** 30, 'GiB'], [2 ** 20, 'MiB'], [2 ** 10, 'KiB'], [1, 'B']]);
  /* minutes, hours and days from two on: 90 s, 8 min, 2.5 h */
  const seconds = scaled([
    [86400, 'days', LONG], [3600, 'h', LONG], [60, 'min', LONG], [1, 's'], [1e-3, 'ms'],
    [1e-6, 'us'], [1e-9, 'ns']
  ]);
  rafter.seconds = (value) => (Math.abs(value) < 5e-12 ? '0 s' : seconds(value));
  rafter.whole = (value) => (Number.isFinite(value) ? Math.round(value).toLocaleString('en') : '–');
  /* 21,080 with four digits below a million, then 3.06 M, 10 M, 8.03 B */
  const large = scaled([[1e12, 'T', MANY], [1e9, 'B', MANY], [1e6, 'M', MANY], [1, '']]);
  rafter.count = (value) =>
      (Math.abs(value) >= 999.5 && Math.abs(value) < 999500 ?
           rafter.whole(Number.isInteger(value) ? value : Number(value.toPrecision(4))) :
           large(value));
  /* Money by the rule of rf_text_usd: 0.03747, 11.06, 1,593, 2.3 M. */
  rafter.usd = (value) => `${
      Math.abs(value) < 1e-4 && value !== 0 ? value.toFixed(6) :
      Math.abs(value) < 1 ? Number(value.toPrecision(4)) :
      Math.abs(value) < 999.995 ? value.toFixed(2) :
      Math.abs(value) < 1e6 ? rafter.whole(value) : rafter.count(value)} USD`;
  /* int8 is the word of --weights and --kv-dtype for the plan's i8. */
  rafter.dtype = (name) => (name === 'i8' ? 'int8' : name);
  const flops = [
    [1e18, 'EFLOP'], [1e15, 'PFLOP'], [1e12, 'TFLOP'], [1e9, 'GFLOP'], [1e6, 'MFLOP'],
    [1e3, 'kFLOP'], [1, 'FLOP']
  ];
  rafter.rate = scaled(flops.map(([size, name]) => [size, `${name}/s`]));
  /* Papers write the FLOPs of a training run as a power of ten. */
  rafter.flops = (value) =>
      (value >= 1e21 ? `${value.toExponential(2).replace('e+', 'e')} FLOP` : scaled(flops)(value));
  rafter.bandwidth = scaled([[1e12, 'TB/s'], [1e9, 'GB/s'], [1e6, 'MB/s'], [1e3, 'kB/s'], [1, 'B/s']]);
  rafter.percent = (fraction) => (!Number.isFinite(fraction) ? '–' : fraction > 0 && fraction < 0.0005 ? '< 0.1 %' : `${(100 * fraction).toFixed(Math.abs(fraction) < 0.1 ? 1 : 0).replace(/^-(0(\.0)?)$/, '$1')} %`);
  /* Numbers without a unit: 0.1235, 12.35, 123. */
  rafter.digits = (value) => (!Number.isFinite(value) ? '–' : value === 0 ? '0' : Math.abs(value) >= 100 ? value.toFixed(0) : String(Number(value.toPrecision(4))));
  /* Texts of ticks need no digits after the last one that counts: 10 M for 10.0 M. */
  rafter.tick = (text) => (value) =>
      text(value).replace(/(\.\d*?)0+(?=\D|$)/, '$1').replace(/\.(?=\D|$)/, '');
  /* A gain of time in words, by the rule of rf_text_speed: 0.123 is 12.3 % less, 0.9 is 10 × faster. */
  rafter.speed = (gain) => (!Number.isFinite(gain) ? '–' :
    gain >= 0.5 ? `${rafter.times(1 / (1 - gain))} faster` :
    gain <= -1 ? `${rafter.times(1 - gain)} slower` : `${rafter.percent(Math.abs(gain))} ${gain < 0 ? 'more' : 'less'} time`);
  rafter.times = (ratio) => (!Number.isFinite(ratio) ? '–' : ratio > 0 && ratio < 0.01 ? `1/${(1 / ratio).toFixed(0)}` : `${ratio.toFixed(ratio < 10 ? 2 : 0)}×`);

  /* ---- classes of ops ------------------------------------------------------------------------------------------------- */

  /* The first pattern that matches the op's kind (ops[].op of the plan) gives its class. */
  const CLASSES = [
    {id: 'matmul', title: 'matrix products', colour: 'op-matmul', kind: /^(matmul|lora)/},
    {id: 'attention', title: 'attention', colour: 'op-attention', kind: /^(attention|rope|kv_)/},
    {
      id: 'head',
      title: 'head and loss',
      colour: 'op-head',
      kind: /^(head_(loss|part|merge|logits|score)|loss)/
    },
    {id: 'norm', title: 'norms', colour: 'op-norm', kind: /(norm)(_bwd)?$/},
    {
      id: 'pointwise',
      title: 'pointwise',
      colour: 'op-pointwise',
      kind: /^(gelu|swiglu|geglu|add|dropout)/
    },
    {id: 'optimizer', title: 'optimizer', colour: 'op-optimizer', kind: /^(adamw|norm_sq|clip)/},
    {
      id: 'exchange',
      title: 'exchange between chips',
      colour: 'op-exchange',
      kind: /^(all_|reduce_|permute|send|recv|offload|take_run)/
    },
    {
      id: 'rows',
      title: 'rows: embedding, routing',
      colour: 'op-rows',
      kind: /^(embed|route|dispatch|combine)/
    },
    {id: 'other', title: 'other', colour: 'op-rows', kind: /./},
  ];
  rafter.opClasses = CLASSES;
  rafter.opClass = (kind) => CLASSES.find((one) => one.kind.test(kind || '?')) || CLASSES[CLASSES.length - 1];
  /* Colours of tensor classes (the keys of memory.by_class). */
  const TENSOR = {weight: 'c4', master: 'c1', gradient: 'c5', moment: 'c3', adapter: 'c6', activation: 'c2', logits: 'c0', kv: 'c6', collective: 'c0',
    workspace: 'c7', io: 'c7', padding: 'c7'};
  rafter.tensorColour = (name) => TENSOR[name] || 'c7';

  /* ---- tables ----------------------------------------------------------------------------------------------------------- */

  /* Copies text. If the browser denies the clipboard to a file:// page, the older execCommand is used. */
  const clip = async (text) => {
    try { await navigator.clipboard.writeText(text); } catch {
      const area = rafter.el('textarea', {class: 'unseen'});
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand('copy');
      area.remove();
    }
  };

  const FULL = 7; /* tables with FULL or more columns take the whole width */
  /* columns: [{title, value(row), text?(row), number?: true, wide?: true (sentences), node?(row)}]; a click on a heading sorts. Options: caption, sort (column), down, limit, onrow(row).
   * Copied tables have plain values: bytes and seconds as numbers. */
  rafter.table = (columns, rows, {caption, sort = -1, down = true, limit = 0, onrow} = {}) => {
    const {el} = rafter;
    let by = sort, falling = down, all = false;
    const body = el('tbody'), more = el('button', {type: 'button', class: 'more'}), copy = el('button', {type: 'button', class: 'more copy', title: 'copy all rows, with tabs between cells'}, 'Copy');
    const heads = columns.map((column, i) => el('th', {scope: 'col', class: column.number ? 'number' : ''},
      el('button', {type: 'button', onclick: () => { falling = by === i ? !falling : Boolean(column.number); by = i; fill(); }}, column.title)));
    const compare = (a, b) => (typeof a === 'number' && typeof b === 'number' ? a - b : String(a ?? '').localeCompare(String(b ?? ''), 'en', {numeric: true}));
    const fill = () => {
      const list = by < 0 ? rows : [...rows].sort((a, b) => (falling ? -1 : 1) * compare(columns[by].value(a), columns[by].value(b)));
      heads.forEach((head, i) => head.setAttribute('aria-sort', i !== by ? 'none' : falling ? 'descending' : 'ascending'));
      const shown = limit && !all ? list.slice(0, limit) : list;
      body.replaceChildren(...shown.map((row) => {
        const cells = columns.map((column) => el('td', {class: column.number ? 'number' : column.wide ? 'wide' : ''},
          column.node ? column.node(row) : column.text ? column.text(row) : String(column.value(row) ?? '–')));
        if (!onrow) return el('tr', {}, cells);
        return el('tr', {class: 'choose', tabindex: 0, onclick: () => onrow(row), onkeydown: (event) => { if (event.key === 'Enter') onrow(row); }}, cells);
      }));
      more.hidden = !limit || rows.length <= limit;
      more.textContent = all ? `Show the first ${limit}` : `Show all ${rafter.whole(rows.length)}`;
    };
    more.addEventListener('click', () => { all = !all; fill(); });
    copy.addEventListener('click', async () => {
      const cell = (value) => String(value ?? '').replace(/[\t\n]/g, ' ');
      await clip([columns.map((column) => column.title), ...rows.map((row) => columns.map((column) => column.value(row)))].map((line) => line.map(cell).join('\t')).join('\n'));
      rafter.announce(`${rows.length} rows copied`);
      copy.textContent = 'Copied';
      setTimeout(() => { copy.textContent = 'Copy'; }, 1500);
    });
    fill();
    const scroll =
        el('div', {class: 'scroll'},
           el('table', {'aria-label': caption}, el('thead', {}, el('tr', {}, heads)), body));
    const box =
        el('div', {class: columns.length >= FULL ? 'table full' : 'table'},
           caption && el('p', {class: 'caption'}, caption), scroll,
           el('p', {class: 'sideways'}, 'This table has more columns: scroll it sideways.'), more,
           rows.length > 3 && copy);
    /* A table wider than its place says so, and can also be scrolled by keys. */
    new ResizeObserver(() => {
      const wider = scroll.scrollWidth > scroll.clientWidth + 1;
      box.classList.toggle('scrolls', wider);
      if (wider) scroll.tabIndex = 0; else scroll.removeAttribute('tabindex');
    }).observe(scroll);
    return box;
  };

  /* A definition list of [[term, value], ...]; null, undefined and "" are left out. */
  rafter.facts = (pairs) => rafter.el('dl', {class: 'facts'}, pairs.filter(([, value]) => value !== null && value !== undefined && value !== '')
    .map(([term, value]) => rafter.el('div', {}, rafter.el('dt', {}, term), rafter.el('dd', {}, value))));

  rafter.legend = (items) => rafter.el('ul', {class: 'legend'}, items.map(({title, colour}) =>
    rafter.el('li', {}, rafter.el('span', {class: 'swatch', style: {background: `var(--${colour})`}}), title)));
})();
