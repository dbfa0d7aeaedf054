#!/usr/bin/env python3
"""Writes worker/weights/tests/fixtures/quantised.safetensors: small quantised matrices of every supported packing, next to
the floats that the formats' own packages make of them.

    python3 -m venv VENV && VENV/bin/pip install torch==2.15.0 safetensors numpy compressed-tensors==0.20.0 transformers==5.23.0
    VENV/bin/pip download --no-deps auto-gptq==0.7.1 -d PACKAGES && unzip PACKAGES/auto_gptq-*.whl -d PACKAGES
    VENV/bin/pip download --no-deps --no-build-isolation gptqmodel==7.7.0 -d PACKAGES && tar xf PACKAGES/gptqmodel-*.tar.gz -C PACKAGES
    VENV/bin/python scripts/reference/quantised_matrices.py PACKAGES

Each case NAME has the tensors of a model's file under `NAME.`, and `NAME.expected` with the floats, [outputs, inputs]. The
file quantised.json beside it has the `config.json` of each case. AutoGPTQ dequantises GPTQ (an identity matrix through its layer),
GPTQModel's copy of AutoAWQ AWQ, and compressed-tensors its own and FP8.
"""

import importlib.util
import json
import sys
import types
from pathlib import Path

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import save_file

OUT = Path(__file__).resolve().parents[2] / "worker/weights/tests/fixtures/quantised.safetensors"
ROWS, COLUMNS = 16, 64
PACKAGES = Path(sys.argv[1])


