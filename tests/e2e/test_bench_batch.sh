#!/usr/bin/env bash
# `rafter bench --test rollout,forward,topk`: rows by batch with planned and measured time and
# memory, with and without an adapter, and their picture. No time is compared.
. "$(dirname "$0")/lib.sh"
BENCH=("$RAFTER" bench "$TINY" --reps 1 --threads 2)
ROWS=(--prompt-tokens 8 --max-tokens 8 --seq 16)

case_sweep() {
  status 0 "${BENCH[@]}" "${ROWS[@]}" --test rollout,forward,topk --sweep batch=1,3 --json \
    --plot by-batch.svg
  holds out '[r["test"] for r in rows[1:]] == 2 * ["rollout", "forward", "topk"]'
  holds out '[r["batch"] for r in rows[1:]] == 3 * [1] + 3 * [3]'
  holds out 'all(r["arena_bytes"] == r["planned_bytes"] > 0 and not r["adapter"] for r in rows[1:])' \
    'the memory is that of the plan'
  holds out 'all(r["elapsed_seconds"] == r["seconds"]["median"] > 0 for r in rows[1:])'
  holds out 'all(r["predicted_seconds"] > 0 and r["sweep"] == "batch" for r in rows[1:])'
  holds out 'all(math.isclose(r["seconds_per_token"] * r["tokens_per_second"], 1) for r in rows[1:])'
  tokens='round(r["elapsed_seconds"] / r["seconds_per_token"])'
  holds out "[$tokens for r in rows[1:]] == [8, 16, 16, 24, 48, 48]" \
    'a rollout counts answers, a forward pass all tokens'
  holds out 'rows[4]["arena_bytes"] > rows[1]["arena_bytes"]'
  grep -q '</svg>' by-batch.svg && grep -q 'rollout' by-batch.svg || fail 'there is no picture'
  cp out swept.jsonl
  status 0 "$RAFTER" report swept.jsonl --json --out bench.html &&
    holds out 'len(d["benches"][0]["rows"]) == 6'
  status 0 "${BENCH[@]}" "${ROWS[@]}" --test topk --top 3 --batch 2 && says '^topk +[0-9,.]+ tok/s ' out
}

# The base model is measured first, then the model with the adapter.
case_adapter() {
  text book.txt 3000
  train=("${QUICK[@]}" --data book.txt --steps 1 --val-every 0)
  status 0 "$RAFTER" train "$TINY" "${train[@]}" --out base
  status 0 "$RAFTER" train base "${train[@]}" --lora rank=2 --out tuned
  status 0 "$RAFTER" bench base --adapter tuned/checkpoint-00000001 --threads 2 --reps 1 "${ROWS[@]}" \
    --batch 2 --test rollout,forward --plot both.png --json
  holds out '[r["adapter"] for r in rows[1:]] == [False, True] * 2'
  holds out 'all(r["arena_bytes"] == r["planned_bytes"] for r in rows[1:])'
  holds out 'all(rows[i + 1]["arena_bytes"] > rows[i]["arena_bytes"] for i in (1, 3))' \
    'an adapter needs memory'
  [ "$(head -c 4 both.png | tail -c 3)" = PNG ] || fail 'there is no picture of both'
}

case_limits() {
  refuses 2 'expected rollout, forward or topk' "${BENCH[@]}" --test tg4 --plot x.svg
  refuses 2 'svg or .png|\.svg' "${BENCH[@]}" --test topk --plot x.gif
  refuses 2 'expected ppN.*rollout, forward or topk, got rollouts' "${BENCH[@]}" --test rollouts
  refuses 2 "expected ppN.*got tg99" "${BENCH[@]}" --test tg9999999999999999999999
  refuses 2 "expected ppN.*got tg4@d92" "${BENCH[@]}" --test tg4@d9223372036854775807
  refuses 2 'positions for fewer tokens' "${BENCH[@]}" --test rollout
  refuses 2 'positions for fewer tokens' "${BENCH[@]}" --test forward --seq 64
  # A batch that does not fit ends a single test, and is noted in a sweep.
  local large=gpt:layers=2,width=512,heads=4,ff=512,vocab=256,seq=4096
  local fits=("$RAFTER" bench "$large" --test rollout --prompt-tokens 1k --max-tokens 1 --reps 1)
  refuses 3 'fit' "${fits[@]}" --batch 200000
  status 0 "${fits[@]}" --sweep batch=1,200000 --json && says '^rollout, batch 200000: ' &&
    holds out '[r["value"] for r in rows[1:]] == ["1"]'
}
cases "$@"
