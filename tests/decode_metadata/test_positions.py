from __future__ import annotations

import pytest
import torch

from decode_metadata import kv_seq_lens, position_ids

INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]
INT32_MAX = 2**31 - 1


@pytest.mark.parametrize(
    ("starts", "expected"),
    [
        (torch.tensor([8190, 0]), [[8190, 8191], [0, 1]]),
        (torch.tensor([[5], [6]]), [[5, 6], [6, 7]]),
        ((3, 127), [[3, 4], [127, 128]]),
        (torch.tensor([-2, -1]), [[-1, -1], [-1, 0]]),
        (torch.tensor([INT32_MAX, 2**40, 2**63 - 1]), [[INT32_MAX, -1], [-1, -1], [-1, -1]]),
        (torch.empty(0, dtype=torch.int32), []),
    ],
)
def test_position_ids(starts: torch.Tensor, expected: list[list[int]]) -> None:
    got = position_ids(starts, seq=2)
    assert got.dtype == torch.int32
    assert got.shape == (len(starts), 2)
    assert got.tolist() == expected


@pytest.mark.parametrize("dtype", INTEGERS)
def test_any_integer_dtype(dtype: torch.dtype) -> None:
    starts = torch.tensor([0, 100], dtype=dtype)
    assert position_ids(starts, seq=3).tolist() == [[0, 1, 2], [100, 101, 102]]
    assert kv_seq_lens(starts, seq=3).tolist() == [3, 103]


@pytest.mark.parametrize(
    ("commit", "expected"),
    [
        (None, [8192, 8193]),
        (0, [8190, 8191]),
        (1, [8191, 8192]),
        (torch.tensor([2, 0]), [8192, 8191]),
        ([1, 2], [8191, 8193]),
        ([3, -1], [-1, -1]),
    ],
)
def test_kv_seq_lens(commit: int | None, expected: list[int]) -> None:
    got = kv_seq_lens(torch.tensor([8190, 8191]), seq=2, commit_tokens=commit)
    assert got.dtype == torch.int32
    assert got.tolist() == expected


def test_kv_seq_lens_are_whole_lengths_not_windows() -> None:
    assert kv_seq_lens([8192], seq=2).tolist() == [8194]
    assert kv_seq_lens([-1, INT32_MAX - 1, INT32_MAX - 2], seq=2).tolist() == [-1, -1, INT32_MAX]


BAD = {
    "float": (
        lambda: position_ids(torch.tensor([1.0]), seq=1),
        "starts must be of an integer dtype, got torch.float32",
    ),
    "bool": (lambda: position_ids(torch.tensor([True]), seq=1), "starts must be of an integer dtype, got torch.bool"),
    "rank": (lambda: position_ids(torch.zeros(2, 2, dtype=torch.int32), seq=1), "starts must have 1 dimensions"),
    "scalar": (lambda: kv_seq_lens(torch.tensor(3), seq=1), "starts must have 1 dimensions, got shape ()"),
    "seq": (lambda: position_ids([1], seq=0), "seq must be an integer of at least 1, got 0"),
    "commit": (lambda: kv_seq_lens([1], seq=2, commit_tokens=3), "commit_tokens must be 0 to seq 2, got 3"),
    "negative": (lambda: kv_seq_lens([1], seq=2, commit_tokens=-1), "commit_tokens must be an integer of at least 0"),
    "commits": (
        lambda: kv_seq_lens([1], seq=2, commit_tokens=[1, 1]),
        "commit_tokens must have one entry a request, 1, got 2",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_are_named(name: str) -> None:
    call, message = BAD[name]
    with pytest.raises(ValueError) as error:  # noqa: PT011
        call()
    assert message in str(error.value)
