#!/usr/bin/env bash
# rafter train with mpirun: each process is a chip of --mesh. The cases run with every MPI library
# that is installed and whose file was built (Open MPI and MPICH).
. "$(dirname "$0")/lib.sh"
. "$HERE/lib_ranks.sh"
MORE=(--threads 1 --data book.txt --lr 1e-3)
RUN=("${MORE[@]}" --batch 4 --val-every 0)
TRAIN=("$RAFTER" train "$TINY" "${RUN[@]}")

setup() { text book.txt 20000; }

# near A B [LOSS NORM]: the losses of two runs agree within LOSS, the gradient norms within NORM.
near() {
  python3 - "$1" "$2" "${3:-1e-5}" "${4:-1e-4}" <<'PY' || fail "$1 and $2 differ"
import json, sys
def rows(run):
    all = {}
    for line in open(run + "/metrics.jsonl"):
        d = json.loads(line)
        if "step" in d: all[d["step"]] = d
    return all
a, b = rows(sys.argv[1]), rows(sys.argv[2])
assert a and a.keys() == b.keys(), (sorted(a), sorted(b))
for step in a:
    keys = ["loss", "grad_norm"] + ["val_loss"] * ("val_loss" in a[step])
    for key in keys:
        limit = float(sys.argv[4 if key == "grad_norm" else 3])
        off = abs(a[step][key] - b[step][key])
        assert off <= limit, f"step {step}: {key} {a[step][key]} and {b[step][key]} differ by {off}"
PY
}
# newest RUN: prints the newest complete checkpoint of a run.
newest() { find "$1" -name DONE -printf '%h\n' | sort | tail -1; }
# tensors FOLDER: prints name, shape and a hash of each weight and moment, of a file or of its shards.
tensors() {
  python3 - "$1" <<'PY'
import hashlib, json, os, struct, sys
folder = sys.argv[1]
for stem in "model", "optimizer":
    index = f"{folder}/{stem}.safetensors.index.json"
    homes = json.load(open(index))["weight_map"] if os.path.exists(index) else None
    found = {}
    for file in sorted(set(homes.values())) if homes else [stem + ".safetensors"]:
        data = open(f"{folder}/{file}", "rb").read()
        size = struct.unpack("<Q", data[:8])[0]
        for name, t in json.loads(data[8:8 + size]).items():
            if name == "__metadata__": continue
            assert homes is None or homes[name] == file, name
            a, b = t["data_offsets"]
            found[name] = (t["dtype"], t["shape"], hashlib.md5(data[8 + size + a:8 + size + b]).hexdigest())
    assert homes is None or homes.keys() == found.keys()
    for name in sorted(found): print(stem, name, *found[name])
PY
}
# alike A B: the newest checkpoints of two runs have the same tensors and the same state.
alike() {
  local a b
  a=$(newest "$1") b=$(newest "$2")
  [ "$(basename "$a")" = "$(basename "$b")" ] || fail "$1 ends with ${a:-nothing}, $2 with ${b:-nothing}"
  { tensors "$a" >tensors.a && tensors "$b" >tensors.b; } || fail "$1 or $2 has no tensors"
  same tensors.a tensors.b "the weights and moments of $1 and $2"
  same "$a/state.json" "$b/state.json" "state.json of $1 and $2"
}
# whole RUN: its newest checkpoint is undamaged, and no remains of an interrupted save are in the run.
whole() {
  local folder
  folder=$(newest "$1")
  [ -n "$folder" ] || { fail "$1 has no checkpoint"; return; }
  [ -z "$(find "$1" -name '*.part-*')" ] || fail "$1 has remains: $(find "$1" -name '*.part-*' | head -3)"
  ! command -v xxh128sum >/dev/null || (cd "$folder" && xxh128sum --quiet -c DONE) ||
    fail "$folder is damaged"
  same <(cut -c35- "$folder/DONE") <(cd "$folder" && find . -type f ! -name DONE -printf '%P\n' | sort) \
    "the names in DONE of $folder"
}

# ---- the same training ---------------------------------------------------------------------------

