/* template_parts.h - declarations that the files template*.c share: tokens, nodes, values and the
 * state of rendering. */
#ifndef RF_TEMPLATE_PARTS_H
#define RF_TEMPLATE_PARTS_H

#include "text/template.h"

/* ---- strings --------------------------------------------------------------------------------- */

typedef struct tpl_text {
  const char *at; /* UTF-8, not NUL-terminated */
  size_t bytes;
} tpl_text;
/* The two arguments of "%.*s" that print a text, cut after 60 bytes. */
#define TPL_SHOWN(text) (int)((text).bytes < 60 ? (text).bytes : 60), (text).at

#define TPL_TEXT(literal) ((tpl_text){(literal), sizeof(literal) - 1})
bool rf_tpl_same(tpl_text a, tpl_text b);
bool rf_tpl_is(tpl_text a, const char *word);
/* Decodes the UTF-8 sequence at `at` into *point. Returns the number of bytes of the sequence, or 0
 * if the sequence is invalid. */
size_t rf_tpl_point(const char *at, size_t left, uint32_t *point);
int64_t rf_tpl_points(tpl_text text);
/* Returns the byte offset of code point `index`, or text.bytes if the text is shorter. */
size_t rf_tpl_offset(tpl_text text, int64_t index);
bool rf_tpl_space(uint32_t point); /* Python's str.isspace() */
/* Like Python's strip(): strips the code points in `set`. If set.at is NULL, strips white space.
 * Bit 1 of `sides` strips the start of the text, and bit 2 strips the end. */
tpl_text rf_tpl_strip(tpl_text text, tpl_text set, int sides);
/* Returns the byte offset of the first occurrence of `part` in `text` at or after `from`, or
 * SIZE_MAX. */
size_t rf_tpl_find(tpl_text text, tpl_text part, size_t from);

/* ---- tokens ---------------------------------------------------------------------------------- */

typedef enum tpl_token_kind {
  TOKEN_DATA,
  TOKEN_PRINT,     /* {{ */
  TOKEN_PRINT_END, /* }} */
  TOKEN_BLOCK,     /* {% */
  TOKEN_BLOCK_END, /* %} */
  TOKEN_NAME,
  TOKEN_TEXT,
  TOKEN_INT,
  TOKEN_FLOAT,
  TOKEN_OPERATOR,
  TOKEN_END,
} tpl_token_kind;

#define TPL_OP(a, b) ((a) | (b) << 8) /* an operator of two characters as a number: TPL_OP('=', '=') */

typedef struct tpl_token {
  tpl_token_kind kind;
  int op;
  size_t at; /* byte offset in the source */
  tpl_text text;
  union {
    int64_t whole;
    double real;
  };
} tpl_token;

/* ---- values ---------------------------------------------------------------------------------- */

typedef enum tpl_kind {
  TPL_UNDEFINED, /* `text` is the name of the undefined value */
  TPL_NONE,
  TPL_BOOL,
  TPL_INT,
  TPL_FLOAT,
  TPL_STRING,
  TPL_LIST,
  TPL_DICT,
  TPL_NAMESPACE,
  TPL_LOOP,
  TPL_MACRO,
  TPL_FUNCTION,
  TPL_METHOD,
} tpl_kind;

/* Forms of a list. As in Python, the forms of lists differ in printing, indexing and length. */
enum { FORM_LIST, FORM_TUPLE, FORM_RANGE, FORM_VIEW, FORM_LAZY };
/* Forms of a string. FORM_SAFE: the filter "safe" has marked the string, so Jinja joins it
 * differently. */
enum { FORM_PLAIN, FORM_SAFE };

typedef struct tpl_value tpl_value;
typedef struct tpl_node tpl_node;
typedef struct tpl_run tpl_run;

typedef struct tpl_list {
  tpl_value *item;
  size_t count, next; /* next: index of the first item that a lazy list has not returned */
} tpl_list;

typedef struct tpl_dict {
  tpl_value *key, *value;
  size_t count, capacity;
} tpl_dict;

typedef struct tpl_loop {
  const tpl_list *items;
  size_t index;
  int depth;
} tpl_loop;

