"""What several tests of scoring use, in a module that replicas can import."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_model
from torch import Tensor, nn

from raynas.costs import cost
from raynas.nets import build_supernet
from raynas.nets.weights import weights_fingerprint
from raynas.runs.run import Run
from raynas.space import Arch, Space


class Naughty(nn.Module):
    """A real supernet, except that some archs do something before their forward pass.

    Args:
        space: of the supernet.
        deeds: what by arch id: `raise`, `memory`, `nan`, `write`, `slow`; `die once`, and `die, then sleep`.
        died: a folder, which remembers what died.
    """

    def __init__(self, space: Space, deeds: dict[str, str] | None = None, died: Path | None = None):
        super().__init__()
        torch.manual_seed(0)
        self.net = build_supernet(space)
        self.deeds = deeds or {}
        self.died = died
        self.passes = 0

    def forward(self, x: Tensor, arch: Arch) -> Any:
        self.passes += 1
        deed = self.deeds.get(arch.id, "")
        if deed == "raise":
            raise ValueError("this arch is odd\nsecond line")
        if deed == "memory":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        if deed == "slow":
            time.sleep(0.3)
        if deed.startswith("die") and self.died is not None:
            if not (self.died / arch.id).exists():
                (self.died / arch.id).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            if deed == "die, then sleep":
                time.sleep(600)
        if deed == "write":
            next(self.net.parameters()).add_(1.0)
        logits = self.net(x, arch)
        return logits * float("nan") if deed == "nan" else logits


class Linear(nn.Module):
    """One layer with so many megabytes of weights, all of which every pass reads; the arch does not matter."""

    def __init__(self, megabytes: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(megabytes * 2**18 // 64, 64))

    def forward(self, x: Tensor, arch: Arch) -> Tensor:
        return (self.weight @ x.flatten(1).T).amax(0)[:, None].expand(-1, 10)


def make_run(path: Path, space: Space) -> Run:
    """A run directory as training leaves it, with random weights."""
    run = Run(path, create=True)
    torch.manual_seed(1)
    supernet = build_supernet(space)
    save_model(supernet, str(path / "supernet.safetensors"))
    run.write_yaml("space.yaml", space.to_dict())
    run.write_yaml("preset.yaml", {"data": {"name": "digits"}})
    run.write_json("supernet.json", {"fingerprint": weights_fingerprint(supernet.state_dict()), "seed": 3})
    return run


class Graded(nn.Module):
    """A network that has more images right the larger the arch is; each image holds its label, and how hard it is."""

    def __init__(self, space: Space):
        super().__init__()
        self.passed: list[int] = []
        self.abilities: dict[str, float] = {}
        largest, smallest = (float(cost(space, [arch])["macs"][0]) for arch in (space.largest(), space.smallest()))
        self.from_macs, self.span = smallest, largest - smallest
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, arch: Arch) -> Tensor:
        self.passed.append(len(x))
        pixels = (255 * x.flatten(1)).round().long()
        labels, hard, noise = pixels[:, 0], pixels[:, 1] / 255, pixels[:, 2 + int(arch.id, 16) % 60] / 255
        if arch.id not in self.abilities:
            self.abilities[arch.id] = (float(cost(arch.space, [arch])["macs"][0]) - self.from_macs) / self.span
        right = 0.3 + 0.6 * self.abilities[arch.id] + 0.1 * noise > hard
        return nn.functional.one_hot(torch.where(right, labels, (labels + 1) % 10), 10).float()


def graded_images(count: int) -> tuple[Tensor, Tensor]:
    """Images for `Graded`, uint8 [count, 1, 8, 8], and their labels."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 1, 8, 8), generator=generator, dtype=torch.uint8)
    labels = torch.arange(count) % 10
    pixels[:, 0, 0, 0] = labels.to(torch.uint8)
    return pixels, labels
