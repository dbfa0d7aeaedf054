#!/usr/bin/env python3
"""Writes the inputs that fuzzing starts from: fuzz/seeds.py FOLDER makes FOLDER/TARGET/NAME, each a few kB at most."""

import base64
import json
import struct
import sys
from pathlib import Path

U8, I32, F32, BOOL, STRING, ARRAY, U64, F64 = 0, 5, 6, 7, 8, 9, 10, 12
U32, I64 = 4, 11
FORMATS = {U8: "<B", I32: "<i", F32: "<f", BOOL: "<?", U64: "<Q", F64: "<d", U32: "<I", I64: "<q"}


def text(words):
    raw = words.encode()
    return struct.pack("<Q", len(raw)) + raw


def value(kind, what):
    return text(what) if kind == STRING else struct.pack(FORMATS[kind], what)


def entry(key, kind, what):
    """One metadata key; a list becomes an array of `kind`."""
    if isinstance(what, list):
        head = struct.pack("<IIQ", ARRAY, kind, len(what))
        return text(key) + head + b"".join(value(kind, item) for item in what)
    return text(key) + struct.pack("<I", kind) + value(kind, what)


def gguf(entries, tensors=(), alignment=32, version=3):
    """`tensors`: (name, dimensions fastest first, type, bytes)."""
    records, data = b"", b""
    for name, dimensions, kind, stored in tensors:
        records += text(name) + struct.pack("<I", len(dimensions)) + struct.pack(f"<{len(dimensions)}Q", *dimensions)
        records += struct.pack("<IQ", kind, len(data))
        data += stored + bytes(-len(stored) % alignment)
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(entries)) + b"".join(entries) + records
    return head + bytes(-len(head) % alignment) + data


def safetensors(header, data=b""):
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + data


