#!/usr/bin/env bash
# `rafter plan`: the keys that scripts rely on, sums that agree to the byte, and clear errors.
. "$(dirname "$0")/lib.sh"

case_json_keys() {
  status 0 "$RAFTER" plan uva --job train --on a5000 --json && {
    [ "$(wc -l <out)" = 1 ] || fail "plan --json prints $(wc -l <out) lines on stdout, not one object"
    holds out 'd["model"]["parameters"] == 155877376' 'uva has 155,877,376 parameters'
    holds out 'sum(d["memory"]["by_class"].values()) == d["memory"]["peak_bytes"]' 'by_class sums to peak_bytes'
    python3 - out <<'PY' || fail "plan --json lacks keys"
import json, sys
d = json.load(open(sys.argv[1]))
keys = {
 "": "rafter command job model machine settings memory work time rate cost advice assumptions",
 "model": "name family layers parameters parameters_embedding parameters_matmul parameters_active",
 "machine": "name chips source",
 "settings": "batch seq microbatch accumulate dtype remat mesh",
 "memory": "capacity_bytes reserve_bytes peak_bytes fits headroom_bytes peak_op by_class",
 "work": "model_flops hardware_flops bytes collective_bytes flops_convention",
 "time": "seconds bound compute_seconds memory_seconds network_seconds latency_seconds",
 "rate": "tokens_per_second mfu hfu mfu_full_square emfu bandwidth_fraction",
 "cost": "usd_per_chip_hour usd_per_million_tokens tokens_per_usd peak_flops_per_usd seconds_for_tokens"}
bad = [f"/{at}/{k}" for at, names in keys.items() for k in names.split() if k not in (d[at] if at else d)]
classes = "weight master gradient moment adapter activation logits kv collective workspace io padding".split()
bad += [f"/memory/by_class/{c}" for c in classes if c not in d["memory"]["by_class"]]
bad += [f"/memory/by_class/{c} is not known" for c in d["memory"]["by_class"] if c not in classes]
if not isinstance(d["advice"], list) or any(not {"change", "peak_bytes", "seconds", "why"} <= a.keys() for a in d["advice"]): bad.append("/advice")
if not d["assumptions"] or any(not isinstance(a, str) for a in d["assumptions"]): bad.append("/assumptions")
if d["machine"]["source"] not in ("data-sheet", "detected", "calibrated", "file"): bad.append("/machine/source = " + d["machine"]["source"])
if d["work"]["flops_convention"] != "causal" or d["time"]["bound"] not in ("compute", "memory", "network", "latency"): bad.append("a word")
m = d["memory"]
if m["fits"] != (m["peak_bytes"] <= m["capacity_bytes"] - m["reserve_bytes"]) or m["headroom_bytes"] != m["capacity_bytes"] - m["reserve_bytes"] - m["peak_bytes"]: bad.append("/memory/fits")
parts = sum(d["time"][k] for k in ("compute_seconds", "memory_seconds", "network_seconds", "latency_seconds"))
if abs(parts - d["time"]["seconds"]) > 1e-6 * d["time"]["seconds"]: bad.append(f"/time: parts {parts}, whole {d['time']['seconds']}")
print("missing or wrong:", *bad) if bad else None
sys.exit(bool(bad))
PY
  }
}

# Published training runs of this model: predicted peaks are at or below the published ones, in the
# right order.
case_published_peaks() {
  peak() { "$RAFTER" plan uva --on a5000 --json "$@" | python3 -c 'import json,sys; print(json.load(sys.stdin)["memory"]["peak_bytes"])'; }
  f32=$(peak --batch 64 --accumulate 4 --seq 512 --dtype f32) bf16=$(peak --batch 64 --accumulate 4 --seq 512 --dtype bf16)
  block=$(peak --batch 64 --accumulate 4 --seq 512 --dtype bf16 --remat block) whole=$(peak --batch 64 --seq 512 --dtype bf16 --remat block)
  [ "$f32" -gt "$bf16" ] && [ "$bf16" -gt "$block" ] && [ "$whole" -gt "$block" ] ||
    fail "peaks are not ordered: f32 $f32, bf16 $bf16, remat block $block, without accumulation $whole"
  [ "$f32" -le $((88 * (1 << 30) / 10)) ] || fail "uva in f32 needs $f32 bytes, more than 8.8 GiB"
[ "$bf16" -le $((59 * (1 << 30) / 10)) ] || fail "uva in bf16 needs $bf16 bytes, more than 5.9 GiB"
}

# A plan for a data sheet is the same on every machine that makes it.
case_same_on_every_machine() {
  for job in "--job train --batch 64 --accumulate 4 --dtype bf16" "--job generate --batch 8"; do
    # shellcheck disable=SC2086
    one=$("$RAFTER" plan uva --on tpu-v5e $job --seq 512 --threads 1 --cpu base --json | python3 -c 'import json,sys; d=json.load(sys.stdin); print(d["digest"], d["memory"]["peak_bytes"], d["settings"]["backend"], d["settings"]["threads"])')
    # shellcheck disable=SC2086
    many=$("$RAFTER" plan uva --on tpu-v5e $job --seq 512 --threads 64 --json | python3 -c 'import json,sys; d=json.load(sys.stdin); print(d["digest"], d["memory"]["peak_bytes"], d["settings"]["backend"], d["settings"]["threads"])')
    case "$one" in *"sheet None") ;; *) fail "a plan for a data sheet has $one" ;; esac
    [ "$one" = "$many" ] || fail "plan uva --on tpu-v5e $job depends on the planning machine: $one, $many"
  done
}

case_tensors_and_ops() {
  status 0 "$RAFTER" plan "$TINY" --batch 4 --threads 2 --tensors --ops --json && {
    holds out 'all({"name","class","dtype","shape","bytes","offset","first","last","reason"} <= t.keys() for t in d["tensors"]) and len(d["tensors"]) > 20' 'tensors[] has its keys'
    holds out 'all({"id","name","kernel","flops","bytes","seconds","bound","inputs","outputs"} <= o.keys() for o in d["ops"]) and len(d["ops"]) > 20' 'ops[] has its keys'
    holds out 'max(t["offset"] + t["bytes"] for t in d["tensors"]) <= d["memory"]["peak_bytes"] and all(t["offset"] >= 0 for t in d["tensors"])' 'every tensor is in the arena'
    python3 - out <<'PY' || fail "tensors that live at the same time overlap"
import json, sys
t = json.load(open(sys.argv[1]))["tensors"]
bad = [(a["name"], b["name"]) for i, a in enumerate(t) for b in t[:i]
       if a["bytes"] and b["bytes"] and a["offset"] < b["offset"] + b["bytes"] and b["offset"] < a["offset"] + a["bytes"] and a["first"] < b["last"] and b["first"] < a["last"]]
print(bad[:3]) if bad else None
sys.exit(bool(bad))
PY
  }
  status 0 "$RAFTER" plan "$TINY" --tensors --ops && { says 'step/' out; says 'block.1/' out; }
}

# Each op has its layer and sublayer. People read the layer in the op's name: field and name agree
# for every pass that adds ops.
MOE=mixtral:layers=3,width=32,heads=4,kv_heads=4,head_dim=8,ff=24,vocab=64,seq=64
MOE=$MOE,experts=4,experts_used=2
case_layers() {
  while read -ra asked; do
    status 0 "$RAFTER" plan "${asked[@]}" --ops --json || continue
    python3 - out <<'PY' || fail "layers of plan ${asked[*]}"
import json, re, sys
ops = json.load(open(sys.argv[1]))["ops"]
def named(o):
    return next((int(n) for n in re.findall(r"(?:^|/)block\.(\d+)(?:/|$)", o["name"])), None)
bad = [o["name"] for o in ops if o.get("layer") != named(o)]
bad += [o["name"] for o in ops
        if o["phase"] != "optimizer" and "layer" in o and o["kind"] != "exchange"
        and f"/{o.get('sublayer')}/" not in o["name"]]
print(bad[:5]) if bad else None
sys.exit(bool(bad) or len({o.get("layer") for o in ops}) < 3)
PY
  done <<END
$TINY --batch 4 --accumulate 2
$TINY --batch 4 --remat block --lora rank=4,dropout=0.1
$TINY --job generate --batch 4
$TINY --job score --batch 4
$MOE --batch 4 --remat mlp
$MOE --on tpu-v5e:2x4 --batch 8 --mesh fsdp=2,tensor=2,expert=2
$TINY --on h100-sxm:4 --batch 8 --microbatch 2 --mesh pipeline=2,data=2
gpt2 --on a100-80g --batch 4 --offload optimizer,activations
gpt2 --on a100-80g --job generate --batch 4 --offload weights,kv
END
}

