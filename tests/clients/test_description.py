"""The description of the API at /openapi.json: schemathesis tries every operation with its checks, and a client that is
generated from it works (OP-8)."""

import importlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.request

import pytest

from conftest import REPOSITORY, coordinator, write_judges

HERE = pathlib.Path(__file__).parent / "description"
KEY = "a-key-of-sixteen-or-more"
TASKS = "tasks:\n  chat: {ladder: [guide], description: talk}\n"
ALL = os.environ.get("MODEL_BOSS_TEST_CLIENTS") == "all"
# A run of every phase takes half a minute for a few examples of each operation; the whole one some minutes.
EXAMPLES, SEEDS = (100, [1, 2]) if ALL else (5, [1])


@pytest.fixture(scope="module")
def described(tmp_path_factory):
    """A coordinator with keys and models of three categories, all by the real worker. Yields its root."""
    folder = tmp_path_factory.mktemp("described")
    shutil.copytree(REPOSITORY / "manifests/guide", folder / "manifests/guide")
    write_judges(folder)
    (folder / "keys").write_text(KEY + "\n")
    (folder / "tasks.yaml").write_text(TASKS)
    settings = f'api_keys = "{folder / "keys"}"\ntasks = "{folder / "tasks.yaml"}"\n'
    with coordinator(folder, "model-boss-worker", settings) as url:
        yield url.removesuffix("/v1")


def document(root):
    # Everybody may read it.
    return json.load(urllib.request.urlopen(root + "/openapi.json", timeout=30))


def schemathesis(root, folder, seed, examples):
    """Runs schemathesis with all checks, and returns what it says."""
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", HERE / "schemathesis.toml"]
    command += ["run", root + "/openapi.json", "--header", f"Authorization: Bearer {KEY}", "--checks", "all"]
    command += ["--seed", str(seed), "--max-examples", str(examples), "--workers", "1", "--no-color"]
    command += ["--suppress-health-check", "all"]
    environment = os.environ | {"SCHEMATHESIS_HOOKS": "hooks", "PYTHONPATH": str(HERE), "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1_800)
    return ran.returncode, ran.stdout + ran.stderr


@pytest.mark.parametrize("seed", SEEDS)
def test_op_8_every_answer_is_declared_and_none_is_a_fault_of_the_server(described, tmp_path, seed):
    status, said = schemathesis(described, tmp_path, seed, EXAMPLES)
    assert status == 0, said[-20_000:]
    tried = re.search(r"Tested: +(\d+)", said)
    # It leaves out the document itself, which it has read.
    paths = [item for path, item in document(described)["paths"].items() if path != "/openapi.json"]
    operations = [method for item in paths for method in item if not method.startswith("x-")]
    assert int(tried.group(1)) == len(operations) > 60, said
    # A run whose every answer is a refusal would show nothing.
    assert int(re.search(r"generated, (\d+) passed", said).group(1)) > 3_000, said
    request = urllib.request.Request(described + "/metrics", headers={"Authorization": f"Bearer {KEY}"})
    metrics = urllib.request.urlopen(request, timeout=30).read().decode()
    answered = {name: int(count) for name, count in re.findall(r'requests_total\{model="(\w+)",status="200"\} (\d+)', metrics)}
    assert answered["guide"] > 20 and answered["ranker"] > 0 and answered["vectors"] > 0, answered


@pytest.fixture(scope="module")
def made(described, tmp_path_factory):
    """The folder of a client that is generated from the served document."""
    folder = tmp_path_factory.mktemp("generated")
    (folder / "openapi.json").write_text(json.dumps(document(described)))
    # The code is run as it is made, without a formatter.
    (folder / "config.json").write_text(json.dumps({"post_hooks": []}))
    command = [sys.executable, "-m", "openapi_python_client", "generate", "--path", folder / "openapi.json"]
    command += ["--meta", "none", "--output-path", folder / "generated_client", "--fail-on-warning"]
    command += ["--config", folder / "config.json"]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


def this_process():
    """The fields by which a lease names this process."""
    start_time = int(pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return {"pid": os.getpid(), "start_time": start_time, "pid_ns": os.readlink("/proc/self/ns/pid"), "label": "generated"}


def test_op_8_a_generated_client_lists_chats_and_leases(described, made):
    def call(name, **arguments):
        module = importlib.import_module(f"generated_client.api.{name}")
        answer = module.sync_detailed(client=client, **arguments)
        assert not type(answer.parsed).__name__.endswith("ErrorBody"), answer.parsed
        return answer.status_code.value, answer.parsed

    client_types = importlib.import_module("generated_client")
    types = importlib.import_module("generated_client.models")
    client = client_types.AuthenticatedClient(described, KEY, timeout=60, raise_on_unexpected_status=True)
    assert {model.id for model in call("models.list_models")[1].data} >= {"guide", "ranker", "vectors"}
    message = types.ChatMessageBody(role="user", content="Which port does model-boss listen on?")
    asked = types.ChatCompletionRequest(messages=[message], model="guide", temperature=0, max_tokens=40)
    status, answer = call("models.create_chat_completion", body=asked)
    assert status == 200 and "8210" in answer.choices[0].message.content and answer.usage.completion_tokens > 0

    part = types.PartBody(device="cpu", memory="1MiB")
    owner = types.OwnerBody(**this_process())
    status, granted = call(
        "leases.acquire_lease", body=types.AcquireBody(request_id=f"generated-{os.getpid()}", owner=owner, parts=[part]))
    assert (status, granted.lease.parts[0].bytes_) == (201, 1 << 20)
    shown = call("leases.get_lease", id=granted.lease.id)[1].lease
    # Only its holder sees the token.
    assert shown.label == "generated" and not shown.token and granted.lease.token
    status, released = call(
        "leases.release_lease", id=granted.lease.id, body=types.ReleaseBody(token=granted.lease.token))
    assert (status, released.released) == (200, True)
    # An error is a value of its type.
    answer = importlib.import_module("generated_client.api.leases.get_lease").sync(granted.lease.id, client=client)
    assert answer.error.code == "lease_not_found"
