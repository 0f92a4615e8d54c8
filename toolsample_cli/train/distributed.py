"""One process or many: rank, device, sums over ranks, and sharding of the model (FSDP2) under torchrun."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import torch

from toolsample_cli.models.loading import pick_device

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule


@dataclass(frozen=True)
class World:
    """`rank` of `size` processes, each with its own device."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @classmethod
    def start(cls, device: str = "auto") -> World:
        """Join the process group that torchrun announces (RANK, WORLD_SIZE, LOCAL_RANK); alone otherwise."""
        rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        chosen = pick_device(device, int(os.environ.get("LOCAL_RANK", "0")) if size > 1 else None)
        if size > 1:
            import torch.distributed as dist

            if chosen.type == "cuda":
                torch.cuda.set_device(chosen)
            if not dist.is_initialized():
                dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
        return cls(rank, size, chosen)

    @property
    def first(self) -> bool:
        """Whether this process writes."""
        return self.rank == 0

    def close(self) -> None:
        """Leave the process group."""
        if self.size > 1:
            import torch.distributed as dist

            # gloo's threads still hold tensors of the last collective; one that wants to let go of them while the
            # interpreter ends brings the process down with "terminate called without an active exception"
            time.sleep(0.2)
            dist.destroy_process_group()

    def sum(self, values: Sequence[float]) -> list[float]:
        """Sum of each value over all ranks (float64)."""
        if self.size == 1:
            return [float(value) for value in values]
        import torch.distributed as dist

        # MPS and NCCL differ in what they reduce; float64 on the rank's own device suits gloo and NCCL
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return total.tolist()

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, in order of rank."""
        if self.size == 1:
            return [value]
        import torch.distributed as dist

        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.gather(None)


def shard(policy: torch.nn.Module, layers: Sequence[torch.nn.Module], world: World, dtype: torch.dtype) -> None:
    """Shard every layer, then the rest, over all ranks; parameters stay float32, compute runs in `dtype`."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(world.device.type, (world.size,))
    precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for layer in layers:
        fully_shard(layer, mesh=mesh, mp_policy=precision)
    fully_shard(policy, mesh=mesh, mp_policy=precision)


def sharded(policy: torch.nn.Module) -> FSDPModule:
    """A policy that `shard` sharded, as what that made of it."""
    return cast("FSDPModule", policy)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """A sharded tensor gathered from all ranks (a collective call), a plain one as it is; on the CPU, detached."""
    if hasattr(tensor, "full_tensor"):
        tensor = tensor.full_tensor()
    return tensor.detach().cpu()


def like(full: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """A whole tensor laid out as `parameter` is: this rank's shard, or all of it on its device."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(parameter, DTensor):
        return full.to(parameter.device)
    return distribute_tensor(full.to(parameter.device), parameter.device_mesh, parameter.placements)
