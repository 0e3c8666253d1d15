"""A prepare that is interrupted leaves nothing that looks finished, and is gone on with."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nanogpt.data import TokenData
from powerstep_repro.data.shards import Pool
from powerstep_repro.data.tokenizers import ByteTokenizer

SHARDS = 120


def test_killed_at_every_act_on_the_file_system(tmp_path):
    ended = subprocess.run(
        [sys.executable, Path(__file__).with_name("killed_anywhere.py"), tmp_path],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout.split()[-2]) > 30


class Killed(BaseException):
    pass


@pytest.mark.parametrize("workers", [1, 2])
def test_a_signal_waits_until_a_worker_has_started(monkeypatch, workers):
    """Guards a worker that is left with half of its instructions, and says so in a traceback.

    Another thread takes the signal, as any may that has no mask for it; Python runs the handler in
    the main one all the same.
    """

    def end(*_):
        raise Killed

    before = signal.signal(signal.SIGTERM, end)
    steps = []

    def submit(function):
        thread = threading.Thread(target=signal.pthread_kill, args=(other.ident, signal.SIGTERM))
        thread.start()
        thread.join()
        time.sleep(0.05)  # handlers run between two instructions of the main thread
        steps.append("started")

    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    try:
        with Pool(workers, ByteTokenizer()) as pool:
            monkeypatch.setattr(pool.executor, "submit", submit)
            with pytest.raises(Killed):
                pool.submit(int)
        assert steps == ["started"]
        assert signal.getsignal(signal.SIGTERM) is end
        assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    finally:
        done.set()
        signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="module")
def source(tmp_path_factory, documents):
    folder = tmp_path_factory.mktemp("source")
    texts = (documents * 30)[: SHARDS * 50 + 10]
    pq.write_table(pa.table({"text": texts}), folder / "train.parquet", row_group_size=500)
    return folder


@pytest.fixture(scope="module")
def start(offline, source):
    def call(data_dir, workers, *options):
        arguments = ["openwebtext", f"id={source}", "val_documents=10", "shard_documents=50"]
        arguments += [f"data_dir={data_dir}", f"workers={workers}", *options]
        return subprocess.Popen(
            [sys.executable, "-m", "powerstep_repro.prepare", *arguments],
            env=offline,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    return call


def shards(data_dir):
    """The training shards on disk, with the times at which they were written."""
    found = data_dir.glob(".*.partial-*/train/*.bin")
    return {path: path.stat().st_mtime_ns for path in found}


def until(condition, process):
    """Wait for a condition, closely; the process must still be running then."""
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.001)


def visible(data_dir):
    return [path.name for path in data_dir.iterdir() if path.name[0] != "."]


def children(process):
    return Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()


@pytest.mark.parametrize("streaming", ["false", "true"])
def test_killed_from_outside_and_gone_on_with(start, tmp_path, streaming):
    option = f"streaming={streaming}"
    whole = start(tmp_path / "whole", 1, option)
    data_dir = tmp_path / "killed"
    kept = {}
    for number, least in enumerate((1, SHARDS // 2)):
        process = start(data_dir, 3 if number == 0 else 1, option)
        until(lambda least=least: len(shards(data_dir)) >= least, process)
        workers = children(process) if sys.platform == "linux" else []
        process.kill()
        process.communicate()
        assert visible(data_dir) == []
        # Its workers go with it: none is left to write behind the back of the next one.
        deadline = time.monotonic() + 30
        while any(Path(f"/proc/{pid}").exists() for pid in workers):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        now = shards(data_dir)
        assert {path: now[path] for path in kept} == kept  # finished shards are not made again
        kept = now
    process = start(data_dir, 3, option)
    assert process.communicate(timeout=120)[1] == ""
    whole.communicate(timeout=120)
    (killed,), (undisturbed,) = visible(data_dir), visible(tmp_path / "whole")
    for name in ("train.bin", "val.bin", "meta.json"):
        one = (data_dir / killed / name).read_bytes()
        assert one == (tmp_path / "whole" / undisturbed / name).read_bytes()
    assert shards(data_dir) == {}
    TokenData.open(data_dir / killed)


@pytest.mark.parametrize(
    ("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"]
)
def test_a_signal_ends_it_with_its_code(start, tmp_path, sent, code):
    process = start(tmp_path, 2)
    until(lambda: len(shards(tmp_path)) >= 1, process)
    if sent == signal.SIGINT:  # as Ctrl-C does: to the whole group
        os.killpg(process.pid, sent)
    else:
        process.send_signal(sent)
    error = process.communicate(timeout=60)[1]
    assert process.returncode == code
    assert "Traceback" not in error
    assert visible(tmp_path) == []
    assert shards(tmp_path)
    assert not list(tmp_path.glob(".*.staging"))


def test_a_disk_that_fills_up(tmp_path):
    # Files cannot grow beyond 20,000 bytes: the write fails as on a full disk.
    (tmp_path / "text.txt").write_text("words and words\n" * 3000)
    code = (
        "import resource, sys; from powerstep_repro.errors import exit_on_user_error\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop(1)), -1))\n"
        "from powerstep_repro.prepare import main; exit_on_user_error(main)"
    )
    arguments = ["text", f"path={tmp_path}/text.txt", f"data_dir={tmp_path}/data", "workers=1"]

    def prepare(limit):
        return subprocess.run(
            [sys.executable, "-c", code, limit, *arguments], capture_output=True, text=True
        )

    full = prepare("20000")
    assert full.returncode == 1
    assert full.stderr.startswith("error: the data set")
    assert "File too large" in full.stderr
    assert full.stderr.count("\n") == 1
    assert visible(tmp_path / "data") == []
    assert prepare("-1").returncode == 0
    assert len(visible(tmp_path / "data")) == 1


def test_a_second_one_at_the_same_time_leaves_with_a_sentence(start, tmp_path):
    first = start(tmp_path, 1)
    until(lambda: len(shards(tmp_path)) >= 1, first)
    os.kill(first.pid, signal.SIGSTOP)
    second = start(tmp_path, 1)
    error = second.communicate(timeout=60)[1]
    assert second.returncode == 1
    assert error.startswith("error: another process is preparing")
    os.kill(first.pid, signal.SIGCONT)
    first.communicate(timeout=60)
    assert first.returncode == 0
    assert len(visible(tmp_path)) == 1
