/* serve.c - `rafter serve`: answers HTTP requests in OpenAI's shape. */
#include "serve/serve.h"
#include "api/answers.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Refuses other backends, which are for checks and plans, or answer one request at a time. */
static rf_status check_backend(const rf_options *o, rf_error *error) {
  static const char *const SERVED[] = {"cpu", "xla", "auto"};
  const char *name = rf_options_text_or(o, "backend", "auto");
  for (size_t i = 0; i < sizeof SERVED / sizeof *SERVED; i++)
    if (!strcmp(name, SERVED[i])) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_INVALID, "choose --backend cpu or xla",
                 "serve runs on the backends cpu and xla, not on %s", name);
}

/* Returns the name of a model in requests: the last part of its path. */
static const char *name_of(const char *model) {
  const char *slash = strrchr(model, '/');
  return slash && slash[1] ? slash + 1 : model;
}

/* Prints notes at the start: for random weights, and for a backend whose bits depend on the
 * batch. */
static rf_status say_notes(const rf_options *o, const rafter_sink *sink, rf_error *error) {
  rf_settings of;
  rf_sampler_options sampling = {0};
  RF_TRY(rf_model_resolve(rf_options_argument(o, 0), &of.model, of.weights_folder, error));
  rf_note_random(&of.model, of.weights_folder, sink);
  RF_TRY(rf_sampling_of(o, &of, sink, &sampling, error));
  if (!strcmp(rf_options_text_or(o, "backend", "auto"), "xla"))
    rf_note(sink, "notice: on the backend xla, the bits of an answer may depend on other requests\n");
  return RAFTER_OK;
}

static rf_status serve(const rafter_job *job, const rf_options *o, const rafter_sink *sink, rf_error *error) {
  const char *model = rf_options_argument(o, 0), *typed = rf_options_argument(job->options, 0);
  uint64_t seed = (uint64_t)rf_options_int(o, "seed");
  rafter_generator *generator = NULL;
  rf_serve_socket socket;
  int count = 0;
  const char *const *adapters = rf_options_texts(o, "adapters", &count);
  const rf_serve_settings settings = {.model = rf_options_text_or(o, "served-name", name_of(model)),
                                      .alias = typed,
                                      .host = rf_options_text(o, "host"),
                                      .port = (int)rf_options_int(o, "port"),
                                      .keys = rf_options_text(o, "api-key-file"),
                                      .cors = rf_options_text(o, "cors"),
                                      .log = rf_options_text(o, "access-log"),
                                      .prefix = rf_options_text(o, "metrics-prefix"),
                                      .max_queue = (int)rf_options_int(o, "max-queue"),
                                      .max_body = (size_t)rf_options_int(o, "max-body"),
                                      .request_seconds = rf_options_float(o, "request-timeout"),
                                      .idle_seconds = rf_options_float(o, "idle-timeout"),
                                      .drain_seconds = rf_options_float(o, "drain-seconds"),
                                      .max_tokens = rf_options_int(o, "max-tokens"),
                                      .strict = rf_options_flag(o, "strict"),
                                      .adapters = adapters,
                                      .adapter_count = count,
                                      .adapter_folder = rf_options_text(o, "adapter-folder"),
                                      .seed = rf_options_given(o, "seed") ? &seed : NULL};
  RF_TRY(check_backend(o, error));
  RF_TRY(rf_serve_bind(settings.host, settings.port, &socket, error));
  rf_status status = rafter_generator_open(job, &generator, error);
  if (status == RAFTER_OK) status = say_notes(o, sink, error);
  if (status == RAFTER_OK) status = rf_serve(&settings, &socket, generator, sink, error);
  else close(socket.fd);
  rafter_generator_close(generator);
  return status;
}

static rf_status rf_command_serve(const rafter_job *asked, const rafter_sink *sink, rf_error *error) {
  rf_options *o = NULL;
  rf_status status = rf_options_with_model(asked->options, rf_options_argument(asked->options, 0), &o, error);
  if (status == RAFTER_OK) status = serve(asked, o, sink, error);
  rf_options_free(o);
  return status;
}

