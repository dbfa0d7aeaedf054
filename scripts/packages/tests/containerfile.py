"""Runs the steps of a container file in a folder with a Debian, where there is no engine: those that ours has."""

import json
import re
import shlex
import shutil
from pathlib import Path

from .chroot import Debian


class Container:
    """A folder after every step, and what the file says of running it."""

    def __init__(self, file: Path, context: Path, debian: Debian) -> None:
        self.debian, self.user, self.environment, self.said = debian, "root", {}, {}
        text = re.sub(r"\\\n", " ", "\n".join(line for line in file.read_text().splitlines() if not line.startswith("#")))
        for line in filter(str.strip, text.splitlines()):
            word, rest = line.split(None, 1)
            self.step(word, rest.strip(), context)

    def step(self, word: str, rest: str, context: Path) -> None:
        """One step."""
        if word == "RUN":
            self.debian.run("sh", "-c", rest, user=self.user, **self.environment)
        elif word == "COPY":
            source, place = rest.split()
            shutil.copy(context / source, self.debian.root / place.lstrip("/"))
        elif word == "ENV":
            self.environment |= dict(pair.split("=", 1) for pair in shlex.split(rest))
        elif word == "USER":
            self.user = rest
        elif word == "HEALTHCHECK":
            self.said[word] = json.loads(rest[rest.index("["):])
        elif word in ("ENTRYPOINT", "CMD"):
            self.said[word] = json.loads(rest)
        elif word in ("FROM", "WORKDIR", "VOLUME", "EXPOSE", "STOPSIGNAL"):
            self.said[word] = rest
        else:
            raise AssertionError(f"the test knows no step {word}")
