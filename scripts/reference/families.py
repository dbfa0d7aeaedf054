"""Makes the golden cases of the model families: tiny random models with the answers of `transformers`.

Run it in a throw-away environment, outside of the repository:

    python3 -m venv VENV && VENV/bin/pip install -r scripts/reference/requirements.txt
    VENV/bin/python scripts/reference/families.py [FAMILY[/CASE] ...] [--models DIR] [--gguf LLAMA_CPP]

Each case of family_cases.py becomes worker/candle/tests/families/FAMILY/CASE.json with these fields:

    family, case    the file's own name
    transformers    the version that answered
    config          the content of config.json as it lies beside the weights
    seed            the seed S of the weights
    tensors         [name, shape, mean, scale] of every stored tensor; ["u8"] follows where the tensor is of bytes
    prompts         four lists of token ids
    logits          the logits after the last token of each prompt
    greedy          the 12 best tokens that follow each prompt, every one computed from the whole text, without a cache
    margin          the smallest distance between the best and the second token in `greedy`
    router_margin   models with experts: the smallest distance between the last chosen expert and the first that is not

Weights are not stored. The rule that makes them is exact, so that a test repeats it:

    base  = fnv1a64(name) ^ (S * 0x9E3779B97F4A7C15)              in u64, with wrap-around
    z     = splitmix64_finaliser(base + (i + 1) * 0x9E3779B97F4A7C15)      for element i, in row-major order
    value = mean + scale * (2 * ((z >> 40) / 2^24) - 1)           in f32: product and sum are rounded one after the other
    byte  = mean + (((z >> 40) * scale) >> 24)                    for tensors of bytes, in whole numbers

--models also writes DIR/FAMILY/CASE with config.json and model.safetensors. --gguf converts the models with the converter of
a llama.cpp checkout: one case of each family to q8_0, beside its JSON file, and with --models all cases to f32, in DIR.
"""

import argparse
import contextlib
import json
import logging
import re
import shutil
import tempfile
from pathlib import Path

import numpy
import torch
import transformers
from family_cases import FAMILIES
from safetensors import safe_open
from safetensors.torch import save_file

OUT = Path(__file__).resolve().parents[2] / "worker" / "candle" / "tests" / "families"
GREEDY_TOKENS = 12
LEAST_MARGIN = 2e-3
LEAST_ROUTER_MARGIN = 1e-4
# A model that always repeats itself would agree with a wrong decoder too easily.
LEAST_DIFFERENT_TOKENS = 6
SEEDS = 60

GOLDEN_RATIO = 0x9E3779B97F4A7C15
MASK = 2**64 - 1


def fnv1a64(text):
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & MASK
    return value


def words(name, seed, count):
    """The `count` 24-bit numbers of a tensor."""
    base = fnv1a64(name) ^ (seed * GOLDEN_RATIO & MASK)
    with numpy.errstate(over="ignore"):
        z = numpy.uint64(base) + numpy.arange(1, count + 1, dtype=numpy.uint64) * numpy.uint64(GOLDEN_RATIO)
        z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return (z ^ (z >> numpy.uint64(31))) >> numpy.uint64(40)


def tensor_of(entry, seed):
    """The tensor that the rule makes of an entry of `tensors`."""
    name, shape, mean, scale, *kind = entry
    z = words(name, seed, int(numpy.prod(shape, dtype=numpy.int64)))
    if kind == ["u8"]:
        values = (mean + ((z * numpy.uint64(scale)) >> numpy.uint64(24)).astype(numpy.int64)).astype(numpy.uint8)
    else:
        units = z.astype(numpy.float32) / numpy.float32(2**24)
        values = numpy.float32(mean) + numpy.float32(scale) * (numpy.float32(2) * units - numpy.float32(1))
        assert values.dtype == numpy.float32
    return torch.from_numpy(values.reshape(shape).copy())


