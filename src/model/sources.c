/* sources.c - the source of the shape of each preset. */
#include "model/model.h"

#include <string.h>
#include <strings.h>

static const struct {
  /* hub: name on the Hugging Face hub; NULL: the hub does not have the preset */
  const char *preset, *hub, *note;
} SOURCES[] = {
    {"uva", NULL, "UvA deep learning tutorials"},
    {"gpt2", "openai-community/gpt2", NULL},
    {"gpt2-medium", "openai-community/gpt2-medium", NULL},
    {"gpt2-large", "openai-community/gpt2-large", NULL},
    {"gpt2-xl", "openai-community/gpt2-xl", NULL},
    {"llama2-7b", "meta-llama/Llama-2-7b-hf", NULL},
    {"llama2-13b", "meta-llama/Llama-2-13b-hf", NULL},
    {"llama2-70b", "meta-llama/Llama-2-70b-hf", NULL},
    {"llama3-8b", "meta-llama/Meta-Llama-3-8B", NULL},
    {"llama3-70b", "meta-llama/Meta-Llama-3-70B", NULL},
    {"llama3-405b", NULL, "arXiv 2407.21783"},
    {"llama3.1-8b", "meta-llama/Llama-3.1-8B", NULL},
    {"llama3.1-70b", "meta-llama/Llama-3.1-70B", NULL},
    {"llama3.1-405b", "meta-llama/Llama-3.1-405B", NULL},
    {"llama3.2-3b", "meta-llama/Llama-3.2-3B", NULL},
    {"llama3.2-1b", "meta-llama/Llama-3.2-1B", NULL},
    {"mistral-7b", "mistralai/Mistral-7B-v0.1", NULL},
    {"mixtral-8x7b", "mistralai/Mixtral-8x7B-v0.1", NULL},
    {"mixtral-8x22b", "mistralai/Mixtral-8x22B-v0.1", NULL},
    {"qwen2.5-0.5b", "Qwen/Qwen2.5-0.5B-Instruct", NULL},
    {"qwen2.5-1.5b", "Qwen/Qwen2.5-1.5B-Instruct", NULL},
    {"qwen2.5-3b", "Qwen/Qwen2.5-3B-Instruct", NULL},
    {"qwen2.5-7b", "Qwen/Qwen2.5-7B-Instruct", NULL},
    {"qwen2.5-14b", "Qwen/Qwen2.5-14B-Instruct", NULL},
    {"qwen2.5-32b", "Qwen/Qwen2.5-32B-Instruct", NULL},
    {"qwen2.5-72b", "Qwen/Qwen2.5-72B-Instruct", NULL},
    {"qwen3-0.6b", "Qwen/Qwen3-0.6B", NULL},
    {"qwen3-1.7b", "Qwen/Qwen3-1.7B", NULL},
    {"qwen3-4b", "Qwen/Qwen3-4B", NULL},
    {"qwen3-8b", "Qwen/Qwen3-8B", NULL},
    {"qwen3-14b", "Qwen/Qwen3-14B", NULL},
    {"qwen3-32b", "Qwen/Qwen3-32B", NULL},
    {"gemma-2b", "google/gemma-2b", NULL},
    {"gemma-7b", "google/gemma-7b", NULL},
    {"gemma2-2b", "google/gemma-2-2b", NULL},
    {"gemma2-9b", "google/gemma-2-9b", NULL},
    {"gemma2-27b", "google/gemma-2-27b", NULL},
    {"gemma3-270m", "google/gemma-3-270m", NULL},
    {"gemma3-1b", "google/gemma-3-1b-pt", NULL},
    {"gemma3-4b", "google/gemma-3-4b-pt", NULL},
    {"gemma3-12b", "google/gemma-3-12b-pt", NULL},
    {"gemma3-27b", "google/gemma-3-27b-pt", NULL},
    {"pythia-70m", "EleutherAI/pythia-70m", NULL},
    {"pythia-160m", "EleutherAI/pythia-160m", NULL},
    {"deepseek2-16b", "deepseek-ai/DeepSeek-V2-Lite", NULL},
    {"deepseek-v3", "deepseek-ai/DeepSeek-V3", NULL},
    {"palm-540b", NULL, "arXiv 2204.02311"},
};
enum { SOURCE_COUNT = sizeof SOURCES / sizeof *SOURCES };

const char *rf_model_preset_hub(const char *preset) {
  for (int i = 0; i < SOURCE_COUNT; i++)
    if (!strcmp(SOURCES[i].preset, preset)) return SOURCES[i].hub;
  return NULL;
}

const char *rf_model_preset_source(const char *preset) {
  for (int i = 0; i < SOURCE_COUNT; i++)
    if (!strcmp(SOURCES[i].preset, preset)) return SOURCES[i].hub ? SOURCES[i].hub : SOURCES[i].note;
  return NULL;
}

const char *rf_model_preset_on_hub(const char *hub) {
  for (int i = 0; i < SOURCE_COUNT; i++)
    if (SOURCES[i].hub && !strcasecmp(SOURCES[i].hub, hub)) return SOURCES[i].preset;
  return NULL;
}
