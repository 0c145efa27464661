"""The plan of a training step: sampler, objective and gradient policy, in any combination."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pydantic
from pydantic import Field

from raynas.config import Config
from raynas.errors import ConfigError
from raynas.space import Space
from raynas.training.gradients import GradientPolicy, Sum
from raynas.training.objectives import OBJECTIVES
from raynas.training.projection import Project
from raynas.training.samplers import SAMPLERS, checked_options
from raynas.user_code import bind_part, kind, running, takes

POLICIES = {"sum": Sum, "project": Project}


class Part(pydantic.BaseModel):
    """A part by name (ours, or the user's own as `module:object`), with its options."""

    model_config = pydantic.ConfigDict(extra="allow", frozen=True)

    name: str

    @pydantic.model_validator(mode="before")
    @classmethod
    def _name_alone(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class SamplerPart(Part):
    """A sampler.

    Attributes:
        per_rank: True if every rank draws its own archs; by default all ranks run the same.
    """

    per_rank: bool = False


class Plan(Config):
    """The parts of a training step.

    Attributes:
        sampler: emits the step's passes.
        widening: share of the epochs in which the sampler's space widens, from its largest arch to the whole space
            (ViT-ResNAS: 0.25); 0 for the whole space at once.
        sort_channels: share of the epochs that start by sorting heads and hidden units, largest weights first, so that
            narrow subnets keep the important ones (ViT-ResNAS's release); 0 never sorts.
        objective: loss of each pass.
        gradients: combines the gradients of the passes.
    """

    sampler: SamplerPart = SamplerPart(name="single_path")
    widening: float = Field(default=0.0, ge=0, le=1)
    sort_channels: float = Field(default=0.0, ge=0, le=1)
    objective: Part = Part(name="labels")
    gradients: Part = Part(name="sum")

    @pydantic.field_validator("sampler")
    @classmethod
    def _sampler(cls, part: SamplerPart) -> SamplerPart:
        _with_options(part, SAMPLERS, "sampler", given=3)
        return part.model_copy(update=checked_options(part.options)) if part.name in SAMPLERS else part

    @pydantic.model_validator(mode="after")
    def _widening_without_budget(self) -> Plan:
        if self.widening and ({"align", "within"} & set(self.sampler.options)):
            raise ValueError("widening begins with the largest arch, which a sampler's budget leaves out: choose one")
        return self

    def open_space(self, space: Space, epoch: int, epochs: int) -> Space:
        """Return the part of the space that the sampler draws from in an epoch, counted from 0."""
        opening = self.widening * epochs
        return space if epoch >= opening else space.widest(epoch / opening)

    @pydantic.field_validator("objective")
    @classmethod
    def _objective(cls, part: Part) -> Part:
        _with_options(part, OBJECTIVES, "objective", given=4)
        return part

    @pydantic.field_validator("gradients")
    @classmethod
    def _gradients(cls, part: Part) -> Part:
        make = _with_options(part, POLICIES, "gradient policy", given=0)
        if part.name in POLICIES:  # a user's policy may only be built on workers
            make()
        return part

    def build_sampler(self) -> Callable[..., Any]:
        """Return the sampler with its options: `(space, rng, losses) -> list of Pass`."""
        return _with_options(self.sampler, SAMPLERS, "sampler", given=3)

    def build_objective(self) -> Callable[..., Any]:
        """Return the objective with its options: `(this, logits, targets, outputs) -> loss`."""
        objective = _with_options(self.objective, OBJECTIVES, "objective", given=4)
        return objective if self.objective.name in OBJECTIVES else _checked_objective(objective, self.objective.name)

    def build_gradients(self) -> GradientPolicy:
        """Build the gradient policy with its options.

        Raises:
            ConfigError: it cannot be made, or is no gradient policy.
        """
        make, what = _with_options(self.gradients, POLICIES, "gradient policy", given=0), f"{self.gradients.name!r}"
        with running(f"plan.gradients: {what}: making it"):
            policy = make()
        for method, arguments in (("assign", 1), ("combine", 3)):
            function = getattr(policy, method, None)
            if not callable(function) or not takes(function, arguments):
                raise ConfigError(
                    f"plan.gradients: {what} must make an object with assign(passes) and combine(sets, names, done): "
                    f"{kind(policy)} has no such {method}"
                )
        return policy


def _checked_objective(objective: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a user's own objective whose faults are told in one line."""

    def checked(*arguments: Any) -> Any:
        with running(f"plan.objective: {name!r}"):
            loss = objective(*arguments)
        if getattr(loss, "ndim", None) != 0 or not getattr(loss, "requires_grad", False):
            raise ConfigError(
                f"plan.objective: {name!r} must return a loss, a scalar tensor with a gradient: {kind(loss)}"
            )
        return loss

    return checked


def _with_options(part: Part, known: dict[str, Any], what: str, given: int) -> Callable[..., Any]:
    """Return the named callable with the part's options bound; the loop passes the first `given` arguments."""
    return bind_part(part.name, part.options, known, what, given, ("per_rank",) if what == "sampler" else ())