def tensor(dtype, shape, start, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


# Number, elements and bytes of a block, as ggml defines them.
BLOCKS = [(0, 1, 4), (1, 1, 2), (30, 1, 2), (2, 32, 18), (3, 32, 20), (6, 32, 22), (7, 32, 24), (8, 32, 34), (9, 32, 36)]
BLOCKS += [(10, 256, 84), (11, 256, 110), (12, 256, 144), (13, 256, 176), (14, 256, 210), (15, 256, 292), (39, 32, 17)]

KEYS = [
    entry("general.architecture", STRING, "llama"),
    entry("a.bool", BOOL, True),
    entry("a.u64", U64, 2**63),
    entry("a.f64", F64, 0.1),
    entry("some.i32", I32, [1, -2, 3]),
    entry("some.f32", F32, [0.5, -1.0]),
    entry("some.strings", STRING, ["", "a", "übung"]),
    entry("none", U8, []),
]


def spelled(byte):
    """GPT-2's character for a byte."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return chr(byte) if byte in plain else chr(0x100 + [b for b in range(256) if b not in plain].index(byte))


def vocabulary(model, tokens, types, *more):
    return gguf([
        entry("tokenizer.ggml.model", STRING, model),
        entry("tokenizer.ggml.tokens", STRING, tokens),
        entry("tokenizer.ggml.token_type", I32, types),
        entry("tokenizer.ggml.scores", F32, [-float(i) for i in range(len(tokens))]),
        entry("tokenizer.chat_template", STRING, "{{ bos_token }}{{ messages[0].content }}"),
        *more,
    ])


PIECES = ["<unk>", "<s>", "</s>", "\u2581", "h", "e", "l", "o", "he", "ll", "\u2581he", "llo", "<0xC3>", "<0xA9>", "<t>"]
PIECE_TYPES = [2, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 6, 6, 4]
PAIRS = [spelled(b) for b in b"Helo, wrd1\n"] + ["He", "ll", "Hell", "<|im_end|>"]
PAIR_KEYS = [entry("tokenizer.ggml.merges", STRING, ["H e", "l l", "He ll"]), entry("tokenizer.ggml.eos_token_id", U32, 14)]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "\u2581hello", "\u2581wor", "ld", "\u2581,"]
WORD_KEYS = [
    entry(f"tokenizer.ggml.{name}_token_id", U32, i)
    for i, name in enumerate(["padding", "unknown", "bos", "seperator", "mask"])
]


def library(model, **parts):
    """A tokenizer.json."""
    return json.dumps({"version": "1.0", "added_tokens": [], **parts, "model": model}).encode()


def added(id, content, **more):
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": id, "content": content, **flags, **more}


def replace(pattern, content):
    return {"type": "Replace", "pattern": pattern, "content": content}


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
REGEX = {"Regex": r"'s|'t| ?\p{L}+| ?\p{N}+|\s+(?!\S)|\s+"}
SPLIT = {"type": "Split", "pattern": REGEX, "behavior": "Isolated", "invert": False}
METASPACE = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
PAIR_VOCAB = {token: id for id, token in enumerate(PAIRS)}
PAIR_MODEL = {"type": "BPE", "vocab": PAIR_VOCAB, "merges": [["H", "e"], ["l", "l"], ["He", "ll"]]}
PIECE_VOCAB = {token: id for id, token in enumerate(PIECES)}
STEPS = [replace({"String": "\u2581"}, " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
STEPS += [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]
TEMPLATE_PROCESSOR = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
}
BERT = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True}

CHATML = """{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content | trim + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
TOOLS = """{% set ns = namespace(n=0) %}{% if tools %}{{ tools | tojson(indent=2) }}{% endif %}
{% for m in messages if m.role in ['user', 'system'] %}{% set ns.n = ns.n + loop.index0 %}
{{ m.content.split(' ')[-1] | upper }}{{ 'a' | safe + m['content'] }}{% endfor %}
{% macro f(x) %}{{ x.items() | list | length }}{% endmacro %}{{ f({'a': [1, 2.5, none]}) }}{{ strftime_now('%Y-%m-%d') }}
{% generation %}{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join(', ') }}{% endgeneration %}
{% if ns.n > 99 %}{{ raise_exception('no') }}{% endif %}"""

# Answers with a call in each format. The byte in front of an answer chooses the format that it is read in.
CALLS = [
    '<tool_call>\n{"name": "f", "arguments": {"a": "x"}}\n</tool_call>',
    "<tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>\n</function>\n</tool_call>",
    "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"a\">x</parameter>\n</invoke>\n</minimax:tool_call>",
    "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>x</arg_value>\n</tool_call>",
    '{"name": "f", "parameters": {"a": "x"}}',
    '[TOOL_CALLS][{"name": "f", "arguments": {}}][TOOL_CALLS]f[ARGS]{"a": 1}',
    '<|tool_call|>[{"name": "f", "arguments": {}}]<|/tool_call|>',
    '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n```<｜tool▁call▁end｜>',
    '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>',
    '<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>',
    'Action: ```json\n[\n    {\n        "tool_name": "f",\n        "parameters": {}\n    }\n]```',
    "<start_function_call>call:f{a:<escape>x<escape>,b:[1,{c:true}]}<end_function_call>",
    '<|tool_call>call:f{a:<|"|>x<|"|>,b:null}<tool_call|>',
    "<|tool_call_start|>[f(a='x\\n', b={\"c\": [True, None]})]<|tool_call_end|>",
    "<tool_call>f<arg_key>a</arg_key><arg_value>x</arg_value></tool_call><function=f>{\"a\": 1}</function>",
    "[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{}",
    '<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="b" string="false">[1]</｜DSML｜parameter>\n</｜DSML｜invoke>\n',
    '<|tools_prefix|>[{"f": {"a": "x"}}]<|tools_suffix|><|function_call|>{"name": "f", "arguments": {}}',
    'functools[{"name": "f", "arguments": {}}]<tool_calls>\n{"name": "f", "arguments": {}}\n</tool_calls>',
    "[f(a='x'), f()]",
]

STATEMENTS = Path(__file__).parent.parent.joinpath("worker/engine/tests/templates/statements.txt").read_text().splitlines()

# Schemas of arguments with keywords that tools are narrowed by.
SCHEMAS = [
    '{"type":"object","properties":{"a":{"type":"array","uniqueItems":true,"minItems":2,"items":{"enum":["x","y","z"]}}},"required":["a"]}',
    '{"type":"object","properties":{"a":{"type":"integer","not":{"const":0}},"b":{"type":"string","not":{"enum":["no",""]}}},"dependentRequired":{"a":["b"]}}',
    '{"type":"object","properties":{"a":{"enum":["x","y"]},"b":{"type":"string"}},"if":{"properties":{"a":{"const":"x"}}},"then":{"required":["b"]},"else":{"maxProperties":1}}',
    '{"type":"object","properties":{"a":{"$ref":"#/definitions/x~1y"},"b":{"$ref":"#n"}},"oneOf":[{"required":["a"]},{"required":["b"]}],"definitions":{"x/y":{"type":"boolean"},"z":{"$anchor":"n","contains":{"minimum":1.0}}}}',
    '{"type":"object","propertyNames":{"pattern":"^(?=a)[a-c]+$"},"minProperties":1,"additionalProperties":{"type":"number","exclusiveMinimum":0,"maximum":0.5}}',
]

# Pictures of 3x2 pixels, or one, by Pillow, in base64.
PICTURES = {
    "grey.png": "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNoAAAAggCBd81ytgAAAABJRU5ErkJggg==",
    "colours.png": "iVBORw0KGgoAAAANSUhEUgAAAAMAAAACCAYAAACddGYaAAAAIklEQVR4nAXBQQEAMAjEsDJeZwdNE4urkiCICEoS94/12gOL+gp3e6IRAAAAAABJRU5ErkJggg==",
    "exact.webp": "UklGRkYAAABXRUJQVlA4TDoAAAAvAkAAAC+goG0U6F4QiX8d2CCTtim96t/QpE1B2zZMP5fxB7j5D/Af4kHaNrcDAgHKWPHANhH9j/EC",
    "lossy.webp": "UklGRjgAAABXRUJQVlA4ICwAAACwAQCdASoDAAIAB0CWJagCdAEO+kKgAP7PJlmojfMcw4rxb9HRH+ozRwwgAA==",
    "a.gif": "R0lGODdhAwACAIIAAAD/AMhkMgkJCQECA/8AAAAA/wAAAAAAACwAAAAAAwACAAAICQAJACggIMCAgAA7",
    "a.bmp": "Qk1OAAAAAAAAADYAAAAoAAAAAwAAAAIAAAABABgAAAAAABgAAADEDgAAxA4AAAAAAAAAAAAACQkJMmTIAwIBAAAAAAD/AP8A/wAAAAAA",
    "a.jpg": "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDABsSFBcUERsXFhceHBsgKEIrKCUlKFE6PTBCYFVlZF9VXVtqeJmBanGQc1tdhbWGkJ6jq62rZ4C8ybqmx5moq6T/2wBDARweHigjKE4rK06kbl1upKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKT/wAARCAACAAMDASIAAhEBAxEB/8QAHwAAAQUBAQEBAQEAAAAAAAAAAAECAwQFBgcICQoL/8QAtRAAAgEDAwIEAwUFBAQAAAF9AQIDAAQRBRIhMUEGE1FhByJxFDKBkaEII0KxwRVS0fAkM2JyggkKFhcYGRolJicoKSo0NTY3ODk6Q0RFRkdISUpTVFVWV1hZWmNkZWZnaGlqc3R1dnd4eXqDhIWGh4iJipKTlJWWl5iZmqKjpKWmp6ipqrKztLW2t7i5usLDxMXGx8jJytLT1NXW19jZ2uHi4+Tl5ufo6erx8vP09fb3+Pn6/9oADAMBAAIRAxEAPwDAuWbzR8x+4vf/AGRRRRXfS+CPoiXuf//Z",
}

SEEDS = {
    "safetensors": {
        "empty": safetensors({}),
        "two": safetensors(
            {"__metadata__": {"format": "pt"}, "a": tensor("F32", [2, 3], 0, 24), "b": tensor("F16", [4], 24, 32)},
            bytes(range(32)),
        ),
        "odd": safetensors({"s": tensor("BF16", [], 0, 2), "z": tensor("U8", [0, 7], 2, 2), "f": tensor("F4", [6], 2, 5)}, b"12345"),
        "pointer": b"version https://git-lfs.github.com/spec/v1\n",
    },
    "gguf": {
        "empty": gguf([]),
        "keys": gguf(KEYS),
        "blocks": gguf(KEYS[:2], [(f"t{id}", [n, 2], id, bytes((7 * i) % 256 for i in range(2 * size))) for id, n, size in BLOCKS]),
        "aligned": gguf([entry("general.alignment", U32, 64)], [("a", [3], 0, bytes(12)), ("b", [], 1, b"ab")], 64, 2),
    },
    "tokenizer": {
        "pieces.gguf": vocabulary("llama", PIECES, PIECE_TYPES),
        "pairs.gguf": vocabulary("gpt2", PAIRS, [1] * 14 + [3], *PAIR_KEYS, entry("tokenizer.ggml.pre", STRING, "qwen2")),
        "characters.gguf": vocabulary("gemma4", PIECES, PIECE_TYPES, entry("tokenizer.ggml.merges", STRING, ["h e", "l l"])),
        "words.gguf": vocabulary("bert", WORDS, [3] * 5 + [1] * 4, *WORD_KEYS),
        "bytes.json": library(
            PAIR_MODEL, pre_tokenizer=BYTE_LEVEL, post_processor=BYTE_LEVEL, decoder=BYTE_LEVEL,
            added_tokens=[added(14, "<|im_end|>"), added(15, "<think>", special=False, lstrip=True)],
        ),
        "split.json": library(
            PAIR_MODEL | {"ignore_merges": True, "dropout": None, "unk_token": None},
            normalizer={"type": "NFC"}, decoder=BYTE_LEVEL,
            pre_tokenizer={"type": "Sequence", "pretokenizers": [SPLIT, BYTE_LEVEL, {"type": "Digits", "individual_digits": True}]},
        ),
        "pieces.json": library(
            {"type": "BPE", "vocab": PIECE_VOCAB, "merges": ["h e", "l l"], "byte_fallback": True, "fuse_unk": True, "unk_token": "<unk>"},
            normalizer={"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, replace({"String": " "}, "\u2581")]},
            decoder={"type": "Sequence", "decoders": STEPS}, post_processor=TEMPLATE_PROCESSOR,
        ),
        "unigram.json": library(
            {"type": "Unigram", "unk_id": 0, "vocab": [[piece, -float(i)] for i, piece in enumerate(PIECES)], "byte_fallback": False},
            normalizer={"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"}, replace({"Regex": " {2,}"}, " ")]},
            pre_tokenizer=METASPACE, decoder=METASPACE,
        ),
        "words.json": library(
            {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
             "vocab": {"[UNK]": 0, "hello": 1, "wor": 2, "##ld": 3, "[CLS]": 4, "[SEP]": 5}},
            normalizer=BERT, pre_tokenizer={"type": "BertPreTokenizer"},
            post_processor={"type": "BertProcessing", "sep": ["[SEP]", 5], "cls": ["[CLS]", 4]},
            decoder={"type": "WordPiece", "prefix": "##", "cleanup": True},
        ),
        "levels.json": library(
            {"type": "WordLevel", "unk_token": "?", "vocab": {"?": 0, "Hello": 1, "world": 2}},
            pre_tokenizer={"type": "Sequence", "pretokenizers": [{"type": "Whitespace"}, {"type": "Punctuation", "behavior": "Isolated"}]},
            padding={"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "?"},
            truncation={"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0},
        ),
        "settings.json": json.dumps({
            "bos_token": "<s>", "eos_token": {"content": "<|im_end|>"}, "add_bos_token": True, "chat_template": CHATML,
        }).encode(),
        "templates.json": json.dumps({
            "chat_template": [{"name": "default", "template": "{{ messages }}"}, {"name": "tool_use", "template": TOOLS}],
        }).encode(),
        "chatml.jinja": CHATML.encode(),
        "tools.jinja": TOOLS.encode(),
    },
    "template": {
        "chatml": CHATML.encode(),
        "tools": TOOLS.encode(),
        "messages": (CHATML + "\0" + json.dumps([{"role": "user", "content": ["a", {"b": [1, 2.5, None]}]}])).encode(),
        **{f"statement-{at}": line.replace("\\n", "\n").encode() for at, line in enumerate(STATEMENTS)},
    },
    "tool_calls": {
        f"{at}-{format}": bytes([format]) + call.encode() for at, call in enumerate(CALLS) for format in range(34)
    },
    "audio": {path.name: path.read_bytes() for path in (Path(__file__).parent.parent / "worker/audio/tests/files").iterdir()},
    "image": {name: base64.b64decode(data) for name, data in PICTURES.items()}
    | {"url": b"data:image/png;base64," + PICTURES["grey.png"].encode()},
    "multipart": {
        "form": b"multipart/form-data; boundary=b;xxxxxxxxxx--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\nRIFF\r\n--b--",
    },
    # The first byte chooses the kind of grammar, and the format of calls.
    "grammar": {
        f"schema-{at}-{kind}": bytes([kind]) + schema.encode() for at, schema in enumerate(SCHEMAS) for kind in [0, 5, 14, 45, 78, 117]
    },
    "batch": {
        "good.jsonl": b'{"custom_id":"1","method":"POST","url":"/v1/chat/completions","body":{"model":"m","messages":[]}}\n' * 1
        + b'{"custom_id":"2","method":"POST","url":"/v1/chat/completions","body":{"model":"n"}}\r\n\n',
        "answers.jsonl": b'{"id":"b","custom_id":"1","response":null,"error":null}\n{"custom_id":"2"',
    },
    "multipart": {
        "form": b"\x07--edge\r\ncontent-disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--edge\r\n"
        + b"content-disposition: form-data; name=\"file\"; filename=\"a.jsonl\"\r\n\r\n{}\n\r\n--edge--\r\n",
    },
    "tasks": {
        "example.yaml": (Path(__file__).parent.parent / "tasks.yaml").read_bytes(),
        "all.yaml": b"""tasks:
  a: &a {ladder: [guide, 'lan:x', 'claude:y'], priority: 3, budget_s: 1.5, keep_alive_s: -1, patience_s: 0,
    pin_primary: true, fallback: none, thinking: "on", params: {stop: [a], top_k: 2}}
  b: *a
clients:
  default: {max_concurrent: 1, cooldown_s: .5}
  c: {models: {x: 'task:a', '*': guide}, allowed_models: ['task:*', guide], cloud: false, daily_spend_usd: 2}
defaults: {priority: batch, budget_s: 9}
""",
    },
}

if __name__ == "__main__":
    for target, inputs in SEEDS.items():
        folder = Path(sys.argv[1]) / target
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in inputs.items():
            (folder / name).write_bytes(content)