# The plan holds a kernel for each product inside an op, and for each range of its rows.
case_products() {
  status 0 "$RAFTER" plan $MOE --batch 4 --cpu base --ops --json && python3 - out <<'PY' || fail "products"
import json, sys
ops = json.load(open(sys.argv[1]))["ops"]
of = lambda name: [(o["op"], p["product"], p["kernel"], p.get("few"))
                   for o in ops if o["op"].startswith(name) for p in o["products"]]
many, few = "gemm_base_4x16", {"rows": 16, "kernel": "gemm_base_4x16_stream"}
head = [("head_loss_grad", name, many, few) for name in ("logits", "dx")]
experts = [("matmul_experts" + name, "expert", many, few) for name in ("", "_dx")]
bad = []
if of("head_loss_grad") != head + [("head_loss_grad", "dw", many, None)]: bad += of("head_loss_grad")
if [o for o in of("matmul_experts") if o not in experts + [("matmul_experts_dw", "expert", many, None)]]:
    bad += of("matmul_experts")
for o in ops:
    inside = o["op"] == "head_loss_grad" or o["op"].startswith("matmul_experts")
    if ("products" in o) != inside: bad.append(o["name"])
print(bad) if bad else None
sys.exit(bool(bad))
PY
  status 0 "$RAFTER" plan "$TINY" --batch 4 --cpu base --lora rank=4 --ops --json && {
    holds out '{p["product"] for o in d["ops"] if o["op"] == "lora" for p in o["products"]} == {"y"}'
    holds out 'all("db" in str(o["products"]) for o in d["ops"] if o["op"] == "lora_bwd")'
  }
  status 0 "$RAFTER" plan $MOE --batch 4 --cpu base --ops &&
    says 'expert gemm_base_4x16, up to 16 rows gemm_base_4x16_stream' out
}

# Naming tensors to keep takes more memory and less time; a jax program keeps them too. Names are
# checked before planning.
case_named_tensors() {
  for program in rafter jax-scan jax-unrolled; do
    status 0 "$RAFTER" plan llama3.2-1b --on h100-sxm --batch 16 --seq 4096 --dtype bf16 --program $program --sweep remat=block,save_out_proj,save:out+qkv,minimal,minimal_with_context --json && {
      holds out '[r["remat"] for r in d["rows"]][2] == "save:out+qkv" and [r["memory"]["peak_bytes"] for r in d["rows"]] == sorted({r["memory"]["peak_bytes"] for r in d["rows"]})' "kept tensors of $program"
      holds out '[r["time"]["seconds"] for r in d["rows"]] == sorted((r["time"]["seconds"] for r in d["rows"]), reverse=True)' "the gain of keeping tensors in $program"
    }
  done
  status 0 "$RAFTER" plan "$TINY" --remat minimal --json && holds out 'd["settings"]["remat"] == "minimal"' 'a set has its name'
  refuses 2 "does not know 'soul'" "$RAFTER" plan "$TINY" --remat save:qkv,soul && says 'norm1, norm2' err
  refuses 2 'gate by itself \(expected mlpwi' "$RAFTER" train "$TINY" --data random:seed=0 --remat save:gate
}

case_passes_and_meshes() {
  for pass in build differentiate optimize fuse remat; do
    status 0 "$RAFTER" plan "$TINY" --after $pass && { [ -s out ] || fail "--after $pass prints nothing"; }
  done
  status 0 "$RAFTER" plan "$TINY" --on tpu-v5e:2x2 --batch 8 --mesh fsdp=2,tensor=2 --after shard && { says 'all_gather' out; says 'reduce_scatter' out; }
  status 0 "$RAFTER" plan "$TINY" --on tpu-v5e:2x2 --batch 8 --mesh fsdp=2,tensor=2 --ops --json && {
    holds out 'd["settings"]["mesh"] == {"fsdp":2,"tensor":2,"zero":3} and d["work"]["collective_bytes"] > 0 and d["memory"]["by_class"]["collective"] >= 0' 'a plan has its mesh'
    holds out 'sum(o.get("sent_bytes", 0) * o["calls"] for o in d["ops"]) == d["work"]["collective_bytes"]' 'collectives add up'
    holds out 'all(o["group"] == 2 and len(o["axes"]) == 1 or o["group"] == 4 for o in d["ops"] if "group" in o)' 'collectives name their group'
  }
  status 2 "$RAFTER" plan "$TINY" --on h100-sxm:3 --batch 8 --mesh tensor=3 && says 'heads' err
  status 0 "$RAFTER" plan "$TINY" --on h100-sxm:2 --batch 8 --microbatch 2 --mesh pipeline=2 --json && {
    holds out 'd["pipeline"]["stages"] == 2 and len(d["pipeline"]["stage"]) == 2 and d["memory"]["peak_bytes"] == max(s["peak_bytes"] for s in d["pipeline"]["stage"])' 'the largest stage is shown'
    holds out '0 < d["time"]["bubble_fraction"] < 1 and abs(d["pipeline"]["even_bubble_fraction"] - 1 / 5) < 1e-12' 'a pipeline waits'
  }
  status 0 "$RAFTER" plan "$TINY" --on h100-sxm:2 --batch 8 --microbatch 2 --mesh pipeline=2 --after stage && { says ' send ' out; says ' recv ' out; }
  status 2 "$RAFTER" plan "$TINY" --on h100-sxm:8 --batch 16 --microbatch 1 --mesh pipeline=8 && says 'more stages than layers' err
  status 2 "$RAFTER" plan "$TINY" --on h100-sxm:2 --batch 8 --microbatch 8 --mesh pipeline=2 && says 'fewer microbatches than pipeline stages' err
  status 2 "$RAFTER" plan "$TINY" --batch 8 --mesh rows=3 && says 'unknown axis' err
}

