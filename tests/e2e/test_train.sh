#!/usr/bin/env bash
# `rafter train`: the files of a run, repeating a run, and the kinds of data.
. "$(dirname "$0")/lib.sh"
TRAIN=("$RAFTER" train "$TINY" "${QUICK[@]}")

setup() {
  text book.txt 20000
  status 0 "${TRAIN[@]}" --data book.txt --steps 7 --save-every 1 --keep 3 --out keeps
  says 'held out for validation after the last step \(--val-every\)$' out
}

case_run_folder() {
  status 0 "${TRAIN[@]}" --data book.txt --steps 6 --val-every 3 --out run && {
    python3 - run <<'PY' || fail "the run's folder is not what docs/formats.md says"
import json, math, os, sys
run, bad = sys.argv[1], []
lines = [json.loads(l) for l in open(run + "/metrics.jsonl")]
first, steps = lines[0], lines[1:]
if not {"arena_bytes", "peak_bytes", "outside_arena_bytes"} <= first.keys() or not isinstance(first["outside_arena_bytes"], dict): bad.append(f"first line: {first}")
elif first["outside_arena_bytes"]["total"] >= 64 << 20: bad.append(f"outside the arena: {first['outside_arena_bytes']}")
want = set("step loss lr grad_norm accuracy tokens seconds tokens_per_second mfu predicted_seconds".split())
bad += [f"step {s.get('step')} lacks {want - s.keys()}" for s in steps if not want <= s.keys()]
if [s["step"] for s in steps] != list(range(1, 7)): bad.append("steps")
if [s["tokens"] for s in steps] != [128 * i for i in range(1, 7)]: bad.append(f"tokens {[s['tokens'] for s in steps]}")
if not abs(steps[0]["loss"] - math.log(256)) < 0.1: bad.append(f"first loss {steps[0]['loss']}")
if [("val_loss" in s) for s in steps] != [False, False, True] * 2 or abs(steps[2]["val_loss"] - steps[2]["loss"]) > 1: bad.append("val_loss")
for name in "run.json plan.json report.json".split():
    if not isinstance(json.load(open(f"{run}/{name}")), dict): bad.append(name)
last = run + "/checkpoint-00000006"
bad += [f"{last}/{n} is not there" for n in "config.json model.safetensors optimizer.safetensors state.json DONE".split() if not os.path.exists(f"{last}/{n}")]
plan = json.load(open(run + "/plan.json"))
if plan["memory"]["peak_bytes"] != first["arena_bytes"]: bad.append("plan.json's peak is not the arena")
record = json.load(open(run + "/run.json"))
if record["digest"] != plan["digest"] or record["options"]["batch"] != 4: bad.append("run.json")
left = [f for _, _, files in os.walk(run) for f in files if ".part" in f] + [d for d in os.listdir(run) if d.endswith(".part")]
if left: bad.append(f"partial files left: {left}")
print(*bad, sep="\n") if bad else None
sys.exit(bool(bad))
PY
    losses run >first.txt
    says 'step +6/6' out
    says 'full' out # how full the packed rows are
    says 'predicted [0-9]+ bytes, allocated [0-9]+ bytes' out
  }
  # run.json alone repeats the run, bit for bit, also with another number of threads.
  status 0 "$RAFTER" train --config run/run.json --out again &&
    { losses again >again.txt; same first.txt again.txt '--config run.json repeats the losses'; }
  status 0 "$RAFTER" train --config run/run.json --threads 1 --out alone &&
    { losses alone >again.txt; same first.txt again.txt 'one thread gives the losses of two'; }
  status 0 "${TRAIN[@]}" --data book.txt --steps 6 --val-every 3 --remat block --out remat &&
    { losses remat >again.txt; same first.txt again.txt '--remat block gives the losses of none'; }
  for file in model optimizer; do
    same run/checkpoint-00000006/$file.safetensors again/checkpoint-00000006/$file.safetensors "a repeated run writes the same $file.safetensors"
  done
  status 0 "$RAFTER" train --config run/run.json --seed 1 --out other &&
    { losses other >again.txt; ! cmp -s first.txt again.txt || fail 'another seed gives the same losses'; }
}

