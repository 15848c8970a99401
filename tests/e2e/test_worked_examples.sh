#!/usr/bin/env bash
# Runs the worked examples of the literature through the command line. Also checks that no answer is
# a constant, that the checker notices wrong rows, and that the table of docs/published-figures.md
# has the program's present output.
source "$(dirname "$0")/lib.sh"
ROOT=$(realpath "$HERE/../..")
export RAFTER
run() { python3 "$ROOT/tests/worked_examples" "$@"; }

cp "$ROOT/docs/published-figures.md" page.md
run "$ROOT/data/worked-examples.tsv" --perturb --write page.md >out || fail "$(tail -5 out)"
says '^[0-9]+ examples, ([0-9]+) met, 0 faults' out
diff -q "$ROOT/docs/published-figures.md" page.md >diff.txt ||
  fail 'docs/published-figures.md: renew its table with tests/worked_examples data/worked-examples.tsv --write docs/published-figures.md'

# Planted faults, one line each; each must be noticed.
planted() { # NAME PATTERN COMMAND POINTER EXPECTED TOLERANCE
  printf '%s\t%s\t%s\t%s\t%s\t%s\n' X1 "$3" "$4" "$5" "$6" 'planted' >planted.tsv
  if run planted.tsv --perturb >out; then fail "the checker accepts $1"; fi
  says "$2" out
}
planted 'a wrong value' '1\.5 % off' 'roofline critical-batch --on tpu-v5e@sb-new' /critical 236.7 1%
planted 'a wrong sign' 'expected 1 within sign' 'plan gpt2 --on a5000 --dtype f32 --compare dtype=bf16' /difference/memory/peak_bytes 1 sign
planted 'a wrong whole number' 'expected 16385 within exact' 'roofline array --shape 128,128 --dtype i8' /bytes 16385 exact
planted 'a wrong verdict' 'got true' 'roofline array --shape 128,128 --hbm 1GB' /fits false exact
planted 'a key that is not there' 'no /nothing in the answer' 'roofline array --shape 128,128' /nothing 1 1%
planted 'a command that is refused' 'm is out of range' 'roofline matmul --m 0' /flops 1 1%
planted 'an answer that nothing moves' 'no change of an input' 'roofline matmul --m 8 --k 8 --n 8 --on tpu-v5e' /op matmul exact
printf 'A1\tonly two\n' >planted.tsv
if run planted.tsv >out 2>err; then fail 'the checker accepts a line of two fields'; fi
says 'expected 5 or 6 fields' err
: >planted.tsv
if run planted.tsv >out 2>err; then fail 'the checker accepts an empty file'; fi
# Other forms of the file: comments, a header, percentages and fractions, commands with and without
# --json.
printf '# a comment\n\nid\tcommand\tpointer\texpected\trelative tolerance\tsource\nR1\troofline matmul --m 64 --k 64 --n 64 --on l4 --json\t/flops\t524288\texact\tx\nR2\troofline einsum "bd, df -> bf" b=64,d=64 f=64\t/flops\t5.2e5\t0.01\n' >rows.tsv
run rows.tsv >out || fail "$(cat out)"
finish
