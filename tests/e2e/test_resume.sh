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

for signal in TERM INT; do
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
losses killed >again.txt
same whole.txt again.txt "after $try times kill -9 the metrics are those of a run that was never stopped"
same whole/checkpoint-00000060/model.safetensors killed/checkpoint-00000060/model.safetensors "after $try times kill -9 the weights are the same"
same whole/checkpoint-00000060/optimizer.safetensors killed/checkpoint-00000060/optimizer.safetensors "after $try times kill -9 the moments are the same"
left=$(find killed -name '*.part*')
[ -z "$left" ] || fail "partial files are left after the last resume: $left"

# Resuming from damaged or changed files.
status 0 "${TRAIN[@]}" --steps 6 --save-every 3 --out base
damage() { # damage NAME COMMAND...: damages a new copy of the run in the folder hurt
  rm -rf hurt && cp -r base hurt && (cd hurt/checkpoint-00000006 && "$@")
}
for file in optimizer.safetensors model.safetensors state.json; do
  for size in 0 5 200; do
    damage truncate -s $size $file
    refuses 1 "$file" "$RAFTER" train --resume hurt --steps 8
  done
  damage rm $file
  refuses 1 "$file" "$RAFTER" train --resume hurt --steps 8
done
damage truncate -s -1 model.safetensors
refuses 1 'model.safetensors' "$RAFTER" train --resume hurt --steps 8
damage truncate -s -4096 optimizer.safetensors
refuses 1 'optimizer.safetensors' "$RAFTER" train --resume hurt --steps 8
damage rm DONE
status 0 "$RAFTER" train --resume hurt --steps 8 && says 'checkpoint-00000003' out
refuses 1 'checkpoint-00000009' "$RAFTER" train --resume hurt/checkpoint-00000009
damage sh -c 'echo "{\"step\": -1}" >state.json'
refuses 1 'state.json' "$RAFTER" train --resume hurt --steps 8
damage python3 -c '
import json, struct
b = bytearray(open("model.safetensors", "rb").read()); n = struct.unpack("<Q", b[:8])[0]
b[8 + n:8 + n + 4000] = b"\xff" * 4000; open("model.safetensors", "wb").write(b)'
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
finish