case_sweeps() {
  status 0 "$RAFTER" plan "$TINY" --sweep batch=1..8 --json && {
    holds out '[r["batch"] for r in d["rows"]] in (["1","2","4","8"], [1,2,4,8]) and "cliffs" in d' '--sweep batch=1..8 has rows 1,2,4,8'
    holds out '[r["memory"]["peak_bytes"] for r in d["rows"]] == sorted(r["memory"]["peak_bytes"] for r in d["rows"])' 'memory grows with the batch'
    holds out 'all("at" in c and "cause" in c for c in d["cliffs"])'
  }
  status 0 "$RAFTER" plan "$TINY" --sweep dtype=f32,bf16
  # Meshes of several axes. If one value cannot be planned, its row has the error, and all other
  # rows are there. If none can, the command fails with the error.
  status 0 "$RAFTER" plan llama3.2-1b --on tpu-v5e:2x4 --batch 8 --seq 1024 --dtype bf16 --sweep 'mesh=fsdp=8;fsdp=4,tensor=2; data=2,fsdp=2,tensor=2;fsdp=4' --json &&
    holds out '[r["settings"]["mesh"] if "settings" in r else r["error"].split(" (")[0] for r in d["rows"]] == [{"fsdp": 8, "zero": 3}, {"fsdp": 4, "tensor": 2, "zero": 3}, {"data": 2, "fsdp": 2, "tensor": 2, "zero": 3}, "mesh and machine have different numbers of chips"]' 'a sweep over meshes'
  status 0 "$RAFTER" plan llama3.2-1b --on tpu-v5e --batch 64 --seq 1024 --dtype bf16 --sweep chips=4,6,16 --json && holds out '[r["machine"]["chips"] if "machine" in r else r["fits"] for r in d["rows"]] == [4, False, 16] and "multiple of 6" in d["rows"][1]["hint"]' 'chips that do not divide the batch'
  status 0 "$RAFTER" plan llama3.2-1b --on tpu-v5e --batch 64 --seq 1024 --dtype bf16 --sweep chips=4,6,16 && says '^6 .* no .*cannot be sharded over the mesh' out
  refuses 2 'cannot be sharded over the mesh' "$RAFTER" plan llama3.2-1b --on tpu-v5e --batch 64 --seq 1024 --dtype bf16 --sweep chips=6,12
  # A default batch and a default mesh fit together, also on each side of a comparison.
  status 0 "$RAFTER" plan llama3.2-1b --on tpu-v5e:4x4 &&
    says '^batch 16 .default for this mesh. x 4096 tokens' out
  status 0 "$RAFTER" plan llama3.2-1b --on tpu-v5e:4x4 --accumulate 4 --json &&
    holds out 'd["settings"]["batch"] == 64' 'a default batch of four microbatches' &&
    holds out 'any("raised" in a for a in d["assumptions"])' 'the default among the assumptions'
  status 0 "$RAFTER" plan gemma-2b --compare llama3.2-1b --on tpu-v5e:4x4
  # Two equal plans differ by nothing.
  status 0 "$RAFTER" plan gpt2 --on a5000 --job generate --compare seed=0 seed=1 &&
    says '^B computes as many tokens per second and needs as much memory$' out && ! grep -q -- '-0.0 %' out ||
    fail 'equal plans differ'
  refuses 2 'expected a multiple, got 8 sequences' "$RAFTER" plan llama3.2-1b --on tpu-v5e:4x4 --batch 8
  # The default mesh of a model that has fewer heads than chips has several copies of the model.
  status 0 "$RAFTER" plan mixtral-8x7b --on tpu-v5p:4x4x4 --job generate --json &&
    holds out 'd["settings"]["mesh"] == {"data": 2, "tensor": 32, "zero": 0}' 'copies of the model'
  # --fit finds a mesh that is at least as fast as the default mesh at its own largest batch.
  status 0 "$RAFTER" plan mixtral-8x7b --on tpu-v5p:4x4x4 --job generate --fit --mesh data=2,tensor=32 --json &&
    cp out given
  status 0 "$RAFTER" plan mixtral-8x7b --on tpu-v5p:4x4x4 --job generate --fit --json &&
    holds out 'd["rate"]["tokens_per_second"] >= json.load(open("given"))["rate"]["tokens_per_second"]' \
      'a faster mesh'
  # Fields of the model's shape: the tiny model has two layers, and a sweep replaces a field that is
  # already given.
  status 0 "$RAFTER" plan "$TINY" --sweep MODEL:layers=1,2,4 --json && holds out '[r["model"]["layers"] for r in d["rows"]] == [1, 2, 4] and len({r["model"]["parameters"] for r in d["rows"]}) == 3' 'a sweep over layers'
  status 0 "$RAFTER" plan gpt2 --on a5000 --sweep MODEL=gpt2,gpt2-medium --json && holds out '[r["model"]["name"] for r in d["rows"]] == ["gpt2", "gpt2-medium"]'
  refuses 2 'did you mean .layers' "$RAFTER" plan "$TINY" --sweep MODEL:lyers=1,2
  # From one batch to the next, memory grows only by activations, until it exceeds the machine's
  # memory.
  status 0 "$RAFTER" plan gpt2 --on a5000 --dtype f32 --sweep batch=8..64 --json && holds out 'any(c["what"] == "fit" and c["at"] == "64" and "activation" in c["cause"] for c in d["cliffs"])' 'the first batch that does not fit, with its cause'
  # Cliffs need an order. Machines and dtypes have none, but the sizes of one machine have one.
  for unordered in on=h100-sxm,l4:4,a100-80g dtype=bf16,f32; do
    status 0 "$RAFTER" plan llama3.2-1b --on a100-80g --job generate --sweep $unordered --json &&
      holds out 'd["cliffs"] == []' "no cliffs of $unordered"
  done
  status 0 "$RAFTER" plan gpt2 --on a5000 --sweep dtype=bf16,f32 --json &&
    holds out 'd["cliffs"] == []' 'no cliffs between dtypes'
  status 0 "$RAFTER" plan gpt2 --sweep on=h100-sxm,h100-sxm:8 &&
    says '^scaling at h100-sxm:8: .* with 1 chip; the network takes' out
  # A model of twice the size takes twice the time. This is not a cliff, whatever its tokens per
  # second.
  status 0 "$RAFTER" plan gpt2 --on a5000 --batch 1 --sweep MODEL:layers=6,12,24 --json && holds out 'not [c for c in d["cliffs"] if c["what"] in ("time", "rate")]' 'a larger model is not a cliff'
  # A cache whose sequences need another page of 256 tokens.
  status 0 "$RAFTER" plan gpt2 --on a5000 --job generate --sweep seq=128..640:64 --json && holds out '[c["at"] for c in d["cliffs"] if c["what"] == "memory" and c["kind"] == "page"] == ["320", "576"]' 'memory grows by pages'
}

# Two plans side by side, with the second minus the first at the same places. Either side may name
# the model.
case_comparisons() {
  status 0 "$RAFTER" plan --compare gpt2 gpt2-medium --on a5000 --json && {
    holds out 'd["difference"]["seconds"] > 0 and d["difference"]["parameters"] == d["b"]["model"]["parameters"] - d["a"]["model"]["parameters"] == 230383360'
    holds out 'd["difference"]["memory"]["peak_bytes"] == d["difference"]["peak_bytes"] == d["b"]["memory"]["peak_bytes"] - d["a"]["memory"]["peak_bytes"]'
  }
  status 0 "$RAFTER" plan gpt2 --compare gpt2-medium --on a5000 --json && holds out 'd["a"]["model"]["name"] == "gpt2" and d["b"]["model"]["name"] == "gpt2-medium"' 'one side: MODEL and it'
  status 0 "$RAFTER" plan uva --on a5000 --compare batch=8,dtype=bf16 "--batch 8 --remat=block" --json && holds out 'd["a"]["settings"]["dtype"] == "bf16" and d["b"]["settings"]["remat"] == "block" and d["difference"]["time"]["seconds"] > 0' 'sides given as options'
  status 0 "$RAFTER" plan uva --on h100-sxm:8 --batch 16 --microbatch 4 --compare mesh=data=2,pipeline=4,dtype=bf16 mesh=pipeline=2,data=4,pipeline=interleaved:2 --json && holds out 'd["a"]["pipeline"]["stages"] == 4 and d["a"]["settings"]["dtype"] == "bf16" and d["b"]["pipeline"]["chunks"] == 2' 'an axis with the name of an option'
  refuses 2 'compare.*dtpye|dtpye' "$RAFTER" plan uva --compare dtpye=bf16
  refuses 2 'MODEL' "$RAFTER" plan --compare dtype=bf16
  # A published run next to its plan: unknown settings are searched for, and given options stay.
  status 0 "$RAFTER" plan --compare published:P14 --json && holds out 'd["a"]["memory"]["fits"] and d["a"]["model"]["name"] == "uva" and d["b"]["rate"]["tokens_per_second"] == 15604 and d["implied_efficiency"] * d["a"]["rate"]["tokens_per_second"] - 15604 < 1e-6' 'a published run'
  status 0 "$RAFTER" plan --compare published:P1 --json
  holds out 'd["a"]["machine"]["chips"] == 256 and d["a"]["settings"]["batch"] == 1024' 'many chips'
  holds out 'd["a"]["settings"]["offload"] == ["activations"] and d["a"]["memory"]["fits"]' 'its options'
  refuses 2 'P99' "$RAFTER" plan --compare published:P99
  status 0 "$RAFTER" plan --compare published:P5 --json && holds out 'd["a"]["settings"]["batch"] == 96 and d["a"]["memory"]["fits"]' 'a batch that was published'
}

