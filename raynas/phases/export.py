"""A found network as plain files that others can use: arch, weights, a torch.export archive and ONNX.

The preprocessing of its images is in a file of its own, in the archive's extra files and in ONNX's metadata.

The files are read back and compared with the network before the export counts as finished.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from pyarrow import fs
from torch import Tensor, nn

from raynas.cluster.resources import Resources
from raynas.costs.columns import arch_columns
from raynas.data.preprocessing import PREPROCESSING_FILE, Preprocessing, preprocessing_of
from raynas.errors import UserError
from raynas.nets import build_supernet
from raynas.nets.calibration import wants_calibration
from raynas.nets.supernet import Supernet
from raynas.nets.weights import load_supernet, weights_file, weights_fingerprint
from raynas.phases.where import compute, default_resources
from raynas.progress.reporter import Progress, reporter, silent
from raynas.results.folder import whole_folder
from raynas.results.run_dir import json_text, run_around
from raynas.runs.network_folder import ARCH_FILE, CONFIG_FILE, WEIGHTS_FILE, build_network, hub_config
from raynas.runs.networks import WAYS, Network, arch_text, of_size
from raynas.runs.run import Run
from raynas.space import Arch

ARCHIVE_FILE, ONNX_FILE, README_FILE = "model.pt2", "model.onnx", "README.md"
RECEIPT = "export.json"
"""File in a run directory's export that records the exported network and the digests of the files."""

FILES = frozenset(
    {ARCH_FILE, WEIGHTS_FILE, CONFIG_FILE, ARCHIVE_FILE, ONNX_FILE, PREPROCESSING_FILE, README_FILE, RECEIPT}
)
"""Files of an export; a new export replaces all of them."""

TOLERANCE = {WEIGHTS_FILE: 1e-5, ARCHIVE_FILE: 1e-5, ONNX_FILE: 1e-4}
"""Largest allowed difference of an export's logits, relative to the largest logit."""


def export(
    run: Run,
    network: Network,
    to: str | Path,
    onnx: bool | None = None,
    progress: Progress = silent,
    resources: Resources | None = None,
) -> list[Path]:
    """Write a network of a run as a folder of plain files, and return their paths; see `raynas.export`.

    Args:
        resources: with replicas, batch norms are calibrated in a Ray task with the resources of one; None for those of
            `default_resources`.
        to: folder outside of any run directory. It is created, or an earlier export in it is replaced, in one step;
            other files in it are kept.
    """
    _check_folder(to)
    folder = Path(os.path.realpath(to))  # the user's own link is followed
    wanted, model = _onnx_here(onnx, progress), load_network(run, network, resources, progress)
    try:
        with (
            reporter(progress).doing("exporting"),
            whole_folder(fs.LocalFileSystem(), str(folder), ARCH_FILE, keep=_no_part) as new,
        ):
            names = _write(run, network, model, new, Path(to).name, wanted)
    except OSError as error:
        raise UserError(f"{to}: cannot be written: {error.strerror or error}") from error
    files = [Path(to) / name for name in names]
    for file in files:
        progress(str(file))
    return files


def load_network(
    run: Run, network: Network, resources: Resources | None = None, progress: Progress = silent
) -> Supernet:
    """Load a network; if its batch norms are to be calibrated, a Ray task does that where the resources say so.

    Args:
        resources: None for those of `default_resources`.
    """
    resources = resources or default_resources()
    if network.path is not None or not resources.replicas:
        return run.model(network)
    with torch.device("meta"):
        if not wants_calibration(build_supernet(run.space)):
            return run.model(network)
    weights = compute("calibrating", _calibrated, run, network, resources=resources, progress=progress)
    return load_supernet(network.arch.space.fix(network.arch), weights).eval()


def _calibrated(run: Run, network: Network, device: str) -> dict[str, Tensor]:
    """Return a network's weights with calibrated batch norms."""
    model = run.model(network, run.supernet(device))
    return {name: tensor.cpu() for name, tensor in model.state_dict().items()}


def _no_part(name: str) -> bool:
    """Return True if a file in the folder of an export does not belong to the export."""
    return name not in FILES


