#!/usr/bin/env bash
# `rafter plan --job`: prefill, score, rollout, serve and rl, each with memory by class and time.
# Simulated rates agree with requested rates.
. "$(dirname "$0")/lib.sh"
GEMMA=(gemma3-1b --on tpu-v5e --dtype bf16)

case_every_job() {
  for job in train generate prefill score rollout serve rl; do
    status 0 "$RAFTER" plan "$TINY" --on tpu-v5e --batch 4 --job $job --json && {
      holds out "d['job'] == '$job' and d['memory']['peak_bytes'] > 0 and d['time']['seconds'] > 0" "--job $job"
      holds out 'sum(d["memory"]["by_class"].values()) == d["memory"]["peak_bytes"]' "--job $job: by_class sums to peak_bytes"
    }
    status 0 "$RAFTER" plan "$TINY" --on tpu-v5e --batch 4 --job $job
  done
  # Scoring keeps no cache, prefill does. Both compute all tokens at once.
  status 0 "$RAFTER" plan "${GEMMA[@]}" --batch 8 --seq 1024 --job prefill --json &&
    holds out 'd["memory"]["by_class"]["kv"] > 0 and d["rate"]["tokens_per_second"] * d["time"]["seconds"] - 8192 < 1e-3' prefill
  status 0 "$RAFTER" plan "${GEMMA[@]}" --batch 8 --seq 1024 --job score --json &&
    holds out 'd["memory"]["by_class"]["kv"] == 0 and d["memory"]["by_class"]["logits"] == 0' score
}

# Prefill and scoring compute the same attention, and both count only the keys that a row sees.
case_prefill_is_causal() {
  local model part old='json.load(open("score"))'
  for model in 'llama3.1-8b --on h100-sxm --seq 32768' 'gemma3-1b --on tpu-v5e --seq 4096 --batch 4' \
    'deepseek-v3 --on h200:8 --mesh tensor=8 --seq 4096 --weights fp8'; do
    # shellcheck disable=SC2086
    status 0 "$RAFTER" plan $model --job score --json || continue
    cp out score
    # shellcheck disable=SC2086
    status 0 "$RAFTER" plan $model --job prefill --json && {
      for part in step step_full_square; do
        part="[\"work\"][\"by_part\"][\"attention\"][\"$part\"]"
        holds out "abs(d$part / $old$part - 1) < 1e-9" "$model: $part"
      done
      holds out 'd["rate"]["mfu_full_square"] > 1.05 * d["rate"]["mfu"]' "$model: the full square"
    }
  done
  # a prompt needs the logits of one row, so its prefill takes less time than scoring
  local long=(llama3.1-8b --on h100-sxm --seq 32768 --json)
  status 0 "$RAFTER" plan "${long[@]}" --job score && cp out score
  status 0 "$RAFTER" plan "${long[@]}" --job prefill &&
    holds out "d['time']['seconds'] < ${old}['time']['seconds']" 'prefill and score'
}

# Copies of a model share the prompts: all of them together do the work of one prefill.
case_prefill_of_copies() {
  local mesh flops='["work"]["model_flops"]' rate='d["rate"]["tokens_per_second"] * d["time"]["seconds"]'
  local job=(llama3.1-8b --on h100-sxm:8 --job prefill --batch 16 --seq 1024 --json)
  status 0 "$RAFTER" plan "${job[@]}" --mesh tensor=8 && cp out one
  for mesh in fsdp=8 data=2,tensor=4 data=8; do
    status 0 "$RAFTER" plan "${job[@]}" --mesh $mesh && {
      holds out "abs(d$flops / json.load(open('one'))$flops - 1) < 1e-3" "$mesh: FLOPs"
      holds out "abs($rate - 16 * 1024) < 1e-3" "$mesh: tokens"
    }
  done
}

# Rollouts: every sample of every prompt, with the prompt computed once.
case_rollouts() {
  status 0 "$RAFTER" plan "${GEMMA[@]}" --batch 64 --job rollout --samples 8 --prompt-tokens 512 --max-tokens 256 --json &&
    {
    holds out 'd["rollout"]["prompts"] == 8 and d["rollout"]["tokens"] == 8 * 8 * 256 and d["settings"]["seq"] == 768' 'rollout'
    holds out 'd["rollout"]["walked_prompt_tokens"] + d["rollout"]["shared_prompt_tokens"] == 64 * 512 and d["rollout"]["shared_prompt_tokens"] == 56 * 511' 'seven of eight samples share the prompt'
    holds out 'abs(d["rollout"]["tokens_per_second"] * d["rollout"]["seconds"] - 16384) < 1e-6' 'tokens over seconds'
  }
}

