#!/usr/bin/env python3
"""Makes the archives that replace NVIDIA's libraries when a CUDA build is linked (x86-64 Linux).

Reason: candle links with libcuda, libcublas, libcublasLt, libcurand and libnvrtc. A program linked with the real libraries
does not start on a machine without them, and they are not needed on the machine of the build. A program linked with these
archives starts anywhere. Each function loads its library when it is called for the first time, and returns an error code if
the library or the function does not exist. "No driver" is then an ordinary error of the first call.

Method: every function is one jump through a slot. At first the slot points to code that records the function's number and
calls the resolver. The resolver stores the real address in the slot, or that of a function that returns the error. Later
calls cost one indirect jump. Arguments of any type are passed on unchanged: the registers that carry them (System V ABI) are
saved around the resolver, and those on the stack are never moved.

Usage: link_shims.py CUDARC_SOURCE OUT. The functions are those that cudarc, candle's bindings, declares.
"""

import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Library:
    name: str  # as the linker is asked for it
    bindings: str  # the module of cudarc that declares it
    files: list[str]  # looked for in this order
    missing: int  # what a call returns when there is none


LIBRARIES = [
    Library("cuda", "driver", ["libcuda.so.1", "libcuda.so"], 100),  # CUDA_ERROR_NO_DEVICE
    Library("cublas", "cublas", ["libcublas.so.13", "libcublas.so.12", "libcublas.so"], 1),  # ..._NOT_INITIALIZED
    Library("cublasLt", "cublaslt", ["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"], 1),
    Library("curand", "curand", ["libcurand.so.10", "libcurand.so"], 203),  # ..._INITIALIZATION_FAILED
    Library("nvrtc", "nvrtc", ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"], 11),  # ..._INTERNAL_ERROR
]

# The registers that carry arguments.
INTEGER_ARGUMENTS = ["rdi", "rsi", "rdx", "rcx", "r8", "r9"]
VECTOR_ARGUMENTS = range(8)


def functions(cudarc: Path, library: Library) -> list[str]:
    declared = (cudarc / "src" / library.bindings / "sys" / "mod.rs").read_text()
    names = sorted(set(re.findall(r"pub unsafe fn ((?:cu|nvrtc)\w+)\(", declared)) - {"culib"})
    if not names:
        sys.exit(f"link_shims: cudarc declares no functions of {library.name}; its source has changed")
    return names


def assembly(library: Library, names: list[str]) -> str:
    lines = [".text"]
    for index, name in enumerate(names):
        lines += [f".globl {name}", f".type {name}, @function", f"{name}:", f"  jmp *.Lslot{index}(%rip)"]
        lines += [f".Lfirst{index}:", f"  movl ${index}, %eax", "  jmp .Lresolve"]
    lines += [".Lresolve:", "  push %rbp", "  mov %rsp, %rbp"]
    lines += [f"  push %{register}" for register in INTEGER_ARGUMENTS]
    lines += ["  sub $128, %rsp", "  and $-16, %rsp"]
    lines += [f"  movups %xmm{index}, {16 * index}(%rsp)" for index in VECTOR_ARGUMENTS]
    lines += ["  mov %eax, %edi", f"  call model_boss_resolve_{library.name}", "  mov %rax, %r11"]
    lines += [f"  movups {16 * index}(%rsp), %xmm{index}" for index in VECTOR_ARGUMENTS]
    lines += [f"  lea -{8 * len(INTEGER_ARGUMENTS)}(%rbp), %rsp"]
    lines += [f"  pop %{register}" for register in reversed(INTEGER_ARGUMENTS)]
    lines += ["  pop %rbp", "  jmp *%r11"]
    slots = f"model_boss_slots_{library.name}"
    lines += [".data", ".balign 8", f".globl {slots}", f".hidden {slots}", f"{slots}:"]
    lines += [f".Lslot{index}: .quad .Lfirst{index}" for index in range(len(names))]
    lines += ['.section .note.GNU-stack, "", @progbits']
    return "\n".join(lines) + "\n"


def resolver(library: Library, names: list[str]) -> str:
    def strings(values: list[str]) -> str:
        return ", ".join(f'"{value}"' for value in values)

    return f"""#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

extern __attribute__((visibility("hidden"))) void *model_boss_slots_{library.name}[];
static const char *const names[] = {{{strings(names)}}};
static const char *const files[] = {{{strings(library.files)}}};
static pthread_once_t once = PTHREAD_ONCE_INIT;
static void *handle;

static int missing(void) {{ return {library.missing}; }}

static void open_library(void) {{
    for (size_t i = 0; i < sizeof files / sizeof *files && !handle; i++)
        handle = dlopen(files[i], RTLD_NOW | RTLD_GLOBAL);
}}

/* Threads may meet here: both find the same address, and an aligned store of eight bytes is whole. */
__attribute__((visibility("hidden"))) void *model_boss_resolve_{library.name}(uint32_t index) {{
    pthread_once(&once, open_library);
    void *found = handle ? dlsym(handle, names[index]) : NULL;
    if (!found) found = (void *)missing;
    __atomic_store_n(&model_boss_slots_{library.name}[index], found, __ATOMIC_RELAXED);
    return found;
}}
"""


def build(library: Library, names: list[str], out: Path) -> None:
    archive = out / f"lib{library.name}.a"
    with tempfile.TemporaryDirectory() as folder:
        sources = [Path(folder, f"{library.name}.s"), Path(folder, f"{library.name}_resolve.c")]
        sources[0].write_text(assembly(library, names))
        sources[1].write_text(resolver(library, names))
        for source in sources:
            subprocess.run(["gcc", "-O2", "-fPIC", "-c", source, "-o", source.with_suffix(".o")], check=True)
        archive.unlink(missing_ok=True)
        subprocess.run(["ar", "rcs", archive, *(source.with_suffix(".o") for source in sources)], check=True)


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    cudarc, out = Path(sys.argv[1]), Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    for library in LIBRARIES:
        build(library, functions(cudarc, library), out)


main()
