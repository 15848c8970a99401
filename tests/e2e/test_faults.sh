#!/usr/bin/env bash
# Errors of files, disks and arguments of `rafter train`: one clear error, the right exit status, no
# partial files.
. "$(dirname "$0")/lib.sh"
TRAIN=("$RAFTER" train "$TINY" "${QUICK[@]}" --steps 3 --out run)

setup() { text book.txt 20000; }

case_data() {
  : >empty.txt
  head -c 20 book.txt >short.txt
  refuses 1 'nothere.txt' "${TRAIN[@]}" --data nothere.txt
  refuses 1 'nothere.jsonl' "${TRAIN[@]}" --data nothere.jsonl
  refuses 1 'nothere.shard' "${TRAIN[@]}" --data nothere.shard
  refuses 1 'empty.txt.*0' "${TRAIN[@]}" --data empty.txt && says '^hint: '
  refuses 1 'short.txt.*33.*20' "${TRAIN[@]}" --data short.txt
  refuses 1 'run' "${TRAIN[@]}" --data run
  refuses 2 'data' "${TRAIN[@]}"
  refuses 2 'random' "${TRAIN[@]}" --data random:seed=x
  refuses 2 'weight' "${TRAIN[@]}" --data book.txt:0
  refuses 1 'b.txt' "${TRAIN[@]}" --data book.txt:1 --data b.txt:2
  printf '{"text": "a good line, and long enough"}\n\n{"text": "broken\n' >bad.jsonl
  refuses 1 'bad.jsonl.*line 3' "${TRAIN[@]}" --data bad.jsonl
  printf '{"text": "a good line"}\n{"words": 1}\n' >bad.jsonl
  refuses 1 'bad.jsonl.*line 2' "${TRAIN[@]}" --data bad.jsonl
  printf '{"tokens": [1, 2, 3]}\n{"tokens": [1, 256]}\n' >bad.jsonl
  refuses 1 'bad.jsonl.*line 2.*256' "${TRAIN[@]}" --data bad.jsonl
  printf '{"tokens": [1, 2, -3]}\n' >bad.jsonl
  refuses 1 'line 1.*-3' "${TRAIN[@]}" --data bad.jsonl
  printf '{"tokens": [1, 2, "x"]}\n[1]\n' >bad.jsonl
  refuses 1 'line 1' "${TRAIN[@]}" --data bad.jsonl
  printf '{"text": "%s"}\n' x y z >tiny.jsonl
  refuses 1 'tiny.jsonl' "${TRAIN[@]}" --data tiny.jsonl
  : >none.jsonl
  refuses 1 'none.jsonl' "${TRAIN[@]}" --data none.jsonl
  left=$(find run -name '*.part*' 2>/dev/null)
  [ -z "$left" ] || fail "refused data leaves $left"
}

# Shards: another vocabulary, truncated, hostile.
case_shards() {
  status 0 "$RAFTER" tokenize gpt:layers=1,width=32,heads=2,ff=64,vocab=70000,seq=32 --input book.txt --output wide.shard
  status 0 "${TRAIN[@]}" --data wide.shard && rm -r run
  python3 -c '
import struct
b = bytearray(open("wide.shard", "rb").read()); b[64 + 4 * 777:64 + 4 * 778] = struct.pack("<I", 60000); open("foreign.shard", "wb").write(b)
good = open("wide.shard", "rb").read()
for i, (at, form, value) in enumerate([(8, "<I", 3), (12, "<I", 0), (16, "<Q", 1 << 62), (16, "<Q", (1 << 64) - 1), (24, "<Q", (1 << 61) - 1), (24, "<Q", 5), (0, "<Q", 0)]):
    b = bytearray(good); struct.pack_into(form, b, at, value); open(f"hostile{i}.shard", "wb").write(b)
open("cut0.shard", "wb").write(good[:40]); open("cut1.shard", "wb").write(good[:5000]); open("cut2.shard", "wb").write(b"")'
  refuses 1 'foreign.shard.*777.*256.*60000' "${TRAIN[@]}" --data foreign.shard
  for i in 0 1 2 3 4 5 6; do refuses 1 "hostile$i.shard" "${TRAIN[@]}" --data hostile$i.shard; done
  for i in 0 1 2; do refuses 1 "cut$i.shard" "${TRAIN[@]}" --data cut$i.shard; done
}

