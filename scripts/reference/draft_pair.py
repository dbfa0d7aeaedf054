"""Makes a pair of models for `scripts/bench speculation` out of one: a larger one that mostly says what the smaller one says.

    VENV/bin/python scripts/reference/draft_pair.py SMALL.gguf LARGE.gguf [--times 4] [--share 0.02]

LARGE has SMALL's layers, and behind them copies of these, so that it has --times as many. What the copies add is made smaller by --share, by the scales of
their blocks: 0 makes both models say the same, and with larger shares SMALL is right less often. So the cost of a draft and how often it is right can be
chosen apart, with real weights and a real vocabulary. It needs the packages gguf and numpy.
"""

import argparse
import re

import gguf
import numpy as np

# The bytes of a block, and the places of its 16-bit scales (ggml's block structures).
SCALES = {
    gguf.GGMLQuantizationType.Q4_0: (18, [0]),
    gguf.GGMLQuantizationType.Q4_1: (20, [0, 2]),
    gguf.GGMLQuantizationType.Q8_0: (34, [0]),
    gguf.GGMLQuantizationType.Q4_K: (144, [0, 2]),
    gguf.GGMLQuantizationType.Q6_K: (210, [208]),
}
OUTPUTS = ("attn_output.weight", "ffn_down.weight")


def smaller(tensor, share):
    """The tensor's data with all values multiplied by a share."""
    if tensor.tensor_type in (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16):
        return (tensor.data * share).astype(tensor.data.dtype)
    if tensor.tensor_type not in SCALES:
        raise SystemExit(f"{tensor.name} has the type {tensor.tensor_type.name}, whose scales are not known here")
    size, places = SCALES[tensor.tensor_type]
    blocks = np.ascontiguousarray(tensor.data).reshape(-1, size).copy()
    for place in places:
        scale = np.ascontiguousarray(blocks[:, place:place + 2]).view(np.float16)
        blocks[:, place:place + 2] = (scale.astype(np.float32) * share).astype(np.float16).view(np.uint8)
    return blocks.reshape(tensor.data.shape)


def main():
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("small")
    words.add_argument("large")
    words.add_argument("--times", type=int, default=4)
    words.add_argument("--share", type=float, default=0.02)
    asked = words.parse_args()
    reader = gguf.GGUFReader(asked.small)
    architecture = reader.fields["general.architecture"].contents()
    count = reader.fields[f"{architecture}.block_count"].contents()
    writer = gguf.GGUFWriter(asked.large, architecture)
    for field in reader.fields.values():
        if field.name == "general.architecture" or field.name.startswith("GGUF."):
            continue
        inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        value = field.contents()
        if field.name == f"{architecture}.block_count":
            value = count * asked.times
        writer.add_key_value(field.name, value, field.types[0], inner)
    tensors = [(tensor.name, tensor.data, tensor) for tensor in reader.tensors]
    for copy in range(1, asked.times):
        for tensor in reader.tensors:
            found = re.fullmatch(r"blk\.(\d+)\.(.+)", tensor.name)
            if found:
                name = f"blk.{int(found[1]) + copy * count}.{found[2]}"
                data = smaller(tensor, asked.share) if found[2] in OUTPUTS else tensor.data
                tensors.append((name, data, tensor))
    for name, data, tensor in tensors:
        writer.add_tensor_info(name, data.shape, data.dtype, data.nbytes, tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for _, data, _ in tensors:
        writer.write_tensor_data(data)
    writer.close()
    print(f"{asked.large}: {count * asked.times} layers, {count} of them as {asked.small} has them")


if __name__ == "__main__":
    main()
