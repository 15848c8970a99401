// live.js - the live figures: speed of an answer, and the server's queue and memory from /metrics.
'use strict';

{
  const EVERY = 2000; // milliseconds between two looks at /metrics
  let timer = 0;
  let before = null;

  const put = (id, text) => {
    if (chat.get(id).textContent !== text) chat.get(id).textContent = text;
  };

  // Values by name without the prefix, which the server's options choose.
  chat.metrics = (text) => {
    const out = {};
    for (const line of text.split('\n')) {
      const found = /^[A-Za-z_]\w*:([a-z_]+)\{[^\n]*\} (\S+)$/.exec(line);
      if (found && Number.isFinite(Number(found[2])) && !(found[1] in out)) out[found[1]] = Number(found[2]);
    }
    return out;
  };

  // The fraction of the machine's limit since the last look, or since the start if nothing ran.
  const limit = (now) => {
    const seconds = now.step_seconds_total;
    const at = now.step_limit_fraction;
    if (!(seconds > 0) || at === undefined) return null;
    const since = before ? seconds - before.step_seconds_total : 0;
    if (!(since > 0)) return at;
    return (at * seconds - before.step_limit_fraction * before.step_seconds_total) / since;
  };

  const show = (now) => {
    const running = now.num_requests_running;
    if (running === undefined) return;
    const part = limit(now);
    put('live-queue', `${running} running, ${now.num_requests_waiting ?? 0} waiting`);
    if (now.kv_cache_bytes > 0)
      put('live-memory', `${chat.bytes(now.kv_cache_used_bytes)} of ${chat.bytes(now.kv_cache_bytes)}`);
    if (part !== null && part > 0) put('live-limit', chat.percent(Math.min(1, part)));
    before = now;
  };

  const look = async () => {
    timer = 0;
    try {
      const response = await chat.fetch('metrics');
      if (response.ok) show(chat.metrics(await response.text()));
    } catch {
      put('live-queue', 'no connection');
    }
    plan(EVERY);
  };

  // Looks only while the page can be seen.
  function plan(delay) {
    clearTimeout(timer);
    timer = document.visibilityState === 'visible' ? setTimeout(look, delay) : 0;
  }

  chat.startLive = () => {
    document.addEventListener('visibilitychange', () => plan(0));
    plan(0);
  };

  chat.showRate = (answer) => {
    const rate = chat.rateOf(answer);
    put('live-rate', rate ? chat.rate(rate) : '– tokens/s');
    put('live-first', answer.first ? chat.seconds(answer.first) : '–');
  };

  // Tokens per second after the first token.
  chat.rateOf = (answer) => {
    const seconds = answer.seconds - answer.first;
    return answer.count > 1 && seconds > 0 ? (answer.count - 1) / seconds : 0;
  };
}
