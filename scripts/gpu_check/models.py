"""Models for measurements: the guide in other number types, a large synthetic Llama, and one that fits on no machine. All are
safetensors files, written here byte by byte: eight bytes of length, a JSON header, the tensors."""

import array
import json
import random
import shutil
import struct
from math import prod
from pathlib import Path

BYTES = {"F32": 4, "F16": 2, "BF16": 2}
TEXT_SIDE = ["tokenizer.json", "tokenizer_config.json", "generation_config.json"]


class Models:
    def __init__(self, guide: Path, scratch: Path):
        self.guide, self.scratch = guide, scratch
        scratch.mkdir(parents=True, exist_ok=True)

    def guide_as(self, dtype: str) -> Path:
        """The guide with every weight in this type (F32, F16 or BF16)."""
        folder = self.scratch / f"guide-{dtype.lower()}"
        if folder.exists():
            return folder
        raw = (self.guide / "model.safetensors").read_bytes()
        data_at = 8 + struct.unpack_from("<Q", raw)[0]
        header = json.loads(raw[8:data_at])
        tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}

        def values(name: str) -> bytes:
            first, last = tensors[name]["data_offsets"]
            return converted(raw[data_at + first : data_at + last], tensors[name]["dtype"], dtype)

        shapes = {name: entry["shape"] for name, entry in tensors.items()}
        self._write(folder, json.loads((self.guide / "config.json").read_text()), shapes, dtype, values)
        return folder

    def big(self) -> Path:
        """A Llama of the size of a 1B model, with the guide's small vocabulary: 1.95 GB in bf16, with random weights."""
        folder = self.scratch / "big"
        if not folder.exists():
            config = self._big_config()
            shapes = llama_shapes(config)
            self._write(folder, config, shapes, "BF16", lambda name: random_bf16(name, shapes[name]))
        return folder

    def big_layers(self) -> int:
        """The weights of the large model's layers: each token is multiplied by all of them."""
        shapes = llama_shapes(self._big_config())
        return sum(prod(shape) for name, shape in shapes.items() if ".layers." in name)

    def _big_config(self) -> dict:
        return self._llama(hidden=2048, layers=16, intermediate=8192, heads=32, kv_heads=8)

    def too_big(self, for_bytes: int) -> Path:
        """A model of at least this size in bf16. Its file is sparse: it needs no disk space and is refused before it is read."""
        folder = self.scratch / "too-big"
        shutil.rmtree(folder, ignore_errors=True)
        config = self._llama(hidden=16384, layers=1, intermediate=65536, heads=128, kv_heads=8)
        one_layer = 2 * sum(map(prod, llama_shapes(config).values()))
        config["num_hidden_layers"] = for_bytes // one_layer + 1
        self._write(folder, config, llama_shapes(config), "BF16", None)
        return folder

    def _llama(self, hidden: int, layers: int, intermediate: int, heads: int, kv_heads: int) -> dict:
        guide = json.loads((self.guide / "config.json").read_text())
        return guide | {
            "hidden_size": hidden,
            "num_hidden_layers": layers,
            "intermediate_size": intermediate,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "head_dim": hidden // heads,
            "max_position_embeddings": 4096,
            "rope_theta": 500000.0,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
        }

    def _write(self, folder: Path, config: dict, shapes: dict, dtype: str, values) -> None:
        making = folder.with_suffix(".making")
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir()
        for name in TEXT_SIDE:
            if (self.guide / name).exists():
                shutil.copy(self.guide / name, making)
        (making / "config.json").write_text(json.dumps(config))
        header, end = {}, 0
        for name, shape in shapes.items():
            first, end = end, end + prod(shape) * BYTES[dtype]
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [first, end]}
        text = json.dumps(header).encode()
        with open(making / "model.safetensors", "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            if values is None:
                file.truncate(8 + len(text) + end)
            else:
                for name in shapes:
                    file.write(values(name))
        making.rename(folder)


def llama_shapes(config: dict) -> dict[str, list[int]]:
    hidden, intermediate = config["hidden_size"], config["intermediate_size"]
    q, kv = (config[f"num_{kind}_heads"] * config["head_dim"] for kind in ("attention", "key_value"))
    shapes = {"model.embed_tokens.weight": [config["vocab_size"], hidden], "model.norm.weight": [hidden]}
    for layer in range(config["num_hidden_layers"]):
        parts = {
            "input_layernorm": [hidden],
            "self_attn.q_proj": [q, hidden],
            "self_attn.k_proj": [kv, hidden],
            "self_attn.v_proj": [kv, hidden],
            "self_attn.o_proj": [hidden, q],
            "post_attention_layernorm": [hidden],
            "mlp.gate_proj": [intermediate, hidden],
            "mlp.up_proj": [intermediate, hidden],
            "mlp.down_proj": [hidden, intermediate],
        }
        shapes |= {f"model.layers.{layer}.{part}.weight": shape for part, shape in parts.items()}
    return shapes


def random_bf16(name: str, shape: list[int]) -> bytes:
    """Norms are one; other weights are ± 2^-7 to 2^-5, about the spread of a trained matrix of this width."""
    if len(shape) == 1:
        return struct.pack("<H", 0x3F80) * shape[0]
    values = bytearray(random.Random(name).randbytes(2 * prod(shape)))
    # The upper byte has the sign and most of the exponent: the sign stays random, and the exponent is set.
    values[1::2] = values[1::2].translate(bytes((upper & 0x80) | 0x3C for upper in range(256)))
    return bytes(values)


def converted(raw: bytes, stored: str, wanted: str) -> bytes:
    if stored == wanted:
        return raw
    count = len(raw) // BYTES[stored]
    if stored == "BF16":
        as_f32 = array.array("I", (half << 16 for half in array.array("H", raw))).tobytes()
    elif stored == "F16":
        as_f32 = struct.pack(f"<{count}f", *struct.unpack(f"<{count}e", raw))
    else:
        as_f32 = raw
    if wanted == "F32":
        return as_f32
    if wanted == "F16":
        return struct.pack(f"<{count}e", *struct.unpack(f"<{count}f", as_f32))
    # Rounded to nearest, ties to even.
    return array.array("H", ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 for bits in array.array("I", as_f32))).tobytes()
