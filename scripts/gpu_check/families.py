"""Rows about families: the tests of `worker/candle` that compare tiny models with transformers, run on the GPU. They need the test
program `families` in FOLDER, and the repository for the cases."""

import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from . import machine
from .rows import GPU, Bench, Outcome, row

PACKAGE = Path(__file__).resolve().parents[2] / "worker" / "candle"
# Each family in a process of its own: a kernel that fails ends only its process.
AT_ONCE = 8
TIMEOUT = 120.0


# The rows, and the test that each runs.
TESTS = {
    "logits and tokens of transformers": "fa_1_every_family_answers_as_transformers_does",
    "together as alone": "fa_1_who_shares_a_step_changes_no_bit_in_any_family",
    "prompts in pieces": "fa_1_prompts_in_pieces_beside_a_decoding_neighbour",
    "streamed as resident": "rs_10_layers_that_are_streamed_change_no_bit_in_any_family",
    "GGUF q8_0": "fa_1_gguf_files_are_close_to_dense_models",
}


def all_families(bench: Bench, device: str, test: str) -> Outcome:
    path = bench.workers.program.parent / "families"
    if not path.is_file() or not PACKAGE.is_dir():
        return Outcome(f"pending: no {path}, or no {PACKAGE} (see docs/cuda.md)", True, {"pending": True})
    bench.workers.stop()
    families = sorted(folder.name for folder in (PACKAGE / "tests" / "families").iterdir())
    with ThreadPoolExecutor(AT_ONCE) as pool:
        results = dict(zip(families, pool.map(lambda family: one_family(path, test, device, family, bench.gpu), families)))
    return summary(results)


@row("blocks: products of each type", GPU)
def products_of_blocks(bench: Bench, device: str) -> Outcome:
    """A test of the library, whose program is `units` in FOLDER."""
    program = bench.workers.program.parent / "units"
    if not program.is_file():
        return Outcome(f"pending: no {program} (see docs/cuda.md)", True, {"pending": True})
    bench.workers.stop()
    report = bench.models.scratch / "rates.txt"
    report.write_text("")
    environment = {"LD_LIBRARY_PATH": machine.library_path(), "CUDA_VISIBLE_DEVICES": bench.gpu.uuid}
    environment |= {"MODEL_BOSS_TEST_DEVICE": device, "MODEL_BOSS_TEST_REPORT": str(report)}
    command = [str(program), "gp_2_blocks_are_multiplied_on_a_gpu", "--nocapture"]
    ended = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=TIMEOUT)
    result = result_of(ended.returncode, ended.stdout + ended.stderr)
    rates = re.findall(r"^RATE (\S+): (.*)$", report.read_text(), re.MULTILINE)
    value = "".join(f"\n    {kind:7} {rate}" for kind, rate in rates) if result["ok"] else result["why"]
    return Outcome(value, result["ok"], {"rates": dict(rates)})


def one_family(program: Path, test: str, device: str, family: str, gpu: machine.Gpu) -> dict:
    environment = os.environ | {
        "LD_LIBRARY_PATH": machine.library_path(),
        "CUDA_VISIBLE_DEVICES": gpu.uuid,
        "CARGO_MANIFEST_DIR": str(PACKAGE),
        "MODEL_BOSS_TEST_DEVICE": device,
        "MODEL_BOSS_FAMILY": f"{family}/",
    }
    command = [str(program), "--exact", test, "--nocapture"]
    try:
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        return {"ok": False, "why": f"not ended after {TIMEOUT:.0f} s"}
    return result_of(ended.returncode, ended.stdout + ended.stderr)


def result_of(code: int, said: str) -> dict:
    """The result of one test program that has ended."""
    apart = [float(number) for number in re.findall(r"^CASE \S+ Ok\(([-+.e0-9]+)\)", said, re.MULTILINE)]
    ran = re.search(r"^test result: ok\. 1 passed", said, re.MULTILINE) is not None
    if code == 0 and ran:
        return {"ok": True} | ({"apart": max(apart)} if apart else {})
    found = re.search(r"panicked at .*\n((?:.*\n){1,4}?)(?:note:|stack backtrace|$)", said)
    return {"ok": False, "why": (found.group(1) if found else said[-300:]).strip()}


def summary(results: dict[str, dict]) -> Outcome:
    failed = {family: result["why"] for family, result in results.items() if not result["ok"]}
    apart = {family: result["apart"] for family, result in results.items() if "apart" in result}
    value = f"{len(results) - len(failed)} of {len(results)} families"
    if apart:
        worst = max(apart, key=apart.get)
        value += f"; {apart[worst]:.2g} apart at most, {worst}"
    for family, why in failed.items():
        value += f"\n    {family}: {why[:300]}"
    return Outcome(value, not failed and bool(results), {"families": results})


for name, test in TESTS.items():
    row(f"families: {name}", GPU)(partial(all_families, test=test))
