#!/usr/bin/env bash
# calibrate, plans that use its measurements, and bench: their files and rows. No time is compared.
. "$(dirname "$0")/lib.sh"
status 0 "$RAFTER" plan "$TINY" --json &&
  holds out 'd["machine"]["source"] == "detected" and d["time"]["confidence"] == "low"' 'an uncalibrated machine says so'
status 0 "$RAFTER" calibrate --quick --tune --threads 2 --out here.json --json && {
  [ "$(wc -l <out)" = 1 ] || fail 'calibrate --json is not one object'
  holds out 'd["flops"]["f32"] > 1e9 and d["read_bps"] > 1e8 and d["copy_bps"] > 1e8 and d["curves"] > 0 and len(d["scaling"]) >= 1'
  holds here.json '{"name", "kind", "isa", "threads", "flops", "read_bps", "copy_bps", "memory_bytes", "launch_seconds", "curves"} <= d.keys()' 'the machine file has the keys of docs/formats.md'
  holds out 'd["tuned"]["threads"] == 2 and len(d["tuned"]["rows"]) >= 6 and all(r["gain"] > 2 * r["spread"] for r in d["tuned"]["rows"] if r["best"])' 'blocks are tuned, and used if they are clearly faster'
  holds here.json '({"bf16", "i8"} <= d["flops_vectors"].keys() <= d["flops"].keys()) if d["isa"] == "amx" else "flops_vectors" not in d' 'vectors are measured in addition to tiles'
  holds here.json '{"bf16", "q8_0", "q4_0", "q4_k", "touch"} <= {c["kernel"] for c in d["curves"] if c["op"] == "load"}' 'the loading of weights is measured'
  holds here.json 'all({"q8_0", "q4_0", "q4_k", "q6_k"} <= {c["kernel"] for c in d["curves"] if c["op"] == op} for op in ("matmul_exact", "matmul_fast"))' 'products with packed weights are measured'
}
# The part of the cores that other programs took is in the file, and plans say that they took much.
holds out '0 <= d["others_part"] <= 1' 'calibrate says what other programs took'
python3 -c 'import json
d = json.load(open("here.json")) | {"others_part": 0}
json.dump(d | {"others_part": 0.58}, open("busy.json", "w"))
json.dump(d, open("here.json", "w"))'
for command in "plan $TINY --on ./busy.json" 'roofline matmul --on ./busy.json' 'inspect busy.json'; do
  # shellcheck disable=SC2086
  status 0 "$RAFTER" $command &&
    says '^notice: other programs used 58 % of the cores while .* was calibrated.*calibrate it again, alone'
done
status 0 "$RAFTER" plan "$TINY" --on ./busy.json --json &&
  holds out 'd["time"]["confidence"] == "low"' 'a plan with a busy calibration' &&
  holds out 'any("other programs used 58 %" in a for a in d["assumptions"])' 'its assumptions'
status 0 "$RAFTER" plan "$TINY" --on ./here.json --threads 2 --json &&
  holds out 'd["machine"]["source"] in ("calibrated", "file") and d["time"]["confidence"] == "normal" and d["time"]["seconds"] > 0' '--on FILE plans with it'
# A calibration of another version is used, with one notice. Before the field, files had no version.
holds here.json 'd["calibration"] >= 2' 'the machine file has the version of its measurements'
grep -q 'rafter calibrate. again' err && fail 'a new calibration gets a notice'
python3 -c 'import json
d = json.load(open("here.json"))
del d["calibration"]
json.dump(d, open("old.json", "w"))'
for command in "plan $TINY --on ./old.json" 'roofline matmul --on ./old.json' 'inspect old.json'; do
  # shellcheck disable=SC2086
  status 0 "$RAFTER" $command &&
    [ "$(grep -c '^notice: .*an earlier version of rafter.*run `rafter calibrate` again' err)" = 1 ] ||
    fail "rafter $command: no notice of an old calibration"
done
status 0 "$RAFTER" plan "$TINY" --on ./old.json --json &&
  holds out 'any("run `rafter calibrate` again" in a for a in d["assumptions"])' 'the plan says so too'
local_file=$("$RAFTER" doctor --json |
  python3 -c 'import json, sys; print(json.load(sys.stdin)["calibration"])')
mkdir -p "$(dirname "$local_file")" && cp here.json "$local_file"
# The other setting of --compute: its predicted effect in the plan, and in the last line of a run.
status 0 "$RAFTER" plan "$TINY" --job generate --weights int8 --json &&
  holds out '[a["change"] for a in d["advice"]] == ["compute=fast"]' 'plan prices --compute fast' &&
  holds out '"prompts: " in d["advice"][0]["why"]' 'for prompts too'
status 0 "$RAFTER" plan "$TINY" --job generate --json &&
  holds out 'd["advice"] == []' 'f32 weights have no fast products'
status 0 "$RAFTER" generate "$TINY" --prompt abc --max-tokens 4 --weights int8 --compute fast &&
  says 'tokens/s; predicted with --compute exact: decoding: .*; prompts: ' err
