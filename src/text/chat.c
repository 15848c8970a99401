/* chat.c - converts conversations to text with a model's chat template. */
#define _GNU_SOURCE
#include "text/chat.h"

#include <dirent.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/text.h"

/* TEMPLATE_MAX: bytes of a template. MESSAGES_MAX: number of messages. */
enum { TEMPLATE_MAX = 1 << 20, MESSAGES_MAX = 10000 };

/* TOOLS: name of the template that transformers uses if a conversation has tools. */
static const char TOOLS[] = "tool_use";

struct rf_chat {
  rf_template *parsed;
  char *text;            /* of the template */
  rf_template *tools;    /* for conversations with tools; NULL: `parsed`, or an error */
  char *tools_text;      /* NULL: the same template renders conversations with tools */
  rf_error *tools_error; /* why `tools` could not be parsed; NULL: no error */
  json_t *tokens;        /* spellings of the special tokens, by name (bos_token, ...) */
};

/* ---- reading --------------------------------------------------------------------------------- */

/* Reads the special tokens of a config as strings, because transformers passes strings to
 * templates. */
static rf_status take_tokens(const json_t *config, const char *where, json_t **tokens, rf_error *error) {
  static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                      "pad_token", "cls_token", "mask_token"};
  *tokens = rf_must(json_object());
  for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) {
    const json_t *token = json_object_get(config, names[i]);
    if (json_is_object(token)) token = json_object_get(token, "content");
    if (!token || json_is_null(token)) continue;
    if (!json_is_string(token))
      return RF_FAIL(error, RAFTER_FAILED, NULL,
                     "%s: \"%s\" must be a string or an object with a string \"content\"", where, names[i]);
    json_object_set_new(*tokens, names[i], json_stringn(json_string_value(token), json_string_length(token)));
  }
  return RAFTER_OK;
}

rf_status rf_chat_new(const char *text, size_t bytes, const char *where, const json_t *tokens, rf_chat **chat,
                      rf_error *error) {
  rf_chat *made = rf_must(calloc(1, sizeof *made));
  rf_status status;
  RF_GO(take_tokens(tokens, where, &made->tokens, error));
  RF_GO(rf_template_parse(text, bytes, where, &made->parsed, error));
  made->text = rf_must(strndup(text, bytes));
done:
  if (status == RAFTER_OK) *chat = made;
  else rf_chat_free(made);
  return status;
}

/* A conversation without tools does not need this template. So a template that cannot be parsed is
 * an error only for conversations with tools. */
void rf_chat_add_tools(rf_chat *chat, const char *text, size_t bytes, const char *where) {
  rf_error error;
  chat->tools_text = rf_must(strndup(text, bytes));
  if (rf_template_parse(text, bytes, where, &chat->tools, &error) == RAFTER_OK) return;
  chat->tools_error = rf_must(malloc(sizeof error));
  *chat->tools_error = error;
}

void rf_chat_free(rf_chat *chat) {
  if (!chat) return;
  rf_template_free(chat->parsed);
  rf_template_free(chat->tools);
  free(chat->text);
  free(chat->tools_text);
  free(chat->tools_error);
  json_decref(chat->tokens);
  free(chat);
}

const char *rf_chat_text(const rf_chat *chat) { return chat->text; }

const char *rf_chat_tools_text(const rf_chat *chat) {
  return chat->tools_text ? chat->tools_text : chat->text;
}

/* Reads the templates in a tokenizer_config.json or chat_template.json. *tools is the template for
 * conversations with tools. A missing template is NULL. */
