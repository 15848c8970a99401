/* adapters.c - see adapters.h. The HTTP threads read the files of adapters. Only the engine's
 * thread may change the generator. So an HTTP thread gives the engine a task, and waits until the
 * current step has ended. */
#include "serve/adapters.h"

#include "serve/call.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* ---- at the start ---------------------------------------------------------------------------- */

static rf_status load_named(rf_server *s, const char *name, const char *folder, rf_error *error) {
  rafter_adapter *adapter = NULL;
  int64_t id = 0;
  if (!rf_named_adapter_reserve(s->adapters, name))
    return RF_FAIL(error, RAFTER_INVALID, "give each adapter a name of its own",
                   "two adapters have one name (--adapters: %.200s)", name);
  rf_status status = rafter_adapter_open(s->generator, folder, &adapter, error);
  if (status == RAFTER_OK) status = rafter_generator_load_adapter(s->generator, adapter, &id, error);
  rafter_adapter_close(adapter);
  rf_named_adapter_settle(s->adapters, name, id);
  return status;
}

rf_status rf_adapters_start(rf_server *s, rf_error *error) {
  const rf_serve_settings *of = s->settings;
  s->adapters = rf_named_adapters_new();
  for (int i = 0; i < of->adapter_count; i++) {
    char name[RF_ADAPTER_NAME + 1];
    /* the command has already checked that the value contains '=' */
    const char *end = strchr(of->adapters[i], '=');
    size_t bytes = (size_t)(end - of->adapters[i]);
    if (bytes > RF_ADAPTER_NAME)
      return RF_FAIL(error, RAFTER_INVALID, NULL,
                     "a name of --adapters is too long (expected at most %d bytes)", RF_ADAPTER_NAME);
    snprintf(name, sizeof name, "%.*s", (int)bytes, of->adapters[i]);
    if (!strcmp(name, of->model) || (of->alias && !strcmp(name, of->alias)))
      return RF_FAIL(error, RAFTER_INVALID, "choose another name, or another --served-name",
                     "an adapter has the name of the model (--adapters: %.200s)", name);
    RF_TRY(load_named(s, name, end + 1, error));
  }
  return RAFTER_OK;
}

/* ---- tasks that HTTP threads give to the engine's thread ---------------------------------- */

struct rf_adapter_task {
  const rafter_adapter *load; /* NULL: unload `id` */
  int64_t id;
  rafter_status status;
  rafter_error error;
  bool done;
  struct rf_adapter_task *next;
};

static void end_task(rf_server *s, struct rf_adapter_task *t) {
  t->done = true;
  pthread_cond_broadcast(&s->task_done);
}

void rf_adapters_work(rf_server *s) {
  for (struct rf_adapter_task *t; (t = s->tasks);) {
    s->tasks = t->next;
    pthread_mutex_unlock(&s->lock);
    t->status = t->load ? rafter_generator_load_adapter(s->generator, t->load, &t->id, &t->error)
                        : rafter_generator_unload_adapter(s->generator, t->id, &t->error);
    pthread_mutex_lock(&s->lock);
    if (t->status == RAFTER_OK) s->counts.adapters += t->load ? 1 : -1;
    end_task(s, t);
  }
}

void rf_adapters_refuse(rf_server *s) {
  for (struct rf_adapter_task *t; (t = s->tasks);) {
    s->tasks = t->next;
    t->status = RF_FAIL(&t->error, RAFTER_FAILED, NULL, "the server stops");
    end_task(s, t);
  }
}

/* Gives the engine a task and waits for the task's end. Returns false if the server stops. */
static bool give_task(rf_server *s, struct rf_adapter_task *t, rf_wrong *wrong) {
  pthread_mutex_lock(&s->lock);
  bool draining = s->draining;
  if (!draining) {
    t->next = s->tasks;
    s->tasks = t;
    pthread_cond_signal(&s->wake);
    while (!t->done) pthread_cond_wait(&s->task_done, &s->lock);
  }
  pthread_mutex_unlock(&s->lock);
  return draining ? rf_wrong_stopping(wrong) : true;
}

/* ---- the two paths --------------------------------------------------------------------------- */

static bool read_body(rf_call *c) {
  if (!c->server->settings->adapter_folder)
    return rf_wrong_set(&c->wrong, 403, "adapter_loading_off", NULL,
                        "clients of this server cannot load adapters");
  return rf_route_read(c);
}

static bool is_inside(const char *path, const char *folder) {
  size_t bytes = strlen(folder);
  while (bytes > 0 && folder[bytes - 1] == '/') bytes--;
  return !strncmp(path, folder, bytes) && (path[bytes] == '/' || !path[bytes]);
}

