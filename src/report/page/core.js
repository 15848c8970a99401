/* core.js - the page's frame: the model, panels as tabs, the selected run, themes, keys and the tooltip. The page computes no figures. */
'use strict';
const rafter = (() => {
  const panels = [], redraws = new Set(), themeListeners = new Set();
  /* State of the page, for tests and the console. Each panel keeps its state under its id. */
  const state = {ready: false, panel: null, run: 0, theme: 'light', rendered: {}, errors: []};
  const $ = (id) => document.getElementById(id);

  /* ---- elements ------------------------------------------------------------------------------------------------- */

  /* el('p', {class: 'note'}, 'text', child): text is never markup. A key that starts with "on" adds an event listener. */
  const el = (tag, attributes = {}, ...children) => {
    const node = document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) {
      if (value === undefined || value === null || value === false) continue;
      if (key.startsWith('on')) node.addEventListener(key.slice(2), value);
      else if (key === 'style' && typeof value === 'object') Object.assign(node.style, value);
      else node.setAttribute(key, value === true ? '' : String(value));
    }
    node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
    return node;
  };
  const announce = (text) => { $('announce').textContent = text; };

  /* ---- the model -------------------------------------------------------------------------------------------------- */

  let model = {runs: []};
  const runs = () => model.runs || [];
  const run = () => runs()[state.run];
  const runName = (one) => (one && (one.name || one.id)) || 'run';
  const objects = (value) => (Array.isArray(value) ? value : []).filter((item) => item && typeof item === 'object');

  /* All plans of a run, the main plan first: [{name, plan}]. */
  const plans = (one) => {
    const plan = one && one.plan;
    if (!plan || typeof plan !== 'object') return [];
    return [plan, ...objects(plan.plans)].map((each, i) => ({name: each.name || (i ? `plan ${i + 1}` : plan.job || 'plan'), plan: each}));
  };

  /* ---- light and dark ----------------------------------------------------------------------------------------------- */

  const darkSystem = window.matchMedia('(prefers-color-scheme: dark)');
  let themeChoice = 'auto', printing = false;
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const applyTheme = () => {
    state.theme = printing ? 'light' : themeChoice === 'auto' ? (darkSystem.matches ? 'dark' : 'light') : themeChoice;
    document.documentElement.dataset.theme = state.theme;
    $('theme').textContent = {auto: 'Theme: system', light: 'Theme: light', dark: 'Theme: dark'}[themeChoice];
    colours.clear();
    themeListeners.forEach((listener) => listener(state.theme));
    redraw();
  };
  const nextTheme = () => {
    themeChoice = {auto: 'light', light: 'dark', dark: 'auto'}[themeChoice];
    try { localStorage.setItem('rafter-theme', themeChoice); } catch { /* pages of file:// may have no storage */ }
    applyTheme();
  };
  /* The theme's value of the CSS variable --NAME: 'ink', 'paper', 'line', 'muted', 'accent', 'c0'..'c7' (Okabe-Ito). */
  const colours = new Map();
  const colour = (name) => {
    if (!colours.has(name)) colours.set(name, css(`--${name}`) || '#888');
    return colours.get(name);
  };

  /* ---- panels --------------------------------------------------------------------------------------------------------- */

  /* {id, title, order?, about?, perRun?, available(model), missing?(model, run), render(element,
   * model, run)}: render may return a promise; with perRun it is called again when another run is
   * chosen. missing() says why a panel has nothing to show: its tab is then grey. */
  const panel = (definition) => { panels.push(definition); };
  const section = (id) => $(`panel-${id}`);

  const renderPanel = async (one) => {
    const body = section(one.id).querySelector('.body'), token = {};
    one.token = token;
    body.replaceChildren(el('p', {class: 'empty'}, 'Reading …'));
    await new Promise((done) => setTimeout(done, 0));
    if (one.token !== token) return;
    body.replaceChildren();
    const start = performance.now();
    try {
      await one.render(body, model, run());
    } catch (error) {
      state.errors.push(`${one.id}: ${error.message}`);
      body.append(el('p', {class: 'fault', role: 'alert'}, `This panel could not be drawn: ${error.message}`));
      console.error(error);
    }
    state.rendered[one.id] = performance.now() - start;
  };

  const show = async (id, focus) => {
    const one = panels.find((candidate) => candidate.id === id) || panels[0];
    if (!one) return;
    state.panel = one.id;
    for (const other of panels) {
      const tab = $(`tab-${other.id}`), on = other === one;
      section(other.id).classList.toggle('shown', on);
      tab.setAttribute('aria-selected', String(on));
      tab.tabIndex = on ? 0 : -1;
      if (on && focus) tab.focus();
      if (on)
        tab.parentNode.scrollLeft = Math.min(
            tab.offsetLeft - 12,
            Math.max(
                tab.parentNode.scrollLeft,
                tab.offsetLeft + tab.offsetWidth + 12 - tab.parentNode.clientWidth));
    }
    greyTabs();
    tooltip.hide();
    if (location.hash.slice(1) !== one.id) history.replaceState(null, '', `#${one.id}`);
    if (state.rendered[one.id] === undefined && !one.token) await renderPanel(one);
    redraw();
  };

  const missing = (one) => (one.missing && one.missing(model, run())) || '';
  /* Tabs of panels without content are grey, and their titles say what is missing. The shown panel
   * keeps its tab. */
  const greyTabs = () => {
    for (const one of panels) {
      const tab = $(`tab-${one.id}`), why = missing(one);
      tab.disabled = Boolean(why) && one.id !== state.panel;
      tab.title = why;
    }
  };

  const build = () => {
    for (const one of panels) {
      const tab = el('button', {type: 'button', role: 'tab', id: `tab-${one.id}`, 'aria-controls': `panel-${one.id}`, 'aria-selected': 'false', tabindex: -1,
        onclick: () => show(one.id)}, one.title);
      $('tabs').append(tab);
      $('content').append(el('section', {class: 'panel', role: 'tabpanel', id: `panel-${one.id}`, 'aria-labelledby': `tab-${one.id}`},
        el('h2', {}, one.title), one.about && el('p', {class: 'about'}, one.about), el('div', {class: 'body'})));
    }
    $('tabs').addEventListener('keydown', (event) => {
      const open = panels.filter((one) => one.id === state.panel || !missing(one)),
            at = open.findIndex((one) => one.id === state.panel);
      const to = {ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: open.length - 1}[event.key];
      if (to === undefined) return;
      event.preventDefault();
      show(open[(to + open.length) % open.length].id, true);
    });
  };

  const chooseRun = async (index) => {
    state.run = index;
    $('run').value = String(index);
    headline();
    for (const one of panels.filter((candidate) => candidate.perRun)) { delete state.rendered[one.id]; one.token = null; }
    const shown = panels.find((one) => one.id === state.panel);
    await show(shown && missing(shown) ? panels[0].id : state.panel);
    await renderRest();
  };

  const renderRest = async () => {
    state.ready = false;
    for (const one of panels) if (state.rendered[one.id] === undefined && !one.token) await renderPanel(one);
    redraw();
    state.ready = true;
  };

  const headline = () => {
    const name = runName(run());
    $('headline').textContent = runs().length ? name : 'report';
    document.title = `${name} · rafter report`;
  };

  /* ---- drawing ---------------------------------------------------------------------------------------------------------- */

  let pending = 0;
  const drawAll = () => { /* forget canvases that are no longer in the page */
    pending = 0;
    redraws.forEach((one) => { if (one.node.isConnected) one.draw(); else redraws.delete(one); });
  };
  const redraw = () => { if (!pending) pending = requestAnimationFrame(drawAll); };

  /* A canvas in device pixels that follows the width of its parent. draw(context, width, height) gets CSS pixels, at most once per frame. */
  const canvas = (parent, {label, height, draw, focusable = false, role = 'img'}) => {
    const node = el('canvas', {role, 'aria-label': label, tabindex: focusable ? 0 : undefined, style: {width: '100%', height: `${height}px`}});
    const view = {node, context: node.getContext('2d'), width: 0, height};
    let asked = 0;
    view.drawNow = () => {
      asked = 0;
      const width = node.clientWidth;
      if (!width) return; /* the panel is hidden */
      const ratio = window.devicePixelRatio || 1;
      view.width = width;
      const w = Math.round(width * ratio), h = Math.round(view.height * ratio);
      if (node.width !== w || node.height !== h) { node.width = w; node.height = h; }
      view.context.setTransform(ratio, 0, 0, ratio, 0, 0);
      view.context.clearRect(0, 0, width, view.height);
      draw(view.context, width, view.height);
    };
    view.redraw = () => { if (!asked) asked = requestAnimationFrame(view.drawNow); };
    view.setHeight = (h) => {
      if (h === view.height) return;
      view.height = h;
      node.style.height = `${h}px`;
      view.redraw();
    };
    redraws.add({node, draw: view.drawNow});
    new ResizeObserver(view.redraw).observe(node);
    parent.append(node);
    return view;
  };

  /* A Chart.js chart in the theme's colours: config() makes the configuration and is called again when the theme changes. */
  const chart = (parent, {label, height = 320, config}) => {
    const node = el('canvas', {role: 'img', 'aria-label': label, tabindex: 0});
    const frame = el('div', {class: 'chart', style: {height: `${height}px`}}, node);
    parent.append(frame);
    let made = null;
    const make = () => {
      if (made) made.destroy();
      Chart.defaults.color = colour('muted');
      Chart.defaults.borderColor = colour('grid');
      Chart.defaults.font.family = css('--sans');
      const settings = config();
      settings.options = {animation: false, responsive: true, maintainAspectRatio: false, ...settings.options};
      made = new Chart(node, settings);
    };
    const fresh = () => {
      if (!node.isConnected) { themeListeners.delete(fresh); if (made) made.destroy(); return; }
      make();
    };
    themeListeners.add(fresh);
    make();
    redraws.add({node, draw: () => { if (made && frame.clientWidth) made.resize(); }});
    return {node, get chart() { return made; }, update: fresh};
  };

  /* ---- tooltip, keys, help ------------------------------------------------------------------------------------------------- */

  const tooltip = {
    /* x, y: clientX and clientY of the pointer; `content` is text or a node. */
    show(x, y, content) {
      const node = $('tooltip');
      node.replaceChildren(content);
      node.hidden = false;
      const box = node.getBoundingClientRect(), room = 12;
      const left = x + room + box.width > innerWidth ? Math.max(4, x - room - box.width) : x + room;
      const top = y + room + box.height > innerHeight ? Math.max(4, y - room - box.height) : y + room;
      node.style.left = `${left}px`;
      node.style.top = `${top}px`;
    },
    hide() { $('tooltip').hidden = true; },
  };

  const typing = (target) => target && (target.isContentEditable || /^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName));
  const helps = [];
  /* keys(element, 'Trace', [[['+', '='], 'zoom in', fn], ...]): active while the panel is shown and the focus is on the element or on nothing. */
  const keys = (element, title, rows) => {
    if (!helps.some((help) => help.title === title)) helps.push({title, rows: rows.map(([names, what]) => [names, what])});
    const handler = (event) => {
      if (!element.isConnected) { document.removeEventListener('keydown', handler); return; }
      if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target) || document.querySelector('dialog[open]')) return;
      const holder = element.closest('.panel'), tab = $('tabs').contains(event.target); /* tabs have their own keys */
      if (tab && (event.defaultPrevented || event.key === 'Enter' || event.key === ' ')) return;
      if (!(tab || element.contains(event.target) || event.target === document.body || (holder && holder.classList.contains('shown') && event.target === $('content')))) return;
      if (holder && !holder.classList.contains('shown')) return;
      const row = rows.find(([names]) => names.includes(event.key));
      if (!row || !row[2]) return;
      event.preventDefault();
      row[2](event);
    };
    document.addEventListener('keydown', handler);
  };
  const KEY_SIGN = {' ': 'space', ArrowLeft: '←', ArrowRight: '→', ArrowUp: '↑', ArrowDown: '↓', PageUp: 'page up', PageDown: 'page down', Escape: 'Esc', '-': '−', '_': null, '=': null};
  const help = () => {
    const general = {title: 'Page', rows: [[['ArrowLeft', 'ArrowRight'], 'previous panel, next panel (on a tab)'], [['?'], 'show these keys'], [['Escape'], 'close']]};
    const shown = panels.find((one) => one.id === state.panel), own = helps.filter(({title}) => shown && title === shown.title), rest = helps.filter((one) => !own.includes(one));
    $('help').replaceChildren(el('div', {class: 'bar'}, el('h2', {}, 'Keys'), el('span', {class: 'spring'}), el('button', {type: 'button', onclick: () => $('help').close()}, 'Close')),
      el('div', {class: 'columns'}, [...own, general, ...rest].map(({title, rows}) => el('section', {}, el('h3', {}, title), el('table', {class: 'keys'}, el('tbody', {}, rows.map(([names, what]) =>
        el('tr', {}, el('td', {}, names.filter((name) => KEY_SIGN[name] !== null).map((name) => el('kbd', {}, KEY_SIGN[name] || name))), el('td', {}, what)))))))));
    $('help').showModal();
  };

  /* ---- start ------------------------------------------------------------------------------------------------------------------ */

  const provenance = () => {
    const said = ['Made by rafter', model.rafter].filter(Boolean).join(' ');
    $('provenance').textContent = `${said} from ${runs().length} ${runs().length === 1 ? 'run' : 'runs'}. Bytes, FLOPs and predicted seconds come from the plan.`;
  };

  const start = async () => {
    try {
      const text = $('model').textContent;
      model = JSON.parse(text);
      rafter.model = model;
    } catch (error) {
      $('content').append(el('p', {class: 'fault', role: 'alert'}, `The data of this report is not readable: ${error.message}`));
      throw error;
    }
    try { themeChoice = localStorage.getItem('rafter-theme') || 'auto'; } catch { /* pages of file:// may have no storage */ }
    if (!['auto', 'light', 'dark'].includes(themeChoice)) themeChoice = 'auto';
    darkSystem.addEventListener('change', applyTheme);
    $('theme').addEventListener('click', nextTheme);
    $('print').addEventListener('click', () => window.print());
    $('help-button').addEventListener('click', help);
    $('words-button').addEventListener('click', rafter.words);
    document.addEventListener('keydown', (event) => {
      if (event.key === '?' && !typing(event.target) && !document.querySelector('dialog[open]')) { event.preventDefault(); help(); }
      if (event.key === 'Escape') tooltip.hide();
    });
    /* Print shows every panel in light colours at about the paper's width. Pictures are drawn before the page is laid out. */
    const paper = (on) => {
      printing = on;
      document.documentElement.classList.toggle('printing', on);
      applyTheme();
      drawAll();
    };
    window.addEventListener('beforeprint', () => paper(true));
    window.addEventListener('afterprint', () => paper(false));
    window.addEventListener('hashchange', () => show(location.hash.slice(1)));
    headline();
    provenance();
    if (runs().length > 1) {
      $('run').append(...runs().map((one, i) => el('option', {value: i}, runName(one))));
      $('run').addEventListener('change', () => chooseRun(Number($('run').value)));
      $('run-label').hidden = false;
    }
    panels.sort((a, b) => (a.order || 50) - (b.order || 50));
    const offered = panels.filter((one) => one.available(model));
    panels.splice(0, panels.length, ...offered);
    build();
    applyTheme();
    if (!panels.length) $('content').append(el('p', {class: 'empty'}, 'This report has nothing to show. Give `rafter report` a run folder or a plan made with --json.'));
    await show(location.hash.slice(1));
    await renderRest();
  };
  document.addEventListener('DOMContentLoaded', start);

  return {model, state, panel, el, run, runs, runName, plans, objects, colour, canvas, chart, tooltip, keys, redraw, announce, chooseRun, show,
    onTheme: (listener) => themeListeners.add(listener)};
})();
