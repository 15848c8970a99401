// chat.js - the conversation: send, stop, retry, edit, export, and the keys of the page.
'use strict';

{
  const {el, get, state} = chat;
  let views = []; // one of each message
  let edits = -1; // the message that is edited
  let follows = true;

  const talk = get('talk');
  const ask = get('ask');

  // ---- the view ---------------------------------------------------------------------------------

  // Keeps the end of an answer in sight, unless the reader has scrolled up.
  chat.follow = () => {
    if (follows) talk.scrollTop = talk.scrollHeight;
  };

  const lastQuestion = () => state.messages.map((one) => one.role).lastIndexOf('user');

  // Buttons depend on whether a message is the last one, so all are set again.
  const setActions = () => {
    const last = state.messages.length - 1;
    views.forEach((view, i) => {
      const message = state.messages[i];
      if (message.role === 'assistant') {
        chat.answerActions(view, i === last && !state.running ? retry : null);
        chat.showFailure(view);
      }
    });
    const at = lastQuestion();
    for (const button of document.querySelectorAll('.question .actions button')) button.hidden = true;
    const edit = at >= 0 && views[at].querySelector('[data-action=edit]');
    if (edit) edit.hidden = Boolean(state.running);
    get('empty').hidden = state.messages.length > 0;
    get('send').hidden = Boolean(state.running);
    get('stop').hidden = !state.running;
    for (const id of ['fresh', 'export']) get(id).disabled = state.messages.length === 0;
  };

  const viewOf = (message) => message.role === 'user' ? chat.questionView(message, editLast)
    : chat.answerView(message);
  const nodeOf = (view) => view.node || view;

  const drawAll = () => {
    views = state.messages.map(viewOf);
    get('messages').replaceChildren(...views.map(nodeOf));
    setActions();
  };

  const add = (message) => {
    state.messages.push(message);
    views.push(viewOf(message));
    get('messages').append(nodeOf(views[views.length - 1]));
  };

  const cutTo = (count) => {
    for (const view of views.splice(count)) nodeOf(view).remove();
    state.messages.length = count;
  };

  const sizeAsk = () => {
    ask.style.height = 'auto';
    ask.style.height = `${Math.min(ask.scrollHeight + 2, 0.4 * innerHeight)}px`;
  };

  const setAsk = (text) => {
    ask.value = text;
    sizeAsk();
  };

  const showMode = () => {
    get('mode').hidden = !state.plain;
    get('mode').textContent = 'This model has no chat template. It continues your text as it is, without '
      + 'roles. The system prompt is not used.';
  };

  // ---- requests ---------------------------------------------------------------------------------

  const request = () => {
    const before = [];
    // Questions without an answer are joined, because many templates need alternating roles.
    for (const {role, content} of state.messages.filter((one) => one.content)) {
      const last = before[before.length - 1];
      if (last?.role === role && !state.plain) last.content += `\n\n${content}`;
      else before.push({role, content});
    }
    const system = state.settings.system || '';
    const prompt = before.map((one) => one.content).join('');
    if (state.plain) return ['v1/completions', chat.bodyOf({prompt, logprobs: 5})];
    const messages = system.trim() ? [{role: 'system', content: system}, ...before] : before;
    return ['v1/chat/completions', chat.bodyOf({messages, logprobs: true, top_logprobs: 5})];
  };

  const handlers = (answer, view, began) => {
    const tick = () => {
      const now = (performance.now() - began) / 1000;
      answer.first = answer.first || now;
      answer.seconds = now;
      chat.showRate(answer);
      view.later();
    };
    return {
      text(text) {
        answer.content += text;
        if (!answer.tokens.length) answer.pieces++;
        answer.count = answer.tokens.length || answer.pieces;
        tick();
      },
      tokens(tokens) {
        answer.tokens.push(...tokens);
        answer.count = answer.tokens.length;
        tick();
      },
      end(finish) { answer.finish = finish; },
      usage(usage) {
        if (Number.isInteger(usage.completion_tokens)) answer.count = usage.completion_tokens;
      },
    };
  };

  // Shows a failure where it can be mended: at the key, at a setting, or at the answer.
  const explain = (answer, failure) => {
    if (failure.status === 401) {
      askKey(state.key ? 'The server refuses this key.' : '');
      answer.failure = 'The server needs an API key. Enter it at the top, then retry.';
    } else if (chat.showFault(failure.param, failure.message)) {
      chat.showSettings(true);
      answer.failure = `${failure.message.replace(/\.$/, '')}. Correct the setting, then retry.`;
    } else answer.failure = failure.message || 'This page had a fault.';
  };

  const run = async (answer, view) => {
    const running = {abort: new AbortController()};
    state.running = running;
    setActions();
    for (;;) {
      const wasPlain = state.plain;
      try {
        await chat.ask(...request(), running.abort.signal, handlers(answer, view, performance.now()));
      } catch (error) {
        if (running.abort.signal.aborted) answer.finish = 'stopped';
        else if (error.code === 'no_chat_template' && !wasPlain) {
          state.plain = true;
          showMode();
          continue;
        } else {
          if (!(error instanceof chat.Failure)) console.error(error);
          answer.finish = answer.finish || 'failed';
          explain(answer, error);
        }
      }
      break;
    }
    state.running = null;
    view.end();
    answer.open = false;
    delete answer.pieces;
    view.update();
    chat.showRate(answer);
    chat.announce(answer.failure ? '' : `End of the answer. ${chat.figures(answer)}`);
    setActions();
    chat.follow();
    chat.save();
  };

  // Asks for the answer to the messages so far.
  const answerNow = () => {
    const answer = {role: 'assistant', content: '', tokens: [], finish: '', failure: '', count: 0,
      seconds: 0, first: 0, pieces: 0, open: true};
    add(answer);
    if (!chat.isWide()) chat.showSettings(false); // they cover the answer
    follows = true;
    chat.follow();
    chat.save();
    return run(answer, views[views.length - 1]);
  };

  const send = () => {
    if (state.running || !ask.value.trim()) return;
    if (edits >= 0) cutTo(edits);
    stopEdit();
    add({role: 'user', content: ask.value});
    setAsk('');
    answerNow();
  };

  function retry() {
    if (state.running) return;
    const at = lastQuestion();
    if (at < 0) return;
    cutTo(at + 1);
    answerNow();
    ask.focus();
  }

  const stop = () => state.running?.abort.abort();

  // ---- edit, new, export ------------------------------------------------------------------------

  function stopEdit() {
    edits = -1;
    get('editing').hidden = true;
    for (const view of views) nodeOf(view).classList.remove('edited');
  }

  function editLast() {
    if (state.running || lastQuestion() < 0) return;
    edits = lastQuestion();
    views.slice(edits).forEach((view) => nodeOf(view).classList.add('edited'));
    get('editing').hidden = false;
    setAsk(state.messages[edits].content);
    ask.focus();
  }

  const fresh = () => {
    stop();
    stopEdit();
    state.messages = [];
    views = [];
    get('messages').replaceChildren();
    get('cut').hidden = true;
    setActions();
    chat.save();
    ask.focus();
  };

  chat.exported = () => ({
    rafter: 'conversation', model: state.model, exported: new Date().toISOString(),
    settings: state.settings, endpoint: state.plain ? '/v1/completions' : '/v1/chat/completions',
    messages: state.messages.map((one) => one.role === 'user' ? {role: one.role, content: one.content}
      : {role: one.role, content: one.content, finish_reason: one.finish, completion_tokens: one.count,
        seconds: one.seconds, first_token_seconds: one.first, error: one.failure || undefined,
        logprobs: one.tokens.map((token) => ({token: token.text, logprob: token.logprob,
          top_logprobs: token.tops.map(([name, logprob]) => ({token: name, logprob}))}))}),
  });

  const download = () => {
    const href = URL.createObjectURL(new Blob([`${JSON.stringify(chat.exported(), null, 1)}\n`],
      {type: 'application/json'}));
    el('a', {href, download: 'conversation.json'}).click();
    setTimeout(() => URL.revokeObjectURL(href), 10000);
  };

  // ---- the model and its key --------------------------------------------------------------------

  function askKey(fault) {
    get('key-form').hidden = false;
    get('key-fault').textContent = fault;
    get('forget').hidden = !state.key;
    get('key').focus();
  }

  const findModel = async () => {
    let fault = 'The server does not answer.';
    try {
      const response = await chat.fetch('v1/models');
      if (response.status === 401) return askKey(state.key ? 'The server refuses this key.' : '');
      const first = (await response.json()).data?.[0];
      if (typeof first?.id === 'string') {
        state.model = first.id;
        fault = '';
      }
    } catch { /* the fault is shown below */ }
    get('key-form').hidden = true;
    get('forget').hidden = !state.key;
    get('model').textContent = state.model || fault;
    get('to').textContent = state.model || 'the model';
    document.title = state.model ? `${state.model} · rafter` : 'rafter';
    for (const who of document.querySelectorAll('.answer .who')) who.textContent = state.model || 'Model';
  };

  const takeKey = async (event) => {
    event.preventDefault();
    chat.useKey(get('key').value.trim());
    get('key').value = '';
    await findModel();
    if (get('key-form').hidden) ask.focus();
  };

  // ---- the page ---------------------------------------------------------------------------------

  const showProbabilities = (shown) => {
    state.probabilities = shown;
    get('probabilities').setAttribute('aria-pressed', String(shown));
    get('legend').hidden = !shown;
  };

  const onAskKey = (event) => {
    if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    } else if (event.key === 'ArrowUp' && !ask.value) {
      event.preventDefault();
      editLast();
    }
  };

  // Escape closes a tooltip, then stops an answer, then ends an edit.
  const onKey = (event) => {
    if (event.key !== 'Escape' || event.isComposing) return;
    if (chat.hideTip()) return;
    if (state.running) stop();
    else if (edits >= 0) {
      stopEdit();
      setAsk('');
    }
  };

  const on = (id, action) => get(id).addEventListener('click', action);

  get('cut').hidden = !chat.load();
  chat.startSettings();
  showProbabilities(state.probabilities);
  showMode();
  drawAll();
  chat.follow();
  get('composer').addEventListener('submit', (event) => {
    event.preventDefault();
    send();
  });
  get('key-form').addEventListener('submit', takeKey);
  ask.addEventListener('keydown', onAskKey);
  ask.addEventListener('input', sizeAsk);
  document.addEventListener('keydown', onKey);
  talk.addEventListener('scroll', () => {
    follows = talk.scrollTop + talk.clientHeight > talk.scrollHeight - 40;
    chat.hideTip();
  });
  on('stop', stop);
  on('fresh', fresh);
  on('export', download);
  on('forget', () => {
    chat.useKey('');
    findModel();
  });
  on('cancel', () => {
    stopEdit();
    setAsk('');
    ask.focus();
  });
  on('probabilities', () => {
    showProbabilities(!state.probabilities);
    for (const view of views) if (view.start) view.start();
    chat.save();
  });
  addEventListener('pagehide', chat.save);
  chat.startLive();
  findModel().finally(() => {
    // On a phone, the focus would open the keyboard.
    if (get('key-form').hidden && !matchMedia('(pointer: coarse)').matches) ask.focus();
    state.ready = true;
  });
}
