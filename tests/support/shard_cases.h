/* shard_cases.h - models and meshes on which the tests of sharded graphs run, and one step on all
 * chips of a world. */
#ifndef RF_TESTS_SHARD_CASES_H
#define RF_TESTS_SHARD_CASES_H

#include "support/world.h"
#include "unit/graph/fixture.h"

#define MIN_GPT "gpt:layers=2,width=16,heads=4,ff=32,vocab=37,seq=16"
#define MIN_LLAMA "llama:layers=2,width=16,heads=4,kv_heads=4,head_dim=8,ff=24,vocab=40,seq=16"
/* an odd number of gate columns on each of two chips */
#define MIN_ODD "llama:layers=2,width=16,heads=8,kv_heads=4,head_dim=8,ff=26,vocab=40,seq=16"
#define MIN_GEMMA "gemma3:layers=2,width=16,heads=4,kv_heads=2,head_dim=8,ff=24,vocab=40,seq=16"
#define MIN_WINDOW "gemma3:layers=2,width=16,heads=4,kv_heads=2,head_dim=8,ff=24,vocab=40,seq=16,window=24"
#define MIN_NEOX "pythia-70m:layers=2,width=16,heads=4,ff=32,vocab=40,seq=16"

#define MIN_MIXTRAL \
  "mixtral:layers=2,width=16,heads=4,kv_heads=4,head_dim=8,ff=24,vocab=40,seq=16,experts=5,experts_used=2"
#define MIN_EXPERTS \
  "mixtral:layers=2,width=16,heads=4,kv_heads=4,head_dim=8,ff=24,vocab=40,seq=16,experts=4,experts_used=2"
#define MIN_DEEPSEEK \
  "deepseek:layers=3,width=16,heads=2,head_dim=10,rope_dim=4,value_dim=6,kv_rank=12,q_rank=8,ff=24,expert_" \
  "ff=8,experts=4,vocab=40,seq=16"

/* with biases of queries and keys, and one key head for four query heads */
#define MIN_QWEN "qwen2.5-0.5b:layers=2,width=16,heads=8,kv_heads=2,head_dim=8,ff=24,vocab=40,seq=16"
#define MIN_LATENT \
  "deepseek:layers=3,width=16,heads=4,head_dim=10,rope_dim=4,value_dim=6,kv_rank=12,q_rank=8,ff=24,expert_" \
  "ff=8,experts=4,vocab=40,seq=16"

/* fewer tokens than chips have room for */
#define MIN_WORDS "gpt:layers=1,width=16,heads=8,ff=32,vocab=9,seq=16"
/* softcaps of scores and logits */
#define MIN_CAPPED "gemma2-2b:layers=2,width=16,heads=4,kv_heads=2,head_dim=8,ff=24,vocab=37,seq=16"
#define MIN_UNTIED "pythia-70m:layers=1,width=16,heads=4,ff=32,vocab=37,seq=16"

enum { SEQUENCES = 12, SEQ = WORLD_SEQ };

typedef struct setting {
  const char *model, *mesh;
  int zero, accumulate;
  float clip, dropout;
  const char *lora, *after;
} setting;

static inline void shard_begin(world *w, const rf_graph *whole) {
  w->run = (rf_run_inputs){.seed = 3, .step = 1, .loss_scale = 1.0f / 64, .lr = 1e-2f};
  world_fill(w, whole, 0, false);
}

static inline void shard_step(world *w, const rf_graph *whole) {
  shard_begin(w, whole);
  world_step(w, whole);
}

static inline rf_build_options shard_training(const setting *s, rf_dtype dtype) {
  rf_build_options options = fixture_train(dtype, s->accumulate, s->dropout, s->clip);
  options.microbatch = SEQUENCES;
  options.seq = SEQ;
  options.plain = true; /* as on any mesh */
  return options;
}

/* Options of four slots, with several pages each if the mesh distributes their positions. */
static inline rf_build_options shard_pass(const setting *s, rf_dtype dtype) {
  rf_build_options options = fixture_generate(dtype, 4, 4);
  bool strided = strstr(s->mesh, "context") != NULL;
  options.seq = strided ? 96 : 16;
  options.kv_page = strided ? 32 : 0;
  options.plain = true;
  return options;
}

