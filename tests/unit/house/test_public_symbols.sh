#!/usr/bin/env bash
# librafter.so exports every function that include/rafter.h declares, and nothing else.
set -euo pipefail
declared=$(mktemp) exported=$(mktemp)
trap 'rm -f "$declared" "$exported"' EXIT
sed -e 's,/\*.*\*/,,' -e 's,^ \*.*,,' include/rafter.h | grep -vE '^ *(/?\*|typedef|struct|#)' | grep -oE '\brafter_[a-z_]+\(' | tr -d '(' | sort -u >"$declared"
nm -D --defined-only "$BUILD/librafter.so" | awk '$2 == "T" || $2 == "D" || $2 == "B" || $2 == "R" {print $3}' | sort -u >"$exported"
[ "$(wc -l <"$declared")" -ge 20 ] || { echo "found only $(wc -l <"$declared") functions in include/rafter.h: the test is wrong"; exit 1; }
diff -u --label 'declared in include/rafter.h' "$declared" --label 'exported by librafter.so' "$exported"
