/* samples.js - answers of reinforcement learning by step: the prompt, and its answers with rewards
 * and tokens. All texts come from a model and from data, so they may be hostile: they are only ever text. */
(() => {
  const {el, digits} = rafter;

  /* ---- texts --------------------------------------------------------------------------------- */

  /* Characters that change how other characters are shown, or that are not visible: controls, marks of
   * direction, widths of zero, tags. The page shows their numbers. */
  const HIDDEN = new RegExp(
      '[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u061c\\u115f\\u180e\\u200b\\u200e\\u200f' +
          '\\u2028-\\u202e\\u2060-\\u2069\\ufeff\\ufff9-\\ufffb\\u{e0000}-\\u{e007f}]',
      'u');
  const PARTS = new RegExp(`(${HIDDEN.source})`, 'u');
  const nodesOf = (text) => (
      !HIDDEN.test(text) ?
          [text] :
          text.split(PARTS).filter(Boolean).map(
              (part) => (
                  !HIDDEN.test(part) ?
                      part :
                      el('span', {class: 'hidden-character'},
                         `U+${part.codePointAt(0).toString(16).toUpperCase().padStart(4, '0')}`))));
  const isText = (value) => typeof value === 'string';
  const textOf = (value) => (isText(value) ? value : '');

  /* ---- the model's steps --------------------------------------------------------------------- */

  /* [{step, groups: [{..., evaluation}], leftOut}], by step. */
  const stepsOf = (run) => {
    const samples = (run && run.samples) || {}, steps = new Map();
    for (const [key, evaluation] of [['steps', false], ['evaluations', true]])
      for (const one of rafter.objects(samples[key])) {
        const groups =
            rafter.objects(one.groups)
                .map((group) => ({...group, evaluation, samples: rafter.objects(group.samples)}));
        if (!Number.isFinite(one.step) || !groups.length) continue;
        if (!steps.has(one.step)) steps.set(one.step, {step: one.step, groups: [], leftOut: 0});
        steps.get(one.step).groups.push(...groups);
        steps.get(one.step).leftOut += one.left_out || 0;
      }
    return [...steps.values()].sort((a, b) => a.step - b.step);
  };
  rafter.hasSamples = (run) => stepsOf(run).length > 0;

  const rewardOf = (sample) => (Number.isFinite(sample.reward) ? sample.reward : NaN);
  const meanReward = (group) => {
    const rewards = group.samples.map(rewardOf).filter(Number.isFinite);
    return rewards.length ? rewards.reduce((sum, value) => sum + value, 0) / rewards.length : NaN;
  };
  const SORTS = {
    given: () => 0,
    best: (a, b) => (b.reward ?? -Infinity) - (a.reward ?? -Infinity),
    worst: (a, b) => (a.reward ?? Infinity) - (b.reward ?? Infinity)
  };

  /* ---- tokens -------------------------------------------------------------------------------- */

  /* How strong a token is coloured, 0 to 1. */
  const SCALES = {
    logprobs: {
      title: 'Probability',
      strength: (value) => Math.sqrt(Math.min(1, Math.max(0, -value / 6))),
      ends: [0, 0.25, 0.5, 0.75, 1].map(
          (s) => [s, s === 0 ? '1' : digits(Number(Math.exp(-6 * s * s).toPrecision(2)))])
    },
    kl: {
      title: 'KL',
      strength: (value) =>
          (Math.abs(value) > 0 ? Math.min(1, Math.max(0, (Math.log10(Math.abs(value)) + 4) / 4)) :
                                 0),
      ends: [0, 0.25, 0.5, 0.75, 1].map(
          (s) =>
              [s,
               s === 0     ? '≤ 0.0001' :
                   s === 1 ? '≥ 1 nat' :
                             String(Number((10 ** (4 * s - 4)).toPrecision(1)))])
    }
  };
  const valueAt = (sample, key, i) =>
      (Array.isArray(sample[key]) && Number.isFinite(sample[key][i]) ? sample[key][i] : NaN);
  const piecesOf = (sample) => (Array.isArray(sample.pieces) ? sample.pieces.map(textOf) : []);

  const tokenNode = (piece, strength, i) => {
    const node = document.createElement('span');
    node.className = 'token';
    node.dataset.i = i;
    if (strength > 0) node.style.setProperty('--strength', `${(60 * strength).toFixed(1)}%`);
    if (piece.includes('\n')) /* a line break is visible and can be pointed at */
      piece.split(/(\n)/).filter(Boolean).forEach(
          (part) => node.append(
              ...(part === '\n' ? [el('span', {class: 'break'}, '↵'), '\n'] : nodesOf(part))));
    else node.append(...(piece ? nodesOf(piece) : [el('span', {class: 'break'}, '∅')]));
    return node;
  };

  const tokenFacts = (sample, i) => {
    const logprob = valueAt(sample, 'logprobs', i), kl = valueAt(sample, 'kl', i),
          id = valueAt(sample, 'tokens', i);
    return [
      ['token', piecesOf(sample)[i]], ['id', Number.isFinite(id) ? String(id) : null],
      [
        'probability',
        Number.isFinite(logprob) ? `${digits(Math.exp(logprob))} (log ${digits(logprob)})` :
                                   'unknown'
      ],
      ['KL', Number.isFinite(kl) ? `${digits(kl)} nats` : null]
    ].filter(([, value]) => value !== null);
  };
  const pointAt = (sample, node) => {
    const box = node.getClientRects()[0] || node.getBoundingClientRect(),
          facts = tokenFacts(sample, Number(node.dataset.i));
    rafter.tooltip.show(
        box.left, box.bottom - 8,
        el('div', {},
           facts.map(
               ([name, value]) => el(
                   'div', {}, el('span', {class: 'muted'}, `${name} `),
                   name === 'token' ? [el('q', {class: 'token-text'}, nodesOf(value))] : value))));
    return facts.map(([name, value]) => `${name} ${value}`).join(', ');
  };

  /* The text of an answer: its tokens by colour, with the keys and the pointer; or plain text. */
  const textNode = (sample, colour, title) => {
    const pieces = colour ? piecesOf(sample) : [], scale = SCALES[colour];
    if (!pieces.length)
      return el(
          'div',
          {class: 'answer-text', tabindex: 0, role: 'group', 'aria-label': title, dir: 'auto'},
          nodesOf(textOf(sample.text)));
    const fragment = document.createDocumentFragment();
    pieces.forEach(
        (piece, i) =>
            fragment.append(tokenNode(piece, scale.strength(valueAt(sample, colour, i)), i)));
    let current = null;
    const choose = (node) => {
      if (current) current.classList.remove('current');
      current = node;
      if (!node) {
        rafter.tooltip.hide();
        return;
      }
      node.classList.add('current');
      node.scrollIntoView({block: 'nearest'});
      rafter.announce(pointAt(sample, node));
    };
    const node =
        el('div', {
          class: `answer-text by-${colour}`,
          tabindex: 0,
          role: 'group',
          'aria-label': `${title}; arrows go from token to token`,
          dir: 'auto',
          onmouseover: (event) => {
            const token = event.target.closest('.token');
            if (token) pointAt(sample, token);
          },
          onmouseleave: () => rafter.tooltip.hide(),
          onblur: () => choose(null),
          onkeydown: (event) => {
            if (event.ctrlKey || event.metaKey || event.altKey) return;
            const tokens = node.querySelectorAll(':scope > .token'),
                  at = current ? Number(current.dataset.i) : -1;
            const to =
                {ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tokens.length - 1}[event.key];
            if (to === undefined) return;
            event.preventDefault();
            event.stopPropagation(); /* the page's arrows change the step */
            choose(tokens[Math.max(0, Math.min(tokens.length - 1, to))]);
          }
        },
           fragment);
    return node;
  };

  /* ---- answers ------------------------------------------------------------------------------- */

  const components = (rewards) =>
      Object.entries(rewards || {}).filter(([, value]) => Number.isFinite(value));
  const answerNode = (sample, number, colour) => {
    const count = piecesOf(sample).length, cut = sample.finish_reason === 'length';
    return el(
        'article', {class: 'answer', 'aria-label': `Answer ${number}`},
        el('div', {class: 'answer-head'}, el('span', {class: 'muted'}, `#${number}`),
           el('span', {class: 'figure'},
              Number.isFinite(sample.reward) ? digits(sample.reward) : '–'),
           Number.isFinite(sample.advantage) &&
               el('span', {class: 'advantage'},
                  `advantage ${
                      rafter.signed(
                          digits, Math.abs(sample.advantage) < 1e-9 ? 0 : sample.advantage)}`),
           el('span', {class: 'spring'}),
           el('span', {class: cut ? 'cut' : 'muted'},
              cut ? 'cut off' : nodesOf(textOf(sample.finish_reason)))),
        el('div', {class: 'answer-parts'},
           components(sample.rewards)
               .map(
                   ([name, value]) =>
                       el('span', {}, el('span', {class: 'muted'}, nodesOf(name)),
                          ` ${digits(value)}`)),
           el('span', {class: 'spring'}),
           count > 0 && el('span', {class: 'muted'}, `${rafter.whole(count)} tokens`)),
        textNode(sample, colour, `Text of answer ${number}`),
        sample.cut === true &&
            el('p', {class: 'note'},
               'This answer was shortened for the page; samples.jsonl has all of it.'));
  };

  const quote = (title, text) =>
      el('section', {}, el('h3', {}, title),
         el('div', {class: 'quote', tabindex: 0, role: 'group', 'aria-label': title, dir: 'auto'},
            nodesOf(text)));
  const groupName = (group, i) => {
    const mean = meanReward(group), id = textOf(group.id);
    return `${i + 1}${id ? `: ${id}` : ''}${group.evaluation ? ', evaluation' : ''}${
               Number.isFinite(mean) ?
                   `, ${group.samples.length > 1 ? 'mean ' : ''}reward ${digits(mean)}` :
                   ''}`
        .replace(PARTS, '�');
  };

  const legendOf = (colour) => (
      !colour ?
          null :
          el('ul', {class: `legend by-${colour}`},
             el('li', {}, colour === 'kl' ? 'KL of a token, nats:' : 'probability of a token:'),
             SCALES[colour].ends.map(
                 ([strength, text]) => el(
                     'li', {},
                     el('span', {class: 'token', style: `--strength: ${60 * strength}%`}, text)))));

  /* ---- the panel ----------------------------------------------------------------------------- */

  const noteOf = (samples, steps) => {
    const wholly = (list, all, what) =>
        (Array.isArray(list) && all > list.length ?
             `${rafter.whole(list.length)} of ${rafter.whole(all)} ${
                 what} are shown, at equal distances from the first to the last. ` :
             '');
    const skipped =
        [
          ['lines', samples.skipped_lines], ['answers', samples.skipped_samples],
          ['values', samples.skipped_values]
        ].filter(([, count]) => count > 0)
            .map(([what, count]) => `${rafter.whole(count)} ${what}`);
    const text = wholly(samples.steps, samples.all_steps, 'steps') +
        wholly(samples.evaluations, samples.all_evaluations, 'evaluations');
    return [
      text && `${text}samples.jsonl has all of them.`,
      skipped.length && `Wrong parts of samples.jsonl are left out: ${skipped.join(', ')}.`,
      !steps.length && 'No group could be read.'
    ].filter(Boolean)
        .join(' ');
  };

  const render = (element, run) => {
    const steps = stepsOf(run),
          metrics = new Map(rafter.objects(run.metrics).map((row) => [row.step, row]));
    const has = (key) => steps.some(
        ({groups}) => groups.some(
            ({samples}) => samples.some(
                (sample) => Array.isArray(sample[key]) && sample[key].length > 0 &&
                    Array.isArray(sample.pieces))));
    const colours = ['logprobs', 'kl'].filter(has),
          trained = steps.filter(({groups}) => groups.some((group) => !group.evaluation));
    const start = Math.max(0, steps.indexOf(trained[trained.length - 1]));
    const state = rafter.state.samples = {
      steps: steps.map(({step}) => step),
      at: start,
      group: 0,
      colour: colours[0] || '',
      sort: 'given'
    };
    const slider = el('input', {
      type: 'range',
      min: 0,
      max: Math.max(0, steps.length - 1),
      step: 1,
      value: start,
      id: 'samples-step',
      'aria-label': 'Step',
      oninput: () => goTo(Number(slider.value))
    });
    const said = el('output', {for: 'samples-step', class: 'step-said'}),
          groups = el('span', {class: 'pair'}), body = el('div'), legend = el('div');
      const step = () => steps[state.at];

      const draw = () => {
        const group = step().groups[state.group], many = step().groups.length;
        rafter.tooltip.hide();
        groups.replaceChildren(
            many > 1 ? rafter.select(
                           'Group', step().groups.map(groupName),
                           (i) => {
                             state.group = i;
                             draw();
                           },
                           {id: 'samples-group', current: state.group}) :
                       el('span', {class: 'muted'}, 'one group'));
        legend.replaceChildren(legendOf(state.colour) || '');
        const numbered =
            group.samples.map((sample, i) => ({...sample, number: i + 1})).sort(SORTS[state.sort]);
        const asked = [
          isText(group.prompt) && quote('Prompt', group.prompt),
          isText(group.answer) && quote('Reference answer', group.answer)
        ].filter(Boolean);
        const mean = meanReward(group);
        state.shown = numbered.map(({number}) => number);
        body.replaceChildren(
            el('div', {class: `asked${asked.length < 2 ? ' one' : ''}`}, asked),
            el('h3', {},
               `${group.evaluation ? 'Evaluation: ' : ''}${rafter.whole(numbered.length)} ${
                   numbered.length === 1 ? 'answer' : 'answers'}${
                   Number.isFinite(mean) ?
                       `, ${numbered.length > 1 ? 'mean ' : ''}reward ${digits(mean)}` :
                       ''}`),
            el('div', {class: `answers${numbered.length < 3 ? ' few' : ''}`},
               numbered.map((sample) => answerNode(sample, sample.number, state.colour))));
        const left = [
          [group.left_out, 'answers of this group'], [step().leftOut, 'groups of this step']
        ].filter(([count]) => count > 0);
        if (left.length)
          body.append(
              el('p', {class: 'note'},
                 `Left out because of their size: ${
                     left.map(([count, what]) => `${rafter.whole(count)} ${what}`)
                         .join(', ')}. samples.jsonl has all of them.`));
      };
      const goTo = (at) => {
        const to = Math.max(0, Math.min(steps.length - 1, at)), row = metrics.get(steps[to].step);
        if (to !== state.at) state.group = 0;
        state.at = to;
        slider.value = to;
        const figure = (title, key) =>
            (row && Number.isFinite(row[key]) ? `, ${title} ${digits(row[key])}` : '');
        const reward = figure('mean reward', 'reward') + figure('evaluation', 'eval_reward');
        said.textContent = `step ${rafter.whole(step().step)}${reward}`;
        slider.setAttribute('aria-valuetext', said.textContent);
        draw();
      };
      const nextGroup = (by) => {
        const count = step().groups.length;
        state.group = (state.group + by + count) % count;
        draw();
      };
      /* Choices whose pressed button follows the keys. */
      const chooser = (title, options, key) => {
        const place = el('span', {class: 'pair'});
        const fill = () => place.replaceChildren(
            el('span', {class: 'muted'}, title),
            rafter.choice(title, options, state[key], (value) => {
              state[key] = value;
              draw();
            }));
        fill();
        return {
          place,
          next: () => {
            const values = options.map(([value]) => value);
            state[key] = values[(values.indexOf(state[key]) + 1) % values.length];
            fill();
            draw();
          }
        };
      };
      const colour = chooser(
          'Colour', [...colours.map((key) => [key, SCALES[key].title]), ['', 'None']], 'colour');
      const sort = chooser(
          'Order', [['given', 'As sampled'], ['best', 'Best first'], ['worst', 'Worst first']],
          'sort');
      const button = (text, title, by) => el(
          'button',
          {type: 'button', 'aria-label': title, title, onclick: () => goTo(state.at + by)}, text);
      const note = noteOf(run.samples, steps);
      if (!steps.length) {
        element.append(rafter.empty(note));
        return;
      }
      element.append(...[el('div', {class: 'bar samples-bar'},
                            steps.length > 1 &&
                                el('span', {class: 'stepper'}, button('‹', 'Previous step', -1),
                                   slider, button('›', 'Next step', 1)),
                            said, groups),
                         el('div', {class: 'bar samples-bar'}, sort.place,
                            colours.length > 0 && colour.place, legend),
                         note && el('p', {class: 'note'}, note), body]
                         .filter(Boolean));
      goTo(start);
      rafter.keys(element, 'Samples', [
        [['ArrowLeft'], 'previous step', () => goTo(state.at - 1)],
        [['ArrowRight'], 'next step', () => goTo(state.at + 1)],
        [['Home'], 'first step', () => goTo(0)],
        [['End'], 'last step', () => goTo(steps.length - 1)],
        [['g'], 'next group', () => nextGroup(1)], [['G'], 'previous group', () => nextGroup(-1)],
        [['c'], 'next colour', () => colours.length && colour.next()],
        [['o'], 'next order', () => sort.next()]
      ]);
      rafter.goToSamples = (wanted) => {
        const near = steps.reduce(
            (best, one, i) =>
                (Math.abs(one.step - wanted) < Math.abs(steps[best].step - wanted) ? i : best),
            0);
        goTo(near);
      };
  };

  /* Shows the answers of the nearest step that has some. */
  rafter.showSamples = async (step) => {
      await rafter.show('samples');
      if (rafter.goToSamples) rafter.goToSamples(step);
  };

  /* An empty file has nothing to show; a file whose lines are all wrong has its counts. */
  const hasAny = (run) => rafter.hasSamples(run) ||
      Boolean(run && run.samples && run.samples.skipped_lines > 0);
  rafter.panel({
    id: 'samples',
    title: 'Samples',
    order: 54,
    perRun: true,
    about: 'Answers that the policy gave, with their rewards, by step.',
    available: (model) => rafter.objects(model.runs).some(hasAny),
    missing: (model, run) => (hasAny(run) ? '' : 'This run has no samples.jsonl.'),
    render(element, model, run) {
      rafter.goToSamples = null;
      if (hasAny(run)) render(element, run);
      else
        element.append(rafter.empty(
            'This run has no samples. ', rafter.code('rafter rl --show-samples N'),
            ' writes them.'));
    },
  });
})();
