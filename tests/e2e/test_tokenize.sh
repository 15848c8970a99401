#!/usr/bin/env bash
# tokenize with a model folder's own tokenizer, with only a tokenizer's file, and with invalid
# folders.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

mkdir model
cat >model/tokenizer.json <<'J'
{"added_tokens": [{"id": 6, "content": "<s>", "special": true, "normalized": false}],
 "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
 "decoder": {"type": "ByteLevel"},
 "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                    "special_tokens": {"<s>": {"id": "<s>", "ids": [6], "tokens": ["<s>"]}}},
 "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "Ġ": 3, "<": 4, "s": 5, ">": 7}, "merges": ["a b"]}}
J
printf 'ab ab' >text.txt

for model in model model/tokenizer.json; do
  status 0 "$RAFTER" tokenize $model --text 'ab a' --json &&
    holds out 'd["tokens"] == [6, 2, 3, 0] and d["pieces"] == ["<s>", "ab", " ", "a"]'
  status 0 "$RAFTER" tokenize $model --input text.txt --no-bos && { [ "$(cat out)" = 2,3,2 ] || fail "tokenize prints $(cat out)"; }
done
status 0 "$RAFTER" tokenize model --no-bos --text 'a<s>' && { [ "$(cat out)" = 0,6 ] || fail "a special token in the text gives $(cat out)"; }
status 0 "$RAFTER" tokenize model --no-bos --no-special --text 'a<s>' && { [ "$(cat out)" = 0,4,5,7 ] || fail "--no-special gives $(cat out)"; }
status 0 "$RAFTER" tokenize model --decode 6,2,3,0 && { [ "$(cat out)" = '<s>ab a' ] || fail "--decode gives $(cat out)"; }
status 0 "$RAFTER" tokenize model --no-special --decode 6,2,3,0 --json && holds out 'd["text"] == "ab a"'
status 0 "$RAFTER" tokenize model --input text.txt --output text.shard && [ -s text.shard ]
refuses 2 'below 8' "$RAFTER" tokenize model --decode 8
refuses 1 'no piece' "$RAFTER" tokenize model --text 'xyz'

# tokenizer_config.json names the special tokens. One that belongs to another tokenizer is noticed.
echo '{"eos_token": "<nowhere>", "model_max_length": 1000000000000000019884624838656}' >model/tokenizer_config.json
refuses 1 'eos_token' "$RAFTER" tokenize model --text a
rm model/tokenizer_config.json

sed -i 's/"ByteLevel", "add_prefix_space": false/"NewFashioned"/' model/tokenizer.json
refuses 1 'NewFashioned' "$RAFTER" tokenize model --text a
head -c 300 model/tokenizer.json >cut.json
refuses 1 'cut.json' "$RAFTER" tokenize cut.json --text a
: >empty.model
refuses 1 'empty.model' "$RAFTER" tokenize empty.model --text a

# --train: a new tokenizer, with which a model trains from scratch and generates.
text book.txt 20000
status 0 "$RAFTER" tokenize --train book.txt --vocab 400 --output bpe --json &&
  holds out '257 < d["vocab"] <= 400 and d["count"] < d["bytes"] / 2' && cp bpe/tokenizer.json first.json
status 0 "$RAFTER" tokenize --train book.txt --vocab 400 --output bpe &&
  same first.json bpe/tokenizer.json 'a second training'
head -c 2000 book.txt >part.txt
status 0 "$RAFTER" tokenize bpe --input part.txt --json &&
  ids=$(ask out '",".join(map(str, d["tokens"]))') &&
  status 0 "$RAFTER" tokenize bpe --decode "$ids" --json &&
  holds out 'd["text"] == open("part.txt").read()' 'the tokens decode to the text'
status 0 "$RAFTER" train gpt:layers=1,width=32,heads=2,ff=64,seq=32,vocab=8192 --tokenizer bpe \
  --data book.txt --batch 2 --steps 2 --threads 2 --val-every 0 --out scratch &&
  status 0 "$RAFTER" generate scratch --prompt 'unto them' --max-tokens 2 --json &&
  holds out 'd["prompt_tokens"] < 9'
printf 'ab' >short.txt
status 0 "$RAFTER" tokenize --train short.txt --vocab 300 --output short &&
  says 'notice: .*expected 300, got 257'
refuses 2 'output is missing' "$RAFTER" tokenize --train book.txt
cp book.txt mine.txt && ln -s mine.txt mine.link &&
  refuses 2 'would replace the input mine.txt' "$RAFTER" tokenize bpe --input mine.txt --output mine.link
mkdir mine && cp book.txt mine/tokenizer.json &&
  refuses 2 'would replace the input' "$RAFTER" tokenize --train mine/tokenizer.json --output mine
same book.txt mine.txt 'the input of tokenize' && same book.txt mine/tokenizer.json 'the text of --train'
refuses 2 'expected no MODEL' "$RAFTER" tokenize bpe --train book.txt --output other
refuses 2 '257 to' "$RAFTER" tokenize --train book.txt --vocab 256 --output other
refuses 1 'nothere' "$RAFTER" tokenize --train nothere.txt --output other
refuses 2 'needs MODEL' "$RAFTER" tokenize --text a

# A long line needs a few times its own memory, not that of a JSON value for each number.
python3 - "$RAFTER" "$TINY" <<'PY' || fail 'a long line needs too much memory'
import resource, subprocess, sys
bytes = 40_000_000
open("long.jsonl", "w").write('{"tokens":[' + "1," * (bytes // 2) + "2]}\n")
command = [*sys.argv[1:2], "tokenize", sys.argv[2], "--input", "long.jsonl", "--output", "long.shard"]
subprocess.run(command, check=True)
most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
sys.exit(f"{most / bytes:.1f} times its bytes" if most > 14 * bytes else 0)
PY
finish
