#!/usr/bin/env bash
# The everyday questions of docs/examples: every command runs and prints what its page shows, except
# for numbers, and every verdict holds. tools/doc_outputs.py --write renews the pages.
. "$(dirname "$0")/lib.sh"
command -v python3 >/dev/null || { echo "skip: needs python3"; exit 77; }
RAFTER=$RAFTER python3 "$HERE/../../tools/doc_outputs.py" --shape "$HERE"/../../README.md "$HERE"/../../docs/examples/*.md >log 2>&1 || fail "$(tail -40 log)"
# The checker notices a wrong verdict, the output of another command, and a command that fails.
spoilt() { sed "$1" "$HERE/../../docs/examples/rl-step.md" >spoilt.md; RAFTER=$RAFTER python3 "$HERE/../../tools/doc_outputs.py" --shape spoilt.md >log 2>&1 &&
  fail "not noticed: $1"; }
spoilt 's/holds: not d/holds: d/'
spoilt 's/^RL step/RL stop/'
spoilt 's/run: plan gemma3-1b/run: plan gemma9-1b/'
finish