# Drafts: tokens of a pass by the formula, the best number of drafts, and the acceptance above which
# drafts save time.
case_drafts() {
  local base=("$RAFTER" plan "${GEMMA[@]}" --batch 4) s='d["speculation"]' with without from factor
  local generate=("${base[@]}" --seq 1024 --job generate --json)
  local old='json.load(open("plain.json"))' m='d["memory"]' alone='json.load(open("alone.json"))["memory"]'
  without='rollout"]["tokens_per_second"]'
  status 0 "${generate[@]}" && cp out plain.json
  status 0 "${generate[@]}" --speculate ngram --acceptance 0.8 && {
    holds out "$s['acceptance'] == 0.8 and 1 <= $s['draft_tokens'] <= 7" drafts
    holds out "abs($s['tokens_per_pass'] - (1 - 0.8 ** ($s['draft_tokens'] + 1)) / 0.2) < 1e-9" formula
    with='d["rate"]["tokens_per_second"]'
    holds out "abs($s['gain'] * $old['rate']['tokens_per_second'] / $with - 1) < 1e-3" 'the gain'
    holds out "d['memory']['peak_bytes'] > $old['memory']['peak_bytes']" 'drafts need memory'
    holds out "d['serving']['tokens_per_second'] == $with" 'one rate'
    from=$(python3 -c "import json; print(json.load(open('out'))['speculation']['wins_from_acceptance'])")
  }
  for factor in 0.9 1.1; do
    status 0 "${generate[@]}" --speculate ngram --acceptance "$(python3 -c "print($factor * $from)")" &&
      holds out "($s['gain'] > 1) == ($s['draft_tokens'] > 0) == ($factor > 1)" 'drafts save time above it'
  done
  # Only tokens of the answer count as work of the model: MFU rises as the rate does.
  status 0 "${generate[@]}" --speculate ngram --acceptance 0.8 &&
    holds out "abs(d['rate']['mfu'] / $old['rate']['mfu'] / $s['gain'] - 1) < 1e-3" 'MFU of drafts'
  # An acceptance that nobody gave is marked, and is lower for ngram.
  status 0 "${generate[@]}" --speculate ngram &&
    holds out "$s['acceptance'] == 0.4 and $s['acceptance_assumed']" 'ngram'
  status 0 "${base[@]}" --job generate --speculate ngram &&
    says 'acceptance 0.4 \(assumed; --acceptance\)' out
  # A draft model is a row of the memory of both models.
  generate=("$RAFTER" plan llama3-8b --job generate --on h100-sxm --batch 1)
  status 0 "${generate[@]}" --json && cp out alone.json
  status 0 "${generate[@]}" --speculate llama3.2-1b --json && {
    holds out "$s['acceptance'] == 0.7 and $s['acceptance_assumed']" 'a draft model'
    holds out "$m['by_class']['draft'] == $s['draft_model']['arena_bytes']" 'its memory'
    holds out "$m['peak_bytes'] == $s['draft_model']['total_bytes'] == sum($m['by_class'].values())" \
      'the memory of both'
    holds out "$m['headroom_bytes'] + $m['peak_bytes'] == $alone['headroom_bytes'] + $alone['peak_bytes']" \
      'the same room'
  }
  status 0 "${generate[@]}" --speculate llama3.2-1b && says '^  draft +2.44 GiB' out
  refuses 3 'expected at most 23.*GiB, got .*; the draft model takes' \
    "$RAFTER" plan llama3-8b --job generate --on rtx-4090 --batch 3 --seq 8k --speculate llama3.2-3b
  status 0 "${generate[@]}" --compare speculate=none speculate=llama3.2-1b &&
    says 'needs 2.*GiB more memory' out
  status 0 "${base[@]}" --job generate --speculate ngram --acceptance 0 && says 'drafts save no time' out
  base+=(--job rollout --json)
  status 0 "${base[@]}" && cp out plain.json
  status 0 "${base[@]}" --speculate ngram --acceptance 0.8 &&
    holds out "d[\"$without > 1.5 * $old[\"$without" 'rollouts with drafts'
  status 0 "${base[@]}" --speculate ngram --acceptance 0 &&
    holds out "abs(d[\"$without / $old[\"$without - 1) < 0.01" 'drafts that save no time are not used'
  status 2 "$RAFTER" plan "${GEMMA[@]}" --job score --speculate ngram && says 'no effect with --job score' &&
    says '^hint: only --job generate and --job rollout plan drafts$'
  status 0 "$RAFTER" plan "${GEMMA[@]}" --job score --speculate none # the default is no error
}

