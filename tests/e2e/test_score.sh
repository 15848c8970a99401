#!/usr/bin/env bash
# score: one text, rows of JSON Lines, windows with a stride. Its log-probabilities are those of
# generate.
. "$(dirname "$0")/lib.sh"
# the seed of the initial weights: the same as for generate below
score() { "$RAFTER" score "$TINY" --seed 5 "$@"; }

# The answers for one text: a number for every token except the first, the likeliest tokens in
# order, and the perplexity that follows.
status 0 score --text 'In the beginning' --top 3 --json && python3 - out <<'PY' || fail 'score --json does not add up'
import json, math, sys
d = json.loads(open(sys.argv[1]).read())
assert bytes(d["tokens"]) == b"In the beginning" and d["logprobs"][0] is None and d["top"][0] is None
assert len(d["logprobs"]) == len(d["top"]) == 16 and all(x < 0 for x in d["logprobs"][1:])
for t in range(1, 16):
    ids, values = d["top"][t]["ids"], d["top"][t]["logprobs"]
    assert len(set(ids)) == 3 and values == sorted(values, reverse=True)
    if d["tokens"][t] in ids:
        assert values[ids.index(d["tokens"][t])] == d["logprobs"][t]
    else:
        assert d["logprobs"][t] <= values[-1]
assert abs(d["nll"] + sum(d["logprobs"][1:])) < 1e-9 and abs(d["perplexity"] - math.exp(d["nll"] / 15)) < 1e-9
PY

# As text, one line per token, with the alternatives of --top. Control characters are escaped.
status 0 score --text $'In\nb' && says '^ +logprob  token$' out && says '^ +-  "I"$' out &&
  says '^ +-[0-9]+\.[0-9]{5}  "\\n"$' out
status 0 score --text 'In b' --top 2 && says '^ +-[0-9.]+  "n": "?[^,]+ -[0-9.]+, "?[^,]+ -[0-9.]+$' out &&
  says '^1 row, 3 tokens scored' out
[ "$(grep -c ', .* -[0-9.]*$' out)" = 3 ] || fail "--top 2 lists: $(cat out)"

# The log-probability that generate prints for a token equals that of score for the same tokens, to
# the last bit.
status 0 "$RAFTER" generate "$TINY" --tokens 73,110,32 --max-tokens 9 --temperature 1 --seed 5 --top-logprobs 2 --json &&
  cp out generated
tokens=$(python3 -c 'import json; print(json.dumps([73, 110, 32] + json.load(open("generated"))["tokens"]))')
echo "{\"id\": \"g\", \"tokens\": $tokens}" >rows.jsonl
echo '{"id": 7, "text": "a second row"}' >>rows.jsonl
status 0 score --input rows.jsonl --output scored.jsonl --top 2 && python3 - <<'PY' || fail 'score and generate differ'
import json
rows = [json.loads(line) for line in open("scored.jsonl")]
made = json.load(open("generated"))
assert [r["id"] for r in rows] == ["g", 7] and rows[0]["logprobs"][3:] == made["logprobs"] and rows[0]["top"][3:] == made["top"]
PY
cp scored.jsonl before
status 0 score --input rows.jsonl --output scored.jsonl --top 2 --json && same before scored.jsonl '--json changes the file' && python3 - <<'PY' || fail "--json --output says: $(cat out)"
import json, math
rows = [json.loads(line) for line in open("scored.jsonl")]
d = json.load(open("out"))
assert d["rows"] == 2 and d["output"] == "scored.jsonl" and d["tokens"] == sum(len(r["tokens"]) - 1 for r in rows) and d["arena_bytes"] > 0
assert abs(d["nll"] - sum(r["nll"] for r in rows)) < 1e-9 and abs(d["perplexity"] - math.exp(d["nll"] / d["tokens"])) < 1e-9
PY
# All readers of JSON Lines have the same rule: a key twice in a row is an error that names the
# place.
printf '{"text": "ab", "id": 1}\n\n{"text": "ab", "text": "cd", "prompt": "a", "prompt": "b"}\n' >twice.jsonl
refuses 1 'twice.jsonl.*line 3.*duplicate' score --input twice.jsonl
refuses 1 'twice.jsonl.*line 3.*duplicate' "$RAFTER" eval perplexity "$TINY" --data twice.jsonl
refuses 1 'twice.jsonl.*line 3.*duplicate' "$RAFTER" train "$TINY" --data twice.jsonl --steps 1 --out twice
sed -i 's/"text": "ab", "id"/"prompt": "ab", "id"/' twice.jsonl &&
  refuses 1 'twice.jsonl.*line 3.*duplicate' "$RAFTER" generate "$TINY" --input twice.jsonl