# A plan that does not fit is refused before memory is allocated. Faults of the data come first.
case_does_not_fit() {
  local huge=("$RAFTER" train gpt:layers=12,width=768,heads=12,vocab=256,seq=1024 --batch 4096
    --microbatch 4096 --out huge)
  refuses 3 'fit' "${huge[@]}" --data book.txt && { says '[0-9.]+ [GT]iB'; says '^hint: '; }
  refuses 1 'nothere.txt' "${huge[@]}" --data nothere.txt
  refuses 3 'fit' sh -c 'ulimit -v 4000000; exec "$@"' - "${huge[@]}" --data book.txt --threads 2
  [ ! -e huge ] || fail 'a run that does not fit leaves its folder'
}

case_options() {
  refuses 2 'did you mean.*batch' "${TRAIN[@]}" --data book.txt --bach 3
  refuses 2 'did you mean.*steps' "$RAFTER" train "$TINY" --step 3 --data book.txt
  refuses 2 'out of range' "${TRAIN[@]}" --data book.txt --lr -1
  refuses 2 'out of range' "${TRAIN[@]}" --data book.txt --lr 1e9
  refuses 2 'lr' "${TRAIN[@]}" --data book.txt --lr fast
  refuses 2 'nan|number' "${TRAIN[@]}" --data book.txt --lr nan
  refuses 2 'batch' "${TRAIN[@]}" --data book.txt --microbatch 3
  refuses 2 'given twice' "${TRAIN[@]}" --data book.txt --steps 4
  refuses 2 'schedule' "${TRAIN[@]}" --data book.txt --schedule cosine
  refuses 2 'min-lr' "${TRAIN[@]}" --data book.txt --min-lr 1
  refuses 2 'needs a value' "$RAFTER" train "$TINY" --data
  refuses 2 'MODEL' "$RAFTER" train --data book.txt
  refuses 2 'surplus' "${TRAIN[@]}" --data book.txt surplus
  refuses 2 '256' "$RAFTER" train gpt:layers=2,width=32,heads=2,ff=64,vocab=100,seq=32 --data book.txt --out run
  refuses 1 'nothere.json' "${TRAIN[@]}" --data book.txt --config nothere.json
  echo '{"batch": 4, "bacth": 5}' >job.json
  refuses 2 'job.json.*bacth.*did you mean.*batch' "${TRAIN[@]}" --data book.txt --config job.json
  echo '{"batch": ' >job.json
  refuses 1 'job.json.*line 2' "${TRAIN[@]}" --data book.txt --config job.json
  LISTS='"longrope", "attention_factor": 1.0, "short_factor": [1, 2, 3, 4, 5, 6], "long_factor": [1, 2, 3, 4, 5, 7]'
  # a scaling of positions that is not supported
  mkdir longrope && sed "s/\"llama3\"/$LISTS/" "$DATA/goldens/llama/config.json" >longrope/config.json
  refuses 2 'rotary' "$RAFTER" train longrope --data book.txt --out run
}

# An --out that cannot be written. Root may write anywhere, so a folder without write permission needs
# another user.
case_out() {
  touch file
  refuses 1 'file' "$RAFTER" train "$TINY" "${QUICK[@]}" --steps 1 --data book.txt --out file/run
  refuses 1 '/proc' "$RAFTER" train "$TINY" "${QUICK[@]}" --steps 1 --data book.txt --out /proc/nothere
  if [ "$(id -u)" != 0 ]; then
    mkdir locked && chmod 555 locked
    refuses 1 'locked' "$RAFTER" train "$TINY" "${QUICK[@]}" --steps 1 --data book.txt --out locked/run
  fi
}

# Numbers that overflow: the step is not applied, the error names the op, and training can continue
# from earlier checkpoints.
case_overflow() {
  status 0 "$RAFTER" train "$TINY" "${QUICK[@]}" --data book.txt --steps 4 --save-every 2 --out blown
  cp -r blown kept
  status 1 "$RAFTER" train --resume blown --lr 100 --min-lr 100 --warmup 0 --schedule constant --clip 0 --steps 60 --save-every 1 --keep 100 --eps 0 --beta2 0 ||
    echo "note: a learning rate of 100 did not blow up"
  if grep -q '^rafter: ' err; then
    says 'step/|block|[a-z]+/[a-z]+'
    says 'not finite|NaN|inf'
    says '^hint: '
    [ -e blown/checkpoint-00000004/DONE ] || fail 'a run that overflowed lost its earlier checkpoint'
  fi
  status 0 "$RAFTER" train --resume kept --steps 6
}

