#!/usr/bin/env python3
"""Writes worker/engine/tests/vocabularies: one small vocabulary of every kind, texts, and the ids of reference libraries.

    python3 -m venv VENV && VENV/bin/pip install tokenizers==0.23.3 sentencepiece==0.2.3 gguf==0.19.0 mistral-common==1.13.1
    VENV/bin/python scripts/reference/vocabularies.py

`tokenizers` trains each `tokenizer.json` on the texts below and gives its ids, `sentencepiece` those of the GGUF files, and
`mistral-common` those of tekken.json. ids.json has, for each vocabulary, the ids of each text of texts.json, without the
special tokens around it. No value is changed by hand.
"""

import base64
import io
import json
import random
from pathlib import Path

import gguf
import sentencepiece
from mistral_common.tokens.tokenizers.tekken import Tekkenizer
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

OUT = Path(__file__).resolve().parents[2] / "worker/engine/tests/vocabularies"

LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)

TEXTS = [
    "", " ", "  two  spaces ", "Hello world", "don't, I'LL WE'VE", "1234567890 12.5 ½²³", "tabs\t\tand\nlines\r\n\r\n end",
    "élan é naïve Ünïcödé", "Привет, мир!", "日本語テスト。你好世界", "한국어 텍스트", "नमस्ते दुनिया", "مرحبا שלום",
    "🚀 👨‍👩‍👧 🇩🇪", "ｆｕｌｌ ﬁ ﬀ Ａ１", "a\u200bb\u00a0c\u2028d\u3000e", "def f(x):\n    return x**2  # ok", "== != -> // ... ?!",
    "<s>in</s> a <mask> WORD aWORD ls", "  \n  \n", "x" * 50, "ſ K İ ß", "\u0000\u0001\u007f\ufffd", "word " * 8,
]


def random_texts(count: int) -> list[str]:
    rng = random.Random(17)
    words = [word for text in TEXTS for word in text.split() if word != "x" * 50]
    between = ["", " ", " ", "  ", "\n"]
    return ["".join(rng.choice(words) + rng.choice(between) for _ in range(rng.randint(1, 7))) for _ in range(count)]


def with_added(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.add_special_tokens(["<s>", "</s>", AddedToken("<mask>", lstrip=True, special=True)])
    tokenizer.add_tokens([AddedToken("WORD", single_word=True), AddedToken("ls", rstrip=True, normalized=False)])
    return tokenizer


def byte_pairs(corpus, pre, decoder, normalizer=None, training=None, **model) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(**model))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre is not None:
        tokenizer.pre_tokenizer = pre
    tokenizer.decoder = decoder
    tokenizer.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=400, show_progress=False, **(training or {})))
    return with_added(tokenizer)


def word_pieces(corpus, normalizer) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=["[PAD]", "[UNK]"], show_progress=False)
    tokenizer.train_from_iterator(corpus, trainer)
    return with_added(tokenizer)


def unigram(corpus, charsmap: bytes) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    steps = [normalizers.Precompiled(charsmap), normalizers.Replace(Regex(" {2,}"), " ")]
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=400, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False
    )
    tokenizer.train_from_iterator(corpus, trainer)
    return with_added(tokenizer)


def sentence_pieces(corpus, **options) -> sentencepiece_model_pb2.ModelProto:
    model = io.BytesIO()
    lines = [line for text in corpus for line in text.splitlines() if line.strip() and "\0" not in line]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=420,
        hard_vocab_limit=False, minloglevel=3, num_threads=1, **options,
    )  # fmt: skip
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(model.getvalue())
    return proto


def write_gguf(path: Path, kind: str, proto: sentencepiece_model_pb2.ModelProto) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(kind)
    writer.add_token_list([piece.piece for piece in proto.pieces])
    writer.add_token_scores([piece.score for piece in proto.pieces])
    writer.add_token_types([piece.type for piece in proto.pieces])
    writer.add_add_space_prefix(proto.normalizer_spec.add_dummy_prefix)
    writer.add_remove_extra_whitespaces(proto.normalizer_spec.remove_extra_whitespaces)
    if kind == "t5":
        writer.add_precompiled_charsmap(proto.normalizer_spec.precompiled_charsmap)
    writer.add_unk_token_id(proto.trainer_spec.unk_id)
    writer.add_eos_token_id(proto.trainer_spec.eos_id)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def write_tekken(path: Path, byte_level: Tokenizer) -> Tekkenizer:
    """Its tokens are the bytes, and then those that `byte_level` learned."""
    alphabet = {char: byte for byte, char in enumerate(sorted_alphabet())}
    learned = sorted(byte_level.get_vocab(with_added_tokens=False).items(), key=lambda entry: entry[1])
    spelled = [bytes(alphabet[char] for char in token) for token, _ in learned]
    tokens = [bytes([byte]) for byte in range(256)] + [token for token in spelled if len(token) > 1]
    vocab = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
        for rank, token in enumerate(tokens)
    ]
    special = ["<unk>", "<s>", "</s>"]
    path.write_text(json.dumps({
        "config": {"pattern": LLAMA_3, "num_vocab_tokens": len(vocab), "default_vocab_size": len(vocab) + 10,
                   "default_num_special_tokens": 10, "version": "v7"},
        "vocab": vocab,
        "special_tokens": [{"rank": rank, "token_str": name, "is_control": True} for rank, name in enumerate(special)],
    }))  # fmt: skip
    return Tekkenizer.from_file(path)