def _check_folder(to: str | Path) -> None:
    """Refuse a folder with other files than an export's, since names such as `README.md` are common."""
    if "://" in str(to):
        raise UserError(f"{to}: --to is a folder on this machine; without it the export goes into the run directory")
    around = run_around(to)
    if around is not None:
        raise UserError(f"{to} lies in the run directory {around}: give a folder elsewhere, or none for its `export`")
    here, folder = Path.cwd(), Path(os.path.realpath(to))
    if folder in (here, *here.parents):
        raise UserError(f"{folder}: an export replaces its folder, and the current directory lies there: give another")
    with contextlib.suppress(OSError):  # not there yet, or cannot be listed
        if os.listdir(to) and not (Path(to) / ARCH_FILE).exists():
            raise UserError(f"{to} holds other files than an export's: give a new folder, or an empty one")


def _onnx_here(wanted: bool | None, progress: Progress) -> bool:
    """Return True if ONNX is to be written."""
    missing = [] if wanted is False else _missing_for_onnx()
    if missing and wanted:
        raise UserError(f"ONNX needs {', '.join(missing)}: pip install 'raynas[onnx]'")
    if missing:
        progress(f"no {ONNX_FILE}: {', '.join(missing)} not installed (pip install 'raynas[onnx]')")
    return wanted is not False and not missing


def _write(run: Run, network: Network, model: Supernet, folder: Path, name: str, onnx: bool) -> list[str]:
    """Write an export's files into an empty folder, and return their names."""
    reading = preprocessing_of(run.data().resized(model.space.input_size))
    _write_network(model, network, folder)
    (folder / PREPROCESSING_FILE).write_text(reading.text())
    (folder / CONFIG_FILE).write_text(json_text(hub_config(model, network.arch, reading)))
    _write_archive(model, reading, folder / ARCHIVE_FILE)
    if onnx:
        _write_onnx(model, reading, folder / ONNX_FILE)
    (folder / README_FILE).write_text(_readme(model, network, reading, name, onnx))
    others = [ARCHIVE_FILE, *([ONNX_FILE] if onnx else []), README_FILE]
    return [ARCH_FILE, WEIGHTS_FILE, CONFIG_FILE, PREPROCESSING_FILE, *others]


def example(model: Supernet, images: int = 2) -> Tensor:
    """Return standard normal images of a fixed seed, [images, channels, height, width]."""
    generator = torch.Generator().manual_seed(0)
    space = model.space
    return torch.randn(images, space.channels, *space.input_size, generator=generator)


def _write_network(model: Supernet, network: Network, folder: Path) -> None:
    arch, weights = folder / ARCH_FILE, folder / WEIGHTS_FILE
    arch.write_text(arch_text(network.arch))
    weights.write_bytes(weights_file(model.state_dict()))
    again = build_network(network.arch, weights.read_bytes(), str(weights))
    _check(weights, model, lambda x: again(x))


def _write_archive(model: Supernet, reading: Preprocessing, path: Path) -> None:
    with _quiet():
        dynamic = {"x": {0: torch.export.Dim("batch", min=1)}}
        program = torch.export.export(_ImagesOnly(model).eval(), (example(model),), dynamic_shapes=dynamic)
        written = io.BytesIO()  # written here, so that a full disk is an OSError as with the other files
        torch.export.save(program, written, extra_files={PREPROCESSING_FILE: reading.text()})
        path.write_bytes(written.getvalue())
        again = torch.export.load(path).module()
    _check(path, model, again)


def _write_onnx(model: Supernet, reading: Preprocessing, path: Path) -> None:
    with _quiet():
        program = torch.onnx.export(
            _ImagesOnly(model).eval(),
            (example(model),),
            input_names=["images"],
            output_names=["logits"],
            dynamic_shapes={"x": {0: torch.export.Dim("batch", min=1)}},
            dynamo=True,
            verbose=False,
        )
        assert program is not None
        program.model.metadata_props[PREPROCESSING_FILE] = reading.text()
        path.write_bytes(program.model_proto.SerializeToString())  # written here, as the archive
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    _check(path, model, lambda x: torch.from_numpy(session.run(["logits"], {"images": x.numpy()})[0]))


