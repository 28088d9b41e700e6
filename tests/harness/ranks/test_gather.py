"""The ranks' parts make the whole output, and a fault in it is its rank's."""

from __future__ import annotations

import torch

from golden.comparators import Exact
from golden.specs import TensorSpec
from golden.verdict import Verdict
from harness.ranks.agreement import agreement
from harness.ranks.gather import gather, name_rank
from tests.harness.ranks.toy import case

STACKED = TensorSpec("y", (4, 2), torch.float32, role="out", sharding="stacked")
REPLICATED = TensorSpec("n", (2,), torch.int64, role="out")


def parts(*rows: int) -> list[dict[str, torch.Tensor]]:
    return [{"y": torch.full((count, 2), float(rank))} for rank, count in enumerate(rows)]


def test_parts_are_stacked_in_rank_order() -> None:
    whole, failures = gather({"y": STACKED}, parts(1, 0, 3))
    assert failures == []
    assert whole["y"][:, 0].tolist() == [0.0, 2.0, 2.0, 2.0]


def test_parts_that_do_not_make_the_whole_are_shown() -> None:
    (failure,) = gather({"y": STACKED}, parts(1, 2))[1]
    assert str(failure) == "output y: the ranks' parts, stacked, make (3, 2), not (4, 2): (1, 2), (2, 2)"


def test_a_replicated_output_is_the_same_on_every_rank() -> None:
    ranks = [{"n": torch.tensor([1, 2])}, {"n": torch.tensor([1, 2])}, {"n": torch.tensor([1, 3])}]
    whole, (failure,) = gather({"n": REPLICATED}, ranks)
    assert whole["n"].tolist() == [1, 2]
    assert str(failure) == "rank 2: output n: replicated, and differs from rank 0's first at [1]"


def test_a_verdict_names_the_rank_of_its_first_bad_element() -> None:
    outputs = parts(1, 0, 3)
    whole, _ = gather({"y": STACKED}, outputs)
    expected = whole["y"].clone()
    expected[2, 1] = 7.0
    verdict = name_rank(Exact().compare("y", whole["y"], expected, {}), STACKED, outputs)
    assert (verdict.rank, verdict.first_bad) == (2, (2, 1))
    assert verdict.reason.endswith("must be equal (its own row 1)")
    right = Exact().compare("y", whole["y"], whole["y"], {})
    assert name_rank(right, STACKED, outputs).rank is None


def test_layouts_agree_bit_by_bit() -> None:
    y = torch.zeros(3, 2)
    other = y.clone()
    other[1, 0] = -0.0
    assert agreement(case(1), {"y": y}, case(4), {"y": y.clone()}) == [Verdict("y", True, "SameBits(ep=1)")]
    (verdict,) = agreement(case(1), {"y": y}, case(4), {"y": other})
    assert not verdict.passed
    assert verdict.first_bad == (1, 0)
    assert verdict.reason == "y[1, 0] is -0.0 at ep 4, 0.0 before (1 rows differ)"
