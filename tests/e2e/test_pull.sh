#!/usr/bin/env bash
# pull, with a server that speaks the hub's API: which files are downloaded, interrupted
# connections, redirects and the token, and faults of a server.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
export no_proxy=127.0.0.1,localhost
unset HF_TOKEN HF_ENDPOINT

hub=$WORK/hub files=$WORK/hub/files

setup() {
  local files=hub/files
  mkdir -p "$files/org/tiny" "$files/org/pickles" "$files/org/quants" "$files/google/gemma-2b-flax" "$files/org/parts"
  cp "$DATA/goldens/llama/config.json" "$DATA/goldens/llama/model.safetensors" "$files/org/tiny"
  python3 - "$files" <<'PY'
import os, random, sys
r, root = random.Random(1), sys.argv[1]
def put(path, bytes):
    os.makedirs(os.path.dirname(f"{root}/{path}"), exist_ok=True)
    open(f"{root}/{path}", "wb").write(r.randbytes(bytes))
for name in ("pytorch_model.bin", "README.md", "onnx/model.onnx", "original/consolidated.00.pth", "consolidated.safetensors", "tokenizer.json"): put(f"org/tiny/{name}", 3000)
open(f"{root}/org/tiny/generation_config.json", "w").close()
put("org/pickles/config.json", 100), put("org/pickles/pytorch_model.bin", 100)
put("org/quants/m-Q4_0.gguf", 900), put("org/quants/m-Q8_0-00001-of-00002.gguf", 900), put("org/quants/m-Q8_0-00002-of-00002.gguf", 800), put("org/quants/mmproj-f16.gguf", 9)
put("google/gemma-2b-flax/2b/_METADATA", 100), put("google/gemma-2b-flax/2b/checkpoint", 100), put("google/gemma-2b-flax/tokenizer.model", 100)
put("org/parts/model-00001-of-00002.safetensors", 1_500_000), put("org/parts/model-00002-of-00002.safetensors", 5000), put("org/parts/config.json", 300)
put("org/parts/model.safetensors.index.json", 100), put("org/parts/model.fp16.safetensors", 100)
put("org/parts/sub folder/more+%.safetensors", 700)
PY
}

# Starts the server; each case has its own.
serve() {
  [ -z "${server:-}" ] || kill $server
  rm -f "$hub/ports"
  python3 "$HERE/hub_server.py" "$hub" 2>server.err &
  server=$!
  trap 'kill $server 2>/dev/null; rm -rf "$WORK"' EXIT
  for _ in $(seq 100); do [ -f "$hub/ports" ] && break; sleep 0.1; done
  read -r port cdn <"$hub/ports" || { echo "the server did not start: $(cat server.err)"; exit 1; }
  ENDPOINT=http://127.0.0.1:$port
  faults '{}'
}

faults() { echo "$1" >"$hub/faults.new" && mv "$hub/faults.new" "$hub/faults"; : >"$hub/log"; }
pull() { "$RAFTER" pull "$@" --endpoint "$ENDPOINT"; }
requests() { python3 -c 'import json, sys; rows = [json.loads(l) for l in open(sys.argv[1])]; print(eval(sys.argv[2]))' "$hub/log" "$1"; }
logged() { [ "$(requests "$1")" = True ] || fail "${2:-the requests: $1} (log: $(head -c 600 "$hub/log"))"; }
whole() { # whole FOLDER REPOSITORY: expects the folder to have exactly the server's files
  local f
  for f in $(cd "$1" && find . -type f | tr ' ' '?'); do cmp -s "$1/"$f "$files/$2/"$f ||
    fail "$1/$f differs from the server's or is no file of it"; done
}

