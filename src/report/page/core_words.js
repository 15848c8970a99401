/* core_words.js - what the page's words mean: a dialog that every panel's reader can open, and the line of them below the summary's sentence. */
(() => {
  const {el} = rafter;
  /* Examples are names as plans have them. */
  const WORDS = [
    ['Three figures', [
      ['measured', 'what this run took. Of ops and walks the mean of all of them, where nothing else is said.'],
      ['predicted', 'what the plan said before anything ran: the time of the kernels that it chose, as calibration measured them here or as a sheet describes the machine.'],
      ['limit', 'the least time that the machine allows (the roofline): FLOPs over its highest rate or bytes over its bandwidth, whichever takes longer. Measured near predicted, far above the limit: the kernels are the loss. Measured far above predicted: something disturbs the run.'],
      ['bound by', 'what takes most of the time: compute, memory (its bandwidth), launch (ops too small for what starting one costs), network, or a gap between ops.'],
    ]],
    ['What runs', [
      ['plan', 'the list of all ops and tensors with their places and prices, made before anything runs. A run only follows it.'],
      ['walk', 'once through a plan\'s ops: a training step, a validation, a piece of prompts (prefill), a token of every running answer (decode), rows that are scored (score).'],
      ['step', 'of training all microbatches, one after the other, and the optimizer; of all else a walk. Both are counted from 1.'],
      ['microbatch, accumulate', 'the sequences that go through the model at once, and how many such go into one step.'],
      ['op, kernel', 'one operation on tensors (a matrix product, a norm), and the routine that the plan chose for it.'],
      ['phase', 'what a part of a step is for: forward, recompute, backward, accumulate (adding to gradients that are there), optimizer; beside ops data, sample, validation, checkpoint, write.'],
      ['remat', 'rematerialisation, or activation checkpointing: activations are dropped in forward and computed again (recompute) in backward. remat=mlp drops those of the MLPs, remat=block keeps the inputs of layers only: less memory for more time, and the same results.'],
    ]],
    ['Names of ops and tensors', [
      ['block.3/mlp/up', 'the first matrix of the MLP in layer 3; layers are counted from 0. block.* stands for all layers together.'],
      ['step/micro/…', 'an op that runs for every microbatch, of generation and scoring in every walk; step/end/… runs once a step.'],
      ['…/fwd, …/bwd', 'forward and backward; …/bwd/weight is the gradient of a weight, …/fwd/recompute what is computed again, …/norm_sq and …/adamw are the optimizer\'s.'],
    ]],
    ['Memory', [
      ['arena', 'the one piece of memory that the plan lays everything out in. Its size is known before the run, to the byte.'],
      ['live, peak', 'bytes that hold something at an op, and the op where the arena reaches highest.'],
      ['persistent', 'what stays from step to step: weights, their f32 masters, the optimizer\'s moments; of generation weights and the cache of keys and values.'],
      ['kv pages', 'pieces of the cache of keys and values, each of some tokens of one answer.'],
    ]],
    ['Threads', [
      ['gap', 'time in which a thread did no work of an op; each has a cause that was measured: the table below the trace tells them.'],
      ['wait, serial, launch', 'it waited for other threads; there was work for one thread only; the next op was being started.'],
      ['other threads', 'it was ready to run, and something else had its core.'],
      ['unexplained', 'nothing was measured that it could have been.'],
    ]],
  ];

  rafter.words = () => {
    const dialog = document.getElementById('words');
    dialog.replaceChildren(
      el('div', {class: 'bar'}, el('h2', {}, 'Words'), el('span', {class: 'spring'}), el('button', {type: 'button', onclick: () => dialog.close()}, 'Close')),
      el('div', {class: 'columns'}, WORDS.map(([title, rows]) => el('section', {}, el('h3', {}, title),
        el('dl', {class: 'words'}, rows.flatMap(([word, meaning]) => [el('dt', {}, word), el('dd', {}, meaning)]))))));
    dialog.showModal();
  };

  /* The few words without which a summary says nothing. */
  rafter.wordsLine = () => el('p', {class: 'note words-line'}, el('b', {}, 'Measured'), ' is what the run took, ', el('b', {}, 'predicted'), ' what its plan said before, ', el('b', {}, 'limit'),
    ' the least that the machine allows; a ', el('b', {}, 'walk'), ' is once through the plan\'s ops (a step, a token of every answer); ', el('b', {}, 'block.3'), ' is layer 3, ', el('b', {}, 'block.*'),
    ' all of them; ', el('b', {}, 'remat'), ' computes again instead of keeping. ', el('button', {type: 'button', class: 'more screen', onclick: rafter.words}, 'All words'));
})();
