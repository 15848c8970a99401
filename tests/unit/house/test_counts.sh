#!/usr/bin/env bash
# Skipped cases are counted and named: tools/test_counts.py reads logs of ctest with planted skips.
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
entry() { # entry NUMBER NAME VERDICT: the log entry of a test whose output is stdin
  printf -- '----------------------------------------------------------\n%s/9 Testing: %s\n%s/9 Test: %s\nOutput:\n-----\n' "$1" "$2" "$1" "$2"
  cat
  printf '<end of output>\nTest time =   0.00 sec\n-----\n%s\n' "$3"
}
case_of() { printf '[ RUN      ] %s\n%s[  %s ] %s\n' "$1" "$3" "$2" "$1"; }
expect() { # expect WHAT: the expected answer is stdin
  python3 tools/test_counts.py "$work/log" >"$work/got"
  diff "$work/got" - >"$work/diff" || { echo "$1:"; cat "$work/diff"; failures=1; }
}

{ case_of a '     OK' ''; case_of b 'SKIPPED' $'skip: no tiles\n'; case_of c 'SKIPPED' ''; } | entry 1 unit 'Test Passed.' >"$work/log"
printf '1 0 2\nunit: b: no tiles\nunit: c: no reason given\n' | expect 'cases of a unit test'
{ case_of a '     OK' ''; case_of b 'FAILED ' ''; } | entry 1 unit 'Test Failed.' >"$work/log"
printf '1 1 0\n' | expect 'a failed case'
case_of a '     OK' '' | entry 1 unit 'Test Failed.' >"$work/log"
printf '1 1 0\n' | expect 'a crash after the first case'
{ printf 'skip: no model\n' | entry 1 script 'Test Passed.'; printf 'skip: no browser\n' | entry 2 page 'Test Skipped.'
  printf '' | entry 3 fault 'Test Pass Reason: expected'; printf '' | entry 4 slow 'Test Timeout.'; } >"$work/log"
printf '2 1 2\nscript (a part): no model\npage: no browser\n' | expect 'scripts'
exit $failures
