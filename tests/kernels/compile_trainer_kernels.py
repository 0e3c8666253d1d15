"""Compile the trainer's kernels for an H100, which needs no GPU; print what came out as JSON.

Run by ``test_kernels_compile`` in a process of its own: here Triton must not be interpreted.
"""

import json
import re

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from nanogpt.kernels import activation, cross_entropy, norm

# GPT-2 Small's sizes, which 16 divides, under autocast.
POINTERS = {
    "logits": "*bf16", "targets": "*i64", "losses": "*fp32",
    "residual": "*fp32", "branch": "*bf16", "weight": "*fp32", "added": "*fp32",
    "normed": "*bf16", "means": "*fp32", "scales": "*fp32", "normed_grad": "*bf16",
    "added_grad": "*fp32", "residual_grad": "*fp32", "branch_grad": "*bf16",
    "weight_grads": "*fp32", "weight_t": "*bf16", "x": "*bf16", "y": "*bf16", "y_grad": "*bf16",
    "x_grad": "*bf16",
}  # fmt: skip
# No float among them: it would come in 64 bits, as compiled graphs pass it.
INTEGERS = ("n_rows", "width", "n")


def compile_kernel(kernel, constants, warps):
    names = kernel.arg_names
    types = POINTERS | dict.fromkeys(INTEGERS, "i32") | dict.fromkeys(constants, "constexpr")
    aligned = [name for name in names if name not in constants]
    source = ASTSource(
        fn=kernel,
        signature={name: types.get(name, "fp64") for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})


if __name__ == "__main__":
    report = {}
    for name, kernel, constants, warps in (
        (
            "cross_entropy",
            cross_entropy._loss_and_gradient,
            {"CLASSES": 50304, "BLOCK": cross_entropy.BLOCK},
            cross_entropy.WARPS,
        ),
        (
            "add_norm",
            norm._add_norm,
            {"EPS": 1e-5, "ROWS": norm.FORWARD[0], "BLOCK": 1024},
            norm.FORWARD[1],
        ),
        (
            "add_norm_backward",
            norm._add_norm_backward,
            {"ROWS": norm.BACKWARD[0], "BLOCK": 1024},
            norm.BACKWARD[1],
        ),
        ("gelu", activation._gelu, {"BLOCK": activation.FORWARD[0]}, activation.FORWARD[1]),
        (
            "product_gelu_backward",
            activation._product_gelu_backward,
            {"WIDTH": 768, "GROUP": activation.GROUP}
            | dict(zip(("ROWS", "COLUMNS", "INNER"), activation.TILE, strict=True)),
            activation.TILE_WARPS,
        ),
    ):
        compiled = compile_kernel(kernel, constants, warps)
        ptx = compiled.asm["ptx"]
        report[name] = {
            "loads": len(re.findall(r"\bld\.global\S*\.v[24]\.", ptx)),
            "stores": len(re.findall(r"\bst\.global\S*\.v[24]\.", ptx)),
            "doubles": len(re.findall(r"\.f64\b", ptx)),
            "local": len(re.findall(r"\b(?:ld|st)\.local", ptx)),
            "cubin": len(compiled.asm["cubin"]),
        }
    print(json.dumps(report))
