"""On a CUDA device: the same numbers as the reference, and no wait for the device in a step."""

import pytest
import torch

from powerstep_repro.optim import create, names

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
OURS = [name for name in names() if name != "adamw"]


def run(name: str, implementation: str, lr, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    params = [
        torch.nn.Parameter(torch.randn(n, generator=generator).to("cuda", dtype))
        for n in (1, 127, 128, 129, 5000)
    ]
    optimizer = create(name, params, lr=lr, weight_decay=0.1, implementation=implementation)
    for step in range(6):
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator).to("cuda", dtype)
        torch.cuda.synchronize()
        # The first step may build tables and compile kernels.
        torch.cuda.set_sync_debug_mode("error" if step else "default")
        try:
            optimizer.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return params


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rate", ["number", "cpu", "cuda"])
def test_foreach_and_auto_are_the_reference(name, dtype, rate):
    lr = 0.01 if rate == "number" else torch.tensor(0.01, device=rate)
    reference = run(name, "reference", lr, dtype)
    tolerance = 1e-2 if dtype == torch.bfloat16 else 1e-5
    for implementation in ("foreach", "auto"):
        for p, q in zip(run(name, implementation, lr, dtype), reference, strict=True):
            torch.testing.assert_close(p, q, rtol=tolerance, atol=tolerance)
