"""Pictures by OpenAI's client: of a text, edits with masks, streams, and refusals. The model is a fake one; tests in Rust compare real ones."""

import base64

import openai
import pytest

from conftest import client_of, coordinator

MANIFEST = """name = "brush"
backend = "fake"
category = "diffusion"
vram = "64MiB"
"""
PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNoAAAAggCBd81ytgAAAABJRU5ErkJggg==")


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    (folder / "manifests").mkdir()
    (folder / "manifests/brush.toml").write_text(MANIFEST)
    with coordinator(folder, "model-boss-fake-worker") as url:
        yield client_of(url)


def test_a_text_becomes_pictures_with_their_seeds(client):
    answer = client.images.generate(model="brush", prompt="a cat", n=2, size="512x512", extra_body={"seed": 7, "steps": 3})
    assert [base64.b64decode(picture.b64_json) for picture in answer.data] == [PNG, PNG]
    assert [picture.seed for picture in answer.data] == [7, 8]
    assert answer.output_format == "png"


def test_edits_are_forms_with_a_mask(client, tmp_path):
    for name in ("image.png", "mask.png"):
        (tmp_path / name).write_bytes(PNG)
    with open(tmp_path / "image.png", "rb") as image, open(tmp_path / "mask.png", "rb") as mask:
        answer = client.images.edit(model="brush", image=image, mask=mask, prompt="a dog", n=1, extra_body={"seed": 3, "strength": 0.5})
    assert base64.b64decode(answer.data[0].b64_json) == PNG
    with open(tmp_path / "image.png", "rb") as one, open(tmp_path / "mask.png", "rb") as two:
        answer = client.images.edit(model="brush", image=[one, two], prompt="both")
    assert answer.data[0].b64_json


def test_a_stream_shows_unfinished_pictures(client):
    events = list(client.images.generate(model="brush", prompt="a cat", stream=True, partial_images=2, extra_body={"steps": 3}))
    assert [event.type for event in events] == ["image_generation.partial_image"] * 3 + ["image_generation.completed"]
    assert [event.partial_image_index for event in events[:3]] == [0, 1, 2]
    assert base64.b64decode(events[-1].b64_json) == PNG


def test_refusals_name_the_field(client):
    with pytest.raises(openai.BadRequestError) as refused:
        client.images.create_variation(model="brush", image=PNG)
    assert (refused.value.code, refused.value.param) == ("unsupported_by_model", "image")
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="brush", messages=[{"role": "user", "content": "?"}])
    assert refused.value.param == "model"
