"""Rows about streamed layers, and about swaps and moves of models."""

import signal
import statistics
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from . import ceiling
from .coordinator import Coordinator, move_under_load
from .peers import peer
from .rows import CPU, GPU, Bench, Outcome, any_tokens, decode, greedy, prefill, row, same_as_cpu_of

# llama.cpp's program that writes k-quants.
QUANTIZE = "llama-quantize"
STREAM = ("--residency", "stream", "--window", "1", "--block", "1")
# Host memory for all layers of the large model, so that the disk does not affect the measurement.
FROM_HOST = ("--residency", "stream", "--window", "2", "--host-memory", "4GiB")


def same_as_resident(bench: Bench, model: Path, device: str) -> Outcome:
    """RS-10: equal tokens and equal log-probabilities, to the last printed digit."""
    stays = greedy(bench.workers.serving(model, device))
    comes = greedy(bench.workers.serving(model, device, *STREAM))
    equal = sum(a == b for a, b in zip(stays, comes))
    return Outcome(f"{equal} of {len(stays)} answers equal with their log-probabilities", equal == len(stays), {"equal_answers": equal})


@row("guide bf16: streamed as resident", CPU, GPU)
def streamed_bf16(bench: Bench, device: str) -> Outcome:
    return same_as_resident(bench, bench.models.guide_as("BF16"), device)


@row("guide q8_0: streamed as resident", CPU, GPU)
def streamed_q8_0(bench: Bench, device: str) -> Outcome:
    return same_as_resident(bench, quantised_guide(bench), device)


@row("guide q8_0: greedy tokens as on the CPU", GPU)
def quantised_as_on_the_cpu(bench: Bench, device: str) -> Outcome:
    return same_as_cpu_of(bench, quantised_guide(bench), 0.4)


@row("guide q4_k_m: greedy tokens as on the CPU", GPU)
def k_quants_as_on_the_cpu(bench: Bench, device: str) -> Outcome:
    return measured_if_made(bench, bench.models.guide, "q4_k_m", lambda model: same_as_cpu_of(bench, model, 0.4))


def decode_quantised(bench: Bench, device: str, kind: str, streams: int) -> Outcome:
    """Of one stream beside the rate at which the weights would be read if nothing else took time."""

    def measure(model: Path) -> Outcome:
        worker = bench.workers.serving(model, device)
        outcome = decode(worker, streams)
        if streams > 1:
            return outcome
        ours = statistics.median(outcome.numbers["tokens_per_second"]) * worker.ask("GET", "/stats")["weight_bytes"]
        return Outcome(f"{outcome.value}; {ours / 1e9:,.0f} GB/s", True, outcome.numbers | {"bytes_per_second": ours})

    return measured_if_made(bench, bench.models.big(), kind, measure)


def prefill_quantised(bench: Bench, device: str, kind: str) -> Outcome:
    return measured_if_made(bench, bench.models.big(), kind, lambda model: prefill(bench.workers.serving(model, device), 2048))


for kind in ("q8_0", "q4_k_m"):
    for streams in (1, 8, 16, 32):
        name = f"1B {kind}: decode, {streams} stream{'s' * (streams > 1)}"
        row(name, GPU)(partial(decode_quantised, kind=kind, streams=streams))
    row(f"1B {kind}: prefill, 2048 tokens", GPU)(partial(prefill_quantised, kind=kind))


@row("1B bf16: streamed from host memory, 1 stream", GPU)
def streamed_decode_1(bench: Bench, device: str) -> Outcome:
    return decode(bench.workers.serving(bench.models.big(), device, *FROM_HOST), 1)


@row("1B bf16: streamed from host memory, 8 streams", GPU)
def streamed_decode_8(bench: Bench, device: str) -> Outcome:
    return decode(bench.workers.serving(bench.models.big(), device, *FROM_HOST), 8)


@row("1B bf16: host to device, share of pinned copy", GPU)
def share_of_pinned_copy(bench: Bench, device: str) -> Outcome:
    worker = bench.workers.serving(bench.models.big(), device, *FROM_HOST)
    rates = ceiling.pinned_copy(ceiling.Driver(), bench.gpu.uuid, 256 << 20, 8)[1:]
    before = worker.ask("GET", "/stats")["residency"]
    worker.complete(prompt=any_tokens(16), max_tokens=64)
    after = worker.ask("GET", "/stats")["residency"]
    return against_ceiling(before, after, max(rates))