# Downloaded files: one form of the safetensors, descriptions, never a pickle. The folder is a
# MODEL.
case_downloads() {
  serve
  status 0 pull hf:org/tiny --json && {
    holds out 'd["repository"] == "org/tiny" and d["revision"] == "main" and d["commit"].startswith("0123") and d["folder"] == d["model"] == "models/org/tiny"'
    holds out '{f["path"]: f["state"] for f in d["files"]} == {k: "downloaded" for k in ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json")}'
    holds out 'all(len(f.get("sha256", f.get("git_blob"))) in (40, 64) for f in d["files"]) and d["bytes"] == sum(f["bytes"] for f in d["files"])'
  }
  whole models/org/tiny org/tiny
  logged 'all(r["token"] is None for r in rows) and rows[0]["path"] == "/api/models/org/tiny/revision/main?blobs=true"'
  rm models/org/tiny/tokenizer.json models/org/tiny/generation_config.json
  status 0 "$RAFTER" generate models/org/tiny --tokens 1,2,3 --max-tokens 2 --threads 2
  faults '{}'
  status 0 pull org/tiny@v/1 --json && # hf: may be left out
    holds out '{f["state"] for f in d["files"] if f["path"] in ("config.json", "model.safetensors")} == {"present"}' 'existing files are not downloaded again'
  logged 'len(rows) == 3 and "/revision/v%2F1" in rows[0]["path"]'
  printf x | dd of=models/org/tiny/config.json conv=notrunc status=none
  status 0 pull hf:org/tiny --json &&
    holds out '[f["state"] for f in d["files"] if f["path"] == "config.json"] == ["downloaded"]' 'a changed file is downloaded again'
  whole models/org/tiny org/tiny
  status 0 pull hf:org/parts --out parts && [ "$(ls parts | wc -l)" = 4 ] && whole parts org/parts || fail "the shards should be downloaded and not the copies: $(ls parts)"
  status 0 pull hf:org/parts --out folder --include 'sub folder/*' && whole folder org/parts &&
    [ -f 'folder/sub folder/more+%.safetensors' ] || fail 'a path with blanks and signs was not downloaded'
  status 0 pull hf:org/quants --include '*Q8_0*' --json &&
    holds out 'len(d["files"]) == 2 and d["model"].endswith("/m-Q8_0-00001-of-00002.gguf")'
  refuses 2 '2 GGUF variants.*Q4_0' pull hf:org/quants && says 'hint: .*--include'
  refuses 1 'pickle' pull hf:org/tiny --include '*.bin'
  refuses 1 'matches none' pull hf:org/tiny --include '*.gguf'
  refuses 1 'PyTorch pickles' pull hf:org/pickles && says 'hint: .*safe_serialization'
  refuses 1 'too large \(expected at most 1000 bytes' pull hf:org/parts --out small --max-size 1000 &&
    { [ ! -e small ] || fail 'a refused size leaves a folder'; }
  refuses 2 'out is too long' pull hf:org/parts --out "$(printf 'a%.0s' $(seq 1100))"
  [ ! -e models/org/pickles ] || fail 'a refused model leaves a folder'
}

# For checkpoints in other layouts, the error names the variant to download.
case_other_layouts() {
  serve
  refuses 1 'Orbax' pull hf:google/gemma-2b-flax && says 'hint: .*rafter pull hf:google/gemma-2b$'
  refuses 2 'Kaggle' "$RAFTER" pull kaggle:google/gemma-2/flax/gemma2-2b-it/1 &&
    says 'hint: .*hf:google/gemma-2-2b-it$'
  refuses 2 'Kaggle' "$RAFTER" pull https://www.kaggle.com/models/google/gemma-3/flax/gemma3-1b &&
    says 'hint: .*hf:google/gemma-3-1b-pt$'
  mkdir -p gemma2-9b/d && touch gemma2-9b/_METADATA gemma2-9b/manifest.ocdbt
  refuses 2 'Orbax' "$RAFTER" pull gemma2-9b && says 'hint: .*hf:google/gemma-2-9b$'
  for bad in tiny hf:tiny hf:org hf:org/ hf:/tiny hf:../tiny hf:org/.. hf:org/tiny/more hf:org/tiny@ 'hf:org/ti ny' 'hf:org/tiny@a b' hf:; do refuses 2 'expected hf|revision' pull "$bad"; done
}

# Connections that break, stall or are slow: each download continues where it stopped.
case_bad_connections() {
  serve
  faults '{"cut": 400000, "cut_listing": 50}'
  status 0 pull hf:org/parts --out cut && whole cut org/parts
  logged '[r["range"] for r in rows if "00001-of" in r["path"]] == [None, "bytes=400000-", "bytes=800000-", "bytes=1200000-"] and all(r["if_range"] for r in rows if r["range"] and "resolve" in r["path"])' 'a cut file continues by ranges'
  faults '{"cut": 400000, "no_range": true}'
  refuses 1 'cut .*at byte 400000' pull hf:org/parts --out norange --retries 1
  faults '{}' && status 0 pull hf:org/parts --out norange --json && whole norange org/parts &&
    holds out '[f["state"] for f in d["files"] if "00001" in f["path"]] == ["resumed"]'
  faults '{"cut": 900000, "wrong_range": true}' &&
    refuses 1 'cut' pull hf:org/parts --out wrongrange --retries 1
  faults '{}' && status 0 pull hf:org/parts --out wrongrange && whole wrongrange org/parts
  faults '{"stall": 700000}'
  status 0 pull hf:org/parts --out slow --timeout 0.3 && whole slow org/parts
  faults '{"stall": 0}'
  refuses 1 'cut \(no more data came\)' pull hf:org/parts --out stall --timeout 0.3 --retries 0
  [ ! -e stall/model-00001-of-00002.safetensors ] || fail 'an incomplete file has its final name'
  faults '{"status": {"/config.json": [503, 1, {}], "00002-of-00002.safetensors": [429, 1, {"Retry-After": "1"}]}}'
  status 0 pull hf:org/parts --out busy && whole busy org/parts
  faults '{"status": {"main": [500, 9, {}]}}' &&
    refuses 1 'the hub fails at org/parts@main \(500' pull hf:org/parts --retries 0
  faults '{"status": {"main": [429, 9, {}], "x": [1,1,{}]}}' &&
    refuses 1 'too many requests' pull hf:org/parts --retries 0
  refuses 1 'cannot reach' "$RAFTER" pull hf:org/tiny --endpoint http://127.0.0.1:1
  refuses 2 'endpoint' "$RAFTER" pull hf:org/tiny --endpoint file:///etc
}

