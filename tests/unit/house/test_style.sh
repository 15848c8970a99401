#!/usr/bin/env bash
# The counts of the house style do not rise (tools/house.py), and each check finds a planted fault.
set -u
python3 tools/house.py || exit 1

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
git -C "$work" init -q
mkdir -p "$work/src/room" "$work/docs" "$work/tests/unit/house"
# plant WHAT COUNT FILE: the file is stdin; expects exactly COUNT occurrences of WHAT and no other
# finding
plant() {
  local got
  cat >"$work/$3"
  python3 tools/house.py --root "$work" --write
  got=$(python3 - "$work/tests/unit/house/counts.json" <<'PY'
import json, sys
d = json.load(open(sys.argv[1]))
print("; ".join(f"{k} {sum(v.values())}" for k, v in sorted(d.items()) if k != "lines"))
PY
)
  [ "$got" = "${2:+$1 $2}" ] || { echo "planted: ${2:+$1 $2}; seen: $got ($3)"; failures=1; }
  rm "$work/$3"
}
lines() { for ((i = 0; i < $1; i++)); do echo "  x = $i;"; done; }
wide() { printf "%${1}s" '' | tr ' ' x; }

plant 'long functions' 1 src/room/a.c < <({ echo 'void f(int a) {'; lines 74; echo '}'; })
plant '' '' src/room/a.c < <({ echo 'void f(int a) {'; lines 73; echo '}'; })
plant 'many parameters' 1 src/room/a.c < <(printf 'void f(int a, int b, int c, int d,\n       int e, int g, int h, int i, int j) {\n}\n')
plant '' '' src/room/a.c < <(printf 'void f(int a, int b, int c, int d, int e, int g, int h, int (*i)(int, int)) {\n}\n')
plant 'comma chains' 2 src/room/a.c < <(printf 'void f(int a) {\n  int b = 1, c = 2;\n  if (a) b = 1, c = 2;\n  b = g(a, c);\n  for (b = 1, c = 2; b < 3; b++, c++) h(b, c);\n  x->y[1] = 2, x->z = 3;\n}\n')
plant 'columns' 1 src/room/a.c < <(printf 'int a; // %s\n' "$(wide 101)")
plant 'columns' 1 src/room/a.c < <(printf '// %s\n' "$(wide 98)")
plant '' '' src/room/a.c < <(printf '// %s\nint a; // %s\n' "$(wide 97)" "$(wide 90)")
plant 'columns' 1 docs/a.md < <(printf '%s\n| %s |\n' "$(wide 101)" "$(wide 120)")
plant 'banned' 3 src/room/a.c < <(printf '// Stored where it stands.\n// Of rows: the first.\nconst char *s = "there is no token";\n')
plant '' '' src/room/a.c < <(printf '// It is no longer used, of course.\nconst char *s = "beside"; int behind;\n')
plant 'banned' 1 docs/a.md < <(printf 'The one beside it.\n```sh\n$ behind\n```\nIs `behind` it?\n')

# A count that rises is refused with the line; a count that falls is accepted.
printf '// First.\n' >"$work/src/room/a.c"
python3 tools/house.py --root "$work" --write
git -C "$work" add -A && git -C "$work" -c user.name=t -c user.email=t@localhost commit -qm counts
printf '// First.\n// The second is behind it.\n' >"$work/src/room/a.c"
python3 tools/house.py --root "$work" >"$work/out" &&
  { echo 'a count that rises is not refused'; failures=1; }
grep -q 'src/room/a.c:2: behind' "$work/out" || { echo "the line is not named: $(cat "$work/out")"; failures=1; }
python3 tools/house.py --root "$work" --write && printf '// First.\n' >"$work/src/room/a.c"
python3 tools/house.py --root "$work" || { echo 'a count that falls is refused'; failures=1; }
exit $failures
