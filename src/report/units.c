/* units.c - numbers as text with their units. */
#include "report/report.h"

#include <math.h>
#include <stdio.h>

typedef struct unit {
  double size;
  const char *name;
} unit;

static char *scaled(double value, const unit *units, int count, char text[32]) {
  int i = 0;
  while (i + 1 < count && fabs(value) < units[i].size) i++;
  double shown = value / units[i].size;
  int digits = units[i].size == 1 && shown == floor(shown) ? 0
               : fabs(shown) < 10                          ? 2
               : fabs(shown) < 100                         ? 1
                                                           : 0;
  snprintf(text, 32, "%.*f%s%s", digits, shown, *units[i].name ? " " : "", units[i].name);
  return text;
}

char *rf_text_bytes(double bytes, char text[32]) {
  static const unit units[] = {{0x1p40, "TiB"}, {0x1p30, "GiB"}, {0x1p20, "MiB"}, {0x1p10, "KiB"}, {1, "B"}};
  return scaled(bytes, units, 5, text);
}

char *rf_text_seconds(double seconds, char text[32]) {
  static const unit units[] = {{86400, "days"}, {3600, "h"},  {60, "min"}, {1, "s"},
                               {1e-3, "ms"},    {1e-6, "us"}, {1e-9, "ns"}};
  return scaled(seconds, units, 7, text);
}

char *rf_text_count(double count, char text[32]) {
  /* B as in "a 7B model" */
  static const unit units[] = {{1e12, "T"}, {1e9, "B"}, {1e6, "M"}, {1e3, "k"}, {1, ""}};
  return scaled(count, units, 5, text);
}

char *rf_text_rate(double bps, char text[32]) {
  static const unit units[] = {{1e12, "TB/s"}, {1e9, "GB/s"}, {1e6, "MB/s"}, {1e3, "kB/s"}, {1, "B/s"}};
  return scaled(bps, units, 5, text);
}

char *rf_text_flops(double flops, char text[32]) {
  static const unit units[] = {{1e18, "EFLOP"}, {1e15, "PFLOP"}, {1e12, "TFLOP"}, {1e9, "GFLOP"},
                               {1e6, "MFLOP"},  {1e3, "kFLOP"},  {1, "FLOP"}};
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
