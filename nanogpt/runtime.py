"""Where and how a run computes: device, ranks, precision, determinism, seeds."""

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from nanogpt.errors import OutOfMemory, UserError

DEVICES = ("auto", "cpu", "cuda", "mps")
PRECISIONS = ("fp32", "amp_bf16", "bf16")
OUT_OF_MEMORY = ("DefaultCPUAllocator", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


def seeded(*key: int) -> None:
    """Seed torch's default generators, on the CPU and all devices, from whole numbers.

    Called before a model is built, ``seeded(seed)`` makes its initial weights depend on the seed
    alone. The numbers are mixed, not added: (seed 1, rank 0) and (seed 0, rank 1) are unrelated.
    """
    digest = hashlib.sha256(repr([int(k) for k in key]).encode()).digest()
    torch.manual_seed(int.from_bytes(digest[:8], "little") >> 1)  # torch takes 63 bits everywhere


class Runtime:
    """The device, the ranks and the numeric settings of a run, as a context manager.

    Under ``torchrun`` entering it joins the process group (NCCL on CUDA, gloo elsewhere). Global
    settings of torch are restored on leaving.

    Args:
        device: ``auto`` takes CUDA, else MPS, else the CPU.
        precision: ``fp32``; ``amp_bf16``, fp32 parameters under bf16 autocast; ``bf16``, all
            parameters bf16.
        deterministic: Ask torch for deterministic kernels, so that a resumed run on a GPU can be
            bit-equal too. Slower there; the CPU needs nothing.
        compile: Compile the model's training graph.

    Attributes:
        device: The ``torch.device`` of this rank.
        rank: This process, 0 to ``world - 1``.
        world: Number of processes.
    """

    def __init__(
        self,
        device: str = "auto",
        precision: str = "fp32",
        deterministic: bool = False,
        compile: bool = False,
    ):
        if device not in DEVICES:
            raise UserError(f"device is {device!r}; allowed are {', '.join(DEVICES)}")
        if precision not in PRECISIONS:
            raise UserError(f"precision is {precision!r}; allowed are {', '.join(PRECISIONS)}")
        self.rank = int(os.environ.get("RANK", 0))
        self.world = int(os.environ.get("WORLD_SIZE", 1))
        self.device = _resolve(device)
        self.precision = precision
        self.deterministic = deterministic
        self.compile = compile
        self._joined = False
        self._ranks: DistributedDataParallel | None = None
        self._restore: tuple[bool, str] | None = None

    @property
    def is_main(self) -> bool:
        """Whether this rank writes the run's files."""
        return self.rank == 0

    def __enter__(self) -> "Runtime":
        self._restore = (
            torch.are_deterministic_algorithms_enabled(),
            torch.get_float32_matmul_precision(),
        )
        if self.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True)
        # TF32 only where products are bf16 anyway; fp32 means fp32.
        torch.set_float32_matmul_precision("highest" if self.precision == "fp32" else "high")
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        if self.world > 1 and not dist.is_initialized():
            dist.init_process_group("nccl" if self.device.type == "cuda" else "gloo")
            self._joined = True
        return self

    def __exit__(self, *exception) -> None:
        self._ranks = None
        if self._joined:
            # Gloo's thread takes the interpreter's lock to let go of the last collective's tensors,
            # and the group's end waits for that thread with the lock held. Let it finish first.
            if dist.get_backend() == "gloo":
                time.sleep(0.2)
            dist.destroy_process_group()
            self._joined = False
        deterministic, matmul = self._restore
        torch.use_deterministic_algorithms(deterministic)
        torch.set_float32_matmul_precision(matmul)

    def place(self, model: nn.Module) -> nn.Module:
        """Move a model to the device and give its parameters their dtype; returns it."""
        with self.memory_errors():
            return model.to(self.device, torch.bfloat16 if self.precision == "bf16" else None)

    def trainable(self, model: nn.Module) -> nn.Module:
        """Wrap a placed model for training: over the ranks, and compiled if asked for.

        The wrapper shares the model's parameters; checkpoints and evaluation use the bare model.
        """
        if self.world > 1:
            ids = [self.device.index] if self.device.type == "cuda" else None
            model = DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True)
            self._ranks = model
        # For sizes as they are: at most two occur, a micro-batch and what is left of a batch, and
        # a graph for sizes that vary is a slower one.
        return torch.compile(model, dynamic=False) if self.compile else model

    def sync_gradients(self, on: bool) -> None:
        """Say whether the next forward and backward pass averages gradients over the ranks."""
        if self._ranks is not None:
            self._ranks.require_backward_grad_sync = on

    def autocast(self, enabled: bool = True) -> AbstractContextManager:
        """Return the precision context for forward passes, in training and evaluation alike."""
        if self.precision == "amp_bf16":
            return torch.autocast(self.device.type, torch.bfloat16, enabled=enabled)
        return nullcontext()

    def sum(self, values: Tensor) -> Tensor:
        """Sum a tensor over all ranks, in place."""
        if self.world > 1:
            dist.all_reduce(values)
        return values

    def from_main(self, value: Any) -> Any:
        """Return rank 0's ``value`` (a plain object) on every rank."""
        if self.world == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]

    def host_tensor(self, array: np.ndarray) -> Tensor:
        """Return an array as a CPU tensor, page-locked for CUDA; any thread may call this.

        Locking takes milliseconds, so batches are locked by the thread that draws them.
        """
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        if self.device.type != "cuda":
            return tensor
        with torch.cuda.device(self.device):  # a new thread starts on device 0
            return tensor.pin_memory()

    def to_host(self, values: Tensor) -> Callable[[], list[float]]:
        """Start to copy a few numbers to the host; returns what waits for them and returns them.

        It waits for nothing that is enqueued later; reading the tensor itself would.
        """
        if self.device.type != "cuda":
            return values.tolist
        copy = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        copy.copy_(values, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()

        def read() -> list[float]:
            arrived.synchronize()
            return copy.tolist()

        return read

    def to_device(self, tensor: Tensor) -> Tensor:
        """Copy a :meth:`host_tensor` to the device, on CUDA without waiting for the copy."""
        return tensor.to(self.device, non_blocking=self.device.type == "cuda")

    def peak_memory_bytes(self) -> int | None:
        """Return the most device memory that tensors took so far; None where not on CUDA."""
        return torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else None

    @contextmanager
    def memory_errors(self, micro_batch: int | None = None) -> Iterator[None]:
        """Turn the device's out-of-memory error into one sentence."""
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            # Only CUDA's own allocator has an error type of its own for it.
            known = isinstance(error, torch.OutOfMemoryError | MemoryError)
            known = known or any(words in str(error) for words in OUT_OF_MEMORY)
            if not known or isinstance(error, OutOfMemory):
                raise
            at = "building the model" if micro_batch is None else f"micro_batch {micro_batch}"
            raise OutOfMemory(
                f"out of memory on {self.device} at {at}, precision {self.precision}: try a "
                "smaller micro_batch (the result stays the same), precision=amp_bf16 or bf16, "
                "more GPUs through torchrun, or a smaller context"
            ) from error


def _resolve(device: str) -> torch.device:
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if device == "auto":
        device = next((name for name in there if there[name]), "cpu")
    if not there.get(device, True):
        raise UserError(f"device is {device!r}, but torch finds no {device.upper()} device here")
    if device == "cuda":
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
    return torch.device(device)
