"""An object that several want at a time."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from harness.devices.sim import once
from harness.devices.sim.once import compiled_once

KEY = "c0ffee"
MADE = {"kernel": "k", "sites": [{"line": 3}]}, b"\x7fELF"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    return tmp_path


class Compiler:
    """Compiles when it is let, and counts how often it was asked."""

    def __init__(self, fails: int = 0) -> None:
        self.asked = threading.Semaphore(0)
        self.let = threading.Event()
        self.calls, self.fails = 0, fails

    def __call__(self):
        self.calls += 1
        self.asked.release()
        assert self.let.wait(30)
        if self.calls <= self.fails:
            raise ValueError("refused")
        return MADE


def test_a_second_one_waits_and_takes_the_firsts_result():
    compile = Compiler()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(compiled_once, KEY, compile)
        assert compile.asked.acquire(timeout=30)
        second = pool.submit(compiled_once, KEY, compile)
        assert not compile.asked.acquire(timeout=0.2)
        compile.let.set()
        assert first.result() == second.result() == MADE
    assert compile.calls == 1


def test_other_kernels_do_not_wait():
    compile = Compiler()
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(compiled_once, key, compile) for key in (KEY, "0d")]
        assert all(compile.asked.acquire(timeout=30) for _ in waiting)
        compile.let.set()
    assert compile.calls == 2


def test_where_the_first_fails_the_second_tries():
    compile = Compiler(fails=1)
    compile.let.set()
    with pytest.raises(ValueError, match="refused"):
        compiled_once(KEY, compile)
    assert compiled_once(KEY, compile) == MADE
    assert compile.calls == 2


def test_always_compile_means_always(monkeypatch):
    monkeypatch.setenv("TRITON_ALWAYS_COMPILE", "1")
    compile = Compiler()
    compile.let.set()
    assert [compiled_once(KEY, compile) for _ in range(2)] == [MADE, MADE]
    assert compile.calls == 2


def test_a_cache_without_a_folder_compiles_for_everyone(monkeypatch):
    class Elsewhere:
        """As Triton's caches on other machines are."""

        def get_file(self, name):
            return None

        def put(self, data, name, binary=True):
            pass

    monkeypatch.setattr(once, "get_cache_manager", lambda key: Elsewhere())
    compile = Compiler()
    compile.let.set()
    assert compiled_once(KEY, compile) == MADE
