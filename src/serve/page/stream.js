// stream.js - asks the server: requests with a key, answers as streams of events, errors as texts.
'use strict';

{
  const EVENT_LIMIT = 16 << 20; // characters of one event

  // An error of a request. `again` says that the same request may succeed later.
  class Failure extends Error {
    constructor(message, more = {}) {
      super(message);
      Object.assign(this, {status: 0, code: '', param: '', again: true}, more);
    }
  }
  chat.Failure = Failure;

  chat.fetch = (path, options = {}) => {
    const headers = {...options.headers};
    if (chat.state.key) headers.Authorization = `Bearer ${chat.state.key}`;
    return fetch(path, {...options, headers, cache: 'no-store', credentials: 'omit', redirect: 'error'});
  };

  const STATUSES = {
    401: 'The server refuses the API key.',
    413: 'The conversation is too large for the server.',
    500: 'The server had a fault.',
    503: 'The server is stopping and takes no new requests.',
    504: 'The answer took longer than the server allows.',
  };

  const words = (error) => typeof error?.message === 'string' ? error.message.slice(0, 1000) : '';

  chat.failureOf = (status, body, after = '') => {
    const error = body?.error || {};
    const said = words(error);
    const more = {status, code: error.code || '', param: error.param || '', again: status !== 400};
    if (status === 429) {
      const wait = /^\d{1,5}$/.test(after) ? ` Try again in ${chat.count(Number(after), 'second')}.` : '';
      return new Failure(`The server is busy: its queue is full.${wait}`, more);
    }
    if (status === 400) return new Failure(`The server refuses this: ${said || 'it gives no reason'}`, more);
    const known = STATUSES[status] || `The server answers with status ${status}.`;
    return new Failure(said && said !== known ? `${known} It says: ${said}` : known, more);
  };

  const LOST = 'The connection to the server is lost.';

  const send = async (path, body, signal) => {
    let response;
    try {
      response = await chat.fetch(path, {method: 'POST', body, signal,
        headers: {'Content-Type': 'application/json'}});
    } catch (error) {
      if (signal.aborted) throw error;
      throw new Failure(LOST);
    }
    if (response.ok && (response.headers.get('Content-Type') || '').startsWith('text/event-stream'))
      return response;
    const given = await response.json().catch(() => null);
    if (response.ok) throw new Failure('The server did not send a stream of events.');
    throw chat.failureOf(response.status, given, response.headers.get('Retry-After') || '');
  };

  // Gives each event's JSON to `take`. Returns true after the event [DONE].
  const reader = (take) => {
    let rest = '';
    let data = '';
    const line = (text) => {
      if (text.startsWith('data:')) data += (data ? '\n' : '') + text.slice(5).trimStart();
      if (text || !data) return false;
      const event = data;
      data = '';
      if (event === '[DONE]') return true;
      let parsed;
      try {
        parsed = JSON.parse(event);
      } catch {
        throw new Failure('The server sent an event that this page cannot read.');
      }
      take(parsed);
      return false;
    };
    return (text) => {
      rest += text;
      if (text.includes('\n')) {
        const lines = rest.split('\n');
        rest = lines.pop();
        for (const one of lines) if (line(one.replace(/\r$/, ''))) return true;
      }
      if (rest.length + data.length > EVENT_LIMIT)
        throw new Failure('The server sent an event that is too long.');
      return false;
    };
  };

  // An error within a stream has a type, because the status of the answer was sent before.
  const STATUS_OF = {invalid_request_error: 400, rate_limit_error: 429, service_unavailable_error: 503,
    timeout_error: 504};

  // Sends a request and calls on.text(text), on.tokens(tokens), on.end(finish), on.usage(usage).
  chat.ask = async (path, body, signal, on) => {
    const take = (event) => {
      if (event?.error) throw chat.failureOf(STATUS_OF[event.error.type] || 500, event, '');
      if (event?.usage && typeof event.usage === 'object') on.usage(event.usage);
      const choice = Array.isArray(event?.choices) ? event.choices[0] : null;
      if (!choice || typeof choice !== 'object') return;
      const tokens = chat.tokensOf(choice.logprobs);
      const text = choice.delta ? choice.delta.content : choice.text;
      if (typeof text === 'string' && text) on.text(text);
      if (tokens.length) on.tokens(tokens);
      if (typeof choice.finish_reason === 'string') on.end(choice.finish_reason);
    };
    const response = await send(path, body, signal);
    const stream = response.body.getReader();
    const decoder = new TextDecoder();
    const read = reader(take);
    for (;;) {
      let piece;
      try {
        piece = await stream.read();
      } catch (error) {
        if (signal.aborted) throw error;
        throw new Failure(`${LOST} The answer is not complete.`);
      }
      if (piece.done) throw new Failure(`${LOST} The answer is not complete.`);
      if (!read(decoder.decode(piece.value, {stream: true}))) continue;
      stream.read().catch(() => {}); // the end of the connection's answer
      return;
    }
  };
}
