"""Compiler processes side by side."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from harness.devices.sim.errors import CompilerError
from harness.devices.sim.pool import CompilerPool
from tests.harness.devices.sim.test_compiler import EMPTY_KERNEL

NOTHING = EMPTY_KERNEL.replace("BODY", "")
LONG_S = 30.0


@pytest.fixture
def pool():
    pool = CompilerPool(2)
    yield pool
    pool.close()


def both_compile(pool):
    both = threading.Barrier(2)
    with ThreadPoolExecutor(2) as threads:
        asked = [threads.submit(pool.compile, NOTHING, lowered=lambda facts: both.wait(LONG_S)) for _ in range(2)]
        return [done.result(LONG_S)[0]["kernel"] for done in asked] == ["nothing", "nothing"]


def test_one_kernel_after_another_needs_one_process(pool):
    pool.start()
    for _ in range(3):
        assert pool.compile(NOTHING)[0]["kernel"] == "nothing"
    assert pool.running == 1
    assert pool.processes[0].running
    pool.close()
    assert pool.running == 0


def test_two_kernels_compile_at_once_and_a_third_waits(pool):
    assert both_compile(pool)
    assert pool.running == 2
    started, release, third = threading.Barrier(3), threading.Event(), threading.Event()

    def hold(facts):
        started.wait(LONG_S)
        release.wait(LONG_S)

    with ThreadPoolExecutor(3) as threads:
        held = [threads.submit(pool.compile, NOTHING, lowered=hold) for _ in range(2)]
        started.wait(LONG_S)
        waiting = threads.submit(pool.compile, NOTHING, lowered=lambda facts: third.set())
        assert not third.is_set()
        release.set()
        for done in (*held, waiting):
            done.result(LONG_S)
    assert third.is_set()


def test_a_process_that_compiles_keeps_nobody_from_starting_the_other(pool):
    pool.compile(NOTHING, lowered=lambda facts: pool.start())
    assert pool.running == 2


def test_as_many_start_as_there_are(pool):
    pool.start(2)
    assert pool.running == 2
    one = CompilerPool(1)
    one.start(2)
    assert one.running == 1
    one.close()


def test_a_process_that_died_is_replaced(pool):
    pool.start(2)
    os.kill(pool.processes[0]._process.pid, signal.SIGKILL)
    pool.processes[0]._process.wait()
    assert pool.running == 1
    assert both_compile(pool)
    assert pool.running == 2


def test_a_process_is_free_again_after_an_error(pool):
    for _ in range(3):
        with pytest.raises(CompilerError, match="does not parse"):
            pool.compile("not IR")
    assert both_compile(pool)


def test_a_forked_child_has_no_process_of_its_parents(pool):
    pool.start(2)
    child = os.fork()
    if not child:
        os._exit(pool.running)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert pool.running == 2
