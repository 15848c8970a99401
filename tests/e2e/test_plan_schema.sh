#!/usr/bin/env bash
# The JSON of every plan, and of --fit, --sweep and --compare, follows docs/schema. The schemas are
# strict enough to notice missing or wrong values.
. "$(dirname "$0")/lib.sh"
python3 -c 'import jsonschema' 2>/dev/null || { echo "skip: needs python3-jsonschema"; exit 77; }
SCHEMAS=$HERE/../../docs/schema
SCHEMA=$SCHEMAS/plan.schema.json
export PYTHONPATH=$WORK PYTHONWARNINGS=ignore

setup() {
  cat >schemas.py <<'PY'
import functools, json, jsonschema
@functools.cache
def checker(folder, form):
    names = ("plan", "plan-fit", "plan-sweep", "plan-compare")
    all = {n: json.load(open(f"{folder}/{n}.schema.json")) for n in names}
    jsonschema.Draft202012Validator.check_schema(all[form])
    resolver = jsonschema.RefResolver.from_schema(all[form], store={s["$id"]: s for s in all.values()})
    return jsonschema.Draft202012Validator(all[form], resolver=resolver)
PY
  status 0 "$RAFTER" plan uva --on a5000 --batch 64 --seq 512 --sweep accumulate=1,3,4 --json &&
    cp out refused
  status 0 "$RAFTER" plan gpt2 --on a5000 --dtype f32 --sweep batch=8..64 --json && cp out sweep
  status 0 "$RAFTER" plan --compare gpt2 gpt2-medium --on a5000 --json && cp out compare
}

# conforms FORM ARGUMENTS...: makes a plan (whether it fits or not); `checked` compares the answers
# with docs/schema/FORM.schema.json
conforms() {
  local form=$1 got=0
  shift
  "$RAFTER" plan "$@" --json >out 2>err || got=$?
  [ "$got" = 0 ] || [ "$got" = 3 ] || { fail "plan $* exits $got: $(head -c 300 err)"; return; }
  answers=$((${answers:-0} + 1))
  cp out "answer.$answers"
  echo "$form answer.$answers plan $*" >>asked
}
checked() {
  python3 - "$SCHEMAS" asked <<'PY' >wrong 2>&1 || fail "$(head -c 1000 wrong)"
import json, sys, schemas
wrong = False
for line in open(sys.argv[2]):
    form, file, asked = line.rstrip("\n").split(" ", 2)
    bad = list(schemas.checker(sys.argv[1], form).iter_errors(json.load(open(file))))
    for e in bad[:5]: print(asked, "/" + "/".join(map(str, e.absolute_path)), e.message[:200])
    wrong |= bool(bad)
sys.exit(wrong)
PY
}
valid() { conforms plan "$@"; }

case_training() {
  valid uva --on a5000 --batch 64 --accumulate 4
  valid uva --on tpu-v5e --batch 64 --accumulate 4 --dtype bf16 --remat block --tokens 1T
  valid gpt2-xl --on a5000 --batch 64
  valid uva --on tpu-v6e --batch 16 --dtype bf16 --remat block --price committed
  valid uva --on b200 --batch 16
  valid llama3-8b --on h100-sxm --dtype bf16 --batch 1 --seq 8192 --remat auto
  valid gemma3-1b --on tpu-v5e --lora rank=16,targets=q,v --seq 1024
  valid "$TINY" --batch 4 --threads 2 --tensors --ops
  valid "$TINY" --batch 4 --threads 2 --lora rank=4 --ops
  valid mixtral:layers=2,width=16,heads=4,ff=24,vocab=40,seq=64,experts=4 --batch 4 --ops
  valid "$TINY" --optimizer adam --clip 1 --dropout 0.1
  checked
}