typedef struct tpl_frame tpl_frame;
typedef struct tpl_macro {
  const tpl_node *node;
  tpl_frame *frame; /* the scope that defines the macro */
} tpl_macro;

typedef struct tpl_function tpl_function;
typedef struct tpl_method {
  const tpl_function *function;
  tpl_value *self;
} tpl_method;

struct tpl_value {
  uint8_t kind, form;
  uint16_t depth; /* nesting depth of lists and dicts */
  union {
    bool truth;
    int64_t whole;
    double real;
    tpl_text text;
    tpl_list *list;
    tpl_dict *dict; /* of a dict or a namespace */
    const tpl_loop *loop;
    const tpl_macro *macro;
    const tpl_function *function;
    const tpl_method *method;
  };
};

/* Arguments of a call, filter, test or method. Positional arguments come before named arguments. */
typedef struct tpl_arguments {
  const tpl_value *value;
  const tpl_text *name; /* name of each argument; .at is NULL for a positional argument */
  int count;
} tpl_arguments;

/* A call of a filter, test, method or global function. */
typedef struct tpl_call {
  const tpl_value *self; /* the value to which a filter, test or method is applied */
  /* arguments in the order of the parameters; a missing argument has .form 1 */
  const tpl_value *argument;
  const tpl_arguments *arguments; /* the arguments as written in the template */
  int variant;                    /* `variant` of the called function */
  tpl_value *result;
} tpl_call;
typedef rf_status tpl_body(tpl_run *run, const tpl_call *c);

/* An entry of a table: a filter, test, method or global function. */
enum { TPL_PARAMETERS = 6 };
struct tpl_function {
  const char *name;
  tpl_body *call; /* NULL: Python has this function, but rafter does not support it */
  const char *parameter[TPL_PARAMETERS];
  int needed;   /* number of required arguments */
  int variant;  /* distinguishes the entries that have the same `call` */
  bool unbound; /* true: `call` takes any number of arguments from tpl_call.arguments */
};
#define TPL_GIVEN(value) ((value).kind != TPL_UNDEFINED || (value).form == 0)

/* ---- nodes ----------------------------------------------------------------------------------- */

typedef enum tpl_node_kind {
  /* expressions */
  NODE_CONSTANT,
  NODE_NAME,
  NODE_LIST,
  NODE_TUPLE,
  NODE_DICT,      /* list: key, value, key, value, ... */
  NODE_ATTRIBUTE, /* kid[0].name */
  NODE_ITEM,      /* kid[0][kid[1]] */
  NODE_SLICE,     /* kid[0][kid[1]:kid[2]:kid[3]] */
  NODE_CALL,      /* kid[0](list), names */
  NODE_FILTER,    /* kid[0]|function(list) */
  NODE_TEST,      /* kid[0] is function(list); op: negated */
  NODE_NEGATIVE,
  NODE_POSITIVE,
  NODE_NOT,
  NODE_AND,
  NODE_OR,
  NODE_BINARY,  /* kid[0] op kid[1] */
  NODE_COMPARE, /* kid[0] ops[0] list[0] ops[1] list[1] ... */
  NODE_CHOICE,  /* kid[1] if kid[0] else kid[2] */
  /* statements */
  NODE_DATA,
  NODE_PRINT,
  NODE_IF,         /* list: condition, body, condition, body, ...; kid[0]: else */
  NODE_FOR,        /* for kid[0] in kid[1] if kid[2]; kid[3]: body; kid[4]: else */
  NODE_SET,        /* kid[0] = kid[1] */
  NODE_SET_BLOCK,  /* kid[0] = kid[1] filtered by kid[2]; the innermost child of kid[2] is NODE_CAPTURED */
  NODE_SET_FIELD,  /* assigns kid[1] to field `name` of the namespace kid[0] */
  NODE_MACRO,      /* name; list: default values or NULL; names: parameters; kid[0]: body */
  NODE_FILTERED,   /* kid[0]: body; kid[1]: filter */
  NODE_CAPTURED,   /* the captured text of a block */
  NODE_GENERATION, /* kid[0]: body */
  NODE_BREAK,
  NODE_CONTINUE,
  NODE_BODY, /* list */
  NODE_KINDS,
} tpl_node_kind;

