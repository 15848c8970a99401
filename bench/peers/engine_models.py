"""engine_models.py RAFTER GGUF FOLDER ENGINE: converts a GGUF file for OpenVINO (ov), CTranslate2 (ct2)
or ONNX Runtime GenAI (ort), in 4 and 8 bits. CTranslate2 has 8 bits only. `hf` makes only the model
that the others are made from, and the exact distributions of the next token that `--exact` of
engine_speed.py compares with.

The weights are those of the GGUF file, dequantized: FOLDER/hf is what `rafter export` writes. Its
tokenizer is replaced by one whose word `tN` is token N, because every test gives token ids."""

import json
import os
import shutil
import subprocess
import sys

rafter, gguf, folder, engine = sys.argv[1:5]
source, POSITIONS = f"{folder}/hf", 128
TEXT = """A transformer reads a sequence of tokens and predicts the next token. Each layer has two parts.
The first part is attention, in which every position looks at the positions before it. The second part
is a small network that works on each position alone. Between the parts, the sum of all earlier results
is kept, so that no layer has to repeat what another layer found. The last layer gives one number for
each word of the vocabulary, and the largest number belongs to the most likely word. People train such
models on large collections of books, letters and programs, and then ask them questions about the
weather, history, mathematics or cooking. The answers are often useful, but they should be checked."""


def complete(name):
    """A folder counts as made only when it is complete."""
    return os.path.exists(f"{folder}/{name}")


def keep(name):
    os.replace(f"{folder}/{name}.part", f"{folder}/{name}")


def fresh(name):
    shutil.rmtree(f"{folder}/{name}.part", ignore_errors=True)
    return f"{folder}/{name}.part"


def words(count):
    """The ids of the text, or numbers if the file has no vocabulary."""
    said = subprocess.run(
        [rafter, "tokenize", gguf, "--text", TEXT, "--json", "--quiet"],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if said.returncode == 0:
        return json.loads(said.stdout)["tokens"][:POSITIONS]
    return [(i * 7919 + 13) % count for i in range(POSITIONS)]


def make_source():
    import numpy
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    part = fresh("hf")
    dtype = [] if "1.1b" not in folder else ["--dtype", "bf16"]
    subprocess.run([rafter, "export", gguf, part, "--quiet", *dtype], check=True, stdout=sys.stderr)
    for name in os.listdir(part):
        if name.startswith("tokenizer"):
            os.remove(f"{part}/{name}")
    with open(f"{part}/config.json", encoding="utf-8") as f:
        vocabulary = json.load(f)["vocab_size"]
    t = Tokenizer(models.WordLevel({f"t{i}": i for i in range(vocabulary)}, unk_token="t0"))
    t.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=t, bos_token="t1", eos_token="t2", unk_token="t0", pad_token="t2"
    ).save_pretrained(part)
    ids = words(vocabulary)
    model = AutoModelForCausalLM.from_pretrained(part, dtype=torch.float32).eval()
    with torch.inference_mode():
        exact = torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1).float()
    numpy.savez(f"{part}/exact.npz", ids=ids, logprobs=exact.numpy())
    keep("hf")


def make_ov():
    import nncf
    import openvino as ov
    from optimum.intel import OVModelForCausalLM

    if not complete("ov-f16"):
        part = fresh("ov-f16")
        model = OVModelForCausalLM.from_pretrained(
            source, export=True, compile=False, load_in_8bit=False, stateful=True
        )
        model.save_pretrained(part)
        subprocess.run(
            [
                f"{os.path.dirname(sys.executable)}/convert_tokenizer",
                source,
                "--with-detokenizer",
                "-o",
                part,
            ],
            check=False,
            stdout=sys.stderr,
            stderr=sys.stderr,
        )
        keep("ov-f16")
    kinds = {
        "ov-int8": dict(mode=nncf.CompressWeightsMode.INT8_ASYM),
        "ov-int4": dict(mode=nncf.CompressWeightsMode.INT4_SYM, group_size=128, ratio=1.0),
    }
    if json.load(open(f"{source}/config.json", encoding="utf-8"))["hidden_size"] % 128:
        kinds["ov-int4"]["group_size"] = 64
    for name, how in kinds.items():
        if not complete(name):
            part = fresh(name)
            shutil.copytree(
                f"{folder}/ov-f16", part, ignore=shutil.ignore_patterns("openvino_model.*")
            )
            ov.save_model(
                nncf.compress_weights(
                    ov.Core().read_model(f"{folder}/ov-f16/openvino_model.xml"), **how
                ),
                f"{part}/openvino_model.xml",
            )
            keep(name)


def make_ct2():
    import ctranslate2

    if not complete("ct2-int8"):
        ctranslate2.converters.TransformersConverter(source, low_cpu_mem_usage=True).convert(
            fresh("ct2-int8"), quantization="int8", force=True
        )
        keep("ct2-int8")


def make_ort():
    # The builder needs a newer transformers than OpenVINO's exporter allows (environment.sh).
    path = os.path.join(os.path.dirname(os.path.dirname(sys.executable)), "ort-builder")
    builder = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", source, "-e", "cpu"]
    for name, kind, block in (("ort-int4", "int4", 128), ("ort-int8", "int8", 32)):
        if not complete(name):
            words = ["-o", fresh(name), "-p", kind, "-c", f"{folder}/ort-cache"]
            # accuracy level 4: activations of 8 bits
            words += ["--extra_options", f"block_size={block}", "accuracy_level=4"]
            env = {**os.environ, "PYTHONPATH": path}
            subprocess.run([*builder, *words], check=True, stdout=sys.stderr, env=env)
            keep(name)


os.makedirs(folder, exist_ok=True)
if not complete("hf"):
    make_source()
{"hf": lambda: None, "ov": make_ov, "ct2": make_ct2, "ort": make_ort}[engine]()
