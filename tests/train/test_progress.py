"""Guards: a run says where it is at sensible intervals, in plain lines off a terminal."""

from powerstep_repro import progress


def row(step, seconds=2.0, **fields):
    return {
        "step": step,
        "train_loss": 3.0,
        "step_ms": 1e3 * seconds,
        "tokens_per_s": 1000 / seconds,
        **fields,
    }


def shown(capsys, monkeypatch, rows, steps, seconds_a_row=2.0, again=False):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with progress.Progress(again) as show:
        for each in rows:
            now[0] += seconds_a_row
            show(each, steps)
    return capsys.readouterr().out.splitlines()


def test_lines_come_first_at_evaluations_and_every_ten_seconds(capsys, monkeypatch):
    rows = [row(s) | ({"val_loss": 2.5} if s == 8 else {}) for s in range(1, 13)]
    lines = shown(capsys, monkeypatch, rows, 100)
    assert [line.split()[1] for line in lines] == ["1/100", "6/100", "8/100"]
    assert lines[2] == "step 8/100  loss 3.0000  val 2.5000  500 tokens/s  ETA 0:03:04"
    assert "val" not in lines[1]


def test_the_pace_leaves_out_the_first_step_which_compiles(capsys, monkeypatch):
    rows = [row(1, seconds=60), row(2), row(3, val_loss=2.0)]
    assert shown(capsys, monkeypatch, rows, 100_003)[-1].endswith("ETA 2 days, 7:33:20")


def test_a_resumed_run_says_where_it_goes_on(capsys, monkeypatch):
    assert shown(capsys, monkeypatch, [row(41)], 100)[0] == "resuming after step 40"


def test_a_run_started_again_that_finds_no_checkpoint_says_so(capsys, monkeypatch):
    lines = shown(capsys, monkeypatch, [row(1)], 100, again=True)
    assert lines[0] == "no checkpoint: starts at step 1"
    assert shown(capsys, monkeypatch, [row(1)], 100)[0].startswith("step 1/100")