cp old.json "$local_file"
status 0 "$RAFTER" doctor && says 'calibration of another version: run .rafter calibrate. again' out
rm -r "$HOME/.cache"
where=$(find "$HOME" -type f)
[ -z "$where" ] || fail "calibrate --out also writes another file: $where"
# A lower level of --cpu has its own file. Other levels do not read it.
mkdir -p levels/rafter && python3 -c '
import json, socket
d = json.load(open("here.json"))
d["name"] = "calibrated at base"
host = socket.gethostname().replace("/", "_")
json.dump(d, open(f"levels/rafter/{host}.base.json", "w"))'
if "$RAFTER" plan "$TINY" --cpu avx2 --json --quiet >/dev/null 2>&1; then # otherwise base is the best level
  XDG_CACHE_HOME=$WORK/levels status 0 "$RAFTER" plan "$TINY" --cpu base --json &&
    holds out 'd["machine"]["name"] == "calibrated at base"' 'a level plans with its file'
  XDG_CACHE_HOME=$WORK/levels status 0 "$RAFTER" plan "$TINY" --json &&
    holds out 'd["machine"]["name"] != "calibrated at base"' 'the best level has another file'
fi
# Tuned blocks are printed, planned with, and trained with to the same numbers. Blocks of another
# CPU, or invalid ones, are refused.
status 0 "$RAFTER" inspect here.json && says 'blocks tuned on .*2 threads$' out &&
  says 'matmul_dw +rows<=512 weights<=1Mi' out
status 0 "$RAFTER" inspect here.json --json &&
  holds out 'd["kind"] == "machine" and d["tuned_here"] and d["tuned"] == d["content"]["tuned"]' 'inspect shows the table'
text book.txt 9000
plant() { python3 - "$@" <<'PLANT'
import json, sys
d = json.load(open("here.json"))
rows = d["tuned"]["rows"]
blocks = {"kc": 48, "a_bytes": 16384, "nc": int(sys.argv[3])}
for r in rows: r["best"] = blocks if sys.argv[2] == "odd" else None
if sys.argv[4:]: d["tuned"]["cpu"] = sys.argv[4]
json.dump(d, open(sys.argv[1], "w"))
PLANT
}
plant odd.json odd 96; plant own.json own 96; plant foreign.json odd 96 'Some other CPU'; plant bad.json odd 0
WIDE=gpt:layers=1,width=256,heads=4,ff=1024,vocab=256,seq=64
for file in odd own foreign; do
  status 0 "$RAFTER" plan "$WIDE" --batch 2 --threads 2 --on ./$file.json --ops --json && cp out plan.$file
  status 0 "$RAFTER" train "$WIDE" --data book.txt --batch 2 --threads 2 --on ./$file.json --steps 2 --out run.$file --json &&
    cp out train.$file
done
holds plan.odd 'sum(o.get("blocks") == {"kc": 48, "a_bytes": 16384, "nc": 96} for o in d["ops"]) == 12' 'the fastest blocks are in the op of the plan'
holds plan.own 'not any("blocks" in o for o in d["ops"])' 'without tuned blocks the kernel uses its default'
digest() { python3 -c 'import json, sys; d = json.load(open(sys.argv[1])); print(d["digest"], d["memory"]["peak_bytes"])' "$1"; }
[ "$(digest plan.own)" = "$(digest plan.foreign)" ] || fail 'blocks of another CPU are applied'
[ "$(digest plan.own)" != "$(digest plan.odd)" ] || fail 'blocks do not count in the digest'
same run.own/checkpoint-00000002/model.safetensors run.odd/checkpoint-00000002/model.safetensors 'weights trained with other blocks'
status 0 "$RAFTER" inspect foreign.json && says 'not used: this machine has another CPU' out
refuses 1 'bad.json: tuned row 0.*nc.*out of range' "$RAFTER" plan "$WIDE" --on ./bad.json
refuses 1 'bad.json: tuned row 0.*nc.*out of range' "$RAFTER" inspect bad.json

status 0 "$RAFTER" doctor
mkdir -p there && cp here.json there/cut.json && truncate -s -40 there/cut.json &&
  refuses 1 'cut.json' "$RAFTER" plan "$TINY" --on there/cut.json
echo '{}' >there/empty.json && { "$RAFTER" plan "$TINY" --on there/empty.json >out 2>err; [ $? -ge 1 ] &&
  says 'empty.json'; }
refuses 1 'nothere.json|nothere' "$RAFTER" plan "$TINY" --on ./nothere.json || true

# Many answers at once all run before the first ends. A waiting test handles signals.
# --prefill-chunk is the chunk that is measured.
status 0 "$RAFTER" bench gpt:layers=1,width=16,heads=1,ff=32,vocab=256,seq=4096 --test batch900 --reps 1 --threads 2 --json &&
  holds out 'rows[-1]["test"] == "batch900" and rows[-1]["tokens_per_second"] > 0'
