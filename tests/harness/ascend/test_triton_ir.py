"""What is read from Triton's IR, on modules written by hand in its generic form."""

from __future__ import annotations

import torch

from harness.ascend.roofline import launch_work
from harness.ascend.traffic import Argument, LaunchTraffic
from harness.ascend.triton_ir import read_triton

# Rows of a where n > 0, else rows of b, chosen by the indices i where they are below n.
CHOSEN = """
"builtin.module"() ({
  "tt.func"() <{function_type = (!tt.ptr<bf16>, !tt.ptr<bf16>, !tt.ptr<i32>, !tt.ptr<i32>) -> (), sym_name = "k"}> ({
  ^bb0(%a: !tt.ptr<bf16>, %b: !tt.ptr<bf16>, %n: !tt.ptr<i32>, %i: !tt.ptr<i32>):
    %zero = "arith.constant"() <{value = 0 : i32}> : () -> i32
    %q = "arith.constant"() <{value = dense<1.0> : tensor<16x32xbf16>}> : () -> tensor<16x32xbf16>
    %acc = "arith.constant"() <{value = dense<0.0> : tensor<16x64xf32>}> : () -> tensor<16x64xf32>
    %count = "tt.load"(%n) : (!tt.ptr<i32>) -> i32
    %some = "arith.cmpi"(%count, %zero) <{predicate = 4 : i64}> : (i32, i32) -> i1
    %tile = "scf.if"(%some) ({
      %ap = "tt.splat"(%a) : (!tt.ptr<bf16>) -> tensor<32x64x!tt.ptr<bf16>>
      %x = "tt.load"(%ap) : (tensor<32x64x!tt.ptr<bf16>>) -> tensor<32x64xbf16>
      "scf.yield"(%x) : (tensor<32x64xbf16>) -> ()
    }, {
      %index = "tt.load"(%i) : (!tt.ptr<i32>) -> i32
      %below = "arith.cmpi"(%index, %count) <{predicate = 2 : i64}> : (i32, i32) -> i1
      %row = "arith.select"(%below, %index, %zero) : (i1, i32, i32) -> i32
      %at = "tt.addptr"(%b, %row) : (!tt.ptr<bf16>, i32) -> !tt.ptr<bf16>
      %bp = "tt.splat"(%at) : (!tt.ptr<bf16>) -> tensor<32x64x!tt.ptr<bf16>>
      %y = "tt.load"(%bp) : (tensor<32x64x!tt.ptr<bf16>>) -> tensor<32x64xbf16>
      "scf.yield"(%y) : (tensor<32x64xbf16>) -> ()
    }) : (i1) -> tensor<32x64xbf16>
    %o = "tt.dot"(%q, %tile, %acc) : (tensor<16x32xbf16>, tensor<32x64xbf16>, tensor<16x64xf32>) -> tensor<16x64xf32>
    "tt.return"() : () -> ()
  }) : () -> ()
}) : () -> ()
"""


def test_a_tile_that_a_branch_chooses_comes_from_both_arguments() -> None:
    """Three tiles of a and two of b are five dots."""
    facts = read_triton(CHOSEN)
    (dot,) = facts.dots
    assert (dot.m, dot.n, dot.k, dot.arguments) == (16, 64, 32, (0, 1))
    tensor = Argument.of(torch.zeros(64, 64, dtype=torch.bfloat16))
    launch = LaunchTraffic(
        kernel="k", key="", grid=(1, 1, 1), read={"a": 3 * 4096, "b": 2 * 4096}, written={},
        arguments={"a": tensor, "b": tensor},
    )  # fmt: skip
    work = launch_work(launch, triton=facts, arguments=("a", "b", "n", "i"))
    assert work.bf16_operations == 5 * 2 * 16 * 64 * 32


def test_what_an_index_is_compared_with_is_no_index() -> None:
    assert read_triton(CHOSEN).gathers == {1: frozenset({3})}
