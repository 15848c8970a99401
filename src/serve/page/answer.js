// answer.js - the messages as elements: a question, an answer with its figures and buttons.
'use strict';

{
  const el = chat.el;

  const button = (label, action, more = {}) =>
    el('button', {type: 'button', class: 'small', onclick: action, ...more}, label);

  const ENDS = {stop: '', length: 'ended at the maximum number of tokens', stopped: 'stopped',
    abort: 'ended by the server'};

  chat.figures = (answer) => {
    const rate = chat.rateOf(answer);
    return [answer.count ? chat.count(answer.count, 'token') : '', rate ? chat.rate(rate) : '',
      answer.first ? `first token ${chat.seconds(answer.first)}` : '', ENDS[answer.finish] || '']
      .filter(Boolean).join(' · ');
  };

  // The views of an answer: Markdown, or tokens with their probabilities.
  chat.answerView = (answer) => {
    const body = el('div', {class: 'body'});
    const foot = el('p', {class: 'foot'});
    const actions = el('div', {class: 'actions'});
    const failure = el('div', {class: 'failure', role: 'alert', hidden: true});
    const node = el('li', {class: 'message answer'},
      el('h2', {class: 'who'}, chat.state.model || 'Model'), body, failure, foot, actions);
    const view = {node, answer, actions, failure};
    const lacks = el('p', {class: 'foot'}, 'No probabilities of this answer are kept.');
    let markdown = null;
    let tokens = null;
    let given = 0; // characters or tokens that the view has
    let due = 0;

    view.start = () => {
      const hasTokens = answer.tokens.length > 0 || (answer.open && !answer.content);
      const byToken = chat.state.probabilities && hasTokens;
      given = 0;
      markdown = byToken ? null : chat.markdown(body, (text) => answer.open && chat.announce(text));
      tokens = byToken ? chat.tokenView(body) : null;
      if (chat.state.probabilities && !byToken && answer.content)
        foot.before(lacks);
      else lacks.remove();
      view.update();
      if (!answer.open) view.end();
    };

    const feed = () => {
      if (tokens) {
        tokens.add(answer.tokens.slice(given));
        given = answer.tokens.length;
        return;
      }
      markdown.add(answer.content.slice(given));
      given = answer.content.length;
      markdown.draw();
    };

    view.update = () => {
      if (tokens && answer.content && !answer.tokens.length) {
        view.start(); // the server sends no probabilities
        return;
      }
      feed();
      foot.textContent = chat.figures(answer);
    };

    // Draws again soon, but spends at most a quarter of the time on it.
    view.later = () => {
      if (due) return;
      due = setTimeout(() => requestAnimationFrame(() => {
        const from = performance.now();
        due = 0;
        if (!answer.open) return;
        view.update();
        view.pause = 3 * (performance.now() - from);
        chat.follow();
      }), view.pause || 0);
    };

    view.end = () => {
      view.update();
      if (markdown) markdown.end();
      markdown = markdown && {add() {}, draw() {}, end() {}};
      node.classList.remove('open');
    };

    node.classList.toggle('open', Boolean(answer.open));
    view.start();
    return view;
  };

  chat.answerActions = (view, retry) => {
    const copy = button('Copy', () => chat.copy(view.answer.content, copy));
    view.actions.replaceChildren(...(view.answer.content ? [copy] : []),
      ...(retry ? [button('Retry', retry, {'data-action': 'retry'})] : []));
  };

  chat.showFailure = (view) => {
    view.failure.hidden = !view.answer.failure;
    view.failure.replaceChildren(el('p', {}, view.answer.failure));
  };

  chat.questionView = (question, edit) => {
    const actions = el('div', {class: 'actions'});
    if (edit) actions.append(button('Edit', edit, {'data-action': 'edit'}));
    return el('li', {class: 'message question'}, el('h2', {class: 'who'}, 'You'),
      el('div', {class: 'body', dir: 'auto'}, question.content), actions);
  };
}