# on_mesh N MESH [OPTION...]: N ranks train as one process does, and every library gives the same bits.
on_mesh() {
  local count=$1 mesh=$2 name=${2//[=,]/-} first=
  shift 2
  for LIBRARY in "${LIBRARIES[@]}"; do
    status 0 ranks "$count" "${TRAIN[@]}" "$@" --steps 6 --mesh "$mesh" --out "$LIBRARY-$name" || return
    near one "$LIBRARY-$name"
    [ -z "$first" ] || { same <(losses "$first") <(losses "$LIBRARY-$name") "losses of $first and $LIBRARY"
      alike "$first" "$LIBRARY-$name"; }
    first=${first:-$LIBRARY-$name}
    whole "$LIBRARY-$name"
  done
  LIBRARY=${LIBRARIES[0]}
  status 0 ranks "$count" "${TRAIN[@]}" "$@" --steps 6 --mesh "$mesh" --out "again-$name" || return
  same <(losses "$first") <(losses "again-$name") "losses of $mesh, repeated"
  alike "$first" "again-$name"
}

case_meshes() {
  status 0 "${TRAIN[@]}" --steps 6 --out one || return
  on_mesh 2 data=2
  on_mesh 2 fsdp=2
  on_mesh 2 context=2
}

case_four_ranks() {
  status 0 "${TRAIN[@]}" --steps 6 --out one || return
  on_mesh 4 data=2,fsdp=2
}

# Exchanges that run while the ranks compute: the losses and weights have the bits of exchanges in
# one piece, with and without a thread that moves their messages, and the memory is the plan's.
case_overlap() {
  local axis mesh count clip more
  for mesh in data=2 fsdp=2 data=2,fsdp=2 data=2,tensor=2; do
    count=2
    [[ $mesh != *,* ]] || count=4
    for clip in 0 1; do
      axis=${mesh//[=,]/-}-$clip
      more=(--steps 4 --mesh "$mesh" --clip $clip)
      status 0 ranks $count "${TRAIN[@]}" "${more[@]}" --overlap off --out "off-$axis" || return
      for LIBRARY in "${LIBRARIES[@]}"; do
        status 0 ranks $count "${TRAIN[@]}" "${more[@]}" --overlap on --out "on-$LIBRARY-$axis" || return
        says 'memory +predicted ([0-9]+) bytes, allocated \1 bytes' out
        same <(losses "off-$axis") <(losses "on-$LIBRARY-$axis") "losses of $mesh with overlap ($LIBRARY)"
        alike "off-$axis" "on-$LIBRARY-$axis"
        holds "on-$LIBRARY-$axis/plan.json" 'any(op["op"] == "exchange_wait" for op in d["ops"])'
      done
      LIBRARY=${LIBRARIES[0]}
    done
  done
  export RAFTER_MPI_THREAD=0
  status 0 ranks 2 "${TRAIN[@]}" --steps 4 --mesh fsdp=2 --clip 1 --overlap on --out polled
  unset RAFTER_MPI_THREAD
  same <(losses off-fsdp-2-1) <(losses polled) 'losses with overlap and without a thread'
  status 0 ranks 2 "${TRAIN[@]}" --steps 4 --mesh fsdp=2 --accumulate 2 --overlap off --out off-two
  status 0 ranks 2 "${TRAIN[@]}" --steps 4 --mesh fsdp=2 --accumulate 2 --overlap on --out on-two
  same <(losses off-two) <(losses on-two) 'losses of two microbatches with overlap'
}

# A step that fails leaves exchanges that nothing has waited for. The run then repeats the step to
# name the op, and names the same one as without overlap.
case_overlap_overflow() {
  local mesh clip overlap
  local more=(--steps 60 --min-lr 100 --warmup 0 --schedule constant --eps 0 --beta2 0)
  for mesh in data=2 fsdp=2; do
    for clip in 0 1; do
      for overlap in off on; do
        status 1 ranks 2 "${TRAIN[@]/1e-3/100}" "${more[@]}" --mesh "$mesh" --clip $clip --overlap $overlap \
          --out "$mesh-$clip-$overlap" || return
        says 'is the first op that produced a number that is not finite' err
        grep -o '^rafter: step/[^ ]*' err >"op-$overlap"
      done
      same op-off op-on "the op of $mesh with --clip $clip"
    done
  done
}

# One rank alone reads a token whose row of the table is NaN. Its error names the op, and no rank
# reports a fault of MPI.
case_not_finite_on_one_rank() {
  local where mesh more name=0 shape=llama:layers=2,width=32,heads=2,ff=64,vocab=256,seq=32
  status 0 "$RAFTER" train $shape "${RUN[@]}" --steps 1 --out base &&
    status 0 "$RAFTER" export base broken || return
  python3 - broken/model.safetensors <<'PY'
import json, struct, sys
data = bytearray(open(sys.argv[1], "rb").read())
size = struct.unpack("<Q", data[:8])[0]
table = json.loads(data[8:8 + size])["model.embed_tokens.weight"]
assert (table["dtype"], table["shape"]) == ("F32", [256, 32]), table
at = 8 + size + table["data_offsets"][0] + ord("Z") * 32 * 4
data[at:at + 4] = struct.pack("<f", float("nan"))
open(sys.argv[1], "wb").write(data)
PY
  python3 -c '
for at in 5, 40, 70, 101:  # one of four sequences
    text = "abcdefgh" * 17
    open(f"{at}.txt", "w").write(text[:at] + "Z" + text[at + 1:129])'
  for LIBRARY in "${LIBRARIES[@]}"; do
    for more in '5 fsdp=2 --clip 1' '40 fsdp=2 --clip 0' '70 data=2 --clip 0 --overlap on' \
      '101 fsdp=2 --overlap on' '5 data=2 --accumulate 2' '40 data=2' '70 data=2 --debug'; do
      read -r where mesh more <<<"$more"
      name=$((name + 1))
      # shellcheck disable=SC2086
      status 1 ranks 2 "$RAFTER" train broken --threads 1 --data $where.txt --batch 4 --seq 32 --steps 2 \
        --val-every 0 --mesh $mesh $more --out "nan-$name" || continue
      says 'step/micro/embed/fwd[^ ]* is the first op that produced a number that is not finite .step 1'
      [ "$(grep -c 'rafter: ' err)" = 1 ] || fail "$where, $mesh $more: several errors: $(head -c 600 err)"
    done
  done
}

# --debug poisons dead memory and checks every output of every op. It changes no loss.
case_debug() {
  local mesh on more
  for mesh in '' context=2 tensor=2 data=2 fsdp=2 pipeline=2; do
    on=() more=(--steps 2 --accumulate 2)
    [ -z "$mesh" ] || on=(ranks 2) more+=(--mesh "$mesh")
    status 0 "${on[@]}" "${TRAIN[@]}" "${more[@]}" --out "plain-$mesh" || return
    status 0 "${on[@]}" "${TRAIN[@]}" "${more[@]}" --debug --out "debug-$mesh" || return
    same <(losses "plain-$mesh") <(losses "debug-$mesh") "losses of ${mesh:-one process} with --debug"
  done
  more=(--steps 2 --overlap on --debug)
  status 0 ranks 2 "${TRAIN[@]}" "${more[@]}" --mesh fsdp=2 --clip 0 --out overlap-1
  for mesh in data=2 fsdp=2; do
    status 0 ranks 2 "${TRAIN[@]}" "${more[@]}" --mesh $mesh --accumulate 2 --out "overlap-$mesh" &&
      same <(losses "plain-$mesh") <(losses "overlap-$mesh") "losses of $mesh with --debug and --overlap"
  done
}

# Stages of a pipeline in each schedule, alone and with other axes.
case_pipelines() {
  local deep=("$RAFTER" train "${TINY/layers=2/layers=5}" "${MORE[@]}" --val-every 0 --accumulate 4)
  local TRAIN=("${deep[@]}" --batch 4)
  status 0 "${TRAIN[@]}" --steps 6 --out one || return
  for schedule in 1f1b gpipe interleaved:2; do
    on_mesh 2 pipeline=2 --pipeline $schedule
    rm -r -- *-pipeline-2
  done
  on_mesh 4 pipeline=4
  TRAIN=("${deep[@]}" --batch 8)
  rm -r one
  status 0 "${TRAIN[@]}" --steps 6 --out one || return
  on_mesh 4 pipeline=2,data=2
  on_mesh 4 pipeline=2,tensor=2
  on_mesh 4 pipeline=2,fsdp=2 --remat block
}

# A pipeline validates, and its checkpoints go to other meshes.
case_pipeline_runs() {
  local TRAIN=("$RAFTER" train "${TINY/layers=2/layers=4}" "${MORE[@]}" --batch 4 --val-every 3
    --val-fraction 0.2 --dropout 0.1)
  refuses 2 'fewer microbatches than pipeline stages' \
    ranks 2 "${TRAIN[@]}" --steps 1 --mesh pipeline=2 --out refused
  TRAIN+=(--accumulate 2)
  status 0 "${TRAIN[@]}" --steps 6 --out one || return
  status 0 ranks 2 "${TRAIN[@]}" --steps 6 --save-every 3 --keep 9 --mesh pipeline=2 --out two || return
  near one two
  same <(validated one) <(validated two) 'validation losses'
  whole two
  rm -r two/checkpoint-00000006
  for run in same other alone; do cp -r two $run; done
  status 0 ranks 2 "$RAFTER" train --resume same || return
  same <(losses two) <(losses same) 'losses with and without a restart'
  status 0 ranks 2 "$RAFTER" train --resume other --mesh data=2 && near one other
  status 0 "$RAFTER" train --resume alone --mesh '' && near one alone
  refuses 2 'losses of preferences do not run on a pipeline \(--mesh: expected pipeline=1, got 2\)' \
    "$RAFTER" plan "${TINY/layers=2/layers=4}" --backend cpu --batch 4 --accumulate 2 --loss dpo \
    --mesh pipeline=2
  refuses 2 'pipelines are for training only' \
    ranks 2 "$RAFTER" generate two --prompt a --max-tokens 2 --mesh pipeline=2
  refuses 2 'the axis slice can be planned but not run' ranks 2 "${TRAIN[@]}" --mesh slice=2 --out refused
}
# validated RUN: prints the validation losses with five digits.
validated() {
  python3 -c '
import json, sys
for line in open(sys.argv[1]):
    row = json.loads(line)
    if "val_loss" in row: print(row["step"], "%.5f" % row["val_loss"])' "$1/metrics.jsonl"
}

# Only rank 0 speaks, and there is one folder.
case_one_voice() {
  status 0 ranks 2 "${TRAIN[@]}" --steps 3 --mesh data=2 --out spoken || return
  [ "$(grep -c 'saved spoken/' out)" = 1 ] || fail "saved is said $(grep -c 'saved spoken/' out) times"
  [ ! -s err ] || fail "something is said on stderr: $(head -c 300 err)"
  holds spoken/metrics.jsonl 'len([r for r in rows if "step" in r]) == 3'
  [ "$(find . -name metrics.jsonl | wc -l)" = 1 ] || fail 'there are several run folders'
}

# The tokens of a pair are on all chips of the axes context, sequence and tensor. Pairs are shared
# among the chips of the other axes.
case_preferences() {
  local mesh
  python3 -c '
import json
for i in range(24):
    prompt, chosen, rejected = "of " * (1 + i % 4), "the " + "x" * (i % 7), "y" * (i % 5)
    print(json.dumps({"prompt": prompt, "chosen": chosen, "rejected": rejected}))
' >pairs.jsonl
  local TRAIN=("$RAFTER" train "$TINY" "${MORE[@]/book.txt/pairs.jsonl}" --batch 4 --val-every 3
    --val-fraction 0.25 --loss dpo)
  status 0 "${TRAIN[@]}" --steps 6 --out one || return
  on_mesh 2 context=2
  on_mesh 2 sequence=2
  on_mesh 4 context=2,sequence=2
  on_mesh 4 context=2,tensor=2
  on_mesh 2 data=2
  on_mesh 4 fsdp=2,context=2
}

# ---- the trace ---------------------------------------------------------------------------------

# traced RUN RANKS: its trace has all ranks, and report.json has a table of them.
traced() {
  python3 "$HERE/trace_events.py" "$1" >checked 2>&1 || { fail "$(cat checked)"; return; }
  python3 - "$1" "$2" <<'PY' || fail "$1: the table of ranks"
import json, socket, sys
run, count = sys.argv[1], int(sys.argv[2])
ranks, plan = json.load(open(f"{run}/report.json"))["ranks"], json.load(open(f"{run}/plan.json"))
header = json.loads(open(f"{run}/trace.bin", "rb").readline())
assert len(ranks["waits"]) == len(header["ranks"]) == count
for row in ranks["waits"]:
    assert row["planned_bytes"] == row["allocated_bytes"] == plan["memory"]["peak_bytes"], row
    assert row["threads"] == 1 and row["host"] == socket.gethostname(), row
    parts = row["work_seconds"] + row["slow_rank_seconds"] + row["network_seconds"] + row["between_seconds"]
    assert abs(parts - ranks["seconds"]) < 0.1 * ranks["seconds"] + 0.05, (parts, ranks)
for rank in header["ranks"]:  # one machine has one clock
    assert rank["threads"] == 1 and rank["clock_ahead_seconds"] == 0, rank
    assert rank["clock_error_seconds"] < 0.1, rank
PY
}

# All ranks record. The results are those of a run that does not record.
case_traced() {
  for LIBRARY in "${LIBRARIES[@]}"; do
    status 0 ranks 2 "${TRAIN[@]}" --steps 5 --mesh data=2 --trace steps=3..4 --out "traced-$LIBRARY" ||
      return
    says '2 ranks, whose clocks agree within' out
    traced "traced-$LIBRARY" 2
    status 0 ranks 4 "${TRAIN[@]}" --steps 4 --mesh data=2,fsdp=2 --trace all --out "traced-4-$LIBRARY" ||
      return
    traced "traced-4-$LIBRARY" 4
  done
  LIBRARY=${LIBRARIES[0]}
  status 0 ranks 2 "${TRAIN[@]}" --steps 5 --mesh data=2 --out untraced || return
  same <(losses untraced) <(losses "traced-$LIBRARY") 'losses with and without --trace'
  status 0 "$RAFTER" report "traced-$LIBRARY" --csv rows.csv --perfetto again.json &&
    same again.json "traced-$LIBRARY/trace.json" '--perfetto is not what the run wrote'
  says '"rank 1 thread 0",op' rows.csv
  # the ranks of pipeline stages have other plans, and measure how long they are idle
  status 0 ranks 2 "${TRAIN[@]}" --steps 4 --accumulate 2 --mesh pipeline=2 --trace all --out staged || return
  python3 "$HERE/trace_events.py" staged >checked 2>&1 || fail "$(cat checked)"
  python3 - <<'PY' || fail 'the bubbles of two stages'
import json
header = json.loads(open("staged/trace.bin", "rb").readline())
assert header["plans"] == ["train", "train of stage 1"] and header["ops"][0] != header["ops"][1]
for stage, rank in enumerate(header["ranks"]):
    bubble = rank["bubble"]
    assert rank["stage"] == stage and bubble["steps"] == 4 and bubble["transfers"] >= 4, rank
    assert 0 < bubble["idle_seconds"] < bubble["seconds"] > bubble["busy_seconds"] > 0, bubble
    assert 0 <= bubble["fill_seconds"] + bubble["drain_seconds"] <= bubble["idle_seconds"], bubble
notes = " ".join(json.load(open("staged/report.json"))["summary"]["notes"])
assert "pipeline stage 1 was idle for " in notes and "; predicted " in notes, notes
PY
  status 0 "$RAFTER" report staged
  # the other rank waits for a rank that is stopped for a while, perhaps in the middle of an exchange
  local TRAIN=("$RAFTER" train "${TINY/width=32/width=192}" "${RUN[@]}") # slow enough to be stopped
  begin stopped "${TRAIN[@]}" --steps 400 --mesh data=2 --trace all
  until_step stopped 20
  local pid
  pid=$(process_of stopped 1)
  kill -STOP "$pid" && sleep 0.5 && kill -CONT "$pid"
  wait $! || fail "a run with a rank that was stopped for a while: $(head -c 300 err)"
  python3 - "$HERE" <<'PY' || fail 'the wait for a stopped rank'
import sys
sys.path.insert(0, sys.argv[1])
import trace_events
header, columns = trace_events.columns_of("stopped/trace.bin")
kind, causes = header["kinds"].index("gap"), [header["gaps"].index(name) for name in ("slow rank", "network")]
of = lambda name, i: columns[name][i]
waits = [of("end", i) - of("begin", i) for i in range(header["count"])
         if (of("kind", i), of("lane", i), of("value", i)) == (kind, 0, 1) and of("id", i) in causes]
assert max(waits) > 3e8, max(waits)
PY
}

# ---- checkpoints ---------------------------------------------------------------------------------

case_shards() {
  local folder name
  for LIBRARY in "${LIBRARIES[@]}"; do
    name=shards-$LIBRARY
    status 0 ranks 2 "${TRAIN[@]}" --steps 4 --mesh fsdp=2 --out "$name" || return
    whole "$name"
    folder=$(newest "$name")
    for file in model-0000{1,2}-of-00002.safetensors model.safetensors.index.json \
      optimizer-0000{1,2}-of-00002.safetensors optimizer.safetensors.index.json config.json state.json; do
      [ -s "$folder/$file" ] || fail "$folder has no $file"
    done
    [ ! -e "$folder/model.safetensors" ] || fail 'the weights are written twice'
  done
  # a single process loads the shards, and writes the same values into one file
  cp -r "$name" alone
  status 0 "$RAFTER" train --resume alone --mesh '' || return
  says 'already at step 4' out
  whole alone
  [ -e "$(newest alone)/model.safetensors" ] || fail 'one process writes one file'
  alike "$name" alone
  status 0 "$RAFTER" export "$name" exported || return
  status 0 "$RAFTER" export alone exported-alone || return
  same exported/model.safetensors exported-alone/model.safetensors 'the exported weights'
  status 0 "$RAFTER" score "$name" --text 'the of and to in that' &&
    grep -v ' tokens in ' out >scored
  status 0 "$RAFTER" score exported --text 'the of and to in that' &&
    same <(grep -v ' tokens in ' out) scored 'scores of the shards'
}

# Transposed and split matrices, tied embeddings, grouped heads.
case_shapes() {
  local model name=0
  for model in llama:layers=1,width=32,heads=2,ff=48,vocab=256,seq=32 \
    llama:layers=1,width=32,heads=2,kv_heads=1,ff=37,vocab=257,seq=32,tied=1; do
    name=$((name + 1))
    status 0 ranks 2 "$RAFTER" train "$model" "${RUN[@]}" --steps 2 --mesh data=2 --out "shape-$name" ||
      return
    whole "shape-$name"
    cp -r "shape-$name" "one-$name"
    status 0 "$RAFTER" train --resume "one-$name" --mesh '' || return
    alike "shape-$name" "one-$name"
  done
}

case_other_meshes() {
  local run
  status 0 "${TRAIN[@]}" --steps 6 --out one || return
  status 0 ranks 2 "${TRAIN[@]}" --steps 6 --save-every 3 --keep 9 --mesh fsdp=2 --out two || return
  rm -r two/checkpoint-00000006
  for run in same more other; do cp -r two $run; done
  status 0 ranks 2 "$RAFTER" train --resume same || return
  status 0 ranks 2 "${TRAIN[@]}" --steps 6 --mesh fsdp=2 --out never-stopped || return
  alike never-stopped same
  same <(losses never-stopped) <(losses same) 'losses with and without a restart'
  status 0 ranks 4 "$RAFTER" train --resume more --mesh data=2,fsdp=2 || return
  near one more
  whole more
  status 0 ranks 2 "$RAFTER" train --resume other --mesh data=2 || return
  near one other
  status 0 "$RAFTER" train --resume two --mesh '' || return
  near one two
  whole two
}

case_adapters() {
  status 0 ranks 2 "${TRAIN[@]}" --steps 3 --lora rank=4 --mesh fsdp=2 --out adapters || return
  whole adapters
  [ -s "$(newest adapters)/adapter_model.safetensors" ] || fail 'the adapter is in one file'
}

# Adapters of a part of a fused row (query, key and value; gate and up): saved, resumed and scored
# with tensor, they are those of one process. 50 columns of gate are an odd number on each chip.
case_adapter_parts() {
  local targets run text='the of and to in that he'
  status 0 "$RAFTER" train llama:layers=1,width=32,heads=4,kv_heads=2,ff=50,vocab=256,seq=32 "${RUN[@]}" \
    --steps 1 --out drawn && status 0 "$RAFTER" export drawn base || return
  for targets in gate up,k q v gate,up; do
    local TRAIN=("$RAFTER" train base "${RUN[@]/1e-3/1e-2}" --seq 32 --warmup 0 --steps 6 --save-every 3
      --keep 9 --lora "rank=4,targets=$targets")
    rm -rf one two there back
    status 0 "${TRAIN[@]}" --out one && status 0 ranks 2 "${TRAIN[@]}" --mesh tensor=2 --out two || return
    near one two
    like_adapter one two "$targets"
    status 0 "$RAFTER" score one --text "$text" --json && cp out scored-one
    status 0 ranks 2 "$RAFTER" score one --text "$text" --json --mesh tensor=2 && cp out scored-there
    status 0 "$RAFTER" score two --text "$text" --json && cp out scored-two
    for run in there two; do
      holds scored-one "max(abs((a or 0) - (b or 0)) for a, b in zip(d['logprobs'],
        json.load(open('scored-$run'))['logprobs'])) < 1e-4" "$targets: scores of $run"
    done
    cp -r one there && cp -r two back && rm -r there/checkpoint-00000006 back/checkpoint-00000006
    status 0 ranks 2 "$RAFTER" train --resume there --mesh tensor=2 && near one there
    like_adapter one there "$targets, resumed with tensor=2"
    status 0 "$RAFTER" train --resume back --mesh '' && near one back
    like_adapter one back "$targets, resumed with one process"
  done
}
# like_adapter A B WHAT: the newest adapters of two runs differ by rounding only.
like_adapter() {
  python3 - "$(newest "$1")" "$(newest "$2")" <<'PY' || fail "the adapter of $2 is not that of $1 ($3)"
import array, json, struct, sys
def read(path):
    data = open(path + "/adapter_model.safetensors", "rb").read()
    size = struct.unpack("<Q", data[:8])[0]
    return {name: array.array("f", data[8 + size + t["data_offsets"][0]:8 + size + t["data_offsets"][1]])
            for name, t in json.loads(data[8:8 + size]).items() if name != "__metadata__"}
a, b = read(sys.argv[1]), read(sys.argv[2])
assert a and a.keys() == b.keys()
for name in a:
    off, all = sum((x - y) ** 2 for x, y in zip(a[name], b[name])), sum(x * x for x in a[name])
    assert all > 0 and off < 1e-4 * all, (name, off, all)
PY
}

