#!/usr/bin/env python3
"""Writes worker/weights/tests/fixtures/gguf-blocks.gguf: one small tensor of every block type, next to the floats that
an independent implementation (the PyPI package `gguf`) reads from it.

    pip install gguf==0.19.0 && scripts/reference/gguf_blocks.py

That package also writes the file, so the test checks this repository's header reader against its writer.
Tensors: `TYPE` holds stored blocks, `TYPE.values` the same elements as F32, both of shape [2, row]. `q8_0.source` holds
floats whose Q8_0 form is the tensor `Q8_0`: this repository's quantiser must give the same bytes.
"""

from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T
from gguf.quants import dequantize, quantize

OUT = Path(__file__).resolve().parents[2] / "worker/weights/tests/fixtures/gguf-blocks.gguf"

# The offsets of the f16 scales in a block. Random bytes there could be infinities, so finite numbers are written.
SCALES = {
    T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0],
    T.Q2_K: [80, 82], T.Q3_K: [108], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208],
    T.IQ4_NL: [0], T.IQ4_XS: [0], T.MXFP4: [], T.TQ1_0: [52], T.TQ2_0: [64],
}  # fmt: skip


def random_blocks(rng: np.random.Generator, kind: T, row: int) -> np.ndarray:
    block_len, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, size=(2, row // block_len, block_bytes), dtype=np.uint8)
    for at in SCALES[kind]:
        scales = rng.normal(0, 0.05, size=(2, row // block_len, 1)).astype("<f2")
        blocks[:, :, at : at + 2] = scales.view(np.uint8)
    if kind == T.MXFP4:
        # The exponent: small, ordinary and the largest one whose floats are finite.
        blocks[:, :, 0] = [[2, 127], [120, 250]]
    return blocks.reshape(2, -1)


def main() -> None:
    rng = np.random.default_rng(8210)
    writer = gguf.GGUFWriter(OUT, "none")
    writer.add_description("one tensor of every block type, with the floats it stands for")
    writer.add_array("test.integers", [1, -2, 3])
    writer.add_array("test.strings", ["", "a", "übung"])
    writer.add_float64("test.double", 0.1)
    writer.add_bool("test.yes", True)
    for kind in [T.F16, T.BF16, *SCALES]:
        row = 256 if gguf.GGML_QUANT_SIZES[kind][0] == 256 else 64
        if kind in SCALES and kind != T.Q8_0:
            stored = random_blocks(rng, kind, row)
        else:
            source = rng.normal(0, 2, size=(2, row)).astype(np.float32)
            source[0, :4] = [0.0, -0.0, 127.0, -127.0]
            source[1, 32:] = 0.0
            if kind == T.Q8_0:
                writer.add_tensor("q8_0.source", source)
            stored = quantize(source, kind)
        values = dequantize(stored, kind).astype(np.float32)
        assert np.isfinite(values).all() and values.shape == (2, row)
        if kind == T.F16:
            writer.add_tensor(kind.name, stored.view(np.float16))
        else:
            writer.add_tensor(kind.name, stored, raw_dtype=kind)
        writer.add_tensor(f"{kind.name}.values", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(f"{OUT.name}: {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