def against_ceiling(before: dict, after: dict, most: float) -> Outcome:
    """The rate of streaming between two reports, as a share of the ceiling, and the overlap."""
    since = {name: after["totals"][name] - before["totals"][name] for name in after["totals"]}
    wall = max(since["wall_seconds"], 1e-9)
    # The formula of the worker's own report: reading and placing overlap too, and embedding and head compute like layers.
    copying = max(since["read_seconds"], since["place_seconds"])
    computing = since["compute_seconds"] + since["ends_seconds"]
    rate, both = since["bytes"] / wall, copying + computing
    share, overlap = rate / most, min(1.0, max(copying, computing) / wall)
    value = f"{rate / 1e9:.1f} of {most / 1e9:.1f} GB/s = {share:.2f}; overlap {overlap:.2f} ({both:.2f} s of work in {wall:.2f} s)"
    numbers = {"bytes_per_second": rate, "pinned_copy": most, "share": share, "overlap": overlap, "since": since}
    return Outcome(value, share >= 0.9, numbers)


@row("swap: from SIGTERM to the next model's first token", CPU, GPU)
def swap(bench: Bench, device: str) -> Outcome:
    """The guide is replaced by another model (on the CPU: the guide in another type), whose file is in the page cache."""
    other = bench.models.big() if device == GPU else bench.models.guide_as("F32")
    (other / "model.safetensors").read_bytes()
    bench.workers.stop()
    running = bench.workers.serving(bench.models.guide, device)
    running.complete(prompt=any_tokens(8), max_tokens=1)
    begun = time.monotonic()
    running.process.send_signal(signal.SIGTERM)
    code, _ = running.ended()
    ended = time.monotonic() - begun
    following = bench.workers.serving(other, device)
    loaded = time.monotonic() - begun - ended
    following.complete(prompt=any_tokens(8), max_tokens=1)
    total = time.monotonic() - begun
    value = f"{total:.2f} s: {ended:.2f} to end, {loaded:.2f} to start and load, {total - ended - loaded:.2f} to the token"
    return Outcome(value, code == 0, {"seconds": total, "end_s": ended, "load_s": loaded})


@row("a move from cpu to cuda:0 under load", GPU)
def move(bench: Bench, device: str) -> Outcome:
    program = bench.workers.program.parent / "model-boss"
    if not program.is_file():
        return Outcome(f"pending: {program} is not there (see docs/cuda.md)", True, {"pending": True})
    bench.workers.stop()
    boss = Coordinator(program, bench.workers.program, manifests_of(bench))
    try:
        status, answer = boss.ask("POST", "/api/v1/load", {"model_name": "guide", "device": "cpu"})
        if status != 200:
            return Outcome(f"guide does not load on cpu: {status} {answer}", False)
        return outcome_of_move(move_under_load(boss, "guide", device, 8))
    finally:
        boss.stop()


def outcome_of_move(moved: dict) -> Outcome:
    failed = moved["failed"]
    ok = moved["status"] == 200 and not failed and moved["during_move"] > 0
    value = f"{moved['answers']} answers, {moved['during_move']} during the move of {moved['seconds']:.2f} s, {len(failed)} failed"
    if moved["status"] != 200:
        value += f"; the move answers {moved['status']}: {moved['moved']}"
    return Outcome(value, ok, moved)


def quantised_guide(bench: Bench) -> Path:
    return as_gguf(bench, bench.models.guide, "q8_0")


def measured_if_made(bench: Bench, folder: Path, kind: str, measure: Callable[[Path], Outcome]) -> Outcome:
    """A measurement of a model as GGUF; pending where the program that makes it is missing."""
    model = as_gguf(bench, folder, kind)
    return Outcome(f"pending: no {QUANTIZE} for {kind}", True, {"pending": True}) if model is None else measure(model)


def as_gguf(bench: Bench, folder: Path, kind: str) -> Path | None:
    """A folder's model in one file. Types that the worker does not write are made by llama.cpp's program, where it is."""
    made = bench.models.scratch / f"{folder.name}-{kind}.gguf"
    if made.exists():
        return made
    if kind in ("bf16", "q8_0"):
        command = [bench.workers.program, "convert", folder, made, "--type", kind]
    elif program := peer(bench, QUANTIZE):
        command = [program, as_gguf(bench, folder, "bf16"), made, kind]
    else:
        return None
    subprocess.run([str(part) for part in command], check=True, capture_output=True)
    return made


def manifests_of(bench: Bench) -> Path:
    """A folder of manifests with the guide, which is a package."""
    folder = bench.models.scratch / "manifests"
    folder.mkdir(exist_ok=True)
    if not (folder / "guide").exists():
        (folder / "guide").symlink_to(bench.models.guide)
    return folder