# --head-grad bf16 changes the weights, but not the loss of the first step. A resumed run keeps the
# value of its run, and a typed value replaces it. Other dtypes and jobs refuse the option.
case_head_grad() {
  local bf16=("${TRAIN[@]}" --data book.txt --dtype bf16 --steps 6 --save-every 3 --keep 2)
  for value in f32 bf16; do
    status 0 "${bf16[@]}" --head-grad $value --out $value && losses $value >$value.txt
  done
  status 0 "${bf16[@]}" --out plain && losses plain >plain.txt
  same plain.txt f32.txt 'without --head-grad, the gradient of logits is f32'
  [ "$(head -1 f32.txt | cut -d' ' -f2)" = "$(head -1 bf16.txt | cut -d' ' -f2)" ] ||
    fail '--head-grad bf16 changes the loss of the first step'
  ! cmp -s f32.txt bf16.txt || fail '--head-grad bf16 changes nothing'
  paste <(cut -d' ' -f2 f32.txt) <(cut -d' ' -f2 bf16.txt) |
    awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > $1 / 512) exit 1 }' ||
    fail "--head-grad bf16 changes a loss by more than a rounding: $(tail -1 f32.txt bf16.txt)"
  holds bf16/plan.json 'd["settings"]["head_grad"] == "bf16"' 'plan.json has head_grad'
  cp -r bf16 cut
  rm -rf cut/checkpoint-00000006
  cp -r cut typed
  status 0 "$RAFTER" train --resume cut &&
    { losses cut >again.txt; same bf16.txt again.txt '--resume keeps --head-grad'; }
  status 0 "$RAFTER" train --resume typed --head-grad f32 && losses typed >again.txt
  ! cmp -s bf16.txt again.txt || fail '--resume --head-grad f32 changes nothing'
  refuses 2 'head-grad bf16 needs activations in bf16 .*got f32' \
    "${TRAIN[@]}" --data book.txt --head-grad bf16 --out no
  refuses 2 'head-grad has no effect with --job generate' \
    "$RAFTER" plan "$TINY" --job generate --dtype bf16 --head-grad bf16
  status 0 "$RAFTER" plan "$TINY" --on h200 --head-grad bf16 --batch 4
}

# --json prints one object per line on stdout and everything else on stderr.
case_json() {
  status 0 "${TRAIN[@]}" --data book.txt --steps 3 --out json --json &&
    holds out 'len(rows) == 4 and "arena_bytes" in rows[0] and [r["step"] for r in rows[1:]] == [1, 2, 3]' 'train --json prints JSON Lines'
  status 0 "${TRAIN[@]}" --data book.txt --steps 3 --out quiet --quiet
}

# Without --out, the run gets a folder under runs/ named after the model.
case_default_folder() {
  status 0 "${TRAIN[@]}" --data book.txt --steps 1 && { [ "$(find runs -name DONE | wc -l)" = 1 ] || fail 'a run without --out is not under runs/'; }
}

# --max-seconds: the run ends in time with exit status 0, saves, and can be continued.
case_max_seconds() {
  begin=$(date +%s%N)
  status 0 "${TRAIN[@]}" --data book.txt --steps 1000000 --max-seconds 2 --out timed && {
    took=$((($(date +%s%N) - begin) / 1000000))
    [ "$took" -lt 6000 ] || fail "--max-seconds 2 took $took ms"
    [ "$(find timed -name DONE | wc -l)" = 1 ] || fail '--max-seconds leaves no checkpoint'
    says '^stopped after .* s at step [0-9]+ of 1000000 .--max-seconds.; .*--resume timed. continues$' out
  }
}

# Redirected output: a progress line with the time left at least every 10 seconds. The process keeps
# its name although the program restarts itself.
case_signs_of_life() {
  env -u OMP_WAIT_POLICY "${TRAIN[@]}" --data book.txt --steps 100000000 --max-seconds 13 --val-every 0 \
    --out alive >out 2>err &
  sleep 3
  [ "$(cat /proc/$!/comm)" = rafter ] || fail "the process is called $(cat /proc/$!/comm)"
  tr '\0' ' ' </proc/$!/cmdline | grep -q "^$RAFTER train" || fail 'the arguments are not those typed'
  wait $! || fail "training fails: $(cat err)"
  says '^\[[#.]+\] [0-9]+/100000000 .* left$'
}

