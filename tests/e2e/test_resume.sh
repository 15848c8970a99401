#!/usr/bin/env bash
# A run that was stopped, by a signal or by a kill, continues to the bit. Damaged files are refused
# by name.
. "$(dirname "$0")/lib.sh"
text book.txt 20000
TRAIN=("$RAFTER" train "$TINY" "${QUICK[@]}" --data book.txt --lr 1e-3 --dropout 0.1 --val-every 5)
newest() { find "$1" -name DONE | sort | tail -1 | xargs -r dirname; }

status 0 "${TRAIN[@]}" --steps 60 --out whole
losses whole >whole.txt

# metrics.jsonl of a resumed run has every step once.
status 0 "$RAFTER" train --config whole/run.json --steps 60 --save-every 7 --keep 2 --out cut
rm -rf cut/checkpoint-00000060 cut/checkpoint-00000056/DONE
status 1 "$RAFTER" train --resume cut || true
says 'no complete checkpoint' && says '^hint: '

for signal in TERM INT HUP; do
  rm -rf stopped
  "${TRAIN[@]}" --steps 60 --out stopped >out 2>err &
  pid=$!
  for _ in $(seq 400); do [ "$(grep -c '"step"' stopped/metrics.jsonl 2>/dev/null)" -ge 3 ] 2>/dev/null && break; sleep 0.01; done
  kill -$signal $pid
  wait $pid
  got=$?
  if [ "$(newest stopped)" = stopped/checkpoint-00000060 ]; then echo "note: the run ended before SIG$signal came"; continue; fi
  [ $got = 130 ] || fail "SIG$signal ends a run with $got, not 130"
  says 'resume' || true
  [ -n "$(newest stopped)" ] || fail "SIG$signal leaves no checkpoint"
  status 0 "$RAFTER" train --resume stopped &&
    { losses stopped >again.txt; same whole.txt again.txt "SIG$signal and --resume give the metrics of a run that was never stopped"; }
  same whole/checkpoint-00000060/model.safetensors stopped/checkpoint-00000060/model.safetensors "SIG$signal and --resume give the same weights"
  same whole/checkpoint-00000060/optimizer.safetensors stopped/checkpoint-00000060/optimizer.safetensors "SIG$signal and --resume give the same moments"
done

# A run that continues from an older checkpoint leaves its newer ones.
status 0 "$RAFTER" train --config whole/run.json --steps 20 --save-every 5 --keep 9 --out left
status 0 "$RAFTER" train --resume left/checkpoint-00000010 --steps 12 --keep 9
[ -d left/before-checkpoint-00000020 ] && [ ! -e left/checkpoint-00000020 ] ||
  fail "newer checkpoints: $(ls left)"
status 0 "$RAFTER" train --resume left --steps 14 && says 'at step 12' out
python3 -c '
import json
steps = [r["step"] for r in map(json.loads, open("left/metrics.jsonl")) if "step" in r]
assert steps == list(range(1, 15)), steps' || fail 'the steps of a run that went back'

# A run ends if it cannot write its metrics, and keeps its steps.
mkdir full && ln -s /dev/full full/metrics.jsonl
status 1 "${TRAIN[@]}" --steps 6 --out full && says 'cannot write metrics.jsonl' && says 'hint: make room'
[ -n "$(newest full)" ] || fail "a run without metrics leaves $(ls full)"

# kill -9 several times at random moments, while checkpoints are written all the time.
rm -rf killed
"${TRAIN[@]}" --steps 60 --save-every 1 --keep 1 --out killed >out 2>err & pid=$!
for try in $(seq 40); do
  sleep "0.$((RANDOM % 25 + 5))"
  kill -9 $pid 2>/dev/null
  wait $pid 2>/dev/null
  [ "$(newest killed)" = killed/checkpoint-00000060 ] && break
  if [ -z "$(newest killed)" ]; then
    [ "$(losses killed 2>/dev/null | wc -l)" -lt 2 ] || fail "try $try: steps were saved, but there is no complete checkpoint: $(ls killed)"
    rm -rf killed
    "${TRAIN[@]}" --steps 60 --save-every 1 --keep 1 --out killed >out 2>err & pid=$!
  else
    "$RAFTER" train --resume killed >out 2>err & pid=$!
  fi