# A plan that no backend can run says so in its first lines, by the words of the refusal.
case_plan_only() {
  status 0 "$RAFTER" plan deepseek-v3 --on tpu-v5p:8x8x16 --batch 1024 --seq 128 --remat block
  sed -n 2p out | grep -q '^plan only: deepseek-v3 has an expert bias .* cannot be trained' ||
    fail "line 2 does not say that the plan cannot be run"
  local small="deepseek:layers=1,width=64,vocab=300" bf16="--dtype bf16 --on a5000 --batch 1 --seq 32"
  # shellcheck disable=SC2086
  for job in "--job generate --kv-dtype int8" "--matmul-dtype int8" "--offload optimizer" \
    "--program jax-scan"; do
    status 0 "$RAFTER" plan "$small" $bf16 $job --json && holds out 'isinstance(d["plan_only"], str)' "$job"
  done
  for runs in "uva --on a5000" "deepseek-v3 --on tpu-v5p:8x8x16 --batch 1024 --lora rank=4"; do
    # shellcheck disable=SC2086
    status 0 "$RAFTER" plan $runs --seq 128 --json && holds out 'd["plan_only"] is None' "$runs"
  done
  status 0 "$RAFTER" plan uva --on a5000
  ! grep -q '^plan only' out || fail 'a plan that can be run says otherwise'
  refuses 2 'no kernel supports this dtype' "$RAFTER" generate "$small" --kv-dtype int8 --prompt a
}

