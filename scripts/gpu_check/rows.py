"""Every row of the table but those of `streaming`. New GPU work adds its row: a function with `@row`.

Each row is measured on its devices, "cpu" or "cuda:0", from top to bottom. Rows of one model follow each other, so that it is
loaded once.
"""

import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from . import ceiling, machine
from .models import Models
from .worker import Worker, Workers

CPU, GPU = "cpu", "cuda:0"
GIB = 1 << 30
# What a process is assumed to take for its context, as in protocol/src/device.rs.
GPU_CONTEXT = 536 << 20

# Exit codes of a worker: protocol/src/worker.rs.
OUT_OF_MEMORY, DEVICE_LOST = 71, 76

QUESTIONS = [
    "How do I start the coordinator?",
    "What is a lease?",
    "Where do models live?",
    "Why is my request waiting?",
    "How can I pin a model so that it stays loaded?",
    "Which port does it listen on?",
    "Can it run on a GPU?",
    "What happens when a worker dies?",
]

# The largest difference of log-probabilities of prompt tokens between the CPU, which always computes in f32, and the GPU,
# which computes in the stored type. A step of rounding is 2^-11 in f16 and 2^-8 in bf16, and errors add up over
# the layers.
TOLERANCE = {"F32": 1e-3, "F16": 0.05, "BF16": 0.4}


@dataclass
class Outcome:
    """The result of a row. `value` is for the table, `numbers` for the JSON; `ok` is false if a promise is missed."""

    value: str
    ok: bool = True
    numbers: dict = field(default_factory=dict)


@dataclass
class Row:
    name: str
    devices: tuple[str, ...]
    measure: "Callable[[Bench, str], Outcome]"


@dataclass
class Bench:
    """The programs, models and workers that rows measure."""

    workers: Workers
    models: Models
    gpu: machine.Gpu | None


ROWS: list[Row] = []


def row(name: str, *devices: str):
    def register(measure):
        ROWS.append(Row(name, devices, measure))
        return measure

    return register


# ---- start, and errors for missing parts


@row("no GPU visible: a clear error", CPU)
def says_what_is_missing(bench: Bench, device: str) -> Outcome:
    """The row runs on every machine: the GPUs are hidden from the worker."""
    bench.workers.stop()
    code, last = bench.workers.start(bench.models.guide, GPU, visible="-1").ended()
    return Outcome(f"exit {code}: {last}", code == DEVICE_LOST and "no NVIDIA driver" in last, {"exit": code})


@row("resident, larger than memory: refused", CPU, GPU)
def refuses_what_does_not_fit(bench: Bench, device: str) -> Outcome:
    bench.workers.stop()
    size = 2 * bench.gpu.memory if device == GPU else 4096 * GIB
    code, last = bench.workers.start(bench.models.too_big(size), device, "--residency", "resident").ended()
    return Outcome(f"exit {code}: {last}", code == OUT_OF_MEMORY, {"exit": code})


# ---- equal answers


def same_as_cpu(bench: Bench, dtype: str) -> Outcome:
    return same_as_cpu_of(bench, bench.models.guide_as(dtype), TOLERANCE[dtype], exact=dtype == "F32")


def same_as_cpu_of(bench: Bench, model: Path, tolerance: float, exact: bool = False) -> Outcome:
    on_cpu, on_gpu = (greedy(bench.workers.serving(model, device)) for device in (CPU, GPU))
    apart = max(abs(a - b) for one, other in zip(on_cpu, on_gpu) for a, b in zip(one.prompt, other.prompt))
    equal = sum(one.tokens == other.tokens for one, other in zip(on_cpu, on_gpu))
    ok = apart <= tolerance and (not exact or equal == len(QUESTIONS))
    value = f"{equal} of {len(QUESTIONS)} answers equal; prompt log-probabilities {apart:.2g} apart ({tolerance} allowed)"
    return Outcome(value, ok, {"equal_answers": equal, "answers": len(QUESTIONS), "logprob_difference": apart})


@row("guide f32: greedy tokens as on the CPU", GPU)
def same_in_f32(bench: Bench, device: str) -> Outcome:
    return same_as_cpu(bench, "F32")


@row("guide f16: greedy tokens as on the CPU", GPU)
def same_in_f16(bench: Bench, device: str) -> Outcome:
    return same_as_cpu(bench, "F16")


@row("guide bf16: greedy tokens as on the CPU", GPU)
def same_in_bf16(bench: Bench, device: str) -> Outcome:
    return same_as_cpu(bench, "BF16")


