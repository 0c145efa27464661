"""How a search space evolves: the settings of S3's outer loop (Chen et al., 2021, "Searching the Search Space")."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from raynas.config import Config, Seed


class SpaceEvolutionConfig(Config):
    """The settings of space evolution (S3, Section 3.2 and Algorithm 1).

    What the paper leaves open is an option here, with the reason for its default. An *axis* is one dimension of one
    stage (`stages.2.blocks.*.heads`); an axis and one of its choices is what the paper calls a sub-space.

    Attributes:
        iterations: spaces that are measured. The paper has 3: the initial one and two that were moved.
        archs: subnets that are scored in each, all different and within the search's constraints.
        top: the top tier of the E-T error: below 1 a share of the subnets of a (sub-)space, else their number. The
            paper takes the best 50 of each set. That a small set's best 50 reach further down would count against the
            choices that the constraint makes rare; a twentieth (50 of 1000) does not.
        tau: slopes are counted in units of this; the paper's is 0.4.
        unit: of the errors: `percent`, or `fraction`. As a fraction, 0.4 would be 40 points for one choice, and no
            slope would ever be as large.
        per: the line is fitted to the E-T errors over the places of the choices in their list (`choice`), or over
            their values (`value`, the paper's words). Over values, tau would have to be another for each dimension: a
            width's slope per channel is a hundredth of a depth's per block.
        blocks: where a subnet belongs whose blocks of a stage differ. `most`: to the choices that most of the stage's
            blocks have. `any`: to every choice that a block has: with many blocks every subnet is in nearly every set,
            and the sets hardly differ. `apart`: each block is an axis of its own, and moves alone.
        rounding: the number of steps is `floor(slope / tau)`, as in Eq. 8: the smallest negative slope is a step up,
            and a positive one below tau is none. `toward_zero` treats both directions alike.
        steps: the size of a step by dimension: `{heads: 1, "stages.*.width": 64, "stages.0.depth": 0}`, the most exact
            name counts; 0 leaves it where it is. Left out: the smallest distance between its choices.
        most_steps: no axis moves by more steps at a time; None for no limit (the paper has none).
        confidence: an axis moves only if at least this share of the bootstrap resamples of the subnets moves it the
            same way; 0 always moves it, as the paper does.
        fewest: choices that fewer scored subnets have are left out of the line. Where a next space would have fewer
            than twice as many subnets within the constraints, no axis of it could have one: such moves are not made.
        largest: no space may hold more archs: of the moves the surest are made that fit; None for no
            limit.
        warm_start: each supernet begins with the weights of the one before that both hold.
        seed: of the scored subnets and the resamples.
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