def _readme(model: Supernet, network: Network, reading: Preprocessing, name: str, onnx: bool) -> str:
    about = arch_columns(network.arch)
    space = model.space
    height, width = space.input_size
    text = f"""# {network.name}

Found with raynas: {about["macs"]:,} multiply-accumulates and {about["params"]:,} parameters.
Images of {height} x {width} pixels, {space.channels} channel(s); {space.classes} classes.
`{PREPROCESSING_FILE}` says how an image becomes its input.

With timm (fine-tune it on other classes: `num_classes=...` makes a new head):

```python
import raynas.timm, timm

model = timm.create_model("local-dir:{name}", pretrained=True).eval()
transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
{_classify(reading)}
```

Without raynas:

```python
import torch

extra = {{"{PREPROCESSING_FILE}": ""}}  # read with it
model = torch.export.load("{name}/{ARCHIVE_FILE}", extra_files=extra).module()
logits = model(torch.randn(8, {space.channels}, {height}, {width}))
```
"""
    if onnx:
        text += f"""
```python
import numpy, onnxruntime

session = onnxruntime.InferenceSession("{name}/{ONNX_FILE}")
preprocessing = session.get_modelmeta().custom_metadata_map["{PREPROCESSING_FILE}"]
images = numpy.zeros((8, {space.channels}, {height}, {width}), numpy.float32)
logits = session.run(["logits"], {{"images": images}})[0]
```
"""
    return text


def _classify(reading: Preprocessing) -> str:
    """Return a line of Python that classifies a PIL image."""
    if reading.mode is None:
        return f"# it is of images with {reading.channels} channels, which PIL has no mode for"
    return f'logits = model(transform(image.convert("{reading.mode}"))[None])  # of an image of PIL\'s'


class _ImagesOnly(nn.Module):
    """A network with images as its only argument, for exporters that trace every argument."""

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
    """Silence the exporters, whose output does not matter, since the result is checked."""
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
    run: Run,
    network: Network,
    onnx: bool | None = None,
    progress: Progress = silent,
    resources: Resources | None = None,
) -> str:
    """Export into the folder `export` of a run directory unless it is there already; return its path or its URI."""
    with run.lock():
        model = load_network(run, network, resources, progress)
        wanted: dict[str, Any] = {"network": network.name, "weights": weights_fingerprint(model.state_dict())}
        wanted["onnx"] = not _missing_for_onnx() if onnx is None else onnx
        if _is_exported(run, wanted):
            progress(f"{network.name} is exported already: {run.name}/export")
            return f"{run.name}/export"
        with_onnx = _onnx_here(onnx, progress)
        with reporter(progress).doing("exporting"), run.folder("export", last=RECEIPT, keep=_no_part) as folder:
            names = _write(run, network, model, folder, "export", with_onnx)
            files = {name: _digest((folder / name).read_bytes()) for name in names}
            (folder / RECEIPT).write_text(json_text({**wanted, "files": files}))
        for name in names:
            progress(f"{run.name}/export/{name}")
        return f"{run.name}/export"


def _is_exported(run: Run, wanted: Mapping[str, Any]) -> bool:
    """Return True if the run's export is the wanted one, with its files unchanged."""
    if not run.exists(f"export/{RECEIPT}"):
        return False
    receipt = run.read_json(f"export/{RECEIPT}")
    if not isinstance(receipt, dict) or not isinstance(files := receipt.pop("files", None), dict) or receipt != wanted:
        return False  # older versions wrote no `files`
    if CONFIG_FILE not in files:
        return False  # older versions wrote none
    return all(
        run.exists(f"export/{name}") and _digest(run.read_bytes(f"export/{name}")) == digest
        for name, digest in files.items()
    )


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def choose_network(
    networks: Sequence[Network], winner: Arch, size: tuple[int, int] | None = None, seed: int | None = None
) -> Network:
    """Return the network to export from a run: its winner, retrained if available, else with inherited weights.

    Args:
        size: image size of the network; None for the run's.
        seed: seed of the training; None for the lowest.

    Raises:
        UserError: the winner was not trained at that size, or with that seed.
    """
    found = of_size([network for network in networks if network.how in WAYS], winner, size)
    seeds = sorted({network.seed for network in found if network.seed is not None})
    if seed is not None and seed not in seeds:
        trained = f"only with seed {', '.join(map(str, seeds))}" if seeds else "with no seed at all"
        raise UserError(
            f"no network of arch {winner.id} was trained with seed {seed} ({trained}): give another --seed, or "
            "train it first (raynas retrain --seeds N trains with seeds 0 to N - 1)"
        )
    found = [network for network in found if seed in (None, network.seed)]
    best = min(found, key=lambda network: (WAYS.index(network.how), network.seed or 0), default=None)
    if best is None and size not in (None, winner.space.input_size):
        raise UserError(
            f"no network of arch {winner.id} was trained at {size[0]} x {size[1]} pixels: "
            f"raynas retrain --from trained --size {size[0]}"
        )
    return best or Network(winner, "inherited")