@row("guide f32: eight at once as one by one", CPU, GPU)
def same_in_a_batch(bench: Bench, device: str) -> Outcome:
    worker = bench.workers.serving(bench.models.guide_as("F32"), device)
    questions = [question(worker, text) for text in QUESTIONS]
    alone = [tokens(worker.complete(**body)) for body in questions]
    together = [tokens(answer) for answer in worker.complete_together(questions)]
    equal = sum(a == b for a, b in zip(alone, together))
    return Outcome(f"{equal} of {len(QUESTIONS)} answers equal", equal == len(QUESTIONS), {"equal_answers": equal})


# ---- speed and memory of the guide, to see that small models work


@row("guide: load", CPU, GPU)
def guide_load(bench: Bench, device: str) -> Outcome:
    return load_time(bench.workers, bench.models.guide, device)


@row("guide: decode, 1 stream", CPU, GPU)
def guide_decode_1(bench: Bench, device: str) -> Outcome:
    return decode(bench.workers.serving(bench.models.guide, device), 1)


@row("guide: decode, 8 streams", CPU, GPU)
def guide_decode_8(bench: Bench, device: str) -> Outcome:
    return decode(bench.workers.serving(bench.models.guide, device), 8)


@row("guide: prefill, 384 tokens", CPU, GPU)
def guide_prefill(bench: Bench, device: str) -> Outcome:
    return prefill(bench.workers.serving(bench.models.guide, device), 384)


# ---- a model of the 1B kind in bf16, GPU only


@row("1B bf16: load", GPU)
def big_load(bench: Bench, device: str) -> Outcome:
    return load_time(bench.workers, bench.models.big(), device)


@row("1B bf16: memory, estimate and NVML", GPU)
def big_memory(bench: Bench, device: str) -> Outcome:
    """The greatest memory in use while eight sequences of 2304 tokens run."""
    bench.workers.stop()
    before = machine.used_memory(bench.gpu)
    worker = bench.workers.serving(bench.models.big(), device)
    questions = [{"prompt": any_tokens(2048), "max_tokens": 256} for _ in range(8)]
    estimate = used = 0
    with ThreadPoolExecutor() as pool:
        answers = pool.submit(worker.complete_together, questions)
        while not answers.done():
            held, now = worker.ask("GET", "/health")["held"], machine.used_memory(bench.gpu) - before
            estimate, used = max(estimate, GPU_CONTEXT + sum(of_device for _, of_device in held)), max(used, now)
        answers.result()
    # Beyond the context and the room for keys and values: workspaces of libraries, and the rows of a step.
    value = f"{estimate / GIB:.2f} GiB estimated, {used / GIB:.2f} GiB in use ({used / estimate - 1:+.1%})"
    return Outcome(value, 0 <= used - estimate < 2 * GIB, {"estimate_bytes": estimate, "used_bytes": used})


@row("1B bf16: decode, 1 stream", GPU)
def big_decode_1(bench: Bench, device: str) -> Outcome:
    """Beside the rate at which the weights would be read if nothing else took time."""
    worker = bench.workers.serving(bench.models.big(), device)
    outcome = decode(worker, 1)
    ours = statistics.median(outcome.numbers["tokens_per_second"]) * worker.ask("GET", "/stats")["weight_bytes"]
    most = max(ceiling.own_memory(ceiling.Driver(), bench.gpu.uuid, 1 << 30, 8))
    value = f"{outcome.value}; {ours / 1e9:,.0f} of {most / 1e9:,.0f} GB/s = {ours / most:.2f}"
    return Outcome(value, True, outcome.numbers | {"bytes_per_second": ours, "own_memory": most, "share": ours / most})


@row("1B bf16: decode, 8 streams", GPU)
def big_decode_8(bench: Bench, device: str) -> Outcome:
    return decode(bench.workers.serving(bench.models.big(), device), 8)


@row("1B bf16: decode, 32 streams", GPU)
def big_decode_32(bench: Bench, device: str) -> Outcome:
    return decode(bench.workers.serving(bench.models.big(), device), 32)


@row("1B bf16: prefill, 2048 tokens", GPU)
def big_prefill(bench: Bench, device: str) -> Outcome:
    """With the products' operations per second, without those of attention and of the head, which answers one row."""
    outcome = prefill(bench.workers.serving(bench.models.big(), device), 2048)
    tera = 2 * bench.models.big_layers() * statistics.median(outcome.numbers["tokens_per_second"]) / 1e12
    return Outcome(f"{outcome.value}; {tera:.0f} TFLOP/s", True, outcome.numbers | {"teraflops": tera})