done
wait $pid 2>/dev/null
status 0 "$RAFTER" train --resume killed || true
says 'already at step 60 of 60; --steps trains further' out
losses killed >again.txt
same whole.txt again.txt "after $try times kill -9 the metrics are those of a run that was never stopped"
same whole/checkpoint-00000060/model.safetensors killed/checkpoint-00000060/model.safetensors "after $try times kill -9 the weights are the same"
same whole/checkpoint-00000060/optimizer.safetensors killed/checkpoint-00000060/optimizer.safetensors "after $try times kill -9 the moments are the same"
left=$(find killed -name '*.part*')
[ -z "$left" ] || fail "partial files are left after the last resume: $left"

# A run that is killed before its first checkpoint begins again, with its options and its trace.
"${TRAIN[@]}" --steps 100000 --trace steps=2..3 --out early >out 2>err & pid=$!
for _ in $(seq 1600); do
  grep -qs '"step":3,' early/metrics.jsonl && break
  sleep 0.01
done
kill -9 $pid
wait $pid 2>/dev/null
mkdir early/checkpoint-00000003.part-1
refuses 1 'early holds a run already' "${TRAIN[@]}" --steps 60 --out early
status 0 "$RAFTER" train --resume early --steps 60 && {
  says 'the run has no checkpoint yet, so it begins again with its recorded options' out
  losses early >again.txt
  same whole.txt again.txt 'a run that begins again has the metrics of a run that was never stopped'
  same whole/checkpoint-00000060/model.safetensors early/checkpoint-00000060/model.safetensors \
    'a run that begins again has the weights of a run that was never stopped'
  [ -s early/trace.bin ] || fail 'a run that begins again has no trace'
  [ -z "$(find early -name '*.part*')" ] || fail 'a run that begins again keeps partial files'
}
# But a run that has ended does not begin again if its checkpoints are gone.
rm -rf early/checkpoint-*
cp early/metrics.jsonl before.txt
refuses 1 'early holds no complete checkpoint' "$RAFTER" train --resume early
same before.txt early/metrics.jsonl 'a refused --resume changes the metrics'

# Resuming from damaged or changed files.
status 0 "${TRAIN[@]}" --steps 6 --save-every 3 --out base
damage() { # damage NAME COMMAND...: damages a new copy of the run in the folder hurt
  rm -rf hurt && cp -r base hurt && (cd hurt/checkpoint-00000006 && "$@")
}
# A checkpoint of an earlier version has an empty DONE, and no hashes. Its readers notice missing bytes.
for file in optimizer.safetensors model.safetensors state.json; do
  for size in 0 5 200; do
    damage sh -c "truncate -s $size $file; : >DONE"
    refuses 1 "$file" "$RAFTER" train --resume hurt --steps 8
  done
  damage sh -c "rm $file; : >DONE"
  refuses 1 "$file" "$RAFTER" train --resume hurt --steps 8
done
damage sh -c 'truncate -s -1 model.safetensors; : >DONE'
refuses 1 'model.safetensors' "$RAFTER" train --resume hurt --steps 8
damage sh -c 'truncate -s -4096 optimizer.safetensors; : >DONE'
refuses 1 'optimizer.safetensors' "$RAFTER" train --resume hurt --steps 8
damage sh -c ': >DONE'
status 0 "$RAFTER" train --resume hurt --steps 8