static rf_status config_template(const json_t *config, const char *where, const json_t **text,
                                 const json_t **tools, rf_error *error) {
  const json_t *field = json_object_get(config, "chat_template"), *row;
  char names[200] = "";
  size_t index;
  *text = *tools = NULL;
  if (!field || json_is_null(field)) return RAFTER_OK;
  if (json_is_string(field)) {
    *text = field;
    return RAFTER_OK;
  }
  if (!json_is_array(field))
    return RF_FAIL(error, RAFTER_FAILED, NULL,
                   "%s: \"chat_template\" must be a string or a list of named templates", where);
  json_array_foreach (field, index, row) {
    const char *name = json_string_value(json_object_get(row, "name"));
    const json_t *template = json_object_get(row, "template");
    if (!name || !json_is_string(template))
      return RF_FAIL(error, RAFTER_FAILED, NULL,
                     "%s: row %zu of \"chat_template\" lacks a string \"name\" or \"template\"", where,
                     index);
    if (strcmp(name, "default") == 0) *text = template;
    if (strcmp(name, TOOLS) == 0) *tools = template;
    size_t used = strlen(names);
    snprintf(names + used, sizeof names - used, "%s%.40s", used ? ", " : "", name);
  }
  if (*text) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_FAILED, NULL, "%s: \"chat_template\" names no template \"default\" (got: %s)",
                 where, names);
}

/* transformers may save additional templates next to a default template. Additional templates are
 * an error if the default template is missing. */
static rf_status refuse_additional(const char *folder, rf_error *error) {
  char path[4200], names[200] = "";
  snprintf(path, sizeof path, "%.4000s/additional_chat_templates", folder);
  struct dirent **entry = NULL;
  int count = scandir(path, &entry, NULL, alphasort);
  for (int i = 0; i < count; i++) {
    size_t used = strlen(names);
    if (rf_text_ends_with(entry[i]->d_name, ".jinja"))
      snprintf(names + used, sizeof names - used, "%s%.60s", used ? ", " : "", entry[i]->d_name);
    free(entry[i]);
  }
  free(entry);
  if (!*names) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_FAILED, "choose one with --template FILE",
                 "%s has no default chat template (got: %s)", path, names);
}

rf_status rf_chat_open(const char *folder, rf_chat **chat, rf_error *error) {
  bool gguf = rf_text_ends_with(folder, ".gguf");
  RF_TRY(rf_chat_find(folder, chat, error));
  if (*chat) return RAFTER_OK;
  return RF_FAIL(
      error, RAFTER_FAILED,
      "the model may not be a chat model: give a plain prompt, or a template (--template FILE); --template "
      "none continues plain text",
      "%s has no chat template (expected %s)", folder,
      gguf ? "tokenizer.chat_template"
           : "chat_template.jinja, or chat_template in tokenizer_config.json or chat_template.json");
}

static void add_token(json_t *tokens, const char *name, const rf_tokenizer *tokenizer, int32_t id) {
  rf_span text = id >= 0 ? rf_tokenizer_piece(tokenizer, id) : (rf_span){0};
  json_t *value = text.at ? json_stringn(text.at, text.bytes) : NULL;
  if (value) json_object_set_new(tokens, name, value);
}

static rf_status new_with_special(const char *text, size_t bytes, const char *where,
                                  const rf_tokenizer *tokenizer, rf_chat **chat, rf_error *error) {
  json_t *tokens = rf_must(json_object());
  if (tokenizer) {
    add_token(tokens, "bos_token", tokenizer, rf_tokenizer_bos(tokenizer));
    add_token(tokens, "eos_token", tokenizer, rf_tokenizer_eos(tokenizer));
    add_token(tokens, "unk_token", tokenizer, rf_tokenizer_unk(tokenizer));
    add_token(tokens, "pad_token", tokenizer, rf_tokenizer_pad(tokenizer));
  }
  rf_status status = rf_chat_new(text, bytes, where, tokens, chat, error);
  json_decref(tokens);
  return status;
}

/* Makes a template for models that have no template. This template writes the text of each message
 * in order. */
static rf_status read_plain(const rf_tokenizer *tokenizer, rf_chat **chat, rf_error *error) {
  static const char WITH_BOS[] = "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}";
  const size_t skipped = sizeof "{{ bos_token }}" - 1;
  rf_ids start = {0};
  rf_status status = RAFTER_OK;
  if (tokenizer) status = rf_tokenizer_encode(tokenizer, "", 0, RF_ENCODE_BOS_EOS, &start, error);
  bool begins = start.count > 0 && start.at[0] == rf_tokenizer_bos(tokenizer);
  const char *text = begins ? WITH_BOS : WITH_BOS + skipped;
  rf_ids_free(&start);
  return status == RAFTER_OK ? new_with_special(text, strlen(text), "--template none", tokenizer, chat, error)
                             : status;
}

