#!/usr/bin/env bash
# rafter roofline: its output, and its errors for wrong questions. tests/worked_examples checks the
# arithmetic.
source "$(dirname "$0")/lib.sh"

status 0 "$RAFTER" roofline matmul --m 64 --k 2048 --n 2048 --on tpu-v5e
says 'bound by +memory' out
status 0 "$RAFTER" roofline allgather --bytes 32MiB --on tpu-v5e:8x4 --axes 4 --json
says '"bound": ?"network"' out
says '"seconds": ?0.000559' out
status 0 "$RAFTER" roofline matmul --m 64 --heads 4 --on tpu-v5e --json # an option without effect is reported
says 'heads is not used here' out
says 'default sizes: --k 1024, --n 1024"' out
status 0 "$RAFTER" roofline kv --model gemma-2b --on tpu-v5e && says '^  .default sizes: --seq 1024.$' out
status 0 "$RAFTER" roofline kv --model gemma-2b --seq 64 --on tpu-v5e &&
  { ! grep -q 'default sizes' out || fail 'a given size is called a default'; }
# The table has whole counts, and JSON the exact figures.
status 0 "$RAFTER" roofline matmul --m 512 --k 4096 --n 14336 --on tpu-v5e &&
  says '^  minimum m to be compute-bound +261$' out && says '^  critical m for large k and n +241$' out
status 0 "$RAFTER" roofline matmul --m 512 --k 4096 --n 14336 --on tpu-v5e --json &&
  holds out '260 < d["critical_m"] < 261'
for strategy in dp fsdp tp ep cp fsdp+tp tp-2d; do
  status 0 "$RAFTER" roofline parallelism --strategy $strategy --on tpu-v5p:8x8x16 \
    --model llama3-70b --tokens 4M
  grep -E '^  (minimum|maximum|best|compute-bound|number|chips) .*[0-9]\.[0-9]+$' out | grep -v FLOP &&
    fail "$strategy: a count is no whole number"
done
# Every answer has the same six keys.
for question in "matmul" "einsum bd,df->bf b=8,d=8,f=8" "attention" "allreduce --bytes 1GB --axes 16" "transfer --bytes 1GB" "critical-batch" \
  "parallelism" "cost --parameters 7e9 --tokens 1e12" "array --shape 8,8" "memory --parameters 7e9" "kv --model gemma-2b" "decode --model gemma-2b"; do
  read -ra words <<<"$question"
  status 0 "$RAFTER" roofline "${words[@]}" --on tpu-v5p --json
  for key in flops bytes intensity seconds bound critical; do says "\"$key\":" out; done
done

refuses 2 'unknown operation .matmull. .did you mean matmul' "$RAFTER" roofline matmull
says 'one of matmul, einsum'
refuses 2 'm is out of range' "$RAFTER" roofline matmul --m 0
refuses 2 'is not an einsum' "$RAFTER" roofline einsum '->'
refuses 2 'hint: choose another machine' "$RAFTER" roofline transfer --bytes 1GiB --link vmem --on a5000
if [ -e /dev/full ]; then
  for words in help --version 'plan --help'; do
    # shellcheck disable=SC2086
    "$RAFTER" $words >/dev/full 2>err && fail "$words: a full disk gives exit status 0"
    says 'cannot write the output'
  done
