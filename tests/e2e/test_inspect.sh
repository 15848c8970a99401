#!/usr/bin/env bash
# inspect on various files, tokenize in both directions, doctor, help, man page, completion,
# roofline figures.
. "$(dirname "$0")/lib.sh"
text book.txt 9000
status 0 "$RAFTER" train "$TINY" "${QUICK[@]}" --data book.txt --steps 2 --out run
status 0 "$RAFTER" tokenize "$TINY" --input book.txt --output book.shard
see() { # see PATTERN PATH: expects the pattern in the text output, and exactly one JSON object with --json
  status 0 "$RAFTER" inspect "$2" && says "$1" out
  status 0 "$RAFTER" inspect "$2" --json && { [ "$(wc -l <out)" = 1 ] && holds out 'd["command"] == "inspect"' || fail "inspect $2 --json is not one object"; }
}
see '26368' run/checkpoint-00000002
see 'complete' run/checkpoint-00000002
see 'wte.weight' run/checkpoint-00000002/model.safetensors
see '56 tensors' run/checkpoint-00000002/optimizer.safetensors
see 'checkpoint-00000002' run
see '^2 steps, loss [0-9.]+, .*[0-9,]+ tokens/s; .*B in its folder' run
status 0 "$RAFTER" export run model.gguf --format gguf && see '^26,368 parameters, .* f32' model.gguf
see '9000 tokens' book.shard
see 'peak_bytes|JSON' run/plan.json
see 'options' run/run.json
see '124.*parameters|124439808' gpt2
see ': gpt, ' "$TINY"
see 'tensors' "$DATA/goldens/gpt2"
rm -r run/checkpoint-00000002/DONE && status 0 "$RAFTER" inspect run/checkpoint-00000002 &&
  says 'INCOMPLETE' out
head -c 5000 /dev/urandom >noise; cp noise noise.safetensors; cp noise noise.shard; cp noise noise.json; : >empty.safetensors; mkdir bare
head -c 300 "$DATA/goldens/gpt2/model.safetensors" >cut.safetensors
for file in noise.safetensors noise.shard noise.json empty.safetensors cut.safetensors bare nothere.safetensors nothere.json; do
  refuses 1 "$file" "$RAFTER" inspect $file
done
for file in noise nothere book.txt; do
  "$RAFTER" inspect $file >out 2>err; got=$?
  [ $got = 1 ] || [ $got = 2 ] || fail "inspect $file exits $got"
  says "$file"; says '^hint: '
done
refuses 2 'FILE' "$RAFTER" inspect

# tokenize
status 0 "$RAFTER" tokenize "$TINY" --text 'Añb' && { [ "$(cat out)" = 65,195,177,98 ] || fail "tokenize prints $(cat out)"; }
status 0 "$RAFTER" tokenize "$TINY" --text 'Ab' --json &&
  holds out 'd["tokens"] == [65, 98] and d["pieces"] == ["A", "b"]'
status 0 "$RAFTER" tokenize "$TINY" --decode 65,195,177,98 && { [ "$(cat out)" = 'Añb' ] || fail "decode prints $(cat out)"; }
refuses 2 '256|range' "$RAFTER" tokenize "$TINY" --decode 65,70000
refuses 1 'nothere' "$RAFTER" tokenize "$TINY" --input nothere
refuses 1 'nothere' "$RAFTER" tokenize "$TINY" --input book.txt --output nothere/x.shard
refuses 2 'text|input' "$RAFTER" tokenize "$TINY"
status 0 "$RAFTER" tokenize "$TINY" --input book.txt --json &&
  holds out 'bytes(d["tokens"]) == open("book.txt", "rb").read()' 'tokens of a text are its bytes'
