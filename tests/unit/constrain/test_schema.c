/* JSON schemas: which texts they allow, which keywords are refused, and bounds. */
#include "forms.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define PERSON \
  "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{\"type\":\"integer\"," \
  "\"minimum\":0,\"maximum\":150},\"tags\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}," \
  "\"maxItems\":2}}," \
  "\"required\":[\"name\"]}"
#define TREE \
  "{\"$ref\":\"#/$defs/node\",\"$defs\":{\"node\":{\"type\":\"object\",\"properties\":{\"value\":{\"type\":" \
  "\"integer\"},\"next\":{\"anyOf\":[{\"$ref\":\"#/$defs/node\"},{\"type\":\"null\"}]}}," \
  "\"required\":[\"value\",\"next\"]}}}"
#define SHAPES \
  "{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"kind\":{\"const\":\"circle\"},\"r\":{\"type\":" \
  "\"number\"}}," \
  "\"required\":[\"kind\",\"r\"]},{\"type\":\"object\",\"properties\":{\"kind\":{\"const\":\"point\"}}," \
  "\"required\":[\"kind\"]}]}"

static const struct {
  const char *schema, *valid[8], *invalid[8];
} CASES[] = {
    {PERSON,
     {"{\"name\":\"Ann\"}", "{ \"name\": \"\\u00e9\\n\", \"age\": 150}",
      "{\n  \"name\": \"\",\n  \"tags\": []\n}", "{\"name\":\"x\",\"age\":7,\"tags\":[\"a\", \"b\"]}"},
     {"{}", "{\"age\":1}", "{\"name\":\"x\",\"age\":151}", "{\"name\":\"x\",\"age\":-1}", "{\"name\":\"x\",}",
      "{\"name\":\"x\",\"tags\":[\"a\",\"b\",\"c\"]}", "{\"name\":\"x\",\"other\":1}",
      "{\"name\":\"\x01\"}"}},
    {TREE,
     {"{\"value\":1,\"next\":null}", "{\"value\":-1,\"next\":{\"value\":2,\"next\":null}}"},
     {"{\"value\":1}", "null", "{\"value\":1.5,\"next\":null}", "{\"value\":1,\"next\":{}}"}},
    {SHAPES,
     {"{\"kind\":\"circle\",\"r\":0.5}", "{\"kind\":\"point\"}"},
     {"{\"kind\":\"circle\"}", "{\"kind\":\"square\"}", "{\"kind\":\"point\",\"r\":1}"}},
    {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
     {"\"ab\"", "\"a\\\"b\"", "\"\xc3\xa9\xf0\x9f\x98\x80\"", "\"\\ud83d\\ude00x\""},
     {"\"a\"", "\"abcd\"", "\"a\\q\"", "\"\\ud83dx\"", "\"\\u0000a\"", "\"\xc3\"", "ab"}},
    {"{\"type\":\"string\",\"pattern\":\"^[a-c]+\\\"$|x\"}",
     {"\"ab\\\"\"", "\"x\"", "\"12x\\n34\""},
     {"\"ab\"", "\"\"", "\"ab\\\"d\"", "\"ab\"\""}},
    {"{\"type\":\"string\",\"format\":\"date-time\"}",
     {"\"2026-11-26T19:00:00Z\"", "\"1999-02-28T23:59:59.25+01:00\""},
     {"\"2026-02-30T19:00:00Z\"", "\"2026-11-26\"", "\"2026-13-01T00:00:00Z\"", "\"2026-11-26T24:00:00Z\""}},
    {"{\"enum\":[\"red\",\"re\",3,null,[1,\"x\"],{\"a\":0.1}]}",
     {"\"red\"", "\"re\"", "3", "null", "[1,\"x\"]", "{\"a\":0.1}"},
     {"\"r\"", "4", "nul", "[1]", "\"redd\""}},
    {"{\"type\":[\"integer\",\"null\"],\"exclusiveMinimum\":-20,\"maximum\":105}",
     {"null", "-19", "0", "9", "105", "99", "-7"},
     {"-20", "106", "-0", "007", "1.0", "1000"}},
    {"{\"type\":\"number\",\"minimum\":-1.25,\"exclusiveMaximum\":2.5}",
     {"-1.25", "-1.250", "0", "0.001", "2.49999", "2", "-1"},
     {"-1.26", "2.5", "2.50", "3", "-2", "-0", "1.", ".5"}},
    {"{\"type\":\"number\"}",
     {"0", "-0.5", "1e10", "12.25E-3", "123456789012345"},
     {"01", "1e", "--1", "+1", "0x1", "NaN"}},
    {"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"boolean\"},{\"type\":\"null\"}],\"items\":{\"type\":"
     "\"integer\"},\"minItems\":2,\"maxItems\":4}",
     {"[true,null]", "[false, null, 1]", "[true,null,1,2]"},
     {"[true]", "[null,true]", "[true,null,true]", "[true,null,1,2,3]", "[true,null,]"}},
    {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}",
     {"[]", "[1]", "[1,2,3,4,5,6,7]", "[ 1,\n\t2 ]"},
     {"[,]", "[1,]", "[1 ,2]", "[1,2"}},
    {"{\"type\":\"object\",\"properties\":{\"ab\":{\"type\":\"integer\"}},\"additionalProperties\":{\"type\":"
     "\"boolean\"}}",
     {"{}", "{\"ab\":1}", "{\"a\":true}", "{\"ab\":1,\"abc\":false,\"b\":true}", "{\"\":true}",
      "{\"\xc3\xa9\":true}"},
     {"{\"ab\":true}", "{\"a\":1}", "{\"b\":true,\"ab\":true}", "{\"a\\u0062\":true}"}},
    {"{}", {"1", "\"x\"", "{\"a\":[{\"b\":null},{}]}", "[[[]],true]"}, {"{a:1}", "[1", "tru", "{\"a\"}"}},
    {"{\"allOf\":[{\"$ref\":\"#/definitions/x~1y\"}],\"definitions\":{\"x/"
     "y\":{\"const\":true,\"type\":\"boolean\"}}}",
     {"true"},
     {"false"}},
    {"{\"anyOf\":[{\"$ref\":\"#\"},{\"$ref\":\"#\"},{\"type\":\"null\"}]}", {"null"}, {"nullnull", ""}},
};

