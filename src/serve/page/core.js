// core.js - the object `chat`: elements, figures as text, and the conversation with its storage.
'use strict';

const chat = {
  // messages: {role, content}; answers also have tokens, finish, usage, seconds, first, failure.
  state: {messages: [], settings: {}, model: '', context: 0, plain: false, key: '', running: null,
    probabilities: false, ready: false},
  // Characters of the tab's storage that a conversation may fill; browsers allow about 5 million.
  STORE_LIMIT: 2000000,
};

// Makes an element. A text child stays text, so nothing that a model writes becomes markup.
chat.el = (tag, attributes = {}, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === 'function') node.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null) node.setAttribute(name, value === true ? '' : value);
  }
  node.append(...children);
  return node;
};

chat.get = (id) => document.getElementById(id);

// ---- figures ------------------------------------------------------------------------------------

chat.bytes = (bytes) => {
  const units = ['bytes', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  for (; bytes >= 1024 && unit < units.length - 1; unit++) bytes /= 1024;
  return `${unit ? bytes.toFixed(1) : bytes} ${units[unit]}`;
};

chat.seconds = (seconds) => seconds < 1 ? `${Math.round(1000 * seconds)} ms`
  : seconds < 100 ? `${seconds.toFixed(seconds < 10 ? 2 : 1)} s` : `${(seconds / 60).toFixed(1)} min`;

chat.percent = (part) => part >= 0.9995 ? '100 %' : part >= 0.1 ? `${(100 * part).toFixed(1)} %`
  : part >= 0.0001 ? `${(100 * part).toFixed(2)} %` : 'under 0.01 %';

chat.rate = (rate) => `${rate >= 100 ? Math.round(rate) : rate.toFixed(1)} tokens/s`;

chat.count = (number, noun) => `${number.toLocaleString('en')} ${noun}${number === 1 ? '' : 's'}`;

// Text for screen readers, in pieces that can be listened to.
chat.announce = (text) => {
  chat.get('announce').append(chat.el('p', {}, text.slice(0, 2000)));
  while (chat.get('announce').childElementCount > 20) chat.get('announce').firstChild.remove();
};

chat.copy = async (text, button) => {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Pages that are not loaded from localhost or through TLS have no clipboard.
    const area = chat.el('textarea', {class: 'unseen', readonly: true});
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand('copy');
    area.remove();
    button.focus();
  }
  const was = button.textContent;
  button.textContent = 'Copied';
  chat.announce('Copied');
  setTimeout(() => { button.textContent = was === 'Copied' ? 'Copy' : was; }, 1500);
};

// ---- storage ------------------------------------------------------------------------------------

// The newest messages that fit. The probabilities of old answers are dropped before the answers.
chat.kept = (messages, limit) => {
  const kept = [];
  let used = 0;
  for (let i = messages.length - 1; i >= 0; i--) {
    let text = JSON.stringify(messages[i]);
    if (used + text.length > limit && messages[i].tokens)
      text = JSON.stringify({...messages[i], tokens: []});
    if (used + text.length > limit) break;
    used += text.length;
    kept.unshift(text);
  }
  return kept;
};

chat.save = () => {
  const {messages, settings, plain, probabilities} = chat.state;
  for (let limit = chat.STORE_LIMIT; limit > 1000; limit /= 4) {
    const kept = chat.kept(messages, limit);
    const facts = JSON.stringify({settings, plain, probabilities, cut: kept.length < messages.length});
    try {
      sessionStorage.setItem('rafter.chat', `${facts.slice(0, -1)},"messages":[${kept.join(',')}]}`);
      return;
    } catch { /* the tab's storage is full, or the browser forbids it: keep less */ }
  }
};

const storedMessage = (one) => {
  const text = (value) => typeof value === 'string' ? value : '';
  const number = (value) => Number.isFinite(value) ? value : 0;
  if (one.role === 'user') return {role: 'user', content: text(one.content)};
  return {role: 'assistant', content: text(one.content), finish: text(one.finish),
    failure: text(one.failure), count: number(one.count), seconds: number(one.seconds),
    first: number(one.first), tokens: Array.isArray(one.tokens) ? one.tokens.map(chat.token) : []};
};

chat.load = () => {
  try {
    chat.state.key = sessionStorage.getItem('rafter.key') || '';
    const stored = JSON.parse(sessionStorage.getItem('rafter.chat') || '{}');
    chat.state.messages = (stored.messages || []).map(storedMessage);
    chat.state.settings = stored.settings || {};
    chat.state.plain = stored.plain === true;
    chat.state.probabilities = stored.probabilities === true;
    return stored.cut === true;
  } catch {
    return false;
  }
};

chat.useKey = (key) => {
  chat.state.key = key;
  try {
    if (key) sessionStorage.setItem('rafter.key', key);
    else sessionStorage.removeItem('rafter.key');
  } catch { /* the key then lasts until the page is loaded again */ }
};
