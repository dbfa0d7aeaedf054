"""Embeddings of a cloud provider, by the official clients, which request base64 or read plain numbers."""

import openai
import pytest

from conftest import ollama_of

VECTOR = [0.5, -1.25]


def test_by_openais_client(fake):
    answer = fake.embeddings.create(model="near:bge", input=["one", "two"])
    assert [(item.index, item.embedding) for item in answer.data] == [(0, VECTOR), (1, VECTOR)]
    assert (answer.model, answer.usage.prompt_tokens) == ("bge", 2)
    plain = fake.embeddings.create(model="near:bge", input="one", encoding_format="float")
    assert plain.data[0].embedding == VECTOR


def test_by_ollamas_client(fake_url):
    assert ollama_of(fake_url).embed("near:bge", ["one", "two"]).embeddings == [VECTOR, VECTOR]


def test_what_has_no_vectors_says_so(fake):
    with pytest.raises(openai.BadRequestError) as caught:
        fake.embeddings.create(model="echo", input="one")
    assert caught.value.code == "unsupported_by_model"
