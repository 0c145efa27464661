"""What the `raynas` command does, one thin function for each verb; `raynas.cli` reads the options.

Imports stand in the functions: `raynas --help` and a slip of the pen wait for no torch.
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raynas.errors import UserError

if TYPE_CHECKING:
    from raynas.preset import Preset


def demo(options: argparse.Namespace) -> None:
    """The whole way on the digits."""
    from raynas.demo import run_demo

    run_demo(_run_to_make(options.run))


def pipeline(options: argparse.Namespace) -> None:
    """A preset's whole procedure."""
    from raynas.pipeline import pipeline as carry_out

    preset, run_dir = _preset(options.preset, options), _run_to_make(options.run)
    outcome = carry_out(preset, run_dir, options.workers, options.replicas, gpus=int(options.gpu))
    print(f"Report: {outcome.report}")


def train(options: argparse.Namespace) -> None:
    """Train a supernet."""
    from raynas.heartbeat import heartbeat
    from raynas.training import train as train_supernet

    preset, run_dir = _preset(options.preset, options), _run_to_make(options.run)
    with heartbeat("training the supernet"):
        run = train_supernet(preset, run_dir=run_dir, workers=options.workers, use_gpu=options.gpu)
    print(f"Next: raynas search {shlex.quote(run.name)}")


def search(options: argparse.Namespace) -> None:
    """Search a trained supernet."""
    from raynas.console import describe_cost
    from raynas.heartbeat import heartbeat
    from raynas.networks import find_arch
    from raynas.results import RunDir
    from raynas.searches import BASELINE, MAIN, Scoring, Settings, baseline, choose_winner, make_scorer, time_space
    from raynas.searches import search as search_run

    run = RunDir(options.run)
    preset = _preset(run, options)
    scoring = Scoring(images=options.images, precision=options.precision)
    gpus = 1 if options.gpu else 0
    with run.lock(), heartbeat("searching"):
        # Before there are replicas, which would disturb what is timed.
        settings = time_space(run, Settings(search=preset.search, scoring=scoring), options.name)
        with make_scorer(run, settings, options.replicas, gpus) as scorer:
            done = [(settings, search_run(run, settings, scorer, options.name), options.name)]
            if options.random:
                random = settings.model_copy(update={"search": baseline(preset.search, done[0][1].evaluations)})
                name = BASELINE if options.name == MAIN else f"{options.name}-{BASELINE}"
                done.append((random, search_run(run, random, scorer, name), name))
        for each in done:
            choose_winner(run, *each)
    path = "best/arch.yaml" if options.name == MAIN else f"searches/{options.name}/arch.yaml"
    winner = find_arch(run, "best") if options.name == MAIN else None
    print(f"Winner: {run.name}/{path}" + (f" ({winner.id}: {describe_cost(winner)})" if winner else ""))


def rank(options: argparse.Namespace) -> None:
    """Say how well inherited weights rank subnets."""
    from raynas.heartbeat import heartbeat
    from raynas.rank import rank_lines, rank_run
    from raynas.results import RunDir
    from raynas.scoring import LocalScorer, ScorePool

    run = RunDir(options.run)
    preset = _preset(run, options)
    if options.parallel and not options.train:
        raise UserError("--parallel is of networks trained alone: say how many, --train N")
    if options.gpu and not options.replicas:
        raise UserError("--gpu gives a GPU to each replica: give --replicas")
    gpus = 1 if options.gpu else 0
    scorer = ScorePool(run, options.replicas, gpus=gpus) if options.replicas else LocalScorer(run)
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
    from raynas.heartbeat import heartbeat
    from raynas.outer.trials import run_trials
    from raynas.preset import parse_overrides

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
        )
    print(f"{'lowest E-T error':>16}  {'space':<40} tried")
    for trial in found:
        space = f"{trial.run.name}/spaces/{trial.best.index}.yaml"
        tried = ", ".join(f"{key}={value}" for key, value in trial.values.items())
        print(f"{trial.best.quality.error:>16.2%}  {space:<40} {tried or '-'}")
    folder = f"{found[0].run.name}/iterations/{found[0].best.index}"
    print(f"Next: raynas search {shlex.quote(folder)}")


def evaluate(options: argparse.Namespace) -> None:
    """Measure finished networks on the test split."""
    from raynas.evaluate import evaluate as evaluate_networks
    from raynas.evaluate import networks_to_evaluate
    from raynas.heartbeat import heartbeat
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
    from raynas.console import retrained_lines
    from raynas.heartbeat import heartbeat
    from raynas.networks import find_arch, find_trained
    from raynas.results import RunDir
    from raynas.retrain import finetune_resized
    from raynas.retrain import retrain as retrain_networks

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
    if finetune is not None and start != "trained":
        print(f"The preset then fine-tunes at another image size: raynas retrain {name} --from trained")
    print(f"Next: raynas evaluate {name}")


