"""Tests that need neither a coordinator nor Redis."""

from __future__ import annotations

import json
import os
import sys
import threading
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, Callable, Optional

import pytest

import model_boss
from model_boss._lease import Lease, _LeaseListener
from model_boss._http import _answer
from model_boss._words import Grant, Listener, Part, Process, Wish, label_of, printable, read_json, seconds
from trainer_callback import SaveOnRevocation


def test_durations_are_read_as_the_coordinator_reads_them() -> None:
    assert [seconds(span) for span in (5, 1.5, "250ms", "1h30m", "2m", timedelta(minutes=1))] == [
        5.0,
        1.5,
        0.25,
        5400.0,
        120.0,
        60.0,
    ]
    for wrong in ("60", "", "5 parsecs", "m"):
        with pytest.raises(ValueError, match="no duration"):
            seconds(wrong)
    with pytest.raises(ValueError, match="negative"):
        seconds(-1)


def test_this_process_is_known_by_more_than_its_number() -> None:
    me = Process.this()
    assert me.pid == os.getpid() and me.start_time > 0
    assert me.pid_ns == os.readlink("/proc/self/ns/pid")


def test_op_10_texts_from_outside_cannot_steer_a_terminal() -> None:
    hostile = "\x1b]0;t\x07\u202egpj\x9b2J\r\n\U000e0041"
    shown = r"\u001b]0;t\u0007\u202egpj\u009b2J\r\n\U000e0041"
    assert printable(hostile) == shown
    assert printable("train.py, größer als 東京") == "train.py, größer als 東京"
    assert read_json(json.dumps({"by": [hostile], hostile: 7})) == {"by": [shown], shown: 7}
    assert str(model_boss.LeaseLost(hostile)) == shown
    with pytest.raises(model_boss.Refused) as refused:
        _answer("http://x", 400, json.dumps({"error": {"message": hostile, "code": "invalid_request"}}).encode())
    assert str(refused.value) == shown
    assert len(label_of("ß\x1b" * 100).encode()) <= 128 and label_of("ß\x1b" * 100).isprintable()


class Given:
    """A backend that grants at once, and records its calls."""

    def __init__(self, parts: list[Part]) -> None:
        self.parts, self.story = parts, list[str]()
        self.listener: Optional[Listener] = None

    def acquire(self, wish: Wish, waiting: Callable[[str], None], stopped: Callable[[float], bool]) -> Grant:
        self.story.append("acquire")
        return Grant("lease-1", self.parts)

    def attach(self, pid: int) -> None:
        self.story.append(f"attach with {os.environ['CUDA_VISIBLE_DEVICES']}")

    def watch(self, listener: Listener) -> None:
        self.listener = listener

    def release(self) -> Optional[str]:
        self.story.append("release")
        return None


def lease_of(given: Given, **options: Any) -> Lease:
    made = model_boss.lease("1GiB", url="http://127.0.0.1:9", **options)
    made._open = lambda: given
    return made


GPUS = [Part("cuda:1", 5, "GPU-b"), Part("cuda:0", 5, "GPU-a")]


def test_the_gpus_are_pinned_before_the_gate_and_given_back_after(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    given = Given(GPUS)
    with lease_of(given) as lease:
        assert (lease.devices, lease.cuda_visible_devices) == (["cuda:1", "cuda:0"], "GPU-b,GPU-a")
        assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert given.story == ["acquire", "attach with GPU-b,GPU-a", "release"]
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "7" and "CUDA_DEVICE_ORDER" not in os.environ
    with pytest.raises(model_boss.LeaseError, match="used once"):
        lease.__enter__()


def test_cuda_in_use_is_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    used = SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: True))
    monkeypatch.setitem(sys.modules, "torch", used)
    given = Given(GPUS)
    with pytest.raises(model_boss.CudaTouched):
        lease_of(given).__enter__()
    assert given.story == []


def test_wishes_that_make_no_sense_are_named() -> None:
    with pytest.raises(ValueError, match="gpus must be"):
        model_boss.lease("1GiB", gpus=0)
    with pytest.raises(ValueError, match="devices names none"):
        model_boss.lease("1GiB", devices=[])
    with pytest.raises(model_boss.LeaseError, match="not there yet"):
        model_boss.lease("1GiB").id


class Trainer:
    """The part of transformers' Trainer that concerns this callback: steps, flags, saves."""

    def __init__(self, callback: SaveOnRevocation, step: Callable[[int], None]) -> None:
        self.callback, self.step, self.saved = callback, step, list[int]()

    def train(self, steps: int) -> int:
        state = SimpleNamespace(global_step=0)
        control = SimpleNamespace(should_save=False, should_training_stop=False)
        for number in range(1, steps + 1):
            state.global_step = number
            self.step(number)
            control = self.callback.on_step_end(None, state, control)
            if control.should_save:
                control.should_save = False
                self.saved.append(number)
                control = self.callback.on_save(None, state, control)
            if control.should_training_stop:
                break
        return int(state.global_step)


def test_the_trainer_saves_once_and_stops_at_the_step_of_the_revocation(capsys: pytest.CaptureFixture[str]) -> None:
    called = threading.Event()
    given = Given(GPUS)
    with lease_of(given, on_revoke=lambda lease: called.set()) as lease:

        def step(number: int) -> None:
            if number == 3:
                assert given.listener is not None
                given.listener.revoked("urgent", 30.0)
                given.listener.revoked("urgent", 29.0)

        trainer = Trainer(SaveOnRevocation(lease), step)
        assert trainer.train(10) == 3
        assert trainer.saved == [3]
        assert called.wait(10)
        assert lease.revocation is not None and 20 < lease.revocation.remaining <= 29
    assert "saved step 3" in capsys.readouterr().out


def test_without_a_revocation_the_trainer_goes_on() -> None:
    with lease_of(Given(GPUS)) as lease:
        trainer = Trainer(SaveOnRevocation(lease), lambda number: None)
        assert trainer.train(5) == 5
        assert trainer.saved == []


def test_on_lost_is_called_instead_of_the_end() -> None:
    called = threading.Event()
    with lease_of(Given(GPUS), on_lost=lambda lease: called.set()) as lease:
        _LeaseListener(lease).lost("forgotten")
        assert called.wait(10) and lease.lost.is_set()
