"""What the trainer's tests share: a small data set, a small run, and runs in other processes.

Processes come from a fork server that has torch loaded, so that one costs a tenth of a second.
"""

import hashlib
import json
import multiprocessing
import os
import signal
import socket
import time
from pathlib import Path

import numpy as np
import torch

from nanogpt.checkpoint import CheckpointStore, _HashingFile
from nanogpt.data import FORMAT, TokenData, dataset_hash
from nanogpt.loop import train
from nanogpt.model import GPT, GPTConfig
from nanogpt.runtime import Runtime, seeded
from nanogpt.settings import Settings
from powerstep_repro.optim import groups_by_kind

VOCAB, CONTEXT = 61, 16
STEPS = 12
PATIENCE_S = 120
TIMING = ("step_ms", "tokens_per_s")


def decay_groups(model: torch.nn.Module) -> list[dict]:
    return groups_by_kind(model, weight_decay=0.1)["rest"]


OPTIMIZERS = {
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=1.0),
    # Takes its steps under a flag on the device.
    "adamw_fused": lambda groups: torch.optim.AdamW(groups, lr=1.0, fused=True),
    "sgd": lambda groups: torch.optim.SGD(groups, lr=1.0, momentum=0.9),
}


def write_data(folder: Path, train_tokens=3000, val_tokens=200, dtype="uint16", **meta) -> Path:
    """A data set with something to learn: a walk over the vocabulary by small steps."""
    folder.mkdir(parents=True, exist_ok=True)
    steps = np.random.default_rng(0).integers(0, 3, train_tokens + val_tokens)
    tokens = (np.cumsum(steps) % VOCAB).astype(np.dtype(dtype).newbyteorder("<"))
    digests = []
    for split, part in (("train", tokens[:train_tokens]), ("val", tokens[train_tokens:])):
        (folder / f"{split}.bin").write_bytes(part.tobytes())
        digests.append(hashlib.sha256(part.tobytes()).hexdigest())
    described = {
        "format": FORMAT,
        "name": "walk",
        "dtype": dtype,
        "vocab_size": VOCAB,
        "tokenizer": "none",
        "train_tokens": train_tokens,
        "val_tokens": val_tokens,
        "hash": dataset_hash(*digests, dtype),
    }
    (folder / "meta.json").write_text(json.dumps(described | meta))
    return folder


def small_settings(**changes) -> Settings:
    base = {
        "steps": STEPS,
        "batch": 4,
        "context": CONTEXT,
        "lr": 0.01,
        "warmup_steps": 3,
        "seed": 7,
    }
    return Settings(**base | changes)


def small_model(runtime: Runtime, seed=7, dropout=0.1, model_class=GPT) -> GPT:
    seeded(seed)
    return runtime.place(model_class(GPTConfig(VOCAB, CONTEXT, 2, 2, 16, dropout)))


class LogRecorder:
    """A log on disk, cut back on resume."""

    def __init__(self, path: Path):
        self.path = path

    def resume(self, step):
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        self.path.write_text("".join(f"{ln}\n" for ln in lines if json.loads(ln)["step"] <= step))

    def log(self, row):
        with open(self.path, "a") as file:
            file.write(json.dumps(row) + "\n")

    def windows(self, step, losses):
        self.path.with_suffix(".windows").write_text(json.dumps([step, losses]))

    def rows(self) -> list[dict]:
        """The rows without what differs from run to run."""
        rows = [json.loads(line) for line in self.path.read_text().splitlines()]
        return [{k: v for k, v in row.items() if k not in TIMING} for row in rows]


class Run:
    """One run of the trainer on the small model; what it left can be compared with another's."""

    def __init__(
        self,
        folder: Path,
        data: TokenData,
        *,
        optimizer="adamw",
        dropout=0.1,
        model_class=GPT,
        keep=2,
        progress=None,
        runtime: Runtime | None = None,
        note=True,
        **settings,
    ):
        folder.mkdir(parents=True, exist_ok=True)
        self.recorder = LogRecorder(folder / "log.jsonl")
        self.store = CheckpointStore(folder / "checkpoints", {"dropout": dropout}, keep)
        runtime = runtime or Runtime("cpu")
        self.digests = []
        with runtime:
            self.model = small_model(runtime, dropout=dropout, model_class=model_class)
            self.optimizer = OPTIMIZERS[optimizer](decay_groups(self.model))
            if note:
                self.optimizer.register_step_post_hook(self._note)
            self.result = train(
                small_settings(**settings),
                model=self.model,
                optimizer=self.optimizer,
                data=data,
                runtime=runtime,
                recorder=self.recorder,
                checkpoints=self.store,
                progress=progress,
            )

    def _note(self, *_):
        digest = hashlib.sha256()
        for parameter in self.model.parameters():
            for tensor in (parameter.detach(), parameter.grad):
                digest.update(tensor.view(torch.uint8).cpu().numpy().tobytes())
        self.digests.append(digest.hexdigest())

    def left(self) -> dict:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "rows": self.recorder.rows(),
        }


