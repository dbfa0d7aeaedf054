"""Tests of the parts that need no GPU: python3 -m unittest discover -s scripts -p 'test_*.py' -t scripts"""

import ctypes
import http.client
import os
import unittest
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

from gpu_check import by_llama_cpp, ceiling, families, main, streaming
from gpu_check.coordinator import Coordinator, move_under_load
from gpu_check.rows import ROWS, Outcome

REPOSITORY = Path(__file__).resolve().parents[3]


UUID = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"


class SimulatedLibrary:
    """A simulated libcuda: every call succeeds, a copy takes a quarter of a millisecond, and the call `refused` fails. The second
    of its two GPUs is the one of `UUID`."""

    def __init__(self, refused: str = ""):
        self.refused, self.called = refused, []

    def __getattr__(self, name: str):
        def function(*arguments):
            self.called.append(name)
            if name == "cuEventElapsedTime":
                ctypes.cast(arguments[0], ctypes.POINTER(ctypes.c_float))[0] = 0.25
            if name == "cuDeviceGetCount":
                ctypes.cast(arguments[0], ctypes.POINTER(ctypes.c_int))[0] = 2
            if name == "cuDeviceGet":
                ctypes.cast(arguments[0], ctypes.POINTER(ctypes.c_int))[0] = arguments[1]
            if name == "cuDeviceGetUuid_v2" and arguments[1].value == 1:
                ctypes.memmove(arguments[0], bytes(range(16)), 16)
            if name == "cuDevicePrimaryCtxRetain":
                self.retained = arguments[1].value
            return 999 if name == self.refused else 0

        return function


class Ceiling(unittest.TestCase):
    def test_a_copy_of_a_mebibyte_in_a_quarter_of_a_millisecond(self):
        library = SimulatedLibrary()
        rates = ceiling.pinned_copy(ceiling.Driver(library), UUID, 1 << 20, 3)
        self.assertEqual((len(rates), library.retained), (3, 1))
        self.assertAlmostEqual(rates[0] / 1e9, 4.194304, places=3)
        self.assertEqual(library.called.count("cuMemcpyHtoDAsync_v2"), 3)
        for given, taken in [("cuMemAlloc_v2", "cuMemFree_v2"), ("cuMemHostAlloc", "cuMemFreeHost")]:
            self.assertEqual(library.called.count(given), library.called.count(taken))

    def test_what_the_driver_refuses_is_named_and_its_context_is_given_back(self):
        library = SimulatedLibrary("cuMemHostAlloc")
        with self.assertRaisesRegex(RuntimeError, "cuMemHostAlloc answers 999"):
            ceiling.pinned_copy(ceiling.Driver(library), UUID, 1, 1)
        self.assertEqual(library.called[-1], "cuDevicePrimaryCtxRelease_v2")

    def test_a_copy_within_the_gpu_reads_and_writes(self):
        library = SimulatedLibrary()
        rates = ceiling.own_memory(ceiling.Driver(library), UUID, 1 << 20, 2)
        self.assertAlmostEqual(rates[1] / 1e9, 8.388608, places=3)
        self.assertEqual((library.called.count("cuMemAlloc_v2"), library.called.count("cuMemFree_v2")), (2, 2))

    def test_another_gpu_is_not_measured_in_its_place(self):
        with self.assertRaisesRegex(RuntimeError, "shows no GPU-ff"):
            ceiling.pinned_copy(ceiling.Driver(SimulatedLibrary()), "GPU-" + 16 * "ff", 1, 1)


class Streaming(unittest.TestCase):
    def report(self, **totals) -> dict:
        names = ["bytes", "read_seconds", "place_seconds", "compute_seconds", "ends_seconds", "stall_seconds", "wall_seconds"]
        return {"totals": dict.fromkeys(names, 0.0) | totals}

    def test_only_what_came_in_between_counts(self):
        before = self.report(bytes=7e9, wall_seconds=5.0, place_seconds=4.0)
        after = self.report(bytes=56e9, wall_seconds=6.0, read_seconds=0.3, place_seconds=4.95, compute_seconds=0.4)
        outcome = streaming.against_ceiling(before, after, 50e9)
        self.assertTrue(outcome.ok)
        self.assertAlmostEqual(outcome.numbers["share"], 0.98)
        self.assertAlmostEqual(outcome.numbers["overlap"], 0.95)
        self.assertFalse(streaming.against_ceiling(before, after, 60e9).ok)

    def test_what_computes_is_layers_and_ends(self):
        after = self.report(bytes=49e9, wall_seconds=1.0, place_seconds=0.5, compute_seconds=0.6, ends_seconds=0.3)
        self.assertAlmostEqual(streaming.against_ceiling(self.report(), after, 50e9).numbers["overlap"], 0.9)

    def test_an_answer_that_breaks_off_has_failed(self):
        class Boss:
            def ask(self, method, path, body):
                if path.startswith("/v1/"):
                    raise http.client.IncompleteRead(b"half")
                return 200, {}

        moved = move_under_load(Boss(), "guide", "cuda:0", 2, after=0.01)
        self.assertEqual(len(moved["failed"]), moved["answers"])
        self.assertGreater(moved["answers"], 0)
        self.assertIn("IncompleteRead", moved["failed"][0])

    def test_a_failed_request_fails_the_move(self):
        moved = {"status": 200, "moved": {}, "seconds": 1.0, "answers": 9, "during_move": 4, "failed": []}
        self.assertTrue(streaming.outcome_of_move(moved).ok)
        for wrong in [{"failed": [502]}, {"status": 409}, {"during_move": 0}]:
            self.assertFalse(streaming.outcome_of_move(moved | wrong).ok, wrong)