static void texts_are_allowed_as_the_schema_says(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
    rf_automaton a;
    rf_error error = {0};
    if (form_open(CASES[i].schema, RF_TEXT_SCHEMA, &a, &error) != RAFTER_OK)
      fail_msg("%s: %s", CASES[i].schema, error.message);
    for (int k = 0; k < 8 && CASES[i].valid[k]; k++)
      if (!form_allows(&a, CASES[i].valid[k])) fail_msg("%s bars %s", CASES[i].schema, CASES[i].valid[k]);
    for (int k = 0; k < 8 && CASES[i].invalid[k]; k++)
      if (form_allows(&a, CASES[i].invalid[k]))
        fail_msg("%s allows %s", CASES[i].schema, CASES[i].invalid[k]);
    rf_automaton_close(&a);
  }
}

/* Bounds of integers, compared with the comparison of numbers. */
static void bounds_of_integers_are_exact(void **state) {
  static const int BOUNDS[] = {-1000, -101, -100, -99, -10, -9, -1, 0, 1, 7, 9, 10, 11, 95, 100, 999, 1000};
  enum { COUNT = sizeof BOUNDS / sizeof *BOUNDS };
  (void)state;
  for (int low = 0; low < COUNT; low++)
    for (int high = low; high < COUNT; high++) {
      char schema[120], text[16];
      rf_automaton a;
      snprintf(schema, sizeof schema, "{\"type\":\"integer\",\"minimum\":%d,\"maximum\":%d}", BOUNDS[low],
               BOUNDS[high]);
      assert_int_equal(form_open(schema, RF_TEXT_SCHEMA, &a, NULL), RAFTER_OK);
      for (int n = -1100; n <= 1100; n++) {
        snprintf(text, sizeof text, "%d", n);
        if (form_allows(&a, text) != (n >= BOUNDS[low] && n <= BOUNDS[high]))
          fail_msg("%s and %d", schema, n);
      }
      rf_automaton_close(&a);
    }
}

/* Bounds of decimal numbers, compared digit by digit with strtod. */
static void bounds_of_numbers_are_exact(void **state) {
  static const char *const BOUNDS[] = {"-12.5", "-1",   "-0.05", "0",  "0.001",
                                       "0.5",   "1.25", "9.99",  "10", "120.75"};
  enum { COUNT = sizeof BOUNDS / sizeof *BOUNDS };
  (void)state;
  for (int low = 0; low < COUNT; low++)
    for (int high = low + 1; high < COUNT; high++)
      for (int excluded = 0; excluded < 2; excluded++) {
        char schema[160], text[32];
        rf_automaton a;
        double from = strtod(BOUNDS[low], NULL), to = strtod(BOUNDS[high], NULL);
        snprintf(schema, sizeof schema,
                 excluded ? "{\"type\":\"number\",\"exclusiveMinimum\":%s,\"exclusiveMaximum\":%s}"
                          : "{\"type\":\"number\",\"minimum\":%s,\"maximum\":%s}",
                 BOUNDS[low], BOUNDS[high]);
        assert_int_equal(form_open(schema, RF_TEXT_SCHEMA, &a, NULL), RAFTER_OK);
        for (int n = -13000; n <= 121000; n += 1 + (n & 15)) {
          snprintf(text, sizeof text, "%s%d.%03d", n < 0 ? "-" : "", abs(n) / 1000, abs(n) % 1000);
          double x = strtod(text, NULL);
          bool inside = excluded ? x > from && x < to : x >= from && x <= to;
          if (form_allows(&a, text) != inside) fail_msg("%s and %s", schema, text);
        }
        rf_automaton_close(&a);
      }
}

