"""Leases in Redis with no coordinator, through `model-boss lease hold`."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from typing import Any, Callable

from conftest import Redis, Script, binary, environment, until

Start = Callable[[str, dict[str, str]], Script]

HOLD = """
import model_boss, os, sys
with model_boss.lease(vram="1GiB", devices=["cpu"], label="train") as lease:
    print(lease.id, os.environ["CUDA_VISIBLE_DEVICES"] == "", lease.devices)
    sys.stdin.readline()
print("left")
sys.stdin.readline()
"""


def only(leases: list[dict[str, Any]]) -> dict[str, Any]:
    assert len(leases) == 1, leases
    return leases[0]


def test_le_2_the_process_itself_is_let_through_the_gate(redis: Redis, script: Start) -> None:
    job = script(HOLD, redis.variables())
    name, hidden, devices = job.line().split(" ", 2)
    assert (hidden, devices) == ("True", "['cpu']")
    lease = only(redis.leases())
    assert (lease["id"], lease["state"], lease["pids"]) == (name, "active", [job.process.pid])
    assert (lease["label"], lease["parts"][0]["bytes"]) == ("train", 1 << 30)
    job.say("")
    assert job.line() == "left"
    lease = only(redis.leases())
    assert (lease["state"], lease["parts"][0]["bytes"]) == ("limbo", 1), "what it still uses is counted"
    job.say("")
    assert job.code() == 0
    # The lease is not renewed any more, and its process is gone: the next reader of the ledger ends it.
    until(lambda: not settled(redis), "the end of the lease")


def settled(redis: Redis) -> list[dict[str, Any]]:
    """What is left after somebody looked."""
    for lease in redis.leases():
        command = [str(binary("model-boss")), "lease", "release", lease["id"]]
        subprocess.run(command, env=environment(**redis.variables()), stderr=subprocess.DEVNULL, check=False)
    return redis.leases()


def test_le_4_a_killed_process_holds_nothing(redis: Redis, script: Start) -> None:
    job = script(HOLD, redis.variables())
    job.line()
    os.kill(job.process.pid, signal.SIGKILL)
    job.process.wait()
    until(lambda: not redis.leases(), "the end of the lease")


def test_a_forked_worker_that_lives_on_delays_nobody_and_holds_no_pipe(redis: Redis, script: Start) -> None:
    # As with a DataLoader of torch, workers are forked and outlive the statement.
    job = script(
        "import model_boss, multiprocessing, sys\n"
        "fork = multiprocessing.get_context('fork')\n"
        "go = fork.Event()\n"
        "with model_boss.lease(vram='1GiB', devices=['cpu'], label='train') as lease:\n"
        "    hold = lease._backend._child\n"
        "    worker = fork.Process(target=go.wait)\n"
        "    worker.start()\n"
        "    print(hold.pid, flush=True)\n"
        "print('left', hold.poll() is not None, worker.is_alive(), flush=True)\n"
        "sys.stdin.readline()\n"
        "go.set()\n"
        "worker.join()\n",
        redis.variables(),
    )
    hold = int(job.line())
    begun = time.monotonic()
    assert job.line() == "left True True", "the hold has ended although a worker lives"
    assert time.monotonic() - begun < 10, "nobody waited for the worker"
    assert not os.path.exists(f"/proc/{hold}")
    job.say("")
    assert job.code() == 0


def test_a_killed_process_ends_its_hold_although_a_forked_worker_lives(redis: Redis, script: Start) -> None:
    job = script(
        "import model_boss, multiprocessing, sys\n"
        "fork = multiprocessing.get_context('fork')\n"
        "with model_boss.lease(vram='1GiB', devices=['cpu'], label='train') as lease:\n"
        "    worker = fork.Process(target=fork.Event().wait)\n"
        "    worker.start()\n"
        "    print(lease._backend._child.pid, worker.pid, flush=True)\n"
        "    sys.stdin.readline()\n",
        redis.variables(),
    )
    hold, worker = (int(word) for word in job.line().split())
    os.kill(job.process.pid, signal.SIGKILL)
    job.process.wait()
    try:
        until(lambda: not os.path.exists(f"/proc/{hold}"), "the end of the hold")
    finally:
        os.kill(worker, signal.SIGKILL)
    until(lambda: not settled(redis), "the end of the lease")


def test_what_never_fits_is_said(redis: Redis, script: Start) -> None:
    job = script(
        "import model_boss\n"
        "try:\n"
        "    model_boss.lease(vram='1000TiB', devices=['cpu']).__enter__()\n"
        "except model_boss.NeverFits as error:\n"
        "    print(error)\n",
        redis.variables(),
    )
    assert "never fit" in job.line()
    assert job.code() == 0


def test_a_program_that_is_not_there_is_named(redis: Redis, script: Start) -> None:
    variables = {**redis.variables(), "MODEL_BOSS_BIN": "/no/such/model-boss"}
    job = script("import model_boss\nmodel_boss.lease(vram='1MiB', devices=['cpu']).__enter__()", variables)
    assert job.code() == 1
    assert "NotReachable: /no/such/model-boss cannot be started" in job.errors()
