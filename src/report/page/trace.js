/* trace.js - the trace viewer: lanes of threads with the predicted lane above them. */
(() => {
  rafter.panel({
    id: 'trace', title: 'Trace', order: 20, perRun: true,
    about: 'Every op that was recorded, on the thread that ran it.',
    available: (model) => rafter.objects(model.runs).some((run) => run.trace),
    render(element, model, run) {
      if (!run.trace) element.append(rafter.el('p', {class: 'empty'}, 'This run was not traced: run it again with --trace steps=2..3.'));
    },
  });
})();