# A new checkpoint has a hash of each file. One flipped bit is noticed, and the error names the older
# checkpoint.
flip() { python3 -c '
import os, sys
at = os.path.getsize(sys.argv[1]) * 2 // 3
f = open(sys.argv[1], "r+b"); f.seek(at); b = f.read(1)[0]; f.seek(at); f.write(bytes([b ^ 4]))' "$1"; }
for file in optimizer.safetensors model.safetensors state.json config.json; do
  for how in flip rm 'truncate -s -1'; do
    damage $how $file
    refuses 1 "checkpoint-00000006/$file.*(damaged|cannot be opened)" "$RAFTER" train --resume hurt --steps 8
    says '^hint: .*hurt/checkpoint-00000003'
  done
done
flip hurt/checkpoint-00000003/state.json
refuses 1 'checkpoint-00000006/config.json' "$RAFTER" train --resume hurt --steps 8
! grep -q 'checkpoint-00000003' err || fail 'the hint names a checkpoint that is damaged too'
damage sed -i '1s/^./x/' DONE
refuses 1 'DONE has a broken line' "$RAFTER" train --resume hurt --steps 8
damage sed -i '1s,  ,  ../,' DONE
refuses 1 'DONE has a broken line' "$RAFTER" train --resume hurt --steps 8
echo '{"text": "and the heaven"}' >rows.jsonl
damage flip model.safetensors
refuses 1 'model.safetensors.*damaged' "$RAFTER" generate hurt --prompt 'the ' --max-tokens 4
says '^hint: .*hurt/checkpoint-00000003'
WEIGHTS=hurt/checkpoint-00000006/model.safetensors
refuses 1 'model.safetensors.*damaged' "$RAFTER" generate $WEIGHTS --prompt 'the ' --max-tokens 4
refuses 1 'model.safetensors.*damaged' "$RAFTER" score hurt --input rows.jsonl --output scored.jsonl
refuses 1 'model.safetensors.*damaged' "$RAFTER" export hurt exported
refuses 1 'model.safetensors.*damaged' "$RAFTER" export hurt exported.gguf
damage sh -c ': >>optimizer.safetensors; echo >>optimizer.safetensors'
status 0 "$RAFTER" generate hurt --prompt 'the ' --max-tokens 4 # does not read the moments
if command -v xxh128sum >/dev/null; then
  (cd base/checkpoint-00000006 && xxh128sum -c DONE >../../out) || fail 'xxh128sum does not accept DONE'
fi

# One folder, one training at a time: the second is refused, and the first notices nothing.
"${TRAIN[@]}" --steps 100000 --save-every 50 --out busy >first.out 2>first.err &
pid=$!
for _ in $(seq 400); do [ -e busy/metrics.jsonl ] && break; sleep 0.01; done
for _ in $(seq 800); do [ -n "$(newest busy)" ] && break; sleep 0.01; done
refuses 1 'busy is in use' "$RAFTER" train --resume busy
says '^hint: '
refuses 1 'busy' "${TRAIN[@]}" --steps 5 --out busy
kill -9 $pid
wait $pid 2>/dev/null
status 0 "$RAFTER" train --resume busy --steps $((10#$(newest busy | grep -o '[0-9]*$') + 2)) || true
holds busy/metrics.jsonl '[r["step"] for r in rows if "step" in r] == list(range(1, rows[-1]["step"] + 1))'

damage rm DONE
status 0 "$RAFTER" train --resume hurt --steps 8 && says 'checkpoint-00000003' out
refuses 1 'checkpoint-00000009' "$RAFTER" train --resume hurt/checkpoint-00000009
damage sh -c 'echo "{\"step\": -1}" >state.json; : >DONE'
refuses 1 'state.json' "$RAFTER" train --resume hurt --steps 8
damage python3 -c '
import json, struct
b = bytearray(open("model.safetensors", "rb").read()); n = struct.unpack("<Q", b[:8])[0]
b[8 + n:8 + n + 4000] = b"\xff" * 4000; open("model.safetensors", "wb").write(b); open("DONE", "w")'
refuses 1 'NaN|not finite|not a number|inf' "$RAFTER" train --resume hurt --steps 8
says '[a-z0-9]+/[a-z0-9]+' # the op that gave the value
[ -e hurt/checkpoint-00000003/DONE ] || fail 'a run with a NaN lost its earlier checkpoint'
[ ! -e hurt/checkpoint-00000008 ] || fail 'a run with a NaN saved a checkpoint'

cp -r base moved && head -c 15000 book.txt >shorter.txt
refuses 1 'data' "$RAFTER" train --resume moved --data shorter.txt --steps 8
tr a-z b-za <book.txt >swapped.txt
refuses 1 'swapped.txt' "$RAFTER" train --resume moved --data swapped.txt --steps 8
refuses 1 'seed' "$RAFTER" train --resume moved --seed 5 --steps 8
refuses 1 'nowhere' "$RAFTER" train --resume nowhere
mkdir bare
refuses 1 'bare' "$RAFTER" train --resume bare
refuses 1 '' "$RAFTER" train "gpt:layers=3,width=32,heads=2,ff=64,vocab=256,seq=32" --resume base --steps 8
refuses 1 '' "$RAFTER" train "gpt:layers=2,width=64,heads=2,ff=64,vocab=256,seq=32" --resume base --steps 8

# A checkpoint folder can be resumed too. A run that is resumed elsewhere does not change the old
# one.
find base -type f -exec sha256sum {} + | sort >before.txt
status 0 "$RAFTER" train --resume base/checkpoint-00000003 --out branch --steps 6 &&
  same base/checkpoint-00000006/model.safetensors branch/checkpoint-00000006/model.safetensors 'resume from an older checkpoint gives the same weights'
find base -type f -exec sha256sum {} + | sort >after.txt
same before.txt after.txt 'resume with --out changes the old run'

# A run continues from any folder: its relative paths are those of the folder where it began, if they
# do not exist in the current folder. Runs without this folder in run.json continue as before.
mkdir -p began/model other && cp base/checkpoint-00000006/{model.safetensors,config.json} began/model &&
  python3 -c 'import json
for name, k in (("first", 3), ("second", 7)):
    rows = [{"tokens": [(i * k + j) % 256 for j in range(40)]} for i in range(60)]
    open(f"began/{name}.jsonl", "w").write("".join(json.dumps(row) + "\n" for row in rows))'
(cd began && "$RAFTER" train ./model "${QUICK[@]}" --seq 32 --data first.jsonl:3,second.jsonl \
  --val-every 0 --steps 2 --out ../ended) >log 2>&1 || fail "no run begins in another folder: $(tail -3 log)"
for from in began other; do
  cp -r ended $from-run
  (cd $from && status 0 "$RAFTER" train --resume ../$from-run --steps 4) || fail "resume in the folder $from"
done
same began-run/checkpoint-00000004/model.safetensors other-run/checkpoint-00000004/model.safetensors \
  'resume from another folder gives the same weights'
cp -r ended old-run && python3 - <<'PY'
import json
run = json.load(open("old-run/run.json")); del run["directory"]; json.dump(run, open("old-run/run.json", "w"))
PY
(cd began && status 0 "$RAFTER" train --resume ../old-run --steps 4) ||
  fail 'resume of a run without its folder'
status 0 "$RAFTER" train "$TINY" "${QUICK[@]}" --data random --steps 2 --out drawn &&
  status 0 "$RAFTER" train --resume drawn --steps 4
# Paths that exist nowhere: the error names the folder to which they are relative.
mv began gone
refuses 1 "no file ./model .MODEL. in this folder or in $WORK/began, where the run began" "$RAFTER" \
  train --resume ended --steps 4 || true
refuses 1 "no file first.jsonl .--data. in this folder or in $WORK/began" \
  sh -c 'cd other && exec "$@"' - "$RAFTER" train ../gone/model --resume ../ended --steps 4 &&
  says '^hint: the paths of a run are relative to the folder where it began; give --data'
status 0 "$RAFTER" train gone/model --resume ended --data gone/first.jsonl:3,gone/second.jsonl --steps 4 &&
  same began-run/checkpoint-00000004/model.safetensors ended/checkpoint-00000004/model.safetensors \
    'resume with given paths gives the same weights'
finish
