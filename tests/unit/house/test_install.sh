#!/usr/bin/env bash
# What `cmake --install` puts down is whole: a stranger's program builds against it by pkg-config alone and runs; man page and completion are there.
set -euo pipefail
there=$(mktemp -d)
trap 'rm -rf "$there"' EXIT
cmake --install "$BUILD" --prefix "$there/usr" >"$there/log" || { cat "$there/log"; exit 1; }
export PKG_CONFIG_PATH; PKG_CONFIG_PATH=$(dirname "$(find "$there" -name rafter.pc)")
"$there/usr/bin/rafter" --version | grep -qE '^rafter [0-9]+\.[0-9]+\.[0-9]+ \(commit ' || { echo 'no version'; exit 1; }
[ "$(pkg-config --modversion rafter)" = "$("$there/usr/bin/rafter" --version | cut -d' ' -f2)" ] || { echo 'pkg-config and the program name different versions'; exit 1; }
page=$there/usr/share/man/man1/rafter.1 completion=$there/usr/share/bash-completion/completions/rafter
for command in plan train generate calibrate bench roofline inspect tokenize doctor pull eval chat; do
  grep -q "$command" "$page" || { echo "the man page does not know $command"; exit 1; }
  grep -q "$command" "$completion" || { echo "the completion does not know $command"; exit 1; }
done
bash -n "$completion"
# The first C block of docs/c-api.md is the example: it is compiled against what was installed, and run.
awk '/^```c$/ {on = 1; next} /^```$/ {if (on) exit} on' docs/c-api.md >"$there/example.c"
[ -s "$there/example.c" ] || { echo 'docs/c-api.md has no C example'; exit 1; }
read -ra flags <<<"$(pkg-config --cflags --libs rafter)"
library=$(dirname "$(find "$there" -name librafter.so)")
gcc -std=c17 -Wall -Wextra -Werror -o "$there/example" "$there/example.c" "${flags[@]}"
LD_LIBRARY_PATH=$library "$there/example" >"$there/shared.txt"
rm -f "$library"/librafter.so*
gcc -std=c17 -Wall -Wextra -Werror -o "$there/example" "$there/example.c" "${flags[@]}"
"$there/example" >"$there/static.txt"
[ -s "$there/static.txt" ] || { echo 'the example printed nothing'; exit 1; }