echo '{"text": "ab", "tokens": [1, 2]}' >both.jsonl &&
  refuses 1 'both text and tokens.*line 1' score --input both.jsonl
mkdir folder.jsonl && refuses 1 'folder.jsonl' score --input folder.jsonl
python3 -c 'for i in range(400): print("{\"id\": %d, \"text\": \"%s\"}" % (i, "in the beginning of it all " * 40))' >many.jsonl
"$RAFTER" score "$TINY" --seed 5 --input many.jsonl --seq 32 --stride 1 --threads 1 --trace steps=1..3 --out kept --output kept.jsonl >out 2>err & pid=$!
# it handles the signal now
for _ in $(seq 300); do ((0x$(sed -n 's/^SigCgt:\s*//p' /proc/$pid/status) & 2)) && break; sleep 0.1; done
sleep 1; kill -INT $pid; wait $pid; got=$?
[ $got = 130 ] && says 'windows; [0-9]+ of 400 rows were written' || fail "an interrupted score exits $got: $(cat err)"
[ -s kept/trace.bin ] &&
  holds kept/report.json 'd["walks"][0]["count"] > 0 and d["walks"][0]["seconds"] > 0' 'an interrupted score leaves no report'
[ ! -e kept.jsonl ] ||
  holds kept.jsonl '0 < len(rows) < 400 and [r["id"] for r in rows] == list(range(len(rows))) and all(len(r["logprobs"]) == len(r["tokens"]) for r in rows)'
for batch in 1 2 9; do # other rows in the same pass do not matter
  status 0 score --input rows.jsonl --output scored.jsonl --top 2 --seq 16 --batch $batch &&
    cmp -s before scored.jsonl || fail "batch $batch changes the rows"
done

# Windows: with a smaller stride, a token sees more of the text before it.
text long.txt 200
status 0 score --input long.txt --seq 16 --stride 15 --json && cp out apart
status 0 score --input long.txt --seq 16 --stride 4 --json && cp out near
python3 - <<'PY' || fail 'windows do not cover the text'
import json
apart, near = json.load(open("apart")), json.load(open("near"))
assert len(apart["tokens"]) == 200 and apart["logprobs"][:16] == near["logprobs"][:16] and apart["logprobs"][17:20] != near["logprobs"][17:20]
assert apart["logprobs"][0] is None and all(x < 0 for x in apart["logprobs"][1:] + near["logprobs"][1:])
PY

# A damaged weight is an error, and no file has rows with "nan".
status 0 "$RAFTER" train "$TINY" "${QUICK[@]}" --data long.txt --steps 1 --val-every 0 --out short &&
  status 0 "$RAFTER" export short damaged && python3 - <<'PY'
import json, struct
b = bytearray(open("damaged/model.safetensors", "rb").read())
n = struct.unpack("<Q", b[:8])[0]
h = json.loads(b[8:8 + n])
at = 8 + n + h[next(k for k in h if k.endswith("ln_f.weight"))]["data_offsets"][0]
b[at:at + 4] = struct.pack("<f", float("nan")); open("damaged/model.safetensors", "wb").write(b)
PY
echo '{"tokens": [1, 2, 3]}' >three.jsonl
refuses 1 'logits are not finite.*token 1' "$RAFTER" score damaged --input three.jsonl --output damaged.jsonl
[ ! -s damaged.jsonl ] || fail "score wrote $(cat damaged.jsonl)"
refuses 1 'logits are not finite' "$RAFTER" score damaged --input three.jsonl --json
refuses 1 'logits are not finite' "$RAFTER" eval perplexity damaged --data long.txt

refuses 2 'nothing to score' "$RAFTER" score "$TINY"
refuses 2 'stride' "$RAFTER" score "$TINY" --input long.txt --seq 16
refuses 2 'stride.*1 to 15' "$RAFTER" score "$TINY" --input long.txt --seq 16 --stride 16
refuses 1 'nothere' "$RAFTER" score "$TINY" --input nothere.jsonl
echo '{"tokens": [1, 999]}' >bad.jsonl
refuses 1 'bad.jsonl, line 1, tokens, token 1' "$RAFTER" score "$TINY" --input bad.jsonl
echo '{"words": 1}' >bad.jsonl
refuses 1 'line 1' "$RAFTER" score "$TINY" --input bad.jsonl
refuses 1 'nothere' "$RAFTER" score "$TINY" --text 'some text' --output nothere/x.jsonl
finish
