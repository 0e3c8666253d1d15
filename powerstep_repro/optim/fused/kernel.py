"""One kernel for all fused optimizers: a step of many tensors in one launch.

A program owns ``BLOCK`` consecutive elements of one tensor, found through a table; it reads
parameter, gradient and state once and writes parameter and state once. The rule and the storage of
the state are compile-time constants, so every optimizer gets straight-line code of its own.

The layout is chosen for the memory system: four elements a thread, so that a warp holds one
quantization block of 128 and all operands share one layout whatever their width. Hence the
alignment promised for a pointer is that of ``VECTOR`` elements and no more: promised 16 bytes,
Triton would give each thread 16 codes and pass everything else through shared memory.

Products and sums round one by one (launches turn contraction off), as in the reference; where
torch contracts, ``tl.fma`` says so.
"""

import triton
import triton.language as tl

from powerstep_repro.optim.fused.arithmetic import (
    INTERPRETED,
    bias_correction,
    decode_linear,
    divide_by_row,
    divide_by_scalar,
    encode_dynamic,
    encode_linear,
    round_to_bfloat16,
    row_maximum,
    signed_power,
)

# Rows of the pointer table: addresses of each tensor's parts (0 where a rule has no such part).
PARAM, GRAD, M, M_SCALES, V, V_SCALES, STEP = (tl.constexpr(i) for i in range(7))