# The first pattern that is found in a tensor's name decides; `mean, scale` are fixed, a gain is for sqrt(3 / inputs).
RULES = (
    (r"(norm|layernorm|_ln)\d*\.bias$", dict(mean=0, scale=0.2)),
    (r"norm\w*(\.\d+)?\.weight$", dict(mean=1, scale=0.3)),
    (r"sinks$", dict(mean=0, scale=1)),
    (r"A_log$", dict(mean=0, scale=1)),
    (r"dt_bias$", dict(mean=-1, scale=1)),
    (r"(e_score_correction_bias|expert_bias)$", dict(mean=0, scale=0.2)),
    (r"mixer\.D$|mamba\.D$", dict(mean=1, scale=0.4)),
    (r"(layer_scalar|per_expert_scale|correct_output_scale|router\.scale)$", dict(mean=1, scale=0.3)),
    (r"bias$|_proj_bias$", dict(mean=0, scale=0.2)),
    (r"(embed_tokens|embeddings|embed_tokens_per_layer)\.weight$", dict(mean=0, scale=0.5)),
    (r"lm_head\.weight$", dict(gain=2)),
    (r"(\.gate|\.router|router\.layer|gate\.wg|router\.proj)\.weight$", dict(gain=3)),
    (r"[qk]_proj\.weight$|\.[qk]_[ab]_proj|qkv_proj", dict(gain=1.5)),
    (r"", dict(gain=1.2)),
)


def entry_of(name, shape, spec):
    """The entry of `tensors` for a stored tensor."""
    for pattern, (inputs_axis, rule) in spec["rules"].items():
        if re.search(pattern, name):
            break
    else:
        inputs_axis = None
        rule = next(rule for pattern, rule in RULES if re.search(pattern, name))
    if "kind" in rule:
        return [name, shape, rule["mean"], rule["scale"], rule["kind"]]
    if "gain" not in rule:
        mean = rule["mean"]
        if mean == 1 and "norm" in name and spec["zero_centred"] and re.search(spec["zero_centred"], name):
            mean = 0
        return [name, shape, mean, rule["scale"]]
    if inputs_axis is None:
        # Convolutions have one row of taps per output; all other matrices store their inputs last.
        inputs = numpy.prod(shape[1:], dtype=int) if "conv" in name or len(shape) > 3 else shape[-1]
    else:
        inputs = shape[inputs_axis]
    return [name, shape, 0, float(f"{rule['gain'] * (3 / max(int(inputs), 1)) ** 0.5:.4g}")]


def write_shell(folder, spec):
    """Writes config.json and a weight file with the hub's names; answers the entries of `tensors`."""
    config = transformers.AutoConfig.for_model(spec["model_type"], **spec["fields"])
    if spec["model"]:
        model = getattr(transformers, spec["model"])(config)
    else:
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder, max_shard_size="5GB")
    (folder / "generation_config.json").unlink(missing_ok=True)
    path = folder / "config.json"
    written = json.loads(path.read_text())
    for key in spec["drop"]:
        written.pop(key, None)
    for key, value in spec["write"].items():
        inner = written
        *outer, last = key.split(".")
        for part in outer:
            inner = inner[part]
        inner[last] = value
    path.write_text(json.dumps(written, indent=2, sort_keys=True) + "\n")
    with safe_open(folder / "model.safetensors", "pt") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}
    return spec["store"]([entry_of(name, shape, spec) for name, shape in sorted(shapes.items())])


def load(folder, spec, tensors):
    """The model as `transformers` loads it from the folder, after `tensors` became its weight file."""
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    model_class = getattr(transformers, spec["model"] or "AutoModelForCausalLM")
    experts = {} if spec["model"] else dict(experts_implementation="eager")
    model, report = model_class.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True, **experts
    )
    faults = {key: sorted(map(str, value)) for key, value in report.items() if value}
    if faults:
        raise SystemExit(f"{folder}: {faults}")
    return model.eval()


@contextlib.contextmanager
def watched_choices(gaps):
    """Notes in `gaps` how far the last choice of every top-k is from the first value that was not chosen."""
    real, real_method = torch.topk, torch.Tensor.topk

    def topk(values, k, dim=-1, **options):
        if k < values.shape[dim]:
            best = real(values.detach().float(), k + 1, dim=dim).values
            gaps.append((best.select(dim, k - 1) - best.select(dim, k)).min().item())
        return real(values, k, dim=dim, **options)

    torch.topk = torch.Tensor.topk = topk
    try:
        yield
    finally:
        torch.topk, torch.Tensor.topk = real, real_method


