/* tool_format.c - the table of formats, and forms for answers that must be calls. */
#include "serve/tool_format.h"

#include <string.h>

/* A template has the format of the first row whose texts the template contains. */
static const rf_tool_format FORMATS[] = {
    /* Qwen 2.5 and 3, Hermes, SmolLM 3. Templates of Qwen 3 Coder write XML and are not
     * supported. */
    {.name = "hermes",
     .has = {"<tool_call>"},
     .lacks = "<function=",
     .opening = "<tool_call>",
     .first = "\n",
     .last = "",
     .prefix = "",
     .name_head = "{\"name\": \"",
     .name_end = "\", \"arguments\": ",
     .call_end = "}\n</tool_call>",
     .between = "\n<tool_call>\n",
     .json = true,
     .specials = true,
     .skip = {"</tool_call>"},
     .again = {"<tool_call>"}},
    /* Mistral since Small 3.2, Devstral, Magistral */
    {.name = "mistral (name and arguments)",
     .has = {"[TOOL_CALLS]", "[ARGS]"},
     .opening = "[TOOL_CALLS]",
     .first = "",
     .last = "",
     .prefix = "",
     .name_head = "",
     .name_end = "[ARGS]",
     .call_end = "",
     .between = "[TOOL_CALLS]",
     .specials = true,
     .short_ids = true,
     .again = {"[TOOL_CALLS]"}},
    {.name = "mistral (list)",
     .has = {"[TOOL_CALLS]"},
     .opening = "[TOOL_CALLS]",
     .first = "[",
     .last = "]",
     .prefix = "",
     .name_head = "{\"name\": \"",
     .name_end = "\", \"arguments\": ",
     .call_end = "}",
     .between = ", ",
     .json = true,
     .specials = true,
     .short_ids = true,
     .skip = {"]"},
     .again = {",", "[TOOL_CALLS]"}},
    /* DeepSeek V3 and R1 */
    {.name = "deepseek (code block)",
     .has = {"<｜tool▁calls▁begin｜>", "```json"},
     .opening = "<｜tool▁calls▁begin｜>",
     .first = "",
     .last = "<｜tool▁calls▁end｜>",
     .prefix = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
     .name_head = "",
     .name_end = "\n```json\n",
     .call_end = "\n```<｜tool▁call▁end｜>",
     .between = "\n",
     .specials = true,
     .skip = {"```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"},
     .again = {"<｜tool▁call▁begin｜>"}},
    /* DeepSeek V3.1 */
    {.name = "deepseek",
     .has = {"<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>"},
     .opening = "<｜tool▁calls▁begin｜>",
     .first = "",
     .last = "<｜tool▁calls▁end｜>",
     .prefix = "<｜tool▁call▁begin｜>",
     .name_head = "",
     .name_end = "<｜tool▁sep｜>",
     .call_end = "<｜tool▁call▁end｜>",
     .between = "",
     .specials = true,
     .skip = {"<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"},
     .again = {"<｜tool▁call▁begin｜>"}},
    /* Llama 3.1, 3.2 and 3.3 */
    {.name = "llama 3",
     .has = {"\"parameters\": ", "ipython"},
     .opening = "",
     .first = "",
     .last = "",
     .prefix = "",
     .name_head = "{\"name\": \"",
     .name_end = "\", \"parameters\": ",
     .call_end = "}",
     .json = true,
     .specials = true,
     .again = {";", "<|python_tag|>"}},
};
enum { FORMATS_COUNT = sizeof FORMATS / sizeof *FORMATS };

static bool fits(const rf_tool_format *f, const char *text) {
  for (int i = 0; i < 2; i++)
    if (f->has[i] && !strstr(text, f->has[i])) return false;
  return !f->lacks || !strstr(text, f->lacks);
}

const rf_tool_format *rf_tool_format_of(const char *text) {
  for (int i = 0; text && i < FORMATS_COUNT; i++)
    if (fits(&FORMATS[i], text)) return &FORMATS[i];
  return NULL;
}

bool rf_tool_template(const char *text) { return text && strstr(text, "tools"); }

const char *rf_tool_format_names(void) { return "Hermes and Qwen, Llama 3, Mistral, DeepSeek"; }

bool rf_tool_text_arguments(const rf_tool_format *f, const char *text) {
  return f && !strncmp(f->name, "deepseek", 8) && !strstr(text, "'arguments'] | tojson") &&
         !strstr(text, "'arguments']|tojson");
}

