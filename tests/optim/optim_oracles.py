"""The update rules once more, in plain Python floats and for a list of numbers.

Written from the equations, not from the code under test: no torch, no in-place arithmetic, no
shared transform. ``run(name, theta, gradients, **hyperparameters)`` returns θ after each step.
"""

import itertools
import math


def phi(x: float, beta: float) -> float:
    """Φ_β(x), equation (5), with Φ_β(0) = 0 for every β."""
    return 0.0 if x == 0 else math.copysign(abs(x) ** beta, x)


def adamw(theta, gradients, *, lr, weight_decay, betas, eps):
    b1, b2 = betas
    for i in range(len(theta)):
        m = v = 0.0
        for t, g in enumerate((row[i] for row in gradients), start=1):
            m = b1 * m + (1 - b1) * g
            v = b2 * v + (1 - b2) * g * g
            u = (m / (1 - b1**t)) / (math.sqrt(v / (1 - b2**t)) + eps)
            theta[i] = (1 - lr * weight_decay) * theta[i] - lr * u
            yield t, i, theta[i]


def powerstep(theta, gradients, *, lr, weight_decay, gamma, beta):
    for i in range(len(theta)):
        m = 0.0
        for t, g in enumerate((row[i] for row in gradients), start=1):
            m = gamma * m + g
            theta[i] = theta[i] - lr * (phi(m, beta) + weight_decay * theta[i])
            yield t, i, theta[i]


def signsgd(theta, gradients, *, lr, weight_decay, gamma):
    for i in range(len(theta)):
        m = 0.0
        for t, g in enumerate((row[i] for row in gradients), start=1):
            m = gamma * m + g
            sign = (m > 0) - (m < 0)
            theta[i] = theta[i] - lr * (sign + weight_decay * theta[i])
            yield t, i, theta[i]


def pbsgdm(theta, gradients, *, lr, weight_decay, gamma, beta):
    for i in range(len(theta)):
        m = 0.0
        for t, g in enumerate((row[i] for row in gradients), start=1):
            m = gamma * m + phi(g, beta)
            theta[i] = theta[i] - lr * (m + weight_decay * theta[i])
            yield t, i, theta[i]


def pbsgdm_released(theta, gradients, *, lr, weight_decay, gamma, beta):
    for i in range(len(theta)):
        m = 0.0
        for t, g in enumerate((row[i] for row in gradients), start=1):
            m = gamma * m + phi(g, beta) + weight_decay * theta[i]
            theta[i] = theta[i] - lr * m
            yield t, i, theta[i]


def adams(theta, gradients, *, lr, weight_decay, betas, eps):
    b1, b2 = betas
    for i in range(len(theta)):
        m = 0.0
        for t, g in enumerate((row[i] for row in gradients), start=1):
            nu = b2 * m**2 + (1 - b2) * g**2
            m = b1 * m + (1 - b1) * g
            u = m / (math.sqrt(nu) + eps)
            theta[i] = theta[i] - lr * (u + weight_decay * theta[i])
            yield t, i, theta[i]


def adams_released(theta, gradients, *, lr, weight_decay, betas, eps):
    b1, b2 = betas
    for i in range(len(theta)):
        m = 0.0
        for t, g in enumerate((row[i] for row in gradients), start=1):
            m = b1 * m + (1 - b1) * g
            v = b2 * m**2 + (1 - b2) * g**2
            u = (m / (1 - b1**t)) / (math.sqrt(v / (1 - b2**t)) + eps)
            theta[i] = theta[i] - lr * (u + weight_decay * theta[i])
            yield t, i, theta[i]


def stacey(theta, gradients, *, lr, weight_decay, power, alpha, tau, betas, eps):
    b1, b2 = betas
    for i in range(len(theta)):
        m, z = 0.0, theta[i]
        for t, g in enumerate((row[i] for row in gradients), start=1):
            old = theta[i]
            c = b1 * m + (1 - b1) * g
            z = z - alpha * c
            d = c * (abs(c) + eps) ** (-(power - 2) / (power - 1))
            theta[i] = (1 - tau) * (old - lr * d) + tau * z - lr * weight_decay * old
            m = b2 * m + (1 - b2) * g
            yield t, i, theta[i]


