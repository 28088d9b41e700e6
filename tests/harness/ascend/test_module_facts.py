from __future__ import annotations

import pytest

from harness.ascend.chips import CHIPS
from harness.ascend.module_facts import read_module
from harness.ascend.record import ScalarLoop
from tests.harness.ascend.modules import BRANCHED, VECTOR

pytest.importorskip("mlir")


def test_structured_module_by_hand() -> None:
    facts = read_module(VECTOR, CHIPS["a2"])
    # Two buffers of 400 bytes; the second ends at 800, a multiple of 32.
    (ub,) = facts.memory
    assert (ub.space, ub.used_bytes, ub.limit_bytes) == ("ub", 800, 196608)
    assert [(buffer.type, buffer.size_bytes, buffer.where) for buffer in ub.largest] == [
        ("100xf32", 400, "k.py:3"),
        ("100xf32", 400, "k.py:4"),
    ]
    assert facts.core == "vector"
    assert facts.workspace_bytes == 4096
    assert (facts.cube_instructions, facts.vector_instructions, facts.transfers) == (0, 1, 1)
    assert facts.syncs == {"pipe_barrier": 1}
    assert facts.scalar_loops == (ScalarLoop("k.py:7", trips=128, accesses=1),)
    assert facts.element_dmas == ()
    assert not facts.loads_in_loop


def test_an_element_stored_beside_vector_code_is_what_a_tile_was_reduced_to() -> None:
    call = VECTOR[VECTOR.index('"func.call"(%a, %b)') : VECTOR.index('    "func.return"() : () -> ()\n  }) {hacc.func')]
    reduced = VECTOR.replace('      "scf.yield"()', f'      {call}      "scf.yield"()')
    assert read_module(reduced, CHIPS["a2"]).scalar_loops == ()
    # Where it is global memory that the element goes to, the code beside it makes it no better.
    to_memory = reduced.replace(
        '"memref.store"(%x, %b, %i) : (f32, memref<100xf32, #hivm.address_space<ub>>, index)',
        '"memref.store"(%x, %gm, %i) : (f32, memref<?xf32, #hivm.address_space<gm>>, index)',
    )
    assert read_module(to_memory, CHIPS["a2"]).scalar_loops == (ScalarLoop("k.py:7", trips=128, accesses=1),)


def test_branched_module_by_hand() -> None:
    facts = read_module(BRANCHED, CHIPS["a5"])
    # 0, 2, .. below 96 are 48 trips; one element of 4 bytes takes 32.
    assert facts.scalar_loops == (ScalarLoop("k.py:9", trips=48, accesses=1),)
    assert facts.element_dmas == ("k.py:10",)
    assert facts.memory[0].used_bytes == 32
    assert facts.workspace_bytes is None


@pytest.mark.parametrize(
    ("old", "new", "used"),
    [("value = 400 : i64", "value = 401 : i64", 832), ("value = 400 : i64", "value = 0 : i64", 416)],
    ids=["rounded-up", "shared"],
)
def test_memory_is_the_last_end_rounded_up(old: str, new: str, used: int) -> None:
    assert read_module(VECTOR.replace(old, new), CHIPS["a2"]).memory[0].used_bytes == used


def test_module_that_does_not_parse_is_named() -> None:
    with pytest.raises(ValueError, match="the compiler's module does not parse"):
        read_module('"builtin.module"() ({', CHIPS["a2"])
