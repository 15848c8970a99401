#!/usr/bin/env bash
# The committed goldens have the bytes of their list, so that tests do not use an edited or
# incomplete golden.
set -euo pipefail
cd tests/data/goldens
sha256sum --quiet --strict -c SHA256SUMS
listed=$(wc -l <SHA256SUMS) there=$(find . -type f ! -name SHA256SUMS ! -name README.md | wc -l)
[ "$listed" = "$there" ] || { echo "$there files, $listed of them listed in SHA256SUMS"; exit 1; }
