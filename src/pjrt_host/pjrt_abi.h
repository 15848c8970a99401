/* pjrt_abi.h - our own declaration of the part of the PJRT C API that rafter uses. The structs have
 * the layout of API 0.81, and newer versions only append fields. So each struct ends with 128 spare
 * zero bytes, which count in the size of the struct. A newer plugin finds zeros in the fields that
 * we do not know. */
#ifndef RF_PJRT_ABI_H
#define RF_PJRT_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PJRT_MAJOR = 0, PJRT_OLDEST_MINOR = 81 };

/* The table of functions. The head is followed by pointers to functions. The slot of a function is
 * the index of its pointer. */
typedef struct pjrt_api {
  size_t struct_size;
  void *extension;
  struct {
    size_t struct_size;
    void *extension;
    int major, minor;
  } version;
  void *(*slot[])(void *args);
} pjrt_api;
_Static_assert(sizeof(pjrt_api) == 40, "functions start at byte 40");

enum {
  PJRT_ERROR_DESTROY = 0,
  PJRT_ERROR_MESSAGE = 1,
  PJRT_ERROR_CODE = 2,
  PJRT_PLUGIN_INITIALIZE = 3,
  PJRT_PLUGIN_ATTRIBUTES = 4,
  PJRT_EVENT_DESTROY = 5,
  PJRT_EVENT_IS_READY = 6,
  PJRT_EVENT_AWAIT = 8,
  PJRT_CLIENT_CREATE = 10,
  PJRT_CLIENT_DESTROY = 11,
  PJRT_CLIENT_PLATFORM_NAME = 12,
  PJRT_CLIENT_PROCESS_INDEX = 13,
  PJRT_CLIENT_PLATFORM_VERSION = 14,
  PJRT_CLIENT_DEVICES = 15,
  PJRT_CLIENT_ADDRESSABLE_DEVICES = 16,
  PJRT_CLIENT_COMPILE = 20,
  PJRT_BUFFER_FROM_HOST = 22,
  PJRT_DESCRIPTION_ID = 23,
  PJRT_DESCRIPTION_PROCESS_INDEX = 24,
  PJRT_DESCRIPTION_KIND = 26,
  PJRT_DEVICE_DESCRIPTION = 29,
  PJRT_DEVICE_MEMORY_STATS = 34,
  PJRT_EXECUTABLE_DESTROY = 40,
  PJRT_EXECUTABLE_OUTPUTS = 44,
  PJRT_EXECUTABLE_COST = 46,
  PJRT_EXECUTABLE_OPTIMIZED = 48,
  PJRT_EXECUTABLE_SERIALIZE = 49,
  PJRT_LOADED_DESTROY = 50,
  PJRT_LOADED_EXECUTABLE = 51,
  PJRT_LOADED_DEVICES = 52,
  PJRT_LOADED_EXECUTE = 55,
  PJRT_DESERIALIZE = 56,
  PJRT_BUFFER_DESTROY = 58,
  PJRT_BUFFER_TYPE = 59,
  PJRT_BUFFER_DIMENSIONS = 60,
  PJRT_BUFFER_TO_HOST = 70,
  PJRT_TOPOLOGY_CREATE = 82,
  PJRT_TOPOLOGY_DESTROY = 83,
  PJRT_TOPOLOGY_PLATFORM_NAME = 84,
  PJRT_TOPOLOGY_PLATFORM_VERSION = 85,
  PJRT_TOPOLOGY_DEVICES = 86,
  PJRT_COMPILE = 89,
  PJRT_EXECUTABLE_MEMORY = 96
};

enum {
  PJRT_INVALID = 3,
  PJRT_DEADLINE = 4,
  PJRT_NOT_FOUND = 5,
  PJRT_RESOURCE_EXHAUSTED = 8,
  PJRT_UNIMPLEMENTED = 12,
  PJRT_UNAVAILABLE = 14
};
enum {
  PJRT_STRING = 0,
  PJRT_INT64 = 1,
  PJRT_INT64_LIST = 2,
  PJRT_FLOAT = 3,
  PJRT_BOOL = 4
}; /* types of named values */
enum { PJRT_ONLY_DURING_CALL = 0, PJRT_UNTIL_TRANSFER_COMPLETES = 1, PJRT_ZERO_COPY = 2 };

