"""A stage that communicates, in plain torch: each token's row goes to its expert's rank, is scaled and comes back."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from golden.comparators import Exact
from golden.fill import per_expert, rows, uniform
from golden.poison import is_poisoned, poison_
from golden.specs import Spec, TensorSpec
from harness.case import Case
from harness.ranks.groups import WIRE_DTYPES
from harness.stage import Precision, Stage, decode_cases
from models.deepseek_v4.exchange import exchange_rows

WIDTH = 8


@dataclass(frozen=True)
class RoutedToy:
    name: str = "toy"
    max_position: int = 16384
    experts: int = 8
    experts_per_token: int = 1


def case(ep: int, *, batch: int = 6, seq: int = 2, split: tuple[int, ...] = ()) -> Case:
    """All requests at start 0."""
    return Case(RoutedToy(), batch=batch, seq=seq, starts=(0,) * batch, context="cold", ep=ep, split=split)


def specs(case: Case) -> tuple[Spec, ...]:
    """Token t of request r goes to expert (3 * r + t) % experts."""
    requests = torch.tensor(case.requests, dtype=torch.int64).repeat_interleave(case.seq)
    positions = torch.arange(case.seq).repeat(case.batch)
    shape = (case.tokens, WIDTH)
    most = case.whole.tokens
    gain = per_expert(uniform, case.seed, "gain", experts=case.local_experts, low=1.0, high=2.0)
    return (
        TensorSpec(
            "x", shape, torch.float32, rows(case.seed, "x", requests=requests, positions=positions), sharding="stacked"
        ),
        TensorSpec(
            "expert", shape[:1], torch.int64, (3 * requests + positions) % case.routed_experts, sharding="stacked"
        ),
        TensorSpec("gain", (len(case.local_experts), WIDTH), torch.float32, gain, sharding="experts"),
        TensorSpec("received", (most, WIDTH), torch.float32, role="scratch"),
        TensorSpec("received_expert", (most,), torch.int64, role="scratch"),
        TensorSpec("y", shape, torch.float32, role="out", sharding="stacked"),
        TensorSpec("total", (1,), torch.int64, role="out"),
    )


def golden(t: Mapping[str, Any], *, precision: Precision) -> dict[str, torch.Tensor]:
    y = torch.stack([row * t["gain"][expert] for row, expert in zip(t["x"], t["expert"].tolist(), strict=True)])
    return {"y": y, "total": torch.tensor([len(y)])}


def launch(
    *,
    x: torch.Tensor,
    expert: torch.Tensor,
    gain: torch.Tensor,
    received: torch.Tensor,
    received_expert: torch.Tensor,
    y: torch.Tensor,
    total: torch.Tensor,
    group: dist.ProcessGroup | None,
) -> None:
    """Write y, and in `total` the tokens of all ranks."""
    total.fill_(len(x))
    if group is None:
        y.copy_(x * gain[expert])
        return
    dist.all_reduce(total, group=group)
    ranks = dist.get_world_size(group)
    order = torch.sort(expert, stable=True).indices
    sent = torch.bincount(expert // len(gain), minlength=ranks)
    taken = torch.empty_like(sent)
    dist.all_to_all_single(taken, sent, group=group)
    to, of = sent.tolist(), taken.tolist()
    rows, experts = received[: sum(of)], received_expert[: sum(of)]
    dist.all_to_all_single(rows, x[order], of, to, group=group)
    dist.all_to_all_single(experts, expert[order], of, to, group=group)
    rows *= gain[experts % len(gain)]
    back = torch.empty_like(x)
    dist.all_to_all_single(back, rows, to, of, group=group)
    y[order] = back


STAGE = Stage(
    name="toy_exchange",
    specs=specs,
    golden=golden,
    launch=launch,
    compare={"y": Exact(), "total": Exact()},
    cases=decode_cases(contexts=("cold",), batch=(6,), seq=(2,)),
    collective=True,
)


def _on_rank_1(act: Callable[[dict[str, Any]], None], t: dict[str, Any]) -> None:
    if t["group"] is not None and dist.get_rank(t["group"]) == 1:
        act(t)


def launch_that_raises(**t: Any) -> None:
    def act(t: dict[str, Any]) -> None:
        raise ArithmeticError("rank 1 can't")

    _on_rank_1(act, t)
    launch(**t)


def launch_that_dies(**t: Any) -> None:
    _on_rank_1(lambda t: os.kill(os.getpid(), signal.SIGKILL), t)
    launch(**t)


def launch_on_subgroups(**t: Any) -> None:
    """Before the launch, ranks 0 and 3 and ranks 1 and 2 exchange rows of every dtype, none of them 0 to 0."""
    me = dist.get_rank(t["group"])
    pairs = [[0, 3], [1, 2]]
    groups = [dist.new_group(pair) for pair in pairs]
    ((pair, group),) = [(pair, group) for pair, group in zip(pairs, groups, strict=True) if me in pair]
    place = pair.index(me)
    # Place p sends 2 * p + q rows to place q: 0 and 1, 2 and 3.
    sent_rows, received_rows = [2 * place, 2 * place + 1], [place, 2 + place]
    for dtype in WIRE_DTYPES:
        sent = torch.full((sum(sent_rows), 2), 1 + me, dtype=dtype)
        received = poison_(torch.empty(9, 2, dtype=dtype))
        exchange_rows(sent, received, sent_rows=sent_rows, received_rows=received_rows, group=group)
        wanted = [1.0 + pair[0]] * received_rows[0] + [1.0 + pair[1]] * received_rows[1]
        taken = sum(received_rows)
        assert received[:taken, 0].float().tolist() == wanted, dtype
        assert is_poisoned(received[taken:]).all(), dtype
    launch(**t)


def asleep(t: dict[str, Any]) -> None:
    time.sleep(600)


def launch_that_hangs(**t: Any) -> None:
    _on_rank_1(asleep, t)
    launch(**t)


def launch_that_tells_and_hangs(**t: Any) -> None:
    """Every rank leaves its process id in the folder TOY_RANKS."""
    (Path(os.environ["TOY_RANKS"]) / str(os.getpid())).touch()
    asleep(t)


def launch_that_spins(**t: Any) -> None:
    def act(t: dict[str, Any]) -> None:
        while True:
            pass

    _on_rank_1(act, t)
    launch(**t)


def launch_that_drops_a_rank(**t: Any) -> None:
    launch(**t)
    _on_rank_1(lambda t: t["y"].copy_(t["x"]), t)


def launch_that_drops_a_total(**t: Any) -> None:
    launch(**t)
    _on_rank_1(lambda t: t["total"].fill_(0), t)


def launch_beyond(**t: Any) -> None:
    launch(**t)
    _on_rank_1(lambda t: t["x"].zero_(), t)


def launch_that_ends(**t: Any) -> None:
    _on_rank_1(lambda t: os._exit(3), t)
    launch(**t)


def wrong(launch: Callable[..., None], *, name: str = STAGE.name) -> Stage:
    """The stage with another launch."""
    return replace(STAGE, name=name, launch=launch)