# A run whose experts are on several chips continues on a mesh without the axis expert.
case_experts() {
  local moe=mixtral:layers=2,width=32,heads=4,kv_heads=2,ff=24,vocab=256,seq=32,experts=4,experts_used=2
  local TRAIN=("$RAFTER" train "$moe" "${RUN[@]}")
  status 0 "${TRAIN[@]}" --steps 6 --out one || return
  on_mesh 2 expert=2 --capacity 2 --save-every 3 --keep 9
  local two=${LIBRARIES[0]}-expert-2
  rm -r "$two/checkpoint-00000006"
  cp -r "$two" other
  status 0 "$RAFTER" train --resume "$two" --mesh '' && near one "$two"
  status 0 ranks 2 "$RAFTER" train --resume other --mesh fsdp=2 && near one other
  refuses 2 'needs experts that are sharded' "$RAFTER" plan "$moe" --capacity 2
}

# ---- refused -------------------------------------------------------------------------------------

case_refused() {
  for LIBRARY in "${LIBRARIES[@]}"; do
    refuses 2 'started 2 processes, one for each chip, but the mesh has 4 .*expected 2 chips, got data=4' \
      ranks 2 "${TRAIN[@]}" --steps 1 --mesh data=4 --out refused-1
    refuses 2 'started 2 processes' ranks 2 "${TRAIN[@]}" --steps 1 --out refused-2
    refuses 2 'give a mesh of 2 chips' ranks 2 "${TRAIN[@]}" --steps 1 --out refused-2
  done
  refuses 2 '--mesh data=2 needs one process for each chip \(expected 2 processes, got 1\)' \
    "${TRAIN[@]}" --steps 1 --mesh data=2 --out refused-3
  says 'mpirun -n 2'
  refuses 2 'no mesh of 5 chips can run this job .*With data=5: .*expected a multiple, got 3 sequences' \
    ranks 5 "$RAFTER" train "$TINY" "${MORE[@]}" --batch 3 --steps 1 --mesh auto --out refused-4
  [ -z "$(find . -name 'refused-*')" ] || fail 'a refused run leaves a folder'
}

