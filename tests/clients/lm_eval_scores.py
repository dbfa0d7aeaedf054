"""lm-eval's scores of SmolLM2 on the tasks of `lm_eval_tasks`, by any of its kinds of models, sample by sample."""

import json
import os
import pathlib
import subprocess
import tempfile

TASKS = pathlib.Path(__file__).with_name("lm_eval_tasks")
REFERENCE = pathlib.Path(__file__).with_name("lm_eval.json")
NAMES = ("smol_chooses", "smol_rolls", "smol_goes_on")
# The largest difference of a sum of log-probabilities, as a part of it.
TOLERANCE = 0.005


def write_tokenizer(source: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """The vocabulary of a GGUF file of SmolLM2 as `transformers` reads it."""
    import gguf

    fields = gguf.GGUFReader(source).fields
    said = {name: fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "merges", "token_type")}
    special = [(number, said["tokens"][number]) for number, kind in enumerate(said["token_type"]) if kind == gguf.TokenType.CONTROL]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    bytewise = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None, "decoder": bytewise,
        "added_tokens": [{"id": number, "content": text, **flags} for number, text in special],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, bytewise]},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
            "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {text: number for number, text in enumerate(said["tokens"])}, "merges": said["merges"],
        },
    }))
    first = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **first}))
    return folder


def scores(python, kind: str, model_args: str, batch: int = 1, **environment) -> dict[str, list]:
    """For each task the answers of the model to its samples: numbers, whether a text is the likeliest, or texts."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "HF_HOME": folder, "HF_HUB_OFFLINE": "1", **environment}
        command = [python, "-m", "lm_eval", "run", "--model", kind, "--tasks", ",".join(NAMES), "--include_path", TASKS]
        command += ["--model_args", model_args, "--batch_size", str(batch), "--output_path", folder, "--log_samples"]
        ran = subprocess.run(command, cwd=TASKS, env=environment, capture_output=True, text=True, timeout=900)
        assert ran.returncode == 0, (ran.stdout + ran.stderr)[-3_000:]
        found = {}
        for name in NAMES:
            (samples,) = pathlib.Path(folder).rglob(f"samples_{name}_*.jsonl")
            lines = sorted(map(json.loads, samples.read_text().splitlines()), key=lambda line: line["doc_id"])
            found[name] = [line["resps"] for line in lines]
        return found
