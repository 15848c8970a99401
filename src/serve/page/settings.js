// settings.js - the form of sampling controls. The server checks the values: its message appears at
// the field that it names.
'use strict';

{
  const el = chat.el;
  // Name in requests, label, and the hint below the field.
  const FIELDS = [
    ['system', 'System prompt', 'Instructions before the conversation', 'area'],
    ['temperature', 'Temperature', '0: the likeliest token', 'decimal'],
    ['top_p', 'Top-p', '0 to 1', 'decimal'],
    ['top_k', 'Top-k', '0: all tokens', 'numeric'],
    ['min_p', 'Min-p', '0 to 1', 'decimal'],
    ['seed', 'Seed', 'Whole number', 'numeric'],
    ['max_tokens', 'Max tokens', 'Of an answer', 'numeric'],
    ['stop', 'Stop texts', 'One a line; \\n means a new line', 'area'],
  ];

  const makeField = ([name, label, hint, kind]) => {
    const attributes = {id: `field-${name}`, name, 'aria-describedby': `hint-${name} fault-${name}`,
      spellcheck: 'false'};
    const input = kind === 'area' ? el('textarea', {...attributes, rows: name === 'system' ? 3 : 2})
      : el('input', {...attributes, type: 'text', inputmode: kind});
    input.value = typeof chat.state.settings[name] === 'string' ? chat.state.settings[name] : '';
    input.addEventListener('input', () => {
      chat.state.settings[name] = input.value;
      chat.clearFault(name);
      chat.save();
    });
    return el('div', {class: kind === 'area' ? 'field wide' : 'field'},
      el('label', {for: `field-${name}`}, label), input,
      el('p', {class: 'hint', id: `hint-${name}`}, hint), el('p', {class: 'fault', id: `fault-${name}`}));
  };

  chat.clearFault = (name) => {
    chat.get(`field-${name}`).removeAttribute('aria-invalid');
    chat.get(`fault-${name}`).textContent = '';
    chat.get(`field-${name}`).parentNode.classList.remove('wrong');
  };

  // Shows the server's message at the field that it names. False: no field has this name.
  chat.showFault = (param, message) => {
    const field = chat.get(`field-${param}`);
    if (!field) return false;
    field.setAttribute('aria-invalid', 'true');
    chat.get(`fault-${param}`).textContent = message;
    field.parentNode.classList.add('wrong');
    return true;
  };

  chat.isWide = () => matchMedia('(min-width: 1000px)').matches;

  chat.showSettings = (shown) => {
    chat.get('settings').hidden = !shown;
    chat.get('settings-button').setAttribute('aria-expanded', String(shown));
    document.body.classList.toggle('with-settings', shown);
  };

  const number = (text) => /^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i.test(text) ? Number(text) : text;

  // The body of a request. A seed keeps all of its digits, which a number of JavaScript does not. Other
  // text goes to the server as it is, so that the server says what is wrong.
  chat.bodyOf = (facts) => {
    const given = chat.state.settings;
    const body = {...facts, stream: true, stream_options: {include_usage: true}};
    const seed = (given.seed || '').trim();
    for (const [name, , , kind] of FIELDS) {
      const text = (given[name] || '').trim();
      if (text && kind !== 'area' && name !== 'seed') body[name] = number(text);
    }
    const stops = (given.stop || '').split('\n').filter(Boolean).map((line) => line.replace(/\\n/g, '\n'));
    if (stops.length) body.stop = stops;
    const exact = /^-?(0|[1-9]\d{0,30})$/.test(seed);
    if (seed && !exact) body.seed = number(seed);
    const text = JSON.stringify(body);
    return exact ? `${text.slice(0, -1)},"seed":${seed}}` : text;
  };

  chat.startSettings = () => {
    chat.get('fields').append(...FIELDS.map(makeField));
    chat.get('sampling').addEventListener('submit', (event) => event.preventDefault());
    chat.get('sampling').addEventListener('reset', () => {
      chat.state.settings = {};
      for (const [name] of FIELDS) chat.clearFault(name);
      chat.save();
    });
    chat.get('settings-button').addEventListener('click',
      () => chat.showSettings(chat.get('settings').hidden));
    chat.showSettings(chat.isWide());
  };
}
