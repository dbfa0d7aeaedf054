"""Ollama's official client, unchanged, with the built-in model and with fake workers."""

import datetime

import ollama
import pytest

from conftest import ollama_of

QUESTION = [{"role": "user", "content": "Which port does model-boss listen on?"}]
GREEDY = {"temperature": 0}


@pytest.fixture(scope="session")
def client(guide_url):
    return ollama_of(guide_url)


def test_en_7_chat_whole_and_streamed(client):
    whole = client.chat("guide", messages=QUESTION, options=GREEDY)
    assert whole.done and whole.done_reason == "stop" and whole.message.role == "assistant"
    assert "8210" in whole.message.content
    assert whole.prompt_eval_count > 0 and whole.eval_count > 0
    assert whole.total_duration > 0 and whole.eval_duration > 0
    pieces = list(client.chat("guide:latest", messages=QUESTION, options=GREEDY, stream=True))
    assert len(pieces) > 2
    assert "".join(piece.message.content or "" for piece in pieces) == whole.message.content
    assert [piece.done for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert pieces[-1].eval_count == whole.eval_count


def test_generate_whole_and_streamed(client):
    whole = client.generate("guide", prompt=QUESTION[0]["content"], options={**GREEDY, "num_predict": 8})
    assert whole.response and whole.eval_count <= 8
    pieces = client.generate("guide", prompt=QUESTION[0]["content"], options={**GREEDY, "num_predict": 8}, stream=True)
    assert "".join(piece.response for piece in pieces) == whole.response


def test_en_7_lists_describe_the_model(client):
    [model] = [model for model in client.list().models if model.model == "guide"]
    assert model.size > 1_000_000 and len(model.digest) == 64
    assert isinstance(model.modified_at, datetime.datetime)
    assert model.details.format == "safetensors" and model.details.family == "llama"
    assert model.details.parameter_size.endswith("M")
    assert model.details.quantization_level in ("F16", "BF16", "F32")
    shown = client.show("guide")
    assert "completion" in shown.capabilities
    assert shown.modelinfo["general.architecture"] == "llama"
    assert shown.modelinfo["llama.context_length"] > 0 and shown.modelinfo["general.parameter_count"] > 1_000_000
    assert shown.details.parameter_size == model.details.parameter_size


def running(client):
    return [model.model for model in client.ps().models]


def test_rc_8_keep_alive(client):
    """Every form of `keep_alive`, and its effect with an empty prompt."""
    assert client.generate("guide", keep_alive=0).done_reason == "unload"
    assert running(client) == []
    day = 24 * 3600  # what `max_keep_alive` allows at most
    for given, seconds in [("5m", 300), (90, 90), ("90s", 90), ("1h30m", 5400), (-1, day), ("-1m", day), ("1000h", day)]:
        loaded = client.generate("guide", keep_alive=given)
        assert (loaded.done, loaded.done_reason, loaded.response) == (True, "load", "")
        [model] = client.ps().models
        left = model.expires_at - datetime.datetime.now(datetime.timezone.utc)
        assert abs(left.total_seconds() - seconds) < 10, given
        assert model.size > 0 and model.size_vram == 0 and model.context_length > 0
    # A request with `keep_alive` 0 is answered, and the model is unloaded afterwards.
    assert client.chat("guide", messages=QUESTION, keep_alive=0, options={"num_predict": 2}).message.content
    assert client.chat("guide", messages=[], keep_alive=0).done_reason == "unload"
    assert running(client) == []
    assert client.chat("guide", messages=[]).done_reason == "load"
    assert running(client) == ["guide"]


def test_errors_are_the_clients_own(client, fake_url):
    with pytest.raises(ollama.ResponseError) as caught:
        client.chat("no-such-model", messages=QUESTION)
    assert caught.value.status_code == 404 and "no-such-model" in caught.value.error
    with pytest.raises(ollama.ResponseError) as caught:
        client.generate("guide", prompt="x", keep_alive="soon")
    assert caught.value.status_code == 400 and "keep_alive" in caught.value.error
    with pytest.raises(ollama.ResponseError) as caught:
        client.embed("guide", "text")
    assert caught.value.status_code == 400
    with pytest.raises(ollama.ResponseError) as caught:
        ollama_of(fake_url).chat("broken", messages=QUESTION)
    assert "cut" in caught.value.error


def test_en_6_samplers_that_are_off_pass_and_those_that_are_on_are_refused_by_name(client):
    # Programs send whole blocks of options, most with their default values.
    off = {"mirostat": 0, "mirostat_tau": 5.0, "mirostat_eta": 0.1, "tfs_z": 1.0, "typical_p": 1.0, "num_keep": 0,
           "penalize_newline": True, "repeat_last_n": 64, "num_ctx": 2048, "num_gpu": 1, "numa": False}
    assert "8210" in client.chat("guide", messages=QUESTION, options={**GREEDY, **off}).message.content
    for on in [{"mirostat": 2}, {"tfs_z": 0.5}]:
        with pytest.raises(ollama.ResponseError, match=next(iter(on))) as caught:
            client.generate("guide", prompt="?", options={**off, **on})
        assert caught.value.status_code == 400


def test_en_7_a_prompt_that_is_too_long_is_shortened_unless_the_client_forbids_it(client, fake_url):
    long = [{"role": "user", "content": "What is a lease? " * 200}, {"role": "assistant", "content": "A promise."}, *QUESTION]
    answer = client.chat("guide", messages=long * 5, options={**GREEDY, "num_predict": 24})
    assert "8210" in answer.message.content
    # Two words are left of each message of the stand-in, whose context is five words.
    small = ollama_of(fake_url)
    assert small.generate("small", prompt="one two three four five six seven").done
    assert small.chat("small", messages=[{"role": "user", "content": "one two three four"}, {"role": "user", "content": "five"}]).done
    with pytest.raises(ollama.ResponseError, match="the input length exceeds the context length") as caught:
        small._request(ollama.GenerateResponse, "POST", "/api/generate",
                       json={"model": "small", "prompt": "one two three four five six", "truncate": False, "stream": False})
    assert caught.value.status_code == 400