# A sparse llama2.c file of zeros: big enough that a command reads it for a while.
big_model() {
  python3 -c '
import struct
D, F, L, N, V, T = 1024, 4096, 4, 8, 4096, 32
n = V * D + L * (2 * D + 4 * D * D + 3 * D * F) + D + T * (D // N)
f = open("big.bin", "wb"); f.write(struct.pack("<7i", D, F, L, N, N, V, T)); f.truncate(28 + 4 * n)'
}
wait_for() { for _ in $(seq 1000); do compgen -G "$1" >/dev/null && return; sleep 0.01; done; }

# Another program shortens a model file while it is read, or data while a run trains on it.
case_shrunk() {
  for weights in q4_k f32; do
    big_model
    "$RAFTER" quantize big.bin small.gguf --weights $weights >out 2>err &
    pid=$!
    wait_for 'small.gguf.part-*' && truncate -s 4096 big.bin
    got=0; wait $pid || got=$?
    [ $got = 1 ] || fail "quantize of a file that becomes shorter ends with $got, not 1"
    says '^rafter: big.bin changed while it was read' && says '^hint: '
      left=$(compgen -G 'small.gguf*') && fail "quantize of a file that becomes shorter leaves $left"
  done
  long=("$RAFTER" train "$TINY" "${QUICK[@]}" --steps 400 --lr 1e-3 --out run)
  status 0 "${long[@]}" --data book.txt && mv run whole
  cp book.txt data.txt
  "${long[@]}" --data data.txt >out 2>err &
  pid=$!
  for _ in $(seq 1000); do
    [ "$(grep -c '"step"' run/metrics.jsonl 2>/dev/null)" -ge 3 ] 2>/dev/null && break
    sleep 0.01
  done
  truncate -s 100 data.txt
  got=0; wait $pid || got=$?
  [ $got = 1 ] || { fail "a run whose data becomes shorter ends with $got, not 1"; return; }
  says 'data.txt has become shorter' && says '^hint: .*--resume run'
  cp book.txt data.txt
  status 0 "$RAFTER" train --resume run && says 'resumed from run/checkpoint-' out
  losses whole >whole.txt && losses run >again.txt
  same whole.txt again.txt 'a run that lost its data continues to the bit'
}

# The same, but the file keeps its size, or loses less than a page: no signal tells that.
case_overwritten() {
  for change in 'truncate -s -1' 'dd conv=notrunc bs=1 seek=1000 count=8 if=/dev/urandom status=none of='; do
    big_model
    touch -d '1 minute ago' big.bin
    "$RAFTER" quantize big.bin small.gguf --weights q4_k >out 2>err &
    pid=$!
    wait_for 'small.gguf.part-*' && case $change in *of=) ${change}big.bin ;; *) $change big.bin ;; esac
    got=0; wait $pid || got=$?
    [ $got = 1 ] || fail "quantize of a file that changes ($change) ends with $got, not 1"
    says '^rafter: big.bin changed while it was read' && says '^hint: '
    left=$(compgen -G 'small.gguf*') && fail "quantize of a file that changes leaves $left"
  done
  long=("$RAFTER" train "$TINY" "${QUICK[@]}" --steps 400 --lr 1e-3 --out run)
  status 0 "${long[@]}" --data book.txt && mv run whole
  cp book.txt data.txt
  touch -d '1 minute ago' data.txt
  "${long[@]}" --data data.txt >out 2>err &
  pid=$!
  for _ in $(seq 1000); do
    [ "$(grep -c '"step"' run/metrics.jsonl 2>/dev/null)" -ge 3 ] 2>/dev/null && break
    sleep 0.01
  done
  tr a-z A-Z <book.txt | dd conv=notrunc status=none of=data.txt
  got=0; wait $pid || got=$?
  [ $got = 1 ] || { fail "a run whose data changes ends with $got, not 1"; return; }
  says 'data.txt has changed' && says '^hint: .*--resume run'
  cp book.txt data.txt
  status 0 "$RAFTER" train --resume run && says 'resumed from run/checkpoint-' out
  losses whole >whole.txt && losses run >again.txt
  same whole.txt again.txt 'a run whose data changed continues to the bit'
}

