"""Released supernets of others as run directories, ready to be searched and evaluated."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import save

from raynas.data import DataConfig, load_data
from raynas.errors import RunDirError, UserError
from raynas.nets.weights import weights_fingerprint
from raynas.preset import Preset, load_preset
from raynas.results import RunDir
from raynas.results.versions import versions
from raynas.space import load_space
from raynas.training.inputs import resolve_data

SYSTEMS = ("autoformer",)


def import_supernet(
    system: str,
    checkpoint: str | Path,
    run_dir: str | Path,
    data: str | DataConfig,
    space: str | None = None,
    preset: Preset | None = None,
) -> RunDir:
    """Read a released checkpoint into a new run directory.

    Args:
        system: whose layout the checkpoint has: `autoformer`.
        checkpoint: the file as released.
        run_dir: a path or filesystem URI.
        data: what the subnets are scored on: a name, a folder or a URI.
        space: which space the checkpoint is of, by name or path; None to tell from the checkpoint.
        preset: search and retraining for the run; the system's own by default.

    Raises:
        UserError: the checkpoint cannot be read or is of another space, or the data has other classes.
        RunDirError: the run directory holds another supernet.
    """
    if system not in SYSTEMS:
        raise UserError(f"unknown system {system!r}: raynas imports {', '.join(SYSTEMS)}")
    from raynas.nets.vit.checkpoint import read_autoformer

    found, weights = read_autoformer(checkpoint, None if space is None else load_space(space))
    preset = (preset or load_preset(f"{system}/preset")).model_copy(update={"data": DataConfig.model_validate(data)})
    preset = preset.model_copy(update={"data": resolve_data(preset, found)})
    images = load_data(preset.data)  # type: ignore[arg-type]
    if images.classes != found.classes:
        raise UserError(f"the checkpoint has {found.classes} classes, {images.name} has {images.classes}")
    run = RunDir(run_dir, create=True)
    fingerprint = weights_fingerprint(weights)
    with run.lock():
        if run.exists("supernet.json") and run.read_json("supernet.json")["fingerprint"] != fingerprint:
            raise RunDirError(f"{run.name} holds another supernet: name another run directory")
        source = {"system": system, "checkpoint": str(checkpoint), "fingerprint": fingerprint}
        run.begin("import", {**source, "space": found.fingerprint, "data": images.fingerprint})
        run.write_yaml("space.yaml", found.to_dict())
        run.write_yaml("preset.yaml", preset)
        run.write_bytes("supernet.safetensors", save({name: value.contiguous() for name, value in weights.items()}))
        about = {"fingerprint": fingerprint, "weights": f"imported from {system}", "space": found.fingerprint}
        run.write_json("supernet.json", {**about, "data": images.fingerprint, "seed": None, "versions": versions()})
    return run