fi
[ ! -e /dev/full ] || { "$RAFTER" roofline matmul >/dev/full 2>err && fail "a full disk gives exit status 0"; [ "$(head -1 err)" = "rafter: cannot write the output" ] && [ "$(wc -l <err)" = 2 ] || fail "a full disk: $(head -c 200 err)"; }
refuses 2 'm: ' "$RAFTER" roofline matmul --m -5
refuses 2 'd' "$RAFTER" roofline matmul --dtype f99
refuses 2 'takes no arguments' "$RAFTER" roofline matmul 5 && says 'hint: write options as --name'
refuses 2 'takes no arguments' "$RAFTER" roofline kv llama3-8b && says 'hint: write --model llama3-8b'
refuses 2 'needs --axes' "$RAFTER" roofline allreduce --bytes 1GB --on tpu-v5e
refuses 2 'needs --bytes' "$RAFTER" roofline allreduce --on tpu-v5e:4x4
refuses 2 'has no axis z' "$RAFTER" roofline allreduce --bytes 1 --on tpu-v5e:4x4 --axes z
refuses 2 'no extent' "$RAFTER" roofline allreduce --bytes 1 --on tpu-v5e --axes 4,,4
refuses 2 'no extent' "$RAFTER" roofline allreduce --bytes 1 --on tpu-v5e --axes 0
refuses 2 'joins at most 8' "$RAFTER" roofline allreduce --bytes 1 --on h100-sxm --axes 12
# Over nodes, the network between them is the limit: 989e12 / 400e9, where NVLink alone gives 989e12
# / 450e9. Between two nodes, half of an array is sent.
status 0 "$RAFTER" roofline parallelism --strategy fsdp --on h100-sxm:64x8 --json &&
  holds out 'abs(d["critical"] - 989e12 / 400e9) < 1e-6'
for chips in 8 2x8; do status 0 "$RAFTER" roofline parallelism --strategy fsdp --on h100-sxm:$chips --json &&
  holds out 'abs(d["critical"] - 989e12 / 450e9) < 1e-6'; done
status 0 "$RAFTER" roofline parallelism --strategy fsdp --on b200:16x8 --json &&
  holds out 'abs(d["critical"] - 2.25e15 / 400e9) < 1e-6'
status 0 "$RAFTER" roofline parallelism --strategy fsdp+tp --on h100-sxm:64x8 --ff 28672 --tokens 1M --json &&
  holds out 'abs(d["critical"] / (989e12 / 400e9 * 989e12 / 450e9 / 28672) - 1) < 1e-9 and abs(d["optimal_fsdp"] / (1e6 / 28672 * 400 / 450 * 512) ** 0.5 - 1) < 1e-9'
status 0 "$RAFTER" roofline parallelism --strategy fsdp --on h100-sxm:64x8 --link nvlink --json &&
  holds out 'abs(d["critical"] - 989e12 / 450e9) < 1e-6' 'a link that is typed'
status 0 "$RAFTER" roofline memory --parameters 7e9 --on tpu-v5e:16x16 &&
  says 'parameters whose states fit +[0-9.]+ billion$' out
# The token table of an untied model is a lookup: no FLOPs, and a step reads only its tokens' rows. A
# tied table is the head. P of matrices: 32 blocks, and the head of 128256 x 4096.
MATRICES='(32 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336) + 128256 * 4096)'
status 0 "$RAFTER" roofline cost --model llama3-8b --tokens 1M --on h100-sxm --json &&
  holds out "d['flops'] == 6e6 * $MATRICES" 'a lookup has no FLOPs'
status 0 "$RAFTER" roofline decode --model llama3-8b --dtype bf16 --batch 4 --on h100-sxm --json &&
  holds out "d['flops'] == 8 * $MATRICES and d['weight_bytes'] == 2 * 8030261248" &&
  holds out "abs(d['load_seconds'] * 3.35e12 - 2 * ($MATRICES + 65 * 4096)) < 1e3" 'reads no table'
status 0 "$RAFTER" roofline cost --model gpt2 --tokens 1M --on h100-sxm --json &&
  holds out "d['flops'] == 6e6 * (12 * 12 * 768 ** 2 + 50257 * 768)" 'a tied table counts once'
status 0 "$RAFTER" roofline cost --model llama3-8b --parameters 8e9 --tokens 1M --on h100-sxm --json &&
  holds out "d['flops'] == 6e6 * 8e9" 'given parameters count as they are'
# Without --seq, the cost has no attention, so it has no default length.
status 0 "$RAFTER" roofline cost --model llama3-8b --tokens 1M --on h100-sxm &&
  says 'without the FLOPs of attention' out &&
  { ! grep -q 'default sizes' out || fail 'a size that is not used is called a default'; }
# GPUs are nodes x chips per node, as Slurm, torchrun and NCCL count.
status 0 "$RAFTER" roofline allreduce --bytes 16GB --on h100-sxm:2x8 --json && cp out two_of_eight &&
  status 0 "$RAFTER" roofline allreduce --bytes 16GB --on h100-sxm:16 --json &&
  holds out 'd["seconds"] == json.load(open("two_of_eight"))["seconds"]' 'h100-sxm:2x8 is h100-sxm:16'
