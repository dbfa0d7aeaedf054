"""Models that see, in our own worker by the official clients: tiny random models of each family say of an image what they
say in `transformers` (EM-4). The cases are those of `scripts/reference/seeing.py`."""

import base64
import json
import pathlib
import struct
import zlib

import numpy
import openai
import pytest

from conftest import REPOSITORY, anthropic_of, coordinator, ollama_of

CASES = {path.stem: json.loads(path.read_text()) for path in sorted((REPOSITORY / "worker/candle/tests/seeing").glob("*.json"))}
SPECIAL = ["<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
# The special tokens of each family's vocabulary behind the first ones and 256 bytes, and what stands for an image.
MARKS = {
    "qwen": (["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"], "<|vision_start|><|image_pad|><|vision_end|>"),
    "gemma": (["<start_of_image>", "<end_of_image>", "<image_soft_token>"], "<start_of_image>"),
    "llava": (["<image>"], "<image>\n"),
    "idefics": (["<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"]
                + [f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)], "<image>"),
}
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}MARK{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def family(case):
    return next(name for name in MARKS if case["config.json"]["model_type"].replace("smolvlm", "idefics").startswith(name))


def tensor(name, shape, mean, scale, seed):
    """A tensor by the rule of the cases: FNV-1a of the name with the seed, then SplitMix64."""
    base, mask = 0xCBF29CE484222325, 2**64 - 1
    for byte in name.encode():
        base = (base ^ byte) * 0x100000001B3 & mask
    step = numpy.uint64(0x9E3779B97F4A7C15)
    count = numpy.arange(1, numpy.prod(shape, dtype=int) + 1, dtype=numpy.uint64)
    z = numpy.uint64(base ^ seed * int(step) & mask) + count * step
    z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    unit = ((z ^ (z >> numpy.uint64(31))) >> numpy.uint64(40)).astype(numpy.float32) / numpy.float32(2**24)
    return numpy.float32(mean) + numpy.float32(scale) * (numpy.float32(2) * unit - numpy.float32(1))


def byte_letters():
    """The letter that stands for each byte in vocabularies of bytes (GPT-2)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + at) for at, byte in enumerate(others)}


def write(case, folder):
    """The folder that `scripts/reference/seeing.py` made the case with."""
    folder.mkdir()
    names, mark = MARKS[family(case["files"])]
    for name, fields in case["files"].items():
        (folder / name).write_text(json.dumps(fields))
    header, data = {}, b""
    for name, shape, mean, scale in case["weights"]["tensors"]:
        numbers = tensor(name, shape, mean, scale, case["weights"]["seed"]).tobytes()
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(numbers)]}
        data += numbers
    head = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + data)
    tokens = SPECIAL + sorted(byte_letters().values())
    special = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
    added = SPECIAL + names
    places = {name: at for at, name in enumerate(tokens + names)}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
        "added_tokens": [{"id": places[name], "content": name, **special} for name in added],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": {name: at for at, name in enumerate(tokens)}, "merges": []},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "chat_template": TEMPLATE.replace("MARK", mark)}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return tokens


def png(width, height):
    """The image of the cases of this size, as a file."""
    y, x = numpy.mgrid[0:height, 0:width].astype(numpy.int64)
    planes = [(x * 5 + y * 3) % 256, (x * x // 7 + y * 2) % 256, ((x // 9 + y // 7) % 2) * 160 + (x + y) % 64]
    rows = numpy.stack(planes, axis=2).astype(numpy.uint8).reshape(height, -1)
    packed = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")).decode()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("seeing")
    (folder / "manifests").mkdir()
    tokens = None
    for name, case in CASES.items():
        tokens = write(case, folder / name)
        manifest = f'name = "{name}"\ncategory = "llm"\ncontext_length = 512\nsource = {{ path = "{folder / name}" }}\n'
        (folder / f"manifests/{name}.toml").write_text(manifest)
    with coordinator(folder, "model-boss-worker") as url:
        yield url, tokens


def openai_parts(case, prompt):
    parts = []
    for at, number in enumerate(prompt["images"]):
        image = f"data:image/png;base64,{png(*case['images'][number])}"
        parts += [{"type": "text", "text": f"Image {at}: "}, {"type": "image_url", "image_url": {"url": image}}]
    return [*parts, {"type": "text", "text": "What is it?"}]


def expected_bytes(prompt, tokens):
    """The bytes of the tokens that follow in the reference; none of a special one."""
    byte_of = {letter: byte for byte, letter in byte_letters().items()}
    return [byte_of.get(tokens[token]) if token < len(tokens) else None for token in prompt["followed"]]


@pytest.mark.parametrize("name", CASES)
def test_an_image_is_described_as_the_reference_describes_it(name, served):
    url, tokens = served
    client = openai.OpenAI(base_url=url, api_key="any", max_retries=0)
    for prompt in CASES[name]["prompts"]:
        messages = [{"role": "user", "content": openai_parts(CASES[name], prompt)}]
        wanted = expected_bytes(prompt, tokens)
        for _ in range(2):
            # The second time what was seen and its keys and values are in the prefix cache.
            answer = client.chat.completions.create(
                model=name, messages=messages, max_tokens=len(wanted), temperature=0, logprobs=True, extra_body={"ignore_eos": True})
            assert answer.usage.prompt_tokens == len(prompt["tokens"]), prompt["images"]
            said = [token.bytes for token in answer.choices[0].logprobs.content]
            for at, (got, byte) in enumerate(zip(said, wanted, strict=True)):
                assert byte is None or got == [byte], (prompt["images"], at, said, wanted)
        assert answer.usage.prompt_tokens_details.cached_tokens >= len(prompt["tokens"]) // 32 * 32 - 32
        chunks = client.chat.completions.create(
            model=name, messages=messages, max_tokens=len(wanted), temperature=0, stream=True, extra_body={"ignore_eos": True})
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert streamed == (answer.choices[0].message.content or "")


def test_other_dialects_see_the_same(served):
    url, _ = served
    client = openai.OpenAI(base_url=url, api_key="any", max_retries=0)
    for name in ["smolvlm", "qwen3_vl"]:
        size = CASES[name]["images"][1]
        parts = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{png(*size)}"}}, {"type": "text", "text": "What is it?"}]
        answer = client.chat.completions.create(
            model=name, messages=[{"role": "user", "content": parts}], max_tokens=8, temperature=0)
        source = {"type": "base64", "media_type": "image/png", "data": png(*size)}
        blocks = [{"type": "image", "source": source}, {"type": "text", "text": "What is it?"}]
        message = anthropic_of(url).messages.create(
            model=name, messages=[{"role": "user", "content": blocks}], max_tokens=8, extra_body={"temperature": 0})
        said = "".join(block.text for block in message.content if block.type == "text")
        tokens = message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)
        assert (said, tokens) == (answer.choices[0].message.content, answer.usage.prompt_tokens)
        asked = {"role": "user", "content": "What is it?", "images": [png(*size)]}
        chat = ollama_of(url).chat(model=name, messages=[asked], options={"temperature": 0, "num_predict": 8})
        assert (chat.message.content, chat.prompt_eval_count) == (said, tokens)
        response = client.responses.create(
            model=name, max_output_tokens=16, temperature=0,
            input=[{"role": "user", "content": [
                {"type": "input_image", "image_url": parts[0]["image_url"]["url"]}, {"type": "input_text", "text": "What is it?"}]}])
        assert response.usage.input_tokens == tokens and response.output_text.startswith(said)


def test_what_cannot_be_seen_is_said(served):
    url, _ = served
    client = openai.OpenAI(base_url=url, api_key="any", max_retries=0)
    image = png(28, 28)
    for wrong, said in [
        ("https://example.com/cat.png", "data:"),
        ("data:image/png;base64,AAAA", "image"),
        (f"data:image/png;base64,{image[: len(image) // 2]}", "image"),
    ]:
        parts = [{"type": "image_url", "image_url": {"url": wrong}}, {"type": "text", "text": "What is it?"}]
        with pytest.raises(openai.BadRequestError, match=said):
            client.chat.completions.create(model="smolvlm", messages=[{"role": "user", "content": parts}], max_tokens=1)
