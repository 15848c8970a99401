#!/usr/bin/env bash
# ./dev prove xla, with programs that only count their runs: if the proof is stopped, the next run
# continues, and the record has each part once. Without a model, the proof fails.
set -u
tool=$PWD/tools/prove.py
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failures=0
fail() { echo "$1"; failures=1; }
program() { # program PATH: writes a script that counts its runs; stdin has its other commands
  { printf '#!/bin/sh\necho "%s" >>ran\n' "${1##*/}"; cat; } >"$1"
  chmod +x "$1"
}

mkdir -p build tests/e2e models
echo 'case_one() { :; }' >tests/e2e/test_xla.sh
program dev </dev/null
program build/rafter <<<"echo '{\"logprobs\": ['\$(printf '0,%.0s' \$(seq 300))'0]}'"
grep -o '"backend_xla_[a-z]*"\|"[a-z]*_golden"' "$tool" | sort -u | tr -d '"' >names
while read -r name; do program "build/test_$name" </dev/null; done <names
# The first run of this part kills the proof.
program build/test_generate_golden <<<'[ -e killed ] || { touch killed; kill -9 "$PPID"; }'
export RAFTER_PJRT_PLUGIN=$work/dev RAFTER_MODELS=$work/models
prove() { python3 "$tool" xla >>said 2>&1; }

touch models/small.gguf
prove && fail 'the proof was not killed'
prove || fail "the proof does not continue: $(tail -3 said)"
for part in backend_xla_ops train_golden; do
  [ "$(grep -c "test_$part" ran)" = 1 ] || fail "$part ran again"
done
[ "$(grep -c test_generate_golden ran)" = 2 ] || fail 'the killed part did not run again'
python3 - docs/proof/*-xla.json "$(wc -l <names)" <<'PY' || fail 'the record does not have each part once'
import json, sys
record, tests = json.load(open(sys.argv[1])), int(sys.argv[2])
parts = record["figures"]
print(len(parts), "parts,", record["trials"], "trials")
sys.exit(not (record["passed"] and len(parts) == record["trials"] == tests + 2 and "small.gguf" in parts))
PY

rm models/small.gguf
prove && fail 'a proof without a model passed'
grep -q 'run ./dev models' said || fail 'the error does not name ./dev models'
exit $failures