# A published run is compared only with the same job. Settings that its row leaves open may be set.
case_published_runs() {
  refuses 2 'P5 .model: expected deepseek2-16b, got llama3-8b; machine: expected tpu-v5p, got h200; chips' \
    "$RAFTER" plan llama3-8b --on h200:8 --compare published:P5
  for wrong in 'chips: expected 8, got 16;--on h100-sxm@500w:2x8' \
    'machine: expected h100-sxm@500w, got h100-sxm;--on h100-sxm:8' \
    'sequence length: expected 8192, got 4096;--seq 4096' \
    'dtype: expected bf16, got f32;--dtype f32' 'dtype: expected bf16, got fp8;--matmul-dtype fp8' \
    'job: expected train, got score;--job score' 'trained weights: expected all;--lora rank=8'; do
    # shellcheck disable=SC2086
    refuses 2 "P7 .${wrong%;*}" "$RAFTER" plan --compare published:P7 ${wrong#*;}
  done
  refuses 2 'model: expected uva, got uva:layers=3' "$RAFTER" plan uva:layers=3 --compare published:P14
  refuses 2 'batch: expected 64, got 32' "$RAFTER" plan --compare published:P14 --batch 32
  refuses 2 'remat: expected none, got block' "$RAFTER" plan --compare published:P12 --remat block
  status 0 "$RAFTER" plan uva --on a5000 --seq 512 --dtype f32 --compare published:P14
  refuses 2 'zero: expected 1, got 3' "$RAFTER" plan --compare published:P10 --zero 3
  refuses 2 'mesh: expected data=4,context=2, got data=8' "$RAFTER" plan --compare published:P10 --mesh data=8
  status 0 "$RAFTER" plan --compare published:P7 --mesh fsdp=8 --batch 16
  status 0 "$RAFTER" plan --compare published:P10 --remat block &&
    says '^planned with .*, bf16, matmul fp8, ' out
  status 0 "$RAFTER" plan --compare published &&
    says '^P14 +UvA tutorial +a5000 +1 +uva +512 +f32 +15604 ' out
  status 0 "$RAFTER" plan --compare published --json && {
    holds out '[r["id"] for r in d["published"]] == [f"P{i}" for i in range(1, 15)]'
    holds out '(lambda r: r["tokens_per_second_per_chip"] == 8672.8 and r["chips"] == 4)(d["published"][4])'
  }
}

# The band around the time of a data-sheet plan holds the 14 published runs.
case_bands() {
  local inside=0 within='(lambda t, r: t["seconds_low"] < t["seconds"] / r < t["seconds_high"])'
  within+='(d["a"]["time"], d["ratio"]["rate"]["tokens_per_second"])'
  for i in $(seq 14); do
    status 0 "$RAFTER" plan --compare "published:P$i" --json || continue
    [ "$(ask out "$within")" = True ] && inside=$((inside + 1))
  done
  [ "$inside" = 14 ] || fail "the band holds $inside of 14 published runs"
  status 0 "$RAFTER" plan gpt2 --on a5000 &&
    says '^time +[0-9.]+ ms per step, probably [0-9.]+ ms to [0-9.]+ m?s, on a5000' out
  status 0 "$RAFTER" plan gpt2 --on local --json && holds out 'd["time"]["seconds_low"] is None' 'no band'
}

# MFU and cost of two plans. Without a price, the cells say so.
case_compared_costs() {
  # All outputs have the MFU of one definition, and name the peak if there are two.
  local narrow=(gpt2 --on tpu-v5e --batch 8 --matmul-dtype int8) mfu=
  status 0 "$RAFTER" plan "${narrow[@]}" --json && mfu=$(ask out '"%.1f" % (100 * d["rate"]["mfu"])')
  status 0 "$RAFTER" plan "${narrow[@]}" &&
    says "MFU $mfu % of the int8 peak .*, EMFU [0-9.]+ % of the bf16 peak\$" out
  status 0 "$RAFTER" plan "${narrow[@]}" --compare batch=8 && says "^MFU +$mfu % +$mfu %" out
  # MFU that counts the full attention square is printed only if it differs.
  status 0 "$RAFTER" plan llama3.2-1b --on tpu-v5e --job prefill --seq 2 && says 'MFU [0-9.]+ %, HFU' out
  status 0 "$RAFTER" plan llama3.2-1b --on tpu-v5e --job prefill &&
    says 'MFU [0-9.]+ % \([0-9.]+ % counting' out
  PAIR=(plan --compare gemma-7b llama2-7b --on tpu-v5e:16x16 --batch 256 --seq 4096 --dtype bf16)
  PAIR+=(--remat block)
  status 0 "$RAFTER" "${PAIR[@]}" && {
    for row in MFU USD/Mtokens tokens/USD 'MFU x peak/USD'; do
      says "^$row .* [+-][0-9.]+ %$" out
    done
  }
  status 0 "$RAFTER" "${PAIR[@]}" --json && python3 - out <<'PY' || fail "the costs of two plans are wrong"
import json, sys
d = json.load(open(sys.argv[1]))
a, b, ratio = d["a"], d["b"], d["ratio"]
assert abs(ratio["tokens_per_usd"] - b["cost"]["tokens_per_usd"] / a["cost"]["tokens_per_usd"]) < 1e-12
# on one machine, performance per dollar is in the ratio of MFU
assert abs(ratio["performance_per_usd"] - b["rate"]["mfu"] / a["rate"]["mfu"]) < 1e-12
assert abs(ratio["mfu"] - ratio["performance_per_usd"]) < 1e-12
PY
  status 0 "$RAFTER" plan --compare gpt2 gpt2-medium --on a5000 &&
    says '^USD/Mtokens +no price +no price$' out
}

# Over a sweep of accumulation, the batch of a step stays the same. Without a sweep, the default
# batch is raised to a multiple.
case_divisors() {
  status 0 "$RAFTER" plan "$TINY" --sweep accumulate=1,2,3,4 --json && holds out '{r["settings"]["batch"] for r in d["rows"]} == {12} and not [c for c in d["cliffs"] if c["what"] == "time"]' 'a sweep over microbatches'
  status 0 "$RAFTER" plan "$TINY" --sweep microbatch=3,4 --json && holds out '{r["settings"]["batch"] for r in d["rows"]} == {12}'
  for given in '--microbatch 2:8 2 4' '--accumulate 4:8 2 4' '--microbatch 3:9 3 3' '--accumulate 3:9 3 3' \
    '--microbatch 16:16 16 1' '--microbatch 2 --accumulate 3:6 2 3' '--microbatch 2 --batch 4:4 2 2'; do
    # shellcheck disable=SC2086
    status 0 "$RAFTER" plan "$TINY" ${given%:*} --json &&
      ask out '"%(batch)d %(microbatch)d %(accumulate)d" % d["settings"]' >got &&
      [ "$(cat got)" = "${given#*:}" ] ||
      fail "${given%:*}: $(cat got), not ${given#*:}"
  done
  status 0 "$RAFTER" plan "$TINY" --microbatch 3 &&
    says '^batch 9 \(default, a multiple of --microbatch\) x ' out
  status 0 "$RAFTER" plan "$TINY" --microbatch 2 && says '^batch 8 x ' out
  status 0 "$RAFTER" plan gpt2 --on tpu-v5e:4x4 --microbatch 32 &&
    says '^batch 32 \(default for this mesh\) x ' out
  refuses 2 'expected a divisor of --batch 10, got 3' "$RAFTER" plan "$TINY" --batch 10 --accumulate 3
  refuses 2 'expected a divisor of --batch 10, got 20' "$RAFTER" plan "$TINY" --batch 10 --microbatch 20
  refuses 2 'hint: write --rate 1,2,4$' "$RAFTER" plan "$TINY" --on tpu-v5e --job serve --sweep rate=1,2,4
  refuses 2 'hint: write --sweep MODEL:layers=6,12, with the word MODEL' "$RAFTER" plan gpt2 --on a5000 --sweep gpt2:layers=6,12
  # Every error has a hint.
  for bad in '--batch 0' '--fit 0' '--tokens 0' '--budget 0h' '--kv-link 0' '--price nan' '--price LIST' '--sweep batch=8..1'; do
    # shellcheck disable=SC2086
    refuses 2 '^hint: ' "$RAFTER" plan gpt2 --on a5000 $bad
  done
  for bad in layers=0 vocab=1e30 layers=2000000000; do refuses 2 '^hint: ' "$RAFTER" plan llama:$bad --on a5000; done
}

# Room in addition to an expert's even share is work without progress: the model FLOPs are the same,
# and the executed FLOPs grow.
case_experts() {
  MOE=(mixtral:layers=2,width=1024,ff=2048,heads=8,kv_heads=8,head_dim=128,vocab=32000,seq=1024,experts=8,experts_used=2 --on h100-sxm:8 --mesh expert=8 --batch 16 --dtype bf16)
  status 0 "$RAFTER" plan "${MOE[@]}" --capacity 1 --json && cp out even
  for capacity in 0.5 2; do
    status 0 "$RAFTER" plan "${MOE[@]}" --capacity $capacity --json && holds out '(lambda a, b, c: abs(b["work"]["model_flops"] / a["work"]["model_flops"] - 1) < 1e-6 and (b["work"]["hardware_flops"] - a["work"]["hardware_flops"]) * (c - 1) > 0 and abs(b["rate"]["mfu"] * b["time"]["seconds"] / (a["rate"]["mfu"] * a["time"]["seconds"]) - 1) < 1e-6 and abs(b["work"]["weight_flops"] / a["work"]["weight_flops"] - 1) < 1e-6)(json.load(open("even")), d, '$capacity')' "capacity $capacity"
  done
  status 0 "$RAFTER" plan llama3.2-1b --on tpu-v5e --batch 64 --seq 1024 --dtype bf16 --sweep chips=4,16,64 --json && holds out '[r["machine"]["chips"] for r in d["rows"]] == [4, 16, 64]' 'a sweep over chips'
  refuses 2 'chips' "$RAFTER" plan llama3.2-1b --on tpu-v5e --sweep chips=0,4
}

# Options without effect are errors, not ignored.
case_meaningless_options() {
  refuses 2 'has no experts' "$RAFTER" plan llama3-8b --on tpu-v5p --capacity 1.25
  refuses 2 'has no experts' "$RAFTER" plan llama3-8b --on tpu-v5p --capacity 1
  refuses 2 'expected --mesh expert=N' "$RAFTER" plan mixtral-8x7b --on tpu-v5p:2x2x2 --batch 8 --capacity 1.25
  refuses 2 'needs a JAX program of --job score .got --program rafter --job train' "$RAFTER" plan gemma3-1b --on tpu-v5e --returns logits
  refuses 2 'needs a JAX program of --job score .got --program rafter --job score' "$RAFTER" plan gemma3-1b --on tpu-v5e --job score --returns logits
  refuses 2 'needs a JAX program of --job score .got --program jax-scan --job train' "$RAFTER" plan gemma3-1b --on tpu-v5e --program jax-scan --returns logits
  for machine in h100-sxm:8@d2d tpu-v5e@d2d; do refuses 2 'has one device, so there is no link' "$RAFTER" plan llama3-8b --on $machine; done
  refuses 2 'must follow an axis of --mesh' "$RAFTER" plan llama3-8b --on tpu-v7x:2x2x1@d2d
  refuses 2 'expected 8 devices for tpu-v7x, got 4' "$RAFTER" plan llama3-8b --on tpu-v7x:2x2x1 --mesh fsdp=2,tensor=2@d2d --batch 8
}

# A time budget gives whole steps and their cost on the machine.
case_budget_and_fit() {
  status 0 "$RAFTER" plan gpt2 --on a100-80g --budget 9h --json && holds out 'd["budget"]["steps"] == int(9 * 3600 / d["time"]["seconds"]) and d["budget"]["tokens"] == d["budget"]["steps"] * 8 * 1024 and abs(d["budget"]["usd"] - 9 * d["cost"]["usd_per_chip_hour"]) < 1e-9' '--budget'
  status 0 "$RAFTER" plan gpt2 --on a5000 --budget 9h --json && holds out 'd["budget"]["usd"] is None' 'a machine without a price has no cost'
  status 0 "$RAFTER" plan uva --on a5000 --batch 64 --seq 512 --fit 8GiB --json && {
    holds out 'd["memory"]["peak_bytes"] <= 8 << 30 and d["memory"]["fits"] and len(d["frontier"]) > 1' '--fit 8GiB gives a plan of at most 8 GiB and a frontier'
    holds out 'all("saves" in r["why"] and ("% more time" in r["why"] or "x slower" in r["why"]) for r in d["frontier"][1:])' 'a sentence for each step of the frontier'
    [ "$(wc -l <out)" = 1 ] || fail "--fit --json prints more than one object"
  }
  status 0 "$RAFTER" plan uva --on a5000 --batch 64 --seq 512 --fit
  # If nothing fits, the output has the smallest plan and the number of settings tried.
  refuses 3 'fit' "$RAFTER" plan uva --on a5000 --batch 64 --seq 512 --fit 1GiB --json &&
    holds out 'd["fits"] is d["memory"]["fits"] is d["search"]["fits"] is False and d["search"]["tried"] >= len(d["frontier"]) > 1 and all(not r["fits"] for r in d["frontier"]) and d["memory"]["peak_bytes"] == min(r["peak_bytes"] for r in d["frontier"])' 'a search in vain'
  # If the budget is tight, the output also has the cost of the named policies.
  status 0 "$RAFTER" plan llama3-8b --on h200 --batch 16 --seq 4096 --fit --json && holds out 'any(r["remat"] == "block" and "remat=block" in r["why"] for r in d["frontier"]) and d["memory"]["fits"]' 'policies in the frontier'
  refuses 3 'fit' "$RAFTER" plan gpt2-xl --on a5000 --batch 64 --json && {
    holds out 'd["memory"]["fits"] is False and d["memory"]["headroom_bytes"] < 0' 'a plan that does not fit is still printed'
    says '[0-9.]+ [GM]iB'
    says '^hint: '
  }
  status 3 "$RAFTER" plan gpt2 --job rl --fit 2200MiB --batch 8 --max-tokens 64 --prompt-tokens 64 --on tpu-v5e --json && holds out 'd["fits"] is d["search"]["fits"] is False and all(not r["fits"] for r in d["frontier"])' 'a search that judges all phases together'
}

# Several chips: the search splits the step along data, fsdp and tensor. Its result is the plan that
# the same mesh gives.
case_mesh_search() {
  status 0 "$RAFTER" plan llama3.2-1b --on tpu-v5e:4x4 --batch 64 --seq 2048 --fit --json && {
    holds out 'd["memory"]["fits"] and d["frontier"][0]["mesh"] and all(r["mesh"] for r in d["frontier"]) and d["settings"]["dtype"] == "bf16"' '--fit over meshes'
    mesh=$(ask out '",".join(f"{k}={v}" for k, v in d["settings"]["mesh"].items() if k != "zero")') remat=$(ask out 'd["settings"]["remat"]') seconds=$(ask out 'd["time"]["seconds"]')
    status 0 "$RAFTER" plan llama3.2-1b --on tpu-v5e:4x4 --batch 64 --seq 2048 --dtype bf16 --mesh "$mesh" --remat "$remat" --accumulate "$(ask out 'd["settings"]["accumulate"]')" --json &&
      holds out "abs(d['time']['seconds'] - $seconds) < 1e-9" 'the plan that the search found, made alone'
  }
  # A requested ZeRO stage is used in every mesh of the search.
  status 0 "$RAFTER" plan llama3.2-1b --on tpu-v5e:2x4 --batch 16 --seq 1024 --zero 1 --fit --json && holds out 'd["settings"]["mesh"]["zero"] == 1' '--fit with --zero'
  # If there are fewer sequences than chips, chips share the tokens of a sequence. Experts are on
  # separate chips if that is faster. The result is the plan that its mesh gives.
  for search in "llama3.2-1b --on tpu-v5e:4x4 --batch 2 --seq 32768" "mixtral-8x22b --on h100-sxm:4x8 --batch 64 --seq 4096"; do
    # shellcheck disable=SC2086
    status 0 "$RAFTER" plan $search --fit --margin 0 --json && {
      holds out 'd["memory"]["fits"] and (bool({"context", "sequence"} & d["settings"]["mesh"].keys()) if "llama" in d["model"]["name"] else d["settings"]["mesh"].get("expert") == 8)' "the mesh that --fit finds for $search"
      mesh=$(ask out '",".join(f"{k}={v}" for k, v in d["settings"]["mesh"].items() if k != "zero")') remat=$(ask out 'd["settings"]["remat"]') seconds=$(ask out 'd["time"]["seconds"]')
      # shellcheck disable=SC2086
      status 0 "$RAFTER" plan $search --dtype bf16 --mesh "$mesh" --remat "$remat" --accumulate "$(ask out 'd["settings"]["accumulate"]')" --json &&
        holds out "abs(d['time']['seconds'] - $seconds) < 1e-9" "the plan that the search found for $search, made alone"
    }
  done
  # Fewer experts on a chip than a token chooses: the numbers are still finite.
  status 0 "$RAFTER" plan deepseek-v3 --on tpu-v5p:8x8x8 --batch 512 --seq 4096 --dtype bf16 --remat block --mesh expert=256,fsdp=2 --json && holds out '0 < d["work"]["bytes"] < 1e18 and d["time"]["seconds"] > 0'
  status 0 "$RAFTER" plan gemma3-1b --on tpu-v5e:2x4 --mesh data=8 --job generate --batch 64 --seq 512 --dtype bf16 --json && holds out '0 < d["rate"]["bandwidth_fraction"] <= 1' 'bandwidth is of all chips'
  refuses 2 'no mesh of 16 chips for batch 7 x 2047' \
    "$RAFTER" plan llama3.2-1b --on tpu-v5e:4x4 --batch 7 --seq 2047 --fit &&
    says '^hint: .*--batch 16$'
  # The default batch of the search is that of the plan without --fit: a multiple of the chips.
  status 0 "$RAFTER" plan llama3.2-1b --on h100-sxm:3x8 --seq 1024 --fit --json &&
    holds out 'd["settings"]["batch"] == 24 and d["memory"]["fits"]' 'the default batch of --fit on 24 chips'
  refuses 2 'no mesh of 24 chips for batch 8' \
    "$RAFTER" plan llama3.2-1b --on h100-sxm:3x8 --seq 1024 --batch 8 --fit
}

# Strong scaling over shapes of a machine, with the cliff at which chips begin to wait.
case_scaling() {
  status 0 "$RAFTER" plan llama3.2-1b --batch 64 --seq 1024 --fit --sweep on=tpu-v5e:2x2,tpu-v5e:4x4,tpu-v5e:8x8 --json && {
    holds out '[r["machine"]["chips"] for r in d["rows"]] == [4, 16, 64] and all(a["rate"]["tokens_per_second"] < b["rate"]["tokens_per_second"] for a, b in zip(d["rows"], d["rows"][1:]))' 'more chips are faster'
    holds out 'all("network" in c["cause"] for c in d["cliffs"] if c["what"] == "scaling")'
  }
}

# Host memory: AdamW's f32 moments take 8 bytes per parameter there and are transferred in both
# directions in each step. Transfers that no work hides are exposed.
case_offload() {
  for how in core none; do
    STEP=(gpt2 --on a100-80g --dtype f32 --batch 4 --accumulate 2 --offload optimizer)
    status 0 "$RAFTER" plan "${STEP[@]}" --collectives $how --json && {
      holds out '0 <= d["memory"]["host_bytes"] - 8 * d["model"]["parameters"] < 128 * 2 * 150 and d["memory"]["by_class"]["moment"] == 0 and d["memory"]["host_capacity_bytes"] is None'
      holds out 'abs(d["time"]["offload_seconds"] - 2 * 8 * d["model"]["parameters"] / 3.2e10) < 1e-3 * d["time"]["offload_seconds"] and d["settings"]["offload"] == ["optimizer"]'
      [ $how = core ] || holds out 'abs(d["time"]["offload_exposed_seconds"] - d["time"]["offload_seconds"]) < 1e-9' 'what the core waits for is all'
      [ $how = none ] || holds out 'd["time"]["offload_exposed_seconds"] < 0.7 * d["time"]["offload_seconds"]' 'both ways at once'
    }
  done
  status 0 "$RAFTER" plan gpt2 --on a100-80g --offload optimizer && says 'host memory' out && says 'waits for host' out
  status 0 "$RAFTER" plan gpt2 --on a100-80g --offload activations --remat block --after offload && says 'offload_in' out && says '@host' out
  # More than the host's memory: 512 GiB per 8 chips.
  refuses 3 'fit in the host.*64.00 GiB' "$RAFTER" plan llama3-70b --on tpu-v5e --job generate --batch 1 --seq 256 --dtype bf16 --offload weights
  status 0 "$RAFTER" plan gemma3-1b --on tpu-v5e --job serve --batch 8 --dtype bf16 --offload kv,weights --rate 1 --requests 32 --json && holds out 'd["memory"]["host_bytes"] > 1e9 and d["time"]["bound"] == "network"'
  status 0 "$RAFTER" plan gemma3-270m --on tpu-v5e --job rl --batch 8 --dtype bf16 --seq 512 --prompt-tokens 256 --max-tokens 256 --offload kv,optimizer --json && holds out 'd["memory"]["host_bytes"] > 12 * d["model"]["parameters"]'
  refuses 2 'no other memory to offload to' "$RAFTER" plan "$TINY" --offload optimizer
  refuses 2 'no other memory to offload to' "$RAFTER" train "$TINY" --data random:seed=0 --offload optimizer
  refuses 2 'and its host is unknown' "$RAFTER" plan gpt2 --on gb200 --offload optimizer
  refuses 2 'no KV cache' "$RAFTER" plan gpt2 --on a5000 --offload kv
  refuses 2 'no optimizer' "$RAFTER" plan gpt2 --on a5000 --job serve --offload optimizer
  refuses 2 'no optimizer' "$RAFTER" plan gpt2 --on a5000 --job score --offload activations
  refuses 2 "expected optimizer.*got 'moments'" "$RAFTER" plan gpt2 --on a5000 --offload moments
  refuses 2 "got ''" "$RAFTER" plan gpt2 --on a5000 --offload optimizer,
  refuses 2 'twice' "$RAFTER" plan gpt2 --on a5000 --offload kv,kv
  refuses 2 'microbatches in flight' "$RAFTER" plan gpt2 --on tpu-v5e:2x1 --mesh pipeline=2 --batch 8 --accumulate 4 --offload activations
  refuses 2 'JAX' "$RAFTER" plan gpt2 --on tpu-v5e --program jax-scan --offload optimizer
}

# Plots of a sweep, of a frontier, and of one plan, drawn by gnuplot. Without gnuplot, an error
# before any work says how to get it.
case_pictures() {
  if command -v gnuplot >/dev/null; then
    status 0 "$RAFTER" plan gpt2 --on a5000 --batch 8 --plot plan.png && [ "$(head -c 8 plan.png | od -An -tx1 | tr -d ' ')" = 89504e470d0a1a0a ] || fail "--plot plan.png is no PNG"
    status 0 "$RAFTER" plan gpt2 --on a5000 --dtype f32 --sweep batch=8..64 --plot sweep.svg && python3 -c 'import xml.dom.minidom as m; t = m.parse("sweep.svg").toxml(); assert "memory per chip (GiB)" in t and "a5000: 23.5 GiB" in t and "tokens per second" in t, t[:200]' || fail "the SVG of a sweep lacks its labels or the limit"
    status 0 "$RAFTER" plan uva --on a5000 --batch 64 --seq 512 --fit 8GiB --plot fit.svg && grep -q 'limit 8.00 GiB' fit.svg || fail "the frontier lacks its limit"
    says '^fit.svg$' out
    # The ceilings are those of one chip, as the ops are.
    status 0 "$RAFTER" plan gpt2 --on h100-sxm:8 --mesh fsdp=8 --batch 8 --plot chips.svg &&
      grep -q '989 TFLOP/s, ridge at 295 FLOP per byte' chips.svg && grep -q '3.35 TB/s' chips.svg ||
      fail "the roofline of 8 chips lacks the ceilings of one"
    refuses 1 'no/such|No such' "$RAFTER" plan gpt2 --on a5000 --plot no/such/folder.png
  fi
  refuses 2 'svg' "$RAFTER" plan gpt2 --on a5000 --plot plan.pdf
  refuses 1 'gnuplot-nox' env PATH=/nowhere "$RAFTER" plan gpt2 --on a5000 --plot plan.png
}

# Numbers as people write them, without exponents.
case_numbers() {
  status 0 "$RAFTER" plan llama3-8b --on h100-sxm:8 --mesh fsdp=8 --batch 8 --tokens 15T &&
    says '15 T tokens take [0-9,.]+ days and [0-9.]+ M USD, [0-9.,]+( M)? kWh' out &&
    says '[0-9]{2},[0-9]{3} tokens/s' out
  ! grep -E '[0-9]e[+]?[0-9]' out || fail 'a plan is printed with exponents'
  status 0 "$RAFTER" plan uva --on a5000 --batch 8 --offload optimizer --json &&
    holds out 'any("GB/s in each direction" in a for a in d["assumptions"])' 'the rate of offloading'
}

# The memory of a JAX program of the model: XLA's four numbers, and a total above that of rafter's
# program.
case_jax() {
  jax=$("$RAFTER" plan uva --on tpu-v5e --program jax-scan --batch 64 --accumulate 4 --dtype bf16 --json)
  python3 - "$jax" <<'PY' || fail "the JAX program's memory does not add up"
import json, sys
memory = json.loads(sys.argv[1])["memory"]
p = memory["program"]
sys.exit(not (p["argument"] + p["output"] - p["alias"] + p["temp"] == p["total"] == memory["peak_bytes"] == sum(memory["by_class"].values())))
PY
  refuses 2 'cannot use --remat auto' "$RAFTER" plan uva --program jax-unrolled --remat auto --json
  [ ! -s out ] || fail "a refused plan --json prints on stdout: $(head -c 100 out)"
}

case_refusals() {
  refuses 2 "mesh.*got ''" "$RAFTER" plan uva --on a5000:2 --mesh fsdp=2,
  status 0 "$RAFTER" plan uva --on tpu-v7x:2x2x1 --seq 512 --batch 8 --mesh fsdp=8@d2d --json && holds out 'any("fsdp=8@d2d" in a and "the 4 chips use the network" in a for a in d["assumptions"])' 'an axis longer than the link'
  status 0 "$RAFTER" plan uva --on tpu-v7x:2x2x1 --seq 512 --batch 8 --mesh fsdp=4,data=2@d2d --json && holds out 'not any("use the link between them" in a for a in d["assumptions"])'
  refuses 2 'it has no link between devices' "$RAFTER" plan uva --on tpu-v5e:2x2 --seq 512 --mesh fsdp=4@d2d
  refuses 2 'on is empty' "$RAFTER" plan uva --on ""
  refuses 2 'lora is empty' "$RAFTER" plan uva --lora ""
  refuses 2 'starts above 0' "$RAFTER" plan uva --on a5000 --sweep batch=8..4
  refuses 3 'at most 1.00 MiB' "$RAFTER" plan gpt2 --on a5000 --fit 1MiB
  local more='allows more memory than rtx-4090 has .expected at most [0-9.]+ GiB, got 100 GiB'
  refuses 2 "$more" "$RAFTER" plan gpt2-xl --on rtx-4090 --fit 100GiB --batch 32
  refuses 2 "$more" "$RAFTER" plan gpt2 --on rtx-4090 --fit 100GiB --job generate
  refuses 2 'allows more memory than local has' "$RAFTER" plan "$TINY" --on local --fit 100000GiB
  refuses 2 'did you mean.*batch' "$RAFTER" plan uva --batsh 4
  refuses 2 'uva' "$RAFTER" plan uvaa
  refuses 2 'did you mean.*plan|plan' "$RAFTER" pln uva
  refuses 2 'MODEL' "$RAFTER" plan
  refuses 2 'heads' "$RAFTER" plan gpt:layers=2,width=33,heads=2,ff=64,vocab=256,seq=32
  refuses 2 'seq|positions' "$RAFTER" plan gpt2 --seq 2048
  refuses 2 'a5000|machine' "$RAFTER" plan uva --on a50000
  refuses 2 'batch' "$RAFTER" plan "$TINY" --batch 4 --microbatch 3
  refuses 2 'remat' "$RAFTER" plan "$TINY" --remat everything
}

# Rotary models have no positions that run out, so a length above their maximum is an assumption.
case_longer_than_the_model() {
  local long='d["assumptions"] and any("is made for at most 32768" in a for a in d["assumptions"])'
  status 0 "$RAFTER" plan gemma3-1b --on h100-sxm --job score --seq 40000 --json && holds out "$long"
  status 0 "$RAFTER" plan gemma3-1b --on h100-sxm --job score --seq 32768 --json && holds out "not ($long)"
  status 0 "$RAFTER" plan llama2-7b --job generate --on h200 --seq 65536 --batch 1 &&
    says "x 65536 tokens \(more than the model's maximum of 4,096\)|up to 65536 tokens \(more than" out
  # pages that grow with the tokens do not explain a cliff
  status 0 "$RAFTER" plan llama3.1-8b --job prefill --on h200 --batch 1 --sweep seq=8192,32768,131072 &&
    says 'takes 16 times as long for 16 times the work' out
  ! grep -q 'pages of the cache' out || fail "pages: $(cat out)"
}

case_serving_times() {
  status 0 "$RAFTER" plan "$TINY" --job generate --json &&
    holds out 'd["serving"]["ttft_seconds"]["p99"] == d["serving"]["prefill_seconds"]' &&
    holds out 'd["serving"]["tpot_seconds"]["p50"] == d["serving"]["decode_step_seconds"]'
  # A prompt that fits into one chunk takes the same time however long sequences may be.
  local chunk=(llama3.1-8b --on h100-sxm --batch 1 --job generate --json)
  local first='["serving"]["ttft_seconds"]["p50"]'
  status 0 "$RAFTER" plan "${chunk[@]}" --seq 512 && cp out short
  status 0 "$RAFTER" plan "${chunk[@]}" --seq 131072 && {
    holds out "abs(d$first / json.load(open('short'))$first - 1) < 0.02" 'the first token of a long context'
    holds out 'd["serving"]["prefill_tokens"] == 256'
  }
  # Chunks of several prompts are longer than a sequence: the prompt has at most --seq tokens.
  status 0 "$RAFTER" plan "$TINY" --on h100-sxm --job generate --batch 4 --json &&
    holds out 'd["serving"]["prefill_tokens"] == 32' 'the longest prompt'
}

case_nodes() {
  local job='--dtype bf16 --batch 16 --seq 4096 --remat block'
  status 0 "$RAFTER" plan llama3-8b --on h100-sxm:2x8 $job &&
    says '^llama3-8b: .* on h100-sxm, 2 nodes of 8 chips: fsdp=16' out
  ! grep -q notice err || fail 'a notice is printed for nodes of the usual size'
  status 0 "$RAFTER" plan llama3-8b --on h100-sxm:8x2 $job --json &&
    says 'notice: h100-sxm is planned with 2 chips per node, but .* nodes of 8 chips'
  holds out 'any("2 chips per node" in a for a in d["assumptions"]) and d["machine"]["chips"] == 16'
  status 0 "$RAFTER" plan gpt2 --on tpu-v5e:4x4 --batch 16 &&
    says ' on tpu-v5e, 16 chips .4x4.: fsdp=16' out
}

case_large_machines() {
  status 3 "$RAFTER" plan llama3-405b --on h100-sxm --batch 1 --seq 4096 --json && holds out 'd["plan_seconds"] < 2 and d["memory"]["peak_bytes"] > 16 * 405e9' 'the 405B plan is made in well under a second'
  for pod in tpu-v5p:16x20x28=8960 h100-sxm:2048x8=16384; do
    status 0 "$RAFTER" plan llama3-405b --on "${pod%=*}" --batch "${pod#*=}" --seq 8192 --dtype bf16 --remat block --json &&
      holds out 'd["plan_seconds"] < 2 and d["memory"]["fits"] and d["time"]["network_hidden_seconds"] > 0' "the 405B plan on ${pod%=*} is made in well under two seconds"
  done
  status 0 "$RAFTER" plan "$TINY" --job generate --json && holds out 'd["job"] == "generate" and d["memory"]["by_class"]["kv"] > 0 and d["serving"]["kv_bytes_per_token"] == 2 * 2 * 32 * 4' 'generate: KV bytes per token'
  status 0 "$RAFTER" plan gpt2 --on a100-80g --json && holds out 'd["cost"]["seconds_for_tokens"] is d["cost"]["usd_for_tokens"] is d["cost"]["kilowatt_hours_for_tokens"] is None' 'no tokens to price'
}

case_hints() {
  refuses 2 'hint: choose --accumulate among the divisors of 10: 1, 2, 5, 10$' "$RAFTER" plan gpt2 --on a5000 --batch 10 --accumulate 3
  refuses 2 'hint: choose --microbatch among the divisors of 720720: 1, 2, .*, 12, [.]{3}$' "$RAFTER" plan gpt2 --on a5000 --batch 720720 --microbatch 17
  for order in gpipe interleaved:2; do refuses 2 "pipeline $order needs pipeline stages" "$RAFTER" plan gpt2 --on h100-sxm --batch 8 --pipeline $order; done
  refuses 2 'no axis to shard weights over .--zero 3' "$RAFTER" plan gpt2 --on h100-sxm:8 --batch 8 --mesh tensor=8 --zero 3
  refuses 2 'no axis to shard gradients over .--zero 2' "$RAFTER" plan gpt2 --on a5000 --batch 8 --zero 2
  refuses 3 'share them over more chips .fsdp or tensor in --mesh., or use a smaller model' "$RAFTER" plan llama3-70b --on h100-sxm:8 --mesh data=8 --batch 8 --dtype bf16
  status 0 "$RAFTER" plan gpt2 --tokens 1G --on a100-80g --json && holds out 'd["cost"]["seconds_for_tokens"] > 0'
}

# The plan is the run: the same number of bytes with any settings.
case_plan_is_the_run() {
  for settings in "" "--dtype bf16" "--accumulate 2" "--remat block" "--dtype bf16 --remat auto --dropout 0.1" "--clip 0"; do
    # shellcheck disable=SC2086
    status 0 "$RAFTER" plan "$TINY" "${QUICK[@]}" $settings --json && planned=$(ask out 'd["memory"]["peak_bytes"]')
    # shellcheck disable=SC2086
    status 0 "$RAFTER" train "$TINY" "${QUICK[@]}" $settings --data random:seed=0 --steps 2 --out "run$RANDOM$RANDOM" --json &&
      holds out "rows[0]['arena_bytes'] == rows[0]['peak_bytes'] == $planned" "train ${settings:-with defaults} takes what the plan says ($planned bytes)"
  done
}

# Without --seq and --dtype, a plan takes 4096 tokens, or the model's maximum if it is shorter, and
# bf16 on accelerators. The output says so. A given value wins, wherever it is given.
case_defaults() {
  status 0 "$RAFTER" plan gemma3-1b --on h200 --batch 1 && {
    says "^batch 1 x 4096 tokens .default; the model's maximum is 32,768., 1 micro.* bf16 .default.," out
  }
  status 0 "$RAFTER" plan gemma3-1b --on h200 --batch 1 --json && {
    holds out 'd["settings"]["seq"] == 4096 and d["settings"]["dtype"] == "bf16"'
    holds out 'sum("(default of --" in a for a in d["assumptions"]) == 2' 'assumptions name the defaults'
  }
  status 0 "$RAFTER" plan gpt2 --on h200 --job score --json && holds out 'd["settings"]["seq"] == 1024'
  status 0 "$RAFTER" plan gemma3-1b --job generate --on h200 --batch 1 &&
    says "^1 sequence of up to 4096 tokens .default; the model's maximum is 32,768., bf16 .default.$" out
  status 0 "$RAFTER" plan --help && tr -s ' \n' ' ' <out >flat && {
    says 'the longest the model takes, but at most 4096 in plan' flat
    says 'unset: f32, but bf16 in a plan for an accelerator' flat
  }
  status 0 "$RAFTER" plan "$TINY" --json && holds out 'd["settings"]["dtype"] == "f32"' 'f32 on a CPU'
  status 0 "$RAFTER" plan gpt2 --on h200 --seq 512 --dtype f32 &&
    says '^batch 8 x 512 tokens .1 micro.*, f32, ' out
  printf '{"dtype": "f32", "seq": 256}' >given.json
  status 0 "$RAFTER" plan gpt2 --on h200 --config given.json --json && {
    holds out 'd["settings"]["seq"] == 256 and d["settings"]["dtype"] == "f32"' '--config wins'
    holds out 'not any("(default of --" in a for a in d["assumptions"])'
  }
  status 0 "$RAFTER" plan gpt2 --on h200 --compare dtype=f32 seq=512 --json &&
    holds out '[d[k]["settings"][o] for k in "ab" for o in ("dtype", "seq")] == ["f32", 1024, "bf16", 512]'
  status 0 "$RAFTER" plan gpt2 --on h200 --sweep dtype=f32,bf16 --json &&
    holds out '[r["settings"]["dtype"] for r in d["rows"]] == ["f32", "bf16"]' '--sweep wins'
  # Jobs that answer prompts have the length of prompt and answer.
  ROLL=(gemma3-1b --on h200 --job rollout --batch 2 --prompt-tokens 100 --max-tokens 28)
  status 0 "$RAFTER" plan "${ROLL[@]}" --json &&
    holds out 'd["settings"]["seq"] == 128 and not any("of --seq" in a for a in d["assumptions"])'
  # Training keeps its defaults, and its options plan the same step.
  LONG=${TINY%seq=32}seq=8192
  status 0 "$RAFTER" train "$LONG" --batch 1 --threads 2 --data random:seed=0 --steps 1 --out long --json &&
    status 0 "$RAFTER" plan --config long/run.json --json &&
    holds out 'd["settings"]["seq"] == 8192 and d["digest"] == json.load(open("long/plan.json"))["digest"]'
}

cases "$@"