# Cost, --tokens, --budget and --compare are those of prompts and answers, not of decoding alone.
case_whole_costs() {
  local close='lambda a, b: abs(a / b - 1) < 1e-9' c='d["cost"]' r='d["rollout"]' usd
  local best='d["serving"]["sustained"]' rate='["requests_per_second"]' of='["rollout"]["tokens_per_second"]'
  local job=("$RAFTER" plan "${GEMMA[@]}" --batch 64 --job rollout --tokens 1G --budget 1h) rates
  status 0 "${job[@]}" --json && {
    holds out "($close)($c['usd_per_million_tokens'], $r['usd_per_million_tokens'])" 'one price'
    holds out "($close)($c['tokens_per_second'], $r['tokens_per_second'])" 'one rate'
    holds out "($close)($c['seconds_for_tokens'], 1e9 / $r['tokens_per_second'])" '--tokens of a rollout'
    holds out "($close)($c['usd_for_tokens'], 1e3 * $r['usd_per_million_tokens'])" 'their price'
    holds out "d['budget']['steps'] == 3600 // $r['seconds']" 'whole rollouts in an hour'
    holds out "($close)(d['budget']['tokens'], d['budget']['steps'] * $r['tokens'])" 'their tokens'
    usd=$(ask out '"%.4g" % d["rollout"]["usd_per_million_tokens"]')
  }
  status 0 "${job[@]}" && {
    says "^cost +$usd USD per million tokens of answers, prompts included, at 1.20 USD" out
    says "^rollout .* tokens/s, $usd USD per million tokens$" out
    says '^budget .* rollouts, ' out
  }
  status 0 "${job[@]}" --compare batch=32 --json &&
    holds out "($close)(d['ratio']['tokens_per_second'], d['b']$of / d['a']$of)" 'a comparison of rollouts'
  status 0 "${job[@]}" --compare batch=32 && says "^USD/Mtokens +$usd " out && says '^decode step ' out
  # The columns of a sweep have the whole rollout, so samples of one prompt show their gain.
  status 0 "${job[@]}" --sweep samples=1,8 && says "^1 .* ms .* s +[0-9,]+ +$(printf %.3g "$usd") " out
  # Serving: the highest rate that the plan sustains. One more factor of 1.1 is too much.
  job=("$RAFTER" plan "${GEMMA[@]}" --batch 64 --job serve --requests 256)
  status 0 "${job[@]}" --rate 1..64 --json && cp out plain && {
    holds out "($close)($c['usd_per_million_tokens'], $best['usd_per_million_tokens'])" 'the price of serving'
    holds out "not $best['saturated']" 'a sustained rate'
    holds out "all(r['saturated'] == (r$rate > $best$rate) for r in d['serving']['rates'])" 'the search'
    usd=$(ask out "1.1 * $best$rate")
    status 0 "${job[@]}" --rate "$usd" --json &&
      holds out 'd["serving"]["rates"][0]["saturated"]' 'the highest rate'
  }
  # Without --rate, from a coarse grid, and from above: nearly the same rate.
  for rates in '' '--rate 1,64' '--rate 64'; do
    # shellcheck disable=SC2086
    status 0 "${job[@]}" $rates --json &&
      holds out "0.94 < $best$rate / json.load(open('plain'))['serving']['sustained']$rate < 1.07" "$rates"
  done
  status 0 "${job[@]}" --rate 64 && says ' yes: the highest such rate, from a search$' out
  status 0 "${job[@]}" --rate 0.5 --sweep batch=32,64 &&
    says '^note: 2 of the rows keep up with every rate of --rate' out
  # Machines with a default number of slots may have much free memory.
  status 0 "${job[@]:0:5}" --job serve --requests 64 --sweep on=tpu-v5e,tpu-v6e &&
    says '^note: all rows have the default of --batch; with --fit, ' out
  status 0 "${job[@]}" --rate 0.5 &&
    says '^cost .* USD per million tokens of answers at 0.5 requests/s, at 1.20 USD per chip hour' out
  # Two machines cost what both cost, and do the work of one.
  status 0 "${job[@]}" --rate 1 --json &&
    ask out "$c['performance_per_usd'] * $c['usd_per_million_tokens']" >one
  status 0 "${job[@]}" --rate 1 --prefill-on tpu-v5e --json && {
    holds out "($close)($c['usd_per_million_tokens'] * $c['tokens_per_second'] * 3600, 2.4e6)" 'both prices'
    holds out "abs($c['performance_per_usd'] * $c['usd_per_million_tokens'] / $(cat one) - 1) < 0.01" \
      'the FLOPs of a token'
  }
  # A comparison says to which rate of requests a cost belongs, and why a figure is missing.
  status 0 "${job[@]}" --rate 1 --compare rate=2 && says '^requests/s +1 +2$' out
  status 0 "$RAFTER" plan llama3-70b --on h100-sxm --job rollout --compare on=h100-sxm:4 && {
    says '^tokens/s +unknown +[0-9]' out
    says '^USD/Mtokens +unknown +[0-9]' out
  }
  # A price that --price knows is named next to a missing one.
  status 0 "$RAFTER" plan llama3.2-1b --on tpu-v5e --compare on=b200 &&
    says '^B: no list price of b200 is known.*--price takes committed 6.95' out
}

