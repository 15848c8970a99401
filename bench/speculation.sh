#!/usr/bin/env bash
# Rates with and without drafts, in turns: bench/speculation.sh MODEL PROMPT_FILE [OPTION...]
# Example: bench/speculation.sh model.gguf src/generate/draft.c --temperature 0
# DRAFTS names the drafts (default ngram), TURNS the repetitions (default 5).
set -euo pipefail
model=$1 prompt=$(head -c 1500 "$2")
shift 2
rafter=${RAFTER:-build/rafter}
for ((turn = 1; turn <= ${TURNS:-5}; turn++)); do
  for drafts in none "${DRAFTS:-ngram}"; do
    echo "$drafts: $("$rafter" generate "$model" --prompt "$prompt" --max-tokens 200 --ignore-eos \
      --seed "$turn" --speculate "$drafts" "$@" 2>&1 >/dev/null | tail -1)"
  done
done