python3 -c '
import struct
b = open("book.shard", "rb").read()
magic, size, vocab, tokens, documents = struct.unpack("<8sIIQQ", b[:32])
assert (magic, size, vocab, tokens, documents) == (b"rafterT1", 2, 256, 9000, 0), (magic, size, vocab, tokens, documents)
assert bytes(struct.unpack("<9000H", b[64:64 + 18000])) == open("book.txt", "rb").read()' || fail 'the shard is not as docs/formats.md describes'

# roofline: figures calculated from data sheets.
at() { "$RAFTER" roofline "${@:3}" --json | python3 -c "
import json, sys
d = json.load(sys.stdin); v = eval(sys.argv[1])
sys.exit(0 if v is True or v is not False and abs(v / float(sys.argv[2]) - 1) <= 0.01 else print(v) or 1)" "$1" "$2" || fail "roofline ${*:3}: $1 is not $2"; }
at 'd["critical_intensity"]' 240.2 matmul --m 512 --k 4096 --n 4096 --on tpu-v5e
at 'd["flops"]' 17179869184 matmul --m 512 --k 4096 --n 4096 --on tpu-v5e
at 'd["bytes"]' $((2 * (512 * 4096 * 2 + 4096 * 4096))) matmul --m 512 --k 4096 --n 4096 --on tpu-v5e
at 'd["seconds"]' $(python3 -c 'print(2*512*4096*4096/1.97e14)') matmul --m 512 --k 4096 --n 4096 --on tpu-v5e
at 'd["bound"] == "compute"' 1 matmul --m 512 --k 4096 --n 4096 --on tpu-v5e
at 'd["bound"] == "memory"' 1 matmul --m 128 --k 4096 --n 4096 --on tpu-v5e
at 'd["critical_m"]' 240.2 matmul --m 1 --k 4000000 --n 4000000 --on tpu-v5e                     # small batch: rows from which it is compute bound
at 'd["critical_m"]' 120.1 matmul --m 1 --k 4000000 --n 4000000 --weight-dtype i8 --on tpu-v5e   # int8 weights, bf16 arithmetic
at 'd["critical_intensity"]' 295.2 matmul --m 512 --k 4096 --n 4096 --on h100-sxm
at 'd["flops"]' $((4 * 1024 * 1025 / 2 * 64 * 16)) attention --seq 1024 --heads 16 --head-dim 64 --on a100-80g
at 'd["flops_full"]' $((4 * 1024 * 1024 * 64 * 16)) attention --seq 1024 --heads 16 --head-dim 64 --on a100-80g
at 'd["bound"] in ("compute", "memory")' 1 attention --seq 1024 --heads 16 --kv-heads 4 --head-dim 64 --window 256 --on a5000
at '{"flops", "bytes", "intensity", "seconds", "bound", "critical"} <= d.keys()' 1 attention --on a5000
refuses 2 'matmul' "$RAFTER" roofline matmull
refuses 2 'heads' "$RAFTER" roofline attention --heads 6 --kv-heads 4
status 0 "$RAFTER" roofline matmul --on a5000 && says 'bound' out

# doctor, help, man page, completion
status 0 "$RAFTER" doctor && says 'cores' out
status 0 "$RAFTER" doctor --json && { [ "$(wc -l <out)" = 1 ] && holds out 'isinstance(d, dict)' || fail 'doctor --json is not one object'; }
commands='plan train generate calibrate bench roofline inspect tokenize doctor quantize score chat eval pull'
commands+=' export report runs'
status 0 "$RAFTER" --help
for command in $commands; do
  says "^  $command " out
done
for command in $commands; do
  status 0 "$RAFTER" "$command" --help && { says '^usage: ' out; [ "$(awk '{ if (length($0) > m) m = length($0) } END { print m }' out)" -le 110 ] || fail "help of $command has lines over 110 columns"; }
  ! grep -qE '[0-9]\.[0-9]+e\+0[0-9]' out || fail "help of $command prints $(grep -oE '[0-9.]+e\+0[0-9]' out | head -1)"
  cp out one && status 0 "$RAFTER" help "$command" && same one out "help $command is $command --help"
  status 0 "$RAFTER" "$command" --help-all && says '^  --verbose ' out && cp out one
  status 0 "$RAFTER" help "$command" --all && same one out "help $command --all is $command --help-all"
done
status 0 "$RAFTER" --version && says '^rafter [0-9.]+ \(commit ' out
status 0 "$RAFTER" -V && says '^rafter [0-9.]+ ' out
status 0 "$RAFTER" plan -h && says '^usage: ' out

# Words of other programs: the hint names ours. Short forms.
meant() { local hint=$1; shift; refuses 2 '.' "$RAFTER" "$@" && says "did you mean .*$hint"; }
meant temperature generate gpt2 --temp 1
for said in "n-predict max-tokens generate" "ctx-size seq generate" "batch-size batch train" \
  "learning-rate lr train" "learning_rate lr train" "seq-len seq plan" "max-seq-len seq train" \
  "grad-accum accumulate plan" "gradient-accumulation-steps accumulate train" "tp mesh.tensor=N plan" \
  "tensor-parallel-size mesh.tensor=N plan" "max-num-seqs batch plan" "context seq plan" \
  "gpus on.MACHINE:N plan" "prompt text score"; do
  read -r option hint command <<<"$said"
  meant "--$hint" "$command" gpt2 "--$option" 4
done
meant 'tensor=4' plan gpt2 --mesh tp=4,dp=2
meant 'data=2' plan gpt2 --mesh dp=2
for said in "bfloat16 bf16" "fp16 bf16" "half bf16" "float32 f32"; do
  meant "'${said#* }'" plan gpt2 --dtype "${said% *}"
done
for said in "h100 h100-sxm" "H100 h100-sxm" "A5000 a5000" "v5e-8 tpu-v5e:8" "v5litepod-8 tpu-v5e:8" "tpu-v5e-16 tpu-v5e:16" \
  "v5p-8 tpu-v5p:4" "trillium tpu-v6e"; do
  meant "${said#* }\\?" plan gpt2 --on "${said% *}"
  status 0 "$RAFTER" plan gpt2 --on "${said#* }" --batch 16
done
for said in "meta-llama/Llama-3.1-8B llama3.1-8b" "meta-llama/Meta-Llama-3-70B-Instruct llama3-70b" \
  "google/gemma-3-4b-it gemma3-4b" "google/gemma-2b gemma-2b" "google/gemma-2-9b gemma2-9b" \
  "openai-community/gpt2-xl gpt2-xl" "mistralai/Mixtral-8x7B-v0.1 mixtral-8x7b" \
  "meta-llama/Llama-2-7b-hf llama2-7b"; do
  meant "preset ${said#* }\\?" plan "${said% *}"
done
status 0 "$RAFTER" plan -m gpt2-medium --on a5000 --json &&
  holds out 'd["model"]["name"] == "gpt2-medium"' '-m is MODEL'
# The path of a config.json is its folder.
for name in llama llama/config.json; do
  status 0 "$RAFTER" plan "$DATA/goldens/$name" --json &&
    ask out 'd["digest"], d["model"]["name"]' >"said-${name//\//-}"
done
same said-llama said-llama-config.json 'a model by its config.json'
(cd "$DATA/goldens/llama" && "$RAFTER" plan config.json) >out 2>err ||
  fail "config.json in its folder: $(cat err)"
refuses 2 "no model at 'no/config.json'" "$RAFTER" plan no/config.json
refuses 2 "no model at 'no/where'" "$RAFTER" eval -m no/where perplexity --data x
refuses 2 '.--prompt and --tokens' "$RAFTER" generate -m gpt2 -p text -n 3 --tokens 1
refuses 2 '-m needs a value' "$RAFTER" plan -m
refuses 2 '-m is given twice' "$RAFTER" plan -m gpt2 -m gpt2
refuses 2 'max-tokens is given twice' "$RAFTER" generate gpt2 -n 3 --max-tokens 4
refuses 2 "unknown option '-p' .plan has no --prompt" "$RAFTER" plan gpt2 -p text &&
  says 'hint: short forms here: -n .--max-tokens., -m .MODEL.; rafter plan'
refuses 2 "unknown option '-p' .score has no --prompt" "$RAFTER" score gpt2 -p text &&
  says 'hint: did you mean --text. short forms'
# A choice that another option of the same heading has.
refuses 2 "dtype does not know 'int8'" "$RAFTER" generate gpt2 --dtype int8 &&
  says '^hint: one of f32.bf16; did you mean --weights int8, --kv-dtype int8.$'
refuses 2 "'tpu-v6e:2x4' is a machine, not a model" "$RAFTER" plan gpt2 --compare tpu-v6e:2x4 &&
  says '^hint: write on=tpu-v6e:2x4$'
refuses 2 'stablehlo is an option of rafter plan' "$RAFTER" export gpt2 --stablehlo programs
refuses 2 "unknown option '-x'$" "$RAFTER" generate gpt2 -x &&
  says 'here: -p .--prompt., -n .--max-tokens., -m'
meant weight-dtype roofline kv --weights int8
meant output tokenize gpt2 --out x
refuses 2 'what to do with' "$RAFTER" plan gpt2 -m gpt2

refuses 2 'trian.*train' "$RAFTER" trian
refuses 2 'nonsense' "$RAFTER" help nonsense
status 0 "$RAFTER" help --man && cp out rafter.1 &&
  { says '^\.TH' out; for command in $commands; do says "$command" out; done; }
if command -v man >/dev/null && man --version >/dev/null 2>&1; then
  MANWIDTH=100 man --warnings -l rafter.1 >page 2>warnings && { says 'TRAIN|train' page; [ ! -s warnings ] || fail "the man page warns: $(head -3 warnings | tr '\n' '|')"; }
fi
for shell in bash zsh fish; do
  status 0 "$RAFTER" help --completion $shell && cp out completion.$shell
  command -v $shell >/dev/null || continue
  $shell -n completion.$shell || fail "the completion for $shell does not parse"
done
refuses 2 'bash, zsh or fish, got ksh' "$RAFTER" help --completion ksh
# Every command and every option that --help-all lists is in every completion.
python3 - "$RAFTER" $commands <<'PY' || fail 'a completion lacks a command or an option'
import re, subprocess, sys
lacks = []
text = {shell: open("completion." + shell).read() for shell in ("bash", "zsh", "fish")}
for command in sys.argv[2:]:
    page = subprocess.run([sys.argv[1], command, "--help-all"], capture_output=True, text=True).stdout
    options = set(re.findall(r"^  --([a-z][a-z0-9-]*)", page, re.M))
    assert len(options) > 3, command
    bash = re.search(rf"^        {command}\) words='(.*)'", text["bash"], re.M).group(1).split()
    zsh = re.search(rf"^    {command}\) options=\((.*?)^    \) ;;", text["zsh"], re.M | re.S).group(1)
    zsh = ["--" + name for name in re.findall(r"^ +'\*?--([a-z0-9-]+)\[", zsh, re.M)]
    fish = re.findall(rf"'__rafter_command {command}' -l ([a-z0-9-]+)", text["fish"])
    for shell, there in ("bash", bash), ("zsh", zsh), ("fish", ["--" + name for name in fish]):
        lacks += [f"{shell}: {command} --{name}" for name in options if "--" + name not in there]
print(*lacks[:10], sep="\n")
sys.exit(bool(lacks))
PY
bash -c '. ./completion.bash; COMP_WORDS=(rafter tr); COMP_CWORD=1; COMP_LINE="rafter tr"; COMP_POINT=9; f=$(complete -p rafter | sed -E "s/.*-F ([^ ]+).*/\1/"); $f; echo "${COMPREPLY[@]}"' >out 2>&1
grep -qw train out || fail "completing 'rafter tr' gives '$(cat out)'"
finish