# --tokenizer: a model from scratch trains on the ids of a tokenizer, and its checkpoint has the
# tokenizer. Without one, a large vocabulary is an error.
case_tokenizer() {
  mkdir bpe
  python3 - <<'PY'
import json
kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
others = [b for b in range(256) if b not in kept]
letter = {b: chr(b) for b in kept} | {b: chr(256 + n) for n, b in enumerate(others)}
merges = [("t", "h"), ("th", "e"), (letter[32], "the"), ("a", "n")]
vocab = {letter[b]: b for b in range(256)} | {a + b: 256 + n for n, (a, b) in enumerate(merges)}
byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
json.dump({"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
           "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
           "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                     "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocab,
                     "merges": [" ".join(m) for m in merges]}}, open("bpe/tokenizer.json", "w"))
PY
  cp bpe/tokenizer.json own.json
  SPEC=gpt:layers=2,width=32,heads=2,ff=64,seq=32,vocab
  from_scratch() { "$RAFTER" train "$@" "${QUICK[@]}" --data book.txt --steps 2 --val-every 0; }
  status 0 "$RAFTER" tokenize bpe --input book.txt --output book.shard
  status 0 from_scratch $SPEC=260 --tokenizer bpe --out bytes && ! grep -q notice err &&
    cmp bytes/book.txt.shard book.shard || fail 'train --tokenizer does not read the ids of tokenize'
  status 0 from_scratch $SPEC=300 --tokenizer own.json --out wide && says 'notice: .* 260 ids, the model 300'
  cmp wide/checkpoint-00000002/tokenizer.json own.json || fail 'the checkpoint has another tokenizer'
  status 0 "$RAFTER" generate wide --prompt 'the the' --max-tokens 2 --json &&
    holds out 'd["prompt_tokens"] == 2'
  rm -r bpe own.json
  status 0 "$RAFTER" train --resume wide --steps 4 # the run has a copy
  refuses 1 'id 258: expected below 258' from_scratch $SPEC=258 --tokenizer wide/tokenizer --out no
  refuses 1 'nowhere' from_scratch $SPEC=260 --tokenizer nowhere --out no
  refuses 2 'tokenizer of its own' from_scratch wide/checkpoint-00000002 --tokenizer wide/tokenizer --out no
  status 0 "$RAFTER" train wide --resume wide --steps 5
  refuses 2 'at most 4096, got 8192' from_scratch $SPEC=8192 --out no &&
    says '^hint: .*--tokenizer.*vocab=256'
  refuses 2 'at most 4096, got 50257' "$RAFTER" train gpt2 --batch 1 --seq 16 --data book.txt --out no &&
    says '^hint: .* train on bytes with gpt2:vocab=256$'
  # The hint for a shape is a shape that trains.
  refuses 2 'at most 4096, got 50257' from_scratch gpt:layers=1,width=32,heads=2,seq=32 --out no &&
    status 0 from_scratch "$(grep -oP '^hint: .*bytes with \K.*' err)" --out hinted
  refuses 1 'cannot open missing.txt' "$RAFTER" train gpt2 --batch 1 --seq 16 --data missing.txt --out no
  example=$("$RAFTER" train --help | grep -oP 'rafter train \Kgpt:\S+(?= --data notes.txt)')
  status 0 from_scratch "$example" --seq 16 --out example # the first example of the help
  echo '{"text": "a text, not ids"}' >row.jsonl
  refuses 1 'no tokenizer .*line 1' "$RAFTER" train $SPEC=8192 --data row.jsonl --out no &&
    says '^hint: .*--tokenizer'
  [ ! -e no ] || fail 'a refused run leaves a folder'
  status 0 from_scratch $SPEC=2048 --out padded && says 'notice: .* 257 ids, the model 2048'
}