status 0 "$RAFTER" roofline allreduce --bytes 16GB --on h100-sxm:8x2 &&
  says 'notice: h100-sxm is planned with 2 chips per node'
status 0 "$RAFTER" roofline allreduce --bytes 16GB --on h100-sxm --axes 8,2 --json && cp out axes &&
  status 0 "$RAFTER" roofline allreduce --bytes 16GB --on h100-sxm:8x2 --json &&
  holds out 'd["seconds"] == json.load(open("axes"))["seconds"]' '--axes: nodes, chips per node'
refuses 2 'axes within 16x16, got 32' "$RAFTER" roofline allgather --bytes 1GB --axes 32 --on tpu-v5e
refuses 2 'expected at most 2, got 3' "$RAFTER" roofline allgather --bytes 1GB --axes 4,4,4 --on tpu-v5e
refuses 2 'does not fit a pod' "$RAFTER" roofline allreduce --bytes 1 --on tpu-v5e:2x64
refuses 2 'no such edition' "$RAFTER" roofline matmul --on tpu-v5e@sbb
refuses 2 'has no known bandwidth for dcn' "$RAFTER" roofline transfer --bytes 1GB --link dcn --on l4
refuses 2 'no size for f' "$RAFTER" roofline einsum 'bd,df->bf' b=8,d=8
refuses 2 'no letter q' "$RAFTER" roofline einsum 'bd,df->bf' b=8,d=8,f=8,q=2
refuses 2 'is not an einsum' "$RAFTER" roofline einsum 'bd,df' b=8,d=8,f=8
refuses 2 'a letter that no operand has' "$RAFTER" roofline einsum 'bd,df->bz' b=8
refuses 2 'is not a size' "$RAFTER" roofline einsum 'bd,df->bf' b=0,d=8,f=8
refuses 2 'whole groups of heads' "$RAFTER" roofline attention --heads 12 --kv-heads 5
refuses 2 'a key for every query' "$RAFTER" roofline attention --seq 1024 --context 512
refuses 2 'needs --ff' "$RAFTER" roofline parallelism --strategy tp --on tpu-v5p
refuses 2 'strategy does not know' "$RAFTER" roofline parallelism --strategy zp --on tpu-v5p
refuses 2 'number of network axes' "$RAFTER" roofline parallelism --axes 9 --on tpu-v5p
refuses 2 'needs --tokens' "$RAFTER" roofline cost --parameters 7e9 --on tpu-v5p
refuses 2 'needs --parameters' "$RAFTER" roofline cost --tokens 7e9 --on tpu-v5p
refuses 2 'needs parameters, activations or arrays' "$RAFTER" roofline memory --on tpu-v5p
refuses 2 'saved does not know' "$RAFTER" roofline memory --saved soul --width 8 --ff 8 --layers 1 --tokens 1 --on tpu-v5p
refuses 2 'does not divide' "$RAFTER" roofline array --shape 10,10 --mesh X=4 --spec X,-
refuses 2 'names the unknown axis' "$RAFTER" roofline array --shape 8,8 --mesh X=4 --spec Y,-
refuses 2 'no axis at' "$RAFTER" roofline array --shape 8,8 --mesh X=0 --spec X,-
refuses 2 'more copies than chips' "$RAFTER" roofline decode --parameters 7e9 --replicas 9 --on tpu-v5p
refuses 2 'more parameters than there are' "$RAFTER" roofline decode --parameters 7e9 --active-parameters 8e9 --on tpu-v5p
refuses 2 'more experts than there are' "$RAFTER" roofline matmul --m 64 --experts 4 --experts-used 8 --on tpu-v5p
refuses 2 'more experts than there are' "$RAFTER" roofline parallelism --strategy dp --experts 4 --experts-used 8 --on tpu-v5p
refuses 2 'more stages than layers .--degree: expected at most 8, got 16' "$RAFTER" roofline parallelism --strategy pp --layers 8 --ff 1024 --degree 16 --on tpu-v5p
# The widths of experts, all experts if all are gathered, and only the chosen experts if activations
# are exchanged.
status 0 "$RAFTER" roofline parallelism --strategy ep --model deepseek-v3 --degree 8 --on tpu-v5p@sb --json &&
  holds out 'abs(d["max_degree"] - 4 * 2048 / 2550) < 1e-9 and d["bound"] == "network"'