# Serving: below the machine's capacity, answers come at the rate of requests. Above it they do not.
# A token costs less at higher rates.
case_serving() {
  # A default number of slots that is too small is answered with --fit.
  status 0 "$RAFTER" plan "${GEMMA[@]}" --job serve --rate 1..256 &&
    says 'hint: 8 slots do not keep up, and need .* GiB of .* GiB; --fit plans as many slots as fit$' out
  for more in '--batch 8' --fit; do
    status 0 "$RAFTER" plan "${GEMMA[@]}" --job serve --rate 1..256 $more
    ! grep -q 'hint:' out || fail "$more needs no hint"
  done
  # If slots stay free while requests wait, more slots do not help: prompts limit the rate.
  for more in '' --fit '--batch 32'; do
    status 0 "$RAFTER" plan gemma3-27b --job serve --weights int8 --on a100-80g --prompt-tokens 4096 \
      $more && {
      says 'hint: prompts limit the rate, since only .* of [0-9]+ slots .*--step-growth or --prefill-chunk' out
      ! grep -q 'as many slots as fit' out || fail "--fit is no remedy with '$more'"
    }
  done
  # Past saturation, a row is not a steady state. The rate of the plan is that of decoding.
  status 0 "$RAFTER" plan "${GEMMA[@]}" --job serve --rate 1..256 && {
    says 'keeps up no: the queue grows, so the row is not a steady state' out
    says '^rate .* tokens/s while decoding' out
  }
  status 0 "$RAFTER" plan "${GEMMA[@]}" --job serve --rate 0.01 &&
    { ! grep -q 'not a steady state' out || fail 'a rate that is kept up with is a steady state'; }
  status 0 "$RAFTER" plan "${GEMMA[@]}" --batch 64 --job serve --rate 1..256 --json && {
    holds out '[r["requests_per_second"] for r in d["serving"]["rates"]] == [1, 2, 4, 8, 16, 32, 64, 128, 256]' 'rates 1..256'
    holds out '(lambda r: not r[0]["saturated"] and r[-1]["saturated"] and sorted(r, key=lambda x: x["saturated"]) == r)(d["serving"]["rates"])' 'saturated from some rate on'
    holds out '(lambda r: all(a["usd_per_million_tokens"] > 0.99 * b["usd_per_million_tokens"] for a, b in zip(r, r[1:])))(d["serving"]["rates"])' 'a busier machine costs less a token'
    holds out 'all(r["ttft_seconds"]["p50"] <= r["ttft_seconds"]["p95"] <= r["ttft_seconds"]["p99"] and r["slots_used"] <= r["slots_most"] <= 64 for r in d["serving"]["rates"])'
    holds out '{"slots","kv_bytes_per_token","kv_bytes_per_sequence","prefill_seconds","prefill_tokens","decode_step_seconds","tokens_per_second","tokens_per_second_per_chip","ttft_seconds","tpot_seconds"} <= d["serving"].keys()' 'serving has its keys'
  }
  status 0 "$RAFTER" plan "${GEMMA[@]}" --batch 64 --job serve --rate 16 --json && cp out plain
  status 0 "$RAFTER" plan "${GEMMA[@]}" --batch 64 --job serve --rate 16 --json && {
    python3 -c 'import json; a, b = json.load(open("plain")), json.load(open("out")); assert a["serving"] == b["serving"]' ||
      fail "the same simulation twice differs"
  }
  status 0 "$RAFTER" plan "${GEMMA[@]}" --batch 64 --job serve --rate 16 --shared-prefix 448 --json &&
    holds out 'd["serving"]["rates"][0]["reused_tokens"] > 0.8 * 448 * 512 and d["serving"]["ttft_seconds"]["p50"] < json.load(open("plain"))["serving"]["ttft_seconds"]["p50"]' 'a shared prefix is walked once'
  status 0 "$RAFTER" plan "${GEMMA[@]}" --batch 64 --job serve --rate 16 --prefill-on tpu-v5p --json &&
    holds out 'd["serving"]["prefill_on"] == "tpu-v5p" and d["serving"]["tpot_seconds"]["p99"] < json.load(open("plain"))["serving"]["tpot_seconds"]["p99"]' 'without prompts in between tokens come evenly'
  # The prompt's cache is sent over the link before its first token counts: 1024 tokens of 2 x 256
  # values of two bytes in 4 layers, and 512 of these tokens in the 22 layers with a window.
  LINK=("${GEMMA[@]}" --batch 8 --job serve --rate 0.01 --requests 8 --prompt-tokens 1024 --max-tokens 16 --prefill-on tpu-v5e)
  status 0 "$RAFTER" plan "${LINK[@]}" --kv-link 1T --json && cp out wide
  status 0 "$RAFTER" plan "${LINK[@]}" --json && {
    holds out 'abs(d["serving"]["transfer_bytes"] - (4 * 1024 + 22 * 512) * 1024) < 1 and d["serving"]["kv_link_bytes_per_second"] == 3.125e9' 'a cache on the data-centre network'
    holds out '(lambda a, b, s: abs(s - b["transfer_bytes"] / 3.125e9) < 1e-12 and abs(b["ttft_seconds"]["p50"] - a["ttft_seconds"]["p50"] - s + a["transfer_seconds"]) < 1e-9 and abs(b["tpot_seconds"]["p50"] - a["tpot_seconds"]["p50"]) < 1e-9)(json.load(open("wide"))["serving"], d["serving"], d["serving"]["transfer_seconds"])' 'it is part of the time to the first token'
  }
  # The eight GPUs of a node share its network cards. Here one GPU sends and two receive.
  status 0 "$RAFTER" plan llama3-8b --dtype bf16 --job serve --batch 8 --requests 8 --rate 0.5 --on h100-sxm:2 --prefill-on h100-sxm --json &&
    holds out 'd["serving"]["kv_link_bytes_per_second"] == 4e11 / 8' 'the network of a GPU'
  refuses 2 '--mesh also applies to the machine of --prefill-on: .*expected 4 for h100-sxm, got 8' \
    "$RAFTER" plan llama3.1-8b --job serve --on h100-sxm:8 --mesh tensor=8 --prefill-on h100-sxm:4
  refuses 2 'kv-link is missing' "$RAFTER" plan "${GEMMA[@]}" --job serve --prefill-on a5000
  # Fractions of a request per second, and lists of them.
  status 0 "$RAFTER" plan "${GEMMA[@]}" --batch 8 --job serve --requests 16 --rate 0.5,1,2.5 --json &&
    holds out '[r["requests_per_second"] for r in d["serving"]["rates"]] == [0.5, 1, 2.5]' '--rate 0.5,1,2.5'
  status 0 "$RAFTER" plan "${GEMMA[@]}" --batch 8 --job serve --requests 4 --rate 0.25..1,0.1..0.3:0.1 --json &&
    holds out '[round(r["requests_per_second"], 9) for r in d["serving"]["rates"]] == [0.25, 0.5, 1, 0.1, 0.2, 0.3]' 'ranges of fractions'
  for bad in 0 -1 0.5,x 2..1 1..2:0 ''; do refuses 2 'rate' "$RAFTER" plan "${GEMMA[@]}" --job serve --rate="$bad"; done
  # Eight copies at eight times the rate equal one chip at one rate. Split over eight chips, the
  # model gives a token sooner than any copy, network included.
  ONE=(gemma-7b --dtype bf16 --weights int8 --kv-dtype int8 --job serve)
  status 0 "$RAFTER" plan "${ONE[@]}" --on tpu-v5e --batch 8 --rate 2 --requests 64 --json && cp out one
  status 0 "$RAFTER" plan "${ONE[@]}" --on tpu-v5e:2x4 --mesh data=8 --batch 64 --rate 16 --json && {
    holds out '(lambda a, b: a["tpot_seconds"] == b["tpot_seconds"] and abs(b["tokens_per_second"] / a["tokens_per_second"] - 8) < 1e-9 and abs(a["usd_per_million_tokens"] / b["usd_per_million_tokens"] - 1) < 1e-9)(json.load(open("one"))["serving"]["rates"][0], d["serving"]["rates"][0])' 'copies'
    holds out '(lambda a, b: abs(b["slots_used"] / a["slots_used"] - 8) < 1e-9 and b["slots_most"] == 8 * a["slots_most"] and b["waiting_most"] == a["waiting_most"])(json.load(open("one"))["serving"]["rates"][0], d["serving"]["rates"][0])' 'slots of all copies, what waits of one'
  }
  status 0 "$RAFTER" plan "${ONE[@]}" --on tpu-v5e:2x4 --mesh tensor=8 --batch 64 --rate 16 --json && {
    holds out 'd["serving"]["tpot_seconds"]["p50"] < json.load(open("one"))["serving"]["tpot_seconds"]["p50"]' 'a model cut over eight chips'
    holds out 'd["time"]["network_seconds"] > 0 and d["serving"]["tpot_seconds"]["p50"] > d["time"]["network_seconds"] * 0.2' 'and waits for their network'
  }
  # Copies of a sharded model: each copy equals the sharded model alone on the same chips, at its
  # share of the rate. The cost is that of all chips.
  status 0 "$RAFTER" plan "${ONE[@]}" --on tpu-v5e:1x4 --mesh tensor=4 --batch 32 --rate 8 --requests 256 --json &&
    cp out one
  status 0 "$RAFTER" plan "${ONE[@]}" --on tpu-v5e:2x4 --mesh data=2,tensor=4 --batch 64 --rate 16 --json && {
    holds out '(lambda a, b: a["tpot_seconds"] == b["tpot_seconds"] and a["ttft_seconds"] == b["ttft_seconds"] and abs(b["tokens_per_second"] / a["tokens_per_second"] - 2) < 1e-9 and abs(a["usd_per_million_tokens"] / b["usd_per_million_tokens"] - 1) < 1e-9)(json.load(open("one"))["serving"]["rates"][0], d["serving"]["rates"][0])' 'copies of a cut model'
    holds out 'd["serving"]["copies"] == 2 and d["serving"]["slots"] == 64 and d["memory"]["peak_bytes"] == json.load(open("one"))["memory"]["peak_bytes"] and any("2 groups of 4 chips" in a for a in d["assumptions"])'
    holds out 'abs(d["serving"]["tokens_per_second_per_chip"] * 8 - d["serving"]["tokens_per_second"]) < 1e-6 * d["serving"]["tokens_per_second"]'
  }
  refuses 2 'needs a single copy' "$RAFTER" plan "${ONE[@]}" --on tpu-v5e:2x4 --mesh data=2,tensor=4 --batch 64 --rate 16 --prefill-on tpu-v5p:2x4x1
  # Prompts that do not divide among the copies: every prompt is answered, and the copies with one
  # more prompt set the time.
  status 0 "$RAFTER" plan "${GEMMA[@]:0:1}" --dtype bf16 --on tpu-v5e:2x4 --mesh data=4,tensor=2 --batch 32 --job rollout --samples 8 --prompt-tokens 128 --max-tokens 64 --requests 9 --json &&
    {
    holds out 'd["rollout"]["prompts"] == 9 and d["rollout"]["tokens"] == 9 * 8 * 64 and d["rollout"]["walked_prompt_tokens"] + d["rollout"]["shared_prompt_tokens"] == 72 * 128' 'rollouts on copies'
    holds out '8 < d["rollout"]["slots_used"] <= 32' 'slots of all copies of a rollout'
  }
  if command -v gnuplot >/dev/null; then
    status 0 "$RAFTER" plan "${GEMMA[@]}" --batch 64 --job serve --rate 1..64 --requests 64 --plot serve.svg &&
      python3 -c 'import xml.dom.minidom as m; t = m.parse("serve.svg").toxml(); assert "tokens per second" in t and "first token" in t and "64/s" in t, t[:200]' ||
      fail "the picture of rates lacks its labels"
  fi
  printf '{"at": 0, "prompt": 100, "answer": 10}\n{"at": 0.5, "prompt": 200, "answer": 20}\n' >arrivals.jsonl
  status 0 "$RAFTER" plan "${GEMMA[@]}" --job serve --arrivals arrivals.jsonl --json &&
    holds out 'd["serving"]["rates"][0]["requests_per_second"] == 2 and abs(d["serving"]["rates"][0]["tokens_per_second"] - 30 / 0.5) < 10' 'a file of arrivals'
  printf '%s\n' TIMESTAMP,ContextTokens,GeneratedTokens '2023-11-16 23:59:59.75,100,10' \
    '2023-11-17 00:00:00.25,200,20' >azure.csv
  cp out lines
  status 0 "$RAFTER" plan "${GEMMA[@]}" --job serve --arrivals azure.csv --json &&
    holds out 'd["serving"]["rates"] == json.load(open("lines"))["serving"]["rates"]' 'a CSV of Azure traces'
  # A cache of two full sequences serves up to 32 answers at once. With max_tokens, fewer start.
  for _ in {1..64}; do printf '{"at": 0, "prompt": 100, "answer": 50}\n'; done >many.jsonl
  MANY=(plan "${GEMMA[@]}" --job serve --arrivals many.jsonl --seq 4k --batch 32 --sequences 2 --json)
  status 0 "$RAFTER" "${MANY[@]}" && cp out exact
  status 0 "$RAFTER" "${MANY[@]}" --answer-limit 2000 && {
    holds out 'd["settings"]["sequences"] == 2' 'a cache of two sequences'
    most=$(ask exact 'd["serving"]["rates"][0]["slots_most"]')
    holds out "2 < d['serving']['rates'][0]['slots_most'] < $most <= 32" 'a higher limit admits fewer answers'
    holds exact '0 < d["serving"]["rates"][0]["kv_live"] < 1' 'the cache is partly filled'
  }
  refuses 2 'no effect with --job rollout' "$RAFTER" plan "${GEMMA[@]}" --job rollout --answer-limit 9
  # Three arrivals on eight copies give three answers. The time is that of one copy's one request,
  # after the last of the three arrivals.
  printf '{"at": %s, "prompt": 512, "answer": 256}\n' 0 0.1 0.2 >three.jsonl
  head -1 three.jsonl >first.jsonl
  EIGHT=(llama3-8b --job serve --dtype bf16 --seq 1024)
  status 0 "$RAFTER" plan "${EIGHT[@]}" --on h100-sxm --batch 8 --arrivals first.jsonl --json && cp out one
  status 0 "$RAFTER" plan "${EIGHT[@]}" --on h100-sxm:8 --mesh data=8 --batch 64 --arrivals three.jsonl --json &&
    {
    holds out '(lambda a, b: abs(b["tokens_per_second"] * (256 / a["tokens_per_second"] + 0.2) - 3 * 256) < 1e-6)(json.load(open("one"))["serving"]["rates"][0], d["serving"]["rates"][0])' 'three arrivals on eight copies'
    holds out 'abs(d["serving"]["rates"][0]["requests_per_second"] - 10) < 1e-9 and d["serving"]["rates"][0]["slots_most"] == 3' 'their rate, and the slots they take'
  }
  # Slots without an answer take no time: 4729 slots fit, and at most 512 requests use them.
  status 0 timeout 60 "$RAFTER" plan gpt2 --on h200 --job serve --fit
  # The rows of a sweep have the latencies and the price of the simulation. A row that does not fit
  # has no simulation.
  SWEPT=(gemma-7b --on tpu-v5e --dtype bf16 --weights int8 --kv-dtype int8 --job serve --rate 1,64 --requests 32)
  status 0 "$RAFTER" plan "${SWEPT[@]}" --sweep batch=4,8,512 && {
    says '^batch .* decode step +decoded/s +fits +requests/s +first p50 ' out
    says ' token p99 +[$]/Mtok +keeps up +bound$' out
    says '^512 .* no +memory$' out
  }
  status 0 "$RAFTER" plan "${SWEPT[@]}" --batch 8 --json && row=$(ask out \
    '"%.3g" % d["serving"]["sustained"]["usd_per_million_tokens"]')
  status 0 "$RAFTER" plan "${SWEPT[@]}" --sweep batch=4,8,512 && says "^8 .* yes .* ms +$row +yes +" out
  printf 'nonsense\n' >bad.jsonl
  printf '{"at": 0, "prompt": -100}\n' >negative.jsonl
  refuses 2 '^hint: each line is' "$RAFTER" plan "${GEMMA[@]}" --job serve --arrivals negative.jsonl
  refuses 2 'bad.jsonl, line 1' "$RAFTER" plan "${GEMMA[@]}" --job serve --arrivals bad.jsonl
  refuses 2 'rate' "$RAFTER" plan "${GEMMA[@]}" --job serve --rate 0
  refuses 2 'expected less than --prompt-tokens 100, got 200' "$RAFTER" plan "${GEMMA[@]}" --job serve --prompt-tokens 100 --shared-prefix 200
  refuses 2 'expected less than --prompt-tokens 100, got 100' "$RAFTER" plan "${GEMMA[@]}" --job rollout --prompt-tokens 100 --shared-prefix 100
  refuses 1 '^hint: --arrivals FILE has lines' "$RAFTER" plan "${GEMMA[@]}" --job serve --arrivals nowhere.jsonl
  refuses 2 'seq' "$RAFTER" plan "${GEMMA[@]}" --job serve --seq 100 --prompt-tokens 90 --max-tokens 20
  refuses 2 'positions' "$RAFTER" plan gpt2 --on a5000 --job rollout --prompt-tokens 1000 --max-tokens 100
  refuses 3 'fit' "$RAFTER" plan llama3-70b --on tpu-v5e --dtype bf16 --job serve --batch 1
  # A simulation of hours ends on a signal; it has nothing to save.
  "$RAFTER" plan "${GEMMA[@]}" --job serve --rate 1..1000000 --requests 1048576 >/dev/null 2>&1 & long=$!
  sleep 0.3; kill "$long"; ended=0; wait "$long" || ended=$?
  [ "$ended" = 143 ] || fail "a long simulation that gets a signal exits $ended, not 143"
  # Options that a job does not use are errors.
  refuses 2 'rate has no effect with --job train' "$RAFTER" plan "${GEMMA[@]}" --rate 4
  refuses 2 'remat has no effect with --job serve' "$RAFTER" plan "${GEMMA[@]}" --job serve --remat block
  refuses 2 'kv-dtype has no effect with --job train' "$RAFTER" plan "${GEMMA[@]}" --kv-dtype int8
  refuses 2 'samples has no effect with --job score' "$RAFTER" plan "${GEMMA[@]}" --job score --samples 4
  refuses 2 'kv-link has no effect with --job rollout' "$RAFTER" plan "${GEMMA[@]}" --job rollout --kv-link 1G
  local plan=("$RAFTER" plan "${GEMMA[@]}") job two='cannot be combined'
  refuses 2 'kv-link has no effect without --prefill-on' "${plan[@]}" --job serve --kv-link 1G
  for job in train generate; do
    refuses 2 "top has no effect with --job $job" "${plan[@]}" --job $job --top 5
  done
  for job in generate prefill score rollout serve; do
    refuses 2 "microbatch has no effect with --job $job" "${plan[@]}" --job $job --microbatch 4
  done
  refuses 2 "sweep and --compare $two" "${plan[@]}" --sweep batch=1,2 --compare gpt2
  refuses 2 "after and --sweep $two" "${plan[@]}" --sweep batch=1,2 --after build
  refuses 2 "after and --compare $two" "${plan[@]}" --compare gpt2 --after build
  refuses 2 'too many answers' "$RAFTER" plan "${GEMMA[@]}" --job rollout --samples 65536 --requests 1048576
}

