"""``torch.compile`` of a step: one graph, none more at a new tensor rate, the same numbers."""

import pytest
import torch

from powerstep_repro.optim import create, names


@pytest.mark.parametrize("name", ["powerstep", "adams_released"])
def test_a_compiled_step_is_traced_once(name):
    """Guards a retrace at every new rate, which ends in a step that silently runs eagerly."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled, eager = (torch.nn.Parameter(torch.ones(7, 5)) for _ in range(2))
    rate = torch.tensor(0.1)
    optimizer = create(name, [compiled], lr=rate, weight_decay=0.1)
    plain = create(name, [eager], lr=0.1, weight_decay=0.1)
    step = torch.compile(optimizer.step, backend=backend)
    compiled.grad, eager.grad = torch.zeros(7, 5), torch.zeros(7, 5)
    counts = []
    for t in range(5):
        gradient = torch.randn(7, 5, generator=torch.Generator().manual_seed(t))
        compiled.grad.copy_(gradient)
        eager.grad.copy_(gradient)
        rate.fill_(0.1 / (1 + t))
        plain.param_groups[0]["lr"] = 0.1 / (1 + t)
        step()
        plain.step()
        counts.append(len(graphs))
    assert counts[1:] == [2] * 4  # the first step, which makes the state, and all later ones
    torch.testing.assert_close(compiled, eager, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in names() if "int8" in name])
@pytest.mark.parametrize("implementation", ["reference", "foreach"])
def test_a_quantized_step_is_the_same_where_a_caller_compiles_it(name, implementation):
    """The compiler's code for a CPU left all after the last whole block of a tensor as it was."""
    torch._dynamo.reset()
    compiled, eager = (torch.nn.Parameter(torch.ones(300)) for _ in range(2))
    optimizer, plain = (
        create(name, [p], lr=0.1, implementation=implementation) for p in (compiled, eager)
    )
    step = torch.compile(lambda: optimizer.step())
    for t in range(3):
        gradient = torch.randn(300, generator=torch.Generator().manual_seed(t))
        compiled.grad, eager.grad = gradient.clone(), gradient.clone()
        step()
        plain.step()
    assert torch.equal(compiled, eager)