def import_(options: argparse.Namespace) -> None:
    """Read released weights."""
    from raynas.importing import import_supernet

    preset = _preset(options.preset, options) if options.preset else None
    run_dir = _run_to_make(options.run)
    given = (options.system, options.checkpoint, run_dir, options.data, options.space, preset, options.weights)
    run = import_supernet(*given)
    verb = "evaluate" if run.exists("best/arch.yaml") else "search"
    print(f"Imported into {run.name}. Next: raynas {verb} {shlex.quote(run.name)}")


def export(options: argparse.Namespace) -> None:
    """Write a network as plain files."""
    from raynas.export import choose, export_into_run
    from raynas.export import export as export_network
    from raynas.heartbeat import heartbeat
    from raynas.networks import Network, find_arch, trained_networks
    from raynas.results import RunDir

    run = RunDir(options.run)
    arch = find_arch(run, options.arch)
    if options.inherited and options.size:
        raise UserError("inherited weights are for the run's image size: leave out --inherited, or --size")
    size = (options.size, options.size) if options.size else None
    network = Network(arch, "inherited") if options.inherited else choose(trained_networks(run), arch, size)
    print(f"Exporting {network.name} ({network.path or 'weights inherited from the supernet'})")
    with heartbeat("exporting"):
        if options.to is None:
            export_into_run(run, network, options.onnx)
        else:
            export_network(run, network, options.to, options.onnx)


def report(options: argparse.Namespace) -> None:
    """Write the HTML page."""
    from raynas.reports import write_report
    from raynas.results import RunDir
    from raynas.traces import traces

    run = RunDir(options.run)
    print(write_report(run, traces(run)))


def bench_forward(options: argparse.Namespace) -> None:
    """Time forward passes."""
    from raynas.bench.forward import bench_forward as time_networks
    from raynas.results import RunDir

    run = None if options.run is None else RunDir(options.run)
    timings = time_networks(options.names, options.batch_size, options.rounds, options.threads, run)
    print(f"{'network':<40}{'MACs':>16}{'median ms':>12}{'quartiles ms':>20}{'images/s':>12}")
    for timing in timings:
        low, high = (f"{1000 * value:.2f}" for value in timing.quartiles)
        rate = timing.batch_size / timing.median
        print(f"{timing.name:<40}{timing.macs:>16,}{1000 * timing.median:>12.2f}{f'{low} to {high}':>20}{rate:>12,.1f}")


def bench_latency(options: argparse.Namespace) -> None:
    """Time subnets as a search by latency does."""
    from raynas.config import Document, validate
    from raynas.costs.latency import Conditions
    from raynas.heartbeat import heartbeat
    from raynas.networks import find_arch
    from raynas.results import RunDir
    from raynas.space import load_arch
    from raynas.timing.measure import time_archs
    from raynas.timing.rows import on_of

    run = None if options.run is None else RunDir(options.run)
    given = {name: getattr(options, name) for name in Conditions.model_fields}
    conditions = validate(Conditions, Document(given, "raynas bench latency"))
    archs = [load_arch(name) if run is None else find_arch(run, name) for name in options.archs]
    with heartbeat("timing"):
        rows = time_archs(run, archs, conditions, options.resources)
    print(f"on {on_of(rows[0])}")
    print(f"{'subnet':<40}{'MACs':>16}{'median ms':>12}{'quartiles ms':>20}{'images/s':>12}{'passes':>8}")
    for name, row in zip(options.archs, rows, strict=True):
        if row["status"] == "ok":
            spread = f"{row['ms_q1']:.3f} to {row['ms_q3']:.3f}"
            rest = f"{row['ms']:>12.3f}{spread:>20}{row['images_per_s']:>12,.1f}{row['passes']:>8}"
        else:
            rest = f"  {row['reason']}"
        print(f"{name:<40}{row['macs']:>16,}{rest}")


def bench_mixed(options: argparse.Namespace) -> None:
    """Time mixed batches."""
    from raynas.bench.mixed import bench_mixed as measure

    timings = measure(
        options.space,
        options.archs,
        options.batch_size,
        options.rounds,
        options.threads,
        options.device,
        progress=print,
    )
    print(f"{'forward and backward':<24}{'median ms':>12}{'to largest':>12}{'to mean':>12}")
    for this in timings:
        chosen = "  <- chosen" if this.chosen else ""
        print(f"{this.name:<24}{1000 * this.seconds:>12.1f}{this.to_largest:>12.3f}{this.to_mean:>12.3f}{chosen}")


