"""Torch's own contract for optimizers, restated for every optimizer: state, copies and hooks.

``contract_kit.py`` says how the checks are run.
"""

import copy
import io
import pickle

import pytest
import torch
from contract_kit import (
    Contract,
    combinations,
    copies,
    equal,
    first_and_last,
    same_state,
    take_steps,
)
from optim_kit import parameters
from torch.optim.optimizer import register_optimizer_step_post_hook as after_every_step
from torch.optim.optimizer import register_optimizer_step_pre_hook as before_every_step

contract = Contract()


@contract
def state_survives_a_file_and_continues_bit_for_bit(case):
    """Whatever hyperparameters the fresh one was made with, and in low precision, too."""
    for dtype in (torch.float32, torch.bfloat16):
        params = parameters((5, 3), (4,), (), dtype=dtype)
        optimizer = case([{"params": params[:1]}, {"params": params[1:], "lr": 0.02}])
        assert optimizer.state_dict()["state"] == {}
        take_steps(optimizer, params)
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        file.seek(0)
        again = copies(params)
        fresh = case([{"params": again[:1]}, {"params": again[1:]}], lr=0.5, weight_decay=0.7)
        fresh.load_state_dict(torch.load(file, weights_only=True))
        assert same_state(fresh, optimizer)
        for o, ps in ((optimizer, params), (fresh, again)):
            take_steps(o, ps, first=3)
        assert equal(params, again)
        assert same_state(fresh, optimizer)
        assert [g["lr"] for g in fresh.param_groups] == [0.01, 0.02]


@contract
def state_dictionaries_have_one_order_and_a_step_may_be_a_number(case):
    params = parameters((3, 2), (4,), (2,))
    optimizer = case(params)
    params[1].requires_grad_(False)
    take_steps(optimizer, [params[2], params[0]])
    saved = optimizer.state_dict()
    assert str(saved) == str(optimizer.state_dict())
    assert saved["param_groups"][0]["params"] == [0, 1, 2]
    assert set(saved["state"]) == {0, 2}
    numeric = copy.deepcopy(saved)
    for state in numeric["state"].values():
        if "step" in state:
            state["step"] = float(state["step"])
    again = copies(params)
    fresh = case(again)
    fresh.load_state_dict(numeric)
    take_steps(optimizer, params, first=3)
    take_steps(fresh, again, first=3)
    assert equal(params, again)


@contract
def a_checkpoint_from_before_a_hyperparameter_was_there_loads(case):
    params = parameters((3, 2))
    optimizer = case(params)
    take_steps(optimizer, params)
    saved = copy.deepcopy(optimizer.state_dict())
    for key in ("implementation", "foreach", "fused", "maximize", "capturable", "whole_blocks"):
        saved["param_groups"][0].pop(key, None)
    again = copies(params)
    fresh = case(again)
    fresh.load_state_dict(saved)
    take_steps(optimizer, params, first=3)
    take_steps(fresh, again, first=3)
    assert equal(params, again)


@contract
def another_number_of_parameters_is_refused_and_nothing_is_loaded(case):
    params = parameters((3,), (2,))
    optimizer = case(params)
    take_steps(optimizer, params)
    for other in ([params[:1]], [params[:1], params[1:]]):
        fresh = case([{"params": group} for group in other], lr=0.3)
        with pytest.raises(ValueError, match=r"parameter group|doesn't match"):
            fresh.load_state_dict(optimizer.state_dict())
        assert not fresh.state
        assert fresh.param_groups[0]["lr"] == 0.3


@contract
def copies_and_pickles_continue_alike(case):
    params = parameters((6, 5), (4,))
    optimizer = case(params)
    take_steps(optimizer, params)
    twins = [copy.deepcopy((params, optimizer)), pickle.loads(pickle.dumps((params, optimizer)))]
    take_steps(optimizer, params, first=3)
    for ps, twin in twins:
        take_steps(twin, ps, first=3)
        assert equal(ps, params)
        assert same_state(twin, optimizer)
        assert optimizer.defaults.items() <= twin.defaults.items()
        settings = [{k: v for k, v in o.param_groups[0].items() if k != "params"}
                    for o in (twin, optimizer)]  # fmt: skip
        assert settings[0] == settings[1]


# --- hooks ------------------------------------------------------------------------------------


@contract
def hooks_run_around_a_step_in_torchs_order(case):
    params = parameters((3,))
    optimizer, seen = case(params), []
    note = [lambda *_, i=i: seen.append(i) for i in range(4)]
    handles = [
        before_every_step(note[0]),
        after_every_step(note[3]),
        optimizer.register_step_pre_hook(note[1]),
        optimizer.register_step_post_hook(note[2]),
    ]
    take_steps(optimizer, params, steps=1)
    assert seen == [0, 1, 2, 3]
    for handle in handles:
        handle.remove()
    take_steps(optimizer, params, steps=1)
    assert seen == [0, 1, 2, 3]
    # A hook before may give the step other arguments.
    optimizer.register_step_pre_hook(lambda o, args, kwargs: ((o, lambda: 7.0), {}))
    assert optimizer.step() == 7.0


@contract
def hooks_run_around_saving_and_loading(case):
    params = parameters((3,))
    optimizer, seen = case(params), []
    take_steps(optimizer, params)
    optimizer.register_state_dict_pre_hook(lambda o: seen.append("before saving"))
    optimizer.register_state_dict_post_hook(lambda o, saved: {**saved, "extra": 1})
    optimizer.register_state_dict_post_hook(lambda o, saved: seen.append(saved["extra"]))
    saved = optimizer.state_dict()
    assert saved["extra"] == 1

    def changed(o, given):
        groups = [{**group, "lr": 0.125} for group in given["param_groups"]]
        return {**given, "param_groups": groups}

    fresh = case(copies(params))
    fresh.register_load_state_dict_pre_hook(lambda o, given: seen.append("second"))
    fresh.register_load_state_dict_pre_hook(lambda o, given: seen.append("first"), prepend=True)
    fresh.register_load_state_dict_pre_hook(changed)
    fresh.register_load_state_dict_post_hook(lambda o: seen.append(len(o.state)))
    fresh.load_state_dict(saved)
    assert seen == ["before saving", 1, "first", "second", 1]
    assert fresh.param_groups[0]["lr"] == 0.125
    assert same_state(fresh, optimizer)


# --- each check, for each optimizer ------------------------------------------------------------


@contract.every
def test_contract(check, name):
    for case in first_and_last(name):
        check(case)


@pytest.mark.slow
@contract.every
def test_contract_at_every_combination(check, name):
    for case in combinations(name):
        check(case)