class ByLlamaCpp(unittest.TestCase):
    HEAD = "main: n_kv_max = 8192\n|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    S t/s |\n|-------|\n"

    def row(self, streams: int, prefill: float, decode: float) -> str:
        return f"|    16 |    128 | {streams} |    144 |    0.020 | {prefill} |    0.163 | {decode} |    0.183 |   788.21 |\n"

    def test_the_medians_are_of_all_rounds_but_the_first(self):
        rounds = [self.row(streams, 800.0, rate * streams) for rate in (1.0, 700.0, 900.0, 800.0) for streams in by_llama_cpp.STREAMS]
        rows = by_llama_cpp.table(self.HEAD + "".join(rounds))
        prompts = by_llama_cpp.table(self.HEAD + "".join(self.row(1, rate, 1.0) for rate in (5.0, 60_000.0, 70_000.0, 65_000.0)))
        outcome = by_llama_cpp.outcome_of(rows, prompts)
        self.assertTrue(outcome.ok)
        self.assertEqual(outcome.value, "tokens/s: streams 1 800, 8 6,400, 16 12,800, 32 25,600; prefill 65,000")

    def test_a_program_without_a_table_has_failed(self):
        self.assertFalse(by_llama_cpp.outcome_of([], by_llama_cpp.table(self.HEAD)).ok)


class Families(unittest.TestCase):
    PASSED = "CASE llama/plain Ok(1.5e-6)\nCASE llama/yarn Ok(2e-05)\ntest result: ok. 1 passed; 0 failed\n"
    FAILED = "thread 'fa_1' panicked at families.rs:37:5:\n1 faults:\nllama/plain: off by 0.5\nnote: run with\n"

    def test_a_family_has_passed_if_its_test_ran(self):
        self.assertEqual(families.result_of(0, self.PASSED), {"ok": True, "apart": 2e-05})
        self.assertFalse(families.result_of(0, "test result: ok. 0 passed; 0 failed")["ok"])
        self.assertIn("llama/plain: off by 0.5", families.result_of(101, self.FAILED)["why"])
        self.assertFalse(families.result_of(-11, self.PASSED)["ok"])

    def test_each_row_runs_a_test_that_is_there(self):
        source = (REPOSITORY / "worker" / "candle" / "tests" / "families.rs").read_text()
        for test in families.TESTS.values():
            self.assertIn(f"fn {test}()", source)

    def test_a_row_names_the_families_that_failed_and_the_worst_of_the_others(self):
        good, bad = families.result_of(0, self.PASSED), families.result_of(101, self.FAILED)
        outcome = families.summary({"llama": good, "olmo": bad})
        self.assertFalse(outcome.ok)
        self.assertIn("1 of 2 families; 2e-05 apart at most, llama", outcome.value)
        self.assertIn("olmo: 1 faults", outcome.value)
        self.assertTrue(families.summary({"llama": good}).ok)
        self.assertFalse(families.summary({}).ok)


class Table(unittest.TestCase):
    def test_without_a_gpu_its_rows_are_pending_and_the_others_run(self):
        bench = SimpleNamespace(gpu=None)
        for row in ROWS:
            for device in row.devices:
                if device != "cpu":
                    self.assertEqual(main.run(row, bench, device)["status"], "pending", row.name)
        self.assertEqual(len(ROWS), len({row.name for row in ROWS}))

    def test_a_row_that_breaks_is_a_failed_row(self):
        def broken(_bench, _device):
            raise RuntimeError("no such worker")

        row = SimpleNamespace(name="x", measure=broken)
        with open(os.devnull, "w") as nowhere:
            import contextlib

            with contextlib.redirect_stderr(nowhere):
                result = main.run(row, SimpleNamespace(gpu=None), "cpu")
        self.assertEqual((result["status"], result["value"]), ("failed", "RuntimeError: no such worker"))
        row.measure = lambda *_: Outcome("later", True, {"pending": True})
        self.assertEqual(main.run(row, SimpleNamespace(gpu=None), "cpu")["status"], "pending")


class Move(unittest.TestCase):
    """The row about moves on a simulated machine, with the fake worker."""

    def test_dm_5_a_move_under_load_fails_no_request(self):
        programs = Path(os.environ.get("MODEL_BOSS_TEST_BIN_DIR", REPOSITORY / "target" / "debug"))
        if not (programs / "model-boss").is_file() or not (programs / "model-boss-fake-worker").is_file():
            self.skipTest(f"no model-boss in {programs}")
        with TemporaryDirectory() as folder:
            machine = Path(folder) / "machine.toml"
            machine.write_text('[[gpu]]\nmemory = "24GiB"\n')
            (Path(folder) / "guide").symlink_to(REPOSITORY / "manifests" / "guide")
            boss = Coordinator(programs / "model-boss", None, Path(folder), ("--simulate", str(machine)))
            try:
                self.assertEqual(boss.ask("POST", "/api/v1/load", {"model_name": "guide", "device": "cpu"})[0], 200)
                moved = move_under_load(boss, "guide", "cuda:0", 4, after=0.3)
            finally:
                boss.stop()
        self.assertEqual((moved["status"], moved["failed"]), (200, []))
        self.assertGreater(moved["answers"], 4)


if __name__ == "__main__":
    unittest.main()
