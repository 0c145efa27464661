"""Settings of external teachers; see `raynas.training.teachers`."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator, model_validator

from raynas.config import Config, added_field
from raynas.data.config import Size, absolute, square


class TeacherConfig(Config):
    """A trained network that predicts targets: a timm model, or a network of a run directory.

    Attributes:
        timm: name of the timm model.
        weights: file of its weights: safetensors, or a torch state dict. A path that exists is made absolute; on a
            cluster every node must see it.
        pretrained: True for the weights that timm downloads, instead of `weights`. Nothing else is downloaded.
        options: further arguments of `timm.create_model`.
        run: a run directory, by path or URI, instead of `timm`.
        network: network of the run: `largest`, the largest subnet of its supernet; another subnet as on the command
            line (`best`, an id, a file); or a retrained network by its folder, such as
            `networks/0123456789ab-scratch-0`. `original`, without a run: the model that the run adapts (`raynas
            adapt`).
        size: (height, width) that images are resized to, or one number for both; by default the network's own.
    """

    timm: str | None = None
    weights: str | None = None
    pretrained: bool = False
    options: dict[str, Any] = Field(default_factory=dict)
    run: str | None = None
    network: str = "largest"
    size: Size | None = None

    _square = field_validator("size", mode="before")(square)

    _absolute = field_validator("weights", "run", mode="before")(absolute)

    @model_validator(mode="after")
    def _check(self) -> TeacherConfig:
        if self.is_original:
            return self
        if (self.timm is None) == (self.run is None):
            raise ValueError("a teacher is a timm model (timm: NAME) or a network of a run directory (run: PATH)")
        if self.timm is not None and (self.weights is None) != self.pretrained:
            raise ValueError(f"teacher {self.timm}: say where its weights are: weights: FILE, or pretrained: true")
        if self.run is not None and (self.weights is not None or self.pretrained or self.options):
            raise ValueError(f"teacher {self.run}: weights, pretrained and options are of timm models")
        return self

    @property
    def is_original(self) -> bool:
        """True for the model that the run itself adapts."""
        return self.timm is None and self.run is None and self.network == "original"

    @property
    def name(self) -> str:
        """The teacher's name in messages."""
        if self.is_original:
            return "the original model"
        return self.timm or f"{self.network} of {self.run}"


class TeachersConfig(Config):
    """External teachers, whose predictions are the targets, or a share of them.

    Attributes:
        models: the teachers; their probabilities are averaged.
        sharpen: factor on their logits before the softmax (NASViT's release: 5).
        weight: the teachers' share of the targets; the rest are labels. 1 uses no labels (the release). In a space with
            a distillation token it is that token's share of the loss: it learns from teachers alone, and the class
            token from labels (DeiT: 0.5).
        hard: True for the teachers' most probable class as the target, instead of all probabilities (DeiT).
    """

    models: tuple[TeacherConfig, ...] = Field(min_length=1, max_length=16)
    sharpen: float = Field(default=1.0, gt=0, le=1000)
    weight: float = Field(default=1.0, gt=0, le=1)
    hard: bool = added_field(False)
