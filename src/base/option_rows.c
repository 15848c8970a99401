/* option_rows.c - the commands and every option they have: the only place where an option is named, typed, bounded and explained. */
#include "base/options.h"

/* Bits of the commands, in the order of RF_COMMAND_ROWS. */
enum {
  PLAN = 1,
  TRAIN = 2,
  GENERATE = 4,
  CALIBRATE = 8,
  BENCH = 16,
  ROOFLINE = 32,
  INSPECT = 64,
  TOKENIZE = 128,
  DOCTOR = 256,
  QUANTIZE = 512,
  SCORE = 1024,
  PULL = 2048,
  EVAL = 4096,
  CHAT = 8192,
  EXPORT = 16384
};
enum { ALL = 32767, MODELS = PLAN | TRAIN | GENERATE | BENCH | SCORE | EVAL | CHAT, STEPS = PLAN | TRAIN | BENCH };

// clang-format off
const rf_command RF_COMMAND_ROWS[] = {
  {"plan", "MODEL", 1, 1, "say whether a model fits, how fast it will run and what it costs, without running it"},
  {"train", "MODEL", 1, 1, "train a model as planned"},
  {"generate", "MODEL", 1, 1, "continue a text with a model"},
  {"calibrate", "", 0, 0, "measure this machine, for plans on it"},
  {"bench", "MODEL", 1, 1, "measure prefill, decoding and training beside their limits"},
  {"roofline", "matmul|attention", 1, 1, "ask one operation against one machine"},
  {"inspect", "FILE", 1, 1, "say what is in a model, plan, checkpoint or run"},
  {"tokenize", "MODEL", 1, 1, "turn text into tokens and back"},
  {"doctor", "", 0, 0, "say what this machine has"},
  {"quantize", "IN OUT", 2, 2, "write a model as a GGUF file with smaller weights"},
  {"score", "MODEL", 1, 1, "give the log-probability of every token of a text, and its perplexity"},
  {"pull", "hf:ORG/NAME[@REV]", 1, 1, "fetch a model's safetensors or GGUF, tokenizer and config files from the hub"},
  {"eval", "perplexity|choices|gsm8k MODEL", 2, 2, "measure a model on a task"},
  {"chat", "MODEL", 1, 1, "talk with a model; /help there lists what else it does"},
  {"export", "MODEL OUT", 2, 2, "write a model, or the newest checkpoint of a run, for other programs"},
};
const int RF_COMMAND_ROW_COUNT = sizeof RF_COMMAND_ROWS / sizeof RF_COMMAND_ROWS[0];

#define FLAG(name, commands, help) {name, RF_OPTION_FLAG, NULL, 0, 0, "false", NULL, help, commands, false, false}
#define CHOICE(name, choices, fallback, commands, help) {name, RF_OPTION_CHOICE, NULL, 0, 0, fallback, choices, help, commands, false, false}
#define NUMBER(name, type, unit, least, most, fallback, commands, help) {name, RF_OPTION_##type, unit, least, most, fallback, NULL, help, commands, false, false}
#define WORDS(name, type, unit, fallback, commands, help) {name, RF_OPTION_##type, unit, 0, 0, fallback, NULL, help, commands, false, false}

