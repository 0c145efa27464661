"""What the `raynas` command does, one thin function for each verb; `raynas.commands.main` reads the options.

Imports stand in the functions: `raynas --help` and a slip of the pen wait for no torch.
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raynas.errors import UserError

if TYPE_CHECKING:
    from raynas.presets.preset import Preset


def demo(options: argparse.Namespace) -> None:
    """The whole way on the digits."""
    from raynas.phases.demo import run_demo

    run_demo(_run_to_make(options.run), options.workers, options.replicas)


def pipeline(options: argparse.Namespace) -> None:
    """A preset's whole procedure."""
    from raynas.phases.pipeline import pipeline as carry_out

    preset, run_dir = _preset(options.preset, options), _run_to_make(options.run)
    outcome = carry_out(preset, run_dir, options.workers, options.replicas, gpus=int(options.gpu))
    print(f"Report: {outcome.report}")


def train(options: argparse.Namespace) -> None:
    """Train a supernet."""
    from raynas.progress.heartbeat import heartbeat

    preset, run_dir = _preset(options.preset, options), _run_to_make(options.run)
    from raynas.phases.train import train as train_supernet  # timm takes its time: a mistake above is told before

    with heartbeat("training the supernet"):
        run = train_supernet(preset, run_dir=run_dir, workers=options.workers, use_gpu=options.gpu)
    print(f"Next: raynas search {shlex.quote(run.name)}")


def search(options: argparse.Namespace) -> None:
    """Search a trained supernet."""
    from raynas.phases.search import MAIN, Scoring, search_fully
    from raynas.progress.heartbeat import heartbeat
    from raynas.reports.lines import describe_cost
    from raynas.results import RunDir
    from raynas.runs.networks import find_arch

    run = RunDir(options.run)
    preset = _preset(run, options)
    scoring = Scoring(images=options.images, precision=options.precision)
    gpus = 1 if options.gpu else 0
    with run.lock(), heartbeat("searching"):
        search_fully(run, preset.search, scoring, options.name, options.replicas, gpus, options.random)
    path = "best/arch.yaml" if options.name == MAIN else f"searches/{options.name}/arch.yaml"
    winner = find_arch(run, "best") if options.name == MAIN else None
    print(f"Winner: {run.name}/{path}" + (f" ({winner.id}: {describe_cost(winner)})" if winner else ""))


def rank(options: argparse.Namespace) -> None:
    """Say how well inherited weights rank subnets."""
    from raynas.phases.rank import rank_lines, rank_run
    from raynas.progress.heartbeat import heartbeat
    from raynas.results import RunDir
    from raynas.scoring.local import LocalScorer
    from raynas.scoring.pool import ScorePool

    run = RunDir(options.run)
    preset = _preset(run, options)
    if options.parallel and not options.train:
        raise UserError("--parallel is of networks trained alone: say how many, --train N")
    if options.gpu and not options.replicas:
        raise UserError("--gpu gives a GPU to each replica: give --replicas")
    gpus = 1 if options.gpu else 0
    pool = options.replicas
    scorer = ScorePool(run, pool, gpus=gpus) if pool else LocalScorer(run)
    with run.lock(), heartbeat("ranking"):
        rows = rank_run(
            run,
            scorer,
            preset.retrain_recipe,
            archs=options.archs,
            buckets=options.buckets,
            train=options.train,
            finetune_epochs=options.finetune,
            seeds=range(options.seeds) if options.seeds else None,
            truth=options.truth,
            parallel=options.parallel or (None if options.replicas else 1),  # no replicas: nothing here needs Ray
        )
    for line in rank_lines(rows):
        print(line)


