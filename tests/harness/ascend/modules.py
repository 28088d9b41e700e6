"""Compiled modules small enough to count by hand, in the form that the compiler saves."""

from __future__ import annotations

VECTOR = """
"builtin.module"() ({
  "func.func"() <{function_type = () -> index, sym_name = "k_infer_workspace_shape_function"}> ({
    %0 = "arith.constant"() <{value = 4096 : index}> : () -> index
    "func.return"(%0) : (index) -> ()
  }) {hacc.function_kind = #hacc.function_kind<HOST>,
      hacc.host_func_type = #hacc.host_func_type<infer_workspace_shape_function>} : () -> ()
  "func.func"() <{function_type = (memref<?xf32, #hivm.address_space<gm>>, memref<100xf32, #hivm.address_space<ub>>)
      -> (), sym_name = "load_gm_to_ubuf_1d_float", sym_visibility = "private"}> ({
  }) {hacc.function_kind = #hacc.function_kind<DEVICE>} : () -> ()
  "func.func"() <{function_type = (memref<100xf32, #hivm.address_space<ub>>, memref<100xf32, #hivm.address_space<ub>>)
      -> (), sym_name = "vadd_1d_float", sym_visibility = "private"}> ({
  }) {hacc.function_kind = #hacc.function_kind<DEVICE>} : () -> ()
  "func.func"() <{function_type = (memref<?xf32, #hivm.address_space<gm>>) -> (), sym_name = "k"}> ({
  ^bb0(%gm: memref<?xf32, #hivm.address_space<gm>>):
    %zero = "arith.constant"() <{value = 0 : index}> : () -> index
    %one = "arith.constant"() <{value = 1 : index}> : () -> index
    %many = "arith.constant"() <{value = 128 : index}> : () -> index
    %first = "arith.constant"() <{value = 0 : i64}> : () -> i64
    %second = "arith.constant"() <{value = 400 : i64}> : () -> i64
    %flag = "arith.constant"() <{value = true}> : () -> i1
    %a = "hivm.hir.pointer_cast"(%first) : (i64) -> memref<100xf32, #hivm.address_space<ub>> loc("k.py":3:1)
    %b = "hivm.hir.pointer_cast"(%second) : (i64) -> memref<100xf32, #hivm.address_space<ub>> loc("k.py":4:1)
    "func.call"(%gm, %a) <{callee = @load_gm_to_ubuf_1d_float}>
      : (memref<?xf32, #hivm.address_space<gm>>, memref<100xf32, #hivm.address_space<ub>>) -> ()
    "scf.for"(%zero, %many, %one) ({
    ^bb0(%i: index):
      %x = "memref.load"(%a, %i) : (memref<100xf32, #hivm.address_space<ub>>, index) -> f32
      "memref.store"(%x, %b, %i) : (f32, memref<100xf32, #hivm.address_space<ub>>, index) -> () loc("k.py":7:1)
      "scf.yield"() : () -> ()
    }) : (index, index, index) -> ()
    "hivm.hir.pipe_barrier"() : () -> ()
    "func.call"(%a, %b) <{callee = @vadd_1d_float}>
      : (memref<100xf32, #hivm.address_space<ub>>, memref<100xf32, #hivm.address_space<ub>>) -> ()
    "func.return"() : () -> ()
  }) {hacc.function_kind = #hacc.function_kind<DEVICE>,
      hivm.func_core_type = #hivm.func_core_type<AIV>} : () -> ()
}) : () -> ()
"""

BRANCHED = """
"builtin.module"() ({
  "func.func"() <{function_type = (memref<?xf32, #hivm.address_space<ub>>, memref<?xf32, #hivm.address_space<gm>>)
      -> (), sym_name = "store_ubuf_to_gm_1d_float", sym_visibility = "private"}> ({
  }) {hacc.function_kind = #hacc.function_kind<DEVICE>} : () -> ()
  "func.func"() <{function_type = (memref<?xf32, #hivm.address_space<gm>>) -> (), sym_name = "k"}> ({
  ^bb0(%gm: memref<?xf32, #hivm.address_space<gm>>):
    %zero = "llvm.mlir.constant"() <{value = 0 : i64}> : () -> i64
    %two = "llvm.mlir.constant"() <{value = 2 : i64}> : () -> i64
    %many = "llvm.mlir.constant"() <{value = 96 : i64}> : () -> i64
    %one = "hivm.hir.pointer_cast"(%zero) : (i64) -> memref<1xf32, #hivm.address_space<ub>>
    "cf.br"(%zero)[^bb1] : (i64) -> ()
  ^bb1(%i: i64):
    %more = "llvm.icmp"(%i, %many) <{predicate = 2 : i64}> : (i64, i64) -> i1
    "cf.cond_br"(%more)[^bb2, ^bb3] <{operandSegmentSizes = array<i32: 1, 0, 0>}> : (i1) -> ()
  ^bb2:
    %n = "arith.constant"() <{value = 0 : index}> : () -> index
    %x = "memref.load"(%gm, %n) : (memref<?xf32, #hivm.address_space<gm>>, index) -> f32 loc("k.py":9:1)
    %open = "memref.cast"(%one) : (memref<1xf32, #hivm.address_space<ub>>) -> memref<?xf32, #hivm.address_space<ub>>
    "func.call"(%open, %gm) <{callee = @store_ubuf_to_gm_1d_float}>
      : (memref<?xf32, #hivm.address_space<ub>>, memref<?xf32, #hivm.address_space<gm>>) -> () loc("k.py":10:1)
    %next = "llvm.add"(%i, %two) <{overflowFlags = 0 : i32}> : (i64, i64) -> i64
    "cf.br"(%next)[^bb1] : (i64) -> ()
  ^bb3:
    "func.return"() : () -> ()
  }) {hacc.function_kind = #hacc.function_kind<DEVICE>,
      hivm.func_core_type = #hivm.func_core_type<AIV>} : () -> ()
}) : () -> ()
"""
