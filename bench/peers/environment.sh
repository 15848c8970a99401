#!/usr/bin/env bash
# bench/peers/environment.sh [NAME ...]: installs the peers' released packages from PyPI into a
# private environment. NAME is torch, jax, llama or hf (without names: these four), or one of the
# peers of rows_avx2.json: ov, ct2, ort (OpenVINO, CTranslate2, ONNX Runtime GenAI) and llama-avx2
# (the installed llama.cpp, built again without instructions beyond AVX2; about 20 minutes of one
# core). A CPU without AVX-512 and AVX-VNNI does not need llama-avx2, so it is not built there.
# RAFTER_PEERS sets the folder (~/.cache/rafter-peers, about 10 GB, because PyTorch's package for
# Linux includes CUDA's libraries). Installed packages stay.
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
  "ov|openvino_genai, nncf, optimum.intel|torch openvino-genai openvino-tokenizers nncf optimum-intel"
  "ct2|ctranslate2|torch transformers ctranslate2"
  "ort|onnxruntime_genai, onnx_ir|torch transformers onnxruntime-genai onnx onnx_ir"
)
usual=" torch jax llama hf "
mkdir -p "$there"
[ -x "$there/bin/python3" ] || python3 -m venv "$there" || { echo "peers: no private Python: install python3-venv" >&2; exit 1; }
failed=0
for row in "${peers[@]}"; do
  IFS='|' read -r name modules packages <<<"$row"
  [[ " ${*:-$usual} " == *" $name "* ]] || continue
  "$there/bin/python3" -c "import $modules" 2>"$there/$name.log" && continue
  echo "peers: installing $name" >&2
  read -ra words <<<"$packages"
  nice -n 19 "$there/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir "${words[@]}" >"$there/$name.log" 2>&1 && "$there/bin/python3" -c "import $modules" 2>>"$there/$name.log" ||
    { echo "peers: $name could not be installed: $(tail -1 "$there/$name.log")" >&2; failed=1; }
done

# The builder of ONNX Runtime GenAI's models needs a newer transformers than OpenVINO's exporter.
if [[ " $* " == *" ort "* ]] && [ ! -d "$there/ort-builder/transformers" ]; then
  nice -n 19 "$there/bin/pip" install --quiet --no-cache-dir --target "$there/ort-builder" 'transformers>=5' \
    >"$there/ort.log" 2>&1 || { echo "peers: transformers for ort: $(tail -1 "$there/ort.log")" >&2; failed=1; }
fi

# llama.cpp for AVX2: the source of the installed version, in a folder of libraries that
# LLAMA_CPP_LIB_PATH names.
build_llama_avx2() {
  local work version place="$there/llama-avx2"
  version=$("$there/bin/python3" -c 'import llama_cpp; print(llama_cpp.__version__)') || return
  work=$(mktemp -d "$there/build.XXXXXX") && cd "$work" || return
  "$there/bin/pip" download --quiet --no-deps --no-binary=llama-cpp-python "llama-cpp-python==$version" &&
    tar xzf llama_cpp_python-*.tar.gz &&
    cmake -S llama_cpp_python-*/vendor/llama.cpp -B build -DCMAKE_BUILD_TYPE=Release \
      -DBUILD_SHARED_LIBS=ON -DGGML_NATIVE=OFF -DGGML_AVX512=OFF \
      -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON \
      -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_TOOLS=OFF \
      -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_COMMON=OFF -DLLAMA_OPENSSL=OFF \
      -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON '-DCMAKE_INSTALL_RPATH=$ORIGIN' &&
    nice -n 19 cmake --build build --target llama --parallel "$(nproc)" &&
    mkdir -p "$place.part" && cp -P build/bin/lib*.so* "$place.part/" && mv "$place.part" "$place"
}
wider_than_avx2() { grep -qw 'avx512f\|avx_vnni' /proc/cpuinfo; }
if [[ " $* " == *" llama-avx2 "* ]] && [ ! -d "$there/llama-avx2" ] && wider_than_avx2; then
  echo "peers: building llama.cpp for AVX2" >&2
  (build_llama_avx2) >"$there/llama-avx2.log" 2>&1 ||
    { echo "peers: llama.cpp for AVX2 could not be built: $there/llama-avx2.log" >&2; failed=1; }
  rm -rf "$there"/build.*
fi
exit $failed
