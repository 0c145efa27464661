"""A found network as plain files that others can use: arch, weights, a torch.export archive and ONNX.

What is written is read back and compared with the network before it is called an export.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor, nn

from raynas.data import load_data
from raynas.data.config import stored_config
from raynas.errors import UserError
from raynas.nets.supernet import Supernet
from raynas.nets.weights import weights_fingerprint
from raynas.networks import (
    ARCH_FILE,
    WAYS,
    WEIGHTS_FILE,
    Network,
    arch_text,
    build,
    describe,
    load_weights,
    of_size,
)
from raynas.results import RunDir
from raynas.results.run_dir import run_around
from raynas.space import Arch

ARCHIVE_FILE, ONNX_FILE, PREPROCESSING_FILE = "model.pt2", "model.onnx", "preprocessing.json"
RECEIPT = "export.json"
"""Written last, into a run directory's export: what of."""

TOLERANCE = {WEIGHTS_FILE: 1e-5, ARCHIVE_FILE: 1e-5, ONNX_FILE: 1e-4}
"""The largest difference of logits, relative to the largest logit, that an export may have."""


def export(
    run: RunDir, network: Network, to: str | Path, onnx: bool | None = None, progress: Callable[[str], None] = print
) -> list[Path]:
    """Write a network of a run as a folder that needs neither the run nor, but for two files, raynas.

    Args:
        run: the run directory.
        network: one of its networks.
        to: the folder, outside of any run directory; it is made, and files of an earlier export in it are replaced.
        onnx: whether to write ONNX; None where its packages are installed.
        progress: called with a line for each file.

    Returns:
        The files.

    Raises:
        UserError: `onnx` is asked for and its packages are missing, or the folder cannot be written or has other
            things in it.
    """
    _check_folder(to)
    return _export(run, network, Path(to), onnx, progress)


def _check_folder(to: str | Path) -> None:
    """An export has common names, `README.md` for one: it replaces an earlier export and nothing else."""
    if "://" in str(to):
        raise UserError(f"{to}: --to is a folder on this machine; without it the export goes into the run directory")
    around = run_around(to)
    if around is not None:
        raise UserError(f"{to} lies in the run directory {around}: give a folder elsewhere, or none for its `export`")
    with contextlib.suppress(OSError):  # what cannot be listed, or is not there yet
        if os.listdir(to) and not (Path(to) / ARCH_FILE).exists():
            raise UserError(f"{to} holds other files than an export's: give a new folder, or an empty one")


def _export(
    run: RunDir, network: Network, folder: Path, onnx: bool | None, progress: Callable[[str], None]
) -> list[Path]:
    if onnx or onnx is None:
        missing = _missing_for_onnx()
        if missing and onnx:
            raise UserError(f"ONNX needs {', '.join(missing)}: pip install 'raynas[onnx]'")
        onnx = not missing
        if missing:
            progress(f"no {ONNX_FILE}: {', '.join(missing)} not installed (pip install 'raynas[onnx]')")
    model = load_weights(run, network)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files = [
            *_write_network(model, network, folder),
            _write_preprocessing(run, model.space.input_size, folder),
            _write_archive(model, folder / ARCHIVE_FILE),
            *([_write_onnx(model, folder / ONNX_FILE)] if onnx else []),
            _write_readme(model, network, folder, onnx),
        ]
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error.strerror or error}") from error
    for file in files:
        progress(str(file))
    return files


def example(model: Supernet, images: int = 2) -> Tensor:
    """Standard normal images [images, channels, height, width], always the same."""
    generator = torch.Generator().manual_seed(0)
    space = model.space
    return torch.randn(images, space.channels, *space.input_size, generator=generator)


def _write_network(model: Supernet, network: Network, folder: Path) -> list[Path]:
    arch, weights = folder / ARCH_FILE, folder / WEIGHTS_FILE
    arch.write_text(arch_text(network.arch))
    weights.write_bytes(save({name: tensor.contiguous() for name, tensor in model.state_dict().items()}))
    again = build(network.arch, weights.read_bytes(), str(weights))
    _check(weights, model, lambda x: again(x))
    return [arch, weights]


def _write_preprocessing(run: RunDir, size: tuple[int, int], folder: Path) -> Path:
    """How images become the network's input: everything that a user without raynas needs to know."""
    data = load_data(stored_config(run.read_yaml("preset.yaml", "data"))).resized(size)
    path = folder / PREPROCESSING_FILE
    content = {
        "input": "float32 [batch, channels, height, width] = (pixels / 255 - mean) / std",
        "channels": data.channels,
        "size": data.size,
        "mean": data.mean,
        "std": data.std,
        "crop_pct": data.train.geometry.crop_pct,
        "interpolation": data.train.geometry.interpolation,
        "exif": "upright" if data.train.reading.upright else "ignored",
        "pixel_range": data.train.reading.pixel_range,
        "class_names": data.class_names,
    }
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path


