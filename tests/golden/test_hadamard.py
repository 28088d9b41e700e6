from __future__ import annotations

import pytest
import torch

from golden.hadamard import hadamard


def test_the_matrix_of_four_by_hand() -> None:
    rows = [[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]]
    assert torch.equal(hadamard(4), torch.tensor(rows) / 2)


@pytest.mark.parametrize("size", [1, 2, 128])
def test_it_is_symmetric_and_its_own_inverse(size: int) -> None:
    h = hadamard(size)
    assert torch.equal(h, h.T)
    torch.testing.assert_close(h @ h, torch.eye(size), rtol=0, atol=1e-6)


def test_turning_the_query_alone_is_not_turning_both() -> None:
    """q = k = e0: turned both, their product is 1; the query alone, 1 / sqrt(128)."""
    e0 = torch.eye(128)[0]
    h = hadamard(128)
    assert ((e0 @ h) @ (e0 @ h)).item() == pytest.approx(1.0, abs=1e-6)
    assert ((e0 @ h) @ e0).item() == pytest.approx(0.08838835, abs=1e-8)


def test_bf16_takes_off_a_ten_thousandth() -> None:
    """1 / sqrt(128) = 1.41421 * 2^-4, and bf16 has 1.4140625 * 2^-4."""
    assert hadamard(128).bfloat16()[0, 0].item() == 1.4140625 / 16


@pytest.mark.parametrize("size", [0, -4, 3, 96])
def test_a_size_that_is_no_power_of_two_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"size must be a power of two, got {size}"):
        hadamard(size)