rf_status rf_chat_read(const char *path, const rf_tokenizer *tokenizer, rf_chat **chat, rf_error *error) {
  char *text = NULL;
  size_t bytes = 0;
  *chat = NULL;
  if (!strcmp(path, "none")) return read_plain(tokenizer, chat, error);
  RF_TRY(rf_file_read(path, TEMPLATE_MAX, &text, &bytes, error));
  rf_status status = new_with_special(text, bytes, path, tokenizer, chat, error);
  free(text);
  return status;
}

/* Templates and their configuration. `text`, `tools` or `config` is NULL if it is missing. */
typedef struct source {
  char path[4200]; /* the file from which the template was read */
  char *text;
  size_t bytes;
  char tools_path[4200];
  char *tools; /* template for conversations with tools */
  size_t tools_bytes;
  json_t *config;
} source;

static void source_free(source *s) {
  free(s->text);
  free(s->tools);
  json_decref(s->config);
}

static char *copy_text(const json_t *text, size_t *bytes) {
  *bytes = json_string_length(text);
  char *copy = rf_must(calloc(*bytes + 1, 1));
  return memcpy(copy, json_string_value(text), *bytes);
}

/* Copies the templates of the JSON file at s->path. */
static rf_status keep_templates(source *s, const json_t *config, rf_error *error) {
  const json_t *text, *tools;
  RF_TRY(config_template(config, s->path, &text, &tools, error));
  if (text) s->text = copy_text(text, &s->bytes);
  if (!text || !tools) return RAFTER_OK;
  s->tools = copy_text(tools, &s->tools_bytes);
  memcpy(s->tools_path, s->path, sizeof s->path);
  return RAFTER_OK;
}

/* Reads the templates of a folder that has the file chat_template.jinja, whose path is s->path. */
static rf_status read_files(const char *folder, source *s, rf_error *error) {
  RF_TRY(rf_file_read(s->path, TEMPLATE_MAX, &s->text, &s->bytes, error));
  snprintf(s->tools_path, sizeof s->tools_path, "%.4000s/additional_chat_templates/%s.jinja", folder, TOOLS);
  if (access(s->tools_path, F_OK) != 0) return RAFTER_OK;
  return rf_file_read(s->tools_path, TEMPLATE_MAX, &s->tools, &s->tools_bytes, error);
}

static rf_status source_read(const char *folder, source *s, rf_error *error) {
  char beside[4200], template_path[4200];
  struct stat info;
  *s = (source){.text = NULL};
  if (!stat(folder, &info) && S_ISREG(info.st_mode)) { /* for a weight file, search the folder of the file */
    snprintf(beside, sizeof beside, "%s", folder);
    folder = dirname(beside);
  }
  snprintf(s->path, sizeof s->path, "%.4000s/tokenizer_config.json", folder);
  snprintf(template_path, sizeof template_path, "%.4000s/chat_template.jinja", folder);
  if (access(s->path, F_OK) == 0) RF_TRY(rf_tokenizer_config_read(s->path, &s->config, error));
  if (s->config && !json_is_object(s->config))
    return RF_FAIL(error, RAFTER_FAILED, NULL, "%s: expected an object", s->path);
  if (access(template_path, F_OK) == 0) {
    memcpy(s->path, template_path, sizeof s->path);
    return read_files(folder, s, error);
  }
  RF_TRY(keep_templates(s, s->config, error));
  if (s->text) return RAFTER_OK;
  snprintf(template_path, sizeof template_path, "%.4000s/chat_template.json", folder);
  if (access(template_path, F_OK) != 0) return RAFTER_OK;
  json_t *processor = NULL; /* chat_template.json belongs to the processor of a multimodal model */
  memcpy(s->path, template_path, sizeof s->path);
  RF_TRY(rf_tokenizer_config_read(s->path, &processor, error));
  rf_status status = keep_templates(s, processor, error);
  json_decref(processor);
  return status;
}