# Time, rate, cost and budget of an RL step are those of all phases: 16 answers of 1024 tokens.
whole_step() {
  RL=("${GEMMA[@]}" --job rl --lora rank=16 --batch 16 --samples 8 --prompt-tokens 256 --max-tokens 768)
  RL+=(--remat block)
  status 0 "$RAFTER" plan "${RL[@]}" --tokens 10M --budget 1h --json && cp out step
  status 0 "$RAFTER" plan "${RL[@]}" --sweep batch=16,32 --json && cp out sweep
  # twice as many prompts as slots: two steps of the policy, and two passes of the reference
  status 0 "$RAFTER" plan "${RL[@]}" --requests 4 --json && cp out twice
  python3 - <<'PY' || fail "an RL step is not the sum of its phases"
import json
from math import isclose
d, sweep, twice = (json.load(open(f)) for f in ("step", "sweep", "twice"))
time, rate, cost, budget, work = (d[k] for k in ("time", "rate", "cost", "budget", "work"))
seconds, tokens = d["rl"]["seconds"], 16 * 1024
flops = {p["name"]: p["model_flops"] for p in d["rl"]["phases"]}
assert isclose(time["seconds"], seconds) and isclose(rate["tokens_per_second"], tokens / seconds)
bounds = (time[k + "_seconds"] for k in ("compute", "memory", "network", "latency"))
assert isclose(sum(bounds), seconds)
assert isclose(cost["seconds_for_tokens"], 10e6 / tokens * seconds)
assert isclose(cost["usd_for_tokens"], cost["seconds_for_tokens"] / 3600 * cost["usd_per_chip_hour"])
assert budget["steps"] == 3600 // seconds and budget["tokens"] == budget["steps"] * tokens
assert isclose(sum(flops.values()), work["model_flops"])
assert isclose(rate["mfu"], work["model_flops"] / seconds / 197e12)
# Rollout and reference both compute a forward pass, the rollout a shared prompt only once. With
# adapters, the policy's backward pass has no products for the frozen weights.
rows = d["rollout"]["walked_prompt_tokens"] + d["rollout"]["tokens"]
assert abs(flops["rollout"] / flops["reference"] - rows / tokens) < 0.02
assert 1.95 < flops["policy"] / flops["reference"] < 2.15
assert isclose(sweep["rows"][0]["time"]["seconds"], seconds)
assert sweep["rows"][1]["time"]["seconds"] == sweep["rows"][1]["rl"]["seconds"] > seconds
assert twice["rl"]["sequences"] == 32
assert isclose(twice["rate"]["tokens_per_second"] * twice["time"]["seconds"], 2 * tokens)
PY
  status 0 "$RAFTER" plan "${RL[@]}" && {
    says '^batch 16 x 1024 tokens .*; 2 prompts x 8 samples$' out
    says '^time .* per RL step, .* on tpu-v5e' out
    says '^  phase rollout .* % .* GiB$' out
    says '^rate .* tokens/s trained, MFU' out
  }
  status 0 "$RAFTER" plan "${GEMMA[@]}" --batch 64 --job rollout --samples 8 &&
    says '^64 sequences .*; 8 prompts x 8 samples$' out
}

