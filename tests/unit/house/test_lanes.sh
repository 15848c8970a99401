#!/usr/bin/env bash
# Every parallel region of the CPU kernels stamps its threads' work and their waits. The check first
# has to find planted faults.
set -euo pipefail
check() { # check FILE...: prints lines that break the rule
  awk '
    FNR == 1 { wants = 0 }
    /#pragma omp parallel for/ { print FILENAME ":" FNR ": a parallel for, which has no place for a stamp" }
    /#pragma omp for/ && !/nowait/ { print FILENAME ":" FNR ": an implied barrier, which nobody stamps: nowait, and RF_STAMP_BARRIER" }
    /#pragma omp barrier/ { print FILENAME ":" FNR ": a barrier without a stamp: RF_STAMP_BARRIER" }
    wants && /RF_STAMP_BUSY/ { wants = 0 }
    wants && ++lines > 3 { print FILENAME ":" FNR ": a region that does not begin with RF_STAMP_BUSY"; wants = 0 }
    /#pragma omp parallel/ && !/parallel for/ { wants = 1; lines = 0 }
  ' "$@"
}
planted=$(mktemp -d)
trap 'rm -rf "$planted"' EXIT
printf '#pragma omp parallel\n{\n  int a;\n  int b;\n  int c;\n}\n' >"$planted/a.c"
printf '#pragma omp parallel for\nfor (;;);\n' >"$planted/b.c"
printf '#pragma omp parallel\n{\n  RF_STAMP_BUSY;\n#pragma omp for schedule(static)\n}\n' >"$planted/c.c"
printf '#pragma omp barrier\n' >"$planted/d.c"
printf '#pragma omp parallel\n{\n  RF_STAMP_BUSY;\n#pragma omp for nowait\n  RF_STAMP_BARRIER;\n}\n' >"$planted/good.c"
for fault in a b c d; do [ -n "$(check "$planted/$fault.c")" ] || { echo "the check misses planted fault $fault"; exit 1; }; done
[ -z "$(check "$planted/good.c")" ] || { echo 'the check refuses what is right'; exit 1; }
# peaks measure the machine and run no op
faults=$(check $(find src/backend/cpu -name '*.[ch]' ! -name 'peaks*'))
[ -z "$faults" ] || { echo "$faults"; exit 1; }
