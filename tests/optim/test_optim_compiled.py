"""Fused steps on the CPU, which torch compiles: the reference's numbers, and few loops.

Guards: sizes and special values; a loop anew at every rate, size or β; precision, strides and
states that differ from the other steps'; compiling unasked, or where there is no compiler.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.utils import counters

from powerstep_repro.optim import compiled, create, fused

needs_compiler = pytest.mark.skipif(compiled.compiler() is None, reason="no C++ compiler")
NAMES = ["powerstep", "signsgd", "pbsgdm", "adams"]
LARGE = compiled.OWN_CALL
SIZES = st.lists(
    st.sampled_from([0, 1, 129, LARGE - 1, LARGE, LARGE + 1, LARGE + 15, 3 * LARGE + 16]),
    min_size=1,
    max_size=4,
)


@pytest.fixture(autouse=True)
def _no_interpreter(monkeypatch):
    """As in a user's process: the suite's other tests want Triton's interpreter."""
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    fused.available.cache_clear()
    yield
    fused.available.cache_clear()


def run(name, tensors, implementation, *, steps=3, rates=(0.01,), factor=None, **hyper):
    """Step copies of the tensors with gradients that depend on the step alone."""
    params = [torch.nn.Parameter(t.clone()) for t in tensors]
    hyper = {"weight_decay": 0.1, "implementation": implementation} | hyper
    optimizer = create(name, params, **hyper)
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator).to(p.dtype)
        optimizer.param_groups[0]["lr"] = rates[step % len(rates)]
        optimizer.step(grad_factor=factor)
    return params, [optimizer.state[p] for p in params if p.numel()]


def assert_same(left, right, **tolerance):
    tolerance = tolerance or {"rtol": 2e-6, "atol": 2e-6}
    for p, q in zip(left[0], right[0], strict=True):
        torch.testing.assert_close(p, q, **tolerance)
    for a, b in zip(left[1], right[1], strict=True):
        torch.testing.assert_close(a, b, **tolerance)


def loops():
    return counters["stats"]["unique_graphs"]


@needs_compiler
@pytest.mark.parametrize("name", NAMES)
def test_compiled_is_the_reference(name):
    """And one loop serves all sizes."""

    @settings(max_examples=6, deadline=None)
    @given(sizes=SIZES)
    def check(sizes):
        tensors = [torch.randn(n, generator=torch.Generator().manual_seed(n)) for n in sizes]
        assert_same(run(name, tensors, "fused"), run(name, tensors, "reference"))

    counters["graph_break"].clear()
    before = loops()
    check()
    assert loops() - before <= 1
    assert not counters["graph_break"]


@needs_compiler
def test_special_values():
    """Zeros, subnormal numbers, infinities and NaN, in whole vectors and in the loop's tail."""
    special = [0.0, -0.0, 1e-45, -1e-40, 1e-38, torch.inf, -torch.inf, torch.nan, 1e38]
    pair = []
    for implementation in ("fused", "reference"):
        p = torch.nn.Parameter(torch.ones(LARGE + 9))
        optimizer = create(
            "powerstep", [p], lr=1.0, weight_decay=0.1, implementation=implementation
        )
        p.grad = torch.tensor(special).repeat(LARGE // 9 + 2)[: LARGE + 9]
        for _ in range(2):
            optimizer.step()
        pair.append(([p], [optimizer.state[p]]))
    assert_same(*pair, rtol=2e-6, atol=0, equal_nan=True)
    assert (torch.full((LARGE,), 1e-40) * 0.5 > 0).all()  # loading the loop must not flush these


@needs_compiler
def test_rates_decays_and_exponents_make_no_new_loop():
    """Nor do dimensions: a schedule, a sweep over β and a model of any shapes compile once."""
    tensors = [torch.ones(LARGE), torch.ones(3, LARGE), torch.ones(2, 3, LARGE)]
    rates = (0.1, torch.tensor(0.02), 0.003)
    run("powerstep", tensors, "fused", steps=1)
    before = loops()
    for beta, decay in [(0.1, 0.2), (0.2, 0.01), (0.7, 0.3)]:
        hyper = {"beta": beta, "weight_decay": decay, "rates": rates}
        steps = [run("powerstep", tensors, kind, **hyper) for kind in ("fused", "reference")]
        assert_same(*steps)
    assert loops() == before


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_precision_strides_and_factor(dtype):
    """Low precision is stepped in float32, double in double, a transposed tensor in place."""
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(s, generator=generator).to(dtype) for s in [(150, 200), (7,)]]
    tensors[0] = tensors[0].t()
    factor = torch.tensor(0.5)
    left, right = (run("powerstep", tensors, k, factor=factor) for k in ("fused", "reference"))
    state = torch.float64 if dtype == torch.float64 else torch.float32
    assert {s["momentum"].dtype for s in left[1]} == {state}
    assert left[0][0].stride() == (1, 200)
    exact = {"rtol": 1e-13, "atol": 1e-13} if dtype == torch.float64 else {"rtol": 8e-3, "atol": 0}
    assert_same(left, right, **exact)


