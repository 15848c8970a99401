/* core_format.js - numbers with units as the program prints them (src/report/units.c), classes of ops with their colours, tables. */
(() => {
  const scaled = (units) => (value) => {
    if (value === null || value === undefined || !Number.isFinite(value)) return '–';
    const [size, name] = units.find(([least]) => Math.abs(value) >= least) || units[units.length - 1];
    const shown = value / size, a = Math.abs(shown);
    const digits = size === 1 && Number.isInteger(shown) ? 0 : a < 10 ? 2 : a < 100 ? 1 : 0;
    return name ? `${shown.toFixed(digits)} ${name}` : shown.toFixed(digits);
  };
  rafter.bytes = scaled([[2 ** 40, 'TiB'], [2 ** 30, 'GiB'], [2 ** 20, 'MiB'], [2 ** 10, 'KiB'], [1, 'B']]);
  rafter.seconds = (value) => (value === 0 ? '0 s' : scaled([[86400, 'days'], [3600, 'h'], [60, 'min'], [1, 's'], [1e-3, 'ms'], [1e-6, 'us'], [1e-9, 'ns']])(value));
  rafter.count = scaled([[1e12, 'T'], [1e9, 'B'], [1e6, 'M'], [1e3, 'k'], [1, '']]);
  rafter.flops = scaled([[1e15, 'PFLOP'], [1e12, 'TFLOP'], [1e9, 'GFLOP'], [1e6, 'MFLOP'], [1e3, 'kFLOP'], [1, 'FLOP']]);
  rafter.rate = scaled([[1e15, 'PFLOP/s'], [1e12, 'TFLOP/s'], [1e9, 'GFLOP/s'], [1e6, 'MFLOP/s'], [1e3, 'kFLOP/s'], [1, 'FLOP/s']]);
  rafter.bandwidth = scaled([[1e12, 'TB/s'], [1e9, 'GB/s'], [1e6, 'MB/s'], [1e3, 'kB/s'], [1, 'B/s']]);
  rafter.percent = (fraction) => (!Number.isFinite(fraction) ? '–' : fraction > 0 && fraction < 0.0005 ? '< 0.1 %' : `${(100 * fraction).toFixed(Math.abs(fraction) < 0.1 ? 1 : 0).replace(/^-(0(\.0)?)$/, '$1')} %`);
  rafter.times = (ratio) => (!Number.isFinite(ratio) ? '–' : ratio > 0 && ratio < 0.01 ? `1/${(1 / ratio).toFixed(0)}` : `${ratio.toFixed(ratio < 10 ? 2 : 0)}×`);
  rafter.whole = (value) => (Number.isFinite(value) ? Math.round(value).toLocaleString('en').replace(/,/g, '\u202f') : '–');

  /* ---- classes of ops ------------------------------------------------------------------------------------------------- */

  /* The first pattern that matches the op's kind (ops[].op of the plan) gives its class; colours are those of Okabe and Ito. */
  const CLASSES = [
    {id: 'matmul', title: 'matrix products', colour: 'c4', kind: /^(matmul|lora)/},
    {id: 'attention', title: 'attention', colour: 'c5', kind: /^(attention|rope|kv_)/},
    {id: 'head', title: 'head and loss', colour: 'c6', kind: /^(head_(loss|part|merge|logits|score)|loss)/},
    {id: 'norm', title: 'norms', colour: 'c1', kind: /(norm)(_bwd)?$/},
    {id: 'pointwise', title: 'pointwise', colour: 'c2', kind: /^(gelu|swiglu|geglu|add|dropout)/},
    {id: 'optimizer', title: 'optimizer', colour: 'c3', kind: /^(adamw|norm_sq|clip)/},
    {id: 'exchange', title: 'exchange between chips', colour: 'c0', kind: /^(all_|reduce_|permute|offload|take_run)/},
    {id: 'rows', title: 'rows: embedding, routing', colour: 'c7', kind: /^(embed|route|dispatch|combine)/},
    {id: 'other', title: 'other', colour: 'c7', kind: /./},
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
    const box = el('div', {class: 'table'}, el('table', {}, caption && el('caption', {}, caption), el('thead', {}, el('tr', {}, heads)), body), more, rows.length > 3 && copy);
    /* A table wider than its place can also be scrolled by keys. */
    new ResizeObserver(() => {
      if (box.scrollWidth > box.clientWidth + 1) box.tabIndex = 0; else box.removeAttribute('tabindex');
    }).observe(box);
    return box;
  };

  /* A definition list of [[term, value], ...]; null, undefined and "" are left out. */
  rafter.facts = (pairs) => rafter.el('dl', {class: 'facts'}, pairs.filter(([, value]) => value !== null && value !== undefined && value !== '')
    .map(([term, value]) => rafter.el('div', {}, rafter.el('dt', {}, term), rafter.el('dd', {}, value))));

  rafter.legend = (items) => rafter.el('ul', {class: 'legend'}, items.map(({title, colour}) =>
    rafter.el('li', {}, rafter.el('span', {class: 'swatch', style: {background: `var(--${colour})`}}), title)));
})();