def answers_of(model, seed, spec):
    """The prompts and the answers of a model; none if a choice is too close."""
    generator = torch.Generator().manual_seed(seed)
    vocabulary = model.config.get_text_config().vocab_size
    prompts, logits, greedy, margins, gaps = [], [], [], [], []
    with torch.no_grad(), watched_choices(gaps):
        for length in spec["lengths"]:
            tokens = torch.randint(3, vocabulary, (1, length), generator=generator)
            prompts.append(tokens[0].tolist())
            for step in range(GREEDY_TOKENS):
                row = model(tokens, use_cache=False).logits[0, -1].float()
                if step == 0:
                    logits.append([float(f"{value:.7g}") for value in row.tolist()])
                best = torch.sort(row, descending=True)
                margins.append((best.values[0] - best.values[1]).item())
                if not margins[-1] > LEAST_MARGIN:
                    return None
                tokens = torch.cat([tokens, best.indices[:1].view(1, 1)], dim=1)
            greedy.append(tokens[0, length:].tolist())
    if gaps and min(gaps) < LEAST_ROUTER_MARGIN:
        return None
    if len({token for row in greedy for token in row}) < LEAST_DIFFERENT_TOKENS:
        return None
    answers = dict(prompts=prompts, logits=logits, greedy=greedy, margin=float(f"{min(margins):.4g}"))
    return answers | (dict(router_margin=float(f"{min(gaps):.4g}")) if gaps else {})


def make(family, case, spec, folder):
    """Writes CASE.json, and leaves config.json and the weights in `folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    entries = write_shell(folder, spec)
    for seed in range(1, SEEDS):
        stored = {entry[0]: tensor_of(entry, seed) for entry in entries}
        if spec["loaded"]:
            # transformers reads the floats; the folder keeps the stored form.
            with tempfile.TemporaryDirectory() as floats:
                shutil.copy(folder / "config.json", floats)
                text = json.loads((folder / "config.json").read_text())
                text.pop("quantization_config", None)
                (Path(floats) / "config.json").write_text(json.dumps(text))
                model = load(Path(floats), spec, spec["loaded"](stored))
            save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
        else:
            model = load(folder, spec, stored)
        answers = answers_of(model, seed, spec)
        if answers is not None:
            break
    else:
        raise SystemExit(f"{family}/{case}: no seed without near ties")
    config = json.loads((folder / "config.json").read_text())
    head = dict(family=family, case=case, transformers=transformers.__version__, config=config, seed=seed, tensors=entries)
    path = OUT / family / f"{case}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    # One line for each field, so that a changed answer shows which field it changed.
    fields = [f'"{key}":{json.dumps(value, separators=(",", ":"))}' for key, value in (head | answers).items()]
    path.write_text("{" + ",\n".join(fields) + "}\n")
    different = len({token for row in answers["greedy"] for token in row})
    about = f"seed {seed}, margin {answers['margin']}, router {answers.get('router_margin')}, {different} tokens"
    print(f"{family}/{case}: {about}, {path.stat().st_size} bytes, {len(entries)} tensors", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", metavar="FAMILY[/CASE]")
    parser.add_argument("--models", type=Path, metavar="DIR")
    parser.add_argument("--gguf", type=Path, metavar="LLAMA_CPP")
    arguments = parser.parse_args()
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    logging.disable(logging.WARNING)

    known = [(family, case) for family, cases in FAMILIES.items() for case in cases]
    chosen = [(f, c) for f, c in known if not arguments.names or {f, f"{f}/{c}"} & set(arguments.names)]
    unknown = set(arguments.names) - {f for f, _ in known} - {f"{f}/{c}" for f, c in known}
    if unknown:
        raise SystemExit(f"unknown: {sorted(unknown)}")
    with tempfile.TemporaryDirectory() as scratch:
        models = arguments.models or Path(scratch)
        for family, case in chosen:
            spec = FAMILIES[family][case]
            folder = models / family / case
            make(family, case, spec, folder)
            if not arguments.gguf:
                continue
            import family_gguf

            jobs = [("q8_0", OUT / family / f"{case}.gguf")] if spec["gguf"] else []
            jobs += [("f32", models / family / f"{case}.gguf")] if arguments.models else []
            for outtype, path in jobs:
                print(
                    f"  {family}/{case} {outtype}: {family_gguf.convert(arguments.gguf, folder, outtype, path)}", flush=True
                )


if __name__ == "__main__":
    main()
