"""The machine: its GPU by NVML (through nvidia-smi), and the folders of CUDA's libraries."""

import glob
import os
import shutil
import site
import subprocess
import sys
from dataclasses import dataclass


@dataclass
class Gpu:
    uuid: str
    name: str
    driver: str
    memory: int  # bytes


def first_gpu() -> Gpu | None:
    rows = _nvidia_smi("uuid,name,driver_version,memory.total")
    if not rows:
        return None
    uuid, name, driver, memory = rows[0]
    return Gpu(uuid, name, driver, int(memory) << 20)


def why_no_gpu() -> str:
    return "nvidia-smi lists none" if shutil.which("nvidia-smi") else "nvidia-smi is not installed"


def used_memory(gpu: Gpu) -> int:
    """Bytes in use on the GPU, by all processes."""
    for uuid, used in _nvidia_smi("uuid,memory.used"):
        if uuid == gpu.uuid:
            return int(used) << 20
    raise RuntimeError(f"{gpu.uuid} is gone")


def library_path() -> str:
    """The value of LD_LIBRARY_PATH for libcublas and libcurand: the folders of their pip packages (torch depends on them), then the
    usual folders, then the present value."""
    roots = [*site.getsitepackages(), site.getusersitepackages(), *sys.path]
    found = [folder for root in dict.fromkeys(roots) if root for folder in sorted(glob.glob(f"{root}/nvidia/*/lib"))]
    found += ["/usr/local/cuda/lib64", "/usr/local/nvidia/lib64", os.environ.get("LD_LIBRARY_PATH", "")]
    return ":".join(filter(None, found))


def _nvidia_smi(columns: str) -> list[list[str]]:
    try:
        command = ["nvidia-smi", f"--query-gpu={columns}", "--format=csv,noheader,nounits"]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return []
    if answer.returncode != 0:
        return []
    return [[cell.strip() for cell in line.split(",")] for line in answer.stdout.splitlines() if line.strip()]
