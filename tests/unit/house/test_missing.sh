#!/usr/bin/env bash
# On a system without pseudo-terminals, without a name for localhost, or without a loopback
# interface, the tests that need them say so and count as skipped.
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

# without HIDE COMMAND: runs the command with mounts of its own, which the shell command HIDE changes.
without() { # its output is in $work/said
  unshare "${AS[@]}" --mount ${3:-} bash -c "$1 && exec $2" >"$work/said" 2>&1
}
expect() { # expect STATUS PATTERN WHAT, after `without`
  local got=$?
  if [ "$got" != "$1" ] || ! grep -qE "$2" "$work/said"; then
    echo "$3: exit status $got (expected $1), expected a line /$2/:"
    tail -3 "$work/said"
    failures=1
  fi
}

AS=()
[ "$(id -u)" = 0 ] || AS=(--map-root-user)
if ! unshare "${AS[@]}" --mount true 2>"$work/refused"; then
  echo "skip: hiding terminals and localhost needs mounts of its own ($(tail -1 "$work/refused"))"
  exit 77
fi
without 'mount -t tmpfs none /dev/pts' 'bash tests/e2e/test_load.sh'
expect 0 '^skip: the progress bar needs a pseudo-terminal, .*; mount devpts on /dev/pts$' 'no terminals'
browser() { /usr/bin/python3 -c 'import selenium' && command -v chromium && command -v chromedriver; }
if ! browser >"$work/found" 2>&1; then
  echo 'skip: browser tests without chromium never look for localhost; ./dev setup all installs it'
  exit $failures
fi
without 'mount --bind /dev/null /etc/hosts' '/usr/bin/python3 tests/browser/test_page.py'
expect 77 "^skip: the name localhost has no address .*; add the line .* to /etc/hosts\$" 'no name'
without true '/usr/bin/python3 tests/browser/test_page.py' --net
expect 77 '^skip: no program can connect to localhost .*; bring up the loopback' 'no loopback'
exit $failures
