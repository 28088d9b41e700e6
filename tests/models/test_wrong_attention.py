"""Attention and hyper-connection kernels with one fault in each fail, for the fault's own reason."""

from __future__ import annotations

import re
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import pytest

from harness.devices.registry import open_device
from harness.golden_cache import GoldenCache
from harness.report import FailureKind, Report
from harness.run import run_case
from models.deepseek_v4 import (
    hc_head,
    hc_post,
    hc_pre,
    sparse_attention_csa,
    sparse_attention_hca,
    sparse_attention_swa,
)
from models.deepseek_v4.config import TINY
from models.kernels import attention, hyper_connections
from tests.models.changed_copy import changed_copy
from tests.models.fixture import case_at

SWA, HCA, CSA = sparse_attention_swa, sparse_attention_hca, sparse_attention_csa

LOUD = replace(TINY, rms_norm_eps=0.1, hc_eps=0.05, hc_sinkhorn_iterations=3)
"""Epsilons that show wherever one is missing, and iterations before Sinkhorn has converged."""


SEED = 2
"""Puts a row that nobody may read where a masked lane reads: first in the pool."""


@dataclass(frozen=True)
class Fault:
    """`old` becomes `new` in `stage`'s module, or in the kernels that it shares where `shared` is their module.

    The run must fail as `kind` at `where`, for a reason like `reason`; `often` in every run of the tests, the others
    where there is time.
    """

    id: str
    stage: ModuleType
    old: str
    new: str
    where: str = "attn_out"
    shared: ModuleType | None = None
    kind: FailureKind = "output"
    reason: str = "beyond"
    often: bool = False


WINDOW = "window_indices(window, start, length, BW)"
GATHER = "row = tl.maximum(index, 0)"
SINKHORN = """    for _ in range(1, iterations):
        comb = comb / (tl.sum(comb, 1)[:, None] + hc_eps)
        comb = comb / (tl.sum(comb, 0)[None, :] + hc_eps)
"""
ROWS, COLUMNS = SINKHORN.splitlines(keepends=True)[1:]
MIX = "comb = comb_ptr + token * 16 + out\n"

