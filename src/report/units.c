/* units.c - numbers as text with their units. page/core_format.js has the same rules, and
 * tests/data/numbers.tsv tests both files. */
#include "report/report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct unit {
  double size;
  const char *name;
  double from; /* the unit is used from this multiple of its size on; 0: from its size on */
  bool plain;  /* true: without trailing zeros: "8 min", not "8.00 min" */
} unit;

/* Three digits: "18.0 TB/s". A value that rounds up to the next unit is written in this next unit:
 * 0.9996 s is "1.00 s". */
static char *scaled(double value, const unit *units, int count, char text[32]) {
  int i = 0;
  while (i + 1 < count && fabs(value) < 0.9995 * (units[i].from > 0 ? units[i].from : 1) * units[i].size) i++;
  double shown = value / units[i].size, size = fabs(shown);
  int digits = units[i].size == 1 && shown == floor(shown) ? 0 : size < 9.995 ? 2 : size < 99.95 ? 1 : 0;
  int n = snprintf(text, 32, "%.*f", digits, shown);
  if (units[i].plain && digits && n < 32) {
    while (text[n - 1] == '0') n--;
    if (text[n - 1] == '.') n--;
    text[n] = 0;
  }
  if (*units[i].name && n < 32) snprintf(text + n, (size_t)(32 - n), " %s", units[i].name);
  return text;
}

char *rf_text_bytes(double bytes, char text[32]) {
  static const unit units[] = {{.size = 0x1p40, .name = "TiB"},
                               {.size = 0x1p30, .name = "GiB"},
                               {.size = 0x1p20, .name = "MiB"},
                               {.size = 0x1p10, .name = "KiB"},
                               {.size = 1, .name = "B"}};
  return scaled(bytes, units, 5, text);
}

char *rf_text_seconds(double seconds, char text[32]) {
  /* minutes, hours and days are used for values of 2 or more: "90 s", "8 min", "2.5 h" */
  static const unit units[] = {{86400, "days", 2, true},     {3600, "h", 2, true},
                               {60, "min", 2, true},         {.size = 1, .name = "s"},
                               {.size = 1e-3, .name = "ms"}, {.size = 1e-6, .name = "us"},
                               {.size = 1e-9, .name = "ns"}};
  /* Differences of times have rounding errors, which would be written as 0.00 ns. */
  if (fabs(seconds) < 5e-12) return strcpy(text, "0 s");
  return scaled(seconds, units, 7, text);
}

char *rf_text_count(double count, char text[32]) {
  /* B as in "a 7B model" */
  static const unit units[] = {
      {1e12, "T", 1, true}, {1e9, "B", 1, true}, {1e6, "M", 1, true}, {.size = 1, .name = ""}};
  double size = fabs(count);
  if (size < 999.5 || size >= 999500) return scaled(count, units, 4, text);
  if (count == floor(count)) return rf_text_whole((int64_t)count, text);
  double step = pow(10, floor(log10(size)) - 3);
  return rf_text_whole((int64_t)llround(round(count / step) * step), text);
}

char *rf_text_rate(double bps, char text[32]) {
  static const unit units[] = {{.size = 1e12, .name = "TB/s"},
                               {.size = 1e9, .name = "GB/s"},
                               {.size = 1e6, .name = "MB/s"},
                               {.size = 1e3, .name = "kB/s"},
                               {.size = 1, .name = "B/s"}};
  return scaled(bps, units, 5, text);
}

char *rf_text_flops(double flops, char text[32]) {
  static const unit units[] = {{.size = 1e18, .name = "EFLOP"}, {.size = 1e15, .name = "PFLOP"},
                               {.size = 1e12, .name = "TFLOP"}, {.size = 1e9, .name = "GFLOP"},
                               {.size = 1e6, .name = "MFLOP"},  {.size = 1e3, .name = "kFLOP"},
                               {.size = 1, .name = "FLOP"}};
  if (flops < 1e21) return scaled(flops, units, 7, text);
  /* Papers write the FLOPs of a training run as a power of ten. */
  int exponent = (int)floor(log10(flops));
  snprintf(text, 32, "%.2fe%d FLOP", flops / pow(10, exponent), exponent);
  return text;
}

char *rf_text_whole(int64_t count, char text[32]) {
  char digits[32];
  int length = snprintf(digits, sizeof digits, "%lld", (long long)count), at = 0;
  for (int i = 0; i < length && at < 30; i++) {
    if (i > 0 && digits[i - 1] != '-' && (length - i) % 3 == 0) text[at++] = ',';
    text[at++] = digits[i];
  }
  text[at] = 0;
  return text;
}

char *rf_text_figures(double value, int figures, char text[32]) {
  char rounded[32];
  snprintf(rounded, sizeof rounded, "%.*e", figures - 1, value);
  const char *after = strchr(rounded, 'e');
  const double number = strtod(rounded, NULL);
  const int exponent = after ? atoi(after + 1) : 0;
  if (number == 0 || !after) return strcpy(text, number == 0 ? "0" : rounded); /* no exponent: infinite */
  if (exponent < -12 || exponent >= 15) snprintf(text, 32, "%.*g", figures, value);
  else if (exponent >= figures - 1) rf_text_whole((int64_t)number, text);
  else {
    snprintf(text, 32, "%.*f", figures - 1 - exponent, number);
    char *end = text + strlen(text);
    while (end[-1] == '0') *--end = 0;
    if (end[-1] == '.') end[-1] = 0;
  }
  return text;
}

char *rf_text_usd(double usd, char text[32]) {
  char whole[32];
  if (fabs(usd) < 1) snprintf(text, 32, fabs(usd) < 1e-4 && usd != 0 ? "%.6f USD" : "%.4g USD", usd);
  else if (fabs(usd) < 999.995) snprintf(text, 32, "%.2f USD", usd);
  else if (fabs(usd) < 1e6) snprintf(text, 32, "%.26s USD", rf_text_whole((int64_t)llround(usd), whole));
  else snprintf(text, 32, "%.26s USD", rf_text_count(usd, whole));
  return text;
}

char *rf_text_number(double value, char text[32]) {
  if (fabs(value) >= 1e15) snprintf(text, 32, "%.4g", value);
  else if (value == floor(value)) return rf_text_whole((int64_t)value, text);
  else if (fabs(value) >= 999.5) return rf_text_count(value, text);
  else return rf_text_figures(value, 5, text);
  return text;
}