def stacey_released(theta, gradients, *, lr, weight_decay, power, alpha, tau, betas, eps):
    b1, b2 = betas
    for i in range(len(theta)):
        m = z = 0.0
        for t, g in enumerate((row[i] for row in gradients), start=1):
            m = b2 * m + (1 - b2) * g
            c = b1 * m + (1 - b1) * g
            y = c / (abs(c) ** ((power - 2) / (power - 1)) + eps)
            z = z - alpha * c
            u = tau * z + (1 - tau) * y
            theta[i] = theta[i] - lr * (u + weight_decay * theta[i])
            yield t, i, theta[i]


def linear_values(levels: int, signed: bool) -> list[float]:
    return [c / levels for c in range(-levels if signed else 0, levels + 1)]


def dynamic_values(signed: bool) -> list[float]:
    """The dynamic map by its definition: mid-points of equal parts of seven decades, 0 and 1."""
    values = [0.0, 1.0]
    for i in range(7):
        n = 2**i if signed else 2 ** (i + 1)
        edges = [0.1 + 0.9 * k / n for k in range(n + 1)]
        for low, high in itertools.pairwise(edges):
            middle = (low + high) / 2 * 10.0 ** (i - 6)
            values += [middle, -middle] if signed else [middle]
    return sorted(values)


def through_code(block: list[float], values: list[float], added: float = 0.0) -> list[float]:
    """What a block of numbers is after one quantization and dequantization.

    Refuses blocks whose outcome hangs on rounding, so that a comparison with float32 is sound.
    """
    s = max(map(abs, block))
    decoded = []
    for x in block:
        ratio = x / (s + added) if s + added > 0 else 0.0
        nearest, second = sorted(values, key=lambda value: abs(value - ratio))[:2]
        margin = abs(second - ratio) - abs(nearest - ratio)
        assert ratio == 0 or margin > 1e-5 * abs(second - nearest), "pick another seed: a near tie"
        decoded.append(nearest * s)
    return decoded


def _blocks(n: int, size: int):
    return [range(start, min(start + size, n)) for start in range(0, n, size)]


def powerstep_int8(
    theta, gradients, *, lr, weight_decay, gamma, beta, block_size, code="linear", added=0.0
):
    values = dynamic_values(True) if code == "dynamic" else linear_values(127, True)
    for block in _blocks(len(theta), block_size):
        stored = [0.0] * len(block)
        for t, row in enumerate(gradients, start=1):
            m = [gamma * s + row[i] for s, i in zip(stored, block, strict=True)]
            stored = through_code(m, values, added)
            for x, i in zip(m, block, strict=True):
                theta[i] = theta[i] - lr * (phi(x, beta) + weight_decay * theta[i])
                yield t, i, theta[i]


def powerstep_int8_released(theta, gradients, **hyper):
    return powerstep_int8(theta, gradients, added=1e-12, **hyper)


def adamw_int8(
    theta, gradients, *, lr, weight_decay, betas, eps, block_size,
    code="linear", code_m=None, code_v=None, v_signed=False, added=0.0,
):  # fmt: skip
    b1, b2 = betas
    values_m = dynamic_values(True) if (code_m or code) == "dynamic" else linear_values(127, True)
    if (code_v or code) == "dynamic":
        values_v = dynamic_values(False)
    else:
        values_v = linear_values(127, True) if v_signed else linear_values(255, False)
    for block in _blocks(len(theta), block_size):
        m, v = [0.0] * len(block), [0.0] * len(block)
        for t, row in enumerate(gradients, start=1):
            m = [b1 * x + (1 - b1) * row[i] for x, i in zip(m, block, strict=True)]
            v = [b2 * x + (1 - b2) * row[i] ** 2 for x, i in zip(v, block, strict=True)]
            for x, y, i in zip(m, v, block, strict=True):
                u = (x / (1 - b1**t)) / (math.sqrt(y / (1 - b2**t)) + eps)
                theta[i] = theta[i] - lr * (u + weight_decay * theta[i])
                yield t, i, theta[i]
            m, v = through_code(m, values_m, added), through_code(v, values_v, added)


def adamw_int8_released(theta, gradients, **hyper):
    return adamw_int8(theta, gradients, v_signed=True, added=1e-12, **hyper)


def run(name: str, theta: list[float], gradients: list[list[float]], **hyper) -> list[list[float]]:
    """Return θ after every step: ``result[t - 1][i]``."""
    result = [[0.0] * len(theta) for _ in gradients]
    for t, i, value in globals()[name](list(theta), gradients, **hyper):
        result[t - 1][i] = value
    return result
