"""Makes the golden cases of folders that `sentence-transformers` saves itself: a tiny random model with a vocabulary of words, and what
`encode` and `predict` answer to texts.

Run it as encoders.py:

    VENV/bin/python scripts/reference/saved.py [CASE ...] [--models DIR]

Each case becomes worker/candle/tests/encoders/CASE.json, with the fields of encoders.py's cases and these:

    left_out   the tokens of each text that its vector leaves out
    asked      requests by texts: `input` or `pairs`, the `prompt_name`, and the answer: `vectors` or `scores`
"""

import json

import cases
import sentence_transformers
import torch
import transformers
from encoders import OUT, SHAPE, rewrite
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Dropout, LayerNorm, Pooling

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghij", "query", "note", "about", "the", ":", "##s", "##ing"]
LONGEST = 12
TEXTS = ["a b c", "The notes about d", "a b c d e f g h i j a b c d e f", "j"]
PAIRS = [("a b", "c d e"), ("query", "the note about a"), ("a", "b c d e f g h i j a b c d e f g"), ("ing j", "b")]
PROMPTS = {"query": "query: ", "document": "", "note": "note about the "}
POSITIONS = dict(max_position_embeddings=64)


def tokenizer():
    """A vocabulary of words, whose longest text is only in its own settings."""
    return transformers.BertTokenizer(vocab={word: id for id, word in enumerate(WORDS)}, model_max_length=LONGEST)


def layers(folder, kind, **fields):
    """Saves the layers and the tokenizer of a BERT."""
    config = transformers.BertConfig(**SHAPE | POSITIONS | dict(vocab_size=len(WORDS)) | fields)
    kind(config).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def embedder(folder, scratch, modules, **settings):
    first = Transformer(str(layers(scratch, transformers.BertModel)))
    SentenceTransformer(modules=[first, *modules], prompts=PROMPTS, **settings).save(str(folder), create_model_card=False)


def judge(folder, scratch, activation, **settings):
    layers(scratch, transformers.BertForSequenceClassification, num_labels=1)
    CrossEncoder(str(scratch), activation_fn=activation, **settings).save(str(folder), create_model_card=False)


def pooling_judge(folder, scratch):
    first = Transformer(str(layers(scratch, transformers.BertModel)))
    last = Dense(24, 1, activation_function=torch.nn.Identity(), module_output_name="scores")
    CrossEncoder(modules=[first, Pooling(24, "cls"), last]).save(str(folder), create_model_card=False)


CASES = {
    "saved-vectors": lambda folder, scratch: embedder(
        folder, scratch, [Pooling(24, ("mean", "max")), Dropout(), LayerNorm(48), Dense(48, 16, use_residual=True), Normalize()], truncate_dim=10),
    "saved-without-prompts": lambda folder, scratch: embedder(
        folder, scratch, [Pooling(24, "mean", include_prompt=False), Dense(24, 24, activation_function=torch.nn.GELU(), use_residual=True)],
        default_prompt_name="note"),
    "judge-saved": lambda folder, scratch: judge(folder, scratch, torch.nn.Identity(), prompts=PROMPTS, default_prompt_name="query"),
    "judge-saved-modules": pooling_judge,
}


def short(numbers):
    return [float(f"{number:.7g}") for number in numbers]


def of_vectors(model):
    """Requests with each prompt and without one, and the tokens of the first of them."""
    def asked(name):
        vectors = [model.encode([text], prompt_name=name)[0].tolist() for text in TEXTS]
        return dict(input=TEXTS, **(dict(prompt_name=name) if name else {}), vectors=[short(vector) for vector in vectors])
    requests = [asked(name) for name in ("note", "query", "document", None)]
    before = model.prompts["note"]
    texts = [model.tokenizer(before + text, truncation=True)["input_ids"] for text in TEXTS]
    left_out = 0 if model[1].include_prompt else len(model.tokenizer(before)["input_ids"]) - 1
    return requests, dict(texts=texts, left_out=left_out, vectors=requests[0]["vectors"])


def of_scores(model):
    """The scores of pairs, and their tokens with the model's own numbers."""
    scores = [float(model.predict([pair])[0]) for pair in PAIRS]
    before = model.prompts.get(model.default_prompt_name, "")
    joined = [model.tokenizer(before + one, other, truncation="longest_first") for one, other in PAIRS]
    numbers = [short([float(model.predict([pair], activation_fn=torch.nn.Identity())[0])]) for pair in PAIRS]
    seconds = [ids["token_type_ids"].index(1) for ids in joined]
    return [dict(pairs=PAIRS, scores=short(scores))], dict(texts=[ids["input_ids"] for ids in joined], seconds=seconds, vectors=numbers)


def make(name, folder, scratch):
    torch.manual_seed(0)
    CASES[name](folder, scratch)
    (folder / "README.md").unlink(missing_ok=True)
    weights = {str(path.relative_to(folder)): rewrite(path, seed=at) for at, path in enumerate(sorted(folder.rglob("*.safetensors")), 1)}
    judges = name.startswith("judge-")
    model = (CrossEncoder if judges else SentenceTransformer)(str(folder), device="cpu")
    asked, tokens = (of_scores if judges else of_vectors)(model)
    paths = sorted(folder.rglob("*.json"))
    files = {str(path.relative_to(folder)): json.loads(path.read_text()) for path in paths}
    fields = dict(case=name, transformers=transformers.__version__, sentence_transformers=sentence_transformers.__version__,
                  files=files, weights=weights, **tokens, asked=asked)
    cases.write(OUT, name, fields)


def run():
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as scratch:
        cases.run(CASES, lambda name, folder, _: make(name, folder, Path(scratch) / name))


if __name__ == "__main__":
    run()