# After a kill or a signal, the next pull continues.
case_killed() {
  serve
  for signal in KILL INT; do
    faults '{"chunk_seconds": 0.02}'
    "$RAFTER" pull hf:org/parts --out killed$signal --endpoint "$ENDPOINT" >out 2>err &
    victim=$!
    for _ in $(seq 100); do [ "$(stat -c %s killed$signal/model-00001-of-00002.safetensors.part 2>/dev/null || echo 0)" -gt 300000 ] && break; sleep 0.05; done
    kill -$signal $victim
    wait $victim 2>/dev/null && fail "a pull that got $signal exits with 0"
    [ $signal = KILL ] || says 'run the same command again to continue'
    [ ! -e killed$signal/model-00001-of-00002.safetensors ] || fail 'an incomplete file has its final name'
    faults '{}'
    status 0 pull hf:org/parts --out killed$signal --json && whole killed$signal org/parts &&
      holds out '[f["state"] for f in d["files"] if "00001" in f["path"]] == ["resumed"]'
    logged 'sum(r["range"] is not None for r in rows) == 1'
  done
}

# The server's file has changed: the ETag shows it, or otherwise the checksum.
case_changed() {
  serve
  mkdir changed && head -c 800000 /dev/zero >changed/model-00001-of-00002.safetensors.part
  sum=$(sha256sum "$files/org/parts/model-00001-of-00002.safetensors" | cut -d' ' -f1)
  printf '%s\n"old"\n' "$sum" >changed/model-00001-of-00002.safetensors.part.etag
  status 0 pull hf:org/parts --out changed && whole changed org/parts
  rm changed/model-00001-of-00002.safetensors &&
    head -c 800000 /dev/zero >changed/model-00001-of-00002.safetensors.part
  printf '%s\n"%s"\n' "$sum" "$(md5sum "$files/org/parts/model-00001-of-00002.safetensors" | cut -d' ' -f1)" >changed/model-00001-of-00002.safetensors.part.etag
  faults '{}' && status 0 pull hf:org/parts --out changed && whole changed org/parts
  logged '[r["range"] for r in rows if "00001-of" in r["path"]] == ["bytes=800000-", None]' 'a part of another file is downloaded again'
  python3 -c 'import fcntl, sys, time; f = open(sys.argv[1], "w"); fcntl.flock(f, fcntl.LOCK_EX); print("locked", flush=True); time.sleep(20)' changed/config.json.part >locked &
  other=$!
  rm changed/config.json
  for _ in $(seq 100); do [ -s locked ] && break; sleep 0.1; done
  refuses 1 'another pull is writing' pull hf:org/parts --out changed
  kill $other
}

