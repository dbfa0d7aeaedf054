"""Speech for tests by espeak-ng from Debian: the same bytes from the same version."""

import array
import io
import shutil
import subprocess
import wave

import pytest

SHORT = "The quick brown fox jumps over the lazy dog, and the lighthouse at the end of the harbour was not lit."
SENTENCES = [
    "Good morning everybody, and welcome to the weekly meeting of the engineering team.",
    "First of all we look at the schedule for the next release, which is planned for the end of October.",
    "The new storage service was tested by three customers, and two of them found no problem at all.",
    "One customer reported that uploads of very large files were slower than before.",
    "We will measure this on the old machines and on the new machines before Friday.",
    "The second point is the budget for training, which has to be decided this month.",
    "Please send your wishes to the office, so that nobody is forgotten.",
    "Finally, the kitchen on the second floor will be closed on Wednesday and Thursday.",
    "Are there any questions about the plan for the coming weeks?",
    "If there are none, then I thank you very much, and I wish you a pleasant day.",
]


def wav(text: str, *options: str) -> bytes:
    """A text as a file of sound; without espeak-ng the test is skipped."""
    program = shutil.which("espeak-ng")
    if not program:
        pytest.skip("espeak-ng is not installed: apt-get install espeak-ng")
    return subprocess.run([program, "--stdout", "-v", "en-us", "-s", "150", *options, text], check=True, capture_output=True).stdout


def at_16k(sound: bytes) -> bytes:
    """The same sound with 16,000 samples a second, as Whisper hears it, on straight lines between samples: both sides of a comparison get
    the same numbers, whatever filter they have."""
    with wave.open(io.BytesIO(sound)) as file:
        assert (file.getnchannels(), file.getsampwidth()) == (1, 2), file.getparams()
        rate, samples = file.getframerate(), array.array("h", file.readframes(1 << 30))
    made = array.array("h")
    for at in range((len(samples) - 1) * 16000 // rate):
        whole, part = divmod(at * rate, 16000)
        made.append(samples[whole] + (samples[whole + 1] - samples[whole]) * part // 16000)
    written = io.BytesIO()
    with wave.open(written, "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", "not compressed"))
        file.writeframes(made.tobytes())
    return written.getvalue()


def words(text: str) -> list[str]:
    """A text's words, without marks and in small letters."""
    kept = "".join(letter if letter.isalnum() or letter.isspace() else " " for letter in text.lower())
    return kept.split()


def word_errors(heard: str, said: str) -> int:
    """The fewest words that are changed, left out or added."""
    one, other = words(heard), words(said)
    row = list(range(len(other) + 1))
    for at, word in enumerate(one, 1):
        before, row[0] = row[0], at
        for place, wanted in enumerate(other, 1):
            before, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, before + (word != wanted))
    return row[-1]
