#!/usr/bin/env bash
# Links in documents lead to existing files. Each how-to lists as many places to edit as it says,
# and the places exist.
set -u
check() { # check ROOT: prints each error
  python3 - "$1" <<'PY'
import os, re, subprocess, sys
root = sys.argv[1]
names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.md"], cwd=root, capture_output=True, text=True).stdout.split()
for name in names:
    path = os.path.join(root, name)
    if not os.path.isfile(path): continue
    text = re.sub(r"```.*?```", "", open(path, encoding="utf-8").read(), flags=re.S)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        target = link.split("#")[0]
        if target and "://" not in link and not os.path.exists(os.path.join(os.path.dirname(path), target)):
            print(f"{name}: {link} does not exist")
    said = re.search(r"^\*\*Places: (\d+)\*\*$", text, re.M)
    if not said: continue
    places = re.findall(r"^\d+\. `([^`]+)`", text[said.end():], re.M)
    if len(places) != int(said[1]): print(f"{name}: says {said[1]} places, lists {len(places)}")
    for place in places:
        if not os.path.exists(os.path.join(root, place)): print(f"{name}: {place} does not exist")
PY
}
faults=$(check .)
[ -z "$faults" ] || { echo "$faults"; exit 1; }
[ "$(grep -l '^\*\*Places: ' docs/adding-*.md | wc -l)" -ge 6 ] || { echo 'a how-to lost its count of places'; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git -C "$work" init -q
touch "$work/here.c"
printf '%s\n' '[a](here.c) [b](https://nowhere.example) [c](gone.md)' '' '**Places: 2**' '' '1. `here.c`: x' \
  '2. `gone.c`: y' '3. `here.c`: z' >"$work/a.md"
diff <(check "$work") - <<'E2' || { echo 'planted faults are not seen'; exit 1; }
a.md: gone.md does not exist
a.md: says 2 places, lists 3
a.md: gone.c does not exist
E2