# The token is sent to the endpoint and to no host that it redirects to.
case_token() {
  serve
  faults '{"token": "secret", "redirect": "cdn"}'
  HF_TOKEN=secret status 0 pull hf:org/parts --out token && whole token org/parts
  logged 'all(r["token"] == "Bearer secret" for r in rows if not r["cdn"]) and all(r["token"] is None for r in rows if r["cdn"]) and sum(r["cdn"] for r in rows) == 4' 'the token stays with its host'
  ! grep -rq secret token out err || fail 'the token is written to a file'
  refuses 1 '401.*restricted' pull hf:org/parts --out token2 && says 'hint: .*HF_TOKEN' &&
    ! grep -q $'\x1b' err || fail 'text of the server moves the cursor'
  # A line break at the end does not belong to the token. Inside, it would begin a header.
  HF_TOKEN=$'secret\r\n' status 0 pull hf:org/parts --out token3
  HF_TOKEN=$'secret\r\nX-Evil: 1' refuses 2 'HF_TOKEN has a control character .byte 7 of 17' \
    pull hf:org/parts --out token4
  ! grep -q secret err || fail 'an error prints the token'
  HF_TOKEN=wrong refuses 1 'does not accept the token' pull hf:org/parts --out token2
  faults '{"redirect": "relative"}' && status 0 pull hf:org/parts --out relative && whole relative org/parts
  faults '{"redirect": "loop"}' && refuses 1 'redirects the request \(too often' pull hf:org/parts --out loop
  faults '{"redirect": "cdn", "cut": 700000}' && status 0 pull hf:org/parts --out cdncut &&
    whole cdncut org/parts
  faults '{"status": {"main": [403, 9, {}]}}' && refuses 1 'no access.*403' pull hf:org/tiny &&
    says 'accept the terms at'
  faults '{}' && refuses 1 '404.*RepoNotFound' pull hf:org/nothere &&
    refuses 1 '404.*RevisionNotFound' pull hf:org/tiny@nothere
  faults '{"by_name": true}' && status 0 pull hf:org/parts --out byname && whole byname org/parts
  faults '{"no_blobs": true}' && status 0 pull hf:org/parts --out noblobs && whole noblobs org/parts &&
    says 'no sum' out
  faults '{"no_blobs": true}' && refuses 1 'wrong size' pull hf:org/parts --out noblobs2 --max-size 1MB
}

# Wrong and hostile listings, and a FIFO in the place of a file.
case_hostile() {
  serve
  mkdir -p piped && mkfifo piped/config.json
  refuses 1 'piped/config.json is not a regular file' \
    timeout 20 "$RAFTER" pull hf:org/parts --out piped --endpoint "$ENDPOINT"
  faults '{"lie": {"config.json": {"size": 299}}}' &&
    refuses 1 'config.json.*(wrong size|damaged)' pull hf:org/parts --out lies
  faults '{"lie": {"config.json": {"size": 301}}}' &&
    refuses 1 'config.json.*wrong size' pull hf:org/parts --out lies
  faults '{"lie": {"config.json": {"oid": "0000000000000000000000000000000000000000"}}}' &&
    refuses 1 'config.json is damaged' pull hf:org/parts --out lies
  [ ! -e lies/config.json ] || fail 'a wrong file has its final name'
  faults "{\"lie\": {\"model-00001-of-00002.safetensors\": {\"sha256\": \"$(printf '0%.0s' $(seq 64))\"}}}" && refuses 1 'damaged.*SHA-256' pull hf:org/parts --out lies
  [ ! -e lies/model-00001-of-00002.safetensors ] || fail 'a wrong file has its final name'
  for path in ../evil.json /tmp/evil.json a/../../evil.json a//b.json './x.json' 'a\\b.json' 'a\u0007.json' 'a\u0000.json' '..' ''; do
    faults "{\"extra\": [{\"rfilename\": \"$path\", \"size\": 3}]}"
    refuses 1 'an unsafe path|not valid JSON' pull hf:org/parts --out hostile
  done
  [ ! -e evil.json ] && [ ! -e hostile ] || fail 'a hostile path was written'
  for listing in '{' '[]' '{}' '{\"siblings\": 3}' '{\"siblings\": [3]}' '{\"siblings\": [{}]}' '{\"siblings\": [{\"rfilename\": \"config.json\", \"size\": -5}]}' '{\"siblings\": [{\"rfilename\": \"config.json\", \"size\": 5, \"blobId\": \"../../x\"}]}'; do
    faults "{\"listing\": \"$listing\"}"
    refuses 1 'list' pull hf:org/parts --out hostile
  done
  faults '{"extra": [{"rfilename": "sub/evil.safetensors", "size": 3}]}'
  mkdir -p links outside && ln -s ../outside links/sub
  refuses 1 'link' pull hf:org/parts --out links --include 'sub/*'
  mkdir -p links2 && ln -s ../outside/target links2/config.json &&
    ln -s ../outside/part links2/model-00002-of-00002.safetensors.part
  refuses 1 'link' pull hf:org/parts --out links2
  [ -z "$(ls outside)" ] || fail "a link was followed: $(ls outside)"
  faults '{"extra": [{"rfilename": "model-00009-of-00009.safetensors", "size": 9000000000000000000}]}' &&
    refuses 1 'no room|sizes' pull hf:org/parts --out huge
  mkdir -p stall; chmod -w stall; [ "$(id -u)" = 0 ] || refuses 1 'stall' pull hf:org/parts --out stall
  faults '{}'; touch afile && refuses 1 'afile' pull hf:org/parts --out afile
}

cases "$@"
