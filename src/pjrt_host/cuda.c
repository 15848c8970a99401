/* cuda.c - see host.h: NVIDIA's libraries from the packages of PyPI. */
#include <dirent.h>
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "pjrt_host/host.h"

/* The libraries. Each library comes after the libraries that it needs. */
static const char *const LIBRARY[] = {
    "libcudart", "libnvrtc",    "libnvJitLink", "libcublasLt", "libcublas",       "libnccl",
    "libcupti",  "libcusparse", "libcusolver",  "libcufft",    "libnvshmem_host", "libcudnn",
};

/* Loads FOLDER/NAME.so.N. Afterwards, a plugin finds this loaded library by its name. */
static void load_from(const char *folder, const char *name) {
  char path[2 * PATH_MAX];
  size_t length = strlen(name);
  DIR *open = opendir(folder);
  for (struct dirent *at; open && (at = readdir(open));) {
    if (strncmp(at->d_name, name, length) || strncmp(at->d_name + length, ".so.", 4)) continue;
    snprintf(path, sizeof path, "%s/%s", folder, at->d_name);
    dlopen(path, RTLD_NOW | RTLD_LOCAL); /* without the driver of a GPU, some libraries do not load */
  }
  if (open) closedir(open);
}

/* Looks for each library in PACKAGES/nvidia/.../lib. */
static void load_packages(const char *packages) {
  char nvidia[PATH_MAX + 16], folder[PATH_MAX + 300];
  snprintf(nvidia, sizeof nvidia, "%s/nvidia", packages);
  for (size_t i = 0; i < sizeof LIBRARY / sizeof *LIBRARY; i++) {
    DIR *open = opendir(nvidia);
    for (struct dirent *at; open && (at = readdir(open));) {
      if (at->d_name[0] == '.') continue;
      snprintf(folder, sizeof folder, "%s/%s/lib", nvidia, at->d_name);
      load_from(folder, LIBRARY[i]);
    }
    if (open) closedir(open);
  }
}

static bool is_cuda(const char *plugin) {
  const char *slash = strrchr(plugin, '/');
  return strstr(slash ? slash : plugin, "cuda");
}

/* The plugin is PACKAGES/jax_plugins/xla_cuda13/xla_cuda_plugin.so, or
 * PACKAGES/FOLDER/xla_cuda_plugin.so in older packages. So this function tries both folders as
 * PACKAGES. */
void host_load_cuda(const char *plugin) {
  char folder[PATH_MAX];
  snprintf(folder, sizeof folder, "%s", plugin);
  char *slash = strrchr(folder, '/');
  if (!is_cuda(plugin)) return;
  for (int up = 0; up < 3 && slash && slash != folder; up++) {
    *slash = 0;
    if (up) load_packages(folder);
    slash = strrchr(folder, '/');
  }
}

/* By default, the plugin takes three quarters of the memory when it starts. With this default,
 * large plans would not fit, and no second process could use the GPU. */
size_t host_cuda_options(const char *plugin, pjrt_named *option) {
  if (!is_cuda(plugin)) return 0;
  option[0] = host_option("preallocate", PJRT_BOOL, 1);
  option[0].value.flag = false;
  option[1] = host_option("memory_fraction", PJRT_FLOAT, 1);
  option[1].value.real = 0.95F;
  return HOST_CUDA_OPTIONS;
}
