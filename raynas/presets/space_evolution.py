"""Settings of space evolution, S3's outer loop (Chen et al., 2021, "Searching the Search Space")."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from raynas.config import Config, Seed


class SpaceEvolutionConfig(Config):
    """The settings of space evolution (S3, Section 3.2 and Algorithm 1).

    Details that the paper leaves open are options, with the reason for their defaults. An *axis* is one dimension of
    one stage (`stages.2.blocks.*.heads`); the paper calls an axis with one of its choices a sub-space.

    Attributes:
        iterations: number of spaces measured. The paper has 3: the initial one and two moved ones.
        archs: subnets scored in each space, all different and within the search's constraints.
        top: the top tier of the E-T error: below 1 a share of the subnets of a (sub-)space, else their number. The
            paper takes the best 50 of each set. In a small set the best 50 include poorer subnets, which would count
            against choices that the constraint makes rare; a twentieth (50 of 1000) does not.
        tau: unit of slopes; 0.4 in the paper.
        unit: unit of the errors: `percent` or `fraction`. As a fraction, tau 0.4 would be 40 points for one choice,
            and no slope is that large.
        per: `choice` fits the line to E-T errors over the positions of choices in their list, `value` over their
            values (as the paper says). Over values, each dimension would need its own tau: a width's slope per channel
            is a hundredth of a depth's per block.
        blocks: the sub-spaces of a subnet whose blocks of a stage differ. `most`: of the choices that most of the
            stage's blocks have. `any`: of every choice that a block has; with many blocks every subnet is in nearly
            every set, and the sets hardly differ. `apart`: each block is its own axis and moves alone.
        rounding: `floor` takes `floor(slope / tau)` steps, as in Eq. 8: the smallest negative slope is a step up, a
            positive one below tau is none. `toward_zero` treats both directions alike.
        steps: the size of a step by dimension: `{heads: 1, "stages.*.width": 64, "stages.0.depth": 0}`; the most
            specific name counts, and 0 never moves it. By default the smallest distance between its choices.
        most_steps: the most steps of an axis at a time; None for no limit (as in the paper).
        confidence: an axis moves only if at least this share of the subnets' bootstrap resamples moves it in the same
            direction; 0 always moves it, as in the paper.
        fewest: the fewest scored subnets of a choice that counts in the line. Moves to a space with fewer than twice
            as many subnets within the constraints are not made, since none of its axes could have a line.
        largest: the most archs of a space; if all moves together exceed it, the surest ones that fit are made. None
            for no limit.
        warm_start: True to start each supernet with the weights that it shares with the previous one.
        seed: seed of the scored subnets and the resamples.
    """

    iterations: int = Field(3, ge=1, le=100)
    archs: int = Field(1000, ge=2, le=10**6)
    top: float = Field(0.05, gt=0, le=10**6)
    tau: float = Field(0.4, gt=0, le=1e6)
    unit: Literal["percent", "fraction"] = "percent"
    per: Literal["choice", "value"] = "choice"
    blocks: Literal["most", "any", "apart"] = "most"
    rounding: Literal["floor", "toward_zero"] = "floor"
    steps: dict[str, float] = Field(default_factory=dict)
    most_steps: int | None = Field(None, ge=1, le=10**6)
    confidence: float = Field(0.0, ge=0, lt=1)
    fewest: int = Field(10, ge=1, le=10**6)
    largest: float | None = Field(None, ge=1)
    warm_start: bool = False
    seed: Seed = 0

    @field_validator("top")
    @classmethod
    def _share_or_number(cls, top: float) -> float:
        if top >= 1 and top != int(top):
            raise ValueError("a share below 1, or a whole number of subnets")
        return top

    @model_validator(mode="after")
    def _top_of_archs(self) -> SpaceEvolutionConfig:
        if self.top > self.archs:
            raise ValueError(f"top: {self.top:g} of {self.archs} archs; give fewer, or a share below 1")
        return self

    @field_validator("steps")
    @classmethod
    def _steps(cls, steps: dict[str, float]) -> dict[str, float]:
        if wrong := [name for name, step in steps.items() if step < 0]:
            raise ValueError(f"{wrong[0]}: a step is a size, 0 or more; the slope gives its direction")
        return steps