def module(name: str, path: Path):
    spec = importlib.util.spec_from_file_location(name, path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def random(*shape) -> torch.Tensor:
    return torch.randint(-(2**31), 2**31, shape, generator=GENERATOR, dtype=torch.int64).to(torch.int32)


def scales(*shape, dtype=torch.float16) -> torch.Tensor:
    return (torch.rand(shape, generator=GENERATOR) * 0.02 + 0.001).to(dtype)


def zeros(*shape) -> torch.Tensor:
    return random(*shape)


GENERATOR = torch.Generator().manual_seed(7)


def gptq(
    bits: int, group: int, act_order: bool, rows: int = 32, columns: int = COLUMNS, symmetric: bool = False
) -> tuple[dict, torch.Tensor]:
    # The file imports its compiled kernels, which an answer on the CPU does not need.
    for missing in ("autogptq_cuda_64", "autogptq_cuda_256"):
        sys.modules.setdefault(missing, types.ModuleType(missing))
    layers = module("qlinear_cuda", PACKAGES / "auto_gptq/nn_modules/qlinear/qlinear_cuda.py")
    # Its constructor wants whole words of 32 rows and columns.
    layer = layers.QuantLinear(bits, group, columns, rows, bias=False, kernel_switch_threshold=0)
    per_word = 32 // bits
    index = torch.arange(columns) // (group if group > 0 else columns)
    if act_order:
        index = index[torch.randperm(columns, generator=GENERATOR)]
    groups = columns // group if group > 0 else 1
    middle = torch.full((groups, rows // per_word), 0x7F7F7F7F, dtype=torch.int32)
    tensors = {
        "qweight": random(columns // per_word, rows),
        # Symmetric with 8 bits: zeros are stored less one.
        "qzeros": middle if symmetric else zeros(groups, rows // per_word),
        "scales": scales(groups, rows),
        "g_idx": index.to(torch.int32),
    }
    for name, tensor in tensors.items():
        getattr(layer, name).copy_(tensor) if name != "g_idx" else setattr(layer, name, tensor)
    layer.scales = layer.scales.float()
    return tensors, layer(torch.eye(columns)).T


def awq(rows: int = ROWS, columns: int = COLUMNS) -> tuple[dict, torch.Tensor]:
    packing = module("packing", PACKAGES / "gptqmodel-7.7.0/gptqmodel/quantization/awq/utils/packing_utils.py")
    groups = columns // 32
    tensors = {"qweight": random(columns, rows // 8), "qzeros": zeros(groups, rows // 8), "scales": scales(groups, rows)}
    expected = packing.dequantize_gemm(tensors["qweight"], tensors["qzeros"], tensors["scales"].float(), 4, 32)
    return tensors, expected.T


def compressed(
    format: str, dtype: torch.dtype, rows: int = ROWS, columns: int = COLUMNS, **weights
) -> tuple[dict, torch.Tensor]:
    args = QuantizationArgs(**weights)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    weight = torch.randn((rows, columns), generator=GENERATOR) * 0.1
    group = weights.get("group_size")
    groups = {"tensor": None, "channel": 1, "group": columns // group if group else None}[weights["strategy"]]
    shape = (1,) if groups is None else (rows, groups)
    state = {"weight": weight, "weight_scale": scales(*shape, dtype=dtype)}
    if not weights.get("symmetric", True):
        half = 1 << (weights["num_bits"] - 1)
        state["weight_zero_point"] = torch.randint(-half, half, shape, generator=GENERATOR, dtype=torch.int8)
    compressor = BaseCompressor.get_value_from_registry(format)
    tensors = compressor.compress(state, scheme)
    # In f32, so that nothing is rounded behind the format.
    plain = {name: tensor.float() if name == "weight_scale" else tensor for name, tensor in tensors.items()}
    return tensors, compressor.decompress(plain, scheme)["weight"].float()


def fp8_blocks(rows: int = 24, columns: int = 320) -> tuple[dict, torch.Tensor]:
    weight = (torch.randn((rows, columns), generator=GENERATOR) * 8).to(torch.float8_e4m3fn)
    factors = scales(-(-rows // 16), -(-columns // 192), dtype=torch.float32)
    spread = factors.repeat_interleave(16, 0)[:rows].repeat_interleave(192, 1)[:, :columns]
    return {"weight": weight, "weight_scale_inv": factors}, weight.float() * spread


def main() -> None:
    def ct(**weights):
        return {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}}

    four = dict(num_bits=4, type="int", strategy="group", group_size=32)
    eight = dict(num_bits=8, type="int", strategy="channel", symmetric=True)
    floats = dict(num_bits=8, type="float", strategy="channel", symmetric=True)
    cases = {
        "gptq-4": ({"quant_method": "gptq", "bits": 4, "group_size": 32}, gptq(4, 32, False)),
        "gptq-4-act-order": ({"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True}, gptq(4, 32, True)),
        "gptq-4-rows": ({"quant_method": "gptq", "bits": 4, "group_size": -1}, gptq(4, -1, False)),
        "gptq-8": ({"quant_method": "gptq", "bits": 8, "group_size": 32}, gptq(8, 32, False, symmetric=True)),
        "awq": ({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}, awq()),
        "packed-4": (ct(**four), compressed("pack-quantized", torch.bfloat16, symmetric=True, **four)),
        "packed-4-zeros": (ct(**four), compressed("pack-quantized", torch.float16, symmetric=False, **four)),
        "packed-8": (ct(**eight), compressed("pack-quantized", torch.float32, **eight)),
        "bytes-8": (ct(**eight), compressed("int-quantized", torch.float32, **eight)),
        "fp8-rows": (ct(**floats), compressed("float-quantized", torch.float32, **floats)),
        "fp8-blocks": ({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [16, 192]}, fp8_blocks()),
        "gptq-8-zeros": ({"quant_method": "gptq", "bits": 8, "group_size": 32}, gptq(8, 32, False)),
        "packed-8-zeros": (ct(**eight), compressed("pack-quantized", torch.float16, **eight | {"symmetric": False})),
        "bytes-8-zeros": (ct(**eight), compressed("int-quantized", torch.float16, **eight | {"symmetric": False})),
    }
    tensors, about = {}, {}
    for name, (config, (parts, expected)) in cases.items():
        about[name] = {"quantization_config": config}
        tensors |= {f"{name}.{part}": tensor.contiguous() for part, tensor in parts.items()}
        tensors[f"{name}.expected"] = expected.detach().float().contiguous()
    save_file(tensors, OUT)
    OUT.chmod(0o644)
    OUT.with_suffix(".json").write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
