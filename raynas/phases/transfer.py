"""Transfer of a trained network to other images: its classifier is made anew if the classes are others.

The network, fitted to the images, is the supernet of a run directory of its own, from which it is then fine-tuned.
"""

from __future__ import annotations

import os
from pathlib import Path

from raynas.data.config import DataConfig
from raynas.data.load import load_data
from raynas.phases.import_ import write_imported
from raynas.phases.inputs import are_files, named_data, resolve_data
from raynas.phases.pretrained import read_pretrained
from raynas.presets.preset import Preset
from raynas.progress.reporter import Progress, silent
from raynas.runs.run import Run


def transfer(
    source: str | os.PathLike[str],
    preset: Preset,
    run_dir: Run | str | os.PathLike[str],
    size: int | None = None,
    weights_file: str | Path | None = None,
    progress: Progress = silent,
) -> Run:
    """Write a run directory with a trained network, fitted to the preset's data; see `raynas.retrain`.

    Images are normalised and cropped as the network was trained, unless the preset says otherwise.

    Args:
        source: a run directory, the folder of a network, or the name of a timm model; see `read_pretrained`.
        size: height and width of the images in pixels; None for those of the preset's data, or of the network.
        weights_file: weights of a timm model, instead of those that timm downloads.

    Raises:
        RunDirError: the run directory holds another network.
        UserError: the network cannot be read or cannot take such images, or the images have another number of channels.
    """
    model = read_pretrained(source, weights_file)
    config, space = named_data(preset), model.network.space
    if size is not None:
        config = config.model_copy(update={"size": (size, size)})

    def settled(config: DataConfig, *names: str) -> Preset:
        """Return the preset with settings in which those of these names that are left out are as trained."""
        trained = {name: model.reading.get(name) for name in names if getattr(config, name) is None}
        asked = preset.model_copy(update={"data": config.model_copy(update=trained)})
        return asked.model_copy(update={"data": resolve_data(asked, space)})

    files = are_files(config)  # other images are read as they are
    found = settled(config, *["crop_pct"] * files)
    model.check_channels(data := load_data(named_data(found)))
    if files:
        found = settled(named_data(found), "mean", "std")
        data = load_data(named_data(found))
    scaled = preset.retrain.windows == "scaled"
    network = model.fitted(data, not model.knows(data), preset.recipe.seed, progress, scaled).network
    weights = {name: tensor.detach().contiguous() for name, tensor in network.state_dict().items()}
    return write_imported(run_dir, "raynas", os.fspath(source), network.space, weights, found, data)