/* PJRT_STRUCT(name, void *a; int b;) makes a struct with size, extension, a, b and spare bytes. */
#define PJRT_STRUCT(name, ...) \
  typedef struct name { \
    size_t struct_size; \
    void *extension; \
    __VA_ARGS__ \
    uint64_t spare[16]; \
  } name

/* clang-format off */
PJRT_STRUCT(pjrt_on_object, void *object;); /* destroys, awaits, initialize */
PJRT_STRUCT(pjrt_is_ready, void *object; bool ready;);
PJRT_STRUCT(pjrt_error_message, void *error; const char *text; size_t bytes;);
PJRT_STRUCT(pjrt_number_of, void *object; int number;); /* an error code, or the id of a device */
PJRT_STRUCT(pjrt_size_of, void *object; size_t number;);
PJRT_STRUCT(pjrt_text_of, void *object; const char *text; size_t bytes;);
PJRT_STRUCT(pjrt_object_of, void *object; void *result;);
PJRT_STRUCT(pjrt_list_of, void *object; void **list; size_t count;);
PJRT_STRUCT(pjrt_attributes, const void *value; size_t count;);
PJRT_STRUCT(pjrt_client_create,
  const void *option; size_t options;
  void *get; void *get_arg; void *put; void *put_arg;
  void *client;
  void *try_get; void *try_get_arg;);
PJRT_STRUCT(pjrt_program, char *code; size_t code_bytes; const char *format; size_t format_bytes;);
PJRT_STRUCT(pjrt_client_compile,
  void *client; pjrt_program *program; const char *options; size_t options_bytes; void *loaded;);
PJRT_STRUCT(pjrt_compile,
  void *topology; pjrt_program *program; const char *options; size_t options_bytes; void *client;
  void *executable;);
PJRT_STRUCT(pjrt_topology_create,
  const char *name; size_t name_bytes; const void *option; size_t options; void *topology;);
PJRT_STRUCT(pjrt_from_host,
  void *client; const void *data; int type; const int64_t *dim; size_t dims;
  const int64_t *stride; size_t strides; int semantics;
  void *device; void *memory; void *layout; void *done; void *buffer;);
PJRT_STRUCT(pjrt_dimensions, void *buffer; const int64_t *dim; size_t dims;);
PJRT_STRUCT(pjrt_to_host, void *buffer; void *layout; void *data; size_t bytes; void *event;);
PJRT_STRUCT(pjrt_execute_options,
  void *send; void *receive; size_t sends; size_t receives; int launch;
  const int64_t *kept; size_t kepts; /* arguments that are not donated in this call */
  void *context; const char *location; size_t tasks; void *task; void *incarnation;);
PJRT_STRUCT(pjrt_execute,
  void *loaded; pjrt_execute_options *options; void ***arguments; size_t devices; size_t argument_count;
  void ***results; void **events; void *device;);
PJRT_STRUCT(pjrt_serialize, void *executable; const char *data; size_t bytes; void *owner;
  void (*release)(void *owner););
PJRT_STRUCT(pjrt_deserialize, void *client; const char *data; size_t bytes; void *loaded;);
PJRT_STRUCT(pjrt_optimized, void *executable; pjrt_program *program;);
PJRT_STRUCT(pjrt_memory, void *executable; int64_t code; int64_t argument; int64_t output; int64_t alias;
  int64_t temporary; int64_t host[5]; int64_t peak;);
PJRT_STRUCT(pjrt_memory_stats, void *device; int64_t in_use;
  int64_t peak; bool has_peak; int64_t allocations; bool has_allocations;
  int64_t largest; bool has_largest; int64_t limit; bool has_limit; uint64_t more[14];);
PJRT_STRUCT(pjrt_costs, void *executable; size_t count; const void *value;);
/* clang-format on */

/* The plugin calls our functions with these structs, to use a store of keys and values that all
 * hosts of a program share. Our functions return NULL, or an error that the plugin's `error` makes.
 * The plugin makes the structs, so the structs have no spare bytes. */