def bench_search(options: argparse.Namespace) -> None:
    """Compare search algorithms on a space whose every subnet has been scored."""
    from raynas.bench.search import bench_search as measure
    from raynas.statistics import mean_interval

    if options.figure:
        _check_figure(Path(options.figure))
    found = measure(options.macs, options.evaluations, options.seeds, progress=print)
    places = [n for n in (50, 100, 200, 400, 800, 1600) if n <= found[0].regret.shape[1]]
    print("accuracy below the best there is, mean over seeds and 95 % interval, after so many subnets")
    print(f"{'':<20}" + "".join(f"{n:>20}" for n in places))
    for this in found:
        spreads = [mean_interval((100 * this.regret[:, n - 1]).tolist()) for n in places]
        cells = [f"{mean:.2f}" if half is None else f"{mean:.2f} ± {half:.2f}" for mean, half in spreads]
        print(f"{this.name:<20}" + "".join(f"{cell:>20}" for cell in cells))
    if options.figure:
        from raynas.reports.figures import regret

        regret({this.name: this.regret for this in found}).savefig(options.figure, dpi=160)
        print(f"Figure: {options.figure}")


def bench_score(options: argparse.Namespace) -> None:
    """Compare a scoring pool with what arithmetic alone allows."""
    from raynas.bench.score import bench_score as measure
    from raynas.heartbeat import heartbeat

    with heartbeat("scoring"):
        found = measure(options.run, replicas=options.replicas, archs=options.archs, progress=print)
    for name, value in found.items():
        print(f"{name:<28}{value:>16,.4g}" if isinstance(value, float) else f"{name:<28}{value!s:>16}")


def bench_step(options: argparse.Namespace) -> None:
    """Compare training steps."""
    from raynas.bench.step import bench_step as time_steps

    timings = time_steps(options.rounds, options.batch_size, options.threads, print)
    print(f"{'network':<28}{'median ms':>12}{'ratio':>8}")
    for timing in timings:
        print(f"{timing.name:<28}{1000 * timing.seconds:>12.1f}{timing.ratio:>8.3f}")


def bench_window(options: argparse.Namespace) -> None:
    """Time random archs within narrow windows."""
    from raynas.bench.window import bench_window as time_windows

    timings = time_windows(options.space, options.cost, options.shares, options.draws, options.uniform_over)
    columns = ("holds", "set-up s", "accepted", "ms/arch", "rejection")
    print(f"{options.cost + ' window':<34}" + "".join(f"{column:>10}" for column in columns))
    for this in timings:
        window = f"[{this.low:.0f}, {this.high:.0f}]"
        times = f"{1000 * this.each:>10.3f}{1000 * this.rejection:>10.3g}" if this.held else f"{'empty':>10}"
        print(f"{window:<34}{this.held:>10.2g}{this.setup:>10.3f}{this.accepted:>10.1%}{times}")


def cost(options: argparse.Namespace) -> None:
    """Print MACs and parameters."""
    from raynas.console import cost_table

    print(cost_table(options.name))


def _run_to_make(given: str) -> str:
    """A run directory, or where to make one: not inside another one, whose files it would mix with."""
    from raynas.results.run_dir import run_around

    around = None if "://" in given else run_around(given)
    if around not in (None, Path(given).resolve()):
        raise UserError(f"{given} lies in the run directory {around}: give a folder elsewhere")
    return given


def _check_figure(path: Path) -> None:
    """Refuse what a figure cannot be written to before there is anything to draw."""
    from matplotlib.figure import Figure

    if not path.absolute().parent.is_dir():
        raise UserError(f"{path}: there is no such folder")
    kinds = Figure().canvas.get_supported_filetypes()
    if path.is_dir() or path.suffix.lower().removeprefix(".") not in kinds:
        raise UserError(f"{path}: give a file that ends in .png, .svg or .pdf")


def _preset(source: Any, options: argparse.Namespace) -> Preset:
    """A preset by name or file, or a run's own, with what the command line changes."""
    from raynas.config import Document, validate
    from raynas.preset import Preset, load_preset, override, parse_overrides
    from raynas.results import RunDir

    changes = parse_overrides(options.changes)
    if getattr(options, "data", None) is not None:
        changes = {"data": {"name": options.data}, **changes}
    if not isinstance(source, RunDir):
        return load_preset(source, changes)
    if not source.exists("preset.yaml"):
        raise UserError(f"{source.name} has no preset.yaml: train a supernet first (raynas train, or raynas import)")
    return override(validate(Preset, Document(source.read_yaml("preset.yaml"), f"{source.name}/preset.yaml")), changes)