const rf_option RF_OPTION_ROWS[] = {
  /* the machine and how it is used */
  WORDS("on", TEXT, "MACHINE", "local", MODELS | ROOFLINE, "machine to plan for: local, a row of machines.json or a machine file"),
  CHOICE("backend", "auto|reference|cpu|null", "auto", MODELS, "which kernels run; null walks the plan and touches nothing"),
  NUMBER("threads", INT, NULL, 1, 1024, NULL, MODELS | CALIBRATE | QUANTIZE, "threads; unset: one per core"),
  CHOICE("cpu", "auto|base|avx2|avx512|avx512bf16", "auto", MODELS | CALIBRATE, "highest instruction set to use"),

  WORDS("mesh", TEXT, "AXIS=CHIPS,..", NULL, PLAN, "chips along data, fsdp, tensor, sequence, context, pipeline, expert, slice: data=2,fsdp=16,tensor=4"),
  NUMBER("zero", INT, NULL, 0, 3, NULL, PLAN, "what the fsdp axis (without one: data) splits: 1 the optimizer's states, 2 gradients too, 3 weights too; unset: 3 for fsdp, 0 for data"),

  CHOICE("collectives", "core|offload|none", "core", PLAN, "who moves what chips exchange: the core beside its work, an engine of its own, or the core instead of its work"),

  /* the job */
  CHOICE("job", "train|generate|prefill|score|rollout|serve|rl", "train", PLAN, "what is planned; rollout: samples of prompts that are all there; serve: requests that arrive; rl: rollout, reference and policy"),
  NUMBER("batch", INT, "SEQUENCES", 1, 1 << 20, "8", PLAN | TRAIN, "sequences of a step; of --job generate: sequences at once"),
  NUMBER("batch", INT, "SEQUENCES", 1, 1 << 20, "4", BENCH, "sequences of a training step"),
  NUMBER("batch", INT, "SEQUENCES", 1, 1 << 20, "1", ROOFLINE, "attention: sequences"),
  NUMBER("batch", INT, "SEQUENCES", 1, 1 << 20, NULL, SCORE, "walks take that many times --seq tokens; unset: about 1024 tokens"),
  NUMBER("batch", INT, "SEQUENCES", 1, 1 << 20, NULL, EVAL, "gsm8k: answers at once (unset: 8); else walks take that many of the longest text (unset: about 1024 tokens)"),
  NUMBER("batch", INT, "ANSWERS", 1, 1024, NULL, GENERATE, "answers that run at once; unset: 1, or up to 8 when several are asked for"),
  NUMBER("seq", TOKENS, NULL, 1, 1 << 24, NULL, MODELS, "tokens of a sequence; unset: as many as the model has positions"),
  NUMBER("seq", TOKENS, NULL, 1, 1 << 24, "1024", ROOFLINE, "attention: query tokens"),
  NUMBER("microbatch", INT, "SEQUENCES", 1, 1 << 20, NULL, STEPS, "sequences computed together; unset: batch / accumulate"),
  NUMBER("accumulate", INT, NULL, 1, 1 << 20, NULL, STEPS, "microbatches of a step; unset: batch / microbatch"),
  CHOICE("dtype", "f32|bf16", "f32", MODELS, "of weights and activations; bf16 keeps f32 master weights when training"),
  CHOICE("weights", "file|f32|bf16|int8|q4", "file", MODELS, "how matrices are held where nothing trains them: as a GGUF file has them (elsewhere as --dtype), or converted while they are loaded"),
  CHOICE("dtype", "f32|bf16|f16|f8_e4m3|f8_e5m2|i8", "bf16", ROOFLINE, "of the operands"),
  CHOICE("kv-dtype", "f32|bf16|int8", NULL, PLAN | GENERATE | BENCH | EVAL, "of the cache of keys and values; int8, and less than --dtype: approximate; unset: as --dtype"),
  NUMBER("prefill-chunk", TOKENS, NULL, 1, 1 << 20, "256", PLAN | GENERATE | BENCH | EVAL, "tokens of prompts that one walk takes"),
  CHOICE("softmax", "f32|bf16", "f32", MODELS, "precision of attention's exponentials"),
  CHOICE("remat", "none|mlp|attn|mlp+attn|block|auto", "none", STEPS, "what backward recomputes instead of keeping; auto: the least that fits"),
  {"fit", RF_OPTION_SIZE, "BYTES", 1 << 20, 0x1p60, NULL, NULL, "search the fastest settings that fit; without BYTES: the machine's memory", PLAN, true, false},
  CHOICE("program", "rafter|jax-scan|jax-unrolled", "rafter", PLAN, "whose program is sized"),
  FLAG("tensors", PLAN, "list every tensor"),
  FLAG("ops", PLAN | BENCH, "list every operation"),
  CHOICE("after", "build|adapt|differentiate|optimize|shard|fuse|remat", NULL, PLAN, "print the graph after this pass and stop"),
  NUMBER("tokens", COUNT, NULL, 1, 0x1p62, NULL, PLAN, "tokens to train on or generate, for time and cost"),
  NUMBER("budget", DURATION, NULL, 1e-6, 1e10, NULL, PLAN, "how far a time gets: tokens, steps and cost of 9h or 30d"),
  WORDS("sweep", SWEEP, "OPTION=LIST", NULL, PLAN | BENCH, "one row for each value, e.g. batch=1..256, dtype=f32,bf16, or of the model's shape: MODEL:layers=12,24"),
  WORDS("plot", PATH, "FILE", NULL, PLAN, "draw it as FILE.svg or FILE.png: of --sweep the rows, of --fit the frontier, else memory over the ops and the ops under the machine's roofs"),
  {"compare", RF_OPTION_TEXTS, "A [B]", 0, 0, NULL, NULL, "two plans side by side; A, B: a model, or options as dtype=bf16,batch=64; without B: MODEL as it stands, and A", PLAN, false, true},

  /* training */
  WORDS("data", TEXTS, "SOURCE", NULL, TRAIN, "text, .jsonl (text, tokens, messages, or prompt and completion) or .shard file, or random:seed=0; several with weights as FILE:WEIGHT; may be repeated"),
  NUMBER("steps", INT, NULL, 1, 1e12, "1000", TRAIN, "optimizer steps"),
  NUMBER("epochs", FLOAT, "TIMES", 0, 1e9, NULL, TRAIN, "go through the data so many times, in place of --steps"),
  NUMBER("lr", FLOAT, "RATE", 0, 100, "3e-4", TRAIN, "highest learning rate"),
  CHOICE("schedule", "constant|warmup-cosine|warmup-exponential|wsd", "warmup-cosine", TRAIN, "the learning rate over the steps"),
  NUMBER("warmup", INT, "STEPS", 0, 1e12, NULL, TRAIN, "steps of linear warm-up; unset: 5% of the steps"),
  NUMBER("decay", INT, "STEPS", 0, 1e12, NULL, TRAIN, "wsd: steps of the final decay; unset: 20% of the steps"),
  NUMBER("min-lr", FLOAT, "RATE", 0, 100, NULL, TRAIN, "learning rate at the end; unset: a tenth of the highest"),
  CHOICE("optimizer", "adamw|adam", "adamw", STEPS, "adamw decays matrices and tables; adam decays nothing"),
  NUMBER("beta1", FLOAT, NULL, 0, 0.999999, "0.9", STEPS, "optimizer: decay of the first moment"),
  NUMBER("beta2", FLOAT, NULL, 0, 0.9999999, "0.95", STEPS, "optimizer: decay of the second moment"),
  NUMBER("eps", FLOAT, NULL, 0, 1, "1e-8", STEPS, "optimizer: added to the root of the second moment"),
  NUMBER("weight-decay", FLOAT, NULL, 0, 10, "0.1", STEPS, "adamw: decay of matrices and tables"),
  NUMBER("clip", FLOAT, "NORM", 0, 1e9, "1", STEPS, "largest global gradient norm; 0: no clipping"),
  NUMBER("dropout", FLOAT, "P", 0, 0.99, NULL, STEPS, "probability of zeroing block outputs; unset: the model's own"),
  NUMBER("val-fraction", FLOAT, "PART", 0, 0.5, "0.05", TRAIN, "part of the data held out for validation"),
  NUMBER("val-every", INT, "STEPS", 0, 1e12, "100", TRAIN, "validate every so many steps; 0: never"),
  NUMBER("val-rows", INT, "ROWS", 1, 1e12, "64", TRAIN, "held out rows that a validation reads at most"),
  CHOICE("packing", "fit|none", "fit", TRAIN, "fit: several documents share a row; none: one document a row"),
  CHOICE("loss-on", "assistant|completion|all", "assistant", TRAIN | TOKENIZE,
         "what the loss counts of a conversation: every turn of the assistant, its last one (of prompt and completion: the completion), or all"),
  WORDS("fields", TEXT, "OURS=THEIRS", NULL, TRAIN | TOKENIZE, "what .jsonl rows call their fields, e.g. prompt=question,completion=answer"),
  WORDS("template", TEXT, "FILE", NULL, TRAIN | TOKENIZE, "chat template of conversations in .jsonl files; none: prompt and completion as they are; unset: the model's own"),
  WORDS("resume", PATH, "RUN", NULL, TRAIN, "continue a run from its last complete checkpoint"),
  NUMBER("save-every", INT, "STEPS", 0, 1e12, "0", TRAIN, "checkpoint every so many steps; 0: at the end only"),
  NUMBER("keep", INT, "N", 1, 1e6, "2", TRAIN, "checkpoints to keep"),
  NUMBER("max-seconds", DURATION, NULL, 0.001, 1e9, NULL, TRAIN, "save and end in this time"),
  FLAG("debug", TRAIN | GENERATE | SCORE | EVAL | CHAT, "poison dead memory, check guards, find the first operation that gives NaN"),

  WORDS("lora", TEXT, "rank=R,...", NULL, STEPS, "train adapters beside frozen weights: rank=16,alpha=32,targets=q,k,v,o,gate,up,down,dropout=0; targets also all or ~REGEX"),
  WORDS("adapter", PATH, "DIR", NULL, MODELS, "adapters of PEFT's files beside the weights; train goes on with them"),

  /* generating */
  WORDS("prompt", TEXT, "TEXT", NULL, GENERATE, "text to continue"),
  WORDS("template", PATH, "FILE", NULL, GENERATE | EVAL | CHAT, "chat template in place of the model's own"),
  FLAG("chat", GENERATE | EVAL, "the prompt is what a user says: put into the model's chat template"),
  WORDS("system", TEXT, "TEXT", NULL, GENERATE | EVAL | CHAT, "what the model is told before the conversation"),
  WORDS("tokens", LIST, "IDS", NULL, GENERATE, "token ids to continue, in place of a prompt"),
  WORDS("input", PATH, "FILE", NULL, GENERATE, "JSON Lines of prompts: \"prompt\", \"messages\" or \"tokens\", with \"id\", \"samples\", \"seed\" and options of their own"),
  WORDS("output", PATH, "FILE", NULL, GENERATE, "write the answers there as JSON Lines, in the order of --input"),
  NUMBER("samples", INT, "N", 1, 1 << 16, "1", GENERATE, "answers to each prompt, which is walked once"),
  NUMBER("max-tokens", TOKENS, NULL, 1, 1 << 24, "128", GENERATE, "tokens to generate at most"),
  NUMBER("samples", INT, "N", 1, 1 << 16, "1", PLAN, "rollout, serve, rl: answers to each prompt, which is walked once"),
  NUMBER("prompt-tokens", TOKENS, NULL, 1, 1 << 24, NULL, PLAN, "rollout, serve, rl: tokens of a prompt; unset: 512, or half of what the model has"),
  NUMBER("max-tokens", TOKENS, NULL, 1, 1 << 24, NULL, PLAN, "rollout, serve, rl: tokens of an answer; unset: 256, or half of what the model has"),
  NUMBER("shared-prefix", TOKENS, NULL, 0, 1 << 24, "0", PLAN, "rollout, serve, rl: first tokens that all prompts have in common"),
  NUMBER("requests", INT, "N", 1, 1 << 20, NULL, PLAN, "serve: requests that are simulated (unset: 512); rollout, rl: prompts (unset: as many as fill the slots)"),
  WORDS("rate", LIST, "PER SECOND", NULL, PLAN, "serve: requests a second, a simulation for each, e.g. 1..256; unset: 1"),
  WORDS("arrivals", PATH, "FILE", NULL, PLAN, "serve: when requests come and how long they are, in place of --rate: JSON Lines of at, prompt, answer, shared"),
  WORDS("prefill-on", TEXT, "MACHINE", NULL, PLAN, "serve: prompts are walked on another machine, whose cache goes over --kv-link"),
  NUMBER("kv-link", COUNT, "BYTES/S", 1, 1e18, NULL, PLAN, "serve: between the machines of --on and --prefill-on; unset: the data-centre network of --on"),
  NUMBER("max-tokens", TOKENS, NULL, 1, 1 << 24, "512", EVAL, "gsm8k: tokens of an answer at most"),
  NUMBER("max-tokens", TOKENS, NULL, 1, 1 << 24, NULL, CHAT, "tokens of an answer at most; unset: what the context holds"),
  NUMBER("temperature", FLOAT, NULL, 0, 100, "1", GENERATE, "0: always the likeliest token"),
  NUMBER("temperature", FLOAT, NULL, 0, 100, "0", EVAL, "gsm8k: 0: always the likeliest token"),
  NUMBER("temperature", FLOAT, NULL, 0, 100, "0.8", CHAT, "0: always the likeliest token"),
  NUMBER("top-k", INT, NULL, 0, 1 << 24, "0", GENERATE | EVAL | CHAT, "choose among the k likeliest tokens; 0: all"),
  NUMBER("top-p", FLOAT, NULL, 0, 1, "1", GENERATE | EVAL | CHAT, "choose among the likeliest tokens that make up this probability"),
  NUMBER("min-p", FLOAT, NULL, 0, 1, "0", GENERATE | EVAL | CHAT, "leave out tokens below this part of the likeliest one's probability"),
  WORDS("stop", TEXTS, "TEXT", NULL, GENERATE | CHAT, "end before this text; may be repeated"),
  FLAG("ignore-eos", GENERATE, "go on behind the end-of-text token"),
  NUMBER("min-tokens", TOKENS, NULL, 0, 1 << 24, "0", GENERATE, "tokens before the end-of-text token may come"),
  NUMBER("repetition-penalty", FLOAT, NULL, 0, 100, "1", GENERATE | EVAL | CHAT, "divides the logits of all tokens seen so far, prompt included; 1: not"),
  NUMBER("presence-penalty", FLOAT, NULL, -100, 100, "0", GENERATE, "taken from the logits of tokens that stand in the answer"),
  NUMBER("frequency-penalty", FLOAT, NULL, -100, 100, "0", GENERATE, "the same for each time they stand there"),
  WORDS("logit-bias", TEXTS, "ID=BIAS", NULL, GENERATE, "added to a token's logit; may be repeated"),
  NUMBER("top-logprobs", INT, "K", 0, 32, "0", GENERATE, "likeliest tokens given beside each one, with --json"),

  /* scoring */
  WORDS("text", TEXT, "TEXT", NULL, SCORE, "text to score"),
  WORDS("input", PATH, "FILE", NULL, SCORE, "what to score; .jsonl: rows with \"text\" or \"tokens\", and \"id\"; any other file: one text"),
  WORDS("output", PATH, "FILE", NULL, SCORE | EVAL, "write the rows there as JSON Lines"),
  NUMBER("top", INT, "K", 0, 64, "0", SCORE, "likeliest tokens given at every position"),
  WORDS("data", PATH, "FILE", NULL, EVAL, "perplexity: a text, or .jsonl rows with \"text\"; choices: rows with \"context\", \"choices\", \"answer\"; gsm8k: its own rows"),
  NUMBER("limit", INT, "N", 0, 1e12, "0", EVAL, "only the first so many rows, or windows of a text; 0: all"),
  NUMBER("shots", INT, "N", 0, 1000, NULL, EVAL, "gsm8k: worked examples in front; unset: 5, with --chat none"),
  WORDS("shots-from", PATH, "FILE", NULL, EVAL, "gsm8k: rows of the worked examples; unset: train.jsonl beside the data"),
  NUMBER("stride", TOKENS, NULL, 1, 1 << 24, NULL, EVAL, "perplexity: new tokens of a window; unset: all of it, so that windows stand side by side"),
  NUMBER("stride", TOKENS, NULL, 1, 1 << 24, NULL, SCORE, "new tokens of a window where a text is longer than --seq; the rest of it is what they follow"),

  /* measuring */
  WORDS("test", TEXT, "TESTS", "pp512,tg128,train", BENCH, "pp512: prefill; tg128, tg128@d4096: decode, at a depth; batch16: decode of so many answers at once; train; separated by commas"),
  NUMBER("reps", INT, NULL, 1, 10000, "3", BENCH, "repetitions of each test"),

  FLAG("quick", CALIBRATE, "a few seconds instead of most of a minute: coarser curves"),

  /* roofline */
  NUMBER("m", COUNT, NULL, 1, 1e12, "1024", ROOFLINE, "matmul (m,k) x (k,n): rows"),
  NUMBER("k", COUNT, NULL, 1, 1e12, "1024", ROOFLINE, "matmul: the axis that is summed"),
  NUMBER("n", COUNT, NULL, 1, 1e12, "1024", ROOFLINE, "matmul: columns"),
  CHOICE("weight-dtype", "f32|bf16|f16|f8_e4m3|f8_e5m2|i8", NULL, ROOFLINE, "matmul: of the (k,n) operand; unset: as --dtype"),
  NUMBER("heads", INT, NULL, 1, 4096, "16", ROOFLINE, "attention: query heads"),
  NUMBER("kv-heads", INT, NULL, 1, 4096, NULL, ROOFLINE, "attention: key and value heads; unset: as --heads"),
  NUMBER("head-dim", INT, NULL, 1, 4096, "64", ROOFLINE, "attention: width of a head"),
  NUMBER("window", TOKENS, NULL, 0, 1 << 24, "0", ROOFLINE, "attention: keys a query sees; 0: all"),

  /* tokens */
  WORDS("text", TEXT, "TEXT", NULL, TOKENIZE, "text to turn into tokens"),
  WORDS("input", PATH, "FILE", NULL, TOKENIZE, "file to turn into tokens"),
  WORDS("decode", LIST, "IDS", NULL, TOKENIZE, "token ids to turn into text"),
  FLAG("no-bos", TOKENIZE | SCORE, "without the tokens that the tokenizer itself puts around a text"),
  FLAG("no-special", TOKENIZE | SCORE, "special tokens spelled in the text are plain text; --decode leaves them out"),
  WORDS("output", PATH, "FILE", NULL, TOKENIZE, "write the tokens as a shard; of a .jsonl input its rows, with their loss masks"),

  /* weights */
  CHOICE("weights", "f32|f16|bf16|q8_0|q4_0|q4_1|q5_0|q5_1|q2_k|q3_k|q4_k|q5_k|q6_k", "q4_k", QUANTIZE, "how matrices are stored; norms and biases stay as they are"),

  /* fetching */
  WORDS("endpoint", TEXT, "URL", NULL, PULL, "the hub; unset: HF_ENDPOINT, else https://huggingface.co. HF_TOKEN is sent to it and to nobody else"),
  WORDS("include", TEXTS, "PATTERN", NULL, PULL, "only files whose path matches, e.g. '*Q4_K_M*'; may be repeated"),
  NUMBER("max-size", SIZE, "BYTES", 0, 0x1p60, NULL, PULL, "refuse a model that is larger in all"),
  NUMBER("retries", INT, NULL, 0, 100, "5", PULL, "tries in a row that bring nothing new before it gives up"),
  NUMBER("timeout", DURATION, NULL, 0.1, 3600, "30s", PULL, "without a byte for so long a connection counts as cut"),
  WORDS("out", PATH, "DIR", NULL, PULL, "folder of the model; unset: models/ORG/NAME"),

  /* exporting */
  WORDS("adapter", PATH, "DIR", NULL, EXPORT, "adapters of PEFT's files: written alone, or with --merge added to the weights"),
  FLAG("merge", EXPORT, "add the adapters to the weights they stand beside and write the whole model"),
  CHOICE("format", "safetensors|gguf", "safetensors", EXPORT, "safetensors: OUT is a folder as Hugging Face has it; gguf: OUT is a .gguf file"),
  CHOICE("dtype", "f32|bf16|f16", NULL, EXPORT, "of the values; unset: as all are stored, else f32"),
  WORDS("shard-size", SIZE, "BYTES", "5GB", EXPORT, "safetensors: more than this goes into several files with an index"),

  /* everywhere */
  NUMBER("seed", INT, NULL, 0, 0x1p62, "0", PLAN | TRAIN | GENERATE | BENCH | SCORE | EVAL | CHAT, "of every random number"),
  WORDS("out", PATH, "DIR", NULL, TRAIN | BENCH, "folder of the run; unset: runs/ID"),
  WORDS("out", PATH, "FILE", NULL, CALIBRATE, "where to write the machine file; unset: where --on local looks"),
  WORDS("config", PATH, "FILE", NULL, ALL, "JSON file of options, for example a run.json; what is typed wins over it"),
  FLAG("json", ALL, "exactly one JSON object on stdout, all else on stderr"),
  FLAG("quiet", ALL, "say less"),
  FLAG("verbose", ALL, "say more, and where errors come from"),
};
const int RF_OPTION_ROW_COUNT = sizeof RF_OPTION_ROWS / sizeof RF_OPTION_ROWS[0];
// clang-format on