# The kinds of data.
case_kinds_of_data() {
  status 0 "${TRAIN[@]}" --data book.txt --steps 6 --val-every 3 --out run && losses run >first.txt
  status 0 "$RAFTER" tokenize "$TINY" --input book.txt --output book.shard
  status 0 "${TRAIN[@]}" --data book.shard --steps 6 --val-every 3 --out shard &&
    { losses shard >again.txt; same first.txt again.txt 'a shard written by tokenize trains as the text does'; }
  python3 - <<'PY'
import json
text = open("book.txt").read()
with open("rows.jsonl", "w") as f:
    at = 0
    for n in range(300):
        size = 5 + n * 7 % 90
        row = text[at:at + size]; at = (at + size) % 15000
        f.write(json.dumps({"text": row} if n % 3 else {"tokens": list(row.encode())}) + "\n" + ("\n" if n % 50 == 0 else ""))
PY
  status 0 "${TRAIN[@]}" --data rows.jsonl --steps 4 --val-every 2 --out rows && {
    says 'rows of 32 \([0-9.]+ % full\)' out
    full=$(grep -oE '[0-9.]+ % full' out | cut -d' ' -f1)
    python3 -c "import sys; sys.exit(not 90 < float('${full:-0}') <= 100)" ||
      fail "packing fills only ${full:-?} % of the rows"
  }
  status 0 "${TRAIN[@]}" --data rows.jsonl --packing none --steps 4 --val-every 0 --out loose && {
    loose=$(grep -oE '[0-9.]+ % full' out | cut -d' ' -f1)
    python3 -c "import sys; sys.exit(not float('${loose:-100}') < float('${full:-0}'))" ||
      fail "--packing none (${loose:-?} % full) is not emptier than packing (${full:-?} %)"
  }
  echo '{"text": "only one row, long enough to train on, and nothing to hold out for validation"}' >one.jsonl
  status 0 "${TRAIN[@]}" --data one.jsonl --steps 2 --out one
  status 0 "${TRAIN[@]}" --data random:seed=3 --steps 2 --val-every 1 --out noise &&
    holds noise/metrics.jsonl 'all("val_loss" not in r for r in rows)' 'random tokens are not validated'
  cp book.txt random.txt # a file, in spite of its name
  status 0 "$RAFTER" train "$TINY" "${QUICK[@]}" --data random.txt --steps 2 --val-every 2 --out named &&
    holds named/metrics.jsonl '"val_loss" in rows[-1]' 'a file whose name begins with random is validated'
  head -c 9000 book.txt | tr a-z A-Z >loud.txt
  status 0 "${TRAIN[@]}" --data book.txt:3 --data loud.txt:1 --steps 8 --val-every 4 --save-every 4 --out mix &&
    {
    holds mix/checkpoint-00000008/state.json '[s["drawn"] for s in d["data"]] == [24, 8]' 'weights 3 and 1 draw rows 3 to 1'
    losses mix >mix.txt
  }
  status 0 "${TRAIN[@]}" --data book.txt:3,loud.txt:1 --steps 8 --val-every 4 --out mixed &&
    { losses mixed >again.txt; same mix.txt again.txt 'a list with commas is the same as --data twice'; }
  status 0 "$RAFTER" train --config mix/run.json --out mix_again &&
    { losses mix_again >again.txt; same mix.txt again.txt 'run.json repeats a mixture'; }
}