case_automatic_mesh() {
  status 0 ranks 2 "${TRAIN[@]}" --steps 1 --mesh auto --out automatic
  says '--mesh auto compared [0-9]+ meshes, of which [0-9]+ fit, and took'
  status 0 "$RAFTER" runs show automatic
  # the sequences of the batch cannot be shared, but their tokens can
  status 0 ranks 4 "$RAFTER" train "$TINY" "${MORE[@]}" --batch 3 --steps 1 --mesh auto --out tokens &&
    says '--mesh auto compared [0-9]+ meshes, of which [0-9]+ fit, and took (context|sequence)='
}

case_differences() {
  text other.txt 21000
  for LIBRARY in "${LIBRARIES[@]}"; do
    differ 'another step, seed or schedule' --seed 5
    differ 'another step, seed or schedule' --min-lr 1e-5
    differ 'another plan' --dropout 0.1
    differ 'another plan' --overlap on
    differ 'another --trace' --trace steps=1..2
    differ 'other data' --data other.txt
  done
  # the ranks find other weights at the same path, as on machines with folders of their own
  local seed book=("${RUN[@]/book.txt/$PWD/book.txt}")
  local same=("$RAFTER" train model "${book[@]}" --steps 1 --mesh data=2 --out "$PWD/differs")
  for seed in 1 2; do
    status 0 "$RAFTER" train "$TINY" "${book[@]}" --steps 1 --seed $seed --out "run-$seed" &&
      mkdir $seed && status 0 "$RAFTER" export "run-$seed" $seed/model || return
  done
  for LIBRARY in "${LIBRARIES[@]}"; do
    refuses 1 "^rafter: rank 1 \\($(hostname)\\): it has other weights than rank 0" \
      ranks 2 env -C 1 "${same[@]}" last: env -C 2 "${same[@]}"
    rm -rf differs
  done
}
differ() {
  local pattern=$1
  shift
  local same=("$RAFTER" train "$TINY" --threads 1 --batch 4 --val-every 0 --steps 2 --mesh data=2
    --out differs)
  [ "$1" = --data ] || same+=(--data book.txt)
  local first=("${same[@]}")
  [ "$1" != --data ] || first+=(--data book.txt)
  refuses 1 "^rafter: rank 1 \\($(hostname)\\): it has $pattern than rank 0" \
    ranks 2 "${first[@]}" last: "${same[@]}" "$@"
  rm -rf differs
}

