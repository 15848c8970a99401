#!/usr/bin/env bash
# The lengths at which another mesh becomes the faster one, on 64 chips of Ironwood: FSDP alone
# against FSDP with TP, and CP against TP. Times come from the data sheet, so they are the same
# everywhere. They agree with the formulas of `roofline parallelism`.
. "$(dirname "$0")/lib.sh"

# winners MODEL BATCH A B SEQ...: for every length, the mesh with the shorter step, as a word of a's
# and b's.
winners() {
  local model=$1 batch=$2 a=$3 b=$4 seq
  shift 4
  for seq; do
    status 0 "$RAFTER" plan "$model" --on tpu-v7x:4x4x4 --dtype bf16 --remat block --seq "$seq" --batch "$batch" --compare "mesh=$a" "mesh=$b" --json &&
      python3 -c 'import json; print("b" if json.load(open("out"))["difference"]["seconds"] < 0 else "a", end="")'
  done
}

# One sequence per chip. With few tokens, gathering the weights costs more than exchanging
# activations between halves of products. With many tokens, the arithmetic hides the gathers.
[ "$(winners llama3-70b 64 fsdp=64 fsdp=32,tensor=2 256 1024 2048 8192)" = bbaa ] ||
  fail "the faster of FSDP and TP for Llama 3 70B does not change once, between 1024 and 2048 tokens per chip"
# The formula gives the tokens that FSDP needs to be compute-bound over all axes. Far below this
# number FSDP loses; from this number on it wins.
status 0 "$RAFTER" roofline parallelism --strategy fsdp --axes 3 --on tpu-v7x --model llama3-70b --json &&
  holds out '2048 < d["critical"] < 8192' 'the plan is compute-bound at 8192 tokens per chip, and FSDP is faster at fewer tokens'
# With a larger batch of the same length, FSDP wins from fewer tokens per sequence: 512 tokens times
# four are 2048.
[ "$(winners llama3-70b 256 fsdp=64 fsdp=32,tensor=2 256 512)" = ba ] || fail "the tokens per chip should decide, not the sequences"

# Sixteen sequences on four ways of CP or TP. The keys and values of a layer have fewer bytes than
# the activations, but with CP each chip gathers whole weights.
[ "$(winners gemma3-12b 16 fsdp=16,tensor=4 fsdp=16,context=4 1024 4096 16384 131072)" = aabb ] ||
  fail "the faster of CP and TP for Gemma 3 12B does not change once, between 4096 and 16384 tokens"
status 0 "$RAFTER" roofline parallelism --strategy cp --on tpu-v7x --model gemma3-12b --seq 131072 --degree 4 --json &&
  holds out 'd["bound"] == "compute"' 'CP of 128k tokens'
status 0 "$RAFTER" roofline parallelism --strategy cp --on tpu-v7x --model gemma3-12b --seq 4096 --degree 4 --json &&
  holds out 'd["bound"] == "network"' 'CP of 4k tokens'
finish
