"""Attention over window and compressed rows: goldens by hand, and what must or must not change a bit of the kernels."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from golden.specs import Spec, TensorSpec
from harness.case import Case
from harness.devices.registry import open_device
from harness.stage import Precision, Stage
from models.deepseek_v4 import sparse_attention_csa, sparse_attention_hca, sparse_attention_swa
from models.deepseek_v4.config import TINY
from tests.models.fixture import case_at, golden_inputs
from tests.models.simulator import launch_on_sim
from tests.models.test_goldens import QUARTER_TURN, bf16

SWA, HCA, CSA = sparse_attention_swa.STAGE, sparse_attention_hca.STAGE, sparse_attention_csa.STAGE
PRECISIONS: list[Precision] = ["exact", "device"]

both = pytest.mark.parametrize("precision", PRECISIONS)
compressed = pytest.mark.parametrize("stage", [HCA, CSA], ids=lambda stage: stage.name)


def one_head(kind: str, table: list[list[int]], visible: int, cmp_rows: Tensor) -> dict[str, Any]:
    """The second token of two, one a request: a query of zeros, so that every score is 0; window row (4, 0, 4, 0), sink
    log 2. Request 0 sees nothing but a sink."""
    return {
        "q": torch.zeros(2, 1, 4).bfloat16(),
        "kv_cache": bf16(math.nan, 0, 0, 0, 4, 0, 4, 0).view(1, 2, 4),
        "swa_indices": torch.tensor([[-1, -1], [1, -1]], dtype=torch.int32),
        "swa_lens": torch.tensor([0, 1], dtype=torch.int32),
        f"{kind}_cmp_kv": cmp_rows,
        f"{kind}_cmp_block_table": torch.tensor(table, dtype=torch.int32),
        f"{kind}_visible": torch.tensor([0, visible], dtype=torch.int32),
        "attn_sink": torch.tensor([math.log(2.0)]),
        "softmax_scale": 0.5,
        **QUARTER_TURN,
        "position_ids": torch.tensor([1, 1], dtype=torch.int32),
    }


# Pages of one row: (8, 8, 0, 0), one nobody may read, (0, 4, 8, 4).
HCA_ROWS = bf16(8, 8, 0, 0, *[math.nan] * 4, 0, 4, 8, 4).view(3, 1, 4)


@both
@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        # (window row + page 2) / (2 + 1 + 1) = (1, 1, 3, 1), then a quarter turn back of the last pair.
        (1, [1.0, 1.0, 1.0, -3.0]),
        # The newest row counts: (12, 12, 12, 4) / 5.
        (2, [2.4, 2.4, 0.8, -2.4]),
        # An ordinal whose page is unmapped is no row.
        (3, [2.4, 2.4, 0.8, -2.4]),
    ],
)
def test_hca(precision: Precision, visible: int, expected: list[float]) -> None:
    t = one_head("hca", [[1, 1, 1], [2, 0, -1]], visible, HCA_ROWS)
    o = sparse_attention_hca.golden(t, precision=precision)["attn_out"]
    assert o[0].abs().sum() == 0
    torch.testing.assert_close(o[1].float().flatten(), torch.tensor(expected), rtol=1 / 256, atol=1e-6)


# Two pages of two rows: page 0 has (8, 8, 0, 0) and (0, 4, 8, 4), page 1 has (16, 0, 0, 0) and one not to be read.
CSA_ROWS = bf16(8, 8, 0, 0, 0, 4, 8, 4, 16, 0, 0, 0, *[math.nan] * 4).view(2, 2, 4)


@both
@pytest.mark.parametrize(
    ("chosen", "visible", "expected"),
    [
        # Ordinals 0 and 3 are page 1 row 0 and page 0 row 1: (20, 4, 12, 4) / 5.
        ([3, 0, -1], 4, [4.0, 0.8, 0.8, -2.4]),
        # An index past the visible rows is no row, nor is -1: (12, 8, 4, 0) / 4.
        ([2, 3, -1], 3, [3.0, 2.0, 0.0, -1.0]),
    ],
)
def test_csa(precision: Precision, chosen: list[int], visible: int, expected: list[float]) -> None:
    t = one_head("csa", [[0, 0], [1, 0]], visible, CSA_ROWS)
    t["cmp_indices"] = torch.tensor([[0, 1, 2], chosen], dtype=torch.int32)
    o = sparse_attention_csa.golden(t, precision=precision)["attn_out"]
    assert o[0].abs().sum() == 0
    torch.testing.assert_close(o[1].float().flatten(), torch.tensor(expected), rtol=1 / 256, atol=1e-6)


def inputs(stage: Stage, case: Case) -> dict[str, Tensor]:
    return {name: value for name, value in golden_inputs(stage, case).items() if isinstance(value, Tensor)}


def attended(stage: Stage, case: Case, **replaced: Tensor) -> Tensor:
    return launch_on_sim(stage, case, **replaced)["attn_out"]


@pytest.mark.parametrize("stage", [SWA, HCA, CSA], ids=lambda stage: stage.name)
def test_a_sink_alone_gives_0(stage: Stage) -> None:
    case = case_at(TINY, 300, 8190)
    nothing = {name: torch.zeros(2) for name in inputs(stage, case) if name.endswith(("_lens", "_visible"))}
    assert len(nothing) == (1 if stage is SWA else 2)
    assert attended(stage, case, **nothing).abs().sum() == 0


@pytest.mark.parametrize("stage", [SWA, HCA, CSA], ids=lambda stage: stage.name)
def test_a_sink_that_weighs_all_leaves_nothing(stage: Stage) -> None:
    case = case_at(TINY, 300, 8190)
    assert attended(stage, case, attn_sink=torch.full((TINY.heads,), 1e4)).abs().sum() == 0


def moved(t: dict[str, Tensor], kind: str) -> dict[str, Tensor]:
    """The same rows on pages that are each one further: the scratch page, the last one, becomes page 0."""
    window, pages = t["swa_indices"], len(t["kv_cache"])
    page_rows = t["kv_cache"].shape[1]
    window = torch.where(window >= 0, (window // page_rows + 1) % pages * page_rows + window % page_rows, -1)
    pool, table = t[f"{kind}_cmp_kv"], t[f"{kind}_cmp_block_table"]
    return {
        "kv_cache": t["kv_cache"].roll(1, 0), "swa_indices": window, f"{kind}_cmp_kv": pool.roll(1, 0),
        f"{kind}_cmp_block_table": torch.where(table >= 0, (table + 1) % len(pool), -1),
    }  # fmt: skip


@compressed
def test_what_no_token_may_read_changes_no_bit(stage: Stage) -> None:
    """The fixture has NaN there, and with its pages moved in the rows, too, that a masked lane reads."""
    case = case_at(TINY, 300, 8190, 127, 0, seq=2)
    t = moved(inputs(stage, case), stage.name[-3:])
    pools = {name: pool for name, pool in t.items() if name.endswith(("_cache", "_kv"))}
    assert len(pools) == 2
    assert all(torch.isnan(pool[0]).all() for pool in pools.values())
    with_nan = attended(stage, case, **t)
    assert torch.isfinite(with_nan).all()
    finite = {name: pool.nan_to_num(nan=9.0) for name, pool in pools.items()}
    assert torch.equal(with_nan, attended(stage, case, **t | finite))


@compressed
def test_page_numbers_change_no_bit(stage: Stage) -> None:
    case = case_at(TINY, 300, 8190, 5, seq=2)
    assert torch.equal(attended(stage, case), attended(stage, case, **moved(inputs(stage, case), stage.name[-3:])))


def turn(rows: Tensor, case: Case) -> Tensor:
    """The tokens' rows with the requests in reverse order."""
    return rows.view(case.batch, case.seq, *rows.shape[1:]).flip(0).flatten(0, 1)


