"""Attention blocks put together wrongly fail, each where its fault shows."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import pytest

from harness.devices.registry import open_device
from harness.golden_cache import GoldenCache
from harness.run import run_case
from models.deepseek_v4 import attention, attention_csa, attention_hca, attention_swa
from models.deepseek_v4.config import TINY
from tests.models.changed_copy import changed_copy
from tests.models.fixture import case_at


@dataclass(frozen=True)
class Fault:
    """`old` becomes `new` in the block's module, or in what the blocks share; `where` is an output that must fail."""

    id: str
    block: ModuleType
    old: str
    new: str
    where: str
    shared: bool = False


SWA, HCA, CSA = attention_swa, attention_hca, attention_csa
POOL_THEN_ATTEND = """compressor_r128.launch(**t)
    launch_stage(sparse_attention_hca.launch, t)"""
KEYS_THEN_SCORES = """indexer_compressor.launch(**t)
    launch_stage(indexer.launch, t)"""
ATTEND = "launch_stage(sparse_attention_csa.launch, t)"


def swapped(lines: str) -> str:
    return "\n    ".join(reversed(lines.split("\n    ")))


FAULTS = [
    Fault("rows not normed", SWA, '"x": t["x_norm"]}', '"x": t["x"]}', "x_out", shared=True),
    Fault("rows written after they are read", SWA, "launch_stage(kv_write.launch, inner)\n    attend(inner)",
          "attend(inner)\n    launch_stage(kv_write.launch, inner)", "x_out", shared=True),
    Fault("rows not written", SWA, "    launch_stage(kv_write.launch, inner)\n", "", "kv_cache", shared=True),
    Fault("lanes joined before the output is there", SWA, "launch_core(t, attend)\n    launch_stage(hc_post.launch, t)",
          "launch_stage(hc_post.launch, t)\n    launch_core(t, attend)", "y_hc", shared=True),
    Fault("pooled after it is read", HCA, POOL_THEN_ATTEND, swapped(POOL_THEN_ATTEND), "x_out"),
    Fault("keys written after they are read", CSA, KEYS_THEN_SCORES, swapped(KEYS_THEN_SCORES), "idx_score"),
    Fault("another token's choice is attended to", CSA, ATTEND,
          'launch_stage(sparse_attention_csa.launch, {**t, "cmp_indices": t["cmp_indices"].roll(1, 0)})', "x_out"),
    Fault("the first rows are chosen", CSA, ATTEND, f"""chosen = t["cmp_indices"]
    for token, visible in enumerate(t["csa_visible"].clamp(max=chosen.shape[1]).tolist()):
        chosen[token, :visible] = chosen.new_tensor(range(visible))
    {ATTEND}""", "cmp_indices"),
]  # fmt: skip


def failing(fault: Fault, folder: Path, *, new: str) -> set[str]:
    with ExitStack() as copies:
        old = fault.old
        if fault.shared:
            parts = copies.enter_context(changed_copy(attention, old, new, folder))
            old, new = (f"from {name} import" for name in (attention.__name__, parts.__name__))
        copy = copies.enter_context(changed_copy(fault.block, old, new, folder))
        stage = replace(fault.block.STAGE, launch=copy.launch)
        # The end of a group of 128, of one of 4, and more rows than may be chosen.
        case = case_at(TINY, 127, 4, 900, seq=2)
        report = run_case(stage, case, device=open_device("sim"), golden_cache=GoldenCache(folder=None))
        assert {failure.kind for failure in report.failures} == set()
        return {verdict.output for verdict in report.verdicts if not verdict.passed}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_a_fault_fails(fault: Fault, tmp_path: Path) -> None:
    assert fault.where in failing(fault, tmp_path, new=fault.new)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.old == ATTEND or fault.shared][::3])
def test_without_its_fault_it_passes(fault: Fault, tmp_path: Path) -> None:
    assert failing(fault, tmp_path, new=fault.old) == set()
