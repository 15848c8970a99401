#!/usr/bin/env bash
# Ranks of MPI: `calibrate --network`, plans on its file, and the waits that a run reports. No time
# is compared.
. "$(dirname "$0")/lib.sh"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 RAFTER_MPI_SECONDS=200
export XDG_CACHE_HOME=$PWD/cache
MODEL=gpt:layers=1,width=64,heads=2,ff=128,vocab=128,seq=32

# ranks LIBRARY N: sets RUN to the launcher of N ranks, or returns 1 if it is not installed.
ranks() {
  local program
  program=$(command -v "mpirun.$1") && ls "$(dirname "$RAFTER")/rafter-mpi-$1.so" >/dev/null 2>&1 || return 1
  RUN=("$program" -n "$2")
  [ "$1" = mpich ] || RUN+=(--oversubscribe --bind-to none)
}

status 2 "$RAFTER" calibrate --network && says 'several ranks of MPI' err
status 0 "$RAFTER" plan "$MODEL" --backend cpu --mesh data=2 --json &&
  holds out 'any("is a guess from the memory" in a for a in d["assumptions"])' 'the network is a guess' &&
  holds out 'd["time"]["confidence"] == "low"' 'a guess has a low confidence'

library=
for name in openmpi mpich; do ranks "$name" 2 && library=${library:-$name}; done
[ -n "$library" ] || { echo 'skip: no MPI library is installed' >&3; finish; exit; }
ranks "$library" 2

status 2 "${RUN[@]}" "$RAFTER" calibrate --quick && says 'a launcher started several' err
status 0 "${RUN[@]}" "$RAFTER" calibrate --network --quick --json && {
  [ "$(grep -c '^{' out)" = 1 ] || fail 'one rank speaks for all'
  file=$(echo cache/rafter/*.2-ranks.json)
  [ -f "$file" ] || fail 'the file has no name of its own'
  # Other programs may have slowed these measurements. The checks below do not depend on this.
  python3 -c 'import json, sys
d = json.load(open(sys.argv[1])) | {"others_part": 0}
json.dump(d, open(sys.argv[1], "w"))' "$file"
  holds "$file" 'd["chips"] == 2 and d["shape"] in ("2", "1x2")' 'two ranks on one node'
  holds "$file" 'd["topology"]["oneway_bps"] > 0' 'the bandwidth between them'
  holds "$file" 'len({c["kind"] for c in d["collectives"]}) == 5' 'all kinds'
  holds "$file" '{c["dtype"] for c in d["collectives"] if c["kind"] == "all_reduce"} == {"f32", "bf16"}' \
    'sums of both dtypes'
  holds "$file" 'all(c["inside"] == 2 and c["nodes"] == 1 for c in d["collectives"])' 'one group of two'
  holds "$file" 'all(len(c["points"]) > 2 for c in d["collectives"])' 'several sizes'
  holds "$file" 'all(0 < p["core_seconds"] for c in d["collectives"] for p in c["points"]
    if c["kind"] in ("all_gather", "reduce_scatter", "all_reduce"))' 'what exchanges take from the cores'
  holds "$file" 'len(d["curves"]) > 40' 'the ops of a rank'
  # The plan takes the times of this file: with collectives that are a thousand times slower, the
  # step has more network time.
  status 0 "$RAFTER" plan "$MODEL" --backend cpu --mesh data=2 --json && cp out measured &&
    holds out 'd["time"]["confidence"] == "normal"' 'measured times' &&
    holds out 'any("measured between the ranks" in a for a in d["assumptions"])' 'local uses the file'
  python3 - "$file" <<'PY'
import json, sys
d = json.load(open(sys.argv[1]))
for c in d["collectives"]:
    for p in c["points"]:
        p["seconds"] *= 1000
json.dump(d, open("slow.json", "w"))
PY
  status 0 "$RAFTER" plan "$MODEL" --backend cpu --mesh data=2 --on slow.json --json &&
    holds out 'd["time"]["seconds"] > 10 * json.load(open("measured"))["time"]["seconds"]' \
      'the plan uses the measured collectives'
  # exchanges that overlap with computation are two ops
  status 0 "$RAFTER" plan "$MODEL" --backend cpu --mesh data=2 --on slow.json --ops --overlap on &&
    says 'all_reduce/start' out && says 'all_reduce/wait' out
  status 0 "$RAFTER" plan "$MODEL" --backend cpu --mesh data=2 --on slow.json --overlap on --json &&
    holds out 'any("collectives run while the ranks compute" in a for a in d["assumptions"])' 'the overlap'
  status 0 "$RAFTER" plan "$MODEL" --backend cpu --mesh data=2 --on slow.json --ops --overlap off &&
    ! grep -q 'all_reduce/wait' out || fail '--overlap off overlaps'
  status 2 "$RAFTER" plan "$MODEL" --backend cpu --mesh data=4 --on slow.json && says 'expected 2' err
}

for name in openmpi mpich; do
  ranks "$name" 2 || continue
  status 0 "${RUN[@]}" "$RAFTER" train "$MODEL" --data random:seed=0 --backend cpu --mesh data=2 --batch 4 \
    --steps 6 --val-every 0 --out "run-$name" &&
    says 'wait for slower ranks' out &&
    holds "run-$name/report.json" 'len(d["ranks"]["waits"]) == 2' 'waits of both ranks' &&
    holds "run-$name/report.json" 'all(w["exchanges"] >= 6 and
      w["exchange_seconds"] >= w["slow_rank_seconds"] + w["network_seconds"] > 0
      for w in d["ranks"]["waits"])' 'waits are a part of exchanges'
done
finish