# A killed process leaves its incomplete file. The next writer of the same name removes it, but not
# the file of a process that lives.
case_left_behind() {
  big_model
  "$RAFTER" quantize big.bin small.gguf --weights q4_k >out 2>err &
  pid=$!
  wait_for 'small.gguf.part-*' && kill -9 $pid
  wait $pid 2>/dev/null
  [ -e small.gguf.part-$pid ] || fail 'quantize ended before it was killed'
  touch small.gguf.part-$$ other.gguf.part-$pid
  status 0 "$RAFTER" quantize "$DATA/goldens/mistral" small.gguf --weights f32
  [ "$(echo small.gguf*)" = "small.gguf small.gguf.part-$$" ] || fail "left: $(echo small.gguf*)"
  [ -e other.gguf.part-$pid ] || fail 'the file of another name is removed'
  status 0 "${TRAIN[@]}" --data book.txt && touch run/plan.json.part-$pid run/results.json.part-$$
  mkdir run/checkpoint-00000009.part-$pid-0 && touch run/checkpoint-00000009.part-$pid-0/model.safetensors
  status 0 "$RAFTER" train --resume run --steps 4
  left=$(find run -name '*.part-*')
  [ -z "$left" ] || fail "a resumed run keeps $left"
}

whole_after() { # whole_after RUN: expects every checkpoint of the run to be complete, and no partial files
  local left
  left=$(find "$1" -name '*.part*')
  [ -z "$left" ] || fail "a full disk leaves $left"
  for folder in "$1"/checkpoint-*; do
    [ -e "$folder/DONE" ] || fail "a full disk leaves the incomplete $folder"
    "$RAFTER" inspect "$folder/model.safetensors" >/dev/null 2>&1 ||
      fail "a full disk leaves a broken $folder/model.safetensors"
  done
}
BIG=gpt:layers=2,width=64,heads=2,ff=256,vocab=256,seq=32

# A small file system, if one can be mounted.
case_full_disk() {
  mkdir disk
  if mount -t tmpfs -o size=4m none disk 2>/dev/null; then
    trap 'umount "$WORK/disk"; rm -rf "$WORK"' EXIT
    refuses 1 'No space|space' "$RAFTER" train $BIG "${QUICK[@]}" --data book.txt --steps 8 --save-every 1 --keep 100 --out disk/run &&
      says '^hint: '
    [ "$(find disk/run -name DONE | wc -l)" -ge 1 ] || fail 'a full disk leaves no checkpoint'
    whole_after disk/run
    status 0 cp -r disk/run rescued && status 0 "$RAFTER" train --resume rescued
    cp "$RAFTER" disk/filler 2>/dev/null
    refuses 1 'space' "$RAFTER" train $BIG "${QUICK[@]}" --data book.txt --steps 2 --out disk/other
    refuses 1 'space' "$RAFTER" tokenize $BIG --input book.txt --output disk/book.shard
    umount disk && trap 'rm -rf "$WORK"' EXIT
  fi
  status 1 bash -c 'exec "$0" plan uva --json >/dev/full' "$RAFTER" || true
  says 'write'
}

# A small stack is raised. If the limit does not allow that, it is an error and not a crash.
case_stack() {
  limited() { (ulimit "$1" "$2" && shift 2 && exec "$@"); }
  status 0 limited -Ss 128 "$RAFTER" train "$TINY" "${QUICK[@]}" --steps 2 --data book.txt --out small
  status 0 limited -Ss 128 "$RAFTER" plan "$TINY"
  refuses 1 'stack is too small .ulimit -s: expected at least 512, got 128' \
    limited -s 128 "$RAFTER" train "$TINY" "${QUICK[@]}" --steps 2 --data book.txt --out none
  says '^hint: ' && [ ! -e none ] || fail 'a refused run leaves its folder'
}

# A limit on the size of files.
case_file_size() {
  status 0 "$RAFTER" train $BIG "${QUICK[@]}" --data book.txt --steps 2 --out limited
  refuses 1 'large|File' bash -c 'ulimit -f 300; trap "" XFSZ; exec "$@"' - "$RAFTER" train --resume limited --steps 3 &&
    whole_after limited
  [ "$(find limited -name DONE | wc -l)" = 1 ] || fail 'a file above the limit removes the earlier checkpoint'
  refuses 1 'large|File' bash -c 'ulimit -f 300; exec "$@"' - "$RAFTER" train --resume limited --steps 3 &&
    whole_after limited
}

cases "$@"
