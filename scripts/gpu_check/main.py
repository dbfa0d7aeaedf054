"""The command line, the order of the rows, and the table."""

import argparse
import json
import platform
import shutil
import tempfile
import time
import traceback
from pathlib import Path

from . import by_llama_cpp, families, machine, streaming  # noqa: F401 - their rows register themselves
from .models import Models
from .rows import ROWS, Bench
from .worker import Workers


def main(description: str) -> int:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="holds model-boss-worker and maybe guide/")
    parser.add_argument("--guide", type=Path, help="the guide model [default: FOLDER/guide, then the repository's]")
    parser.add_argument("--scratch", type=Path, help="where made-up models go, 2.5 GB [default: a temporary folder]")
    parser.add_argument("--only", default="", help="only rows whose name contains one of these, separated by commas")
    parser.add_argument("--json", type=Path, help="where the results go [default: FOLDER/gpu-check.json]")
    options = parser.parse_args()

    program = options.folder / "model-boss-worker"
    repository = Path(__file__).resolve().parents[2]
    guide = next((g for g in (options.guide, options.folder / "guide", repository / "manifests" / "guide") if g and g.is_dir()), None)
    if not program.is_file() or guide is None:
        parser.error(f"{program} and a guide model are needed (see docs/cuda.md)")

    gpu = machine.first_gpu()
    scratch = options.scratch or Path(tempfile.mkdtemp(prefix="gpu-check-"))
    workers = Workers(program.resolve(), gpu)
    results = []
    try:
        bench = Bench(workers, Models(guide.resolve(), scratch), gpu)
        for row in ROWS:
            for device in row.devices:
                if any(part in row.name for part in options.only.split(",")):
                    results.append(run(row, bench, device))
                    print(line(results[-1]), flush=True)
    finally:
        workers.stop()
        if options.scratch is None:
            shutil.rmtree(scratch, ignore_errors=True)

    about = {"machine": platform.platform(), "gpu": gpu and gpu.__dict__, "worker_bytes": program.stat().st_size}
    report = options.json or options.folder / "gpu-check.json"
    report.write_text(json.dumps({"about": about, "rows": results}, indent=1) + "\n")

    counts = {status: sum(r["status"] == status for r in results) for status in ("passed", "failed", "pending")}
    print(f"\nGPU: {gpu.name + ', driver ' + gpu.driver if gpu else 'none'}; worker {program.stat().st_size / 1e6:.1f} MB")
    print(", ".join(f"{count} {status}" for status, count in counts.items()), "-", report)
    return 1 if counts["failed"] else 0


def run(row, bench: Bench, device: str) -> dict:
    result = {"row": row.name, "device": device}
    if device != "cpu" and bench.gpu is None:
        return result | {"status": "pending", "value": f"no GPU here ({machine.why_no_gpu()})"}
    begun = time.monotonic()
    try:
        outcome = row.measure(bench, device)
        status = "pending" if outcome.numbers.get("pending") else "passed" if outcome.ok else "failed"
        result |= {"status": status, "value": outcome.value, "numbers": outcome.numbers}
    except Exception as error:  # A row that breaks is a result; the next ones still say something.
        traceback.print_exc()
        result |= {"status": "failed", "value": f"{type(error).__name__}: {error}"}
    return result | {"seconds": round(time.monotonic() - begun, 1)}


def line(result: dict) -> str:
    return f"{result['status']:8} {result['device']:7} {result['row']:44} {result['value']}"
