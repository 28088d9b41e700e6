"""What a launch needs is compiled before it, and nothing else of the launch shows."""

from __future__ import annotations

import threading

import pytest
import torch
import triton
import triton.language as tl
from triton.compiler import ASTSource
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from golden.comparators import Close
from golden.fill import normal
from golden.specs import TensorSpec
from harness.devices.sim import ahead, backend, dry, frontend
from harness.devices.sim.device import SimDevice
from harness.devices.sim.pool import CompilerPool
from harness.golden_cache import GoldenCache
from harness.run import run_case
from harness.stage import Stage
from tests.harness.fakes import case

SIZE = 64
DEVICE = "sim:checked"


@triton.jit
def plus(x_ptr, y_ptr, ADDEND: tl.constexpr, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    tl.store(y_ptr + places, tl.load(x_ptr + places) + ADDEND)


@triton.jit
def negate(y_ptr, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    tl.store(y_ptr + places, -tl.load(y_ptr + places))


@triton.jit
def unreadable(y_ptr, BLOCK: tl.constexpr):
    tl.store(y_ptr + tl.arange(0, BLOCK), nothing_of_this_name)  # noqa: F821 - the fault under test


@triton.jit
def refused(y_ptr, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    y = tl.load(y_ptr + places).to(tl.float16)
    tl.store(y_ptr + places, tl.dot(y, y, out_dtype=tl.float16).to(tl.float32))


def fresh(kernel):
    """The kernel as nobody has launched it."""
    return triton.jit(kernel.fn)


@pytest.fixture
def device(tmp_path, monkeypatch):
    """A simulator with an empty cache, and two compilers that nobody has started."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    pool = CompilerPool(2)
    for module in (ahead, backend):
        monkeypatch.setattr(module, "compiler", lambda: pool)
    yield SimDevice()
    pool.close()


@pytest.fixture
def compiled(monkeypatch):
    """The names of the kernels that Triton compiles at a launch, or finds in its cache on disk."""
    names = []

    class Watch:
        def __enter__(self):
            monkeypatch.setattr(JITFunction, "compiled_hook", staticmethod(lambda *, fn, **_: names.append(fn.name)))
            return names

        def __exit__(self, *_):
            monkeypatch.setattr(JITFunction, "compiled_hook", None)

    return Watch()


def three_kernels():
    adds, negates = fresh(plus), fresh(negate)

    def launch(x, y):
        for addend in (1.0, 2.0, 1.0):
            adds[(1,)](x, y, ADDEND=addend, BLOCK=SIZE)
        negates[(1,)](y, BLOCK=SIZE)

    return launch, adds, negates


def on_nothing(launch):
    return lambda: launch(torch.zeros(SIZE), torch.zeros(SIZE))


def test_a_launch_finds_its_kernels_compiled(device, compiled):
    launch, adds, negates = three_kernels()
    device.compile_ahead(on_nothing(launch))
    assert (len(adds.cache[DEVICE]), len(negates.cache[DEVICE])) == (2, 1)
    x, y = torch.randn(SIZE), torch.zeros(SIZE)
    with compiled as names, device.active() as log:
        launch(x, y)
    assert names == []
    assert [record.kernel for record in log.launches] == ["plus", "plus", "plus", "negate"]
    assert torch.equal(y, -(x + 1))
    other, *_ = three_kernels()
    with compiled as names, device.active():
        other(x, y)
    assert names == ["plus", "plus", "negate"]


def test_what_is_compiled_already_is_not_asked_for_again(device):
    launch, adds, _ = three_kernels()
    device.compile_ahead(on_nothing(launch))
    asked = []
    adds.compile = lambda source, **_: asked.append(source)
    device.compile_ahead(on_nothing(launch))
    assert asked == []


def test_a_mode_has_its_own_kernels(device):
    launch, adds, _ = three_kernels()
    SimDevice("sanitize").compile_ahead(on_nothing(launch))
    assert adds.cache[DEVICE] == {}
    assert {kernel.metadata.target.arch for kernel in adds.cache["sim:sanitize"].values()} == {"sanitize"}


@pytest.mark.parametrize("options", [{}, {"debug": True}, {"allowed_dot_input_precisions": ("ieee",)}])
def test_a_kernel_is_the_one_that_triton_would_have_made(device, options):
    ahead_of_launch, usual = fresh(plus), fresh(plus)

    def launch(kernel):
        kernel[(1,)](torch.zeros(SIZE), torch.zeros(SIZE), ADDEND=1.0, BLOCK=SIZE, **options)

    device.compile_ahead(lambda: launch(ahead_of_launch))
    with device.active():
        launch(usual)
    ((key, made),), ((usual_key, wanted),) = ahead_of_launch.cache[DEVICE].items(), usual.cache[DEVICE].items()
    assert key == usual_key
    assert made.hash == wanted.hash
    assert made.metadata == wanted.metadata


def many_kernels(count):
    adds = fresh(plus)

    def launch(x, y):
        for addend in range(count):
            adds[(1,)](x, y, ADDEND=float(addend), BLOCK=SIZE)

    return launch, adds


def test_two_compilers_work_where_it_pays(device):
    pool = backend.compiler()
    launch, adds = many_kernels(ahead.WORTH_A_START)
    device.compile_ahead(on_nothing(launch))
    assert (len(adds.cache[DEVICE]), pool.running) == (ahead.WORTH_A_START, 1)
    launch, adds = many_kernels(ahead.WORTH_A_START)
    # All these are in the cache on disk.
    pool.close()
    device.compile_ahead(on_nothing(launch))
    assert (len(adds.cache[DEVICE]), pool.running) == (ahead.WORTH_A_START, 0)
    launch, adds = many_kernels(2 * ahead.WORTH_A_START + 1)
    device.compile_ahead(on_nothing(launch))
    assert (len(adds.cache[DEVICE]), pool.running) == (2 * ahead.WORTH_A_START + 1, 2)


def test_two_threads_compile_where_two_compilers_run(device):
    backend.compiler().start(2)
    launch, adds = many_kernels(2)
    dry_run = on_nothing(launch)
    with device.active():
        adds.create_binder(triton.compiler.make_backend(driver.active.get_current_target()))
    own, together = adds.compile, threading.Barrier(2)

    def compile_beside(source, **options):
        made = own(source, **options)
        # Nobody comes here alone.
        together.wait(30.0)
        return made

    adds.compile = compile_beside
    device.compile_ahead(dry_run)
    assert len(adds.cache[DEVICE]) == 2


def test_the_frontend_has_one_kernel_at_a_time_and_so_have_routines(device, monkeypatch):
    held = {}

    def watch(owner, name, lock):
        own = getattr(owner, name)

        def watched(*arguments, **named):
            held[name] = lock.locked()
            return own(*arguments, **named)

        monkeypatch.setattr(owner, name, watched)

    watch(ASTSource, "hash", frontend.FRONTEND)
    watch(ASTSource, "make_ir", frontend.FRONTEND)
    watch(backend, "make_ttir", frontend.FRONTEND)
    watch(backend, "load_routines", backend._ROUTINES)
    device.compile_ahead(on_nothing(right()))
    assert held == {"hash": True, "make_ir": True, "make_ttir": True, "load_routines": True}
    assert not frontend.FRONTEND.locked()


def stage(launch):
    """y = -(x + 1) by `launch`."""

    def specs(case):
        rows = (SIZE,)
        return (
            TensorSpec("x", rows, torch.float32, normal(case.seed, "x")),
            TensorSpec("y", rows, torch.float32, role="out"),
        )

    def golden(t, *, precision):
        return {"y": -(t["x"] + 1)}

    return Stage("toy_stage", specs, golden, launch, compare={"y": Close(rtol=1e-6, atol=1e-6)})


def run(launch, device):
    return run_case(stage(launch), case(), device=device, golden_cache=GoldenCache(folder=None))


def right():
    return three_kernels()[0]


def wrong():
    adds = fresh(plus)
    return lambda x, y: adds[(1,)](x, y, ADDEND=2.0, BLOCK=SIZE)


def outside():
    adds = fresh(plus)
    return lambda x, y: adds[(1,)](x[1:], y, ADDEND=2.0, BLOCK=SIZE)


def unreadable_source():
    adds, bad, negates = fresh(plus), fresh(unreadable), fresh(negate)

    def launch(x, y):
        adds[(1,)](x, y, ADDEND=1.0, BLOCK=SIZE)
        bad[(1,)](y, BLOCK=SIZE)
        negates[(1,)](y, BLOCK=SIZE)

    return launch


def refused_construct():
    bad = fresh(refused)
    return lambda x, y: bad[(1,)](y, BLOCK=16)


def reads_its_result():
    launch = right()

    def reading(x, y):
        launch(x, y)
        if not float(y.abs().max()):
            raise ArithmeticError("nothing has run")

    return reading


def raises_before():
    def launch(x, y):
        raise ArithmeticError("never")

    return launch


LAUNCHES = (right, wrong, outside, unreadable_source, refused_construct, reads_its_result, raises_before)


@pytest.mark.parametrize("launch", LAUNCHES, ids=lambda launch: launch.__name__)
def test_the_report_is_what_it_would_be_without(launch, device, monkeypatch):
    with_it = run(launch(), device)
    monkeypatch.setattr(SimDevice, "compile_ahead", lambda self, launch: None)
    without = run(launch(), device)
    assert with_it.passed == (launch in (right, reads_its_result))
    for name in ("verdicts", "warnings", "traffic", "repetitions", "command"):
        assert getattr(with_it, name) == getattr(without, name)
    assert [str(failure) for failure in with_it.failures] == [str(failure) for failure in without.failures]


def test_a_dry_launch_has_other_tensors_than_the_fixture(device):
    launch, *_ = three_kernels()
    seen = []

    def spoil(x, y):
        seen.append((x, y))
        launch(x, y)
        if len(seen) == 1:
            x.fill_(5.0)
            y.fill_(5.0)

    report = run(spoil, device)
    assert report.passed
    assert len(seen) == 3
    assert {tensor.data_ptr() for tensor in seen[0]}.isdisjoint(tensor.data_ptr() for tensor in seen[1])


def raising(x, y):
    raise ArithmeticError("never")


@pytest.mark.parametrize("launch", [raising, right()], ids=["raises", "launches"])
def test_triton_is_left_as_it_was(device, launch):
    before = (driver.active, JITFunction.cache_hook, JITFunction.compiled_hook)
    device.compile_ahead(on_nothing(launch))
    assert (driver.active, JITFunction.cache_hook, JITFunction.compiled_hook) == before


def test_dry_launches_leave_triton_as_it_was():
    before = (driver.active, JITFunction.cache_hook)
    launch, launches = right(), []

    def launch_and_raise():
        nonlocal launches
        with dry.dry_launches() as launches:
            on_nothing(launch)()
            raise ArithmeticError("never")

    with pytest.raises(ArithmeticError):
        launch_and_raise()
    assert [launch.fn.__name__ for launch in launches] == ["plus", "plus", "plus", "negate"]
    assert (driver.active, JITFunction.cache_hook) == before


def test_who_watches_compilations_sees_them_where_they_are_launched(device, compiled):
    launch, *_ = three_kernels()
    with compiled as names:
        device.compile_ahead(on_nothing(launch))
        assert names == []
        with device.active():
            on_nothing(launch)()
    assert names == ["plus", "plus", "negate"]


def test_what_a_launch_prints_is_printed_by_the_launch(device, capsys):
    adds = fresh(plus)

    def launch():
        print("the launch's own")
        adds[(1,)](torch.zeros(SIZE), torch.zeros(SIZE), ADDEND=1.0, BLOCK=SIZE, num_warps=8)

    device.compile_ahead(launch)
    assert capsys.readouterr().out == ""
    with device.active():
        launch()
    printed = capsys.readouterr().out
    assert printed.startswith("the launch's own\n[WARNING] Please DO NOT tune args ['num_warps']")


def test_a_launch_that_waits_for_what_a_kernel_writes_ends(device, monkeypatch):
    monkeypatch.setattr(dry, "MOST_LAUNCHES", 5)
    adds = fresh(plus)

    def launch():
        y = torch.zeros(SIZE)
        while not y.any():
            adds[(1,)](torch.zeros(SIZE), y, ADDEND=1.0, BLOCK=SIZE)

    with dry.dry_launches() as launches, pytest.raises(RuntimeError, match="5 launches and no end"):
        launch()
    assert len(launches) == 5
    device.compile_ahead(launch)
    with device.active() as log:
        launch()
    assert len(log.launches) == 1


def test_nothing_after_a_kernel_that_fails_is_compiled(device):
    bad, negates = fresh(unreadable), fresh(negate)

    def launch():
        y = torch.zeros(SIZE)
        bad[(1,)](y, BLOCK=SIZE)
        negates[(1,)](y, BLOCK=SIZE)

    device.compile_ahead(launch)
    assert negates.cache[DEVICE] == {}
