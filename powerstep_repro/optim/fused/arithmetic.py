"""Elementwise arithmetic of the fused kernels: signed power, and the two 8-bit codes.

All but the fast form of the power is built from operations that round the same way on every
device (no approximate ``log2`` or ``exp2`` instruction, no implicit multiply-add), so that a kernel
interpreted on a CPU computes what the compiled one does. Blocks are fp32, of shape (rows, row
length), in registers.
"""

import os

import triton
import triton.language as tl

SIGN = tl.constexpr(-0x80000000)
INFINITY = tl.constexpr(0x7F800000)
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET", "0") == "1")


@triton.jit
def _log2(f):
    """The hardware's ``log2``; absolute error 2.4e-7 for ``1/2 <= f <= 2``."""
    if INTERPRETED:
        return tl.log2(f)
    else:
        return tl.inline_asm_elementwise(
            "lg2.approx.ftz.f32 $0, $1;", "=f,f", [f], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit
def signed_power(x, beta, POWER: tl.constexpr, FAST: tl.constexpr):
    """``sign(x)|x|^beta`` as ``2^(beta*log2|x|)``, exponent and mantissa kept apart.

    ``beta*log2|x|`` rounded as one number would lose up to seven bits for tiny ``x``. Written as
    ``beta*e + beta*log2(f)`` for ``|x| = f*2^e``, its integer part taken out exactly, it keeps the
    result within 1.3 ulp for beta <= 1.

    Args:
        x: fp32 block.
        beta: Exponent; unused for ``sign`` and ``identity``.
        POWER: "sign" (beta = 0), "identity" (beta = 1), "root" (0 < beta <= 0.8: no finite x but
            zero has a subnormal result) or "any".
        FAST: Take the hardware's log2: up to 2.8*beta ulp more.
    """
    if POWER == "identity":
        return x
    else:
        bits = x.to(tl.int32, bitcast=True)
        magnitude = bits & 0x7FFFFFFF
        if POWER == "sign":
            # As torch.sign: the sign of zero and of NaN is zero.
            has_sign = (magnitude != 0) & (magnitude <= INFINITY)
            result = tl.where(has_sign, 0x3F800000, 0)
        else:
            result = _power(magnitude, beta, POWER, FAST)
            # Zero, infinity and NaN are their own powers: one comparison, the zero wraps around.
            ordinary = (magnitude - 1).to(tl.uint32, bitcast=True) < 0x7F7FFFFF
            result = tl.where(ordinary, result, magnitude)
        return (result | (bits & SIGN)).to(tl.float32, bitcast=True)


@triton.jit
def _log2_polynomial(z):
    """``log2(1 + z)`` for ``sqrt(1/2) <= 1 + z < sqrt(2)``; absolute error 7e-9 and rounding."""
    q = tl.fma(z, 0.12541243433952332, -0.21030333638191223)
    q = tl.fma(q, z, 0.2173793762922287)
    q = tl.fma(q, z, -0.23851943016052246)
    q = tl.fma(q, z, 0.28765666484832764)
    q = tl.fma(q, z, -0.3607212007045746)
    q = tl.fma(q, z, 0.48092252016067505)
    q = tl.fma(q, z, -0.7213471531867981)
    q = tl.fma(q, z, 1.442694902420044)
    return q * z


@triton.jit
def _exp2_polynomial(w):
    """``2^w`` for ``|w| <= 1/2``; relative error 2e-9 and rounding."""
    y = tl.fma(w, 0.0001534581242594868, 0.0013399930903688073)
    y = tl.fma(y, w, 0.009618489071726799)
    y = tl.fma(y, w, 0.05550328642129898)
    y = tl.fma(y, w, 0.24022646248340607)
    y = tl.fma(y, w, 0.6931471824645996)
    return tl.fma(y, w, 1.0)


@triton.jit
def _power(magnitude, beta, POWER: tl.constexpr, FAST: tl.constexpr):
    """Bits of ``x^beta`` from the bits of a positive finite ``x``."""
    # A subnormal is its own integer times 2^-149; read so, it survives flushing hardware.
    subnormal = magnitude < 0x00800000
    as_integer = magnitude.to(tl.float32).to(tl.int32, bitcast=True)
    x = tl.where(subnormal, as_integer, magnitude)

    # x = f * 2^e with sqrt(1/2) <= f < sqrt(2); z = f - 1.
    centred = x - 0x3F3504F3
    f = (x - (centred & -0x00800000)).to(tl.float32, bitcast=True)
    e = ((centred >> 23) + tl.where(subnormal, -149, 0)).to(tl.float32)
    if FAST:
        log2_f = _log2(f)
    else:
        log2_f = _log2_polynomial(f - 1.0)

    # beta*(e + log2(f)) = n + w, |w| <= 1/2 and a little. Adding 1.5*2^23 rounds to an integer
    # and leaves it in the low bits.
    shifted = tl.fma(e + log2_f, beta, 12582912.0)
    n = shifted - 12582912.0
    w = tl.fma(log2_f, beta, tl.fma(e, beta, -n))

    y = _exp2_polynomial(w)
    if POWER == "root":
        return y.to(tl.int32, bitcast=True) + (shifted.to(tl.int32, bitcast=True) << 23)
    else:
        # 2^n in two factors, so that the product rounds once when it is subnormal.
        whole = n.to(tl.int32)
        half = whole >> 1
        y = y * ((half + 127) << 23).to(tl.float32, bitcast=True)
        y = y * ((whole - half + 127) << 23).to(tl.float32, bitcast=True)
        return y.to(tl.int32, bitcast=True)


@triton.jit
def round_to_bfloat16(x):
    """The nearest number with bfloat16's mantissa: the interpreter's own cast cuts it off."""
    bits = x.to(tl.int32, bitcast=True)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000
    return tl.where(x == x, rounded, bits).to(tl.float32, bitcast=True)


@triton.jit
def bias_correction(step, log_beta):
    """``1 - beta^step`` for a scalar step >= 1, precise also where it is small."""
    y = -(step * log_beta)
    # 1 - e^-y = y + y^2 r(y), r by a minimax polynomial on [0, 0.7]; relative error 2e-10.
    r = tl.fma(y, 0.0001462126529077068, -0.0013408411759883165)
    r = tl.fma(r, y, 0.008310718461871147)
    r = tl.fma(r, y, -0.04166112095117569)
    r = tl.fma(r, y, 0.16666601598262787)
    r = tl.fma(r, y, -0.4999999701976776)
    return tl.where(y < 0.7, tl.fma(y * y, r, y), 1.0 - tl.exp2(y * -1.4426950408889634))


@triton.jit
def row_maximum(x):
    """Largest ``|x|`` of each row, NaN if a row holds one: fp32 of shape (rows,).

    Compared as integers, which orders NaN above infinity and lets a warp reduce a row of 128 in
    one instruction.
    """
    magnitude = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    return tl.max(magnitude, axis=1).to(tl.float32, bitcast=True)


@triton.jit
def divide_by_row(x, row):
    """``x / row`` within 1.5 ulp, for ``|x| <= row``; zero for a zero row.

    One reciprocal a row, two products an element. Rows below 2^-100 are lifted first, or their
    reciprocal would overflow. A finite x over infinity is zero.
    """
    lift = tl.where(row < 7.888609052210118e-31, 1.8446744073709552e19, 1.0)
    divisor = row * lift
    inverse = tl.where(divisor == 0.0, 0.0, 1.0 / divisor)
    # One Newton step makes of the hardware's reciprocal (two ulp) a correctly rounded one, nearly.
    newton = tl.fma(tl.fma(-inverse, divisor, 1.0), inverse, inverse)
    inverse = tl.where(divisor < float("inf"), newton, inverse)
    return (x * lift[:, None]) * inverse[:, None]


@triton.jit
def divide_by_scalar(x, divisor):
    """``x / divisor`` correctly rounded, nearly always: one division for a whole block."""
    inverse = tl.div_rn(1.0, divisor)
    q = x * inverse
    return tl.fma(tl.fma(-q, divisor, x), inverse, q)


@triton.jit
def decode_linear(codes, SIGNED: tl.constexpr):
    """``code/127`` or ``code/255``, correctly rounded: the reciprocal in two parts."""
    c = codes.to(tl.float32)
    if SIGNED:
        return tl.fma(c, 0.007874015718698502, c * 2.9332994366804144e-11)
    else:
        return tl.fma(c, 0.003921568859368563, c * -2.319175823606301e-10)


@triton.jit
def encode_linear(x, SIGNED: tl.constexpr):
    """``round(127x)`` or ``round(255x)``, half to even, for ``|x| <= 1``; NaN becomes 0."""
    x = x * (127.0 if SIGNED else 255.0)
    x = tl.where(x == x, x, 0.0)
    return ((x + 12582912.0) - 12582912.0).to(tl.int32)


@triton.jit
def _line(y, w, SLOPE: tl.constexpr, OFFSET: tl.constexpr):
    return tl.minimum(w, tl.fma(y, SLOPE, OFFSET))


@triton.jit
def encode_dynamic(x, SIGNED: tl.constexpr):
    """Index of the entry of the dynamic map that is nearest to ``x``, ``|x| <= 1``; NaN has 255.

    The map counts its entries as a floating-point number counts. Of the decade up to 10^(i-6),
    cut in n = 2^i equal parts (2^(i+1) in the unsigned map), the j-th mid-point is entry n + j,
    and what lies in that part is nearest to it: w(y) = n + n(y/10^(i-6) - 0.1)/0.9 has n + j for
    its integer part. Over all decades w is continuous and concave, so it is the least of seven
    straight lines, and no decade need be found. Three corrections:

    - Where a decade begins, its first part is five times as wide as the one before it. The border
      between the two entries lies at a fifth of that part, so there w below n + 1/5 is still n - 1.
    - The border between zero and the first entry is met by the lowest decade's line, which has
      room: it is drawn through that border and the next.
    - The entry 1 begins a quarter part before 1.

    In fp32, w has an error of 1.7e-5 at most (8e-6 signed): nearer than that to a border, in units
    of the distance between entries, the choice may differ from that of a search.
    """
    y = tl.abs(x)
    if SIGNED:
        w = tl.fma(y, 1103448.275862069, 0.896551724137931)
        w = _line(y, w, 222222.22222222222, 1.7777777777777777)
        w = _line(y, w, 44444.444444444445, 3.5555555555555554)
        w = _line(y, w, 8888.888888888889, 7.111111111111111)
        w = _line(y, w, 1777.7777777777778, 14.222222222222221)
        w = _line(y, w, 355.55555555555554, 28.444444444444443)
        w = _line(y, w, 71.11111111111111, 56.888888888888886)
    else:
        w = tl.fma(y, 2064516.129032258, 1.864516129032258)
        w = _line(y, w, 444444.44444444444, 3.5555555555555554)
        w = _line(y, w, 88888.88888888889, 7.111111111111111)
        w = _line(y, w, 17777.777777777777, 14.222222222222221)
        w = _line(y, w, 3555.5555555555557, 28.444444444444443)
        w = _line(y, w, 711.1111111111111, 56.888888888888886)
        w = _line(y, w, 142.22222222222223, 113.77777777777777)
    power = (w.to(tl.int32, bitcast=True) & -0x00800000).to(tl.float32, bitcast=True)
    entry = w.to(tl.int32) - (w - power < 0.2).to(tl.int32)
    if SIGNED:
        # There is no -1. The comparison is false for NaN.
        entry = tl.where(w < 127.75, entry, tl.where(x < 0.0, 127, 128))
        return 127 + tl.where(x < 0.0, -entry, entry)
    else:
        return tl.where(w < 255.75, entry, 256) - 1