def assert_identical(a, b, where="run"):
    """Equal to the last bit, however deep."""
    assert type(a) is type(b), where
    if isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            assert_identical(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_identical(x, y, f"{where}[{i}]")
    elif isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype, where
        assert torch.equal(a.view(torch.uint8), b.view(torch.uint8)) if a.dim() else a == b, where
    else:
        assert a == b, where


class Disturbed(GPT):
    """A GPT to which something happens at one training forward pass of one rank."""

    event, at, rank = "", 0, 0

    def forward(self, tokens, targets=None, passes=1):
        out = super().forward(tokens, targets, passes)
        if targets is None or int(os.environ.get("RANK", 0)) != self.rank:
            return out
        self.passes = getattr(self, "passes", 0) + 1
        if self.passes == self.at:
            if self.event == "nan":
                return out._replace(loss=out.loss * float("nan"))
            os.kill(os.getpid(), signal.SIGTERM)
            if self.event == "insist":
                time.sleep(0.6)
                os.kill(os.getpid(), signal.SIGTERM)
        return out


def disturbed(event: str, at: int, rank: int = 0) -> type[Disturbed]:
    return type("DisturbedGPT", (Disturbed,), {"event": event, "at": at, "rank": rank})


def _in_process(pipe, environment, folder, data, spec):
    """A run in a process of its own; tells each step, and at the end what it left."""
    os.environ.update(environment)
    torch.set_num_threads(1)
    if "event" in spec:
        spec["model_class"] = disturbed(*spec.pop("event"))
    if "stop_at" in spec:
        at_checkpoint(*spec.pop("stop_at"), ACTS[spec.pop("stop_by", "kill")])
    if spec.pop("tell", False):
        spec["progress"] = lambda row, steps: (pipe.send(row["step"]), time.sleep(0.002))
    try:
        run = Run(folder, TokenData.open(data), **spec)
    except Exception as error:
        pipe.send(error)
    else:
        run.recorder = None  # rank 0's log is read from disk
        weights = {name: tensor.numpy() for name, tensor in run.model.state_dict().items()}
        pipe.send((run.result, run.digests, weights))


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def fill_disk():
    raise OSError(28, "No space left on device")


ACTS = {"kill": kill, "fill_disk": fill_disk}


def at_checkpoint(stage: str, number: int, act) -> None:
    """Act in the n-th checkpoint of this process.

    Stages: ``writing``, in the midst of its pieces; ``written``, before it gets its name;
    ``renamed``, before older ones are removed.
    """
    save, write, replace = CheckpointStore.save, _HashingFile.write, os.replace
    begun = pieces = 0

    def counted_save(self, *arguments):
        nonlocal begun, pieces
        begun, pieces = begun + 1, 0
        save(self, *arguments)

    def counted_write(self, data):
        nonlocal pieces
        pieces += 1
        if (stage, begun, pieces) == ("writing", number, 40):
            self.flush()
            act()
        return write(self, data)

    def watched_replace(source, target):
        ours = str(target).endswith(".pt") and begun == number
        if ours and stage == "written":
            act()
        replace(source, target)
        if ours and stage == "renamed":
            act()

    CheckpointStore.save, _HashingFile.write = counted_save, counted_write
    os.replace = watched_replace


CONTEXT_OF_PROCESSES = multiprocessing.get_context("forkserver")
# An optimizer's first step imports torch._dynamo, which takes longer than all else.
CONTEXT_OF_PROCESSES.set_forkserver_preload(["nanogpt.loop", "torch._dynamo"])


class Process:
    """A run of :class:`Run` elsewhere."""

    def __init__(self, folder, data_folder, environment=None, **spec):
        self.pipe, theirs = CONTEXT_OF_PROCESSES.Pipe()
        self.process = CONTEXT_OF_PROCESSES.Process(
            target=_in_process,
            args=(theirs, environment or {}, folder, data_folder, spec),
            daemon=True,
        )
        self.process.start()
        theirs.close()

    def __iter__(self):
        """The steps that it tells, until it ends."""
        while True:
            if not self.pipe.poll(PATIENCE_S):
                self.process.kill()
                raise TimeoutError(f"no word from the process for {PATIENCE_S} s")
            try:
                message = self.pipe.recv()
            except EOFError:
                return
            if not isinstance(message, int):
                self.outcome = message
                return
            yield message

    def end(self):
        """Wait for its end; return what it left, the error it raised, or None if it was killed."""
        self.outcome = getattr(self, "outcome", None)
        for _ in self:
            pass
        self.process.join(PATIENCE_S)
        if self.process.is_alive():
            self.process.kill()
            raise TimeoutError(f"the process is still there {PATIENCE_S} s after its work")
        return self.outcome


def ranks(folder, data_folder, world=2, **spec) -> list:
    """Run on several ranks; return each one's outcome."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    shared = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    started = [
        Process(folder, data_folder, shared | {"RANK": str(r), "LOCAL_RANK": str(r)}, **spec)
        for r in range(world)
    ]
    return [process.end() for process in started]
