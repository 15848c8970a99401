# Shared by the tests that start ranks of MPI. LIBRARIES has every MPI library that is installed and
# whose file was built; `ranks` uses the launcher of $LIBRARY.
# shellcheck shell=bash

for name in $(compgen -e | grep -E '^(OMPI_|PMIX?_|SLURM_|RAFTER_MPI|MPIR?_|HYDRA)'); do unset "$name"; done
# Open MPI needs leave to run as root, and to start more processes than cores
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_hwloc_base_binding_policy=none
export RAFTER_MPI_SECONDS=60

# launcher LIBRARY: prints the launcher of a library.
launcher() {
  local pattern='Open MPI'
  [ "$1" = openmpi ] || pattern='HYDRA|MPICH'
  command -v "mpirun.$1" && return
  command -v mpirun >/dev/null && mpirun --version 2>&1 | grep -qE "$pattern" && command -v mpirun
}
LIBRARIES=()
for library in openmpi mpich; do
  [ ! -f "$(dirname "$RAFTER")/rafter-mpi-$library.so" ] || [ -z "$(launcher $library)" ] ||
    LIBRARIES+=("$library")
done
if [ ${#LIBRARIES[@]} = 0 ]; then
  echo "skip: ranks need mpirun and rafter-mpi-openmpi.so or rafter-mpi-mpich.so (./dev setup --mpi)" >&3
  finish
  exit
fi
LIBRARY=${LIBRARIES[0]}

# ranks N COMMAND...: runs the command with the launcher of $LIBRARY. A second command for the last
# rank follows the word `last:`. A hang ends after two minutes.
ranks() {
  local count=$1 all=() last=() word part=all
  shift
  for word; do
    [ "$word" != last: ] || { part=last; continue; }
    [ $part = all ] && all+=("$word") || last+=("$word")
  done
  [ ${#last[@]} = 0 ] || { count=$((count - 1)); last=(: -n 1 "${last[@]}"); }
  timeout -k 10 120 "$(launcher "$LIBRARY")" -n "$count" "${all[@]}" "${last[@]}"
}

# has PATTERN FILE: succeeds if a word of this file of /proc matches. It starts no process, because
# process_of calls it for every process of the machine.
has() {
  local words word
  { mapfile -d '' -t words <"$2"; } 2>/dev/null || return
  for word in "${words[@]}"; do [[ $word =~ ^($1)$ ]] && return; done
  return 1
}
# process_of RUN RANK: prints the process of a rank.
process_of() {
  local at
  for at in /proc/[0-9]*; do
    if has "$1" "$at/cmdline" && has "(OMPI_COMM_WORLD_RANK|PMI_RANK)=$2" "$at/environ"; then
      echo "${at#/proc/}"
      return
    fi
  done
}
# gone RUN: expects that no rank of the run is left after a few seconds.
gone() {
  for _ in $(seq 100); do
    [ -n "$(process_of "$1" 0)$(process_of "$1" 1)" ] || return 0
    sleep 0.1
  done
  fail "a rank of $1 is left"
}
