"""Rows of llama.cpp on the models that the rows of the worker have, in the same run: where `llama-batched-bench` is in FOLDER, on the
PATH, or named by MODEL_BOSS_LLAMA_BATCHED_BENCH."""

import os
import statistics
import subprocess
from functools import partial
from pathlib import Path

from . import machine
from .peers import peer
from .rows import GPU, Bench, Outcome, row
from .streaming import measured_if_made

NAME = "llama-batched-bench"
# The first round of each is left out: it makes kernels ready.
ROUNDS = 3
STREAMS = (1, 8, 16, 32)


def by_llama_cpp(bench: Bench, device: str, kind: str) -> Outcome:
    program = peer(bench, NAME)
    if program is None:
        return Outcome(f"pending: no {NAME} (MODEL_BOSS_LLAMA_BATCHED_BENCH names one)", True, {"pending": True})
    return measured_if_made(bench, bench.models.big(), kind, lambda model: of_model(program, bench, model))


def of_model(program: Path, bench: Bench, model: Path) -> Outcome:
    bench.workers.stop()
    streams = ",".join(map(str, STREAMS * (1 + ROUNDS)))
    rows = measured(program, bench, model, "-npp", "16", "-ntg", "128", "-npl", streams)
    prompts = measured(program, bench, model, "-npp", "2048", "-ntg", "16", "-npl", ",".join("1" * (1 + ROUNDS)), "-b", "2048", "-ub", "2048")
    return outcome_of(rows, prompts)


def measured(program: Path, bench: Bench, model: Path, *options: str) -> list[dict]:
    """The rows of the program's table, all its layers on the GPU and with flash attention."""
    environment = os.environ | {"LD_LIBRARY_PATH": machine.library_path(), "CUDA_VISIBLE_DEVICES": bench.gpu.uuid}
    command = [str(program), "-m", str(model), "-ngl", "99", "-c", "8192", "-fa", "on", *options]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    if ended.returncode != 0:
        raise RuntimeError(f"{NAME} ends with {ended.returncode}: {(ended.stderr.strip().splitlines() or ['?'])[-1]}")
    return table(ended.stdout)


def table(text: str) -> list[dict]:
    """Rows of a table as the program prints it: streams, and tokens/s of prompts and of decoding."""
    rows = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 10 and cells[0].isdigit():
            rows.append({"streams": int(cells[2]), "prefill": float(cells[5]), "decode": float(cells[7])})
    return rows


def outcome_of(rows: list[dict], prompts: list[dict]) -> Outcome:
    """The medians of all rounds but the first."""
    decode = {count: [row["decode"] for row in rows if row["streams"] == count][1:] for count in STREAMS}
    prefill = [row["prefill"] for row in prompts][1:]
    if not prefill or not all(decode.values()):
        return Outcome(f"{NAME} printed no table", False)
    rates = ", ".join(f"{count} {statistics.median(rates):,.0f}" for count, rates in decode.items())
    value = f"tokens/s: streams {rates}; prefill {statistics.median(prefill):,.0f}"
    return Outcome(value, True, {"decode": decode, "prefill": prefill})


for kind in ("bf16", "q8_0", "q4_k_m"):
    row(f"1B {kind}: llama.cpp", GPU)(partial(by_llama_cpp, kind=kind))