rf_status rf_chat_find(const char *folder, rf_chat **chat, rf_error *error) {
  *chat = NULL;
  if (rf_text_ends_with(folder, ".gguf")) return rf_chat_find_gguf(folder, chat, error);
  source s;
  char inside[4200];
  rf_status status = source_read(folder, &s, error);
  snprintf(inside, sizeof inside, "%.4000s/tokenizer.gguf", folder);
  bool vocabulary = access(inside, F_OK) == 0;
  /* A model that rafter trained may have a template file and a tokenizer.gguf. Then the special
   * tokens are read from the GGUF file. */
  if (status == RAFTER_OK && s.text && vocabulary && !s.config) {
    rf_tokenizer *tokenizer = NULL;
    status = rf_tokenizer_open(folder, &tokenizer, error);
    if (status == RAFTER_OK) status = new_with_special(s.text, s.bytes, s.path, tokenizer, chat, error);
    rf_tokenizer_close(tokenizer);
  } else if (status == RAFTER_OK && s.text) {
    status = rf_chat_new(s.text, s.bytes, s.path, s.config, chat, error);
  } else if (status == RAFTER_OK && vocabulary) {
    status = rf_chat_find_gguf(inside, chat, error);
  }
  if (status == RAFTER_OK && s.tools) rf_chat_add_tools(*chat, s.tools, s.tools_bytes, s.tools_path);
  source_free(&s);
  return status == RAFTER_OK && !*chat ? refuse_additional(folder, error) : status;
}

rf_status rf_chat_source(const char *folder, char **text, char **tools, rf_error *error) {
  source s;
  rf_status status = source_read(folder, &s, error);
  *text = *tools = NULL;
  if (status == RAFTER_OK) {
    *text = s.text;
    *tools = s.tools;
    s.text = s.tools = NULL;
  }
  source_free(&s);
  return status;
}

/* ---- rendering ------------------------------------------------------------------------------- */

static rf_status check_messages(const json_t *messages, rf_error *error) {
  const json_t *message;
  size_t index;
  if (!json_is_array(messages))
    return RF_FAIL(error, RAFTER_FAILED, NULL, "the messages of a conversation must be a list");
  if (json_array_size(messages) > MESSAGES_MAX)
    return RF_FAIL(error, RAFTER_FAILED, NULL,
                   "a conversation has too many messages (expected at most %d, got %zu)", MESSAGES_MAX,
                   json_array_size(messages));
  json_array_foreach (messages, index, message) {
    if (!json_is_string(json_object_get(message, "role")))
      return RF_FAIL(error, RAFTER_FAILED, NULL,
                     "message %zu of the conversation is not an object with a string \"role\"", index);
  }
  return RAFTER_OK;
}

/* Returns the template for the options. NULL: it could not be parsed, and `error` is set. */
static const rf_template *choose(const rf_chat *chat, const rf_chat_options *options, rf_error *error) {
  bool given = options && options->tools && !json_is_null(options->tools);
  if (!given || !chat->tools_text) return chat->parsed;
  if (!chat->tools && error) *error = *chat->tools_error;
  return chat->tools;
}

static rf_status render_messages(const rf_chat *chat, const json_t *messages, size_t count, bool prompt,
                                 const rf_chat_options *options, rf_rendered *rendered, rf_error *error) {
  const rf_template *template = choose(chat, options, error);
  if (!template) return chat->tools_error->status;
  json_t *variables = rf_must(json_copy(chat->tokens)), *some = rf_must(json_array());
  for (size_t i = 0; i < count; ++i) json_array_append(some, json_array_get(messages, i));
  json_object_set_new(variables, "messages", some);
  json_object_set_new(variables, "add_generation_prompt", json_boolean(prompt));
  json_object_set_new(variables, "documents", json_null());
  if (options && options->tools) json_object_set(variables, "tools", (json_t *)options->tools);
  else json_object_set_new(variables, "tools", json_null());
  if (options && options->variables) json_object_update(variables, (json_t *)options->variables);
  rf_status status =
      rf_template_render(template, variables, options ? options->now : NULL, NULL, rendered, error);
  json_decref(variables);
  return status;
}