FAULTS = [
    Fault("window without its newest row", SWA, WINDOW, "window_indices(window, start, length - 1, BW)"),
    Fault("window without its oldest row", SWA, WINDOW, "window_indices(window + 1, start, length - 1, BW)"),
    Fault("missing sink", SWA, "tl.full([BH], 1.0, tl.float32)", "tl.full([BH], 0.0, tl.float32)", shared=attention,
          often=True),
    Fault(
        "sink in the numerator", SWA, "return m, total, tl.zeros([BH, WIDTH], tl.float32)",
        "return m, total, tl.zeros([BH, WIDTH], tl.float32) + 1.0", shared=attention,
    ),
    Fault("forward rotation", SWA, "rope_sin, inverse=True)", "rope_sin, inverse=False)"),
    Fault(
        "row -1 read", SWA, GATHER, "row = index", where="sparse_attention_kernel", shared=attention,
        kind="violation", reason="load of 'cache_ptr' touches", often=True,
    ),
    Fault(
        "compressed row -1 read", HCA, GATHER, "row = index", where="sparse_attention_hca_kernel", shared=attention,
        kind="violation", reason="load of 'cmp_ptr' touches",
    ),
    Fault("unseen rows weigh", SWA, "tl.where(seen[None, :], s, -1e30)", "s", shared=attention),
    Fault("NaN of an unseen row", SWA, "rows = tl.where(seen[:, None], rows, 0.0)", "", shared=attention,
          reason="not finite"),
    Fault("older sum not shrunk", HCA, "total * shrink", "total", shared=attention),
    Fault("older rows not shrunk", CSA, "o * shrink[:, None]", "o", shared=attention),
    Fault("hca without its newest row", HCA, "tl.arange(0, BW) < visible", "tl.arange(0, BW) < visible - 1"),
    Fault("hca limited by the choice's size", HCA, "< visible, index", "< tl.minimum(visible, 64), index", often=True),
    Fault("another request's pages", HCA, "(token // seq) * columns", "0", reason="not finite"),
    Fault("pages as if in order", HCA, "index = tl.reshape(page", "index = tl.reshape(column", reason="not finite"),
    Fault("forward rotation of hca", HCA, "rope_sin, inverse=True)", "rope_sin, inverse=False)"),
    Fault("csa without its newest row", CSA, "(j < visible)", "(j < visible - 1)"),
    Fault("csa without its last tile", CSA, "tl.minimum(visible, TOPK)", "(tl.minimum(visible, TOPK) - 1) // BW * BW"),
    Fault("row of the page lost", CSA, "+ (j & (PAGE_ROWS - 1))", "", often=True),
    Fault("ordinal as row", CSA, "index = page * PAGE_ROWS + (j & (PAGE_ROWS - 1))", "index = j",
          reason="not finite"),
    Fault("next request's pages", CSA, "(token // seq) * columns", "(token // seq ^ 1) * columns", reason="not finite"),
    Fault("unverified index read", CSA, "j = tl.where(seen, j, 0)", "", where="sparse_attention_csa_kernel",
          kind="violation", reason="load of 'table_ptr' touches"),
    Fault("matrix transposed on the way out", hc_pre, "tl.reshape(comb, [16])", "tl.reshape(tl.trans(comb), [16])",
          where="hc_comb", often=True),
    Fault("columns before rows", hc_pre, ROWS + COLUMNS, COLUMNS + ROWS, where="hc_comb", often=True),
    Fault("one iteration short", hc_pre, "range(1, iterations)", "range(2, iterations)", where="hc_comb"),
    Fault("no epsilon after the softmax", hc_pre, "tl.sum(comb, 1)[:, None] + hc_eps\n", "tl.sum(comb, 1)[:, None]\n",
          where="hc_comb"),
    Fault("no epsilon in the first columns", hc_pre, "    comb = comb / (tl.sum(comb, 0)[None, :] + hc_eps)\n    for",
          "    comb = comb / tl.sum(comb, 0)[None, :]\n    for", where="hc_comb"),
    Fault("no epsilon in the rows", hc_pre, "(tl.sum(comb, 1)[:, None] + hc_eps)", "tl.sum(comb, 1)[:, None]",
          where="hc_comb"),
    Fault("no floor under the gates", hc_pre, "tl.sigmoid(pre) + hc_eps", "tl.sigmoid(pre)", where="x", often=True),
    Fault("a floor under the gates out", hc_pre, "2.0 * tl.sigmoid(post)", "2.0 * tl.sigmoid(post) + hc_eps",
          where="hc_post"),
    Fault("gates out not doubled", hc_pre, "2.0 * tl.sigmoid(post)", "tl.sigmoid(post)", where="hc_post"),
    Fault("another gate's scale", hc_pre, "tl.load(scale_ptr + 1)", "tl.load(scale_ptr)", where="hc_post"),
    Fault("another gate's base", hc_pre, "tl.load(base_ptr + 4 + lane)", "tl.load(base_ptr + lane)", where="hc_post"),
    Fault("no epsilon in the norm", hc_pre, "/ K + eps", "/ K", where="hc_post", shared=hyper_connections),
    Fault("mean over one lane", hc_pre, "/ K + eps", "/ (K // 4) + eps", where="hc_post", shared=hyper_connections),
    Fault("last part of a row lost", hc_head, "split[:, None] < SPLITS", "split[:, None] < SPLITS - 1", where="y",
          shared=hyper_connections),
    Fault("lanes exchanged", hc_head, "tl.load(gate + 1) * tl.load(x + HIDDEN)",
          "tl.load(gate + 1) * tl.load(x + 2 * HIDDEN)", where="y", shared=hyper_connections),
    Fault("no floor in the head", hc_head, "tl.sigmoid(w) + hc_eps", "tl.sigmoid(w)", where="y"),
    Fault("matrix transposed on the way in", hc_post, MIX, MIX.replace("+ out", "+ 4 * out") + """\
        comb = comb_ptr + token * 16 + 4 * out
        mixed = (tl.load(comb) * a + tl.load(comb + 1) * b) + (tl.load(comb + 2) * c + tl.load(comb + 3) * d)
        tl.store(y + out * HIDDEN, x_out * tl.load(post_ptr + token * 4 + out) + mixed)
    for out in tl.static_range(0):
        comb = comb_ptr
""", where="y_hc", often=True),
]  # fmt: skip


def run_with(fault: Fault, folder: Path, *, new: str) -> Report:
    """Run the stage with the launch of a copy that has the fault, or, with `new` as `old`, has none."""
    with ExitStack() as copies:
        old, module = fault.old, fault.stage
        if fault.shared is not None:
            kernels = copies.enter_context(changed_copy(fault.shared, old, new, folder))
            old, new = (f"from {name} import" for name in (fault.shared.__name__, kernels.__name__))
        copy = copies.enter_context(changed_copy(module, old, new, folder))
        config = LOUD if module in (hc_pre, hc_post, hc_head) else TINY
        stage = replace(module.STAGE, launch=copy.launch)
        case = case_at(config, 4, 9000, 300, 127, 0, seed=SEED)
        return run_case(stage, case, device=open_device("sim"), golden_cache=GoldenCache(folder=None))


@pytest.mark.parametrize(
    "fault", [pytest.param(fault, marks=() if fault.often else pytest.mark.slow, id=fault.id) for fault in FAULTS]
)
def test_a_fault_fails_for_its_reason(fault: Fault, tmp_path: Path) -> None:
    report = run_with(fault, tmp_path, new=fault.new)
    found = [(failure.kind, failure.where, failure.reason) for failure in report.all_failures]
    assert any(
        kind == fault.kind and where == fault.where and re.search(fault.reason, reason) for kind, where, reason in found
    ), found


UNCHANGED = {(fault.stage.__name__, fault.shared is None): fault for fault in FAULTS}


@pytest.mark.slow
@pytest.mark.parametrize("fault", UNCHANGED.values(), ids=lambda fault: fault.stage.STAGE.name)
def test_an_unchanged_copy_passes(fault: Fault, tmp_path: Path) -> None:
    report = run_with(fault, tmp_path, new=fault.old)
    assert report.all_failures == ()
    assert report.passed
