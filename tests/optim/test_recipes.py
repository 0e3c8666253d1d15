"""Guards the recipes of docs/optimizers.md: each runs as it stands there, on a tiny GPT-2."""

import copy
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "optimizers.md").read_text()
RECIPES = dict(re.findall(r"<!-- recipe: (\w+) -->\n```python\n(.*?)```", PAGE, re.DOTALL))


def world(folder):
    """The names that the recipes rest on."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    shape = GPT2Config(
        vocab_size=257, n_positions=16, n_embd=128, n_layer=2, n_head=2, bos_token_id=0,
        eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    tokens = torch.randint(257, (32, 16))
    dataset = [{"input_ids": row, "labels": row} for row in tokens]
    return {
        "model": GPT2LMHeadModel(shape),
        "dataset": dataset,
        "loader": DataLoader(dataset, batch_size=4),
        "folder": str(folder),
    }


def run(title, there):
    before = copy.deepcopy(there["model"].state_dict())
    exec(compile(RECIPES[title], f"the recipe {title}", "exec"), there)
    return before


def is_coded(optimizer):
    return any(key.endswith("_codes") for state in optimizer.state.values() for key in state)


def moved(model, before):
    return [k for k, v in model.state_dict().items() if not torch.equal(v, before[k])]


def test_trainer(tmp_path):
    pytest.importorskip("accelerate")
    there = world(tmp_path)
    before = run("trainer", there)
    assert moved(there["model"], before)
    assert is_coded(there["optimizer"])
    # From the checkpoint in the middle it comes out alike.
    again = world(tmp_path)
    code = RECIPES["trainer"].replace(
        "trainer.train()", 'trainer.train(resume_from_checkpoint=f"{folder}/checkpoint-2")'
    )
    exec(code, again)
    for p, q in zip(there["model"].parameters(), again["model"].parameters(), strict=True):
        assert torch.equal(p, q)


def test_lightning(tmp_path):
    pytest.importorskip("lightning")
    there = world(tmp_path)
    before = run("lightning", there)
    assert moved(there["model"], before)
    assert is_coded(there["trainer"].optimizers[0])
    (saved,) = tmp_path.rglob("*.ckpt")
    state = torch.load(saved, weights_only=False)["optimizer_states"][0]["state"]
    assert {s["momentum_codes"].dtype for s in state.values()} == {torch.uint8}


def test_accelerate(tmp_path):
    pytest.importorskip("accelerate")
    there = world(tmp_path)
    before = run("accelerate", there)
    assert moved(there["model"], before)
    inner = there["optimizer"].optimizer
    assert is_coded(inner)
    saved = copy.deepcopy(inner.state_dict()["state"])
    for state in inner.state.values():
        state["momentum_scales"].zero_()
    there["accelerator"].load_state(str(tmp_path))
    torch.testing.assert_close(inner.state_dict()["state"], saved, rtol=0, atol=0)


def test_peft(tmp_path):
    pytest.importorskip("peft")
    there = world(tmp_path)
    run("peft", there)
    trained = [name for name, p in there["model"].named_parameters() if p.requires_grad]
    assert len(there["optimizer"].state) == len(trained)
    assert all("lora" in name for name in trained)
    assert is_coded(there["optimizer"])
    assert all(there["model"].get_parameter(name).ne(0).any() for name in trained)


def on_two_ranks(folder, lines):
    """Run a script of its own that has this file's names."""
    script = folder / "ranks.py"
    start = "import torch, torch.distributed as dist\nfrom test_recipes import *\n"
    script.write_text(
        f"{start}dist.init_process_group('gloo')\n{lines}dist.destroy_process_group()\n"
    )
    paths = f"{ROOT}{os.pathsep}{Path(__file__).parent}"
    ranks = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*ranks, str(script)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_zero(tmp_path):
    """As plain DDP, with half of the state a rank."""
    on_two_ranks(
        tmp_path,
        "there, plain = world('unused'), world('unused')\n"
        "run('zero', there)\n"
        "_, rest = RECIPES['zero'].split('import ZeroRedundancyOptimizer')\n"
        "plain['ZeroRedundancyOptimizer'] = lambda params, rule, **hyper: rule(params, **hyper)\n"
        "exec(rest.split('optimizer.consolidate')[0], plain)\n"
        "for p, q in zip(there['model'].parameters(), plain['model'].parameters(), strict=True):\n"
        "    assert torch.equal(p, q)\n"
        "held = len(there['optimizer'].optim.state)\n"
        "assert 0 < held < len(plain['optimizer'].state)\n"
        "if dist.get_rank() == 0:\n"
        "    state = there['optimizer'].state_dict()['state']\n"
        "    assert len(state) == len(plain['optimizer'].state)\n"
        "    assert all(s['momentum_codes'].dtype == torch.uint8 for s in state.values())\n",
    )


def test_fsdp(tmp_path):
    """What was loaded is what was saved, and it is sharded."""
    on_two_ranks(
        tmp_path,
        f"there = world({str(tmp_path / 'checkpoint')!r})\n"
        "before, after = RECIPES['fsdp'].split('# Later')\n"
        "exec(before, there)\n"
        "optimizer = there['optimizer']\n"
        "assert is_coded(optimizer)\n"
        "tensors = [v for s in optimizer.state.values() for v in s.values()]\n"
        "kept = [v.to_local().clone() for v in tensors]\n"
        "for v in tensors: v.to_local().zero_()\n"
        "exec('# Later' + after, there)\n"
        "loaded = [v.to_local() for s in optimizer.state.values() for v in s.values()]\n"
        "assert all(map(torch.equal, loaded, kept)) and len(kept) == len(loaded) > 0\n",
    )
