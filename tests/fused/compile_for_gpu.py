"""Compile the kernel for an H100, which needs no GPU, and print what came out as JSON.

Run by ``test_fused_compile`` in a process of its own: here Triton must not be interpreted.
"""

import json
import re

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from powerstep_repro.optim.fused.kernel import step_kernel
from powerstep_repro.optim.fused.launch import TAIL, TUNING

VARIANTS = {
    "powerstep": {"CODE_M": "none", "TYPE_M": tl.float32},
    "int8 dynamic": {"CODE_M": "dynamic", "TYPE_M": tl.uint8},
    "bfloat16 linear": {"CODE_M": "linear", "TYPE_M": tl.int8, "TYPE_P": tl.bfloat16},
    "adamw dynamic": {
        "RULE": "adamw", "CODE_M": "dynamic", "TYPE_M": tl.uint8,
        "CODE_V": "dynamic", "TYPE_V": tl.uint8,
    },
    "powerstep, may be left out": {
        "CODE_M": "none", "TYPE_M": tl.float32, "FACTOR": True, "FOUND_INF": True,
    },
    "all on the device": {
        "CODE_M": "dynamic", "TYPE_M": tl.uint8, "LR_TENSOR": True, "FACTOR": True,
        "FOUND_INF": True, "VECTOR": 1,
    },
}  # fmt: skip


def entry(variant):
    return "adamw" if "RULE" in variant else variant["CODE_M"]


def compile_variant(variant):
    tuning = TUNING[entry(variant)]
    constants = {
        "RULE": "powerstep", "TYPE_P": tl.float32, "CODE_V": "none", "TYPE_V": tl.float32,
        "POWER": "root", "LR_TENSOR": False, "FACTOR": False, "FOUND_INF": False,
        "BLOCK": tuning.block, "ROW": 128, "VECTOR": 4,
        "FAST": tuning.fast, "TAIL": TAIL, **variant,
    }  # fmt: skip
    constants["TYPE_G"] = constants["TYPE_P"]
    types = {"chunks": "*i32", "numels": "*i64", "pointers": "*i64", "tensors": "i32"}
    types |= {"table_m": "*fp32", "table_v": "*fp32", "factor": "*fp32", "found": "*fp32"}
    if constants["LR_TENSOR"]:
        types |= {"lr": "*fp32", "decay": "*fp32"}
    # Arguments that a launch leaves out.
    if constants["CODE_M"] != "dynamic":
        constants["table_m"] = None
    if constants["CODE_V"] != "dynamic":
        constants["table_v"] = None
    if not constants["FACTOR"]:
        constants["factor"] = None
    if not constants["FOUND_INF"]:
        constants["found"] = None
    types |= dict.fromkeys(constants, "constexpr")
    names = step_kernel.arg_names
    source = ASTSource(
        fn=step_kernel,
        signature={name: types.get(name, "fp32") for name in names},
        constexprs={(names.index(k),): v for k, v in constants.items()},
        attrs={
            (i,): [["tt.divisibility", 16]]
            for i, name in enumerate(names)
            if types.get(name, "").startswith("*")
        },
    )
    options = {"num_warps": tuning.warps, "enable_fp_fusion": False}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


if __name__ == "__main__":
    report = {}
    for name, variant in VARIANTS.items():
        compiled = compile_variant(variant)
        ptx = compiled.asm["ptx"]
        tuning = TUNING[entry(variant)]
        report[name] = {
            "vectors_a_thread": tuning.block // (128 * tuning.warps),
            "vector_loads": len(re.findall(r"\bld\.global\S*\.v[24]\.", ptx)),
            "vector_stores": len(re.findall(r"\bst\.global\S*\.v[24]\.", ptx)),
            "local": len(re.findall(r"\b(?:ld|st)\.local", ptx)),
            "barriers": len(re.findall(r"\bbar\.sync", ptx)),
            "flushing_fma": len(re.findall(r"\bfma\S*\.ftz", ptx)),
            "cubin": len(compiled.asm["cubin"]),
        }
    print(json.dumps(report))
