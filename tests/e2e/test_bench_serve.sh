#!/usr/bin/env bash
# bench-serve, with a server in the shape of OpenAI's API: counts, fields and their relations, load
# shapes, rates and plots, plans next to measurements, and faults of a server. No time is asserted.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
export no_proxy=127.0.0.1,localhost
unset OPENAI_API_KEY http_proxy https_proxy all_proxy

# Starts the server; each case has its own.
serve() {
  mkdir -p mock
  python3 "$HERE/openai_server.py" mock 2>server.err &
  server=$!
  trap 'kill $server 2>/dev/null; rm -rf "$WORK"' EXIT
  for _ in $(seq 100); do [ -f mock/port ] && break; sleep 0.1; done
  [ -f mock/port ] || { echo "the server did not start: $(cat server.err)"; exit 1; }
  URL=http://127.0.0.1:$(cat mock/port)
  faults '{}'
}
faults() { echo "$1" >mock/faults.new && mv mock/faults.new mock/faults; : >mock/log; }
load() { "$RAFTER" bench-serve "$URL" --prompt-tokens 6 --max-tokens 8 "$@"; }
# each FILE EXPRESSION...: expects every expression over the file's JSON to be true.
each() {
  local file=$1
  shift
  for expression in "$@"; do holds "$file" "$expression"; done
}
# logged EXPRESSION...: expects expressions over the requests for answers: `rows` and their bodies `b`.
logged() {
  local got
  for expression in "$@"; do
    got=$(python3 -c 'import json, sys
every = [json.loads(l) for l in open("mock/log")]
rows = [r for r in every if r["method"] == "POST"]
b = [r["body"] for r in rows]
print(eval(sys.argv[1]))' "$expression" 2>&1)
    [ "$got" = True ] || fail "the requests: $expression (got $got)"
  done
}

# vLLM's names, and how they belong together.
case_fields() {
  serve
  status 0 load --concurrency 3 --requests 20 --goodput ttft:60000,tpot:60000 --percentiles 25,50,99.9 \
    --price 2 --json && {
    each out 'd["completed"] == 20 and d["failed"] == 0 and d["num_prompts"] == 20' \
      'd["total_input_tokens"] == 140 and d["total_output_tokens"] == 160' \
      'd["requests_without_usage"] == 0 and d["error_kinds"] == [] and d["predicted"] is None' \
      'abs(d["request_throughput"] * d["duration"] - 20) < 1e-6' \
      'abs(d["output_throughput"] * d["duration"] - 160) < 1e-6' \
      'abs(d["total_token_throughput"] * d["duration"] - 300) < 1e-6' \
      'd["request_goodput"] == d["request_throughput"]' \
      'd["max_concurrency"] == 3 and 1 <= d["max_concurrent_requests"] <= 3' \
      'abs(d["usd_per_million_tokens"] * d["tokens_per_usd"] / 1e6 - 1) < 1e-9' \
      'd["mean_ttft_ms"] < d["mean_e2el_ms"]' \
      'abs(d["mean_in_flight"] - d["mean_batch"] - d["mean_queue"]) < 1e-9' \
      'd["mean_in_flight"] <= 3 + 1e-9 and d["model_id"] == "mock" and d["request_rate"] == "inf"' \
      '"closed loop, 3 clients" in d["load"]'
    for m in ttft tpot itl e2el; do
      each out "0 <= d['p25_${m}_ms'] <= d['p50_${m}_ms'] == d['median_${m}_ms'] <= d['p99.9_${m}_ms']" \
        "d['mean_${m}_ms'] > 0 and d['std_${m}_ms'] >= 0"
    done
    says 'TTFT|^E2EL' err
  }
  logged 'len(rows) == 21 and all(r["path"] == "/v1/completions" for r in rows)' \
    'len({x["prompt"] for x in b}) == 21 and all(len(x["prompt"].split()) == 6 for x in b)' \
    'all(x["max_tokens"] == 8 and x["stream"] is True and "ignore_eos" not in x for x in b)' \
    'all(x["stream_options"] == {"include_usage": True} for x in b)'
  status 0 load --requests 4 --warmup 0 --goodput ttft:0.0001 --json && holds out 'd["request_goodput"] == 0'
  status 0 load --requests 3 && says 'requests +3 completed, 0 failed' out && says '^TPOT ' out &&
    says '^server: running' out
}

# The requests of a seed are the same in every run; chat, ids, rows of files and further fields.
case_requests() {
  serve
  status 0 load --requests 5 --seed 4 --spread 0.5 && cp mock/log one
  faults '{}'
  status 0 load --requests 5 --seed 4 --spread 0.5
  grep POST mock/log >b && grep POST one >a && same a b 'the requests of the same seed'
  logged 'len({x["max_tokens"] for x in b}) > 1 and all(4 <= x["max_tokens"] <= 12 for x in b[1:])'
  faults '{}'
  status 0 load --requests 2 --warmup 0 --chat --ignore-eos --temperature 0.5 --served-model other \
    --extra-body '{"top_k": 40}'
  logged 'all(r["path"] == "/v1/chat/completions" for r in rows)' \
    'all(x["messages"][0]["role"] == "user" and x["model"] == "other" for x in b)' \
    'all(x["ignore_eos"] and x["temperature"] == 0.5 and x["top_k"] == 40 for x in b)' \
    'not any(r["path"] == "/v1/models" for r in every)'
  faults '{}'
  status 0 load --requests 2 --warmup 0 --token-ids 1000 --shared-prefix 4
  logged 'len(b) == 2 and all(len(x["prompt"]) == 6 for x in b)' \
    'all(125 <= i < 875 for x in b for i in x["prompt"])' 'b[0]["prompt"][:4] == b[1]["prompt"][:4]'
  printf '{"prompt": "a b"}\n{"tokens": [1, 2], "max_tokens": 3}\n' >rows.jsonl
  faults '{}'
  status 0 load --requests 3 --warmup 0 --data rows.jsonl --output each.jsonl
  logged '[x["prompt"] for x in b] == ["a b", [1, 2], "a b"]' '[x["max_tokens"] for x in b] == [8, 3, 8]'
  each each.jsonl '[r["output_tokens"] for r in rows] == [8, 3, 8]' \
    '[len(r["itls"]) for r in rows] == [7, 2, 7] and all(0 < r["ttft"] <= r["e2el"] for r in rows)'
}

# The key goes to the server, and is not printed.
case_key() {
  serve
  faults '{"key": "secret"}'
  refuses 1 'answers 401' load && says 'hint: .*OPENAI_API_KEY'
  OPENAI_API_KEY=$'secret\r\n' status 0 load --requests 2
  printf ' secret\n' >key && status 0 load --requests 2 --api-key-file key
  OPENAI_API_KEY=wrong refuses 1 'warm-up: http 401: wrong key' load --served-model m
  OPENAI_API_KEY=$'secret\nX-Evil: 1' refuses 2 'control character' load
  ! grep -q secret err || fail 'an error prints the key'
  refuses 2 'expected no user' "$RAFTER" bench-serve http://me:secret@127.0.0.1:1
  ! grep -q secret err || fail 'an error prints the password'
}

# A Poisson process, a file of arrivals, a limit of connections.
case_open_loop() {
  serve
  faults '{"first_ms": 2, "token_ms": 1}'
  status 0 load --rate 200 --requests 40 --chat --json &&
    each out 'd["completed"] == 40 and d["request_rate"] == 200 and d["max_concurrency"] is None' \
      'd["max_send_delay_ms"] >= d["mean_send_delay_ms"] >= 0'
  status 0 load --rate 100 --duration 0.2s --json && holds out 'd["completed"] == d["num_prompts"] == 20'
  # One connection for many requests: they are sent late. Latencies count from the planned time.
  status 0 load --rate 5000 --requests 30 --concurrency 1 --output late.jsonl --json && {
    each out 'd["max_concurrent_requests"] == 1 and d["max_send_delay_ms"] > 0' \
      'd["p99_e2el_ms"] > d["max_send_delay_ms"] * 0.5'
    each late.jsonl 'all(r["sent"] >= r["planned"] for r in rows)' \
      'all(r["ttft"] >= r["sent"] - r["planned"] for r in rows)' \
      'rows[-1]["sent"] > rows[-1]["planned"]' 'rows == sorted(rows, key=lambda r: r["planned"])'
  }
  printf '{"at": 5, "prompt": 3, "answer": 2}\n{"at": 6, "prompt": 4, "answer": 5}\n' >at.jsonl
  status 0 load --arrivals at.jsonl --speed 100 --output at.rows --warmup 0 --json &&
    holds out 'd["completed"] == 2 and d["total_output_tokens"] == 7' &&
    holds at.rows '[r["planned"] for r in rows] == [0, 0.01]'
  printf '%s\n' TIMESTAMP,ContextTokens,GeneratedTokens '2023-11-16 18:15:46.68,3,2' \
    '2023-11-16 18:15:50.99,4,5' >azure.csv
  status 0 load --arrivals azure.csv --speed 1000 --requests 1 --json &&
    holds out 'd["completed"] == 1 and d["total_output_tokens"] == 2'
}

# Rates: one row each, the critical rate, the plan's curve, a picture.
case_rates() {
  serve
  faults '{"first_ms": 4, "token_ms": 2, "slots": 2}'
  status 0 load --rates 25,400,4000 --requests 50 --price 3 --model "$TINY" --on a5000 --batch 2 --json \
    --output each.jsonl && {
    each out '[r["request_rate"] for r in d["rates"]] == [25, 400, 4000]' \
      'all(r["completed"] == 50 and not r["searched"] for r in d["rates"])' \
      'd["rates"][-1]["saturated"] and d["critical_rate_bounded"]' \
      'd["critical_rate"] == max([r["request_rate"] for r in d["rates"] if not r["saturated"]] or [None])' \
      'd["rates"][0]["mean_queue"] < d["rates"][2]["mean_queue"] and d["predicted_critical_rate"] > 0' \
      'all(abs(r["usd_per_million_tokens"] * r["output_throughput"] - 2500 / 3) < 1e-6 for r in d["rates"])'
    ask out 'json.dumps([r["predicted"] for r in d["rates"]])' >predicted
    each predicted 'all(r["completed"] == 50 and r["total_output_tokens"] == 400 for r in d)' \
      'all(0 < r["median_ttft_ms"] < r["median_e2el_ms"] and "mean_itl_ms" not in r for r in d)'
    holds each.jsonl 'len(rows) == 150 and {r["request_rate"] for r in rows} == {25, 400, 4000}'
  }
  status 0 load --rates 25,4000 --search --requests 40 --json &&
    each out 'any(r["searched"] for r in d["rates"]) and d["critical_rate"] < 4000' \
      'd["rates"] == sorted(d["rates"], key=lambda r: r["request_rate"])'
  if command -v gnuplot >/dev/null; then
    status 0 load --rates 50,400 --requests 20 --price 3 --plot load.svg && says '^critical rate' out &&
      says 'critical rate' load.svg && says 'tokens per USD' load.svg && says 'mean queue' load.svg
  fi
}

# A plan in a closed loop, and plans that cannot be.
case_plan() {
  serve
  local plan=(--model "$TINY" --on a5000)
  status 0 load --concurrency 2 --requests 10 "${plan[@]}" --json && {
    ask out 'json.dumps(d["predicted"])' >predicted
    each predicted 'd["completed"] == 10 and d["total_input_tokens"] == 70' \
      'd["mean_in_flight"] <= 2 + 1e-9 and d["request_throughput"] > 0'
    holds out 'd["plan"].startswith("gpt")'
  }
  status 0 load --concurrency 2 --requests 4 "${plan[@]}" && says '^ +measured +planned' out &&
    says '^  planned ' out
  : >mock/log
  refuses 2 'model' load --model nowhere-9b
  refuses 3 'fit' load --model llama3-70b --on a5000
  refuses 2 'context|positions' "$RAFTER" bench-serve "$URL" --prompt-tokens 6 --max-tokens 64 --seq 20 \
    "${plan[@]}"
  [ ! -s mock/log ] || fail 'requests were sent although the plan is wrong'
}

# Each fault is counted by its kind, and other requests are measured.
case_faults() {
  serve
  local kinds='"ok","status:500","status:429","text:502","cut","no_done","no_usage","bad_usage","json",'
  kinds+='"empty","garbage","error","long","endless","bad_utf8","nul","deep","bare","eos","redirect"'
  faults "{\"kinds\": [$kinds]}"
  status 0 load --concurrency 4 --requests 40 --warmup 0 --json --output each.jsonl && {
    ask out 'json.dumps({e["kind"]: e["count"] for e in d["error_kinds"]})' >kinds
    each kinds 'all(d["http %d" % code] == 2 for code in (500, 429, 502, 307)) and len(d) == 8' \
      'd["connection closed"] == 4 and d["no tokens"] == 2 and d["server error"] == 2' \
      'd["broken stream"] == 16'
    each out 'd["completed"] == 8 and d["failed"] == 32 and d["requests_without_usage"] == 2' \
      'd["total_output_tokens"] == 64 and d["error_kinds"][0]["kind"] == "broken stream"'
    each each.jsonl 'len(rows) == 40 and sum(r["state"] == "completed" for r in rows) == 8' \
      'all(r["message"] for r in rows if r["error"] == "broken stream")'
    says 'note +2 answers without a usage' err && says 'x broken stream: ' err
    ! grep -q $'\x1b' out err || fail 'text of the server moves the cursor'
  }
  # Bytes may be split anywhere: in characters, lines and sizes of chunks. Line ends differ.
  for fault in '{"split": 1}' '{"split": 3, "end": "\r\n"}' '{"split": 7, "end": "\r"}'; do
    faults "$fault"
    status 0 load --requests 3 --json --chat &&
      holds out 'd["completed"] == 3 and d["total_output_tokens"] == 24' "split: $fault"
  done
}

# A test without one answer fails, and says why.
case_no_answer() {
  serve
  faults '{"kinds": ["drop"]}'
  refuses 1 'warm-up: connection closed' load
  faults '{"kinds": ["status:503"]}'
  refuses 1 'the server answers no request .warm-up: http 503' load
  status 1 load --requests 3 --warmup 0 --json &&
    says 'no request completed .3 failed; the most frequent: http 503'
  each out 'd["completed"] == 0 and d["failed"] == 3 and d["error_kinds"][0]["kind"] == "http 503"'
  faults '{"kinds": ["stall"]}'
  status 1 load --requests 2 --concurrency 2 --warmup 0 --timeout 0.3s --json &&
    holds out 'd["error_kinds"][0]["kind"] == "timeout" and d["failed"] == 2'
  faults '{"models": "{\"data\": []}"}'
  refuses 1 'lists no model' load
  faults '{"models": "["}'
  refuses 1 'lists no model' load
  faults '{"models": "{\"data\": [{\"id\": \"a\\u001b[2Jb\"}]}"}'
  status 0 load --requests 1
  ! grep -q $'\x1b' out || fail "a model's name moves the cursor"
  kill "$server"
  wait "$server" 2>/dev/null
  refuses 1 'cannot reach the server' load
}

# stop AFTER ARGUMENTS...: interrupts a test after this number of requests, and expects its exit status.
stop() {
  local after=$1 victim
  shift
  "$RAFTER" bench-serve "$URL" --max-tokens 8 "$@" >out 2>err &
  victim=$!
  for _ in $(seq 200); do [ "$(grep -c POST mock/log)" = "$after" ] && break; sleep 0.05; done
  kill -INT $victim
  wait $victim
  [ $? = 130 ] || fail "an interrupted test does not exit with 130: $(head -c 300 err)"
}

# An interrupted or expired test prints the measurements so far.
case_stopped() {
  serve
  faults '{"kinds": ["ok", "ok", "stall"]}'
  status 0 load --requests 9 --warmup 0 --max-seconds 6s --json &&
    holds out 'd["completed"] == 2 and d["cancelled"] == 1 and d["failed"] == 0'
  kill "$server"
  rm mock/port
  serve
  faults '{"kinds": ["ok", "ok", "stall"]}'
  stop 3 --requests 9 --warmup 0 --json --output each.jsonl
  says 'stopped after 2 answers'
  holds out 'd["completed"] == 2 and d["cancelled"] == 1'
  holds each.jsonl '[r["state"] for r in rows].count("completed") == 2 and len(rows) == 9'
  faults '{"kinds": ["stall"]}'
  stop 1 --requests 9 --warmup 1
  says 'stopped during the warm-up'
}

# A model in place of an address: the test serves it, and measures this server next to its plan.
# Answers with the byte 0 are correct. The program's own server is reached without a proxy.
case_own() {
  status 0 env http_proxy=http://127.0.0.1:1 no_proxy= NO_PROXY= "$RAFTER" bench-serve "$TINY" --threads 1 \
    --batch 2 --concurrency 2 --prompt-tokens 4 --max-tokens 4 --requests 4 --extra-body \
    '{"logit_bias": {"0": 100}}' --json && holds out 'd["completed"] == 4 and d["failed"] == 0'
}

case_model() {
  local own=("$RAFTER" bench-serve "$TINY" --prompt-tokens 6 --max-tokens 8 --token-ids 256 --threads 1)
  status 0 "${own[@]}" --ignore-eos --concurrency 3 --requests 12 --batch 2 --step-growth 0 --json \
    --output each.jsonl && {
    each out 'd["completed"] == 12 and d["failed"] == 0 and d["total_output_tokens"] == 96' \
      'd["predicted"]["completed"] == 12 and "2 answers at once" in d["plan"]'
    holds each.jsonl 'len(rows) == 12'
  }
  status 0 "${own[@]}" --rates 20,40 --requests 5 --json &&
    holds out 'd["rates"][0]["predicted"]["completed"] == 5'
  refuses 2 'cannot be combined' "${own[@]}" --model "$TINY"
  refuses 2 'nowhere-9b' "$RAFTER" bench-serve nowhere-9b
  refuses 3 'fit' "$RAFTER" bench-serve llama3-70b --batch 4
  refuses 1 'cannot open nowhere' "${own[@]}" --adapter nowhere
}

# Options that make no sense together, before any request.
case_options() {
  URL=http://127.0.0.1:1
  refuses 2 'rate.*cannot be combined' load --rate 1 --rates 1,2
  refuses 2 'cannot be combined' load --rates 1,2 --arrivals x.jsonl
  refuses 2 '--plot has no effect' load --plot x.svg
  refuses 2 '--search has no effect' load --rate 4 --search
  refuses 2 '--batch has no effect' load --batch 4
  refuses 2 '--step-growth has no effect' load --step-growth 4
  refuses 2 'cannot be combined' load --duration 2s --rate 1 --requests 5
  refuses 2 'name that ends in .svg' load --rates 1,2 --plot x.pdf
  refuses 2 'not a JSON object' load --extra-body '[1]'
  refuses 2 'not a limit' load --goodput ttft=5
  refuses 2 'percentile' load --percentiles 50,101
  refuses 2 'address of a server' "$RAFTER" bench-serve localhost:8000
  refuses 2 'address of a server' "$RAFTER" bench-serve ftp://localhost
  refuses 1 'nothere' load --data nothere.jsonl
  refuses 1 'nothere' load --arrivals nothere.jsonl
  refuses 1 'key' load --api-key-file nokey
  echo '{"messages": [{"role": "user", "content": "x"}]}' >chat.jsonl
  refuses 2 'need --chat' load --data chat.jsonl
  (ulimit -n 80 && refuses 2 'open files' load --concurrency 100 && [ "$failures" = 0 ]) ||
    fail 'more connections than files'
}

cases "$@"
