"""Speech by OpenAI's client: every format, streamed and not. The voice is a program whose samples are the text itself, in the real worker."""

import base64
import json
import shutil
import subprocess
import urllib.request

import openai
import pytest

from conftest import client_of, coordinator

# 2000 samples of 16 bits, all of them letters.
TEXT = ("hello there " * 341)[:4000]
SECONDS = 0.25
MANIFEST = """name = "voice"
[speech]
line = ["cat"]
output = "s16le"
sample_rate = 8000
voices = ["plain", { id = "anna", name = "Anna", language = "de" }]
[voices]
alloy = "anna"
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("speech")
    (folder / "manifests").mkdir()
    (folder / "manifests/voice.toml").write_text(MANIFEST)
    with coordinator(folder, "model-boss-worker") as url:
        yield url


@pytest.fixture(scope="module")
def client(url):
    return client_of(url)


def seconds(sound):
    """The length by ffprobe, if it is installed."""
    if not shutil.which("ffmpeg"):
        return SECONDS
    raw = subprocess.run(["ffmpeg", "-v", "error", "-i", "pipe:0", "-ar", "8000", "-ac", "1", "-f", "s16le", "pipe:1"], input=sound, capture_output=True, check=True)
    return len(raw.stdout) / 2 / 8000


@pytest.mark.parametrize("format, begins", [("wav", b"RIFF"), ("flac", b"fLaC"), ("opus", b"OggS"), ("pcm", b"")])
def test_every_format_whole_and_streamed(client, format, begins, tmp_path):
    options = {"model": "voice", "voice": "alloy", "input": TEXT, "response_format": format}
    whole = client.audio.speech.create(**options)
    assert whole.content.startswith(begins)
    if format == "pcm":
        assert abs(len(whole.content) / 2 / 24_000 - SECONDS) < 0.01
    else:
        assert abs(seconds(whole.content) - SECONDS) < 0.03
    path = tmp_path / f"sound.{format}"
    with client.audio.speech.with_streaming_response.create(**options) as sound:
        assert sound.headers["content-type"].startswith("audio/")
        sound.stream_to_file(path)
    assert path.read_bytes() == whole.content


def test_without_a_format_it_is_wav(client):
    assert client.audio.speech.create(model="voice", voice="plain", input="hi", speed=1.5).content.startswith(b"RIFF")


def test_events_have_the_same_bytes(url):
    def post(**fields):
        body = json.dumps({"model": "voice", "voice": {"id": "plain"}, "input": TEXT, "response_format": "flac"} | fields).encode()
        return urllib.request.urlopen(urllib.request.Request(url + "/audio/speech", body, {"content-type": "application/json"})).read()

    events = [json.loads(line.removeprefix(b"data: ")) for line in post(stream_format="sse").split(b"\n") if line.startswith(b"data: ")]
    assert [event["type"] for event in events[:-1]] == ["speech.audio.delta"] * (len(events) - 1)
    assert b"".join(base64.b64decode(event["audio"]) for event in events[:-1]) == post()
    usage = events[-1]["usage"]
    assert events[-1]["type"] == "speech.audio.done" and usage["input_tokens"] == len(TEXT)
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"] > len(TEXT)


@pytest.mark.parametrize("options, code, field", [
    ({"response_format": "mp3"}, "unsupported_by_model", "response_format"),
    ({"response_format": "aac"}, "unsupported_by_model", "response_format"),
    ({"voice": "nobody"}, "invalid_request", "voice"),
    ({"speed": 5}, "invalid_request", "speed"),
    ({"input": ""}, "invalid_request", "input"),
    ({"instructions": "whisper"}, "unsupported_by_model", "instructions"),
])
def test_refusals_name_the_field(client, options, code, field):
    with pytest.raises(openai.BadRequestError) as caught:
        client.audio.speech.create(**{"model": "voice", "voice": "plain", "input": "hi"} | options)
    assert (caught.value.code, caught.value.param) == (code, field)


def test_voices(url):
    with urllib.request.urlopen(url + "/audio/voices") as answer:
        voices = json.load(answer)["voices"]
    assert [(voice["id"], voice["name"], voice["language"]) for voice in voices] == [("plain", "plain", None), ("anna", "Anna", "de"), ("alloy", "Anna", "de")]
