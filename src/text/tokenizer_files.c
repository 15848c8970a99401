/* tokenizer_files.c - copies the tokenizer files of a model next to its saved weights. */
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "text/tokenizer_parts.h"

/* The tokenizer_class of a model that was trained on bytes. Other programs report this class as
 * unknown. */
static const char BYTES_CLASS[] = "RafterByteTokenizer";

void rf_tokenizer_folder(const char *from, char folder[4096]) {
  struct stat info;
  snprintf(folder, 4096, "%s", from);
  if (stat(folder, &info) || S_ISDIR(info.st_mode)) return;
  const char *parent = dirname(folder); /* `from` is a weight file, so its folder is the parent */
  memmove(folder, parent, strlen(parent) + 1);
}

static const size_t FILE_MAX = (size_t)256 << 20;

static rf_status copy_file(const char *from, const char *to, rf_error *error) {
  char *text = NULL;
  size_t bytes = 0;
  RF_TRY(rf_file_read(from, FILE_MAX, &text, &bytes, error));
  rf_status status = rf_file_write(to, text, bytes, error);
  free(text);
  return status;
}

/* Reads the text of a file as a JSON string. The string is NULL if the file is missing or not
 * UTF-8. */
static rf_status read_string(const char *folder, const char *name, json_t **string, rf_error *error) {
  char path[4400], *text = NULL;
  size_t bytes = 0;
  *string = NULL;
  snprintf(path, sizeof path, "%.4300s/%s", folder, name);
  if (access(path, R_OK)) return RAFTER_OK;
  RF_TRY(rf_file_read(path, FILE_MAX, &text, &bytes, error));
  *string = json_stringn(text, bytes);
  free(text);
  return RAFTER_OK;
}

/* Reads an object. Numbers above 64 bits (a model_max_length of 1e30) are read as doubles. Then the
 * other integers are doubles too. */
static json_t *read_object(const char *path) {
  char *text = NULL;
  size_t bytes = 0;
  if (access(path, R_OK) || rf_file_read(path, FILE_MAX, &text, &bytes, NULL) != RAFTER_OK) return NULL;
  json_t *json = json_loadb(text, bytes, 0, NULL);
  if (!json) json = json_loadb(text, bytes, JSON_DECODE_INT_AS_REAL, NULL);
  free(text);
  if (json_is_object(json)) return json;
  json_decref(json);
  return NULL;
}

/* A folder may have chat_template.jinja, and a second template for conversations with tools in a
 * folder of its own. A checkpoint has no inner folders. So the copy has both templates in
 * tokenizer_config.json, where transformers reads them too. */
static rf_status join_templates(const char *folder, const char *to_folder, rf_error *error) {
  char path[4400];
  json_t *plain = NULL, *tools = NULL, *config = NULL;
  rf_status status = RAFTER_OK;
  RF_GO(read_string(folder, "chat_template.jinja", &plain, error));
  RF_GO(read_string(folder, "additional_chat_templates/tool_use.jinja", &tools, error));
  snprintf(path, sizeof path, "%.4300s/tokenizer_config.json", to_folder);
  if (plain && tools) config = read_object(path);
  if (!config) goto done;
  json_object_set_new(config, "chat_template",
                      rf_must(json_pack("[{ss sO} {ss sO}]", "name", "default", "template", plain, "name",
                                        "tool_use", "template", tools)));
  RF_GO(rf_json_write(path, config, 2, error));
  snprintf(path, sizeof path, "%.4300s/chat_template.jinja", to_folder);
  unlink(path); /* this file would override the templates in tokenizer_config.json */
done:
  json_decref(plain);
  json_decref(tools);
  json_decref(config);
  return status;
}

rf_status rf_tokenizer_files_copy(const char *from, const char *to_folder, int *copied, rf_error *error) {
  static const char *const names[] = {
      "tokenizer.json",        "tokenizer.model",         "tokenizer.bin",      "tokenizer.gguf",
      "tokenizer_config.json", "special_tokens_map.json", "vocab.json",         "merges.txt",
      "added_tokens.json",     "chat_template.jinja",     "chat_template.json", "generation_config.json"};
  char folder[4096], source[4400], to[4400];
  *copied = 0;
  if (rf_text_ends_with(from, ".gguf")) {
    bool written;
    snprintf(to, sizeof to, "%.4300s/tokenizer.gguf", to_folder);
    RF_TRY(rf_tokenizer_gguf_extract(from, to, &written, error));
    *copied = written;
    return RAFTER_OK;
  }
  rf_tokenizer_folder(from, folder);
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    snprintf(source, sizeof source, "%.4300s/%s", folder, names[i]);
    if (access(source, R_OK)) continue;
    snprintf(to, sizeof to, "%.4300s/%s", to_folder, names[i]);
    RF_TRY(copy_file(source, to, error));
    *copied += i + 1 < sizeof names / sizeof *names; /* generation_config.json is not a tokenizer file */
  }
  return join_templates(folder, to_folder, error);
}

rf_status rf_tokenizer_place(const char *from, const char *to_folder, rf_error *error) {
  struct stat info;
  char source[4400], to[4400];
  int copied;
  rf_tokenizer *opened;
  /* a wrong file must be an error before anything is copied */
  RF_TRY(rf_tokenizer_open(from, &opened, error));
  rf_tokenizer_close(opened);
  RF_TRY(rf_make_folders(to_folder, error));
  bool folder = !stat(from, &info) && S_ISDIR(info.st_mode);
  if (folder || rf_text_ends_with(from, ".gguf"))
    return rf_tokenizer_files_copy(from, to_folder, &copied, error);
  snprintf(to, sizeof to, "%.4300s/tokenizer%s", to_folder, strrchr(from, '.'));
  RF_TRY(copy_file(from, to, error));
  rf_tokenizer_folder(from, source);
  rf_text_append(source, sizeof source, "/tokenizer_config.json");
  snprintf(to, sizeof to, "%.4300s/tokenizer_config.json", to_folder);
  return access(source, R_OK) ? RAFTER_OK : copy_file(source, to, error);
}

rf_status rf_tokenizer_bytes_write(const char *to_folder, int64_t vocab, rf_error *error) {
  char path[4400];
  snprintf(path, sizeof path, "%.4300s/tokenizer_config.json", to_folder);
  json_t *json = json_pack("{ss}", "tokenizer_class", BYTES_CLASS);
  if (vocab > 256) { /* id 256 ends a document; chat templates may use its name */
    json_object_set_new(json, "bos_token", json_string("<end>"));
    json_object_set_new(json, "eos_token", json_string("<end>"));
  }
  rf_status status = rf_json_write(path, json, 2, error);
  json_decref(json);
  return status;
}

bool rf_tokenizer_says_bytes(const char *folder) {
  char path[4400];
  json_t *json = NULL;
  snprintf(path, sizeof path, "%.4300s/tokenizer_config.json", folder);
  if (access(path, R_OK) || rf_json_read(path, (size_t)1 << 20, &json, NULL) != RAFTER_OK) return false;
  const char *name = json_string_value(json_object_get(json, "tokenizer_class"));
  bool bytes = name && !strcmp(name, BYTES_CLASS);
  json_decref(json);
  return bytes;
}
