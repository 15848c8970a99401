/* serve.c - opens and closes a server. */
#include "serve/call.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static rf_status open_files(rf_server *s, rf_error *error) {
  const rf_serve_settings *of = s->settings;
  if (of->keys) RF_TRY(rf_keys_read(of->keys, &s->keys, error));
  if (!of->log) return RAFTER_OK;
  s->log = fopen(of->log, "ae");
  return s->log ? RAFTER_OK
                : RF_FAIL(error, RAFTER_FAILED, "check the path given to --access-log",
                          "cannot write %s (%m)", of->log);
}

static rf_status open_model(rf_server *s, rf_error *error) {
  const rf_serve_settings *of = s->settings;
  rafter_request defaults = {.size = sizeof defaults};
  s->counts.size = sizeof s->counts;
  s->tokenizer = rafter_generator_tokenizer(s->generator);
  RF_TRY(rf_adapters_start(s, error));
  RF_TRY(rafter_generator_counts(s->generator, &s->counts, error));
  RF_TRY(rafter_generator_sampling(s->generator, &defaults, error));
  s->slots = s->counts.slots;
  s->started = (int64_t)time(NULL);
  s->rules = (rf_ask_rules){.model = of->model,
                            .alias = of->alias,
                            .vocab = s->counts.vocab,
                            .context = s->counts.context,
                            .max_tokens = of->max_tokens,
                            .answers = s->slots + of->max_queue,
                            .strict = of->strict,
                            .adapters = s->adapters,
                            .defaults = defaults};
  if (s->tokenizer)
    rf_ask_take_templates(&s->rules, rafter_tokenizer_template(s->tokenizer),
                          rafter_tokenizer_tools_template(s->tokenizer));
  uint64_t key = rf_key(rf_name_key(rafter_version()), rf_name_key(of->model),
                        (uint64_t)rafter_generator_arena_bytes(s->generator));
  snprintf(s->fingerprint, sizeof s->fingerprint, "fp_%010llx", (unsigned long long)(key & 0xffffffffff));
  return RAFTER_OK;
}

/* Prints the first line: the address, the model, and the memory of the server. */
static void say_ready(const rf_server *s, const rf_serve_socket *socket) {
  int64_t arena = rafter_generator_arena_bytes(s->generator), kv = s->counts.kv_bytes;
  rf_say(s->sink,
         "http://%s serves %s: %d answers at once, context %lld tokens, KV cache %.1f MiB of %.1f MiB\n",
         socket->shown, s->rules.model, s->slots, (long long)s->rules.context, (double)kv / 0x1p20,
         (double)arena / 0x1p20);
  if (s->counts.adapter_slots)
    rf_say(s->sink, "%d of %d adapters are loaded\n", s->counts.adapters, s->counts.adapter_slots);
  char url[160];
  snprintf(url, sizeof url, "http://%s", socket->shown);
  rf_put_json(s->sink, json_pack("{ss ss si ss si sI sI sI si si}", "command", "serve", "url", url, "port",
                                 socket->port, "model", s->rules.model, "slots", s->slots, "context",
                                 (json_int_t)s->rules.context, "kv_bytes", (json_int_t)kv, "arena_bytes",
                                 (json_int_t)arena, "adapter_slots", s->counts.adapter_slots, "adapters",
                                 s->counts.adapters));
  if (!socket->loopback && !s->keys)
    rf_note(s->sink, "warning: other machines can use this server without a key; give --api-key-file FILE\n");
}

/* Releases the calls that the engine has not ended, after all connections are closed. */
static void release_calls(rf_server *s) {
  rf_call *const lists[] = {s->active, s->inbox};
  for (int i = 0; i < 2; i++)
    for (rf_call *c = lists[i], *next; c; c = next) {
      next = c->next;
      rf_call_release(c);
    }
}

rf_status rf_serve(const rf_serve_settings *settings, const rf_serve_socket *socket,
                   rafter_generator *generator, const rafter_sink *sink, rf_error *error) {
  rf_server s = {.settings = settings,
                 .generator = generator,
                 .sink = sink,
                 .lock = PTHREAD_MUTEX_INITIALIZER,
                 .wake = PTHREAD_COND_INITIALIZER,
                 .task_done = PTHREAD_COND_INITIALIZER};
  rf_status status = RAFTER_OK;
  bool owns_socket = true; /* after rf_http_start succeeds, the HTTP server owns and closes the socket */
  RF_GO(rf_mhd_load(error));
  RF_GO(open_files(&s, error));
  RF_GO(open_model(&s, error));
  RF_GO(rf_watch_start(&s, error));
  RF_GO(rf_http_start(&s, socket->fd, error));
  owns_socket = false;
  say_ready(&s, socket);
  status = rf_engine_run(&s, error);
done:
  pthread_mutex_lock(&s.lock);
  s.stopping = true;
  pthread_mutex_unlock(&s.lock);
  rf_http_stop(&s);
  rf_watch_stop(&s);
  release_calls(&s);
  if (owns_socket) close(socket->fd);
  if (s.log) fclose(s.log);
  rf_keys_free(s.keys);
  rf_named_adapters_free(s.adapters);
  return status;
}