@row("1B bf16: transformers on the same files", GPU)
def big_by_transformers(bench: Bench, device: str) -> Outcome:
    """A peer that many people run: `generate` of transformers, and the greatest rate of a product, where torch is installed."""
    bench.workers.stop()
    command = [sys.executable, str(Path(__file__).with_name("by_transformers.py")), str(bench.models.big())]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=150)
    if ended.returncode != 0:
        last = (ended.stderr.strip().splitlines() or ["?"])[-1]
        return Outcome(f"pending: {last}", True, {"pending": True})
    rates = json.loads(ended.stdout.splitlines()[-1])
    streams = ", ".join(f"{count} streams {rates['decode'][count]:,.0f}" for count in rates["decode"])
    value = f"tokens/s: {streams}; prefill {rates['prefill']:,.0f}; a product at {rates['teraflops']:.0f} TFLOP/s"
    return Outcome(value, True, rates)


@row("1B bf16: a killed worker's memory comes back", GPU)
def killed(bench: Bench, device: str) -> Outcome:
    bench.workers.stop()
    before = machine.used_memory(bench.gpu)
    bench.workers.serving(bench.models.big(), device)
    held = machine.used_memory(bench.gpu) - before
    begun = time.monotonic()
    bench.workers.stop()
    while machine.used_memory(bench.gpu) - before > held // 50 and time.monotonic() - begun < 30:
        time.sleep(0.05)
    seconds, left = time.monotonic() - begun, machine.used_memory(bench.gpu) - before
    value = f"{held / GIB:.2f} GiB held, {left / GIB:.2f} GiB left after {seconds:.2f} s"
    return Outcome(value, left <= held // 50, {"held_bytes": held, "left_bytes": left, "seconds": seconds})


# ---- methods of measurement


@dataclass
class Greedy:
    tokens: list[str]
    prompt: list[float]  # log-probabilities of the prompt's tokens but the first, which has none


def question(worker: Worker, text: str) -> dict:
    """The body of a question that the model's chat template renders."""
    prompt = worker.ask("POST", "/tokenize", {"messages": [{"role": "user", "content": text}]})
    return {"prompt": prompt["tokens"], "max_tokens": 48, "logprobs": 0}


def tokens(answer: dict) -> list[str]:
    return answer["choices"][0]["logprobs"]["tokens"]


def greedy(worker: Worker) -> list[Greedy]:
    answers = []
    for text in QUESTIONS:
        body = question(worker, text)
        prompt = worker.complete(**body | {"max_tokens": 0, "echo": True})["choices"][0]["logprobs"]["token_logprobs"]
        answers.append(Greedy(tokens(worker.complete(**body)), prompt[1:]))
    return answers


def any_tokens(count: int) -> list[int]:
    """A prompt that no prefix cache contains. The special tokens have the lowest numbers of the guide's vocabulary."""
    return [random.randrange(256, 2000) for _ in range(count)]


def load_time(workers: Workers, model, device: str) -> Outcome:
    """The time from the start of the process to the first health answer that it is ready, with the files in the page cache."""
    workers.stop()
    worker = workers.serving(model, device)
    seconds, size = worker.loaded_after, worker.ask("GET", "/stats")["weight_bytes"]
    value = f"{seconds:.2f} s for {size / 1e6:.0f} MB of weights"
    return Outcome(value, True, {"seconds": seconds, "weight_bytes": size})


def decode(worker: Worker, streams: int) -> Outcome:
    """Tokens per second over all streams; the median of three rounds after one to warm up."""

    def once() -> float:
        bodies = [{"prompt": any_tokens(16), "max_tokens": 128} for _ in range(streams)]
        answers = [answer["timings"] for answer in worker.complete_together(bodies)]
        return 1e3 * sum(t["predicted_n"] for t in answers) / max(t["predicted_ms"] for t in answers)

    return per_second(once)


def prefill(worker: Worker, count: int) -> Outcome:
    """Prompt tokens per second; the median of three rounds after one to warm up."""
    return per_second(lambda: worker.complete(prompt=any_tokens(count), max_tokens=1)["timings"]["prompt_per_second"])


def per_second(once: Callable[[], float]) -> Outcome:
    once()
    rounds = [once() for _ in range(3)]
    value = f"{statistics.median(rounds):,.0f} tokens/s ({min(rounds):,.0f} to {max(rounds):,.0f})"
    return Outcome(value, True, {"tokens_per_second": rounds})
