"""Whisper tiny.en in our own worker by OpenAI's client, on espeak-ng's speech, beside what `transformers` heard (RC-28)."""

import hashlib
import json
import pathlib

import openai
import pytest
import spoken
import whisper_weights

from conftest import coordinator

REFERENCE = json.loads(pathlib.Path(__file__).with_name("whisper.json").read_text())["cases"]


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    model = whisper_weights.tiny_en()
    folder = tmp_path_factory.mktemp("whisper")
    (folder / "manifests").mkdir()
    # The category is found by the files.
    (folder / "manifests/whisper.toml").write_text(f'name = "whisper"\nsource = {{ path = "{model}" }}\n')
    with coordinator(folder, "model-boss-worker") as url:
        yield openai.OpenAI(base_url=url, api_key="any", max_retries=0, timeout=300)


def heard(client, wav, **fields):
    return client.audio.transcriptions.create(model="whisper", file=("speech.wav", wav), **fields)


def test_tokens_are_those_of_transformers(client):
    alike = 0
    for case in REFERENCE:
        wav = spoken.at_16k(spoken.wav(case["said"]))
        answer = heard(client, wav, response_format="verbose_json", timestamp_granularities=["segment"], temperature=0)
        errors = spoken.word_errors(answer.text, case["said"])
        assert errors <= case["errors"] + (1 if case["name"] == "meeting" else 0), (case["name"], answer.text, case["text"])
        if "timed" in case and hashlib.sha256(wav).hexdigest() == case["sha256"]:
            tokens = [token for segment in answer.segments for token in segment.tokens]
            assert tokens == case["timed"], (case["name"], answer.text, case["text"])
            alike += 1
    if alike == 0:
        pytest.skip("this version of espeak-ng speaks otherwise than the reference's: only word errors were compared")


def test_each_form_and_a_stream(client):
    wav = spoken.wav(spoken.SHORT)
    text = heard(client, wav).text
    # As many as transformers makes of the same words at 16 kHz; another filter may cost one more.
    assert spoken.word_errors(text, spoken.SHORT) <= REFERENCE[0]["errors"] + 1
    assert heard(client, wav, response_format="text").strip() == text
    srt = heard(client, wav, response_format="srt")
    assert srt.startswith("1\n00:00:0") and " --> " in srt
    assert heard(client, wav, response_format="vtt").startswith("WEBVTT\n\n")
    verbose = heard(client, wav, response_format="verbose_json", timestamp_granularities=["word", "segment"], language="en")
    assert verbose.language == "en" and 3 < verbose.duration < 12
    assert "".join(word.word for word in verbose.words).replace(" ", "") == text.replace(" ", "")
    starts = [word.start for word in verbose.words]
    assert starts == sorted(starts) and verbose.words[-1].end <= verbose.duration + 0.1
    events = list(heard(client, wav, stream=True))
    assert "".join(event.delta for event in events if event.type == "transcript.text.delta").strip() == text
    assert events[-1].type == "transcript.text.done" and events[-1].text == text
    sure = heard(client, wav, include=["logprobs"])
    assert "".join(token.token for token in sure.logprobs).strip() == text
    assert client.audio.translations.create(model="whisper", file=("a.wav", wav)).text == text


def test_long_speech_in_chunks_and_window_by_window(client):
    said = " ".join(spoken.SENTENCES)
    wav = spoken.wav(said)
    chunks = heard(client, wav, response_format="verbose_json")
    on = heard(client, wav, response_format="verbose_json", extra_body={"chunking_strategy": "none"})
    for answer in (chunks, on):
        assert spoken.word_errors(answer.text, said) <= len(spoken.words(said)) * 0.12, answer.text
        ends = [segment.end for segment in answer.segments]
        assert ends == sorted(ends) and abs(ends[-1] - answer.duration) < 3


def test_what_it_cannot_do_is_said(client):
    wav = spoken.wav("Hello.")
    for wrong, said in [
        (dict(language="xx"), "knows English only"),
        (dict(response_format="diarized_json"), "must be json, text, srt, verbose_json or vtt"),
        (dict(timestamp_granularities=["word"]), "verbose_json"),
    ]:
        with pytest.raises(openai.BadRequestError, match=said):
            heard(client, wav, **wrong)
    with pytest.raises(openai.BadRequestError, match="file"):
        heard(client, b"no sound")