struct tpl_node {
  tpl_node_kind kind;
  int op, depth; /* depth: nesting depth of the subtree, which limits the recursion of the evaluation */
  size_t at;
  tpl_text name;
  tpl_node *kid[5];
  tpl_node **list;
  tpl_text *names;
  int *ops;
  int count; /* length of `list` */
  const tpl_function *function;
  tpl_value constant;
};

struct rf_template {
  rf_pool *pool;
  const char *where;
  tpl_text source; /* the template's text; as in Jinja, newlines are \n and a final newline is dropped */
  tpl_node *body;
  bool marks_generation;
};

enum {
  TPL_SOURCE_MAX = 256 << 10,
  TPL_TREE_DEPTH = 200,
  TPL_VALUE_DEPTH = 100,
  TPL_RUN_DEPTH = 600,
  TPL_RANGE_MAX = 100000
};

/* Fails with "WHERE, line L, column C: ...". `at` is a byte offset in the source. */
rf_status rf_tpl_fail_at(const rf_template *parsed, size_t at, rf_error *error, const char *file, int line,
                         const char *format, ...) __attribute__((format(printf, 6, 7)));
#define TPL_FAIL_AT(parsed, at, error, ...) \
  rf_failed(rf_tpl_fail_at((parsed), (at), (error), __FILE__, __LINE__, __VA_ARGS__), RAFTER_FAILED)

rf_status rf_tpl_lex(const rf_template *parsed, tpl_token **tokens, rf_error *error);

/* Each function returns the table entry of the filter, test or global function `name`, or NULL. */
const tpl_function *rf_tpl_filter(tpl_text name);
const tpl_function *rf_tpl_test(tpl_text name);
const tpl_function *rf_tpl_global(tpl_text name);
/* Returns the method `name` for values of the same kind as `self`, or NULL if Python has no such
 * method. If the entry's `call` is NULL, rafter does not support the method. */
const tpl_function *rf_tpl_method(const tpl_value *self, tpl_text name);

/* ---- one rendering --------------------------------------------------------------------------- */

typedef struct tpl_out {
  char *at;
  size_t bytes, capacity;
} tpl_out;

struct tpl_run {
  const rf_template *parsed;
  rf_pool *pool;
  rf_error *error;
  const struct tm *now;
  int64_t steps_left;
  size_t room_left, text_most;
  int depth;
  int leave;     /* NODE_BREAK or NODE_CONTINUE while such a statement leaves its loop, otherwise 0 */
  size_t at;     /* byte offset in the source of the node that is being evaluated, for errors */
  tpl_out *out;  /* receives printed text */
  tpl_out *main; /* the output of the rendering; captured blocks have their own output */
  tpl_frame *frame;
  tpl_text captured;
  rf_range *span;
  size_t spans, span_capacity;
};

#define TPL_FAIL(run, ...) TPL_FAIL_AT((run)->parsed, (run)->at, (run)->error, __VA_ARGS__)
/* Subtracts `steps` from the steps that remain. Fails if too few steps remain. */
rf_status rf_tpl_step(tpl_run *run, size_t steps);
/* Allocates `count` items of `size` bytes from the rendering's pool. Fails if the memory limit is
 * reached. */
rf_status rf_tpl_room(tpl_run *run, size_t count, size_t size, void *memory);
rf_status rf_tpl_put(tpl_run *run, tpl_out *out, tpl_text text);

/* ---- values: template_value.c, template_print.c ---------------------------------------------- */

static inline tpl_value tpl_undefined(const char *name, size_t bytes) {
  return (tpl_value){.kind = TPL_UNDEFINED, .text = {name, bytes}};
}
static inline tpl_value tpl_none(void) { return (tpl_value){.kind = TPL_NONE}; }
static inline tpl_value tpl_bool(bool truth) { return (tpl_value){.kind = TPL_BOOL, .truth = truth}; }
static inline tpl_value tpl_int(int64_t whole) { return (tpl_value){.kind = TPL_INT, .whole = whole}; }
static inline tpl_value tpl_float(double real) { return (tpl_value){.kind = TPL_FLOAT, .real = real}; }
static inline tpl_value tpl_string(const char *at, size_t bytes) {
  return (tpl_value){.kind = TPL_STRING, .text = {at ? at : "", bytes}};
}