# ---- faults --------------------------------------------------------------------------------------

# begin RUN OPTION...: starts two ranks in the background. $! is the launcher.
begin() {
  local run=$1
  shift
  # the shell makes commands in the background ignore SIGINT
  setsid env --default-signal=INT timeout -k 10 120 "$(launcher "$LIBRARY")" -n 2 "$@" --out "$run" \
    >out 2>err &
}
# until_step RUN STEP: waits until the run has done this step.
until_step() {
  for _ in $(seq 1200); do
    ! grep -qs "\"step\":$2," "$1/metrics.jsonl" || return 0
    sleep 0.05
  done
  fail "$1 does not reach step $2: $(head -c 300 err)"
}
# A killed rank ends the run. It continues from its last checkpoint, and has the same bits as a run
# that was not killed.
case_killed() {
  local steps=120 rank step pid code name=0 overlap
  local TRAIN=("$RAFTER" train "${TINY/width=32/width=192}" "${RUN[@]}") # slow enough to be killed
  local killed=("${TRAIN[@]}" --steps $steps --save-every 5 --mesh fsdp=2)
  for LIBRARY in "${LIBRARIES[@]}"; do
    status 0 ranks 2 "${killed[@]}" --out "whole-$LIBRARY" || return
    for rank in 0 1; do
      name=$((name + 1)) step=$((RANDOM % 40 + 10)) code=0 overlap=off
      [ $rank = 0 ] || overlap=on # the rank dies while exchanges are under way
      begin "killed-$name" "${killed[@]}" --overlap $overlap
      until_step "killed-$name" 1
      pid=$(process_of "killed-$name" $rank)
      until_step "killed-$name" "$step"
      sleep "0.0$((RANDOM % 10))"
      kill -9 "$pid"
      wait $! || code=$?
      [ "$code" != 0 ] && [ "$code" != 124 ] || fail "rank $rank killed: exit $code"
      gone "killed-$name"
      [ -n "$(newest "killed-$name")" ] || { fail "killed-$name has no checkpoint (step $step)"; continue; }
      [ $name != 2 ] || cp -r killed-2 moved
      status 0 ranks 2 "$RAFTER" train --resume "killed-$name" || return
      alike "whole-$LIBRARY" "killed-$name"
      same <(losses "whole-$LIBRARY") <(losses "killed-$name") "losses after rank $rank was killed at $step"
      whole "killed-$name"
    done
  done
  # on another mesh, and on one process
  status 0 "${TRAIN[@]}" --steps $steps --out one
  cp -r moved alone
  status 0 ranks 4 "$RAFTER" train --resume moved --mesh data=2,fsdp=2 && near one moved
  status 0 "$RAFTER" train --resume alone --mesh '' && near one alone
}