typedef void *(*pjrt_make_error)(int code, const char *text, size_t bytes);
typedef struct pjrt_kv_get {
  size_t struct_size;
  void *extension;
  const char *key;
  size_t key_bytes;
  int timeout_ms;
  pjrt_make_error *error;
  void *self;
  char *value; /* outputs: the value, and the function `release`, with which the plugin frees the value */
  size_t value_bytes;
  void (*release)(char *value);
} pjrt_kv_get;
typedef struct pjrt_kv_try {
  size_t struct_size;
  void *extension;
  const char *key;
  size_t key_bytes;
  pjrt_make_error *error;
  void *self;
  char *value; /* out */
  size_t value_bytes;
  void (*release)(char *value);
} pjrt_kv_try;
typedef struct pjrt_kv_put {
  size_t struct_size;
  void *extension;
  const char *key;
  size_t key_bytes;
  const char *value;
  size_t value_bytes;
  pjrt_make_error *error;
  void *self;
} pjrt_kv_put;
_Static_assert(sizeof(pjrt_kv_get) == 80 && sizeof(pjrt_kv_try) == 72 && sizeof(pjrt_kv_put) == 64,
               "sizes of the store's calls");

/* The list of extensions begins at pjrt_api.extension. The profiler's extension ends with its own
 * table of functions, which have their own errors. The structs of these functions have no field
 * `extension`. */
enum { PJRT_EXTENSION_PROFILER = 1, PJRT_EXTENSIONS = 64 /* maximum length of the list */ };
typedef struct pjrt_extension {
  size_t struct_size;
  int type;
  const struct pjrt_extension *next;
} pjrt_extension;
typedef struct pjrt_profiler {
  size_t struct_size;
  void *private;
  void *(*error_destroy)(void *args), *(*error_message)(void *args), *(*error_code)(void *args);
  void *(*create)(void *args), *(*destroy)(void *args), *(*start)(void *args), *(*stop)(void *args);
  void *(*collect)(void *args);
} pjrt_profiler;
typedef struct pjrt_profiler_extension {
  pjrt_extension base;
  const pjrt_profiler *profiler; /* may be NULL */
} pjrt_profiler_extension;
_Static_assert(sizeof(pjrt_profiler) == 80 && sizeof(pjrt_profiler_extension) == 32, "sizes of the profiler");
typedef struct pjrt_profiler_error { /* struct for destroying an error and for getting its text */
  size_t struct_size;
  void *private;
  void *error;
  const char *text;
  size_t bytes;
  uint64_t spare[16];
} pjrt_profiler_error;
typedef struct pjrt_profiler_create {
  size_t struct_size;
  const char *options; /* a ProfileOptions of XLA */
  size_t options_bytes;
  void *profile; /* out */
  uint64_t spare[16];
} pjrt_profiler_create;
/* struct for collecting, starting, stopping and destroying a profile */
typedef struct pjrt_profiler_collect {
  size_t struct_size;
  void *profile;
  /* memory for the profile; NULL: the plugin sets `data` to its own copy, or sets only `bytes` */
  uint8_t *data;
  size_t bytes;
  uint64_t spare[16];
} pjrt_profiler_collect;

/* An option or a property. The plugin reads lists of such structs, so the struct has no spare
 * bytes. */
typedef struct pjrt_named {
  size_t struct_size;
  void *extension;
  const char *name;
  size_t name_bytes;
  int type;
  union {
    const char *text;
    int64_t number;
    const int64_t *list;
    float real;
    bool flag;
  } value;
  size_t count; /* length of a text or a list; 1 for a number */
} pjrt_named;
_Static_assert(sizeof(pjrt_named) == 56, "size of a named value");

/* A dense layout of an array. The layout is a part of another struct, so it has no spare bytes. */
typedef struct pjrt_layout {
  size_t struct_size;
  void *extension;
  struct {
    size_t struct_size;
    void *extension;
    const int64_t *minor_to_major;
    size_t rank;
    const int64_t *tile;
    const size_t *tile_dims;
    size_t tiles;
  } tiled;
  int type; /* 0: tiled */
} pjrt_layout;
_Static_assert(sizeof(pjrt_layout) == 80, "size of a layout");

#endif
