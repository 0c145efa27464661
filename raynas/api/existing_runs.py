"""Public functions that work on a run: search, ranking, retraining, evaluation, export."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from raynas.api.given import DataLike, PresetLike, RunLike, chosen_arch, loading, opened_run, run_preset, typed
from raynas.api.new_runs import import_model
from raynas.cluster.resources import Resources
from raynas.config import Name, Natural, Positive, Seed, Seeds
from raynas.errors import UserError
from raynas.progress.reporter import Progress, silent

if TYPE_CHECKING:
    from raynas.results.schemas import Row
    from raynas.space import Arch


@typed
def search_run(
    run: RunLike,
    overrides: Mapping[str, Any] | None = None,
    *,
    name: Name = "search",
    resources: Resources | None = None,
    random: bool = False,
    images: Positive | None = None,
    precision: Literal["fp32", "bf16", "fp16"] = "fp32",
    progress: Progress = silent,
) -> Arch:
    """Search a trained supernet as its preset says, or continue the search.

    `raynas.search` is the package of the algorithms; to use one in a loop of your own, see `raynas.Evolution` and
    `raynas.ScorePool`.

    Args:
        run: holds a trained supernet.
        overrides: changes to the run's preset by dotted key: `{"search.constraints.macs": [None, 4.5e9]}`.
        name: name of this search; a run may hold several. Only the winner of `search` is the run's `best`.
        resources: the replicas that score subnets; None for two. Without replicas this process scores, without Ray.
        random: run random search with the same number of evaluations afterwards, for comparison.
        images: score on this many images of the search split; None for all.
        precision: precision of the forward passes; `bf16` and `fp16` use autocast. The best ten archs, or the front,
            are then scored again in fp32, and the winner is the best of these.
        progress: called with lines of text.

    Returns:
        The winner; with several objectives the first arch of the front (`run.search(name).front` has all).

    Raises:
        InfeasibleError: nothing in the space meets the constraints.
        RunDirError: the run holds no trained supernet, or a search of that name with other settings.
        UserError: the search cannot be built, or no arch could be scored or timed.
    """
    opened = opened_run(run)
    with loading(progress):
        from raynas.phases.search import search_fully
        from raynas.runs.searches import Scoring

    preset = run_preset(opened, overrides)
    with opened.lock():
        scoring = Scoring(images=images, precision=precision)
        search_fully(opened, preset.search, resources or Resources(), scoring, name, random, progress)
    return opened.search(name).winner


@typed
def rank(
    run: RunLike,
    overrides: Mapping[str, Any] | None = None,
    *,
    archs: Positive = 2000,
    buckets: Positive = 8,
    train: Natural = 0,
    finetune_epochs: Positive | None = None,
    seeds: Seeds | None = None,
    truth: str | Path | None = None,
    proxies: Sequence[str] = (),
    resources: Resources | None = None,
    parallel: Positive | None = None,
    progress: Progress = silent,
) -> list[Row]:
    """Measure how well inherited weights rank subnets: by MACs, and against networks that were trained alone.

    Args:
        run: holds a trained supernet.
        overrides: changes to the run's preset by dotted key.
        archs: number of subnets to score, spread evenly over ranges of MACs.
        buckets: number of these ranges.
        train: number of them to train alone, as the truth.
        finetune_epochs: also fine-tune these from inherited weights for so many epochs.
        seeds: seeds of these trainings; None for seed 0.
        truth: a Parquet file of networks trained elsewhere, with columns `network`, `values` and `accuracy`.
        proxies: training-free scores to correlate as well: `params`, `macs`, `synflow`, `naswot`, `dss`, `az_nas`.
        resources: the replicas that score subnets, and the workers of each training; None for two replicas, and for one
            worker on a cluster or if several networks are trained. Without them this process scores and trains, without
            Ray.
        parallel: trainings side by side; None for as many as the cluster has room for.
        progress: called with lines of text.

    Returns:
        The new rows of table `rankings`: Kendall's tau and other statistics, with intervals.

    Raises:
        UserError: the settings or the truth table do not fit.
    """
    opened = opened_run(run)
    preset = run_preset(opened, overrides)
    if parallel and not train:
        raise UserError("--parallel applies to networks trained alone: give their number, --train N")
    resources = resources or Resources()
    if parallel not in (None, 1) and not resources.workers:
        resources = replace(resources, workers=1)
    if resources.gpus and not resources.replicas and resources.workers == 0:
        raise UserError("--gpu gives a GPU to each replica and worker: give --replicas")
    with loading(progress):
        from raynas.phases.rank import rank_run
        from raynas.phases.search import make_scorer
    from raynas.runs.searches import Scoring

    scorer = make_scorer(opened, Scoring(), resources)
    with opened.lock():
        return rank_run(
            opened,
            scorer,
            preset.retrain_recipe,
            archs=archs,
            buckets=buckets,
            train=train,
            finetune_epochs=finetune_epochs,
            seeds=seeds,
            truth=truth,
            proxies=proxies,
            parallel=parallel,
            progress=progress,
            resources=resources,
        )


@typed
def retrain(
    run: RunLike,
    archs: Sequence[Arch | str] = ("best",),
    overrides: Mapping[str, Any] | None = None,
    *,
    start: Literal["scratch", "inherited", "trained"] | None = None,
    size: Positive | None = None,
    seeds: Seeds | None = None,
    train_on: Literal["train", "train+search"] | None = None,
    data: DataLike | None = None,
    run_dir: RunLike | None = None,
    preset: PresetLike | None = None,
    weights: str | Path | None = None,
    resources: Resources | None = None,
    parallel: Positive | None = None,
    progress: Progress = silent,
) -> list[Row]:
    """Train found networks on their own, or continue their training.

    With `data` and `run_dir` a trained network is transferred to other images: it becomes the `best` of a run of its
    own, with a new classifier if the classes are others, and is fine-tuned there.

    Args:
        run: the run directory; with `data` also the folder of a network, or the name of a timm model.
        archs: networks to train: archs, or `best`, the name of a search, `reference`, the id of a scored subnet, an
            arch file; with `data` the winner alone.
        overrides: changes to the run's preset by dotted key.
        start: weights to begin with: random ones (`scratch`), those inherited from the supernet (`inherited`), or
            those of the retrained network (`trained`: fine-tune it at another image size). None: as the preset says.
        size: height and width of the images in pixels; None: the run's, for `trained` the preset's.
        seeds: one training with each; None: as the preset says.
        train_on: images to train on; None: as the preset says.
        data: other images than the run's.
        run_dir: with other images: the run directory to write.
        preset: with other images: the settings; None for `transfer`.
        weights: with other images: a file with a timm model's weights, instead of those that timm downloads.
        resources: the Ray Train workers of each network; without workers this process trains one after the other. None:
            on a cluster one worker; else this process for one network, or with `parallel=1`, and one worker for each of
            several.
        parallel: trainings side by side; None for as many as the cluster has room for.
        progress: called with lines of text.

    Returns:
        The rows of table `networks`, archs by seeds.

    Raises:
        RunDirError: such a network was trained with other settings.
        TrainingCollapsed: a training broke down twice; the other networks are finished first.
        UserError: an arch is not found, is for other images or classes than the run's, or the recipe does not fit.
    """
    if data is not None:
        if run_dir is None:
            raise UserError("other images than the run's are for a run of their own: name its directory (--run DIR)")
        if list(archs) != ["best"]:
            raise UserError(
                "only a winner is transferred to other images: export another arch (raynas export --arch), and give "
                "its folder in place of the run"
            )
        if start == "trained":
            raise UserError("a transfer begins with the network's trained weights in any case: leave --from out")
        source = os.fspath(run) if isinstance(run, str | os.PathLike) else run.name
        opened = import_model(
            "transfer", source, run_dir, data, overrides, preset=preset, weights=weights, size=size, progress=progress
        )
        size = None
    elif run_dir is not None or preset is not None or weights is not None:
        raise UserError("--run, --preset and --weights are for other images than the run's: give them (--data)")
    else:
        opened = opened_run(run)
    if start == "trained" and size is not None:
        overrides = {"retrain.finetune.size": size, **(overrides or {})}
    preset = run_preset(opened, overrides)
    start, train_on = start or preset.retrain.start, train_on or preset.retrain.train_on
    seeds = preset.retrain.seeds if seeds is None else seeds
    with loading(progress):
        from raynas.phases.recipes import recipe_of
        from raynas.phases.retrain import finetune_resized
        from raynas.phases.retrain import retrain as retrain_archs

    found = [chosen_arch(opened, arch, progress) for arch in archs]
    if start != "trained":
        how: Literal["finetuned", "scratch"] = "finetuned" if start == "inherited" else "scratch"
        recipe = recipe_of(preset, opened.space.input_size, progress)
        return retrain_archs(
            opened,
            found,
            recipe,
            how,
            seeds,
            train_on,
            parallel,
            progress,
            size=size,
            resources=resources,
            windows=preset.retrain.windows,
        )
    finetune = preset.retrain.finetune
    if finetune is None:
        raise UserError("--from trained fine-tunes at another image size: give --size, or retrain.finetune.size")
    networks = [opened.trained_network(arch, seed, train_on) for arch in found for seed in seeds]
    recipe = recipe_of(preset, opened.space.input_size, progress, finetune=True)
    windows = preset.retrain.windows
    return finetune_resized(
        opened, networks, recipe, finetune.size, parallel, progress, resources=resources, windows=windows
    )


@typed
def evaluate(
    run: RunLike,
    arch: str | None = None,
    *,
    again: bool = False,
    resources: Resources | None = None,
    progress: Progress = silent,
) -> list[Row]:
    """Measure finished networks on the test split. Every reading of it is counted in the rows.

    Args:
        run: the run directory.
        arch: `best`, the name of a search, `reference`, the id of a scored subnet or an arch file; `front` or
            `NAME/front` for all archs of a search's front. None for the winner and every retrained network.
        again: measure even networks that have a row already.
        resources: with replicas, a Ray task measures, with the CPUs and GPUs of one replica; else this process. None:
            a task on a cluster, else this process.
        progress: called with lines of text.

    Returns:
        Rows of table `evaluations`, one for each network.

    Raises:
        RunDirError: another process writes to the run directory, or files are missing.
        UserError: there is no such arch, nothing is finished, or the data has no usable test split.
    """
    opened = opened_run(run)
    with loading(progress):
        from raynas.phases.evaluate import evaluate as evaluate_networks
        from raynas.phases.evaluate import networks_to_evaluate

    networks = networks_to_evaluate(opened, arch, progress)
    return evaluate_networks(opened, networks, again, progress=progress, resources=resources)


@typed
def export(
    run: RunLike,
    arch: Arch | str = "best",
    to: str | Path | None = None,
    *,
    inherited: bool = False,
    size: Positive | None = None,
    seed: Seed | None = None,
    onnx: bool | None = None,
    resources: Resources | None = None,
    progress: Progress = silent,
) -> str:
    """Write a network as plain files: safetensors, a `torch.export` archive, ONNX, and how images are prepared.

    Args:
        run: the run directory.
        arch: an arch, or `best`, the name of a search, `reference`, the id of a scored subnet, an arch file.
        to: a folder on this machine; None for `export` in the run directory.
        inherited: take inherited weights, even if the arch was retrained.
        size: height and width of the retrained network's images in pixels; None for the run's.
        seed: seed of the retrained network; None for the lowest.
        onnx: write ONNX; None to write it if its packages are installed.
        resources: with replicas, a Ray task calibrates the batch norms of inherited weights, with the CPUs and GPUs of
            one replica; without, this process. None: a task on a cluster, else this process.
        progress: called with a line for each file.

    Returns:
        The folder.

    Raises:
        UserError: there is no such network, the folder holds other files, or ONNX is asked for and not installed.
    """
    opened = opened_run(run)
    found = chosen_arch(opened, arch, progress)
    if inherited and seed is not None:
        raise UserError("inherited weights are not of a seed: leave out --inherited, or --seed")
    if inherited and size:
        raise UserError("inherited weights are for the run's image size: leave out --inherited, or --size")
    with loading(progress):
        from raynas.phases.export import choose_network, export_into_run
        from raynas.phases.export import export as export_network
    from raynas.runs.networks import Network

    network = Network(found, "inherited")
    if not inherited:
        network = choose_network(opened.networks(), found, (size, size) if size else None, seed)
    progress(f"Exporting {network.name} ({network.path or 'weights inherited from the supernet'})")
    if to is None:
        return export_into_run(opened, network, onnx, progress, resources)
    export_network(opened, network, to, onnx, progress, resources)
    return os.fspath(to)