static void refused_keywords_are_named(void **state) {
  static const char *const WRONG[][2] = {
      {"{\"not\":{}}", "\"not\" is not supported (at #)"},
      {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"array\",\"contains\":{}}}}",
       "\"contains\" is not supported (at #/properties/a)"},
      {"{\"type\":\"object\",\"patternProperties\":{}}", "patternProperties"},
      {"{\"type\":\"object\",\"minProperties\":1}", "minProperties"},
      {"{\"if\":{},\"then\":{}}", "\"if\""},
      {"{\"type\":\"integer\",\"multipleOf\":3}", "multipleOf"},
      {"{\"type\":\"array\",\"uniqueItems\":true}", "uniqueItems"},
      {"{\"type\":\"string\",\"format\":\"hostname\"}", "format"},
      {"{\"type\":\"string\",\"pattern\":\"(?=a)\"}", "lookahead"},
      {"{\"type\":\"string\",\"pattern\":\"a\",\"minLength\":1}", "pattern"},
      {"{\"type\":\"thing\"}", "\"type\" is unknown"},
      {"{\"$ref\":\"http://x/y\"}", "$ref"},
      {"{\"$ref\":\"#/$defs/none\"}", "names nothing"},
      {"{\"$ref\":\"#\"}", "refers to itself"},
      {"{\"allOf\":[{},{}]}", "allOf"},
      {"{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}", "oneOf"},
      {"{\"anyOf\":[{}],\"minLength\":3}", "minLength"},
      {"{\"enum\":[]}", "enum"},
      {"{\"required\":[\"a\"],\"type\":\"object\"}", "required"},
      {"{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}", "no number"},
      {"{\"type\":\"array\",\"minItems\":3,\"maxItems\":2}", "maxItems"},
      {"{\"type\":\"string\",\"maxLength\":-1}", "maxLength"},
      {"3", "not an object"},
      {"false", "no text"},
      {"{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}", "no text"},
      {"{\"anyOf\":[{\"$ref\":\"#\"},{\"$ref\":\"#\"}]}", "no text"},
  };
  (void)state;
  for (size_t i = 0; i < sizeof WRONG / sizeof *WRONG; i++) {
    rf_automaton a;
    rf_error error = {0};
    if (form_open(WRONG[i][0], RF_TEXT_SCHEMA, &a, &error) != RAFTER_INVALID)
      fail_msg("%s was accepted", WRONG[i][0]);
    if (!strstr(error.message, WRONG[i][1])) fail_msg("%s: %s", WRONG[i][0], error.message);
    rf_automaton_close(&a);
  }
}

/* Comparisons of alternatives that would take years: a list that contains itself, and long lists of
 * types and of required names. */
static void comparisons_are_bounded(void **state) {
  enum { MANY = 20000 };
  static char text[2000000];
  rf_automaton a;
  rf_error error = {0};
  (void)state;
  int n = snprintf(text, sizeof text, "{\"$defs\":{\"a\":{\"anyOf\":[");
  for (int i = 0; i < 100; i++)
    n += snprintf(text + n, sizeof text - (size_t)n, "%s{\"$ref\":\"#/$defs/a\"}", i ? "," : "");
  snprintf(text + n, sizeof text - (size_t)n,
           "]}},\"oneOf\":[{\"$ref\":\"#/$defs/a\"},{\"$ref\":\"#/$defs/a\"}]}");
  assert_int_equal(form_open(text, RF_TEXT_SCHEMA, &a, &error), RAFTER_INVALID);
  assert_non_null(strstr(error.message, "that a value may share"));
  rf_automaton_close(&a);
  n = snprintf(text, sizeof text, "{\"$defs\":{\"a\":{\"type\":\"object\",\"properties\":{");
  for (int i = 0; i < MANY; i++)
    n += snprintf(text + n, sizeof text - (size_t)n, "%s\"n%d\":true", i ? "," : "", i);
  n += snprintf(text + n, sizeof text - (size_t)n, "},\"required\":[");
  for (int i = 0; i < MANY; i++)
    n += snprintf(text + n, sizeof text - (size_t)n, "%s\"n%d\"", i ? "," : "", i);
  snprintf(text + n, sizeof text - (size_t)n,
           "]}},\"oneOf\":[{\"$ref\":\"#/$defs/a\"},{\"$ref\":\"#/$defs/a\"}]}");
  assert_int_equal(form_open(text, RF_TEXT_SCHEMA, &a, &error), RAFTER_INVALID);
  rf_automaton_close(&a);
  /* 64 objects that their last property tells apart */
  n = snprintf(text, sizeof text, "{\"oneOf\":[");
  for (int i = 0; i < 64; i++) {
    n += snprintf(text + n, sizeof text - (size_t)n, "%s{\"type\":\"object\",\"properties\":{", i ? "," : "");
    for (int k = 0; k < 20; k++)
      n += snprintf(text + n, sizeof text - (size_t)n, "\"p%d\":{\"type\":\"null\"},", k);
    n += snprintf(text + n, sizeof text - (size_t)n, "\"kind\":{\"const\":%d}},\"required\":[", i);
    for (int k = 0; k < 20; k++) n += snprintf(text + n, sizeof text - (size_t)n, "\"p%d\",", k);
    n += snprintf(text + n, sizeof text - (size_t)n, "\"kind\"]}");
  }
  snprintf(text + n, sizeof text - (size_t)n, "]}");
  if (form_open(text, RF_TEXT_SCHEMA, &a, &error) != RAFTER_OK) fail_msg("%s", error.message);
  rf_automaton_close(&a);
}