def _write_archive(model: Supernet, path: Path) -> Path:
    with _quiet():
        dynamic = {"x": {0: torch.export.Dim("batch", min=1)}}
        program = torch.export.export(_ImagesOnly(model).eval(), (example(model),), dynamic_shapes=dynamic)
        written = io.BytesIO()  # written by us: a full disk is then an OSError, as with the other files
        torch.export.save(program, written)
        path.write_bytes(written.getvalue())
        again = torch.export.load(path).module()
    _check(path, model, again)
    return path


def _write_onnx(model: Supernet, path: Path) -> Path:
    with _quiet():
        torch.onnx.export(
            _ImagesOnly(model).eval(),
            (example(model),),
            str(path),
            input_names=["images"],
            output_names=["logits"],
            dynamic_shapes={"x": {0: torch.export.Dim("batch", min=1)}},
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    _check(path, model, lambda x: torch.from_numpy(session.run(["logits"], {"images": x.numpy()})[0]))
    return path


def _write_readme(model: Supernet, network: Network, folder: Path, onnx: bool) -> Path:
    about = describe(network.arch)
    space = model.space
    height, width = space.input_size
    text = f"""# {network.name}

Found with raynas: {about["macs"]:,} multiply-accumulates and {about["params"]:,} parameters.
Images of {height} x {width} pixels, {space.channels} channel(s); {space.classes} classes.
`{PREPROCESSING_FILE}` says how an image becomes its input.

With timm (fine-tune it on other classes: `num_classes=...` makes a new head):

```python
import raynas, timm

model = timm.create_model("raynas_vit", pretrained=True, arch="{folder.name}")
```

Without raynas:

```python
import torch

model = torch.export.load("{folder.name}/{ARCHIVE_FILE}").module()
logits = model(torch.randn(8, {space.channels}, {height}, {width}))
```
"""
    if onnx:
        text += f"""
```python
import numpy, onnxruntime

session = onnxruntime.InferenceSession("{folder.name}/{ONNX_FILE}")
images = numpy.zeros((8, {space.channels}, {height}, {width}), numpy.float32)
logits = session.run(["logits"], {{"images": images}})[0]
```
"""
    path = folder / "README.md"
    path.write_text(text)
    return path


class _ImagesOnly(nn.Module):
    """The network with images as its only argument, for exporters that trace every argument."""

    def __init__(self, model: Supernet):
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)


@torch.no_grad()
def _check(path: Path, model: Supernet, again: Callable[[Tensor], Tensor]) -> None:
    x = example(model, images=3)  # another batch size than the one that was traced
    expected, found = model(x), again(x)
    difference = float((expected - found).abs().max() / expected.abs().max().clamp(min=1))
    if not difference <= TOLERANCE[path.name]:
        raise RuntimeError(f"{path} computes something else: logits differ by {difference:.3g} of the largest")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporters' chatter, which says nothing of the result; that is checked."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir", "root")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _missing_for_onnx() -> list[str]:
    return [name for name in ("onnx", "onnxscript", "onnxruntime") if importlib.util.find_spec(name) is None]


def export_into_run(
    run: RunDir, network: Network, onnx: bool | None = None, progress: Callable[[str], None] = print
) -> str:
    """Export into the folder `export` of the run directory, wherever that is, unless it is there already.

    Returns:
        Its path, or its URI without credentials.
    """
    weights = weights_fingerprint(load_weights(run, network).state_dict())
    wanted = {"network": network.name, "weights": weights, "onnx": not _missing_for_onnx() if onnx is None else onnx}
    if run.exists(f"export/{RECEIPT}") and run.read_json(f"export/{RECEIPT}") == wanted:
        progress(f"{network.name} is exported already: {run.name}/export")
        return f"{run.name}/export"
    if run.path is not None:
        _export(run, network, run.path / "export", onnx, progress)
    else:
        with tempfile.TemporaryDirectory() as folder:
            for file in _export(run, network, Path(folder) / "export", onnx, progress=lambda line: None):
                run.write_bytes(f"export/{file.name}", file.read_bytes())
                progress(f"{run.name}/export/{file.name}")
    run.write_json(f"export/{RECEIPT}", wanted)
    return f"{run.name}/export"


def choose(networks: Sequence[Network], winner: Arch, size: tuple[int, int] | None = None) -> Network:
    """The network that stands for a run: the winner, retrained if it was (the first seed), else as it inherits.

    Args:
        networks: the retrained networks of the run.
        winner: its best arch.
        size: of its images, where they are not to be the run's.

    Raises:
        UserError: the winner was not trained at that size.
    """
    found = of_size(networks, winner, size)
    best = min(found, key=lambda network: (WAYS.index(network.how), network.seed or 0), default=None)
    if best is None and size not in (None, winner.space.input_size):
        raise UserError(
            f"no network of arch {winner.id} was trained at {size[0]} x {size[1]} pixels: "
            f"raynas retrain --from trained --size {size[0]}"
        )
    return best or Network(winner, "inherited")