rf_status rf_chat_render(const rf_chat *chat, const json_t *messages, const rf_chat_options *options,
                         rf_rendered *rendered, rf_error *error) {
  RF_TRY(check_messages(messages, error));
  return render_messages(chat, messages, json_array_size(messages), options && options->add_generation_prompt,
                         options, rendered, error);
}

rf_status rf_chat_encode(const rf_chat *chat, const rf_tokenizer *tokenizer, const json_t *messages,
                         const rf_chat_options *options, rf_ids *ids, char **text, rf_error *error) {
  rf_rendered rendered = {0};
  time_t seconds = time(NULL);
  struct tm now;
  rf_chat_options own = options ? *options : (rf_chat_options){.add_generation_prompt = true};
  own.now = localtime_r(&seconds, &now);
  rf_status status = rf_chat_render(chat, messages, &own, &rendered, error);
  if (status == RAFTER_OK && own.begin) {
    size_t more = strlen(own.begin);
    rendered.text = rf_must(realloc(rendered.text, rendered.bytes + more + 1));
    memcpy(rendered.text + rendered.bytes, own.begin, more + 1);
    rendered.bytes += more;
  }
  if (status == RAFTER_OK) /* the template has already added the special tokens */
    status = rf_tokenizer_encode(tokenizer, rendered.text, rendered.bytes, RF_ENCODE_PARSE, ids, error);
  if (status == RAFTER_OK && text) {
    *text = rendered.text;
    rendered.text = NULL;
  }
  rf_rendered_free(&rendered);
  return status;
}

/* Renders the first `count` messages. *bytes is the size of the rendered text. Fails if the text
 * `whole` does not begin with the rendered text. */
static rf_status prefix_bytes(const rf_chat *chat, const json_t *messages, size_t count, bool prompt,
                              const rf_chat_options *options, const rf_rendered *whole, size_t *bytes,
                              rf_error *error) {
  static const char hint[] =
      "use conversations with one assistant turn, or a template with {% generation %} blocks";
  rf_rendered part;
  RF_TRY(render_messages(chat, messages, count, prompt, options, &part, error));
  size_t same = 0, most = part.bytes < whole->bytes ? part.bytes : whole->bytes;
  while (same < most && part.text[same] == whole->text[same]) ++same;
  *bytes = part.bytes;
  rf_rendered_free(&part);
  if (same == *bytes) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_FAILED, hint,
                 "the chat template does not mark the assistant's text: the first %zu messages%s render "
                 "differently alone than in the full conversation (from byte %zu)",
                 count, prompt ? " and the generation prompt" : "", same);
}

rf_status rf_chat_render_spans(const rf_chat *chat, const json_t *messages, const rf_chat_options *options,
                               rf_rendered *rendered, rf_error *error) {
  RF_TRY(check_messages(messages, error));
  rf_rendered whole;
  size_t count = json_array_size(messages), end = 0;
  RF_TRY(render_messages(chat, messages, count, false, options, &whole, error));
  rf_status status = RAFTER_OK;
  /* choose() does not return NULL, because the template has rendered `whole` */
  if (!rf_template_marks_generation(choose(chat, options, NULL))) {
    free(whole.generated);
    whole.generated = rf_must(calloc(count + 1, sizeof *whole.generated));
    whole.generated_count = 0;
    for (size_t i = 0; i < count; ++i) {
      const char *role = json_string_value(json_object_get(json_array_get(messages, i), "role"));
      if (strcmp(role, "assistant") != 0) continue;
      rf_range *span = &whole.generated[whole.generated_count];
      RF_GO(prefix_bytes(chat, messages, i, true, options, &whole, &span->first, error));
      RF_GO(prefix_bytes(chat, messages, i + 1, false, options, &whole, &span->last, error));
      if (span->first < end || span->last < span->first) {
        status = RF_FAIL(error, RAFTER_FAILED, NULL,
                         "the chat template does not mark the assistant's text: message %zu adds no text", i);
        goto done;
      }
      end = span->last;
      ++whole.generated_count;
    }
  }
done:
  if (status == RAFTER_OK) *rendered = whole;
  else rf_rendered_free(&whole);
  return status;
}