/* Schemas that grow exponentially when references are copied, and counts that do not fit. */
static void explosions_are_bounded(void **state) {
  static char text[200000];
  rf_automaton a;
  rf_error error = {0};
  int n = snprintf(text, sizeof text, "{\"$ref\":\"#/$defs/d0\",\"$defs\":{");
  (void)state;
  for (int i = 0; i < 30; i++)
    n += snprintf(
        text + n, sizeof text - (size_t)n,
        "\"d%d\":{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#/$defs/d%d\"},\"b\":{\"$ref\":"
        "\"#/$defs/d%d\"}}},",
        i, i + 1, i + 1);
  snprintf(text + n, sizeof text - (size_t)n, "\"d30\":{\"type\":\"null\"}}}");
  assert_int_equal(form_open(text, RF_TEXT_SCHEMA, &a, &error), RAFTER_OK); /* rules are shared */
  assert_true(a.grammar.states < 2000);
  rf_automaton_close(&a);
  static const char *const LARGE[] = {"{\"type\":\"string\",\"maxLength\":1000000000}",
                                      "{\"type\":\"array\",\"minItems\":1000000}",
                                      "{\"type\":\"string\",\"pattern\":\"((a{1,999}){1,999}){1,999}\"}"};
  for (size_t i = 0; i < sizeof LARGE / sizeof *LARGE; i++) {
    assert_int_equal(form_open(LARGE[i], RF_TEXT_SCHEMA, &a, &error), RAFTER_INVALID);
    assert_non_null(strstr(error.message, "too large"));
    rf_automaton_close(&a);
  }
  n = 0;
  for (int i = 0; i < 1000; i++)
    n += snprintf(text + n, sizeof text - (size_t)n, "{\"type\":\"array\",\"items\":");
  n += snprintf(text + n, sizeof text - (size_t)n, "true");
  for (int i = 0; i < 1000; i++) n += snprintf(text + n, sizeof text - (size_t)n, "}");
  assert_int_equal(form_open(text, RF_TEXT_SCHEMA, &a, &error), RAFTER_INVALID);
  assert_non_null(strstr(error.message, "nested too deeply"));
  rf_automaton_close(&a);
}

/* At the limit of nesting, arrays close and no new one opens. */
static void nesting_ends_before_the_limit(void **state) {
  rf_automaton a;
  int32_t at;
  int open = 0;
  (void)state;
  assert_int_equal(form_open("{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}", RF_TEXT_SCHEMA, &a, NULL),
                   RAFTER_OK);
  at = a.start;
  while (at > 0 && open < 1000) {
    int32_t next;
    assert_int_equal(rf_automaton_step(&a, at, a.grammar.class_of['['], &next), RF_AUTOMATON_OK);
    if (next <= 0) break;
    at = next;
    open++;
  }
  assert_true(open > 8 && open <= RF_GRAMMAR_DEPTH + 1);
  for (; open; open--)
    assert_int_equal(rf_automaton_step(&a, at, a.grammar.class_of[']'], &at), RF_AUTOMATON_OK);
  assert_true(at > 0 && rf_automaton_at(&a, at)->ends);
  rf_automaton_close(&a);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(texts_are_allowed_as_the_schema_says),
      cmocka_unit_test(bounds_of_integers_are_exact),
      cmocka_unit_test(bounds_of_numbers_are_exact),
      cmocka_unit_test(refused_keywords_are_named),
      cmocka_unit_test(comparisons_are_bounded),
      cmocka_unit_test(explosions_are_bounded),
      cmocka_unit_test(nesting_ends_before_the_limit),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