static const setting SHARD_SETTINGS[] = {
    {MIN_LLAMA, "data=2", 0, 1, 1, 0, NULL, NULL},
    {MIN_LLAMA, "data=2", 0, 2, 1, 0, NULL, NULL},
    {MIN_LLAMA, "data=2", 1, 2, 1, 0, NULL, NULL},
    {MIN_LLAMA, "fsdp=2", 3, 1, 0, 0, NULL, NULL},
    {MIN_LLAMA, "fsdp=4", 3, 2, 1, 0, NULL, NULL},
    {MIN_LLAMA, "fsdp=2", 2, 2, 1, 0, NULL, NULL},
    {MIN_LLAMA, "fsdp=2", 1, 1, 0, 0, NULL, NULL},
    {MIN_LLAMA, "tensor=2", 3, 1, 1, 0, NULL, NULL},
    {MIN_LLAMA, "tensor=4", 3, 2, 0.1f, 0, NULL, NULL},
    {MIN_LLAMA, "data=2,fsdp=2,tensor=2", 3, 2, 1, 0, NULL, NULL},
    {MIN_LLAMA, "slice=2,data=2,tensor=2", 0, 1, 1, 0, NULL, NULL},
    {MIN_LLAMA, "slice=2,fsdp=2", 3, 2, 1, 0, NULL, NULL},
    {MIN_GPT, "tensor=2", 3, 2, 1, 0, NULL, NULL},
    {MIN_GPT, "fsdp=2,tensor=4", 3, 1, 0, 0, NULL, NULL},
    {MIN_GPT, "data=2,tensor=2", 0, 2, 1, 0.2f, NULL, NULL},
    {MIN_GPT, "fsdp=3,tensor=2", 3, 1, 1, 0, NULL, NULL},
    {MIN_GEMMA, "fsdp=2,tensor=2", 3, 1, 1, 0, NULL, NULL},
    {MIN_NEOX, "data=2,tensor=2", 0, 1, 1, 0, NULL, NULL},
    {MIN_LLAMA, "fsdp=2,tensor=2", 3, 2, 1, 0, "rank=4,targets=all", NULL},
    {MIN_GEMMA, "data=2,tensor=2", 0, 1, 1, 0, "rank=2,targets=q,v,down", NULL},
    {MIN_MIXTRAL, "fsdp=2", 3, 1, 1, 0, NULL, NULL},
    {MIN_MIXTRAL, "tensor=2", 0, 1, 1, 0, NULL, NULL},
    {MIN_MIXTRAL, "data=2,fsdp=2,tensor=2", 3, 2, 1, 0, NULL, NULL},
    {MIN_MIXTRAL, "context=2,tensor=2", 0, 1, 1, 0, NULL, NULL},
    {MIN_EXPERTS, "expert=2", 0, 1, 1, 0, NULL, NULL},
    {MIN_EXPERTS, "expert=4", 3, 2, 1, 0, NULL, NULL},
    {MIN_EXPERTS, "expert=2,fsdp=2", 3, 2, 1, 0, NULL, NULL},
    {MIN_EXPERTS, "data=2,expert=2", 1, 1, 0, 0, NULL, NULL},
    {MIN_DEEPSEEK, "expert=2,fsdp=2", 3, 1, 1, 0, NULL, NULL},
    {MIN_EXPERTS, "expert=2,tensor=2", 0, 1, 1, 0, NULL, NULL},
    {MIN_EXPERTS, "expert=2,fsdp=2,tensor=2", 3, 2, 1, 0, NULL, NULL},
    {MIN_EXPERTS, "slice=2,expert=2,sequence=2", 1, 1, 1, 0, NULL, NULL},
    {MIN_EXPERTS, "expert=2,context=2,tensor=2", 3, 1, 1, 0, NULL, NULL},
    {MIN_EXPERTS, "data=3,expert=4,sequence=2", 1, 1, 1, 0, NULL, NULL},
    {MIN_GEMMA, "tensor=4", 0, 2, 1, 0, NULL, NULL},
    {MIN_GEMMA, "fsdp=2,tensor=4", 3, 1, 1, 0, "rank=2,targets=all", NULL},
    {MIN_QWEN, "data=3,tensor=4", 1, 1, 1, 0, NULL, NULL},
    {MIN_QWEN, "slice=2,tensor=8", 0, 1, 1, 0, "rank=2,targets=k,v", NULL},
    {MIN_QWEN, "fsdp=2,context=2,tensor=4", 3, 2, 1, 0, NULL, NULL},
    {MIN_LATENT, "tensor=2", 0, 2, 1, 0, NULL, NULL},
    {MIN_LATENT, "fsdp=2,tensor=4", 3, 1, 1, 0, NULL, NULL},
    {MIN_LATENT, "sequence=2,tensor=2", 0, 1, 1, 0, NULL, NULL},
    {MIN_LATENT, "expert=2,fsdp=2,tensor=2", 3, 2, 1, 0, NULL, NULL},
    {MIN_LATENT, "fsdp=2,tensor=2", 3, 1, 1, 0, "rank=2,targets=out", NULL},
    {MIN_LATENT, "expert=4,fsdp=3", 3, 1, 1, 0, NULL, NULL},
    {MIN_DEEPSEEK, "data=2,fsdp=2", 3, 1, 1, 0, NULL, NULL},
    {MIN_LLAMA, "context=2", 0, 1, 1, 0, NULL, NULL},
    {MIN_LLAMA, "context=2,tensor=2", 0, 2, 1, 0, NULL, NULL},
    {MIN_GEMMA, "fsdp=2,context=4,tensor=2", 3, 1, 1, 0, NULL, NULL},
    {MIN_GPT, "data=2,context=2", 1, 1, 0, 0, NULL, NULL},
    {MIN_LLAMA, "context=2,sequence=2", 0, 1, 1, 0, NULL, NULL},
    {MIN_GPT, "data=2,context=2,sequence=2,tensor=2", 1, 2, 1, 0.2f, NULL, NULL},
    {MIN_GPT, "context=4", 3, 1, 1, 0.2f, "rank=2,targets=all,dropout=0.3", NULL},
    {MIN_GPT, "fsdp=2,sequence=2,tensor=2", 3, 1, 1, 0.2f, "rank=2,targets=all,dropout=0.3", NULL},
    {MIN_GEMMA, "sequence=2", 0, 1, 1, 0, "rank=2,targets=all", NULL},
    /* adapters of a part of a fused row */
    {MIN_LLAMA, "tensor=2", 0, 1, 1, 0, "rank=2,targets=gate", NULL},
    {MIN_LLAMA, "fsdp=2,tensor=4", 3, 2, 1, 0, "rank=2,targets=up", NULL},
    {MIN_ODD, "tensor=2", 0, 2, 1, 0, "rank=2,targets=up,k", NULL},
    {MIN_ODD, "sequence=2,tensor=2", 3, 1, 1, 0, "rank=2,targets=gate,q", NULL},
    {MIN_ODD, "data=2,tensor=2", 0, 1, 1, 0, "rank=2,targets=gate,up,v", NULL},
    {MIN_QWEN, "fsdp=2,tensor=4", 3, 1, 1, 0, "rank=2,targets=q,v", NULL},
    {MIN_LLAMA, "sequence=2", 0, 1, 1, 0, NULL, NULL},
    {MIN_LLAMA, "sequence=2,tensor=2", 0, 2, 1, 0, NULL, NULL},
    {MIN_GPT, "fsdp=2,sequence=2,tensor=2", 3, 1, 1, 0.2f, NULL, NULL},
    {MIN_MIXTRAL, "data=2", 0, 1, 1, 0, NULL, NULL},
    {MIN_MIXTRAL, "data=2,fsdp=2", 3, 2, 1, 0, NULL, NULL},
    {MIN_DEEPSEEK, "data=3", 1, 1, 1, 0, NULL, NULL},
    {MIN_DEEPSEEK, "slice=2,fsdp=2", 3, 2, 1, 0, NULL, NULL},
    {MIN_DEEPSEEK, "fsdp=4", 3, 1, 0, 0, "rank=2,targets=out", NULL},
    {MIN_WORDS, "tensor=8", 0, 1, 1, 0, NULL, NULL},
    {MIN_CAPPED, "context=2,tensor=2", 0, 1, 1, 0, NULL, NULL},
    {MIN_CAPPED, "data=2,tensor=4", 0, 2, 1, 0, NULL, NULL},
    {MIN_UNTIED, "tensor=4", 0, 1, 1, 0, NULL, NULL},
};