case_fit_sweep_compare() {
  conforms plan-fit uva --on a5000 --batch 64 --seq 512 --fit 8GiB
  conforms plan-fit uva --on a5000 --batch 64 --seq 512 --fit 1GiB
  conforms plan-fit llama3.2-1b --on tpu-v5e:2x2 --batch 8 --seq 2048 --fit
  conforms plan-fit gemma3-1b --on tpu-v5e --job serve --fit
  conforms plan-fit llama3-8b --on tpu-v5e --job score --fit
  for file in refused sweep; do echo "plan-sweep $file $file" >>asked; done
  echo "plan-compare compare compare" >>asked
  conforms plan-sweep "$TINY" --on tpu-v5e:2x2 --batch 4 --sweep 'mesh=fsdp=4;fsdp=2,tensor=2'
  conforms plan-sweep llama3.2-1b --job serve --on tpu-v5e --dtype bf16 --batch 8 --requests 16 --sweep seq=1k,2k
  conforms plan-compare --compare published:P14
  checked
}

case_serving() {
  valid gemma3-1b --on tpu-v5e --dtype bf16 --job serve --batch 8 --requests 16 --rate 0.5,1 --prefill-on tpu-v5p
  valid llama3-70b --on tpu-v5p --job generate --batch 4 --seq 4096 --dtype bf16 --kv-dtype int8
  valid mixtral-8x7b --on h200 --job generate --batch 32 --seq 2048 --dtype bf16
  valid llama3-8b --on h100-sxm --job generate --dtype bf16 --batch 16 --seq 4096 --offload kv,weights
  valid "$TINY" --job generate --tensors --ops
  valid llama3-8b --on h100-sxm --job generate --dtype bf16 --batch 16 --seq 4096 --speculate ngram
  valid llama3-8b --on h100-sxm --job rollout --dtype bf16 --batch 4 --speculate ngram --acceptance 0
  valid llama3-70b --on h200 --job generate --dtype bf16 --weights int4 --batch 1 --speculate llama3-8b
  checked
}

case_meshes() {
  valid llama3-8b --on tpu-v5e:4x4 --batch 16 --seq 2048 --dtype bf16 --remat block --tensors --ops
  valid llama3-8b --on tpu-v5p:4x4 --mesh fsdp=4,tensor=4 --batch 16 --seq 2048 --dtype bf16 --collectives none
  valid llama3-8b --on tpu-v7x:2x2x1 --batch 8 --seq 2048 --dtype bf16 --collectives offload
  valid llama3-8b --on tpu-v5e:4x4 --batch 16 --seq 2048 --dtype bf16 --remat block --offload optimizer,activations --tensors --ops
  valid llama3-8b --on h100-sxm:8 --mesh pipeline=4,fsdp=2 --batch 16 --microbatch 2 --seq 2048 --dtype bf16 --pipeline interleaved:2 --tensors --ops
  checked
}

# Chips that share a step: parts of the time sum, the output has the mesh, and the core waits longer
# if less is overlapped.
case_overlap() {
  for how in core offload none; do
    "$RAFTER" plan llama3-8b --on tpu-v5e:4x4 --batch 16 --seq 2048 --dtype bf16 --remat block --collectives $how --json >$how.json ||
      fail "plan --collectives $how"
    holds $how.json 'd["settings"]["mesh"]["fsdp"] == 16 and d["machine"]["chips"] == 16 and d["work"]["collective_bytes"] > 0 and any("mesh of fsdp=16" in a for a in d["assumptions"])'
    holds $how.json 'abs(sum(d["time"][k + "_seconds"] for k in ("compute", "memory", "network", "latency")) - d["time"]["seconds"]) < 1e-9 * d["time"]["seconds"]'
  done
  python3 - core.json offload.json none.json <<'PY' || fail "--collectives changes nothing"
import json, sys
core, offload, none = (json.load(open(f))["time"] for f in sys.argv[1:])
sys.exit(not (offload["seconds"] < core["seconds"] < none["seconds"] and none["network_hidden_seconds"] == 0 < offload["network_hidden_seconds"]))
PY
  status 0 "$RAFTER" plan llama3-8b --on tpu-v7x:2x2x1 --batch 8 --seq 2048 --dtype bf16 --json &&
    holds out 'd["machine"]["chips"] == 8 and any("two devices" in a for a in d["assumptions"])'
  refuses 2 '16' "$RAFTER" plan llama3-8b --on tpu-v5e:4x4 --mesh fsdp=8 --batch 16 --seq 2048
  refuses 2 'v5e' "$RAFTER" plan llama3-8b --on tpu-v5e --mesh fsdp=8 --batch 16 --seq 2048
}

