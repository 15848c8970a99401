// markdown.js - shows the Markdown of a model as elements. HTML in it stays text. Links lead only to
// http, https and mailto; images are shown as links, so nothing is loaded.
'use strict';

{
  const el = chat.el;
  const DEPTH = 8; // of quotes, lists and emphasis; deeper ones stay text
  const COLUMNS = 100; // of a table; wider ones stay text
  const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
  const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*))?$/;
  const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])( {1,4}(?! )| |$)/;
  const QUOTE = /^ {0,3}>/;
  const LINK = new RegExp('\\([ \\n]{0,8}(<[^<>\\n]{0,2000}>|[^\\s()<>]{1,2000}'
    + '(?:\\([^\\s()<>]{0,200}\\)[^\\s()<>]{0,200})?)'
    + '(?:[ \\n]{1,8}(?:"[^"]{0,500}"|\'[^\']{0,500}\'))?[ \\n]{0,8}\\)', 'y');
  const ADDRESS = /https?:\/\/[^\s<>"'`]{1,2000}/y;

  const blank = (line) => !line.trim();
  const indent = (line) => line.length - line.trimStart().length;
  const isRule = (line) => {
    const marks = line.replace(/\s+/g, '');
    return indent(line) < 4 && marks.length > 2 && '-*_'.includes(marks[0])
      && marks === marks[0].repeat(marks.length);
  };

  // ---- text inside a block ----------------------------------------------------------------------

  // The address of a link, or '' if it may not be followed.
  const address = (text) => {
    try {
      const url = new URL(text);
      return ['http:', 'https:', 'mailto:'].includes(url.protocol) ? url.href : '';
    } catch {
      return '';
    }
  };

  const link = (href, ...children) =>
    el('a', {href, title: href, target: '_blank', rel: 'noopener noreferrer'}, ...children);

  // The end of the label that begins at text[from] === '[', or -1.
  const labelEnd = (text, from) => {
    const last = Math.min(text.length, from + 300);
    for (let i = from, depth = 0; i < last; i++) {
      if (text[i] === '\\') i++;
      else if (text[i] === '[') depth++;
      else if (text[i] === ']' && --depth === 0) return i;
    }
    return -1;
  };

  const word = (character) => character !== undefined && /[\p{L}\p{N}]/u.test(character);

  // The index of the mark that closes an emphasis, or -1.
  const closer = (text, from, mark) => {
    for (let i = text.indexOf(mark, from + 1); i >= 0; i = text.indexOf(mark, i + 1)) {
      if (/[\s\\]/.test(text[i - 1])) continue;
      if (mark.length === 1 && (text[i + 1] === mark || text[i - 1] === mark)) continue;
      while (mark.length === 2 && text[i + 2] === mark[0]) i++;
      if (mark[0] === '_' && word(text[i + mark.length])) continue;
      return i;
    }
    return -1;
  };

  // Each reader takes (text, i, out, depth, failed) and returns the index after what it has read, or
  // 0. `failed` has the marks that no later mark closes, so that the work stays linear.
  const readCode = (text, i, out, depth, failed) => {
    let run = 1;
    while (text[i + run] === '`') run++;
    const mark = '`'.repeat(run);
    for (let end = failed.has(mark) ? -1 : text.indexOf(mark, i + run); end >= 0;) {
      let length = run;
      while (text[end + length] === '`') length++;
      if (length === run) {
        const inner = text.slice(i + run, end).replace(/\n/g, ' ');
        out.push(el('code', {}, /^ .*\S.* $/.test(inner) ? inner.slice(1, -1) : inner));
        return end + run;
      }
      end = text.indexOf(mark, end + length);
    }
    failed.add(mark);
    out.push(mark);
    return i + run;
  };

  const EMPHASIS = {'***': ['strong', 'em'], '___': ['strong', 'em'], '**': ['strong'], '__': ['strong'],
    '~~': ['del'], '*': ['em'], '_': ['em']};

  const readEmphasis = (text, i, out, depth, failed) => {
    const mark = [3, 2, 1].map((n) => text.slice(i, i + n))
      .find((one) => EMPHASIS[one] && one === one[0].repeat(one.length));
    if (!mark || depth >= DEPTH || failed.has(mark)) return 0;
    const next = text[i + mark.length];
    if (next === undefined || /\s/.test(next) || (mark[0] === '_' && word(text[i - 1]))) return 0;
    const end = closer(text, i + mark.length, mark);
    if (end < 0) {
      failed.add(mark);
      return 0;
    }
    let inner = inline(text.slice(i + mark.length, end), depth + 1);
    for (const tag of [...EMPHASIS[mark]].reverse()) inner = [el(tag, {}, ...inner)];
    out.push(...inner);
    return end + mark.length;
  };

  const readLink = (text, i, out, depth) => {
    const image = text[i] === '!';
    const start = image ? i + 1 : i;
    const end = text[start] === '[' && depth < DEPTH ? labelEnd(text, start) : -1;
    if (end < 0 || text[end + 1] !== '(') return 0;
    LINK.lastIndex = end + 1;
    const found = LINK.exec(text);
    if (!found) return 0;
    const label = text.slice(start + 1, end);
    const href = address(found[1].replace(/^<|>$/g, ''));
    if (!href) out.push(text.slice(i, LINK.lastIndex));
    else if (image) out.push(link(href, label ? `image: ${label}` : 'image'));
    else out.push(link(href, ...inline(label || href, DEPTH)));
    return end + 1 + found[0].length;
  };

  const readAddress = (text, i, out, depth) => {
    const angle = text[i] === '<';
    if (depth >= DEPTH || (!angle && word(text[i - 1]))) return 0;
    ADDRESS.lastIndex = angle ? i + 1 : i;
    const found = ADDRESS.exec(text);
    if (!found || (angle && text[ADDRESS.lastIndex] !== '>')) return 0;
    let shown = angle ? found[0] : found[0].replace(/[.,;:!?*_~\]]{1,20}$/, '');
    if (!angle && shown.endsWith(')') && !shown.includes('(')) shown = shown.slice(0, -1);
    const href = address(shown);
    if (!href) return 0;
    out.push(link(href, shown));
    return i + shown.length + (angle ? 2 : 0);
  };

  const READERS = {'`': readCode, '*': readEmphasis, '_': readEmphasis, '~': readEmphasis, '[': readLink,
    '!': readLink, '<': readAddress, 'h': readAddress};

  // Nodes and texts of a block's text. A label of a link (depth DEPTH) has only code.
  function inline(text, depth = 0) {
    const out = [];
    const failed = new Set();
    const special = /[\\`*_~[!<h\n]/g;
    let from = 0;
    for (let found = special.exec(text); found; found = special.exec(text)) {
      const i = found.index;
      const held = out.length;
      if (text[i] === '\n') {
        out.push(text.slice(from, i).trimEnd(), el('br'));
        from = i + 1;
      } else if (text[i] === '\\') {
        if (!/[!-/:-@[-`{-~]/.test(text[i + 1] || '')) continue;
        out.push(text.slice(from, i), text[i + 1]);
        from = i + 2;
      } else {
        const end = READERS[text[i]](text, i, out, depth, failed);
        if (!end) continue;
        out.splice(held, 0, text.slice(from, i));
        from = end;
      }
      special.lastIndex = from;
    }
    out.push(text.slice(from));
    return out.filter((one) => one !== '');
  }

  // ---- blocks -----------------------------------------------------------------------------------

  // The cells of a table's row. A bar after a backslash belongs to its cell.
  const cells = (line) => line.trim().replace(/^\|/, '').replace(/([^\\])\|$/, '$1')
    .split(/(?<!\\)\|/).map((cell) => cell.trim().replace(/\\\|/g, '|'));
  const isTable = (lines, i) => i + 1 < lines.length && lines[i].includes('|')
    && lines[i + 1].includes('-') && /^[-|: \t]+$/.test(lines[i + 1])
    && cells(lines[i + 1]).every((cell) => /^:?-+:?$/.test(cell))
    && cells(lines[i]).length === cells(lines[i + 1]).length && cells(lines[i]).length <= COLUMNS;

  // True if the line ends a paragraph before it. Ordered lists do so only if they begin with 1.
  const interrupts = (line) => {
    const item = ITEM.exec(line);
    return FENCE.test(line) || HEADING.test(line) || QUOTE.test(line) || isRule(line)
      || (item && line.length > item[0].length && (!/\d/.test(item[2]) || parseInt(item[2], 10) === 1));
  };

  const closes = (line, mark) => {
    const text = line.trim();
    return indent(line) < 4 && text.length >= mark.length && text === mark[0].repeat(text.length);
  };

  const readFence = (lines, from) => {
    const [, mark, info] = FENCE.exec(lines[from]);
    let to = from + 1;
    while (to < lines.length && !closes(lines[to], mark)) to++;
    return {kind: 'code', info, mark, text: lines.slice(from + 1, to).map((line) => `${line}\n`).join(''),
      to: to + 1};
  };

  // One item: its lines without their indentation, and the line after it.
  const readItem = (lines, from, found) => {
    const base = found[1].length;
    const width = found[0].length;
    const text = [lines[from].slice(width)];
    let to = from + 1;
    for (let blanks = 0; to < lines.length; to++) {
      const line = lines[to];
      const nested = indent(line) >= width || (indent(line) >= base + 2 && ITEM.test(line.trimStart()));
      if (blank(line)) blanks++;
      else if (nested || (!blanks && !interrupts(line) && !ITEM.test(line))) {
        for (; blanks; blanks--) text.push('');
        text.push(nested ? line.slice(Math.min(width, indent(line))) : line.trimStart());
      } else break;
    }
    while (to > from + 1 && blank(lines[to - 1])) to--;
    return {text, to};
  };

  const readList = (lines, from) => {
    const first = ITEM.exec(lines[from]);
    const type = first[2].slice(-1);
    const list = {kind: 'list', ordered: type === '.' || type === ')', start: parseInt(first[2], 10),
      items: [], to: from};
    for (let i = from; i < lines.length;) {
      const found = ITEM.exec(lines[i]);
      if (!found || found[2].slice(-1) !== type || isRule(lines[i])) break;
      const item = readItem(lines, i, found);
      list.items.push(item.text);
      list.to = item.to;
      for (i = item.to; i < lines.length && blank(lines[i]);) i++;
    }
    return list;
  };

  const readTable = (lines, from) => {
    let to = from + 2;
    while (to < lines.length && lines[to].includes('|')) to++;
    return {kind: 'table', rows: lines.slice(from, to), to};
  };

  const readBlock = (lines, from) => {
    const line = lines[from];
    const heading = HEADING.exec(line);
    let to = from + 1;
    if (FENCE.test(line)) return readFence(lines, from);
    if (isRule(line)) return {kind: 'rule', to};
    if (heading) return {kind: 'heading', level: heading[1].length, text: heading[2] || '', to};
    if (QUOTE.test(line)) {
      while (to < lines.length && QUOTE.test(lines[to])) to++;
      return {kind: 'quote', lines: lines.slice(from, to).map((one) => one.replace(/^ {0,3}> ?/, '')), to};
    }
    if (ITEM.test(line)) return readList(lines, from);
    if (isTable(lines, from)) return readTable(lines, from);
    while (to < lines.length && !blank(lines[to]) && !interrupts(lines[to]) && !isTable(lines, to)) to++;
    return {kind: 'text', text: lines.slice(from, to).map((one) => one.trimStart()).join('\n'), to};
  };

  const split = (lines) => {
    const out = [];
    for (let i = 0; i < lines.length;) {
      if (blank(lines[i])) {
        i++;
        continue;
      }
      const block = readBlock(lines, i);
      block.from = i;
      out.push(block);
      i = block.to;
    }
    return out;
  };

  // ---- elements of blocks -----------------------------------------------------------------------

  // A block of code with a button that copies it. `text` is its text node.
  const codeBlock = (info, text) => {
    const language = info.trim().split(/\s/)[0].slice(0, 40);
    const node = document.createTextNode(text);
    const button = el('button', {type: 'button', class: 'small', 'aria-label': 'Copy the code',
      onclick: () => chat.copy(node.data, button)}, 'Copy');
    const code = el('pre', {tabindex: 0, role: 'region', 'aria-label': `Code ${language}`.trim()},
      el('code'));
    code.firstChild.append(node);
    return {text: node, block: el('div', {class: 'code'},
      el('div', {class: 'code-head'}, el('span', {class: 'muted'}, language), button), code)};
  };

  const tableBlock = (rows) => {
    const heads = cells(rows[0]);
    const side = (cell) => cell.endsWith(':') ? (cell[0] === ':' ? 'centre' : 'right') : null;
    const sides = cells(rows[1]).map(side);
    const row = (tag, line) => {
      const texts = cells(line);
      return el('tr', {}, ...texts.slice(0, heads.length)
        .map((text, i) => el(tag, {class: sides[i]}, ...inline(text))));
    };
    return el('div', {class: 'table', tabindex: 0, role: 'region', 'aria-label': 'Table'}, el('table', {},
      el('thead', {}, row('th', rows[0])), el('tbody', {}, ...rows.slice(2).map((line) => row('td', line)))));
  };

  // The content of an item. A text alone needs no paragraph around it.
  const itemBlock = (lines, depth) => {
    const blocks = split(lines);
    return el('li', {}, ...blocks.flatMap((block, i) =>
      block.kind === 'text' && i === 0 ? [...inline(block.text)] : [element(block, depth + 1)]));
  };

  // The direction is set last: a browser looks for it again after each child.
  const paragraph = (children) => {
    const node = el('p', {}, ...children);
    node.dir = 'auto';
    return node;
  };

  function element(block, depth) {
    if (depth > DEPTH) {
      const lines = block.lines || block.rows || block.items?.flat() || [block.text || ''];
      return paragraph([lines.join('\n')]);
    }
    switch (block.kind) {
      case 'code': return codeBlock(block.info, block.text).block;
      case 'rule': return el('hr');
      case 'heading': return el(`h${Math.min(6, block.level + 2)}`, {class: `level-${block.level}`},
        ...inline(block.text.replace(/\s#+$/, '')));
      case 'quote': return el('blockquote', {}, ...split(block.lines).map((one) => element(one, depth + 1)));
      case 'list': return el(block.ordered ? 'ol' : 'ul',
        {start: block.ordered && block.start !== 1 ? block.start : null},
        ...block.items.map((lines) => itemBlock(lines, depth)));
      case 'table': return tableBlock(block.rows);
      default: return paragraph(inline(block.text));
    }
  }

  // ---- a growing text ---------------------------------------------------------------------------

  // Shows a text that grows in `parent`. Blocks that are complete are made once, and an open
  // block of code only grows. So only the last block is drawn several times.
  chat.markdown = (parent, finished = () => {}) => {
    const tail = el('div', {class: 'tail'});
    let pending = '';
    let held = '';
    let fence = null; // an open block of code: {mark, text, shown}
    parent.replaceChildren(tail);

    const commit = (node) => {
      tail.before(node);
      finished(node.textContent);
    };

    // Moves lines from `pending` into the open block of code. The beginning of a line is shown too,
    // unless it may become the end of the block.
    const grow = (last) => {
      let from = 0;
      let more = '';
      let done = false;
      for (let at = pending.indexOf('\n'); at >= 0 && !done; at = pending.indexOf('\n', from)) {
        done = closes(pending.slice(from, at), fence.mark);
        if (!done) more += pending.slice(from, at + 1);
        from = at + 1;
      }
      pending = pending.slice(from);
      const shows = !done && (last ? !closes(pending, fence.mark) : !/^ {0,3}[`~]*\s*$/.test(pending));
      fence.text.appendData((more + (shows ? pending : '')).slice(fence.shown));
      fence.shown = shows ? pending.length : 0;
      if (done) fence = null;
    };

    // Makes the blocks that are complete. True: the last one is a block of code, which is now open.
    const commitBlocks = () => {
      const at = pending.lastIndexOf('\n') + 1;
      const lines = pending.slice(0, at).split('\n').slice(0, -1);
      const blocks = split(lines);
      const open = blocks[blocks.length - 1];
      if (!open) return false;
      for (const block of blocks.slice(0, -1)) commit(element(block, 0));
      const isCode = open.kind === 'code';
      const rest = lines.slice(open.from + (isCode ? 1 : 0)).map((line) => `${line}\n`).join('');
      pending = rest + pending.slice(at);
      if (!isCode) return false;
      const {block, text} = codeBlock(open.info, '');
      fence = {mark: open.mark, text, shown: 0};
      commit(block);
      return true;
    };

    const settle = (last) => {
      if (fence) grow(last);
      while (!fence && commitBlocks()) grow(last);
      tail.replaceChildren(...(fence ? [] : split(pending.split('\n')).map((block) => element(block, 0))));
    };

    return {
      add(text) {
        const whole = held + text;
        held = whole.endsWith('\r') ? '\r' : ''; // a line feed may follow
        pending += whole.slice(0, whole.length - held.length).replace(/\r\n?/g, '\n').replace(/\t/g, '    ');
      },
      draw() { settle(false); },
      end() {
        pending += held ? '\n' : '';
        settle(true);
        if (tail.textContent) finished(tail.textContent);
        tail.replaceWith(...tail.childNodes);
      },
    };
  };
}