status 0 "$RAFTER" roofline parallelism --strategy ep --model deepseek2-16b --on tpu-v5p@sb --json &&
  holds out 'abs(d["max_degree"] - 4 * 1408 / 2550) < 1e-9'
status 0 "$RAFTER" roofline parallelism --strategy fsdp --model mixtral-8x7b --on tpu-v5p@sb --json &&
  holds out 'd["forward_bytes"] == 8 * 3 * 4096 * 14336 * 2'
status 0 "$RAFTER" roofline parallelism --strategy fsdp --model deepseek-v3 --on tpu-v5p@sb --json &&
  holds out 'd["forward_bytes"] == 257 * 3 * 7168 * 2048 * 2 and d["backward_bytes"] == 2 * d["forward_bytes"]'
status 0 "$RAFTER" roofline parallelism --strategy tp --model mixtral-8x7b --on tpu-v5p@sb --json &&
  holds out 'abs(d["max_degree"] - 2 * 14336 / 2550) < 1e-9'
status 0 "$RAFTER" roofline cost --model llama3.1-405b --tokens 15.6T --chips 16384 --mfu 0.4 --on h100-sxm &&
  { says '3\.78e25 FLOP' out; says '293 M USD' out; says '26.5 M' out; }
# A GPU's share of the network out of its node: eight of them share 400 GB/s.
status 0 "$RAFTER" roofline transfer --bytes 1GB --link dcn --on h100-sxm --json &&
  holds out 'abs(d["seconds"] - 0.02) < 1e-12'
# Gate, up and down: one and a half times the arithmetic for the same activations, so one and a half
# times as many ways.
status 0 "$RAFTER" roofline parallelism --strategy tp --model gemma-7b --degree 12 --on tpu-v5p@sb --json &&
  holds out 'd["bound"] == "compute" and d["critical"] == d["max_degree_gated"] > 12 > d["max_degree"] and abs(d["min_ff"] / 24576 - 12 / d["critical"]) < 1e-9'
status 0 "$RAFTER" roofline parallelism --strategy tp --ff 24576 --degree 12 --on tpu-v5p@sb --json &&
  holds out 'd["bound"] == "network" and d["critical"] == d["max_degree"] < 12'
# Answers say what they assume: whose bytes, which FLOPs, and which MFU.
status 0 "$RAFTER" roofline allgather --bytes 16MiB --on tpu-v5e:4x4 &&
  { says 'each chip begins with a shard of +1.00 MiB' out; says 'bytes are those of the gathered array' out; }
status 0 "$RAFTER" roofline reducescatter --bytes 16MiB --on tpu-v5e:4x4 &&
  { says 'each chip ends with a shard of +1.00 MiB' out; says "bytes are those of one chip's input" out; }
status 0 "$RAFTER" roofline allreduce --bytes 16MiB --on tpu-v5e:4x4 &&
  says 'input, and of its result' out
status 0 "$RAFTER" roofline allgather --bytes 16MiB --on tpu-v5e:4x4 --json &&
  holds out 'd["shard_bytes"] == 2**20'
status 0 "$RAFTER" roofline cost --model gpt2 --tokens 1M --on h100-sxm &&
  { says 'training: 6 FLOPs per parameter and token' out; says 'assume an MFU of 100 %.*--mfu 0.4' out; }
status 0 "$RAFTER" roofline cost --model gpt2 --tokens 1M --forward --mfu 0.4 --on h100-sxm &&
  says 'a forward pass .generation, scoring.: 2 FLOPs per parameter' out &&
  says 'assume an MFU of 40 % .--mfu' out
status 0 "$RAFTER" roofline cost --model gpt2 --tokens 1M --seq 1024 --seconds 10 --on h100-sxm &&
  says 'training: 6 FLOPs' out && { ! grep -q 'assume an MFU' out || fail 'it assumes an MFU'; }
finish
