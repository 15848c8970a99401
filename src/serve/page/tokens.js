// tokens.js - an answer as tokens, coloured by probability. A token under the pointer or with the
// focus shows its probability and its alternatives. The arrow keys move between tokens.
'use strict';

{
  const el = chat.el;
  const TOPS = 20; // alternatives that are shown
  const BOUNDS = [0.9, 0.6, 0.3, 0.1];

  const logprob = (value) => Number.isFinite(value) && value <= 1e-3 ? Math.min(0, value) : null;
  const text = (value) => typeof value === 'string' ? value : '';
  const byteList = (value) => Array.isArray(value) && value.length < 1000
    && value.every((one) => Number.isInteger(one) && one >= 0 && one < 256) ? value : null;

  // A token of unknown origin as {text, logprob, bytes, tops: [[text, logprob]]}. Wrong values become
  // null, so that the page shows what is right.
  chat.token = (given) => {
    const one = given && typeof given === 'object' ? given : {};
    const tops = Array.isArray(one.tops) ? one.tops.filter(Array.isArray).slice(0, TOPS) : [];
    return {text: text(one.text), logprob: logprob(one.logprob), bytes: byteList(one.bytes),
      tops: tops.map(([name, value]) => [text(name), logprob(value)])};
  };

  // The tokens of one choice of a stream: {content: [...]} of chats, {tokens: [...]} of completions.
  chat.tokensOf = (logprobs) => {
    const list = (value) => Array.isArray(value) ? value : [];
    if (!logprobs || typeof logprobs !== 'object') return [];
    if (logprobs.content)
      return list(logprobs.content).map((one) => chat.token({text: one?.token, logprob: one?.logprob,
        bytes: one?.bytes, tops: list(one?.top_logprobs).map((top) => [top?.token, top?.logprob])}));
    return list(logprobs.tokens).map((name, i) => chat.token({text: name,
      logprob: list(logprobs.token_logprobs)[i],
      tops: Object.entries(list(logprobs.top_logprobs)[i] || {})}));
  };

  // White space that can be seen.
  const visible = (name) => name === '' ? '(nothing)'
    : name.replace(/ /g, '␣').replace(/\n/g, '↵').replace(/\r/g, '␍').replace(/\t/g, '⇥');
  const chance = (value) => value === null ? 'unknown' : chat.percent(Math.exp(value));
  const level = (value) => value === null ? 'unknown'
    : `p${BOUNDS.filter((bound) => Math.exp(value) < bound).length}`;

  // ---- the tooltip ------------------------------------------------------------------------------

  const row = (name, value, chosen) => {
    const bar = el('span', {class: 'bar'});
    bar.style.width = `${value === null ? 0 : 100 * Math.exp(value)}%`;
    return el('tr', {class: chosen ? 'chosen' : null}, el('td', {}, el('bdi', {}, visible(name))),
      el('td', {class: 'right'}, chance(value)), el('td', {class: 'bars'}, bar));
  };

  const rowsOf = (token) => {
    const chosen = token.tops.findIndex(([name, value]) => name === token.text && value === token.logprob);
    const rows = token.tops.map(([name, value], i) => row(name, value, i === chosen));
    return chosen < 0 ? [row(token.text, token.logprob, true), ...rows] : rows;
  };

  // A token as a screen reader says it.
  const spoken = (token) => {
    const others = token.tops.filter(([name]) => name !== token.text)
      .map(([name, value]) => `${visible(name)} ${chance(value)}`);
    const also = others.length ? `; also ${others.join(', ')}` : '';
    return `${visible(token.text)}, ${chance(token.logprob)}${also}`;
  };

  const place = (tip, at) => {
    const from = at.getClientRects()[0] || at.getBoundingClientRect();
    tip.hidden = false;
    const {width, height} = tip.getBoundingClientRect();
    const below = from.bottom + 6 + height <= innerHeight;
    tip.style.left = `${Math.max(8, Math.min(from.left, innerWidth - width - 8))}px`;
    tip.style.top = `${Math.max(8, below ? from.bottom + 6 : from.top - height - 6)}px`;
  };

  chat.hideTip = () => {
    const was = !chat.get('tip').hidden;
    chat.get('tip').hidden = true;
    return was;
  };

  const showTip = (node, token) => {
    const tip = chat.get('tip');
    const head = token.logprob === null ? 'no probability'
      : `${chance(token.logprob)} (log ${token.logprob.toFixed(3)})`;
    tip.replaceChildren(el('p', {}, el('bdi', {class: 'mono'}, visible(token.text)), ` ${head}`),
      el('table', {}, el('tbody', {}, ...rowsOf(token))));
    place(tip, node);
  };

  // ---- the list of tokens -----------------------------------------------------------------------

  // Shows a growing list of tokens in `parent`. A character may be in several tokens: the last one
  // shows it, and the others show a dot.
  chat.tokenView = (parent) => {
    const list = el('div', {class: 'tokens', role: 'listbox', 'aria-label': 'Tokens of the answer',
      'aria-orientation': 'horizontal'});
    const tokens = [];
    const decoder = new TextDecoder();
    parent.replaceChildren(list);

    const find = (event) => event.target instanceof Element ? event.target.closest('.token') : null;
    const show = (event) => {
      const node = find(event);
      if (node && list.contains(node)) showTip(node, tokens[node.dataset.i]);
    };
    const focus = (node) => {
      list.querySelector('[tabindex="0"]')?.setAttribute('tabindex', -1);
      node.tabIndex = 0;
      node.setAttribute('aria-label', spoken(tokens[node.dataset.i]));
      node.focus();
    };
    list.addEventListener('pointerover', show);
    list.addEventListener('pointerout', chat.hideTip);
    list.addEventListener('focusin', (event) => {
      const node = find(event);
      if (!node) return;
      node.setAttribute('aria-label', spoken(tokens[node.dataset.i]));
      show(event);
    });
    list.addEventListener('focusout', chat.hideTip);
    list.addEventListener('click', (event) => {
      const node = find(event);
      if (node && !String(getSelection())) focus(node);
    });
    list.addEventListener('keydown', (event) => {
      const node = find(event);
      const next = {ArrowRight: node?.nextSibling, ArrowLeft: node?.previousSibling, Home: list.firstChild,
        End: list.lastChild}[event.key];
      if (!node || !next) return;
      event.preventDefault();
      focus(next);
    });

    return {
      add(more) {
        const made = more.map((token) => {
          const shown = token.bytes ? decoder.decode(new Uint8Array(token.bytes), {stream: true})
            : token.text;
          tokens.push(token);
          const i = tokens.length - 1;
          return el('span', {class: `token ${level(token.logprob)}`, role: 'option', 'data-i': i,
            tabindex: i ? -1 : 0}, (shown || '·').replace(/\n/g, '↵\n'));
        });
        list.append(...made);
      },
    };
  };
}
