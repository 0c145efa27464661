"""Which external teachers give targets; `raynas.training.teachers` asks them."""

from __future__ import annotations

import os
from typing import Any

from pydantic import Field, field_validator, model_validator

from raynas.config import Config
from raynas.data.config import Size, square


class TeacherConfig(Config):
    """One trained network that is asked what it sees in an image: a timm model, or a network of a run directory.

    Attributes:
        timm: name of the model.
        weights: file of its weights: safetensors, or a state dict of torch's. A path that exists is made absolute; on a
            cluster every node must see it.
        pretrained: in place of `weights`: those that timm downloads, or has downloaded before. Nothing else downloads.
        options: further arguments of `timm.create_model`.
        run: in place of `timm`: a run directory, by path or URI.
        network: which network of the run: `largest`, the largest subnet of its supernet; another subnet by what names
            it on the command line (`best`, an id, a file); or a retrained one by its folder, such as
            `networks/0123456789ab-scratch-0`.
        size: (height, width) that its images are resized to, or one number for both; left out, its own.
    """

    timm: str | None = None
    weights: str | None = None
    pretrained: bool = False
    options: dict[str, Any] = Field(default_factory=dict)
    run: str | None = None
    network: str = "largest"
    size: Size | None = None

    _square = field_validator("size", mode="before")(square)

    @field_validator("weights", "run", mode="before")
    @classmethod
    def _absolute(cls, value: Any) -> Any:
        value = os.fspath(value) if isinstance(value, os.PathLike) else value
        return os.path.abspath(value) if isinstance(value, str) and os.path.exists(value) else value

    @model_validator(mode="after")
    def _check(self) -> TeacherConfig:
        if (self.timm is None) == (self.run is None):
            raise ValueError("a teacher is a timm model (timm: NAME) or a network of a run directory (run: PATH)")
        if self.timm is not None and (self.weights is None) != self.pretrained:
            raise ValueError(f"teacher {self.timm}: say where its weights are: weights: FILE, or pretrained: true")
        if self.run is not None and (self.weights is not None or self.pretrained or self.options):
            raise ValueError(f"teacher {self.run}: weights, pretrained and options are of timm models")
        return self

    @property
    def name(self) -> str:
        """What messages call it."""
        return self.timm or f"{self.network} of {self.run}"


class TeachersConfig(Config):
    """External teachers: their answers are the targets that labels would be, or a share of them.

    Attributes:
        models: their probabilities are averaged.
        sharpen: factor of their logits before the softmax (NASViT's release: 5).
        weight: share of the targets that is theirs; the rest stays the labels'. 1 leaves labels out (the release).
    """

    models: tuple[TeacherConfig, ...] = Field(min_length=1, max_length=16)
    sharpen: float = Field(default=1.0, gt=0, le=1000)
    weight: float = Field(default=1.0, gt=0, le=1)
