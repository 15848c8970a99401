#!/usr/bin/env bash
# The row of an op has everything that the project knows about the op. Outside src/graph/ops no code
# lists op names or compares them, except the rows of kernels, which name their op. A pointwise op
# needs four places: its file, its entry of list.h, its reference loop, and its CPU kernel (body and
# row).
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
# Single words such as "embed" are also options, paths and kinds. Names of two words are only ops.
names=$(sed -n 's/, *\([a-z]*_[a-z_]*\))/\n&\n/gp' src/graph/ops/list.h |
  sed -n 's/^, *\([a-z_]*\))$/\1/p' | paste -sd'|')
[ "$(tr '|' '\n' <<<"$names" | wc -l)" -gt 40 ] || { echo "list.h was not read"; exit 1; }

compared='(strn?cmp|strstr|fnmatch)\([^;]*def->name'
row='^src/backend/.*(\{|\{.op = |RF_KERNEL\()"'
lookup='^src/backend/backend.c:.*strcmp\(kernel->op, op->def->name\)'
named() { # named ROOT: prints lines that compare an op's name or contain one as a string
  (cd "$1" && grep -rnE "$compared|\"($names)\"" src --include=*.c --include=*.h |
    grep -vE "^src/graph/ops/|$row|$lookup")
}
# places ROOT OP: the places in code that name a pointwise op, with the CPU's body and row as one
# place
places() {
  local words="$2\|${2^^}\|RF_OP_${2^^}\|rf_reference_$2\|$2_run\|$2_rows"
  local code="RF_OP_${2^^} =|X\(${2^^}, $2\)|rf_reference_$2\(|RF_ROW\($2,|\b$2_(rows|run)\("
  (cd "$1" && grep -rlw "$words" src --include=*.c --include=*.h |
    while read -r file; do
      sed 's#/\*.*\*/##' "$file" | grep -qE "$code|def->name.*\"$2\"" && echo "$file"
    done | sed -E 's/_(body|table)\.h/.h/' | sort -u)
}

named . && { echo "op names outside src/graph/ops"; failures=1; }
for op in rope gelu; do
  got=$(places . $op)
  [ "$(wc -l <<<"$got")" -le 4 ] || { echo "$op is in more than 4 places:" "$got"; failures=1; }
done

mkdir -p "$work/src/plan" "$work/src/graph/ops" "$work/src/backend"
plant() { # plant LINES: expects this number of findings in the file on stdin
  cat >"$work/src/plan/a.c"
  [ "$(named "$work" | wc -l)" = "$1" ] || { echo "planted $1, seen:"; named "$work"; failures=1; }
}
compares='bool a(const rf_op *op) { return !strcmp(op->def->name, "rope"); }'
plant 1 <<<"$compares"
plant 1 <<<'static const char *const names[] = {"matmul_dx"};'
plant 0 <<<'const char *a(const rf_op *op) { return op->def->name; }'
printf 'const char *name = "matmul_dx";\n' >"$work/src/graph/ops/b.c"
plant 0 <<<'int a;'
for file in plan/a.c backend/b.c backend/c.c graph/ops/d.c graph/e.c; do
  echo "$compares" >"$work/src/$file"
done
[ "$(places "$work" rope | wc -l)" = 5 ] || { echo "planted 5 places:"; places "$work" rope; failures=1; }
exit $failures