# RL: one copy of the base model for adapters, and a second one if the policy itself changes.
case_rl() {
  # A default batch is that of all phases.
  status 0 "$RAFTER" plan llama3.2-1b --on tpu-v5e:4x4 --job rl &&
    says '^batch 16 .*; 16 prompts x 1 sample$' out
  # Without --batch, an RL step has the sizes of `rafter rl`: up to 64 answers at once.
  local sizes=(llama3.2-1b --on h100-sxm --job rl --lora rank=16 --samples 8)
  sizes+=(--prompt-tokens 64 --max-tokens 128)
  status 0 "$RAFTER" plan "${sizes[@]}" --requests 8 && says '^RL step +64 answers sampled at once$' out &&
    grep -E '^(time|memory|  phase)' out >default
  status 0 "$RAFTER" plan "${sizes[@]}" --requests 8 --batch 64 --microbatch 8 &&
    grep -E '^(time|memory|  phase)' out >given && same default given 'default sizes of an RL step'
  status 0 "$RAFTER" plan "${sizes[@]}" --requests 16 --accumulate 16 && says '^RL step +64 answers' out
  status 0 "$RAFTER" plan "${sizes[@]}" --requests 3 && says '^RL step +24 answers' out
  status 0 "$RAFTER" plan "${sizes[@]}" --microbatch 4 --accumulate 2 && says '^RL step +8 answers' out
  status 0 "$RAFTER" plan "${GEMMA[@]}" --batch 16 --microbatch 1 --samples 8 --job rl --lora rank=16,targets=q,v --json &&
    {
    holds out '[p["name"] for p in d["rl"]["phases"]] == ["rollout", "reference", "policy"] and abs(sum(p["seconds"] for p in d["rl"]["phases"]) - d["rl"]["seconds"]) < 1e-9' 'three phases'
    holds out 'max(p["peak_bytes"] for p in d["rl"]["phases"]) == d["memory"]["peak_bytes"] and d["memory"]["by_class"]["weight"] < 2.1e9' 'one base copy'
    holds out 'd["rl"]["loss"] == "grpo" and d["rl"]["beta"] == 0.04' 'the loss and its default'
  }
  whole_step
  refuses 3 'fit' "$RAFTER" plan "${GEMMA[@]}" --batch 16 --microbatch 1 --samples 8 --job rl --json &&
    holds out 'd["memory"]["by_class"]["weight"] > 3.9e9 and not d["memory"]["fits"]' 'the reference model has its own copy'
  # Without a KL divergence, no reference is run, and no copy of the base is held.
  local rl=("$RAFTER" plan "${GEMMA[@]}" --batch 16 --microbatch 1 --samples 8 --job rl --json)
  refuses 3 'fit' "${rl[@]}" --beta 0 && {
    holds out '[p["name"] for p in d["rl"]["phases"]] == ["rollout", "policy"]' 'no reference'
    holds out 'd["memory"]["by_class"]["weight"] < 2.1e9' 'no copy of the base'
  }
  status 0 "${rl[@]}" --lora rank=16 --iterations 2 --reward-seconds 3s --loss dapo && {
    holds out '[p["name"] for p in d["rl"]["phases"]] == ["rollout", "policy", "reward"]' 'the wait'
    holds out 'd["rl"]["phases"][-1]["seconds"] == 3' 'the seconds of the wait'
  }
}