# Examples: prompts with completions and conversations, with standard or mapped names. Results do
# not depend on threads, accumulation, or the step at which a run was interrupted.
case_examples() {
  python3 - <<'PY'
import json
text = open("book.txt").read().split()
with open("pairs.jsonl", "w") as pairs, open("talks.jsonl", "w") as talks:
    for n in range(200):
        q, a = " ".join(text[n * 3:n * 3 + 1 + n % 3]), " ".join(text[n * 2:n * 2 + 1 + n % 2])
        pairs.write(json.dumps({"question": q, "answer": a}) + "\n")
        talks.write(json.dumps({"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]}) + "\n")
PY
  PAIRS=(--data pairs.jsonl --fields prompt=question,completion=answer --val-every 3)
  status 0 "${TRAIN[@]}" "${PAIRS[@]}" --steps 6 --save-every 3 --out pairs && {
    says 'rows of 32 \([0-9.]+ % full\)' out
    holds pairs/metrics.jsonl 'all(0 < r["loss_tokens"] < r["tokens"] <= 128 * r["step"] and 0 < r["epoch"] < 1 for r in rows[1:]) and rows[3]["val_loss"] > 5' 'the loss counts only completions'
    losses pairs >pairs.txt
  }
  status 0 "$RAFTER" train --config pairs/run.json --threads 1 --out pairs1 &&
    { losses pairs1 >again.txt; same pairs.txt again.txt 'one thread gives the losses of two on examples'; }
  rm -rf pairs/checkpoint-00000006 && status 0 "$RAFTER" train --resume pairs &&
    { losses pairs >again.txt; same pairs.txt again.txt 'a resumed run on examples repeats the losses'; }
  refuses 1 'the data is not what the run was trained on' "$RAFTER" train --resume pairs --steps 9 --loss-on all
  status 0 "${TRAIN[@]}" --data pairs.jsonl --fields prompt=question,completion=answer --val-every 0 --epochs 1 --out epoch &&
    {
    rows=$(grep -oE '[0-9]+ rows of 32' out | cut -d' ' -f1)
    holds epoch/metrics.jsonl "len(rows) - 1 == math.ceil($rows / 4) and 1 <= rows[-1]['epoch'] < 1 + 4 / $rows" '--epochs 1 goes through the data once'
  }
  refuses 1 'pairs.jsonl, line 1' "${TRAIN[@]}" --data pairs.jsonl --out none
  refuses 1 'no chat template.*talks.jsonl, line 1' "${TRAIN[@]}" --data talks.jsonl --out none
  TALK=gpt:layers=2,width=32,heads=2,ff=64,vocab=256,seq=96
  status 0 "$RAFTER" train $TALK "${QUICK[@]}" --data talks.jsonl --template "$DATA/templates/chatml.jinja" --steps 2 --out talks &&
    says 'rows of 96' out
  status 0 "$RAFTER" tokenize $TALK --input talks.jsonl --output talks.shard --template "$DATA/templates/chatml.jinja" &&
    says 'with a loss mask' out
  status 0 "$RAFTER" train $TALK "${QUICK[@]}" --data talks.shard --steps 2 --out talked && {
    losses talks >first.txt; losses talked >again.txt
    same first.txt again.txt 'a shard of rows written by tokenize trains as the rows do'
  }
  # all prompts are longer than a row
  refuses 1 'nothing to train on' "${TRAIN[@]}" --data talks.jsonl --template "$DATA/templates/chatml.jinja" --out none
  # A given template is exported with the weights, so that programs which talk to the model use the
  # template of the training.
  status 0 "$RAFTER" export talks talks.model &&
    same "$DATA/templates/chatml.jinja" talks.model/chat_template.jinja 'the template of a training'
  status 0 "$RAFTER" generate talks --chat --prompt hello --max-tokens 2 --json && cp out own &&
    status 0 "$RAFTER" generate talks --chat --prompt hello --template "$DATA/templates/chatml.jinja" --max-tokens 2 --json
  holds own "d['prompt_tokens'] == $(ask out 'd["prompt_tokens"]')" 'the template of a checkpoint'
}

# Training works: the loss on names falls far below ln 256.
case_learns() {
  status 0 "${TRAIN[@]}" --data book.txt --steps 150 --lr 1e-2 --val-every 0 --out learns &&
    holds learns/metrics.jsonl 'rows[-1]["loss"] < 3 and rows[-1]["accuracy"] > 0.2' '150 steps bring the loss under 3'
}

# --keep N keeps the newest N checkpoints.
case_keep() {
  kept=$(cd keeps && echo checkpoint-*)
  [ "$kept" = "checkpoint-00000005 checkpoint-00000006 checkpoint-00000007" ] || fail "--keep 3 leaves $kept"
}

# A folder with a run is refused for another run, whose first checkpoints would be removed as the
# oldest.
case_no_second_run() {
  kept=$(cd keeps && echo checkpoint-*)
  refuses 1 'keeps holds a run already' "${TRAIN[@]}" --data book.txt --steps 1 --out keeps
  [ "$(cd keeps && echo checkpoint-*)" = "$kept" ] || fail 'a refused run changes the folder of another'
  cp -r keeps back && status 0 "$RAFTER" train --resume back/checkpoint-00000005 --steps 6 --keep 1 &&
    [ -e back/checkpoint-00000006/DONE ] || fail 'the newest checkpoint is removed'
  status 0 "${TRAIN[@]}" --data book.txt --steps 1 --out learns
  refuses 1 'keeps holds a run already' "$RAFTER" train --resume learns --steps 151 --out keeps
}

# A refused run leaves no files.
case_refusals() {
  echo '{"text": "a b c"}' >few.jsonl && head -c 20 book.txt >short.txt
  refuses 1 'too short' "${TRAIN[@]}" --data few.jsonl,short.txt --steps 1 --out none
  refuses 2 'epochs' "${TRAIN[@]}" --data book.txt --epochs 0 --out none
  refuses 2 'random data never ends' "${TRAIN[@]}" --data random:seed=0 --epochs 1 --out none
  refuses 2 'min-lr' "${TRAIN[@]}" --data book.txt --steps 1 --lr 1e-3 --min-lr 1 --out none
  refuses 2 'steps and --epochs' "${TRAIN[@]}" --data book.txt --steps 1 --epochs 1 --out none
  [ ! -e none ] || fail 'a refused run leaves its folder'
}

# --microbatch alone keeps the default batch, or raises it. run.json has the batch of the run.
case_default_batch() {
  ALONE=("$RAFTER" train "$TINY" --threads 2 --data book.txt --steps 2 --val-every 0)
  for given in '--microbatch 2:8' '--microbatch 3:9' '--accumulate 3:9'; do
    # shellcheck disable=SC2086
    status 0 "${ALONE[@]}" ${given%:*} --out alone && {
      holds alone/plan.json "d['settings']['batch'] == ${given#*:}" "the batch of ${given%:*}"
      holds alone/run.json "d['options']['batch'] == ${given#*:}" "the recorded batch of ${given%:*}"
      losses alone >first.txt
    }
    status 0 "$RAFTER" train --config alone/run.json --out again &&
      { losses again >again.txt; same first.txt again.txt "run.json repeats ${given%:*}"; }
    status 0 "$RAFTER" train --resume alone --steps 3 &&
      holds alone/plan.json "d['settings']['batch'] == ${given#*:}" "the resumed batch of ${given%:*}"
    rm -rf alone again
  done
}

# Errors of the data are reported before missing memory, and missing files before all others.
case_order_of_errors() {
  MUCH=(--batch 1048576 --steps 1 --val-every 0 --out none)
  : >empty.txt && : >empty.jsonl && head -c 20 book.txt >short.txt && echo '{"texts": 1}' >bad.jsonl
  for lora in '' '--lora rank=2'; do
    # shellcheck disable=SC2086
    much() { "$RAFTER" train gpt:layers=4,width=512,heads=8,vocab=256,seq=32 "${MUCH[@]}" $lora "$@"; }
    refuses 3 'does not fit' much --data book.txt
    for kind in txt jsonl shard; do
      refuses 1 "cannot open missing.$kind" much --data missing.$kind &&
        says '^hint: check the path given to --data'
    done
    refuses 1 'empty.txt has no tokens' much --data empty.txt
    refuses 1 'empty.jsonl has no tokens' much --data book.txt,empty.jsonl:2
    refuses 1 'short.txt is too short' much --data short.txt
    refuses 1 'bad.jsonl, line 1' much --data bad.jsonl
  done
  # Large texts are not tokenized for a plan that does not fit.
  for _ in $(seq 900); do cat book.txt; done >large.txt
  refuses 3 'does not fit' much --data large.txt
  refuses 1 'empty.txt has no tokens' much --data large.txt,empty.txt
  refuses 2 'no tokenizer' "$RAFTER" train gpt2 --batch 4096 --steps 1 --out none --data empty.txt
  refuses 1 'cannot open missing.txt' \
    "$RAFTER" train gpt2 --batch 4096 --steps 1 --out none --data book.txt,missing.txt:3
  [ ! -e none ] || fail 'a refused run leaves its folder'
}

# --epochs sets the length; a later --steps replaces it.
case_epochs() {
  status 0 "${TRAIN[@]}" --data book.txt --epochs 0.05 --max-seconds 0.001 --out round &&
    status 0 "$RAFTER" train --resume round --steps 3 --max-seconds 60 &&
    holds round/metrics.jsonl 'rows[-1]["step"] == 3'
  holds round/run.json '"epochs" not in d["options"] and d["options"]["steps"] == 3' &&
    status 0 "$RAFTER" train --resume round --steps 4 && holds round/metrics.jsonl 'rows[-1]["step"] == 4'
}

# Dropout, and weights from another folder.
case_dropout_and_weights() {
  status 0 "${TRAIN[@]}" --data book.txt --steps 3 --dropout 0.2 --out dropout
  status 0 "$RAFTER" train keeps/checkpoint-00000007 "${QUICK[@]}" --data book.txt --steps 2 --out tuned &&
    holds tuned/metrics.jsonl 'rows[1]["loss"] < 5.6' 'training starts from the weights of a folder'
}

cases "$@"
