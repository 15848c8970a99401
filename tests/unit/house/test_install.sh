#!/usr/bin/env bash
# The files of `cmake --install` are complete: a program builds against them with pkg-config alone
# and runs, and the man page and the completion exist.
set -euo pipefail
there=$(mktemp -d)
trap 'rm -rf "$there"' EXIT
cmake --install "$BUILD" --prefix "$there/usr" >"$there/log" || { cat "$there/log"; exit 1; }
export PKG_CONFIG_PATH; PKG_CONFIG_PATH=$(dirname "$(find "$there" -name rafter.pc)")
"$there/usr/bin/rafter" --version | grep -qE '^rafter [0-9]+\.[0-9]+\.[0-9]+ \(commit ' ||
  { echo 'no version'; exit 1; }
[ "$(pkg-config --modversion rafter)" = "$("$there/usr/bin/rafter" --version | cut -d' ' -f2)" ] || { echo 'pkg-config and the program name different versions'; exit 1; }
[ -x "$there/usr/libexec/rafter-pjrt" ] || { echo 'libexec/rafter-pjrt is missing'; exit 1; }
share=$there/usr/share
page=$share/man/man1/rafter.1
completions=("$share/bash-completion/completions/rafter" "$share/zsh/site-functions/_rafter"
  "$share/fish/vendor_completions.d/rafter.fish")
for command in plan train generate calibrate bench roofline inspect tokenize models machines doctor pull \
  eval chat serve rollout; do
  grep -q "$command" "$page" || { echo "the man page does not know $command"; exit 1; }
  for completion in "${completions[@]}"; do
    grep -q "$command" "$completion" || { echo "$completion does not know $command"; exit 1; }
  done
done
bash -n "${completions[0]}"
# Every C block of docs/c-api.md and public_api.c are compiled against the installed files and run,
# first with the shared library, then with the static one.
awk -v to="$there/example" '/^```c$/ {on = 1; n++; next} /^```$/ {on = 0} on {print >(to n ".c")}' \
  docs/c-api.md
[ -s "$there/example2.c" ] || { echo 'docs/c-api.md has fewer than two C examples'; exit 1; }
cp tests/unit/house/public_api.c "$there"
library=$(dirname "$(find "$there" -name librafter.so)")
run_all() { # run_all shared|static FLAGS: FLAGS are the options that pkg-config needs
  local -a flags; local program
  read -ra flags <<<"$(pkg-config --cflags --libs "${@:2}" rafter)"
  for program in "$there"/*.c; do
    program=${program%.c}
    gcc -std=c17 -Wall -Wextra -Werror -o "$program" "$program.c" "${flags[@]}" -lm
    LD_LIBRARY_PATH=$library "$program" >"$program.$1"
    [ -s "$program.$1" ] || { echo "$(basename "$program") printed nothing"; exit 1; }
  done
}
cd "$there"
run_all shared
awk '/^```python$/ {on = 1; next} /^```$/ {on = 0} on' "$OLDPWD/docs/c-api.md" >snippet.py
LD_LIBRARY_PATH=$library python3 snippet.py | grep -qx '[0-9]* bytes' ||
  { echo 'the Python snippet failed'; exit 1; }
rm -f "$library"/librafter.so*
run_all static --static
[ ! -e runs ] || { echo 'a library call wrote a folder runs that nobody asked for'; exit 1; }
