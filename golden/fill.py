"""Seeded contents for tensors: weights by key, data rows by (request, position).

Numbers depend on what a tensor means (seed, model, tensor name, expert id, request, position) and never on where it
lies (batch row, page, rank, decode length), so that every layout of one case sees the same numbers.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from golden.specs import Fill
from golden.threads import torch_threads

__all__ = ["PerExpert", "int8_codes", "int8_windows", "integers", "normal", "per_expert", "rows", "uniform"]

Key = int | str

# A per-channel scale of amax / 127 puts the amax of some thousand Gaussian weights (3.5 to 4 std) on code 127.
_CODE_STD = 34.0

# SplitMix64 (Steele, Lea, Flood 2014): the counter's increment and the two multipliers, as signed 64-bit integers.
_GAMMA = 0x9E3779B97F4A7C15 - 2**64
_MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX_2 = 0x94D049BB133111EB - 2**64

# Codes that rows of `int8_windows` are cut from: some million places to start, and a copy of them is all a row costs.
_POOL_CODES = 1 << 20

# Elements hashed at a time: the temporaries of one block stay in the cache.
_BLOCK_ELEMENTS = 1 << 16


def normal(*key: Key, std: float = 1.0, mean: float = 0.0) -> Fill:
    """Gaussian floats, seeded by `key`. Raises ValueError for a negative std or a dtype that is not floating."""
    if not (math.isfinite(std) and std >= 0):
        raise ValueError(f"std must be finite and at least 0, got {std}")
    seed = _stable_hash(key)

    def fill(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        _check_floating("normal", dtype)
        return torch.empty(shape).normal_(mean, std, generator=_generator(seed)).to(dtype)

    return fill


def uniform(*key: Key, low: float, high: float) -> Fill:
    """Floats uniform on [low, high], seeded by `key`. Raises ValueError for an empty range or an integer dtype."""
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise ValueError(f"low and high must be finite and in order, got {low} and {high}")
    seed = _stable_hash(key)

    def fill(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        _check_floating("uniform", dtype)
        return torch.empty(shape).uniform_(low, high, generator=_generator(seed)).to(dtype).clamp_(low, high)

    return fill


def integers(*key: Key, low: int, high: int) -> Fill:
    """Integers uniform on low to high, both included, seeded by `key`. Raises ValueError for an empty range, a float
    dtype, or a bound that the dtype does not hold."""
    if not low <= high:
        raise ValueError(f"low must not be above high, got {low} and {high}")
    seed = _stable_hash(key)

    def fill(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if dtype.is_floating_point or dtype.is_complex or dtype == torch.bool:
            raise ValueError(f"integers fills integer tensors, got dtype {dtype}")
        info = torch.iinfo(dtype)
        if low < info.min or high > info.max:
            raise ValueError(f"low {low} and high {high} must be values of {dtype}")
        return torch.randint(low, high + 1, shape, dtype=dtype, generator=_generator(seed))

    return fill


def int8_codes(*key: Key) -> Fill:
    """int8 weight codes -127 to 127 as a Gaussian weight quantised per channel has them; never -128, the poison."""
    seed = _stable_hash(key)

    def fill(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if dtype != torch.int8:
            raise ValueError(f"int8_codes fills int8 tensors, got dtype {dtype}")
        bell = torch.empty(shape).normal_(0.0, _CODE_STD, generator=_generator(seed))
        return bell.round_().clamp_(-127, 127).to(dtype)

    return fill


def int8_windows(*key: Key) -> Fill:
    """int8 weight codes as `int8_codes` has them, for [rows, width] some twenty times as fast: each row is cut from one
    pool of codes at a place of its own. Raises ValueError for another dtype or rank, or rows longer than the pool."""
    seed = _stable_hash(key)

    def fill(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if dtype != torch.int8:
            raise ValueError(f"int8_windows fills int8 tensors, got dtype {dtype}")
        if len(shape) != 2 or shape[1] > _POOL_CODES:
            raise ValueError(f"int8_windows fills [rows, at most {_POOL_CODES}], got {tuple(shape)}")
        windows = _pool().unfold(0, shape[1], 1)
        # Half the time of indexing, which gathers element by element.
        return torch.index_select(windows, 0, torch.randint(len(windows), shape[:1], generator=_generator(seed)))

    return fill


@lru_cache(maxsize=1)
def _pool() -> torch.Tensor:
    return int8_codes("int8_windows")((_POOL_CODES,), torch.int8)


def rows(seed: int, name: str, *, requests: torch.Tensor, positions: torch.Tensor, std: float = 1.0) -> Fill:
    """Gaussian rows, each made from (seed, name, request, position) alone.

    `requests` and `positions` are integer tensors of one shape, `[n]` or `[pages, page_rows]`; the filled tensor's
    shape starts with it, and what follows is the row: `[n, width]`, `[pages, page_rows, width]`. Element c of a row
    does not depend on the width. Values reach 4.8 std. Raises ValueError naming the argument.
    """
    for label, ids in (("requests", requests), ("positions", positions)):
        if ids.dtype.is_floating_point or ids.dtype.is_complex or ids.dtype == torch.bool:
            raise ValueError(f"{label} must be an integer tensor, got {ids.dtype}")
    if requests.shape != positions.shape:
        wanted, got = tuple(requests.shape), tuple(positions.shape)
        raise ValueError(f"positions must have the shape of requests, {wanted}, got {got}")
    if not (math.isfinite(std) and std >= 0):
        raise ValueError(f"std must be finite and at least 0, got {std}")
    base = _stable_hash((seed, name))
    request_keys = _mix(requests.to(torch.int64) * _GAMMA + base)
    keys = _mix(positions.to(torch.int64) * _GAMMA + request_keys).reshape(-1)
    leading = tuple(requests.shape)

    def fill(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        _check_floating("rows", dtype)
        if tuple(shape[: len(leading)]) != leading or len(shape) <= len(leading):
            raise ValueError(f"rows fills shapes that start with {leading} and go on, got {tuple(shape)}")
        width = math.prod(shape[len(leading) :])
        filled = torch.empty(len(keys), width, dtype=dtype)
        step = max(1, _BLOCK_ELEMENTS // max(1, width))
        # Operations this short gain a third from a second thread, and wait 40 times as long for one that is not free.
        with torch_threads(1):
            for first in range(0, len(keys), step):
                filled[first : first + step] = _normal_rows(keys[first : first + step], width).mul_(std)
        return filled.reshape(shape)

    return fill


@dataclass(frozen=True)
class PerExpert:
    """Fills [len(experts), ...] one expert after another: each from its own id alone."""

    made: Callable[..., Fill]
    key: tuple[Key, ...]
    experts: tuple[int, ...]
    options: Mapping[str, float]

    def __call__(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if not shape or shape[0] != len(self.experts):
            raise ValueError(f"per_expert fills shapes that start with {len(self.experts)} experts, got {tuple(shape)}")
        filled = torch.empty(shape, dtype=dtype)
        for index in range(shape[0]):
            filled[index] = self.one(index)(shape[1:], dtype)
        return filled

    def one(self, index: int) -> Fill:
        """What fills row `index`."""
        return self.made(*self.key, self.experts[index], **self.options)


def per_expert(made: Callable[..., Fill], *key: Key, experts: Sequence[int], **options: float) -> PerExpert:
    """A tensor with an expert a row, row i made by `made(*key, experts[i], **options)`, e.g. `made=int8_codes`."""
    return PerExpert(made, key, tuple(experts), options)


def _normal_rows(keys: torch.Tensor, width: int) -> torch.Tensor:
    """fp32 [len(keys), width]: 64 hashed bits make four 16-bit uniforms, two uniforms make two normals (Box-Muller)."""
    counters = torch.arange(1, -(-width // 4) + 1) * _GAMMA
    bits = _mix(keys[:, None] + counters).view(torch.int16).view(len(keys), -1, 4)
    radius_bits, angle_bits = bits[..., :2].float(), bits[..., 2:].float()
    radius = radius_bits.add_(32768.5).div_(65536.0).log_().mul_(-2.0).sqrt_()
    angle = angle_bits.mul_(2.0 * math.pi / 65536.0)
    return torch.cat((radius * angle.cos(), radius * angle.sin()), dim=-1).view(len(keys), -1)[:, :width]


def _mix(x: torch.Tensor) -> torch.Tensor:
    """SplitMix64's finaliser on int64, whose products wrap; shifts are logical."""
    x = (x ^ _shift_right(x, 30)) * _MIX_1
    x = (x ^ _shift_right(x, 27)) * _MIX_2
    return x ^ _shift_right(x, 31)


def _shift_right(x: torch.Tensor, bits: int) -> torch.Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _stable_hash(key: tuple[Key, ...]) -> int:
    """A signed 64-bit hash that is the same in every process."""
    if not key:
        raise ValueError("key must have at least one part")
    for part in key:
        if isinstance(part, bool) or not isinstance(part, (int, str)):
            raise TypeError(f"key must hold integers and strings, got {part!r}")
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _check_floating(fill: str, dtype: torch.dtype) -> None:
    if not dtype.is_floating_point:
        raise ValueError(f"{fill} fills floating tensors, got dtype {dtype}")