@compressed
def test_the_batch_row_changes_no_bit(stage: Stage) -> None:
    case = case_at(TINY, 300, 8190, 5, seq=2)
    turned = {}
    for name, value in inputs(stage, case).items():
        if len(value) == case.tokens:
            turned[name] = turn(value, case)
        elif name.endswith("block_table"):
            turned[name] = value.flip(0)
    assert torch.equal(turn(attended(stage, case, **turned), case), attended(stage, case))


@compressed
def test_other_requests_change_no_bit(stage: Stage) -> None:
    alone = attended(stage, case_at(TINY, 8190, seq=2))
    among = attended(stage, case_at(TINY, 8190, 300, 0, 127, seq=2))
    assert torch.equal(among[:2], alone)


@pytest.mark.parametrize("ordinal", [0, TINY.index_topk - 1, TINY.index_topk, 514])
def test_hca_sees_every_compressed_row(ordinal: int) -> None:
    """515 rows at position 66000: more than the indexer would choose."""
    case = case_at(TINY, 66_000)
    t = inputs(HCA, case)
    assert t["hca_visible"].tolist() == [515]
    pool = t["hca_cmp_kv"].clone()
    pool[t["hca_cmp_block_table"][0, ordinal]] *= -1
    assert not torch.equal(attended(HCA, case), attended(HCA, case, hca_cmp_kv=pool))
    for precision in PRECISIONS:
        before, after = (HCA.golden({**t, "hca_cmp_kv": kv, "softmax_scale": 0.1}, precision=precision)["attn_out"]
                         for kv in (t["hca_cmp_kv"], pool))  # fmt: skip
        assert not torch.equal(before, after)


