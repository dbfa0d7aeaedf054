#!/usr/bin/env python3
"""Greedy answers of this project's worker beside llama.cpp's, token by token, from the same GGUF file.

    scripts/reference/beside_llama_cpp.py FILE.gguf [--worker PROGRAM] [--tokens N] [--questions FILE]

llama-server is found by MODEL_BOSS_BENCH_LLAMA_SERVER or on PATH; the worker by --worker or in target/release. Both
serve the file on this machine alone; nothing is fetched. Tokens are compared by their bytes. Exit code 1 if any differ.

Where two answers diverge, it prints by how many nats each side preferred its own token. Random weights make the best tokens
nearly equal, so two engines that round differently (activations in blocks of 8 bits on both sides) diverge at some point. An
engine with a fault diverges at once, and by whole nats.
"""

import argparse
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import time
import urllib.request

QUESTIONS = [
    "hello",
    "Which port does model-boss listen on?",
    "How do I add a model?",
    "What is a lease?",
    "éàü 12345 ... {}",
    "Can I run a model larger than my GPU memory?",
    "the quick brown fox jumps over the lazy dog " * 4,
    "Is it written in Rust?",
]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ask(port, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"content-type": "application/json"})
    # Requests to this machine must not use a proxy of the environment.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=300) as answer:
        return json.load(answer)


class Server:
    """A program that serves the file, ended with this script."""

    def __init__(self, command, port, ready):
        self.port = port
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + 120
        while True:
            try:
                ask(port, ready)
                return
            except OSError as error:
                if self.process.poll() is not None or time.monotonic() > end:
                    self.stop()
                    raise SystemExit(f"{command[0]} does not answer: {error}") from error
                time.sleep(0.1)

    def stop(self):
        self.process.terminate()
        self.process.wait()

    def tokens(self, question, most):
        """The bytes of each token of the greedy answer with the likeliest alternatives, and the reason of the answer's end."""
        body = {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": most,
                "logprobs": True, "top_logprobs": 10, "model": "any"}
        choice = ask(self.port, "/v1/chat/completions", body)["choices"][0]
        content = (choice.get("logprobs") or {}).get("content") or []
        # Some servers also list the token that ends the answer, which has no text.
        content = [token for token in content if token["bytes"]]
        likeliest = [{bytes(one["bytes"]): one["logprob"] for one in token["top_logprobs"]}
                     | {bytes(token["bytes"]): token["logprob"]} for token in content]
        tokens = [bytes(token["bytes"]) for token in content]
        return tokens, likeliest, choice["finish_reason"], choice["message"]["content"]


def starts_within(tokens, offset):
    """The offsets at which tokens begin, up to this byte."""
    starts, at = [], 0
    for token in tokens:
        if at > offset:
            break
        starts.append(at)
        at += len(token)
    return starts


def preference(likeliest, own, other):
    """The nats by which a side preferred its own token: a lower bound if the other's token is not among the likeliest."""
    least = min(likeliest.values())
    # The server shows this token together with the next: only its beginning was chosen here.
    other = max((one for one in likeliest if other.startswith(one)), key=len, default=other)
    return f"{'' if other in likeliest else '> '}{likeliest[own] - likeliest.get(other, least):.3f}"


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("file")
    arguments.add_argument("--worker", default="target/release/model-boss-worker")
    arguments.add_argument("--tokens", type=int, default=32)
    arguments.add_argument("--questions", type=pathlib.Path, help="one in each line")
    asked = arguments.parse_args()
    llama = os.environ.get("MODEL_BOSS_BENCH_LLAMA_SERVER") or shutil.which("llama-server")
    if not llama:
        raise SystemExit("not checked: MODEL_BOSS_BENCH_LLAMA_SERVER is not set and there is no llama-server on PATH")
    questions = asked.questions.read_text().splitlines() if asked.questions else QUESTIONS

    ports = free_port(), free_port()
    servers = []
    same = first = 0
    try:
        servers.append(Server([asked.worker, "serve", asked.file, "--port", str(ports[0])], ports[0], "/health"))
        servers.append(Server([llama, "-m", asked.file, "--host", "127.0.0.1", "--port", str(ports[1]), "-np", "1",
                               "-ngl", "0", "-ctk", "f32", "-ctv", "f32", "--no-webui", "--reasoning-format", "none"], ports[1], "/health"))
        for question in questions:
            answers = [server.tokens(question, asked.tokens) for server in servers]
            (ours, our_best, why, text), (theirs, their_best, their_why, their_text) = answers
            # Bytes are compared, not tokens: llama-server shows a part of a character only together with the token after it.
            parted = next((n for n, (a, b) in enumerate(zip(b"".join(ours), b"".join(theirs))) if a != b), None)
            whole = parted is None and why == their_why and text == their_text
            equal = len(ours) if parted is None else len(starts_within(ours, parted)) - 1
            same += whole
            first += equal
            mark = "same" if whole else "DIFFERENT"
            print(f"{mark:<10}{equal:>3} of {len(ours):>3} tokens  {question[:50]!r}")
            if parted is not None:
                place = len(starts_within(theirs, parted)) - 1
                a, b = ours[equal], theirs[place]
                print(f"    parts at {a!r} / {b!r}, preferred by {preference(our_best[equal], a, b)} (ours) and "
                      f"{preference(their_best[place], b, a)} (theirs) nats")
            if not whole:
                print(f"    ours:   {why}, {text!r}\n    theirs: {their_why}, {their_text!r}")
    finally:
        for server in servers:
            server.stop()
    print(f"{same} of {len(questions)} answers are the same")
    return 0 if same == len(questions) else 1


if __name__ == "__main__":
    sys.exit(main())
