#!/usr/bin/env bash
# chat over a pipe: the first answer is that of generate --chat, earlier turns are not computed
# again, commands work, and a signal ends only the current answer.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
mkdir model && cp "$DATA/goldens/llama/config.json" "$DATA/goldens/llama/model.safetensors" model
python3 - <<'PY'
import json
vocab = [chr(c) for c in range(33, 127)] + ["\u0120", "\u010a"]
marks = ["<|im_start|>", "<|im_end|>"]
json.dump({"added_tokens": [{"id": len(vocab) + i, "content": m, "special": True, "normalized": False} for i, m in enumerate(marks)],
           "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False}, "decoder": {"type": "ByteLevel"},
           "model": {"type": "BPE", "vocab": {t: i for i, t in enumerate(vocab)}, "merges": []}}, open("model/tokenizer.json", "w"))
json.dump({"eos_token": "<|im_end|>"}, open("model/tokenizer_config.json", "w"))
open("model/chat_template.jinja", "w").write("{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
                                             "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
PY
CHAT=("$RAFTER" chat model --threads 2 --seq 512)

# An answer that ends without --chat: the last line names --chat. One token has no rate.
ENDS=("$RAFTER" generate model --threads 2 --prompt Hello --logit-bias 97=1000)
status 0 "${ENDS[@]}" && says '^1 token in [^:]*$' && says 'this model has a chat template; --chat'
for more in --chat '--ignore-eos --max-tokens 3'; do
  # shellcheck disable=SC2086
  status 0 "${ENDS[@]}" $more && { ! grep -q 'chat template' err || fail "$more: --chat is named"; }
done
status 0 "${ENDS[@]}" --ignore-eos --seq 9 &&
  says 'notice: prompt and answer fill the context of 9 tokens .--seq.$'

printf 'Hello\nand then?\n\n/save said.json\n/reset\nHello\n/system Be brief\nHello\n/nope\n/help\n/bye\nnever asked\n' >lines
status 0 "${CHAT[@]}" --temperature 0 --max-tokens 20 --json <lines && cp out turns && cp err words
status 0 "$RAFTER" generate model --threads 2 --chat --prompt Hello --max-tokens 20 --temperature 0 --json &&
  cp out once
status 0 "$RAFTER" generate model --threads 2 --chat --system 'Be brief' --prompt Hello --max-tokens 20 --temperature 0 --json &&
  cp out told
python3 - <<'PY' || fail "the conversation differs: $(cat turns)"
import json
turns, once, told, said = [json.loads(l) for l in open("turns")], json.load(open("once")), json.load(open("told")), json.load(open("said.json"))
assert [t["turn"] for t in turns] == [1, 2, 3, 4]
assert turns[0]["text"] == once["text"] == turns[2]["text"] and turns[0]["prompt_tokens"] == once["prompt_tokens"] and turns[0]["reused_tokens"] == 0
assert turns[3]["text"] == told["text"] and turns[3]["prompt_tokens"] == told["prompt_tokens"]
# The cache has all tokens of the answer except the last, which was chosen but never computed.
assert turns[1]["reused_tokens"] == turns[0]["prompt_tokens"] + turns[0]["completion_tokens"] - 1, turns[1]
assert turns[1]["tokens_per_second"] > 0 and turns[1]["predicted_tokens_per_second"] > 0 and turns[1]["finish_reason"] in ("stop", "length")
assert [m["role"] for m in said["messages"]] == ["user", "assistant"] * 2 and said["messages"][2]["content"] == "and then?" and said["messages"][1]["content"] == turns[0]["text"]
PY
printf '/exit\nnever asked\n' >lines_exit
status 0 "${CHAT[@]}" --json <lines_exit && { [ ! -s out ] || fail "/exit does not end the chat: $(cat out)"; }
printf '/quit\nnever asked\n' >lines_exit
status 0 "${CHAT[@]}" --json <lines_exit && { [ ! -s out ] || fail "/quit does not end the chat: $(cat out)"; }
says 'unknown command /nope' words && says '/stats' words
status 0 "${CHAT[@]}" --temperature 0 --max-tokens 20 --verbose <lines &&
  says '\[[0-9]+ new tokens read, [0-9]+ in the cache.*planned' out
python3 -c 'import json; [print(json.loads(l)["text"]) for l in open("turns")]' >texts
python3 - <<'PY' || fail 'the shown text is not the answer'
shown, at = open("out").read(), 0
for text in open("texts").read().split("\n"):
    at = shown.index(text, at) + len(text)
PY

# With the option for it, an answer continues after the mark that ends a turn.
echo Hello >line
for seed in 1 2 3 4 5 6 7 8; do
  status 0 "${CHAT[@]}" --temperature 100 --seed $seed --max-tokens 150 --json <line && cp out ends
  [ "$(ask ends 'd["finish_reason"]')" = stop ] && break
done
status 0 "${CHAT[@]}" --temperature 100 --seed $seed --max-tokens 150 --ignore-eos --json <line && holds out 'd["finish_reason"] == "length" and d["completion_tokens"] == 150' && python3 - <<'PY' || fail '--ignore-eos ends an answer, or changes its first tokens'
import json
ends, on = json.load(open("ends")), json.load(open("out"))
assert ends["finish_reason"] == "stop" and ends["completion_tokens"] < 150 and on["text"].startswith(ends["text"]), (ends, on)
PY

# A full context forgets the oldest turn. A line that is too long does not end the conversation.
for i in 1 2 3 4; do echo "line $i: $(printf 'x%.0s' $(seq 60))"; done >lines
printf 'y%.0s' $(seq 700) >>lines
printf '\nHi\n' >>lines
status 0 "$RAFTER" chat model --threads 2 --seq 256 --temperature 0 --max-tokens 20 --json <lines &&
  says 'the oldest turn is forgotten' && says 'longer than the context' && {
  [ "$(wc -l <out)" = 5 ] || fail "not all five lines are answered: $(cat out)"
}
# A signal ends the running answer, not the conversation. Between answers it ends nothing.
mkfifo pipe
"$RAFTER" chat model --threads 2 --seq 20000 --json <pipe >out 2>err &
chat=$!
exec 9>pipe
sleep 1 && kill -INT $chat
sleep 0.2 && echo Hello >&9
for _ in $(seq 100); do [ "$(stat -c %s err)" -gt 50 ] && break; sleep 0.05; done
kill -INT $chat
for _ in $(seq 200); do [ -s out ] && break; sleep 0.05; done
[ -s out ] || fail 'the answer did not end'
exec 9>&-
wait $chat || fail "the conversation ends with $?"
holds out 'd["finish_reason"] in ("interrupted", "stop") and d["completion_tokens"] > 1'

refuses 2 'null' "${CHAT[@]}" --backend null </dev/null
rm model/chat_template.jinja
refuses 1 'template none' "${CHAT[@]}" </dev/null
# A model without a template continues the plain text of the conversation.
printf 'Hello\nand then?\n' >lines
status 0 "${CHAT[@]}" --template none --temperature 0 --max-tokens 20 --json <lines && cp out turns
status 0 "$RAFTER" generate model --threads 2 --prompt Hello --max-tokens 20 --temperature 0 --json &&
  cp out once
RAFTER=$RAFTER python3 - <<'PY' || fail "a plain conversation differs: $(cat turns)"
import json, subprocess, os
first, second = [json.loads(l) for l in open("turns")]
once = json.load(open("once"))
assert first["text"] == once["text"] and first["prompt_tokens"] == once["prompt_tokens"]
both = "Hello" + first["text"] + "and then?"
command = [os.environ["RAFTER"], *"generate model --threads 2 --max-tokens 20 --temperature 0 --json".split()]
again = subprocess.run([*command, "--prompt", both], stdout=subprocess.PIPE, check=True)
assert json.loads(again.stdout)["text"] == second["text"]
PY
finish
