#!/usr/bin/env bash
# bench/peers/environment.sh [torch] [jax] [llama] [hf]: installs the peers' released packages from
# PyPI into a private environment. Without names it installs all. RAFTER_PEERS sets the folder
# (~/.cache/rafter-peers, about 8 GB, because PyTorch's package for Linux includes CUDA's
# libraries). Installed packages stay.
set -uo pipefail
there=${RAFTER_PEERS:-$HOME/.cache/rafter-peers}

# llama.cpp is built from source with its default flags for this CPU. gcc 12 omits stores of tile
# configurations in its AMX code, which then crashes.
command -v clang++-14 >/dev/null && export CC=clang-14 CXX=clang++-14
# NAME|Python module|packages
peers=(
  "torch|torch|torch numpy"
  "jax|jax, optax|jax optax"
  "llama|llama_cpp|--no-binary=llama-cpp-python llama-cpp-python"
  "hf|transformers, peft|torch transformers peft"
)
mkdir -p "$there"
[ -x "$there/bin/python3" ] || python3 -m venv "$there" || { echo "peers: no private Python: install python3-venv" >&2; exit 1; }
failed=0
for row in "${peers[@]}"; do
  IFS='|' read -r name modules packages <<<"$row"
  [ $# = 0 ] || [[ " $* " == *" $name "* ]] || continue
  "$there/bin/python3" -c "import $modules" 2>"$there/$name.log" && continue
  echo "peers: installing $name" >&2
  read -ra words <<<"$packages"
  nice -n 19 "$there/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir "${words[@]}" >"$there/$name.log" 2>&1 && "$there/bin/python3" -c "import $modules" 2>>"$there/$name.log" ||
    { echo "peers: $name could not be installed: $(tail -1 "$there/$name.log")" >&2; failed=1; }
done
exit $failed
