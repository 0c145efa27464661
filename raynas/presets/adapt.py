"""Settings of adapting: the space that is derived from a model, and the order of its units."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from raynas.config import Config, added_field
from raynas.space.elastic import Elastic


class ModelFinetuning(Config):
    """Fine-tuning of the model itself, before it becomes a supernet.

    It is always done if the classifier is new. The fine-tuned model is then the start of the supernet, and its teacher.

    Attributes:
        always: True to fine-tune a model that knows the classes of the data, too.
        recipe: changes to the preset's recipe, nested in the same way; teachers are left out.
    """

    always: bool = False
    recipe: dict[str, Any] = Field(default_factory=dict)


class AdaptConfig(Config):
    """Adapting of a trained model, which becomes the largest subnet of a supernet (`raynas adapt`).

    Attributes:
        elastic: the choices of the space that is derived from the model.
        head: the classifier: `new` makes it anew; `auto` does if the model has other classes than the data.
        finetune: fine-tuning of the model before.
        importance: what channels, heads and hidden units are ordered by, so that smaller subnets keep the
            important ones: `taylor` (first-order effect on the loss), `magnitude` (of weights) or `activation`.
        blocks: the blocks that may be left out, of which `elastic.dropped` says how many: those without which the
            model's predictions change least (`importance`), or every second one (`alternate`).
        labels: True to measure importance by the loss on labels, False by the change of the model's logits.
        images: number of training images to measure importance on.
        untrained: number of random subnets, spread over the range of their MACs, that are scored before the supernet is
            trained (also with units in random order, for comparison) and once more afterwards; 0 for none.
    """

    elastic: Elastic = Elastic()
    head: Literal["auto", "new"] = "auto"
    finetune: ModelFinetuning = ModelFinetuning()
    importance: Literal["taylor", "magnitude", "activation"] = "taylor"
    blocks: Literal["importance", "alternate"] = added_field("importance")
    labels: bool = False
    images: int = Field(default=512, ge=1, le=10**6)
    untrained: int = Field(default=64, ge=0, le=10**5)
