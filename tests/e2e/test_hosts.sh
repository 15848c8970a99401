#!/usr/bin/env bash
# rafter train on several hosts: processes of this machine that find each other at a loopback address,
# with the plugin of tests/support/plugin, which joins the hosts and computes the same numbers on one
# host and on several. RAFTER_FAKE_PLUGIN names it.
. "$(dirname "$0")/lib.sh"

PLUGIN=${RAFTER_FAKE_PLUGIN:-$(dirname "$RAFTER")/fake_plugin.so}
if [ ! -f "$PLUGIN" ]; then
  echo "skip: several hosts need the plugin of the tests ($PLUGIN)" >&3
  finish
  exit
fi
for name in $(compgen -e | grep -E '^(OMPI_|PMIX?_|SLURM_|TPU_WORKER|JOB_COMPLETION|MEGASCALE)'); do
  unset "$name"
done
export RAFTER_JOIN_SECONDS=60
TRAIN=("$RAFTER" train "$TINY" "${QUICK[@]}" --data book.txt --lr 1e-3 --val-every 5
  --backend xla --plugin "$PLUGIN")
TRAIN_6=("${TRAIN[@]/4/6}") # a batch of 6

setup() { text book.txt 20000; }

# port: prints the number of a port at which nothing listens.
port() {
  python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# hosts N COMMAND...: starts the command N times, as hosts 0 to N-1. The files are out.K, err.K and
# status.K. EXTRA_1: options for host 1 alone. FAKES: FAKE_PLUGIN of single hosts.
EXTRA_1=() FAKES=()
hosts() {
  local count=$1 at k pids=()
  shift
  at=127.0.0.1:$(port)
  for ((k = count - 1; k >= 0; k--)); do
    start "$k" "$@" --hosts "$count" --host-rank "$k" --coordinator "$at" &
    pids+=($!)
  done
  wait "${pids[@]}"
}
start() {
  local k=$1 code=0 extra=()
  shift
  [ "$k" != 1 ] || extra=("${EXTRA_1[@]}")
  FAKE_PLUGIN=${FAKES[$k]:-$FAKE_PLUGIN} timeout 120 "$@" "${extra[@]}" >"out.$k" 2>"err.$k" || code=$?
  echo "$code" >"status.$k"
}
# ended N STATUS: expects that all hosts ended with this status.
ended() {
  local k
  for ((k = 0; k < $1; k++)); do
    [ "$(cat "status.$k")" = "$2" ] ||
      { fail "host $k exits $(cat "status.$k"), not $2: $(head -c 300 "err.$k" | tr '\n' '|')"; return 1; }
  done
}

# alike A B: two runs have the same losses and the same last checkpoint.
alike() {
  local file
  same <(losses "$1") <(losses "$2") "losses of $1 and $2"
  for file in model.safetensors optimizer.safetensors state.json; do
    cmp -s "$1"/checkpoint-00000006/$file "$2"/checkpoint-00000006/$file || fail "$file of $1 and $2 differ"
  done
}

# on_hosts N MESH: training on N hosts of two chips is training on one host with all chips.
on_hosts() {
  local name=${2//[=,]/-}
  FAKE_PLUGIN=devices=$(($1 * 2)) status 0 "${TRAIN[@]}" --steps 6 --mesh "$2" --out "one-$name" || return
  FAKE_PLUGIN=devices=2
  hosts "$1" "${TRAIN[@]}" --steps 6 --mesh "$2" --out "run-$name"
  ended "$1" 0 && alike "one-$name" "run-$name" || return
  [ "$(cat out.1 err.1)" = '' ] || fail "host 1 prints: $(head -c 300 out.1 err.1)"
}

case_two_hosts() {
  local mesh
  export TMPDIR=$PWD/temporary
  mkdir temporary
  for mesh in data=4 fsdp=4 fsdp=2,tensor=2 tensor=2,data=2 context=2,tensor=2; do on_hosts 2 "$mesh"; done
  [ -z "$(ls temporary)" ] || fail "a host leaves $(ls temporary)"
}

case_three_hosts() {
  local TRAIN=("${TRAIN_6[@]}")
  on_hosts 3 fsdp=6
  on_hosts 3 data=3,tensor=2
}

case_resume() {
  export FAKE_PLUGIN=devices=2
  hosts 2 "${TRAIN[@]}" --steps 6 --save-every 3 --keep 9 --mesh fsdp=4 --out whole
  ended 2 0 || return
  ! grep -q host-rank whole/run.json || fail 'run.json has the number of a host'
  cp -r whole part && rm -r part/checkpoint-00000006
  hosts 2 "$RAFTER" train --resume part
  ended 2 0 && alike whole part
  # the checkpoint has no mesh: one host continues it
  cp -r whole alone && rm -r alone/checkpoint-00000006
  FAKE_PLUGIN=devices=4 status 0 "$RAFTER" train --resume alone --hosts 1 --mesh data=4 && alike whole alone
}

case_adapters() {
  export FAKE_PLUGIN=devices=2
  hosts 2 "${TRAIN[@]}" --steps 6 --lora rank=4 --mesh fsdp=4 --out adapters
  ended 2 0
  [ -s adapters/checkpoint-00000006/adapter_model.safetensors ] || fail 'no adapter is saved'
}

case_launchers() {
  local at k
  at=127.0.0.1:$(port)
  FAKE_PLUGIN=devices=2 status 0 "${TRAIN[@]}" --steps 6 --mesh data=2 --out single || return
  for k in 0 1; do
    SLURM_PROCID=$k SLURM_NTASKS=2 FAKE_PLUGIN=devices=1 \
      start "$k" "${TRAIN[@]}" --steps 6 --mesh data=2 --hosts auto --coordinator "$at" --out variables &
  done
  wait
  ended 2 0
  alike single variables
  command -v mpirun >/dev/null || { echo 'skip: mpirun is not installed' >&3; return; }
  # Open MPI needs leave to run as root, and to start more processes than cores
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
  FAKE_PLUGIN=devices=1 status 0 mpirun -n 2 "${TRAIN[@]}" --steps 6 --mesh data=2 --hosts auto \
    --coordinator "127.0.0.1:$(port)" --out mpirun &&
    alike single mpirun
}

case_refused() {
  local at
  at=127.0.0.1:$(port)
  export FAKE_PLUGIN=devices=2
  refuses 2 'no launcher says which host this is' "${TRAIN[@]}" --steps 1 --mesh data=4 --hosts auto
  refuses 2 'neither auto nor a number of hosts' "${TRAIN[@]}" --steps 1 --hosts many
  refuses 2 'expected 0 to 1, got 2' "${TRAIN[@]}" --steps 1 --hosts 2 --host-rank 2 --coordinator "$at"
  refuses 2 'for several hosts' "${TRAIN[@]}" --steps 1 --coordinator "$at"
  refuses 2 'must name a machine' "${TRAIN[@]}" --steps 1 --hosts 2 --host-rank 0 --coordinator x:y
  refuses 2 '3 chips cannot be shared equally among 2 hosts' \
    "${TRAIN_6[@]}" --steps 1 --mesh data=3 --hosts 2 --host-rank 0 --coordinator "$at"
  refuses 2 'need a backend with a plugin' \
    "$RAFTER" train "$TINY" --data book.txt --steps 1 --hosts 2 --host-rank 0 --coordinator "$at"
  refuses 2 'hosts' "$RAFTER" generate "$TINY" --prompt a --hosts 2
}

case_differences() {
  export FAKE_PLUGIN=devices=2
  text other.txt 21000
  EXTRA_1=(--seed 5)
  hosts 2 "${TRAIN[@]}" --steps 2 --mesh data=4 --out differs-1
  ended 2 1 && says 'host 1 has another step, seed or schedule than host 0' err.1
  EXTRA_1=(--dropout 0.1)
  hosts 2 "${TRAIN[@]}" --steps 2 --mesh data=4 --out differs-2
  ended 2 1 && says 'host 1 has another plan than host 0' err.1
  EXTRA_1=(--data other.txt)
  hosts 2 "${TRAIN[@]}" --steps 2 --mesh data=4 --out differs-3
  ended 2 1 && says 'host 1 has other data than host 0' err.1
  says '^rafter: .*host 1 has' err.0
  EXTRA_1=()
}

case_failures() {
  export FAKE_PLUGIN=devices=2
  FAKES=('' 'devices=2 die_at=3')
  hosts 2 "${TRAIN[@]}" --steps 6 --mesh data=4 --out lost-1
  ended 2 1 && says 'signal 6' err.1 && says 'host 1 has failed or cannot be reached' err.0
  FAKES=('devices=2 die_at=3' '')
  hosts 2 "${TRAIN[@]}" --steps 6 --mesh data=4 --save-every 2 --out lost-0
  ended 2 1 && says 'signal 6' err.0 && says 'host 0 has failed or cannot be reached' err.1
  [ -e lost-0/checkpoint-00000002/DONE ] || fail 'the checkpoint of step 2 is kept'
  FAKES=()
  RAFTER_JOIN_SECONDS=1 refuses 1 '1 of 2 hosts did not join within 1 s: 1' \
    "${TRAIN[@]}" --steps 1 --mesh data=4 --out alone-0 --hosts 2 --host-rank 0 \
    --coordinator "127.0.0.1:$(port)"
  RAFTER_JOIN_SECONDS=1 refuses 1 'cannot reach host 0' \
    "${TRAIN[@]}" --steps 1 --mesh data=4 --out alone-1 --hosts 2 --host-rank 1 \
    --coordinator "127.0.0.1:$(port)"
}

# A signal that reaches one host ends all after the same step, with a checkpoint.
case_signal() {
  local at pid other code=0
  at=127.0.0.1:$(port)
  export FAKE_PLUGIN=devices=2
  "${TRAIN[@]}" --steps 100000000 --mesh fsdp=4 --out stopped --hosts 2 --host-rank 0 --coordinator "$at" \
    >out.0 2>err.0 &
  other=$!
  "${TRAIN[@]}" --steps 100000000 --mesh fsdp=4 --out stopped --hosts 2 --host-rank 1 --coordinator "$at" \
    >out.1 2>err.1 &
  pid=$!
  for _ in $(seq 600); do ! grep -q '"step"' stopped/metrics.jsonl 2>/dev/null || break; sleep 0.1; done
  kill -TERM "$pid"
  wait "$pid" || code=$?
  [ "$code" = 130 ] || fail "host 1 exits $code: $(head -c 300 err.1)"
  code=0
  wait "$other" || code=$?
  [ "$code" = 130 ] || fail "host 0 exits $code: $(head -c 300 err.0)"
  says 'stopped at step' err.0
  [ -n "$(find stopped -name DONE)" ] || fail 'no checkpoint is saved'
}

case_time() {
  export FAKE_PLUGIN=devices=2
  hosts 2 "${TRAIN[@]}" --steps 100000000 --max-seconds 2 --mesh fsdp=4 --out timed
  ended 2 0
  [ -n "$(find timed -name DONE)" ] || fail 'no checkpoint is saved'
}

cases "$@"
