"""What the three compressors share: their arguments' specs, tolerances, the checks of a launch, and the launches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from golden import fill
from golden.comparators import Close
from golden.specs import ScalarSpec, Spec, TensorSpec
from harness.arguments import check_tensor
from harness.case import Case
from models.deepseek_v4.caches import metadata_specs
from models.deepseek_v4.fixtures import activation, config_of, norm_weight, rope_specs, weight, weight_key
from models.kernels.compression import pool_kernel, write_row_kernel, write_state_kernel
from models.kernels.matmul import launch_project
from models.kernels.tiles import tile

# fp32 sums of thousands of products near 1 in another order are 1e-6 apart; a row rounded to bf16 or fp16 would be 2e-3
# off.
STATE = Close(rtol=1e-3, atol=1e-3)

# One bf16 step of a compressed row is at most 1/128 of the value.
ROW = Close(rtol=1 / 128, atol=1e-4)

CACHE_GROUPS = 7
"""Columns of block_counts."""


@dataclass(frozen=True)
class Compressor:
    """What the arguments of one compressor are called.

    `weights` begins the names of wkv, wgate, ape, norm_w and the scratch; `state` names the state and begins its slots
    and table; `slots` are the compressed rows' slots; `rows` is where a row goes: at its slot where `paged`, else at
    its token's number. `count` is the state's column of block_counts. Groups that `overlap` have two state parts.
    """

    weights: str
    state: str
    slots: str
    rows: str
    count: int
    overlap: bool
    paged: bool = True

    def input_specs(self, case: Case) -> tuple[Spec, ...]:
        """What a compressor's own stage reads beside its weights."""
        config = config_of(case)
        return (
            activation(case, "x", (config.hidden,)),
            *rope_specs(case, config.compressed_rope),
            *metadata_specs(case, *self.metadata()),
            ScalarSpec("rms_norm_eps", config.rms_norm_eps, low=0.0),
        )

    def weight_specs(self, case: Case, *, head_dim: int, ratio: int) -> tuple[Spec, ...]:
        """Projections, the bias of a position within its group, and the norm."""
        hidden, width, name = config_of(case).hidden, self._width(head_dim), f"{self.weights}_ape"
        bias = fill.normal(*weight_key(case, name))
        return (
            weight(case, f"{self.weights}_wkv", (width, hidden)),
            weight(case, f"{self.weights}_wgate", (width, hidden)),
            TensorSpec(name, (ratio, width), torch.float32, bias),
            norm_weight(case, f"{self.weights}_norm_w", head_dim),
        )

    def scratch_specs(self, case: Case, *, head_dim: int) -> tuple[Spec, ...]:
        """What the launches hand on: both projections, and the pooled rows before their norm."""
        width = self._width(head_dim)
        return (
            TensorSpec(f"{self.weights}_kv_a", (case.tokens, width), torch.float32, role="scratch"),
            TensorSpec(f"{self.weights}_score_a", (case.tokens, width), torch.float32, role="scratch"),
            TensorSpec(f"{self.weights}_pooled", (case.tokens, head_dim), torch.float32, role="scratch"),
        )

    def metadata(self) -> tuple[str, ...]:
        """The step's tensors that the launches read, beside the positions."""
        return (f"{self.state}_slot_mapping", f"{self.state}_block_table", "block_counts", self.slots)

    def launch(self, t: Mapping[str, Any]) -> None:
        """Write the state's rows, then the row of each token that has a slot.

        Raises TypeError or ValueError naming the argument that does not fit.
        """
        shape = self._check(t)
        if not shape.tokens:
            return
        kv_a, score_a, pooled = (t[f"{self.weights}_{name}"] for name in ("kv_a", "score_a", "pooled"))
        state, positions, slots = t[self.state], t["position_ids"], t[self.slots]
        width, head_dim = self._width(shape.head_dim), shape.head_dim
        launch_project(t["x"], t[f"{self.weights}_wkv"], kv_a)
        launch_project(t["x"], t[f"{self.weights}_wgate"], score_a)
        # Every row of the step first: a ring holds what the oldest token reads beside what the newest writes.
        block = tile(width, 256)
        write_state_kernel[(shape.tokens, width // block)](
            kv_a, score_a, t[f"{self.weights}_ape"], positions, t[f"{self.state}_slot_mapping"], state, width,
            RATIO=shape.ratio, BLOCK=block,
        )  # fmt: skip
        table = t[f"{self.state}_block_table"]
        seq, block = shape.tokens // len(table), tile(head_dim, 128)
        pool_kernel[(len(table), seq, head_dim // block)](
            state, table, t["block_counts"], positions, slots, pooled, table.shape[1], seq, self.count, head_dim,
            GROUPS=CACHE_GROUPS, RATIO=shape.ratio, PAGE=state.shape[1].bit_length() - 1, OVERLAP=self.overlap,
            BN=block,
        )  # fmt: skip
        write_row_kernel[(shape.tokens,)](
            pooled, t[f"{self.weights}_norm_w"], positions, t["rope_cos"], t["rope_sin"], slots, t[self.rows],
            t["rms_norm_eps"], RATIO=shape.ratio, WIDTH=head_dim, NOPE=head_dim - 2 * shape.half, HALF=shape.half,
            BLOCK=triton.next_power_of_2(head_dim), PAGED=self.paged,
        )  # fmt: skip

    def _width(self, head_dim: int) -> int:
        return 2 * head_dim if self.overlap else head_dim

    def _check(self, t: Mapping[str, Any]) -> _Shape:
        bf16, fp32, int32, int64 = torch.bfloat16, torch.float32, torch.int32, torch.int64
        tokens, hidden = check_tensor("x", t.get("x"), shape=(None, None), dtype=bf16).shape
        device = t["x"].device

        def checked(name: str, shape: tuple[int | None, ...], dtype: torch.dtype) -> Tensor:
            return check_tensor(name, t.get(name), shape=shape, dtype=dtype, device=device)

        head_dim = len(checked(f"{self.weights}_norm_w", (None,), bf16))
        width = self._width(head_dim)
        for name in ("wkv", "wgate"):
            checked(f"{self.weights}_{name}", (width, hidden), bf16)
        ratio = len(checked(f"{self.weights}_ape", (None, width), fp32))
        half = checked("rope_cos", (None, None), bf16).shape[1]
        checked("rope_sin", tuple(t["rope_cos"].shape), bf16)
        checked("position_ids", (tokens,), int32)
        checked(f"{self.state}_slot_mapping", (tokens,), int64)
        checked(self.slots, (tokens,), int64)
        batch = len(checked(f"{self.state}_block_table", (None, None), int32))
        checked("block_counts", (batch, CACHE_GROUPS), int32)
        page = checked(self.state, (None, None, 2 * width), fp32).shape[1]
        for name in ("kv_a", "score_a"):
            checked(f"{self.weights}_{name}", (tokens, width), fp32)
        checked(f"{self.weights}_pooled", (tokens, head_dim), fp32)
        checked(self.rows, (None, None, head_dim) if self.paged else (tokens, head_dim), bf16)
        if ratio < 1 or ratio & (ratio - 1):
            raise ValueError(f"{self.weights}_ape must have a power of two of rows, got {ratio}")
        if page < 1 or page & (page - 1) or page > ratio:
            raise ValueError(f"{self.state} must have pages of a power of two of rows, at most {ratio}, got {page}")
        if tokens and (not batch or tokens % batch):
            raise ValueError(f"x must have as many tokens for each of {batch} requests, got {tokens}")
        return _Shape(tokens, head_dim, ratio, half)


@dataclass(frozen=True)
class _Shape:
    tokens: int
    head_dim: int
    ratio: int
    half: int