/* meshes of a generator's forward pass */
static const setting SHARD_PASSES[] = {
    {MIN_LLAMA, "tensor=2", 0, 1, 0, 0, NULL, NULL},
    {MIN_GEMMA, "tensor=2", 0, 1, 0, 0, NULL, NULL},
    {MIN_GEMMA, "tensor=4", 0, 1, 0, 0, NULL, NULL},
    {MIN_GPT, "tensor=4", 0, 1, 0, 0, NULL, NULL},
    {MIN_MIXTRAL, "tensor=2", 0, 1, 0, 0, NULL, NULL},
    {MIN_LATENT, "tensor=2", 0, 1, 0, 0, NULL, NULL},
    {MIN_LATENT, "tensor=4", 0, 1, 0, 0, NULL, NULL},
    {MIN_GEMMA, "data=2,fsdp=2,tensor=4", 3, 1, 0, 0, NULL, NULL},
    {MIN_LLAMA, "sequence=2,tensor=2", 0, 1, 0, 0, NULL, NULL},
    {MIN_LATENT, "sequence=2,tensor=2", 0, 1, 0, 0, NULL, NULL},
    {MIN_EXPERTS, "expert=4", 0, 1, 0, 0, NULL, NULL},
    {MIN_LATENT, "expert=2,sequence=2,tensor=2", 0, 1, 0, 0, NULL, NULL},
    {MIN_LLAMA, "context=2", 0, 1, 0, 0, NULL, NULL},
    {MIN_GEMMA, "context=4,tensor=4", 0, 1, 0, 0, NULL, NULL},
    {MIN_WINDOW, "data=2,context=2,tensor=2", 0, 1, 0, 0, NULL, NULL},
    {MIN_LLAMA, "context=2,sequence=2,tensor=2", 0, 1, 0, 0, NULL, NULL},
    {MIN_LATENT, "context=2,tensor=2", 0, 1, 0, 0, NULL, NULL},
    {MIN_LATENT, "expert=2,context=2", 0, 1, 0, 0, NULL, NULL},
};

#endif