status 0 env RAFTER_RUNS=benches "$RAFTER" bench "$TINY" --test batch2,tg4,train --reps 1 --batch 2 --threads 2 --json &&
  holds out '[r["test"] for r in rows[1:]] == ["batch2", "tg4", "train"]' && cp out benched
# Every test is in the history with its figures.
status 0 env RAFTER_RUNS=benches "$RAFTER" runs list --json &&
  holds out '[(r["command"], r["status"], r["results"]["test"]) for r in d["runs"]] == [("bench", "done", t) for t in ("train", "tg4", "batch2")]' &&
  python3 -c 'import json; rows = {json.loads(l)["test"]: json.loads(l) for l in open("benched")}; assert all(r["results"]["tokens_per_second"] == rows[r["results"]["test"]]["tokens_per_second"] for r in json.load(open("out"))["runs"])' ||
    fail 'the history of a bench is wrong'
refuses 2 'positions for fewer tokens' "$RAFTER" bench "${TINY/seq=32/seq=8}" --test batch2 --reps 1 --threads 2
status 0 "$RAFTER" bench "$TINY" --seq 32 --test pp31,tg8,tg4@d8,train --sweep prefill-chunk=16,256 --reps 1 --batch 2 --threads 2 --json &&
  {
  holds out '[r["test"] for r in rows] == ["calibration"] + 2 * ["pp31", "tg8", "tg4@d8", "train"]' 'bench prints the calibration first, then a row per test'
  holds out 'rows[1]["predicted_seconds"] != rows[5]["predicted_seconds"]' '--prefill-chunk does not change what is planned'
  holds out 'all({"test","model","dtype","threads","tokens_per_second","seconds","predicted_seconds","limit_fraction","n"} <= r.keys() and {"median","min","max"} <= r["seconds"].keys() for r in rows[1:])' 'bench rows have their keys'
  holds out 'all(0 < r["seconds"]["min"] <= r["seconds"]["median"] <= r["seconds"]["max"] and r["n"] == 1 and 0 < r["limit_fraction"] for r in rows[1:])'
}
# Ceilings of the requested instruction set, and every rate as a fraction of each ceiling that
# applies.
status 0 "$RAFTER" bench "$TINY" --test pp31,tg8 --cpu base --reps 1 --threads 2 --json && {
  holds out 'rows[0]["isa"] == "base" and rows[0]["peaks"].keys() == {"f32"} and rows[1]["fractions"].keys() == {"f32"} and rows[2]["fractions"].keys() == {"read"}' 'ceilings of --cpu base'
  holds out 'all(abs(r["limit_fraction"] - max(r["fractions"].values())) < 1e-9 for r in rows[1:])' 'the limit is one of the fractions'
}
refuses 2 'pq7' "$RAFTER" bench "$TINY" --test pq7

# The output of a bench can be part of a report, with the option that it swept. Every row is
# checked.
status 0 "$RAFTER" bench "$TINY" --test tg4 --sweep threads=1,2 --reps 1 --json && cp out swept.jsonl &&
  holds swept.jsonl '[(r["sweep"], r["value"]) for r in rows[1:]] == [("threads", "1"), ("threads", "2")]' 'rows of a sweep have the swept value'
cp benched bench.jsonl
status 0 "$RAFTER" report bench.jsonl swept.jsonl --json --out bench.html &&
  holds out '[(b["name"], len(b["rows"])) for b in d["benches"]] == [("bench.jsonl", 3), ("swept.jsonl", 2)] and d["benches"][0]["calibration"]["test"] == "calibration" and not d["runs"]' 'a report of benches'
holds out 'all(abs(r["predicted_tokens_per_second"] * r["predicted_seconds"] / (r["tokens_per_second"] * r["seconds"]["median"]) - 1) < 1e-6 for b in d["benches"] for r in b["rows"])' 'the predicted rate of a row'
grep -q '</html>' bench.html || fail 'there is no page of benches'
for damage in 's/"tokens_per_second":[0-9.e+-]*/"tokens_per_second":"fast"/ tokens_per_second' 's/"median"/"middle"/ median' 's/"dtype":"f32"/"dtype":32/ dtype' 's/^{"test":"tg4".*/half/ line 3'; do
  sed "${damage%% *}" bench.jsonl >bad.jsonl && refuses 1 "${damage#* }" "$RAFTER" report bad.jsonl --json
done
head -1 bench.jsonl >bad.jsonl && refuses 1 'no row with a test' "$RAFTER" report bad.jsonl --json
# A prompt needs the head once: 2 blocks of 8192 parameters for 16 tokens, and a tied head of 4096 x 32.
status 0 "$RAFTER" bench gpt:layers=2,width=32,heads=2,ff=64,vocab=4096,seq=64 --test pp16 --reps 1 --json &&
  holds out 'rows[1]["limit_work"] == 2 * 2 * 8192 * 16 + 2 * 4096 * 32' 'a prompt needs its head once'
refuses 2 '32' "$RAFTER" bench "$TINY" --test pp64 --threads 2
refuses 2 'expected 32 at most' "$RAFTER" bench "$TINY" --test "$(printf 'tg4,%.0s' $(seq 33))tg4"
finish