def sorted_alphabet() -> list[str]:
    """GPT-2's character of each byte."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


def main() -> None:
    OUT.mkdir(exist_ok=True)
    corpus = TEXTS + random_texts(400)
    texts = TEXTS + random_texts(40)
    bytes_first = {"initial_alphabet": pre_tokenizers.ByteLevel.alphabet()}
    space, mark = decoders.Replace("▁", " "), normalizers.Replace(" ", "▁")
    fallback = ["<unk>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    rules = OUT / "rules.tsv"
    rules.write_text("FF21\t41\nFB00\t66 66\nFB01\t66 69\nA0\t20\n")
    likely = sentence_pieces(corpus, model_type="unigram", bos_id=-1, normalization_rule_tsv=str(rules))
    rules.unlink()
    # GGUF's `llama` has no place for a normaliser.
    merged = sentence_pieces(
        corpus, model_type="bpe", byte_fallback=True, remove_extra_whitespaces=False, character_coverage=0.98,
        normalization_rule_name="identity",
    )  # fmt: skip
    split = pre_tokenizers.Split
    level = pre_tokenizers.ByteLevel
    kinds = {
        "bytes-gpt-2": byte_pairs(corpus, level(False), decoders.ByteLevel(), training=bytes_first),
        "bytes-llama-3": byte_pairs(
            corpus,
            pre_tokenizers.Sequence([split(Regex(LLAMA_3), "isolated"), level(False, use_regex=False)]),
            decoders.ByteLevel(), normalizers.NFC(), bytes_first,
        ),
        "bytes-lines": byte_pairs(
            corpus,
            pre_tokenizers.Sequence([split(Regex(r"^\w+|\s+$|\d\b|[[:punct:]]"), "merged_with_previous"),
                                     level(False, use_regex=False)]),
            decoders.ByteLevel(), training=bytes_first,
        ),
        "characters-fallback": byte_pairs(
            corpus, None, decoders.Sequence([space, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]),
            normalizers.Sequence([normalizers.Prepend("▁"), mark]), {"special_tokens": fallback, "limit_alphabet": 60},
            unk_token="<unk>", fuse_unk=True, byte_fallback=True,
        ),
        "words-suffix": byte_pairs(
            corpus, pre_tokenizers.Whitespace(), decoders.BPEDecoder("</w>"), normalizers.Lowercase(),
            {"special_tokens": ["<unk>"], "end_of_word_suffix": "</w>"}, unk_token="<unk>", end_of_word_suffix="</w>",
        ),
        "word-pieces-uncased": word_pieces(corpus, normalizers.BertNormalizer(True, True, None, True)),
        "word-pieces-cased": word_pieces(corpus, normalizers.BertNormalizer(True, False, False, False)),
        "unigram": unigram(corpus, likely.normalizer_spec.precompiled_charsmap),
    }  # fmt: skip
    ids = {}
    for name, tokenizer in kinds.items():
        tokenizer.save(str(OUT / f"{name}.json"), pretty=False)
        # As written: a file's scores have fewer digits.
        tokenizer = Tokenizer.from_file(str(OUT / f"{name}.json"))
        ids[f"{name}.json"] = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    for name, kind, proto in [("unigram", "t5", likely), ("merged", "llama", merged)]:
        write_gguf(OUT / f"{name}.gguf", kind, proto)
        processor = sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())
        # Special tokens are text to SentencePiece, and it ends a text at a zero.
        plain = [None if "<s>" in text or "\0" in text else processor.encode(text) for text in texts]
        ids[f"{name}.gguf"] = plain
    tekken = write_tekken(OUT / "tekken.json", kinds["bytes-llama-3"])
    ids["tekken.json"] = [None if "<s>" in text else tekken.encode(text, bos=False, eos=False) for text in texts]
    (OUT / "texts.json").write_text(json.dumps(texts))
    (OUT / "ids.json").write_text(json.dumps(ids, separators=(",", ":")).replace('],"', '],\n"') + "\n")


if __name__ == "__main__":
    main()