const char *rf_tpl_kind_name(const tpl_value *value);
bool rf_tpl_truth(const tpl_value *value);
bool rf_tpl_number(const tpl_value *value, double *real);  /* ints, floats and bools */
bool rf_tpl_whole(const tpl_value *value, int64_t *whole); /* ints and bools */
rf_status rf_tpl_equal(tpl_run *run, const tpl_value *a, const tpl_value *b, bool *equal);
/* Compares numbers, strings or lists like Python. *order is -1, 0 or 1, or 2 if a value is NaN. */
rf_status rf_tpl_order(tpl_run *run, const tpl_value *a, const tpl_value *b, int *order);
rf_status rf_tpl_contains(tpl_run *run, const tpl_value *container, const tpl_value *item, bool *found);
rf_status rf_tpl_arithmetic(tpl_run *run, int op, const tpl_value *a, const tpl_value *b, tpl_value *result);
/* Copies the items. */
rf_status rf_tpl_list(tpl_run *run, int form, const tpl_value *items, size_t count, tpl_value *list);
rf_status rf_tpl_dict(tpl_run *run, tpl_value *dict);
/* Sets *index to SIZE_MAX if the key is missing. */
rf_status rf_tpl_dict_find(tpl_run *run, const tpl_dict *dict, const tpl_value *key, size_t *index);
rf_status rf_tpl_dict_set(tpl_run *run, tpl_value *dict, const tpl_value *key, const tpl_value *value);
/* Sets *items to the items that a for loop over `value` visits. Empties a lazy list. */
rf_status rf_tpl_iterate(tpl_run *run, const tpl_value *value, tpl_list *items);
rf_status rf_tpl_attribute(tpl_run *run, const tpl_value *object, tpl_text name, tpl_value *result);
rf_status rf_tpl_item(tpl_run *run, const tpl_value *object, const tpl_value *index, tpl_value *result);
rf_status rf_tpl_slice(tpl_run *run, const tpl_value *object, const tpl_value bounds[3], tpl_value *result);
rf_status rf_tpl_from_json(tpl_run *run, const json_t *json, int depth, tpl_value *value);

/* Python's str(value). */
rf_status rf_tpl_str(tpl_run *run, const tpl_value *value, tpl_text *text);
typedef struct tpl_json_style {
  tpl_text between, colon, indent; /* indent.at NULL: one line */
  bool ascii, sorted;
} tpl_json_style;
rf_status rf_tpl_json(tpl_run *run, tpl_out *out, const tpl_value *value, const tpl_json_style *style,
                      int depth);

/* String functions for filters and methods. rf_tpl_case fails on non-ASCII letters. */
/* `how` is 'u' (upper), 'l' (lower), 'c' (capitalize) or 't' (title). */
rf_status rf_tpl_case(tpl_run *run, tpl_text text, int how, tpl_value *result);
rf_status rf_tpl_replace(tpl_run *run, tpl_text text, tpl_text old, tpl_text new, int64_t most,
                         tpl_value *result);
rf_status rf_tpl_lines(tpl_run *run, tpl_text text, tpl_value *lines);
/* If `strict` is true, all items must be strings. */
rf_status rf_tpl_join(tpl_run *run, tpl_text between, const tpl_list *items, bool strict, tpl_value *result);
rf_status rf_tpl_wants_text(tpl_run *run, const tpl_value *value, const char *what, tpl_text *text);
rf_status rf_tpl_wants_whole(tpl_run *run, const tpl_value *value, const char *what, int64_t otherwise,
                             int64_t *whole);

/* Assigns the arguments to the parameters of `row` and calls the function of `row`. */
rf_status rf_tpl_call_row(tpl_run *run, const tpl_function *row, const tpl_value *self,
                          const tpl_arguments *arguments, tpl_value *result);
rf_status rf_tpl_call_macro(tpl_run *run, const tpl_macro *macro, const tpl_arguments *arguments,
                            tpl_value *result);

#endif