# --report writes the page of the plan with all tensors and ops, next to the usual output.
case_report() {
  status 0 "$RAFTER" plan gpt2 --on tpu-v5e --batch 4 --report page.html && {
    says '^rate ' out
    ! grep -q '^tensors ' out || fail "--report prints the tensors"
    for part in '"tensors":[[]' '"ops":[[]' '"usd_per_million_tokens":' '"mfu":'; do
      grep -qE "$part" page.html || fail "the page has no $part"
    done
  }
  # The page and the table have the same limit of memory: without the reserve of the machine.
  status 0 "$RAFTER" plan gpt2 --on h100-sxm --report page.html && says '^memory .* of 79.1 GiB: fits$' out &&
    python3 -c 'import re, sys
found = re.findall(r"\"limit_bytes\":(\d+)", open("page.html").read())
sys.exit({f"{int(n) / 2**30:.1f}" for n in found} != {"79.1"})' ||
    fail 'the page has another limit of memory than the table'
  status 0 "$RAFTER" plan gpt2 --on tpu-v5e --batch 4 --report page.html --json &&
    holds out '"tensors" not in d and d["fits"]' '--json has only what was asked'
  refuses 2 'report and --sweep cannot be combined' "$RAFTER" plan gpt2 --sweep batch=1,2 --report page.html
}

cases "$@"