@triton.jit
def _pointer(pointers, part, tensors, tensor, offset, TYPE: tl.constexpr, VECTOR: tl.constexpr):
    """Pointer to element ``offset`` of the tensor whose address stands in the table."""
    base = tl.load(pointers + part * tensors + tensor).to(tl.pointer_type(TYPE))
    if VECTOR > 1:
        base = tl.multiple_of(base, VECTOR * (TYPE.primitive_bitwidth // 8))
    return base + offset


@triton.jit
def _read(pointer, mask, MASKED: tl.constexpr):
    if MASKED:
        return tl.load(pointer, mask=mask, other=0)
    else:
        return tl.load(pointer)


@triton.jit
def _write(pointer, value, mask, MASKED: tl.constexpr):
    if INTERPRETED and pointer.dtype.element_ty == tl.bfloat16:
        value = round_to_bfloat16(value)
    value = value.to(pointer.dtype.element_ty)
    if MASKED:
        tl.store(pointer, value, mask=mask)
    else:
        tl.store(pointer, value)


@triton.jit
def _decode(
    stored, scales, table,
    CODE: tl.constexpr, SIGNED: tl.constexpr, BLOCK: tl.constexpr, ROW: tl.constexpr,
):  # fmt: skip
    """The state as fp32, from what memory holds: fp32 itself, or codes and their rows' scales."""
    if CODE == "none":
        return stored
    else:
        if CODE == "linear":
            x = decode_linear(stored, SIGNED)
        else:
            x = tl.load(table + stored.to(tl.int32))
        x = tl.reshape(x, [BLOCK // ROW, ROW]) * scales[:, None]
        return tl.reshape(x, [BLOCK])


@triton.jit
def _encode(
    x, mask, MASKED: tl.constexpr,
    CODE: tl.constexpr, SIGNED: tl.constexpr, BLOCK: tl.constexpr, ROW: tl.constexpr,
):  # fmt: skip
    """The codes of ``x`` and their rows' scales, the largest magnitudes."""
    if MASKED:
        # Padding must not count in its row's maximum (a zero code need not decode to zero).
        x = tl.where(mask, x, 0.0)
    x = tl.reshape(x, [BLOCK // ROW, ROW])
    scales = row_maximum(x)
    x = tl.reshape(divide_by_row(x, scales), [BLOCK])
    if CODE == "linear":
        codes = encode_linear(x, SIGNED)
    else:
        codes = encode_dynamic(x, SIGNED)
    return codes, scales


@triton.jit
def _update(
    start, numel, tensor, tensors, pointers, table_m, table_v,
    lr, decay, a, b, c, d, log_a, log_b, eps, factor,
    RULE: tl.constexpr, TYPE_P: tl.constexpr, TYPE_G: tl.constexpr,
    CODE_M: tl.constexpr, TYPE_M: tl.constexpr, CODE_V: tl.constexpr, TYPE_V: tl.constexpr,
    POWER: tl.constexpr, LR_TENSOR: tl.constexpr, FACTOR: tl.constexpr,
    BLOCK: tl.constexpr, ROW: tl.constexpr, VECTOR: tl.constexpr,
    FAST: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Update one block. MASKED: it reaches past the tensor's end."""
    at = tl.arange(0, BLOCK)
    rows = tl.arange(0, BLOCK // ROW)
    mask = at < numel - start
    row_mask = rows * ROW < numel - start

    p_at = _pointer(pointers, PARAM, tensors, tensor, start, TYPE_P, VECTOR) + at
    g_at = _pointer(pointers, GRAD, tensors, tensor, start, TYPE_G, VECTOR) + at
    m_at = _pointer(pointers, M, tensors, tensor, start, TYPE_M, VECTOR) + at
    m = _read(m_at, mask, MASKED)
    m_scales = None
    if CODE_M != "none":
        ms_at = _pointer(pointers, M_SCALES, tensors, tensor, start // ROW, tl.float32, 1)
        ms_at += rows
        m_scales = _read(ms_at, row_mask, MASKED)
    if RULE == "adamw":
        v_at = _pointer(pointers, V, tensors, tensor, start, TYPE_V, VECTOR) + at
        v = _read(v_at, mask, MASKED)
        v_scales = None
        if CODE_V != "none":
            vs_at = _pointer(pointers, V_SCALES, tensors, tensor, start // ROW, tl.float32, 1)
            vs_at += rows
            v_scales = _read(vs_at, row_mask, MASKED)
    g = _read(g_at, mask, MASKED).to(tl.float32)
    p = _read(p_at, mask, MASKED).to(tl.float32)
    if FACTOR:
        g = g * factor

    m = _decode(m, m_scales, table_m, CODE_M, True, BLOCK, ROW)
    if RULE == "powerstep":
        m = m * a + g
        u = signed_power(m, b, POWER, FAST)
    elif RULE == "pbsgdm":
        m = m * a + signed_power(g, b, POWER, FAST)
        u = m
    elif RULE == "adams":
        nu = tl.fma(g * d, g, m * m * b)
        m = tl.fma(g, c, m * a)
        u = tl.div_rn(m, tl.sqrt_rn(nu) + eps)
    else:
        v = _decode(v, v_scales, table_v, CODE_V, False, BLOCK, ROW)
        m = tl.fma(g, c, m * a)
        v = tl.fma(g * d, g, v * b)
        step = tl.load(_pointer(pointers, STEP, tensors, tensor, 0, tl.float32, 1))
        m_hat = divide_by_scalar(m, bias_correction(step, log_a))
        v_hat = divide_by_scalar(v, bias_correction(step, log_b))
        u = tl.div_rn(m_hat, tl.sqrt_rn(v_hat) + eps)

    if CODE_M == "none":
        _write(m_at, m, mask, MASKED)
    else:
        codes, scales = _encode(m, mask, MASKED, CODE_M, True, BLOCK, ROW)
        _write(m_at, codes, mask, MASKED)
        _write(ms_at, scales, row_mask, MASKED)
    if RULE == "adamw":
        if CODE_V == "none":
            _write(v_at, v, mask, MASKED)
        else:
            codes, scales = _encode(v, mask, MASKED, CODE_V, False, BLOCK, ROW)
            _write(v_at, codes, mask, MASKED)
            _write(vs_at, scales, row_mask, MASKED)

    p = p * decay
    if LR_TENSOR:
        p = p - u * lr
    else:
        p = tl.fma(u, -lr, p)
    _write(p_at, p, mask, MASKED)


@triton.jit(do_not_specialize=["tensors", "lr", "decay", "factor", "found"])
def step_kernel(
    chunks, numels, pointers, tensors, table_m, table_v,
    lr, decay, a, b, c, d, log_a, log_b, eps, factor, found,
    RULE: tl.constexpr, TYPE_P: tl.constexpr, TYPE_G: tl.constexpr,
    CODE_M: tl.constexpr, TYPE_M: tl.constexpr, CODE_V: tl.constexpr, TYPE_V: tl.constexpr,
    POWER: tl.constexpr, LR_TENSOR: tl.constexpr, FACTOR: tl.constexpr,
    FOUND_INF: tl.constexpr, BLOCK: tl.constexpr, ROW: tl.constexpr, VECTOR: tl.constexpr,
    FAST: tl.constexpr, TAIL: tl.constexpr,
):  # fmt: skip
    """Step all elements of all tensors of a table (see ``launch.Table``).

    - ``chunks``, (programs, 2) int32: a program's tensor, and which ``BLOCK`` elements of it.
    - ``numels``, (tensors,) int64; ``pointers``, (7, tensors) int64, rows as named above.
    - ``a``, ``b``: γ and the power's exponent, or β1 and β2; ``c`` and ``d`` are 1 - a and 1 - b.
    - ``lr`` and ``decay`` = 1 - lr·λ, or with ``LR_TENSOR`` pointers to them.
    - ``factor``, with ``FACTOR``: pointer to what gradients are multiplied by as they are read.
    - ``found``, with ``FOUND_INF``: pointer to a number; if it is not 0, nothing is written.
    - ``RULE``: "powerstep", "pbsgdm", "adams" or "adamw".
    - ``CODE_M``, ``CODE_V``: "none" (fp32 values), "linear", or "dynamic" with its entries in
      ``table_m``, ``table_v``; the second moment's is unsigned.
    - ``POWER``, ``FAST``: see ``signed_power``.
    - ``BLOCK`` elements a program, ``ROW`` a scale, ``TAIL`` at a time in a tensor's last block:
      powers of two, each a multiple of ``ROW``.
    - ``VECTOR``: elements to whose size every address of the table is aligned.
    """
    program = tl.program_id(0)
    tensor = tl.load(chunks + 2 * program)
    start = tl.load(chunks + 2 * program + 1).to(tl.int64) * BLOCK
    numel = tl.load(numels + tensor)
    if LR_TENSOR:
        lr = tl.load(lr)
        decay = tl.load(decay)
    if FACTOR:
        factor = tl.load(factor)
    if FOUND_INF:
        # Nothing to do in a tensor without elements: no further branch in what all programs run.
        numel = tl.where(tl.load(found) != 0, 0, numel)
    # A whole block needs no mask, and only then are its accesses vectors. A tensor's tail goes in
    # small parts, or its masks would claim so many registers that all programs suffer.
    if start + BLOCK <= numel:
        _update(
            start, numel, tensor, tensors, pointers, table_m, table_v,
            lr, decay, a, b, c, d, log_a, log_b, eps, factor,
            RULE, TYPE_P, TYPE_G, CODE_M, TYPE_M, CODE_V, TYPE_V, POWER, LR_TENSOR, FACTOR,
            BLOCK, ROW, VECTOR, FAST, MASKED=False,
        )  # fmt: skip
    else:
        for _ in range(tl.cdiv(numel - start, TAIL).to(tl.int32)):
            _update(
                start, numel, tensor, tensors, pointers, table_m, table_v,
                lr, decay, a, b, c, d, log_a, log_b, eps, factor,
                RULE, TYPE_P, TYPE_G, CODE_M, TYPE_M, CODE_V, TYPE_V, POWER, LR_TENSOR, FACTOR,
                TAIL, ROW, VECTOR, FAST, MASKED=True,
            )  # fmt: skip
            start += TAIL
