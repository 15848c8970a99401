/* families.h - the model families that have goldens in tests/data/goldens. */
#ifndef RF_TESTS_FAMILIES_H
#define RF_TESTS_FAMILIES_H

static const char *const FAMILIES[] = {"gpt2",
                                       "llama",
                                       "mistral",
                                       "qwen2",
                                       "qwen3",
                                       "gemma",
                                       "gemma2",
                                       "gemma3_text",
                                       "gemma3_text_scaled",
                                       "gpt_neox",
                                       "mixtral",
                                       "gemma3_text_lora",
                                       "llama_biased",
                                       "gemma3_text_listed"};
enum { FAMILY_COUNT = sizeof FAMILIES / sizeof *FAMILIES };

#endif
