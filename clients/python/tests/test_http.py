"""Leases at a real coordinator that simulates a machine with two GPUs of 24 GiB."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
from typing import Callable

import pytest

import model_boss
from conftest import Coordinator, Script, until

Start = Callable[[str, dict[str, str]], Script]

HOLD = """
import model_boss, os, sys
with model_boss.lease(vram="18GiB", gpus=2, label="train") as lease:
    print(lease.id, os.environ["CUDA_VISIBLE_DEVICES"] == lease.cuda_visible_devices, *lease.devices)
    sys.stdin.readline()
print("left", os.environ.get("CUDA_VISIBLE_DEVICES"))
sys.stdin.readline()
"""

SOFT = """
import logging, model_boss, sys, threading
logging.basicConfig(level="INFO")
saved = threading.Event()
def save(lease):
    print("asked by", lease.revocation.by, lease.revocation.remaining > 1, flush=True)
    saved.set()
lease = model_boss.lease(vram="20GiB", gpus=2, priority=8, min_hold=0, grace=30, on_revoke=save, label="soft")
with lease:
    print("up", flush=True)
    saved.wait()
"""


def test_le_2_a_lease_names_its_gpus_and_is_counted_until_its_process_ends(
    coordinator: Coordinator, script: Start
) -> None:
    job = script(HOLD, coordinator.variables())
    name, pinned, *devices = job.line().split()
    assert (pinned, sorted(devices)) == ("True", ["cuda:0", "cuda:1"])
    [lease] = coordinator.leases()
    assert (lease["id"], lease["state"], lease["pids"]) == (name, "active", [job.process.pid])
    assert [part["bytes"] for part in lease["parts"]] == [18 << 30, 18 << 30]
    assert all(part["uuid"] for part in lease["parts"])
    assert "token" not in lease
    job.say("")
    assert job.line() == "left None"
    [lease] = coordinator.leases()
    assert [part["bytes"] for part in lease["parts"]] == [1, 1], "nothing more is promised than what is in use"
    job.say("")
    assert job.code() == 0
    until(lambda: not coordinator.leases(), "the end of the lease")


def test_le_2_it_waits_its_turn_and_says_why(coordinator: Coordinator, script: Start) -> None:
    first = script(HOLD, coordinator.variables())
    first.line()
    second = script(
        "import model_boss\n"
        "with model_boss.lease(vram='10GiB', on_wait=lambda why: print(why, flush=True)) as lease:\n"
        "    print(*lease.devices, flush=True)\n",
        coordinator.variables(),
    )
    why = second.line()
    assert why.startswith("1 in the queue: ") and "train" in why, why
    assert [waiter["position"] for waiter in coordinator.listing()["waiters"]] == [1]
    os.kill(first.process.pid, signal.SIGKILL)
    first.process.wait()
    while (line := second.line()).startswith("1 in the queue"):
        pass
    assert line in ("cuda:0", "cuda:1")
    assert second.code() == 0


def test_le_2_who_does_not_wait_is_told_and_leaves_no_waiter(coordinator: Coordinator, script: Start) -> None:
    first = script(HOLD, coordinator.variables())
    first.line()
    with pytest.raises(model_boss.WaitedTooLong, match="did not come free in time: 1 in the queue: .*train"):
        model_boss.lease("10GiB", wait=0, url=coordinator.url).__enter__()
    assert coordinator.listing()["waiters"] == []
    with pytest.raises(model_boss.NeverFits):
        model_boss.lease("100GiB", url=coordinator.url).__enter__()
    with pytest.raises(model_boss.Refused) as refused:
        model_boss.lease("10GiB", priority=12, url=coordinator.url).__enter__()
    assert refused.value.code == "invalid_request"


def test_le_3_a_revocation_calls_back_and_the_memory_goes_on(coordinator: Coordinator, script: Start) -> None:
    soft = script(SOFT, coordinator.variables())
    assert soft.line() == "up"
    urgent = script(
        "import model_boss\n"
        "with model_boss.lease('20GiB', gpus=2, priority=2, preempt=True, label='urgent') as lease:\n"
        "    print('mine', flush=True)\n",
        coordinator.variables(),
    )
    assert soft.line() == "asked by urgent True"
    assert soft.code() == 0
    assert urgent.line() == "mine"
    assert urgent.code() == 0


def test_le_3_who_does_not_yield_is_ended_by_itself(coordinator: Coordinator, script: Start) -> None:
    deaf = script(
        "import model_boss, threading\n"
        "with model_boss.lease('20GiB', gpus=2, priority=8, min_hold=0, grace=1, preemptible=True):\n"
        "    print('up', flush=True)\n"
        "    threading.Event().wait()\n",
        coordinator.variables(),
    )
    assert deaf.line() == "up"
    urgent = script(
        "import model_boss\n"
        "with model_boss.lease('20GiB', gpus=2, priority=2, preempt=True): print('mine', flush=True)\n",
        coordinator.variables(),
    )
    assert deaf.code() == -signal.SIGTERM
    assert "the grace is over" in deaf.errors()
    assert urgent.line() == "mine"


def test_le_4_work_goes_on_while_the_coordinator_is_killed_and_started_again(
    coordinator: Coordinator, script: Start
) -> None:
    job = script("import logging\nlogging.basicConfig()\n" + HOLD, coordinator.variables())
    name = job.line().split()[0]
    coordinator.kill()
    coordinator.start()
    [lease] = coordinator.leases()
    assert (lease["id"], lease["pids"]) == (name, [job.process.pid])
    until(lambda: coordinator.leases()[0]["state"] == "active", "a renewed lease")
    job.say("")
    assert job.line() == "left None"
    job.say("")
    assert job.code() == 0
    until(lambda: not coordinator.leases(), "the end of the lease")


class Dropping:
    """Stands between a program and the coordinator, and drops the answers to the first ``count`` requests for a route."""

    def __init__(self, url: str, route: str, count: int) -> None:
        host, port = url.removeprefix("http://").split(":")
        self._behind, self._route, self._left = (host, int(port)), route.encode(), count
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.dropped = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client:
                self._pass_on(client)

    def _pass_on(self, client: socket.socket) -> None:
        request = client.recv(65_536)
        head, _, body = request.partition(b"\r\n\r\n")
        length = int(re.search(rb"(?i)content-length: (\d+)", head).group(1))
        while len(body) < length:
            body += client.recv(65_536)
        with socket.create_connection(self._behind) as coordinator:
            coordinator.sendall(head.replace(b"\r\n", b"\r\nConnection: close\r\n", 1) + b"\r\n\r\n" + body)
            answer = b""
            while piece := coordinator.recv(65_536):
                answer += piece
        if self._route in head.partition(b"\r\n")[0] and self._left > 0:
            self._left -= 1
            self.dropped += 1
        else:
            client.sendall(answer)

    def end(self) -> None:
        self._listener.close()


def test_an_attach_whose_answer_was_lost_is_asked_again(coordinator: Coordinator, script: Start) -> None:
    between = Dropping(coordinator.url, "/attach", 1)
    job = script(HOLD, {"MODEL_BOSS_URL": between.url})
    job.line()
    assert between.dropped == 1
    [lease] = coordinator.leases()
    assert (lease["state"], lease["pids"]) == ("active", [job.process.pid])
    job.say("")
    assert job.line() == "left None"
    [lease] = coordinator.leases()
    assert [part["bytes"] for part in lease["parts"]] == [1, 1], "it knows that it was let through"
    between.end()


def test_a_process_that_never_hears_that_it_was_let_through_promises_itself_nothing(
    coordinator: Coordinator, script: Start
) -> None:
    between = Dropping(coordinator.url, "/attach", 1_000_000)
    job = script(
        "import model_boss, sys\n"
        "model_boss._http._ATTACH_LIMIT = 0.1\n"
        "try:\n"
        "    model_boss.lease('18GiB', gpus=2).__enter__()\n"
        "except model_boss.NotReachable:\n"
        "    print('gave up', flush=True)\n"
        "sys.stdin.readline()\n",
        {"MODEL_BOSS_URL": between.url},
    )
    assert job.line() == "gave up"
    # The process was attached, so the memory that it uses is counted until it ends, and no more than that.
    [lease] = coordinator.leases()
    assert [part["bytes"] for part in lease["parts"]] == [1, 1]
    job.say("")
    assert job.code() == 0
    until(lambda: not coordinator.leases(), "the end of the lease")
    between.end()


def test_nobody_there_is_said() -> None:
    with pytest.raises(model_boss.NotReachable, match="no coordinator answers at http://127.0.0.1:9"):
        model_boss.lease("1GiB", url="http://127.0.0.1:9").__enter__()
    with pytest.raises(ValueError, match="not the address"):
        model_boss.lease("1GiB", url="ftp://127.0.0.1").__enter__()


def test_a_forked_child_keeps_and_releases_nothing(coordinator: Coordinator, script: Start) -> None:
    job = script(
        "import model_boss, os, sys\n"
        "with model_boss.lease('1GiB') as lease:\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        lease.__exit__(None, None, None)\n"
        "        os._exit(0)\n"
        "    os.waitpid(child, 0)\n"
        "    print('forked', flush=True)\n"
        "    sys.stdin.readline()\n",
        coordinator.variables(),
    )
    assert job.line() == "forked"
    [lease] = coordinator.leases()
    assert (lease["state"], lease["parts"][0]["bytes"]) == ("active", 1 << 30)


def test_asyncio_waits_without_blocking_and_can_be_cancelled(coordinator: Coordinator, script: Start) -> None:
    first = script(HOLD, coordinator.variables())
    first.line()
    job = script(
        "import asyncio, model_boss\n"
        "async def main():\n"
        "    async def wait():\n"
        "        async with model_boss.lease('10GiB'): pass\n"
        "    task = asyncio.create_task(wait())\n"
        "    waiting = asyncio.Event()\n"
        "    loop = asyncio.get_running_loop()\n"
        "    asking = model_boss.lease('10GiB', on_wait=lambda why: loop.call_soon_threadsafe(waiting.set))\n"
        "    async def hold():\n"
        "        async with asking: pass\n"
        "    second = asyncio.create_task(hold())\n"
        "    await waiting.wait()\n"
        "    task.cancel(); second.cancel()\n"
        "    ends = await asyncio.gather(task, second, return_exceptions=True)\n"
        "    print(*(type(end).__name__ for end in ends), flush=True)\n"
        "asyncio.run(main())\n",
        coordinator.variables(),
    )
    assert job.line() == "CancelledError CancelledError"
    assert job.code() == 0
    assert coordinator.listing()["waiters"] == []