# Ranks that are killed before the first checkpoint begin again.
case_killed_early() {
  local early=("${TRAIN[@]}" --mesh fsdp=2)
  for LIBRARY in "${LIBRARIES[@]}"; do
    status 0 ranks 2 "${early[@]}" --steps 8 --out "brief-$LIBRARY" || return
    begin "early-$LIBRARY" "${early[@]}" --steps 100000
    until_step "early-$LIBRARY" 2
    kill -9 "$(process_of "early-$LIBRARY" 1)"
    wait $! && fail 'a run with a killed rank ends with status 0'
    gone "early-$LIBRARY"
    status 0 ranks 2 "$RAFTER" train --resume "early-$LIBRARY" --steps 8 || return
    says 'the run has no checkpoint yet, so it begins again' out
    alike "brief-$LIBRARY" "early-$LIBRARY"
    same <(losses "brief-$LIBRARY") <(losses "early-$LIBRARY") 'losses of ranks that begin again'
  done
}

# The machines of the ranks differ in their files and their memory. All ranks plan for the machine
# of rank 0 with the lowest memory.
case_machines() {
  local order bytes=() model=gpt:layers=4,width=64,heads=2,ff=256,vocab=256,seq=256
  local run=(train $model "${RUN[@]/4/8}" --steps 2 --mesh data=2 --remat auto)
  python3 - "$(hostname)" <<'PY'
import json, os, sys
base = {"name": "one", "kind": "cpu", "flops": {"f32": 5e10}, "read_bps": 1e10, "copy_bps": 1e10}
for name, values in {"large": {"memory_bytes": 64e9}, "small": {"memory_bytes": 30e6},
                     "quick": {"memory_bytes": 64e9, "flops": {"f32": 9e12}, "copy_bps": 1e13}}.items():
    os.makedirs(f"{name}/rafter")
    json.dump(base | values, open(f"{name}/rafter/{sys.argv[1]}.json", "w"))
PY
  printf '{"prompt": "of the"}\n%.0s' $(seq 40) >many.jsonl
  # apart A B COMMAND...: rank 0 has the machine A, rank 1 the machine B
  apart() { ranks 2 env "XDG_CACHE_HOME=$PWD/$1" "${@:3}" last: env "XDG_CACHE_HOME=$PWD/$2" "${@:3}"; }
  for LIBRARY in "${LIBRARIES[@]}"; do
    for order in 'large large' 'small small' 'small large' 'large small' 'small none'; do
      # shellcheck disable=SC2086
      status 0 apart $order "$RAFTER" "${run[@]}" --out "$LIBRARY $order" || return
      bytes[${#bytes[@]}]=$(ask "$LIBRARY $order/metrics.jsonl" 'rows[0]["arena_bytes"]')
      [ "$order" = 'large large' ] ||
        same <(losses "$LIBRARY small small") <(losses "$LIBRARY $order") "losses of $order"
    done
    [ "${bytes[1]}" -lt "${bytes[0]}" ] || fail "little memory changes nothing: ${bytes[*]}"
    [ "$(printf '%s\n' "${bytes[@]:1}" | sort -u | wc -l)" = 1 ] ||
      fail "the lowest memory does not count: ${bytes[*]}"
    bytes=()
    status 0 apart large quick "$RAFTER" rollout "$TINY" --threads 1 --max-tokens 4 \
      --input many.jsonl --output "$LIBRARY.jsonl" --mesh data=2
  done
}

case_stopped_rank() {
  local rank pid
  export RAFTER_MPI_SECONDS=3
  for LIBRARY in "${LIBRARIES[@]}"; do
    for rank in 0 1; do
      begin "hangs-$LIBRARY-$rank" "${TRAIN[@]}" --steps 100000000 --save-every 5 --keep 2 --mesh data=2
      until_step "hangs-$LIBRARY-$rank" 12
      pid=$(process_of "hangs-$LIBRARY-$rank" $rank)
      kill -STOP "$pid"
      wait $! && fail 'a run with a stopped rank ends with status 0'
      says "rank $rank \\($(hostname).*did not (send|take) a message within 3 s"
      says 'RAFTER_MPI_SECONDS'
      kill -KILL "$pid" 2>/dev/null
      gone "hangs-$LIBRARY-$rank"
      [ -n "$(newest "hangs-$LIBRARY-$rank")" ] || fail 'the last checkpoint is lost'
    done
  done
}

# Ranks that wait for a rank that waits for a third one: the error names the third.
case_silent_rank() {
  local pid
  export RAFTER_MPI_SECONDS=3
  for LIBRARY in "${LIBRARIES[@]}"; do
    setsid timeout -k 10 120 "$(launcher "$LIBRARY")" -n 4 "${TRAIN[@]}" --steps 100000000 \
      --mesh data=2,fsdp=2 --out "silent-$LIBRARY" >out 2>err &
    until_step "silent-$LIBRARY" 3
    pid=$(process_of "silent-$LIBRARY" 3)
    kill -STOP "$pid"
    wait $! && fail 'a run with a stopped rank ends with status 0'
    says "^rafter: .*rank 3 \\($(hostname)\\) did not (send|take) a message within 3 s"
    kill -KILL "$pid" 2>/dev/null
    gone "silent-$LIBRARY"
  done
}

# A signal to the launcher ends the ranks after the same step, with one checkpoint.
case_signal() {
  local code name
  export OMPI_MCA_odls_base_sigkill_timeout=5 # a slow machine needs more than a second
  for LIBRARY in "${LIBRARIES[@]}"; do
    for name in TERM INT; do
      code=0
      begin "$name-$LIBRARY" "${TRAIN[@]}" --steps 100000000 --mesh fsdp=2
      until_step "$name-$LIBRARY" 3
      kill -$name "$(pgrep -P $! | head -1)"
      wait $! || code=$?
      # the status is the launcher's, and MPICH's is sometimes 0
      [ "$code" != 124 ] || fail "$LIBRARY does not end after SIG$name"
      gone "$name-$LIBRARY"
      whole "$name-$LIBRARY"
      [ "$(grep -c 'stopped at step' err)" = 1 ] || fail "$LIBRARY says after SIG$name: $(head -c 400 err)"
      [ "$(find "$name-$LIBRARY" -name DONE | wc -l)" = 1 ] || fail 'more than one checkpoint is saved'
    done
  done
}

# A rank that is killed leaves a folder in TMPDIR, and the next start removes it. Folders of ranks
# that run stay.
case_folders() {
  local pid left
  export TMPDIR=$PWD/temp
  mkdir temp
  for LIBRARY in "${LIBRARIES[@]}"; do
    begin folders-1 "${TRAIN[@]}" --steps 100000000 --mesh data=2
    until_step folders-1 2
    pid=$(process_of folders-1 1)
    left=$(find temp -maxdepth 1 -name "*rank1.part-$pid-*")
    [ -d "$left" ] || fail "rank 1 has no folder in TMPDIR: $(ls temp)"
    status 0 ranks 2 "${TRAIN[@]}" --steps 1 --mesh data=2 --out "folders-$LIBRARY"
    [ -d "$left" ] || fail 'the folder of a rank that runs was removed'
    mkdir -p "$left/inner"
    kill -9 "$pid"
    wait $!
    gone folders-1
    [ -d "$left" ] || fail 'a killed rank leaves no folder, so this test shows nothing'
    rm -rf folders-1
    status 0 ranks 2 "${TRAIN[@]}" --steps 1 --mesh data=2 --out "folders-2-$LIBRARY"
    [ -z "$(find temp -maxdepth 1 -name '*rank*')" ] || fail "folders are left: $(ls temp)"
  done
}

# A signal to one rank of a calibration ends all, at any moment, and no file is written.
case_calibration() {
  local seconds pid code how
  for LIBRARY in "${LIBRARIES[@]}"; do
    # at its beginning, and among the measurements of a process
    for seconds in 1 9; do
      code=0 how=--quick
      [ $seconds = 1 ] || how= # a quick calibration may end earlier
      setsid timeout -k 10 120 "$(launcher "$LIBRARY")" -n 2 "$RAFTER" calibrate --network $how \
        --threads 1 --out "$PWD/machine.json" >out 2>err &
      sleep $seconds
      pid=$(process_of "$PWD/machine.json" 1)
      [ -n "$pid" ] || { fail "the calibration has ended: $(head -c 300 err)"; continue; }
      kill -TERM "$pid"
      wait $! || code=$?
      [ $code != 124 ] || fail "$LIBRARY: a calibration does not end after a signal at $seconds s"
      says 'stopped by a signal'
      [ ! -e machine.json ] || fail 'a stopped calibration writes a file'
      gone "$PWD/machine.json"
    done
  done
}

# A rank can no longer write files of more than 1 MB, so its shard fails. The checkpoint before it
# stays.
case_full_disk() {
  local rank run last code wide=("$RAFTER" train "${TINY/width=32/width=256}" "${RUN[@]}" --mesh fsdp=2)
  for LIBRARY in "${LIBRARIES[@]}"; do
    for rank in 0 1; do
      run=full-$LIBRARY-$rank code=0
      begin "$run" "${wide[@]}" --steps 100000000 --save-every 5
      until_step "$run" 7
      prlimit --fsize=1000000 --pid "$(process_of "$run" $rank)"
      wait $! || code=$?
      [ $code = 1 ] || fail "$run exits $code"
      says "^rafter: rank $rank \\($(hostname)\\): .*checkpoint-.*(large|space)"
      [ "$(grep -c 'rafter: ' err)" = 1 ] || fail "several errors: $(head -c 500 err)"
      gone "$run"
      whole "$run"
      last=$(newest "$run")
      status 0 ranks 2 "$RAFTER" train --resume "$run" --steps $((10#${last##*-} + 1))
      whole "$run"
    done
  done
  mkdir disk
  mount -t tmpfs -o size=9m none disk 2>/dev/null || { echo 'skip: no tmpfs can be mounted' >&3; return; }
  refuses 1 'rank . .*space' ranks 2 "${wide[@]}" --steps 9 --save-every 3 --out disk/run
  whole disk/run
  umount disk
}

cases "$@"