# An unknown price is null and reported, never 0. Prices count all requested tokens.
case_prices() {
  status 0 "$RAFTER" plan uva --on a5000 --tokens 1G --json && {
    holds out 'd["cost"]["usd_per_chip_hour"] is d["cost"]["usd_per_million_tokens"] is d["cost"]["usd_for_tokens"] is None and d["cost"]["seconds_for_tokens"] > 0'
    holds out 'any(a.startswith("no price") for a in d["assumptions"])'
  }
  status 0 "$RAFTER" plan uva --on a5000 --tokens 1G && says 'no price' out
  status 0 "$RAFTER" plan uva --on tpu-v5e --batch 16 --remat block --dtype bf16 --tokens 1G --json &&
    holds out 'abs(d["cost"]["usd_for_tokens"] - d["cost"]["usd_per_million_tokens"] * 1000) < 1e-6 * d["cost"]["usd_for_tokens"]'

  status 0 "$RAFTER" plan uva --on a100-80g --batch 16 --tokens 1G --json &&
    holds out 'abs(d["cost"]["kilowatt_hours_for_tokens"] - 0.4 * d["cost"]["seconds_for_tokens"] / 3600) < 1e-9 * d["cost"]["seconds_for_tokens"]'
  status 0 "$RAFTER" plan uva --on tpu-v5e --remat block --dtype bf16 --tokens 1G --json &&
    holds out 'd["cost"]["kilowatt_hours_for_tokens"] is None'
}

# A fault in each place that the schema names is found.
case_strict() {
  "$RAFTER" plan "$TINY" --tensors --ops --json >out
  python3 - "$SCHEMA" out <<'PY' || fail "the schema lets wrong plans pass"
import copy, json, sys, jsonschema
check = jsonschema.Draft202012Validator(json.load(open(sys.argv[1])))
plan = json.load(open(sys.argv[2]))
assert check.is_valid(plan)
def spoiled(edit):
    p = copy.deepcopy(plan); edit(p); return not check.is_valid(p)
missed = []
import schemas
folder = sys.argv[1].rsplit("/", 1)[0]
for form, file, places in (("plan-sweep", "sweep", ("", "cliffs/0", "rows/0")), ("plan-sweep", "refused", ("rows/1",)), ("plan-compare", "compare", ("",))):
    form = schemas.checker(folder, form)
    whole = json.load(open(file))
    assert form.is_valid(whole)
    for place in places:
        for key in (form.schema["required"] if not place else {"cliffs/0": ["at", "kind"], "rows/0": ["cost", "fits"], "rows/1": ["hint", "memory"]}[place]):
            w = copy.deepcopy(whole); at = w
            for step in place.split("/") if place else (): at = at[int(step)] if step.isdigit() else at[step]
            at.pop(key)
            if form.is_valid(w): missed.append(f"{file} without {place}/{key}")
for key in check.schema["required"]:
    if not spoiled(lambda p: p.pop(key)): missed.append(f"without /{key}")
for at in ("model", "machine", "settings", "memory", "work", "time", "rate", "cost"):
    for key in check.schema["properties"][at]["required"]:
        if not spoiled(lambda p: p[at].pop(key)): missed.append(f"without /{at}/{key}")
        if not spoiled(lambda p: p[at].update({key: [1]})): missed.append(f"a list at /{at}/{key}")
edits = {"a negative class": lambda p: p["memory"]["by_class"].update(kv=-1), "an unknown class": lambda p: p["memory"]["by_class"].update(x=1),
         "a price of 0": lambda p: p["cost"].update(usd_per_chip_hour=0), "another bound": lambda p: p["time"].update(bound="luck"),
         "a tensor without bytes": lambda p: p["tensors"][0].pop("bytes"), "an op without seconds": lambda p: p["ops"][0].pop("seconds"),
         "generate without serving": lambda p: p.update(job="generate")}
missed += [name for name, edit in edits.items() if not spoiled(edit)]
print(missed) if missed else None
sys.exit(bool(missed))
PY
}

cases "$@"