def evolve_space(options: argparse.Namespace) -> None:
    """Search the search space."""
    from raynas.outer.experiment import run_trials
    from raynas.outer.trial_progress import trial_name
    from raynas.presets.preset import parse_overrides
    from raynas.progress.heartbeat import heartbeat

    preset, run_dir = _preset(options.preset, options), _run_to_make(options.run)
    values = parse_overrides(options.values)
    for key, listed in values.items():
        if not isinstance(listed, list) or not listed:
            raise UserError(f"--try {key}: give a list of values, such as {key}=[0.2,0.4]")
    with heartbeat("evolving the space"):
        found = run_trials(
            preset,
            run_dir,
            values,
            options.trials,
            options.workers,
            options.replicas,
            gpus=1 if options.gpu else 0,
            at_a_time=options.at_a_time,
            search=options.search,
        )
    print(f"{'lowest E-T error':>16}  {'space':<40} tried")
    ended = [trial for trial in found if trial.error is None]
    for trial in ended:
        space = f"{trial.run.name}/spaces/{trial.best.index}.yaml"
        tried = ", ".join(f"{key}={value}" for key, value in trial.values.items())
        print(f"{trial.best.quality.error:>16.2%}  {space:<40} {tried or '-'}")
    equal = [trial for trial in ended if trial.best.quality.error == ended[0].best.quality.error]
    if len(equal) > 1:
        print(
            f"{len(equal)} trials have the lowest error; the first of them in the table is the one of fewer MACs on "
            "average, or where these are equal the one that was tried first"
        )
    folder = f"{found[0].run.name}/iterations/{found[0].best.index}"
    if failed := [trial_name(trial.values) for trial in found if trial.error is not None]:
        raise UserError(
            f"{len(failed)} trial(s) failed, {'; '.join(failed)}: mend what is said above, and the same command goes on"
        )
    print(f"Next: raynas {'retrain' if options.search else 'search'} {shlex.quote(folder)}")


def evaluate(options: argparse.Namespace) -> None:
    """Measure finished networks on the test split."""
    from raynas.phases.evaluate import evaluate as evaluate_networks
    from raynas.phases.evaluate import networks_to_evaluate
    from raynas.progress.heartbeat import heartbeat
    from raynas.results import RunDir

    run = RunDir(options.run)
    with heartbeat("evaluating"):
        rows = evaluate_networks(run, networks_to_evaluate(run, options.arch), options.again)
    columns = ("pixels", 11), ("MACs", 16), ("top-1", 9), ("images", 9), ("reading", 9)
    print(f"{'arch':<14}{'weights':<12}{'seed':>5}" + "".join(f"{name:>{width}}" for name, width in columns))
    for row in rows:
        seed = "" if row["seed"] is None else row["seed"]
        pixels = "" if row["height"] is None else f"{row['height']} x {row['width']}"
        print(
            f"{row['arch']:<14}{row['how']:<12}{seed:>5}{pixels:>11}{row['macs']:>16,}{row['accuracy']:>9.2%}"
            f"{row['images']:>9,}{row['reading']:>9}"
        )
    count = max(row["reading"] for row in run.store.read("evaluations", ["reading"]).to_pylist())
    print(f"The test split has been read {count} time(s) in this run.")


def retrain(options: argparse.Namespace) -> None:
    """Train found networks on their own."""
    from raynas.phases.retrain import finetune_resized
    from raynas.phases.retrain import retrain as retrain_networks
    from raynas.progress.heartbeat import heartbeat
    from raynas.reports.lines import retrained_lines
    from raynas.results import RunDir
    from raynas.runs.networks import find_arch, find_trained

    run = RunDir(options.run)
    if options.start == "trained" and options.size:
        options.changes = [f"retrain.finetune.size={options.size}", *options.changes]
    preset = _preset(run, options)
    start, finetune = options.start or preset.retrain.start, preset.retrain.finetune
    seeds = list(range(options.seeds) if options.seeds else preset.retrain.seeds)
    train_on, parallel = options.on or preset.retrain.train_on, options.parallel
    archs = [find_arch(run, name) for name in options.arch or ["best"]]
    if start == "trained":
        if finetune is None:
            raise UserError("--from trained fine-tunes at another image size: give --size, or retrain.finetune.size")
        networks = [find_trained(run, arch, seed, train_on) for arch in archs for seed in seeds]
        with heartbeat("fine-tuning"):
            rows = finetune_resized(run, networks, preset.finetune_recipe, finetune.size, parallel)
    else:
        how: Any = "finetuned" if start == "inherited" else "scratch"
        with heartbeat("retraining"):
            rows = retrain_networks(
                run, archs, preset.retrain_recipe, how, seeds, train_on, parallel, size=options.size
            )
    for line in retrained_lines(rows):
        print(line)
    name = shlex.quote(options.run)
    if finetune is not None and start != "trained" and not options.size:
        same = "".join(f" --arch {shlex.quote(arch)}" for arch in options.arch or [])
        same += f" --seeds {options.seeds}" if options.seeds else ""
        same += f" --on {options.on}" if options.on else ""
        print(f"The preset then fine-tunes at another image size: raynas retrain {name} --from trained{same}")
    print(f"Next: raynas evaluate {name}")