@needs_compiler
def test_states_pass_between_implementations():
    """A checkpoint of one is continued by the other; a changed parameter is known as changed."""
    start = torch.linspace(-1, 1, LARGE)
    optimizers = {}
    for kind in ("fused", "reference"):
        p = torch.nn.Parameter(start.clone())
        p.grad = start.flip(0).clone()
        optimizers[kind] = p, create("powerstep", [p], weight_decay=0.1, implementation=kind)
    for first, second in [("fused", "reference"), ("reference", "fused")]:
        (p, ahead), (q, behind) = optimizers[first], optimizers[second]
        version = p._version
        ahead.step()
        assert p._version > version
        q.data.copy_(p)
        behind.load_state_dict(ahead.state_dict())
        assert behind.param_groups[0]["implementation"] == second
        ahead.step()
        behind.step()
        assert_same(([p], [ahead.state[p]]), ([q], [behind.state[q]]))


@needs_compiler
def test_a_flag_is_refused_and_torchs_scaler_reads_it_itself():
    p = torch.nn.Parameter(torch.ones(LARGE))
    optimizer = create("powerstep", [p], implementation="fused")
    assert not optimizer._step_supports_amp_scaling
    p.grad = torch.ones_like(p)
    optimizer.found_inf = torch.tensor(0.0)
    with pytest.raises(ValueError, match="'fused' takes compiled steps here"):
        optimizer.step()
    assert torch.equal(p, torch.ones_like(p))


@needs_compiler
def test_compiled_as_a_whole_it_is_one_graph():
    """Under ``torch.compile`` of the step nothing is compiled inside."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    p = torch.nn.Parameter(torch.ones(LARGE))
    optimizer = create("powerstep", [p], lr=torch.tensor(0.1), implementation="fused")
    p.grad = torch.ones_like(p)
    step = torch.compile(optimizer.step, backend=backend)
    for _ in range(3):
        step()
    assert len(graphs) == 2  # the first step, which makes the state, and all later ones
    torch.testing.assert_close(p, torch.full_like(p, 1 - 0.1 * (1 + 1.9**0.1 + 2.71**0.1)))


def test_nothing_is_compiled_unasked(monkeypatch):
    monkeypatch.setattr(compiled, "step", None)
    for implementation in ("auto", "foreach"):
        run("powerstep", [torch.ones(LARGE)], implementation)


@pytest.mark.parametrize("name", ["stacey", "powerstep_int8", "adams_released"])
def test_what_has_no_compiled_step(name):
    """Quantized state would be slower than eager; the others lack a list form or a kernel."""
    with pytest.raises(ValueError, match=r"not available for \w+ .*on cpu.*; use auto, foreach or"):
        create(name, [torch.nn.Parameter(torch.ones(1))], implementation="fused")


def test_without_a_compiler_it_is_refused(monkeypatch, tmp_path):
    """At construction, with what is missing; a ``CXX`` that is set is the one that counts."""
    monkeypatch.setenv("CXX", str(tmp_path / "c++"))
    compiled.compiler.cache_clear()
    try:
        with pytest.raises(ValueError, match=r"on cpu, where it needs a C\+\+ compiler; use auto"):
            create("powerstep", [torch.nn.Parameter(torch.ones(1))], implementation="fused")
    finally:
        compiled.compiler.cache_clear()