def test_hca_takes_pages_of_several_rows() -> None:
    """The same rows four to a page."""
    case = case_at(TINY, 8190, 900)
    t = inputs(HCA, case)
    flat = t["hca_cmp_kv"].flatten(0, 1)
    columns = t["hca_cmp_block_table"]
    wide = -(-columns.shape[1] // 4)
    padded = torch.nn.functional.pad(columns, (0, 4 * wide - columns.shape[1]), value=-1).view(2, wide, 4)
    pool = torch.where(padded[..., None] >= 0, flat[padded.clamp(min=0).long()], torch.nan).flatten(0, 1)
    table = torch.arange(2 * wide, dtype=torch.int32).view(2, wide)
    replaced = {"hca_cmp_kv": pool, "hca_cmp_block_table": table}

    def specs(case: Case) -> list[Spec]:
        return [
            replace(spec, shape=tuple(replaced[spec.name].shape), fill=replaced[spec.name])
            if isinstance(spec, TensorSpec) and spec.name in replaced
            else spec
            for spec in HCA.specs(case)
        ]

    stage = replace(HCA, specs=specs)
    assert torch.equal(attended(stage, case), attended(HCA, case))


def test_csa_masks_what_is_not_visible() -> None:
    """Indices past the visible rows, behind those that count, are no rows."""
    case = case_at(TINY, 100, 31, seq=2)
    t = inputs(CSA, case)
    chosen = t["cmp_indices"]
    assert (chosen[:, -1] == -1).all()
    spoilt = torch.where(chosen < 0, t["csa_visible"][:, None].expand_as(chosen), chosen)
    assert torch.equal(attended(CSA, case), attended(CSA, case, cmp_indices=spoilt))


def test_choices_are_spread_and_have_the_newest_row() -> None:
    """As an indexer gives them: distinct and visible, -1 behind, and for a long history rows of many pages."""
    case = case_at(TINY, 8190, 100, 0, seq=2)
    t = inputs(CSA, case)
    for chosen, visible in zip(t["cmp_indices"], t["csa_visible"].tolist(), strict=True):
        count = min(visible, TINY.index_topk)
        valid = chosen[:count]
        assert (chosen[count:] == -1).all()
        assert len(torch.unique(valid)) == count
        if count:
            assert valid.min() >= 0
            assert valid.max() == visible - 1
    assert len(torch.unique(t["cmp_indices"][0] // 32)) > 30
    assert not torch.equal(t["cmp_indices"][0], t["cmp_indices"][0].sort().values)


def test_row_offsets_are_64_bits_wide() -> None:
    """A compressed row past 2^31 elements: only the pages that are touched take memory. A sink that weighs as much as
    that row alone gives half of it."""
    width = 128
    page = 2**31 // width + 5
    pool = torch.empty(page + 1, 1, width, dtype=torch.bfloat16)
    pool[page] = torch.arange(width).bfloat16()
    attn_out = torch.full((1, 16, width), torch.nan, dtype=torch.bfloat16)
    no_turn = torch.tensor([[1.0] * 32]).bfloat16()
    common = {
        "q": torch.zeros(1, 16, width).bfloat16(),
        "kv_cache": torch.full((1, 128, width), torch.nan).bfloat16(),
        "swa_indices": torch.full((1, 128), -1, dtype=torch.int32),
        "swa_lens": torch.zeros(1, dtype=torch.int32),
        "attn_sink": torch.zeros(16),
        "position_ids": torch.zeros(1, dtype=torch.int32),
        "rope_cos": no_turn,
        "rope_sin": torch.zeros_like(no_turn),
        "softmax_scale": 1.0,
    }
    table, one = torch.tensor([[page]], dtype=torch.int32), torch.ones(1, dtype=torch.int32)
    for kind, launch, more in (
        ("hca", HCA.launch, {}),
        ("csa", CSA.launch, {"cmp_indices": torch.tensor([[0] + [-1] * 31], dtype=torch.int32)}),
    ):
        attn_out.fill_(torch.nan)
        own = {f"{kind}_cmp_kv": pool, f"{kind}_cmp_block_table": table, f"{kind}_visible": one, **more}
        with open_device("sim").active() as log:
            launch(**common, **own, attn_out=attn_out)
        assert log.violations == []
        assert torch.equal(attn_out[0], (pool[page] / 2).expand(16, -1))


@pytest.mark.parametrize(
    ("stage", "name", "shape", "message"),
    [
        (HCA, "hca_cmp_kv", (4, 3, 128), "hca_cmp_kv must have a power of two of rows a page, got 3"),
        (HCA, "hca_cmp_kv", (4, 64, 128), "hca_cmp_kv must have at most 32 rows a page, got 64"),
        (CSA, "csa_cmp_block_table", (4, 9), "csa_cmp_block_table must have a row a request .* got 4 for 6"),
    ],
)
def test_what_does_not_fit_is_refused(stage: Stage, name: str, shape: tuple[int, ...], message: str) -> None:
    case = case_at(TINY, 5, 900, seq=3)
    t = {n: v for n, v in golden_inputs(stage, case).items() if n != "inv_freq"}
    t[name] = torch.zeros(shape, dtype=t[name].dtype)
    with pytest.raises(ValueError, match=message):
        stage.launch(**t, attn_out=torch.empty_like(t["q"]))
