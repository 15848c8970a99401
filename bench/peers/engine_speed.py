"""Prefill and decode in OpenVINO GenAI (ov), CTranslate2 (ct2) or ONNX Runtime GenAI (ort), and the
KL divergence of the engine's next-token distributions from the exact ones. engine_models.py makes
the models."""

import argparse
import json
import os
import time

from common import pin, serve

p = argparse.ArgumentParser(description=__doc__)
p.add_argument("--engine", choices=["ov", "ct2", "ort"], required=True)
p.add_argument("--model", required=True, help="folder of engine_models.py")
p.add_argument("--bits", choices=["4", "8"], required=True)
p.add_argument("--test", choices=["prefill", "decode"], required=True)
p.add_argument("--tokens", type=int, required=True, help="of the prompt, or steps of decoding")
p.add_argument("--batch", type=int, default=1)
p.add_argument("--threads", type=int, default=2)
a = p.parse_args()
pin(a.threads)
import numpy

folder = f"{a.model}/{a.engine}-int{a.bits}"
PROMPT = a.tokens if a.test == "prefill" else 32
STEPS = 1 if a.test == "prefill" else a.tokens + 1  # the first new token comes from the prompt
with open(f"{a.model}/hf/config.json", encoding="utf-8") as f:
    vocabulary = json.load(f)["vocab_size"]
prompts = numpy.array(
    [
        [(i * 7919 + k * 131 + 13) % (vocabulary - 10) + 10 for i in range(PROMPT)]
        for k in range(a.batch)
    ]
)
clock = time.perf_counter


class OpenVINO:
    """Its pipeline with paged attention."""

    def __init__(self):
        import openvino
        import openvino_genai as genai

        self.ov, self.version = openvino, openvino.__version__.split("-")[0]
        self.config = dict(INFERENCE_NUM_THREADS=a.threads, PERFORMANCE_HINT="LATENCY")
        rule = "default execution"
        if os.environ.get("ONEDNN_MAX_CPU_ISA") == "AVX2":
            # As on a CPU without more: held to AVX2, its defaults for wider CPUs do not run.
            self.config.update(INFERENCE_PRECISION_HINT="f32", DYNAMIC_QUANTIZATION_GROUP_SIZE="0")
            rule = "activations f32"
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size, scheduler.max_num_batched_tokens, scheduler.enable_prefix_caching = (
            2,
            4096,
            False,
        )
        self.setting = f"weights int{a.bits}, {rule}"
        self.pipe = genai.ContinuousBatchingPipeline(
            folder, genai.Tokenizer(folder), scheduler, "CPU", **self.config
        )
        self.options = genai.GenerationConfig()
        self.options.max_new_tokens, self.options.ignore_eos, self.options.do_sample = (
            STEPS,
            True,
            False,
        )

    def generate(self):
        start = clock()
        handles = []  # a request ends when its handle is dropped
        for i, row in enumerate(prompts):
            ids = self.ov.Tensor(numpy.ascontiguousarray(row[None], dtype=numpy.int64))
            handles.append(self.pipe.add_request(i, ids, self.options))
        self.pipe.step()
        first, steps = clock(), 1
        while self.pipe.has_non_finished_requests():
            self.pipe.step()
            steps += 1
        if steps not in (STEPS, STEPS + 1):
            raise SystemExit(f"OpenVINO took {steps} steps for {STEPS} tokens")
        return first - start, clock() - first

    def logits(self, ids):
        request = (
            self.ov.Core()
            .compile_model(f"{folder}/openvino_model.xml", "CPU", self.config)
            .create_infer_request()
        )
        feeds = dict(
            input_ids=ids[None],
            attention_mask=numpy.ones((1, len(ids)), numpy.int64),
            position_ids=numpy.arange(len(ids))[None],
            beam_idx=numpy.zeros(1, numpy.int32),
        )
        names = {n for i in request.model_inputs for n in i.names}
        return request.infer({k: v for k, v in feeds.items() if k in names})["logits"][0]


class CTranslate2:
    def __init__(self):
        import ctranslate2

        self.ct2, self.version, self.setting = (
            ctranslate2,
            ctranslate2.__version__,
            "weights int8, activations int8 with one scale for a token",
        )
        self.generator = ctranslate2.Generator(
            folder, device="cpu", compute_type="int8", intra_threads=a.threads, inter_threads=1
        )
        self.words = [[f"t{i}" for i in row] for row in prompts]

    def run(self, steps):
        start = clock()
        done = self.generator.generate_batch(
            self.words,
            max_length=steps,
            min_length=steps,
            sampling_topk=1,
            beam_size=1,
            include_prompt_in_result=False,
            max_batch_size=a.batch,
        )
        if len(done[0].sequences[0]) != steps:
            raise SystemExit("CTranslate2 ended an answer early")
        return clock() - start

    def generate(self):
        first = self.run(1)
        return first, self.run(STEPS) - first if STEPS > 1 else 0

    def logits(self, ids):
        return numpy.array(
            self.generator.forward_batch([[f"t{i}" for i in ids]], return_log_probs=False).to(
                self.ct2.DataType.float32
            )
        )[0]


class ONNXRuntime:
    def __init__(self):
        import onnxruntime_genai as genai

        self.genai, self.version, self.setting = (
            genai,
            genai.__version__,
            f"weights int{a.bits}, accuracy level 4: activations of 8 bits",
        )
        config = genai.Config(folder)
        config.overlay(
            json.dumps(
                {
                    "model": {
                        "decoder": {
                            "session_options": {
                                "intra_op_num_threads": a.threads,
                                "inter_op_num_threads": 1,
                            }
                        }
                    }
                }
            )
        )
        self.model = genai.Model(config)

    def start(self, ids, length):
        options = self.genai.GeneratorParams(self.model)
        options.set_search_options(
            max_length=length, min_length=length, batch_size=len(ids), do_sample=False
        )
        generator = self.genai.Generator(self.model, options)
        generator.append_tokens(ids.astype(numpy.int32))
        return generator

    def generate(self):
        start = clock()
        generator = self.start(prompts, PROMPT + STEPS)
        generator.generate_next_token()
        first = clock()
        for _ in range(STEPS - 1):
            generator.generate_next_token()
        return first - start, clock() - first

    def logits(self, ids):
        return self.start(ids[None], len(ids) + 1).get_output("logits")[0]


def divergence(engine):
    """Mean and maximum KL divergence from the exact distributions, in nats, over the text."""
    exact = numpy.load(f"{a.model}/hf/exact.npz")
    ids, want = exact["ids"].astype(numpy.int64), exact["logprobs"].astype(numpy.float64)
    got = numpy.asarray(engine.logits(ids), dtype=numpy.float64)
    want = want[-len(got) :]  # an engine may give only the last positions
    got -= got.max(-1, keepdims=True)
    got -= numpy.log(numpy.exp(got).sum(-1, keepdims=True))
    each = (numpy.exp(want) * (want - got)).sum(-1)
    return dict(mean=float(each.mean()), most=float(each.max()), positions=len(each))


engine = {"ov": OpenVINO, "ct2": CTranslate2, "ort": ONNXRuntime}[a.engine]()
try:
    kl = divergence(engine)
except Exception as why:  # the speed is measured without it
    kl = dict(missing=f"{type(why).__name__}: {why}"[:200])
serve(
    dict(tool=a.engine, version=engine.version, setting=engine.setting, kl=kl),
    lambda: engine.generate()[a.test == "decode"],
)
