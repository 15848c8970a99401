/* wrong.c - see wrong.h. */
#include "serve/wrong.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

bool rf_wrong_set(rf_wrong *wrong, int status, const char *code, const char *param, const char *format, ...) {
  va_list arguments;
  *wrong = (rf_wrong){.status = status, .code = code};
  if (param) snprintf(wrong->param, sizeof wrong->param, "%s", param);
  va_start(arguments, format);
  vsnprintf(wrong->message, sizeof wrong->message, format, arguments);
  va_end(arguments);
  return false;
}

bool rf_wrong_from(rf_wrong *wrong, int status, const char *code, const char *param, const rf_error *error) {
  /* a hint with an option helps only on the command line, not in an HTTP client */
  const char *hint = strstr(error->hint, "--") ? "" : error->hint;
  return rf_wrong_set(wrong, status, code, param, "%s%s%s", error->message, *hint ? "; " : "", hint);
}

static const char *type_of(int status) {
  switch (status) {
  case 401: return "authentication_error";
  case 403: return "permission_error";
  case 404: return "not_found_error";
  case 429: return "rate_limit_error";
  case 503: return "service_unavailable_error";
  case 504: return "timeout_error";
  default: return status < 500 ? "invalid_request_error" : "server_error";
  }
}

bool rf_wrong_stopping(rf_wrong *wrong) {
  return rf_wrong_set(wrong, 503, "shutting_down", NULL, "the server stops");
}

void rf_wrong_json(const rf_wrong *wrong, rf_body *out) {
  rf_body_text(out, "{\"error\":{\"message\":");
  rf_body_string(out, wrong->message, strlen(wrong->message));
  rf_body_format(out, ",\"type\":\"%s\",\"param\":", type_of(wrong->status));
  if (*wrong->param) rf_body_string(out, wrong->param, strlen(wrong->param));
  else rf_body_text(out, "null");
  if (wrong->code) rf_body_format(out, ",\"code\":\"%s\"}}", wrong->code);
  else rf_body_text(out, ",\"code\":null}}");
}
