# Shared by the tests that run the program: a scratch folder, one line per failed expectation,
# helpers.
# RAFTER names the program. A test ends with `finish`, or with `cases "$@"` if ctest lists its
# cases.
# shellcheck shell=bash
set -u
exec 3>&1
export LC_ALL=C OMP_WAIT_POLICY=passive
RAFTER=$(realpath "${RAFTER:-build/rafter}")
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
TEST=$(realpath "$0")
DATA=$(realpath "$HERE/../data")
[ -x "$RAFTER" ] || { echo "RAFTER names no program: $RAFTER"; exit 1; }
WORK=$(mktemp -d)
# hides the user's calibration
export HOME=$WORK/home XDG_CACHE_HOME=$WORK/home/.cache XDG_CONFIG_HOME=$WORK/home/.config
mkdir -p "$HOME"
trap 'rm -rf "$WORK"' EXIT
cd "$WORK" || exit 1
unset RAFTER_RUNS
failures=0

TINY=gpt:layers=2,width=32,heads=2,ff=64,vocab=256,seq=32
QUICK=(--threads 2 --batch 4)

# data_file NAME: prints the path of a file or folder of tests/data/files.tar.xz, otherwise of
# RAFTER_TEST_DATA. If neither has it, prints a line that counts as skipped and returns 1.
SHARED=${RAFTER_TEST_DATA:-$HERE/../../../shared/data}
TEST_FILES=${TEST_FILES:-$HERE/../../build/test-files}
data_file() {
  local folder
  for folder in "$TEST_FILES" "$SHARED"; do [ ! -e "$folder/$1" ] || { realpath "$folder/$1"; return; }; done
  echo "skip: $1 is missing (RAFTER_TEST_DATA)" >&3
  return 1
}

# terminals WHAT: succeeds if this system can open a pseudo-terminal. Otherwise prints a line that
# counts as skipped.
terminals() {
  python3 -c 'import os; os.openpty()' 2>openpty && return
  echo "skip: $1 needs a pseudo-terminal, and none can be opened ($(tail -1 openpty));" \
    'mount devpts on /dev/pts' >&3
  return 1
}

fail() { echo "FAIL: $*"; failures=$((failures + 1)); }
# cases [NAME]: runs the functions case_NAME of a test file (all, or the one that ctest names) and
# finishes. A function `setup` makes the files that the cases share. It runs once per program and
# test file. Each case gets a copy of these files, so cases do not depend on each other.
cases() {
  local name all
  all=$(grep -oP '^case_\K\w+(?=\(\) \{)' "$TEST")
  [ $# = 0 ] || grep -qx "$1" <<<"$all" || { echo "$TEST has no case $1; it has: ${all//$'\n'/ }"; exit 1; }
  if declare -F setup >/dev/null; then
    local kept key
    kept=$(dirname "$RAFTER")/e2e/$(basename "$TEST" .sh)
    key=$(md5sum "$TEST" "$HERE/lib.sh"; stat -c '%s %Y' "$RAFTER")
    mkdir -p "$(dirname "$kept")"
    exec 9>"$kept.lock"
    flock 9
    if [ "$(cat "$kept.key" 2>&1)" != "$key" ]; then
      rm -rf "$kept" "$kept.key"
      mkdir "$kept"
      cd "$kept" || exit 1
      setup
      finish
      echo "$key" >"$kept.key"
      cd "$WORK" || exit 1
    fi
    flock -u 9
    exec 9>&-
    cp -r "$kept/." .
  fi
  for name in ${1:-$all}; do "case_$name"; done
  finish
}

finish() { [ "$failures" = 0 ] || { echo "$failures expectations failed"; exit 1; }; }

# status N COMMAND...: runs the command, stores stdout and stderr in the files out and err, and
# expects exit status N.
status() {
  local expected=$1 got=0
  shift
  "$@" >out 2>err || got=$?
  [ "$got" = "$expected" ] || { fail "\`${*/#$RAFTER/rafter}\` exits $got, not $expected: $(head -c 300 err | tr '\n' '|')"; return 1; }
}

# says PATTERN [FILE]: expects FILE (err) to match an extended regular expression.
says() { grep -qE -- "$1" "${2:-err}" || fail "${2:-err} does not say /$1/: $(head -c 400 "${2:-err}" | tr '\n' '|')"; }
# refuses N PATTERN COMMAND...: expects exit status N, one error of at most three lines that matches
# PATTERN, and nothing on stdout except requested output.
refuses() {
  local code=$1 pattern=$2
  shift 2
  status "$code" "$@" || return 1
  says "$pattern"
  [ "$(grep -c '^rafter: ' err)" = 1 ] || fail "\`${*/#$RAFTER/rafter}\` prints $(grep -c '^rafter: ' err) error lines, not 1"
  ! grep -qiE 'sanitizer|segmentation|assert' err || fail "\`${*/#$RAFTER/rafter}\` crashed: $(head -c 300 err)"
}
# ask FILE EXPRESSION: prints a Python expression over d, the file's JSON object (or over `rows`,
# its lines of JSON).
ask() {
  local kind text folder=$WORK.ask
  if [ ! -p "$folder/answers" ]; then
    mkdir "$folder" && mkfifo "$folder/questions" "$folder/answers"
    ASK_FOLDER=$folder ASK_SHELL=$$ setsid python3 "$HERE/ask.py" </dev/null >/dev/null 2>&1 3>&- 9>&- &
  fi
  printf '%s\0' "$PWD" "$1" "$2" >"$folder/questions"
  { IFS= read -r -d '' kind && IFS= read -r -d '' text; } <"$folder/answers"
  if [ "$kind" = value ]; then printf '%s\n' "$text"; else printf '%s\n' "$text" >&2; return 1; fi
}
# holds FILE EXPRESSION [WHAT]: expects the expression over the file's JSON to be true.
holds() {
  local answer
  answer=$(ask "$1" "$2" 2>&1)
  [ "$answer" = True ] || fail "${3:-$1: $2} (got: $(echo "$answer" | tail -1))"
}
# losses RUN: prints step, loss, gradient norm and learning rate of each step, without values that
# depend on the clock.
losses() {
  python3 - "$1/metrics.jsonl" <<'PY'
import json, sys
for line in open(sys.argv[1]):
    d = json.loads(line)
    if "step" in d: print(d["step"], d["loss"], d["grad_norm"], d["lr"], d["accuracy"], d["tokens"], d.get("val_loss", ""))
PY
}
# same A B WHAT: expects two files to be equal byte for byte.
same() { cmp -s "$1" "$2" || fail "$3: $(diff <(head -c 3000 "$1") <(head -c 3000 "$2") | head -5 | tr '\n' '|')"; }
# text FILE BYTES: writes words that are the same in every run.
text() { python3 -c '
import random, sys
r = random.Random(1); words = "the of and to in that he shall unto for I his a they be is with not all thou them".split()
out = ""
while len(out) < int(sys.argv[2]): out += r.choice(words) + (". " if r.random() < .1 else " ")
open(sys.argv[1], "w").write(out[:int(sys.argv[2])])' "$1" "$2"; }