const char *rf_tool_mark(const rf_tool_format *f) {
  const char *mark = f->opening;
  for (int i = 0; i < RF_TOOL_MARKS && !*mark; i++)
    if (f->again[i] && *f->again[i] == '<') mark = f->again[i];
  return mark;
}

/* ---- forms ----------------------------------------------------------------------------------- */

static const char *name_of(const json_t *tool) {
  return json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
}

bool rf_tool_known(const json_t *tools, const char *name, size_t bytes) {
  const json_t *tool;
  size_t i;
  json_array_foreach ((json_t *)(uintptr_t)tools, i, tool) {
    const char *of = name_of(tool);
    if (strlen(of) == bytes && !memcmp(of, name, bytes)) return true;
  }
  return false;
}

/* Returns the JSON schema of a tool's arguments. The arguments are an object. */
static json_t *schema_of(const json_t *tool) {
  static const char *const WHOLE[] = {"type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"};
  const json_t *given = json_object_get(json_object_get(tool, "function"), "parameters");
  if (!json_is_object(given))
    return json_pack("{ss s{} sb}", "type", "object", "properties", "additionalProperties", 0);
  json_t *schema = json_copy((json_t *)(uintptr_t)given);
  for (size_t i = 0; i < sizeof WHOLE / sizeof *WHOLE; i++)
    if (json_object_get(given, WHOLE[i])) return schema;
  json_object_set_new(schema, "type", json_string("object"));
  return schema;
}

static bool is_strict(const json_t *tool) {
  return json_is_true(json_object_get(json_object_get(tool, "function"), "strict"));
}

static json_t *call_form(const rf_tool_format *f, const json_t *tool) {
  rf_body head = {0};
  rf_body_format(&head, "%s%s%s%s", f->prefix, f->name_head, name_of(tool), f->name_end);
  json_t *form = json_pack("[s{so}s]", head.at, "schema", schema_of(tool), f->call_end);
  rf_body_free(&head);
  return form;
}

/* Returns the form of a call of any of the names. One grammar of a JSON object serves all names,
 * because a form has a bounded size and a request may have many tools. */
static json_t *object_call_form(const rf_tool_format *f, json_t *names) {
  return rf_must(json_pack("[ss{so}s{s{ss}}s]", f->prefix, f->name_head, "any", names, f->name_end, "schema",
                           "type", "object", f->call_end));
}

/* `all`: all calls have valid arguments, not only those of strict tools. */
static json_t *calls_form(const rf_tool_format *f, const json_t *tools, const char *name, bool several,
                          bool all) {
  json_t *any = json_array(), *others = json_array(), *tool;
  size_t i;
  json_array_foreach ((json_t *)(uintptr_t)tools, i, tool) {
    if (name && strcmp(name, name_of(tool))) continue;
    if (all || is_strict(tool)) json_array_append_new(any, call_form(f, tool));
    else json_array_append_new(others, json_string(name_of(tool)));
  }
  if (json_array_size(others)) json_array_append_new(any, object_call_form(f, others));
  else json_decref(others);
  json_t *calls = json_pack("{so}", "any", any);
  if (several && f->between) calls = json_pack("{so ss}", "repeat", calls, "between", f->between);
  return rf_must(json_pack("[sos]", f->first, calls, f->last));
}

static char *text_of(json_t *form) {
  char *text = rf_must(json_dumps(form, JSON_COMPACT));
  json_decref(form);
  return text;
}

char *rf_tool_form(const rf_tool_format *f, const json_t *tools, const char *name, bool several) {
  return text_of(calls_form(f, tools, name, several, true));
}

bool rf_tool_strict(const json_t *tools) {
  const json_t *tool;
  size_t i;
  json_array_foreach ((json_t *)(uintptr_t)tools, i, tool)
    if (is_strict(tool)) return true;
  return false;
}

char *rf_tool_strict_form(const rf_tool_format *f, const json_t *tools, bool several) {
  const char *mark = rf_tool_mark(f);
  json_t *without = json_pack("{ss}", "without", mark), *before = json_pack("{ss}", "until", mark),
         *calls = calls_form(f, tools, NULL, several, false);
  if (!*f->opening) { /* an object at the beginning of the answer is a call */
    rf_body blanks = {0};
    rf_body_format(&blanks, "[ \\t\\r\\n]{0,%d}", RF_TOOL_BLANKS);
    json_object_set_new(without, "begin", json_string("{"));
    json_object_set_new(before, "begin", json_string("{"));
    before = json_pack("{s[{ss}o]}", "any", "regex", blanks.at, before);
    rf_body_free(&blanks);
  }
  return text_of(rf_must(json_pack("{s[o[oo]]}", "any", without, before, calls)));
}
