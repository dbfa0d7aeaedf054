"""Writes the files of worker/audio/tests/files with ffmpeg: a tone of 440 Hz for 0.4 s, in every format that is read.

    python3 scripts/reference/sounds.py
"""

import math
import struct
import subprocess
from pathlib import Path

OUT = Path(__file__).resolve().parents[2] / "worker" / "audio" / "tests" / "files"
FILES = {
    "stereo-22k-24.wav": ["-ar", "22050", "-ac", "2", "-c:a", "pcm_s24le"],
    "float-24k.wav": ["-ar", "24000", "-c:a", "pcm_f32le"],
    "mulaw-8k.wav": ["-ar", "8000", "-c:a", "pcm_mulaw"],
    "six-48k.flac": ["-ar", "48000", "-ac", "6", "-af", "pan=5.1|c0=c0|c1=c0|c2=c0|c3=c0|c4=c0|c5=c0"],
    "mono-22k.flac": ["-ar", "22050"],
    "stereo-44k.mp3": ["-ar", "44100", "-ac", "2", "-b:a", "64k"],
    "mono-24k.mp3": ["-ar", "24000", "-b:a", "32k"],
    "vorbis-44k.ogg": ["-ar", "44100", "-ac", "2", "-c:a", "libvorbis", "-q:a", "1"],
    "opus-mono.ogg": ["-c:a", "libopus", "-b:a", "24k"],
    "opus-stereo.ogg": ["-ac", "2", "-c:a", "libopus", "-b:a", "48k"],
    "aac-44k.m4a": ["-ar", "44100", "-c:a", "aac", "-b:a", "48k"],
    "alac-44k.m4a": ["-ar", "44100", "-c:a", "alac"],
    "aac-adts.aac": ["-ar", "32000", "-c:a", "aac", "-b:a", "32k"],
    "opus.webm": ["-c:a", "libopus", "-b:a", "24k"],
    "aiff-32k.aiff": ["-ar", "32000"],
}


def tone():
    samples = [round(8192 * math.sin(2 * math.pi * 440 * at / 16000)) for at in range(6400)]
    data = struct.pack(f"<{len(samples)}h", *samples)
    return b"RIFF" + struct.pack("<I", 36 + len(data)) + b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, 16000, 32000, 2, 16) + b"data" + struct.pack("<I", len(data)) + data


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    wav = OUT / "mono-16k.wav"
    wav.write_bytes(tone())
    for name, options in FILES.items():
        command = ["ffmpeg", "-v", "error", "-y", "-i", wav, "-map_metadata", "-1", "-fflags", "+bitexact", "-flags:a", "+bitexact", *options, OUT / name]
        subprocess.run(command, check=True)
        print(name, (OUT / name).stat().st_size)


if __name__ == "__main__":
    main()
