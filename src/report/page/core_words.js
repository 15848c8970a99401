/* core_words.js - definitions of the page's terms: a dialog, and a short line below the summary's sentence. */
(() => {
  const {el} = rafter;
  /* Examples use names as they occur in plans. */
  const WORDS = [
    ['Three figures', [
      ['measured', 'The time or memory that this run took. Times of ops and steps are means, unless the text says otherwise.'],
      ['predicted', 'The plan\'s figure from before the run. It uses the chosen kernels\' times, measured by calibration or derived from a data sheet.'],
      ['limit', 'The minimum time on this machine (the roofline): FLOPs divided by the highest rate, or bytes divided by the bandwidth, whichever is longer. If the measured time is near the predicted time but far above the limit, the kernels lose the time. If it is far above the predicted time, something disturbs the run.'],
      ['bound by', 'The cause of most of the time: compute, memory (bandwidth), launch (the cost of starting small ops), network, or gaps between ops.'],
    ]],
    ['What runs', [
      ['plan', 'The list of all ops and tensors with their offsets and predicted times, made before the run. A run only executes it.'],
      ['step', 'One execution of a plan\'s ops. In training: all microbatches of a batch, then the optimizer (train), or one validation batch (validation). Otherwise one forward pass: a chunk of prompts (prefill), one token of every running answer (decode), or texts to score (score). Steps are counted from 1.'],
      ['microbatch, accumulate', 'The sequences in one forward and backward pass, and the number of such passes per training step.'],
      ['op, kernel', 'An operation on tensors, such as a matrix product or a norm, and the routine that the plan chose for it.'],
      ['phase', 'The purpose of a part of a step: forward, recompute, backward, accumulate (adding gradients of microbatches) and optimizer; outside ops: data, sample, validation, checkpoint and write.'],
      ['remat', 'Rematerialisation, or activation checkpointing: forward drops activations and backward recomputes them. remat=mlp drops the activations of the MLPs; remat=block keeps only the inputs of layers. It needs less memory and more time, and gives the same results.'],
    ]],
    ['Reinforcement learning', [
      ['reward, component', 'A number that says how good an answer is: a weighted sum of its components, such as the right result or the right form.'],
      ['group', 'A prompt with all answers that were sampled for it in a step. A group without signal has equal rewards, so its answers do not train.'],
      ['advantage', 'The reward of an answer, compared with the other answers of its group. The loss makes answers with a positive advantage more probable.'],
      ['ratio, clipped', 'The probability of a token under the trained policy, divided by its probability when it was sampled. The loss clips ratios that are too far from 1.'],
      ['KL, entropy', 'KL: how far the policy is from the reference, the model before the training. Entropy: how uncertain the policy is about the next token. Both in nats per token.'],
      ['evaluation', 'The mean reward on prompts that are not trained.'],
    ]],
    ['Names of ops and tensors', [
      ['block.3/mlp/up', 'The first matrix of the MLP in layer 3; layers are counted from 0. block.* means all layers together.'],
      ['step/micro/…', 'An op that runs once per microbatch; in generation and scoring, once per step. step/end/… runs once per step.'],
      ['…/fwd, …/bwd', 'Forward and backward. …/bwd/weight is the gradient of a weight, …/fwd/recompute is recomputed in backward, …/norm_sq and …/adamw belong to the optimizer.'],
    ]],
    ['Memory', [
      ['arena', 'The single block of memory that contains all tensors. The plan gives its size before the run, to the byte.'],
      ['live, peak', 'Bytes of all tensors that an op or a later op needs, and the largest extent of the arena over all ops.'],
      ['persistent', 'Tensors that live across steps: weights, their f32 masters and the optimizer\'s moments; in generation, weights and the cache of keys and values.'],
      ['kv pages', 'Parts of the cache of keys and values; each page holds some tokens of one sequence.'],
    ]],
    ['Threads', [
      ['gap', 'Time in which a thread worked on no op. The table below the trace lists gaps by measured cause.'],
      ['wait, serial, launch', 'The thread waited for other threads; only one thread had work; the next op was being started.'],
      ['other threads', 'The thread was ready to run, but something else used its core.'],
      ['unexplained', 'No measurement explains the gap.'],
    ]],
  ];

  rafter.words = () => {
    const dialog = document.getElementById('words');
    dialog.replaceChildren(
      el('div', {class: 'bar'}, el('h2', {}, 'Terms'), el('span', {class: 'spring'}), el('button', {type: 'button', onclick: () => dialog.close()}, 'Close')),
      el('div', {class: 'columns'}, WORDS.map(([title, rows]) => el('section', {}, el('h3', {}, title),
        el('dl', {class: 'words'}, rows.flatMap(([word, meaning]) => [el('dt', {}, word), el('dd', {}, meaning)]))))));
    dialog.showModal();
  };

  /* The terms that a summary needs, in one line. */
  rafter.wordsLine = () => el('p', {class: 'note words-line'}, el('b', {}, 'Measured'), ' is the run, ', el('b', {}, 'predicted'), ' is its plan, ', el('b', {}, 'limit'),
    ' is the minimum on this machine; a ', el('b', {}, 'step'), ' executes the plan\'s ops once; ', el('b', {}, 'block.3'), ' is layer 3, ', el('b', {}, 'block.*'),
    ' all layers; ', el('b', {}, 'remat'), ' recomputes activations instead of keeping them. ', el('button', {type: 'button', class: 'more screen', onclick: rafter.words}, 'All terms'));
})();