def import_(options: argparse.Namespace) -> None:
    """Read released weights."""
    from raynas.phases.import_ import import_supernet, preset_of

    preset = _preset(options.preset or preset_of(options.system), options, made_for=False)
    assert preset.data is not None  # --data is required
    run_dir = _run_to_make(options.run)
    given = (options.system, options.checkpoint, run_dir, preset.data, options.space, preset, options.weights)
    run = import_supernet(*given)
    verb = "evaluate" if run.exists("best/arch.yaml") else "search"
    print(f"Imported into {run.name}. Next: raynas {verb} {shlex.quote(run.name)}")


def export(options: argparse.Namespace) -> None:
    """Write a network as plain files."""
    from raynas.phases.export import choose_network, export_into_run
    from raynas.phases.export import export as export_network
    from raynas.progress.heartbeat import heartbeat
    from raynas.results import RunDir
    from raynas.runs.networks import Network, find_arch, trained_networks

    run = RunDir(options.run)
    arch = find_arch(run, options.arch)
    if options.inherited and options.seed is not None:
        raise UserError("inherited weights are not of a seed: leave out --inherited, or --seed")
    if options.inherited and options.size:
        raise UserError("inherited weights are for the run's image size: leave out --inherited, or --size")
    size = (options.size, options.size) if options.size else None
    network = Network(arch, "inherited")
    if not options.inherited:
        network = choose_network(trained_networks(run), arch, size, options.seed)
    print(f"Exporting {network.name} ({network.path or 'weights inherited from the supernet'})")
    with heartbeat("exporting"):
        if options.to is None:
            export_into_run(run, network, options.onnx)
        else:
            export_network(run, network, options.to, options.onnx)


def report(options: argparse.Namespace) -> None:
    """Write the HTML page."""
    from raynas.outer.report_data import searched_spaces, trial_findings
    from raynas.phases.report_data import traces
    from raynas.reports import write_report
    from raynas.results import RunDir

    run = RunDir(options.run)
    print(write_report(run, traces(run), searched_spaces(run), trial_findings(run)))


def check(options: argparse.Namespace) -> None:
    """Look at data, and say how they will be read."""
    from raynas.config import Document, validate
    from raynas.data.config import DataConfig
    from raynas.presets.preset import parse_overrides

    preset = None
    if options.preset is not None:
        preset = _preset(options.preset, options)
        config = preset.data
    elif options.data is None:
        raise UserError("say what to check: --data DIR, and the preset that it is for where there is one")
    else:
        changes = parse_overrides(options.changes)
        if wrong := [key for key in changes if not key.startswith("data.")]:
            raise UserError(f"--set {wrong[0]}: without a preset only values of data can be set, such as data.size=32")
        values = {"name": options.data, **{key.removeprefix("data."): value for key, value in changes.items()}}
        config = validate(DataConfig, Document({"data": values}, "override"), ("data",))
    from raynas.phases.images import check_data  # torch takes its time: a mistake above is told before

    check_data(config, preset)


def cost(options: argparse.Namespace) -> None:
    """Print MACs and parameters."""
    from raynas.commands.console import cost_table

    print(cost_table(options.name))


def _run_to_make(given: str) -> str:
    """A run directory, or where to make one: not inside another one, whose files it would mix with."""
    from raynas.locations import is_uri
    from raynas.results.run_dir import run_around

    around = None if is_uri(given) else run_around(given)
    if around not in (None, Path(given).resolve()):
        raise UserError(f"{given} lies in the run directory {around}: give a folder elsewhere")
    return given


def _preset(source: Any, options: argparse.Namespace, made_for: bool = True) -> Preset:
    """A preset by name or file, or a run's own, with what the command line changes.

    Args:
        made_for: whether data in place of the preset's own must suit its space.
    """
    from raynas.config import validate
    from raynas.presets.preset import Preset, load_preset, override, parse_overrides
    from raynas.results import RunDir

    changes = parse_overrides(options.changes)
    if getattr(options, "data", None) is not None:
        changes = {"data": {"name": options.data}, **changes}
    if not isinstance(source, RunDir):
        before = load_preset(source)
        preset = override(before, changes)
        if made_for and getattr(options, "data", None) is not None:
            from raynas.phases.images import check_made_for

            check_made_for(before, preset)
        return preset
    source.require("preset.yaml")
    return override(validate(Preset, source.read_document("preset.yaml")), changes)
