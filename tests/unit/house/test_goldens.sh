#!/usr/bin/env bash
# The committed goldens are the bytes their list says: an edited or half-fetched golden is not a truth to test against.
set -euo pipefail
cd tests/data/goldens
sha256sum --quiet --strict -c SHA256SUMS
listed=$(wc -l <SHA256SUMS) there=$(find . -type f ! -name SHA256SUMS ! -name README.md | wc -l)
[ "$listed" = "$there" ] || { echo "$there files, $listed of them listed in SHA256SUMS"; exit 1; }