static const rf_option SERVE[] = {
    RF_WORDS("host", TEXT, "ADDRESS", "127.0.0.1", "Server",
             "address to bind; 0.0.0.0: all addresses of this machine"),
    RF_NUMBER("port", INT, NULL, 0, 65535, "8000", "Server",
              "port to bind; 0: any free port, which is printed"),
    RF_WORDS("served-name", TEXT, "NAME", NULL, "Server",
             "name of the model in requests and answers; unset: the last part of MODEL"),
    RF_WORDS("api-key-file", PATH, "FILE", NULL, "Server",
             "file with one API key per line; each request must have one of these keys"),
    RF_WORDS("cors", TEXT, "ORIGIN", NULL, "Server", "origin of web pages that may use the server; *: all"),
    RF_WORDS("access-log", PATH, "FILE", NULL, "Server", "file to which each request appends a line of JSON"),
    RF_WORDS("metrics-prefix", TEXT, "WORD", "rafter", "Server",
             "prefix of the names at /metrics, such as vllm"),
    RF_FLAG("strict", "Server", "refuse requests with unknown fields"),
    RF_NUMBER("max-queue", INT, "ANSWERS", 0, 1 << 20, "256", "Limits",
              "maximum number of waiting answers; further requests get status 429"),
    RF_NUMBER("max-body", SIZE, NULL, 1, 1 << 30, "4MiB", "Limits", "maximum size of a request's body"),
    RF_NUMBER("max-tokens", TOKENS, NULL, 1, 1 << 24, "512", "Limits",
              "maximum tokens of an answer, if the request sets no limit"),
    RF_NUMBER("request-timeout", DURATION, NULL, 0, 1e6, "10m", "Limits",
              "maximum time of an answer, which then ends with status 504; 0: no limit"),
    RF_NUMBER("idle-timeout", DURATION, NULL, 1, 1e6, "60s", "Limits",
              "time without activity after which a connection is closed"),
    RF_NUMBER("drain-seconds", DURATION, NULL, 0, 1e6, "30s", "Limits",
              "time in which running answers may end after a signal to stop"),
    RF_NUMBER("batch", INT, "ANSWERS", 1, 1024, NULL, "Memory", "answers generated at once; unset: 8"),
    RF_NUMBER("seq", TOKENS, NULL, 1, 1 << 24, NULL, "Memory",
              "maximum tokens of a prompt and its answer; unset: 4096, within the model's limit"),
    RF_WORDS("adapters", TEXTS, "NAME=DIR", NULL, "Adapters",
             "LoRA adapter that requests choose by its name as their model; may be repeated\nDIR is a PEFT "
             "adapter or a run of `train --lora`. All requests share one batch. --adapter DIR instead "
             "applies one adapter to all requests."),
    RF_WORDS("adapter-folder", PATH, "DIR", NULL, "Adapters",
             "let clients load adapters from DIR and unload them, at /v1/load_lora_adapter and "
             "/v1/unload_lora_adapter"),
    RF_FLAG("no-prefix-cache", "Memory",
            "compute every token of each prompt, without cached prefixes; answers do not change"),
    {.name = NULL},
};

const rf_command RF_COMMAND_SERVE = {
    RF_COMMAND_HEAD("serve", "MODEL", 1, 1, "Run", "Answer HTTP requests in the shape of OpenAI's API."),
    .options = {RF_TABLE(SERVE),
                {RF_CHAT_OPTIONS, "template"},
                RF_INFERENCE_TABLES,
                RF_TABLE(RF_CACHE_OPTIONS),
                RF_TABLE(RF_SERVICE_OPTIONS),
                RF_TABLE(RF_ADAPTER_OPTIONS),
                RF_TABLE(RF_SPECULATION_OPTIONS),
                RF_TABLE(RF_DEBUG_OPTIONS),
                RF_TABLE(RF_EVERY_OPTIONS)},
    .common =
        "host port batch seq max-queue max-tokens api-key-file served-name strict dtype weights compute "
        "adapter adapters adapter-slots adapter-folder",
    .examples = {"serve model.gguf --compute fast # at http://127.0.0.1:8000/v1",
                 "serve models/org/name --host 0.0.0.0 --api-key-file keys.txt # for other machines",
                 "serve runs/3 --port 0 --batch 32 --seq 2k # a model of one's own, at a free port"},
    .run = rf_command_serve};
