#!/usr/bin/env bash
# The files of deploy/: nginx with TLS and several replicas on loopback, the systemd unit, the
# manifest for Kubernetes, and the Dockerfile.
. "$(dirname "$0")/lib.sh"
. "$HERE/lib_serve.sh"
MODEL=gpt:layers=2,width=32,heads=2,ff=64,vocab=256,seq=4096
DEPLOY=$(realpath "$HERE/../../deploy")
PROXY=
trap 'stop_proxy; stop_server; rm -rf "$WORK"' EXIT

stop_proxy() { [ -z "$PROXY" ] || { kill "$PROXY"; wait "$PROXY"; } 2>/dev/null; PROXY=; }
free_port() {
  python3 -c 'import socket
s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# find_nginx: sets NGINX, or prints a line that counts as skipped.
find_nginx() {
  local file unpacked=nginx/usr/sbin/nginx
  for file in "$(type -P nginx)" /usr/sbin/nginx "$BUILD/$unpacked" "$HERE/../../build/$unpacked"; do
    [ ! -x "$file" ] || { NGINX=$file; return; }
  done
  echo "skip: $1 needs nginx, which ./dev test unpacks from Debian" >&3
  return 1
}

# wrap FILE: a configuration of nginx that includes FILE and writes below $WORK only.
wrap() {
  cat <<CONF
daemon off;
master_process off;
pid $WORK/nginx.pid;
error_log $WORK/nginx.log;
events {}
http {
  access_log off;
  client_body_temp_path $WORK/t/a; proxy_temp_path $WORK/t/b; fastcgi_temp_path $WORK/t/c;
  uwsgi_temp_path $WORK/t/d; scgi_temp_path $WORK/t/e;
  include $1;
}
CONF
}

# proxy PORT...: starts nginx with deploy/nginx/rafter.conf before servers at these ports.
proxy() {
  local port servers=''
  for port in "$@"; do servers+="    server 127.0.0.1:$port max_fails=2 fail_timeout=5s;\n"; done
  PROXY_PORT=$(free_port)
  openssl req -x509 -newkey rsa:2048 -nodes -days 2 -keyout key.pem -out cert.pem -subj /CN=localhost \
    -addext 'subjectAltName=DNS:localhost,IP:127.0.0.1' 2>/dev/null
  sed -e "/# replicas: begin/,/# replicas: end/c\\$servers" -e "s/listen 443/listen 127.0.0.1:$PROXY_PORT/" \
    -e "s|/etc/ssl/certs/rafter.pem|$WORK/cert.pem|" -e "s|/etc/ssl/private/rafter.key|$WORK/key.pem|" \
    "$DEPLOY/nginx/rafter.conf" >rafter.conf
  mkdir -p t
  wrap "$WORK/rafter.conf" >nginx.conf
  nginx=("$NGINX" -p "$WORK" -e "$WORK/nginx.log" -c "$WORK/nginx.conf")
  "${nginx[@]}" -t 2>test.log || { fail "nginx -t: $(cat test.log)"; return 1; }
  ! grep -q warn test.log || fail "nginx warns: $(cat test.log)"
  "${nginx[@]}" & PROXY=$!
  for _ in $(seq 200); do (exec 4<>"/dev/tcp/127.0.0.1/$PROXY_PORT") 2>/dev/null && break; sleep 0.05; done
  export PROXY_URL=https://localhost:$PROXY_PORT CERT=$WORK/cert.pem
}
ask_proxy() {
  curl -s --max-time 60 --cacert cert.pem --resolve "localhost:$PROXY_PORT:127.0.0.1" "$PROXY_URL$1" "${@:2}"
}
status_of() { ask_proxy "$1" -o /dev/null -w '%{http_code}' "${@:2}"; }

# Answers through TLS are those of the server, whole and as a stream.
case_tls() {
  find_nginx 'TLS' || return 0
  serve
  proxy "${SERVE_URL##*:}" || return
  local body='{"prompt": "Once upon a time", "max_tokens": 24, "seed": 11, "ignore_eos": true}'
  text_of='import json, sys; print(json.load(sys.stdin)["choices"][0]["text"])'
  curl -s "$SERVE_URL/v1/completions" -d "$body" | python3 -c "$text_of" >direct
  ask_proxy /v1/completions -d "$body" | python3 -c "$text_of" >through
  [ -s direct ] && same direct through 'an answer through nginx'
  local stream=${body/\"prompt\"/\"stream\": true, \"prompt\"}
  pieces='import json, sys
print("".join(json.loads(l[6:])["choices"][0]["text"] for l in sys.stdin if l.startswith("data: {")))'
  ask_proxy /v1/completions -N -d "$stream" | python3 -c "$pieces" >streamed
  same direct streamed 'a stream through nginx'
  [ "$(status_of /metrics)" = 404 ] || fail 'nginx shows the metrics'
  [ "$(ask_proxy /health -o /dev/null -w '%{http_code} %{http_version}')" = '200 2' ] ||
    fail 'no health over HTTP/2'
  head -c 5000000 /dev/zero >large
  [ "$(status_of /v1/completions --data-binary @large)" = 413 ] || fail 'a large body'
  ! curl -s "$PROXY_URL/health" -o /dev/null || fail 'an unknown certificate is accepted'
  stop_proxy
}

# The first event of a stream arrives before the server sends the second one. A buffer would wait.
case_unbuffered() {
  find_nginx 'streams without buffers' || return 0
  local port version; port=$(free_port)
  python3 - "$port" <<'PY' &
import os, socket, sys, time
s = socket.create_server(("127.0.0.1", int(sys.argv[1])))
open("listens", "w").close()
while True:
    c, _ = s.accept()
    if not c.recv(65536): continue
    c.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
    for event in (b"data: 1\n\n", b"data: 2\n\n"):
        c.sendall(b"%x\r\n%s\r\n" % (len(event), event))
        while not os.path.exists("seen"): time.sleep(0.01)
    c.sendall(b"0\r\n\r\n")
    c.close()
PY
  local upstream=$!
  for _ in $(seq 200); do [ -e listens ] && break; sleep 0.05; done
  proxy "$port" || { kill $upstream; return; }
  for version in --http1.1 --http2; do
    rm -f seen events
    ask_proxy /v1/completions -N $version -d '{}' >events & local client=$!
    for _ in $(seq 200); do grep -q 'data: 1' events && break; sleep 0.05; done
    grep -q 'data: 1' events || fail "nginx holds the first event of a stream ($version)"
    touch seen
    wait $client
    grep -q 'data: 2' events || fail "the second event is lost ($version)"
  done
  kill $upstream; wait $upstream 2>/dev/null
  stop_proxy
}

# replica NAME: starts a server with this name. Sets REPLICA_PORT and REPLICA_PID.
replica() {
  "$RAFTER" serve $MODEL --port 0 --threads 1 --served-name "$1" >"$1.served" 2>"$1.err" & REPLICA_PID=$!
  for _ in $(seq 200); do [ -s "$1.served" ] && break; sleep 0.05; done
  REPLICA_PORT=$(grep -oP 'http://127.0.0.1:\K[0-9]+' "$1.served") || fail "replica $1: $(cat "$1.err")"
}

served_by() { # served_by KEY: the replica that answers a request with this key
  ask_proxy /v1/models -H "X-Conversation: $1" |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["data"][0]["id"])'
}

# A conversation stays on its replica, whose cache has its prefix. If the replica stops, another one
# continues.
case_replicas() {
  find_nginx 'several replicas' || return 0
  local first port_a port_b key
  replica a && first=$REPLICA_PID port_a=$REPLICA_PORT
  replica b && server=$REPLICA_PID port_b=$REPLICA_PORT
  proxy "$port_a" "$port_b" || { kill -9 "$first"; return; }
  for key in $(seq 40); do served_by "$key"; done >chosen
  [ "$(sort -u chosen | tr '\n' ' ')" = 'a b ' ] || fail "40 keys reach $(sort -u chosen)"
  for key in 3 17; do for _ in 1 2 3 4 5; do served_by $key; done | sort -u | wc -l; done >replicas
  [ "$(tr '\n' ' ' <replicas)" = '1 1 ' ] || fail 'a key changes its replica'
  hits() { curl -s "http://127.0.0.1:$1/metrics" | sed -n 's/^rafter:prefix_cache_hits_total.* //p'; }
  printf '{"max_tokens": 2, "prompt": "%s"}' "$(printf 'word %.0s' $(seq 60))" >long.json
  for _ in 1 2 3; do
    ask_proxy /v1/completions -H 'X-Conversation: chat' -o /dev/null -d @long.json
  done
  python3 - "$(hits "$port_a")" "$(hits "$port_b")" <<'PY' || fail 'the cached prompt is not reused'
import sys
a, b = map(float, sys.argv[1:])
assert min(a, b) == 0 and max(a, b) >= 2 * 290, (a, b)
PY
  # Replica a stops: its keys reach b, also with POST, and the keys of b stay.
  kill -9 "$first"; wait "$first" 2>/dev/null
  for key in $(seq 12); do served_by "$key"; done | sort -u >left
  [ "$(cat left)" = b ] || fail "after a replica has stopped: $(cat left)"
  for key in 1 2 3 4 5 6; do
    status_of /v1/completions -H "X-Conversation: $key" -d '{"prompt": "a", "max_tokens": 2}'
    echo
  done | sort -u >codes
  [ "$(cat codes)" = 200 ] || fail "a POST after a replica has stopped: $(cat codes)"
  stop_proxy
}

case_systemd() {
  type -P systemd-analyze >/dev/null || { echo 'skip: the unit needs systemd-analyze' >&3; return 0; }
  sed "s|/usr/bin/rafter|$RAFTER|" "$DEPLOY/rafter.service" >rafter.service
  systemd-analyze verify --man=no ./rafter.service >out 2>&1 || fail "systemd-analyze: $(cat out)"
  ! grep -q 'rafter.service' out || fail "systemd-analyze warns: $(grep rafter.service out)"
  sed 's/^Restart=.*/Restart=sometimes/' rafter.service >wrong.service
  systemd-analyze verify --man=no ./wrong.service 2>&1 | grep -q wrong.service || fail 'a wrong unit passes'
}

# The manifest is checked by rules of this project, not by the schema of Kubernetes.
case_kubernetes() {
  /usr/bin/python3 -c 'import yaml' 2>/dev/null ||
    { echo 'skip: the manifest needs python3-yaml' >&3; return 0; }
  fill=(python3 "$DEPLOY/kubernetes/fill.py" gemma3-270m --rafter "$RAFTER" --on h100-sxm --cpus 4)
  status 0 "${fill[@]}" --rate 60 --batch 16 --seq 2k -- --dtype bf16 && cp out manifest.yaml
  plan=("$RAFTER" plan gemma3-270m --on h100-sxm --batch 16 --dtype bf16 --json)
  status 0 "${plan[@]}" --job generate --seq 2k && cp out arena.json
  status 0 "${plan[@]}" --job serve --prompt-tokens 512 --max-tokens 256 && cp out serve.json
  checks() { /usr/bin/python3 "$HERE/manifest.py" "$1" arena.json serve.json 60 1; }
  checks manifest.yaml || fail 'the manifest'
  # planted faults
  for fault in 's/path: \/ready/path: \/readyz/' 's/matchLabels: {app: rafter}/matchLabels: {app: raft}/' \
    's/memory: [0-9]*Mi/memory: lots/' 's/replicas: [0-9]*/replicas: 1/' 's/claimName/claim/' \
    's/serviceName: rafter/serviceName: other/' 's/server rafter-1:8000/server rafter-7:8000/' \
    's/mountPath: \/models/mountPath: \/model/' 's/kind: ConfigMap/kind: Config/'; do
    sed "$fault" manifest.yaml >wrong.yaml
    ! cmp -s wrong.yaml manifest.yaml || fail "the fault $fault changes nothing"
    ! checks wrong.yaml >/dev/null || fail "the check passes $fault"
  done
  status 0 "${fill[@]}" --rate 60 --batch 16 --ttft 0.2 && says '95 % of first tokens within 0.2 s' out
  refuses_fill() { status "$1" "${fill[@]}" "${@:3}"; says "$2"; }
  refuses_fill 1 'no rate has a first token within 1e-06 s' --rate 60 --ttft 1e-6
  refuses_fill 2 'expected a number above 0' --rate 0
  refuses_fill 1 'unknown option' --rate 1 -- --no-such-option 1
  if find_nginx 'the gateway of the manifest'; then
    /usr/bin/python3 -c 'import sys, yaml
for d in yaml.safe_load_all(open("manifest.yaml")):
    if d["kind"] == "ConfigMap": print(d["data"]["rafter.conf"])' |
      sed 's/server rafter-[0-9]*:/server 127.0.0.1:/' >gateway.conf
    mkdir -p t
    wrap "$WORK/gateway.conf" >n.conf
    "$NGINX" -t -p "$WORK" -e stderr -c "$WORK/n.conf" 2>test.log ||
      fail "nginx -t of the gateway: $(cat test.log)"
  fi
}

# The end of ./dev demo: a server answers one request and stops.
case_demo() {
  status 0 "$HERE/../../tools/demo_serve.sh" "$RAFTER" "$MODEL" local && {
    says '^http://127.0.0.1:[0-9]+ serves demo: ' out
    says '"object":"text_completion".*"completion_tokens":60' out
    says 'start it again, and open the address' out
    ! curl -s "$(grep -om 1 'http://[0-9.:]*' out)/health" -o /dev/null || fail 'the server of the demo stays'
  }
  status 1 "$HERE/../../tools/demo_serve.sh" "$RAFTER" /nowhere local && says "no model at '/nowhere'"
}

# The image has the libraries that the program loads. Docker itself is not run.
case_docker() {
  local file=$DEPLOY/Dockerfile library package
  ldd "$RAFTER" | awk '$3 ~ /^\// {print $3}' >libraries
  ldconfig -p | awk '/lib(microhttpd|curl|ssl|crypto)\.so\.[0-9]+ / {print $NF}' >>libraries
  while read -r library; do
    dpkg -S "$(realpath "$library")" "$library" 2>/dev/null
  done <libraries | sed 's/[:,].*//' | sort -u >packages
  grep -oE '\b(lib[a-z0-9.-]+|zlib1g)\b' "$file" | sort -u >named
  # shellcheck disable=SC2046
  apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces \
    --no-enhances $(cat named) 2>/dev/null | grep '^\w' | sort -u >closure
  [ -s closure ] || { echo 'skip: the libraries of the image need the lists of apt' >&3; return 0; }
  comm -23 packages <(sort -u closure) >missing
  [ ! -s missing ] || fail "the image lacks $(tr '\n' ' ' <missing)"
  grep -q '^STOPSIGNAL SIGTERM' "$file" && grep -q '^USER rafter' "$file" || fail 'the image runs as root'
}
# The files of training on clusters, with scripts in place of srun and mpirun. A restarted job
# continues its run, also if the run has no checkpoint yet.
case_training() {
  bash -n "$DEPLOY/slurm/train.sbatch" || fail 'train.sbatch is no script'
  python3 - "$DEPLOY/kubernetes/train.yaml" <<'PY' || fail 'train.yaml'
import sys, yaml
job = yaml.safe_load(open(sys.argv[1]))
specs = job["spec"]["mpiReplicaSpecs"]
command = specs["Launcher"]["template"]["spec"]["containers"][0]["args"][0]
assert job["kind"] == "MPIJob" and f'mpirun -n {specs["Worker"]["replicas"]} ' in command
worker = specs["Worker"]["template"]["spec"]["containers"][0]
assert f'--threads {worker["resources"]["limits"]["cpu"]}\n' in command, command
for of in specs.values(): assert of["template"]["spec"]["terminationGracePeriodSeconds"] >= 2 * 120
open("launch", "w").write(command.replace("/runs/", "runs/"))
PY
  mkdir -p bin runs/train
  echo 'echo "$@" >asked; while [ "${1#-}" != "$1" ]; do shift; done; exec "$@"' >bin/srun
  echo 'echo "$@" >asked' >bin/mpirun
  chmod +x bin/*
  PATH=$PWD/bin:$PATH sh launch
  says 'rafter train /models/model .*--out runs/train --threads 8$' asked
  touch runs/train/run.json
  PATH=$PWD/bin:$PATH sh launch
  says 'rafter train --resume runs/train --threads 8$' asked
  text book.txt 20000
  local pid try
  for try in 1 2; do
    PATH=$PWD/bin:$PATH RAFTER=$RAFTER MODEL=$TINY DATA=book.txt OUT=runs/slurm SLURM_JOB_NAME=r \
      SLURM_JOB_ID=1 SLURM_CPUS_PER_TASK=2 bash "$DEPLOY/slurm/train.sbatch" >"out.$try" 2>&1 & pid=$!
    for _ in $(seq 400); do grep -qs 'step  ' "out.$try" && break; sleep 0.05; done
    kill -9 $pid
    wait $pid 2>/dev/null
    says "--cpus-per-task=2 .* $RAFTER train" asked
    says 'step  ' "out.$try"
    rm -rf runs/slurm/checkpoint-*
  done
  says "train --resume runs/slurm" asked
  says 'begins again' out.2
}

cases "$@"