static bool climbs(const char *path) {
  for (const char *at = path; (at = strstr(at, "..")); at += 2)
    if ((at == path || at[-1] == '/') && (!at[2] || at[2] == '/')) return true;
  return false;
}

static bool outside(rf_call *c) {
  return rf_wrong_set(&c->wrong, 403, "path_not_allowed", "lora_path",
                      "lora_path is outside of the folder from which this server loads adapters");
}

/* Resolves the links in lora_path. The result must be inside the folder of adapters. For a path
 * outside this folder, the answer does not reveal whether the path exists. */
static bool resolve(rf_call *c, char folder[PATH_MAX]) {
  const char *given = c->ask.lora_path, *root = c->server->settings->adapter_folder;
  char whole[2 * PATH_MAX], base[PATH_MAX];
  if (!realpath(root, base))
    return rf_wrong_set(&c->wrong, 500, NULL, NULL, "the server cannot read its folder of adapters");
  if (climbs(given) || (*given == '/' && !is_inside(given, root) && !is_inside(given, base)))
    return outside(c);
  if (*given == '/') snprintf(whole, sizeof whole, "%s", given);
  else snprintf(whole, sizeof whole, "%s/%s", base, given);
  if (strlen(given) >= PATH_MAX || !realpath(whole, folder))
    return rf_wrong_set(&c->wrong, 404, "adapter_not_found", "lora_path",
                        "the folder %.200s with an adapter does not exist", given);
  return is_inside(folder, base) ? true : outside(c);
}

static bool check_name(rf_call *c) {
  const rf_ask_rules *r = &c->server->rules;
  const char *name = c->ask.lora_name;
  bool good = *name && strlen(name) <= RF_ADAPTER_NAME;
  for (const char *at = name; *at; at++) good &= (unsigned char)*at >= ' ';
  if (!good)
    return rf_wrong_set(&c->wrong, 400, "invalid_value", "lora_name",
                        "lora_name is not a name (expected 1 to %d bytes without control characters)",
                        RF_ADAPTER_NAME);
  if (strcmp(name, r->model) && (!r->alias || strcmp(name, r->alias)) &&
      rf_named_adapter_reserve(c->server->adapters, name))
    return true;
  return rf_wrong_set(&c->wrong, 400, "adapter_exists", "lora_name",
                      "the name %.200s is in use; unload that adapter first", name);
}

static bool load(rf_call *c, const char *folder, int64_t *id) {
  rafter_error error = {0};
  rafter_adapter *adapter = NULL;
  struct rf_adapter_task task = {0};
  if (rafter_adapter_open(c->server->generator, folder, &adapter, &error) != RAFTER_OK)
    return rf_wrong_from(&c->wrong, 400, "invalid_adapter", "lora_path", &error);
  task.load = adapter;
  bool ran = give_task(c->server, &task, &c->wrong);
  rafter_adapter_close(adapter);
  *id = task.id;
  if (!ran || task.status == RAFTER_OK) return ran;
  bool full = task.status == RAFTER_NO_FIT;
  return rf_wrong_from(&c->wrong, full ? 409 : 500, full ? "no_adapter_slot" : NULL, NULL, &task.error);
}

bool rf_adapters_load(rf_call *c, rf_body *out, const char **type) {
  char folder[PATH_MAX];
  int64_t id = 0;
  if (!read_body(c) || !resolve(c, folder) || !check_name(c)) return false;
  bool loaded = load(c, folder, &id);
  rf_named_adapter_settle(c->server->adapters, c->ask.lora_name, loaded ? id : 0);
  *type = "text/plain; charset=utf-8";
  if (loaded) rf_body_format(out, "Success: LoRA adapter '%s' added successfully.", c->ask.lora_name);
  return loaded;
}

/* Removes the name first, so that no new request finds the adapter. Requests that already use the
 * adapter can finish. */
bool rf_adapters_unload(rf_call *c, rf_body *out, const char **type) {
  if (!read_body(c)) return false;
  const char *name = c->ask.lora_name;
  struct rf_adapter_task task = {.id = rf_named_adapter(c->server->adapters, name, NULL)};
  if (task.id) task.id = rf_named_adapter_settle(c->server->adapters, name, 0);
  if (!task.id)
    return rf_wrong_set(&c->wrong, 404, "adapter_not_found", "lora_name",
                        "no adapter with the name %.200s is loaded", name);
  if (!give_task(c->server, &task, &c->wrong)) return false;
  if (task.status != RAFTER_OK) return rf_wrong_from(&c->wrong, 500, NULL, NULL, &task.error);
  *type = "text/plain; charset=utf-8";
  rf_body_format(out, "Success: LoRA adapter '%s' removed successfully.", name);
  return true;
}
