"""The `raynas` command: one thin function for each verb."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from raynas.config import nearest
from raynas.errors import UserError

if TYPE_CHECKING:
    from raynas.preset import Preset

USER_ERROR, INTERRUPTED = 2, 130

_EPILOG = """\
the usual way:
  raynas demo                                   see all of it on a small dataset, in a few minutes
  raynas train autoformer/preset --run runs/a --data /data/imagenet
  raynas search runs/a                          score subnets, find the best under the preset's budget
  raynas retrain runs/a                         train the winner on its own
  raynas evaluate runs/a                        measure it on the test split
  raynas export runs/a --to my_network          plain files: weights, ONNX, torch.export
  raynas report runs/a                          one HTML page about all of it

Every command can be stopped at any time; the same command goes on where it was.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; the exit code: 0, 2 for a user's mistake (one line says which), 130 when interrupted."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    try:
        options = _parser().parse_args(_all_given(argv))
        return options.verb(options) or 0
    except UserError as error:
        cause = getattr(error, "cause", None)  # a Ray task's error carries the task's whole traceback as its text
        message = str(cause if isinstance(cause, UserError) else error)
        print(f"raynas: {' '.join(message.split())}", file=sys.stderr)
        return USER_ERROR
    except KeyboardInterrupt:
        print(f"\nraynas: stopped. To go on where it was: raynas {shlex.join(argv)}", file=sys.stderr)
        return INTERRUPTED


# -- verbs ---------------------------------------------------------------------------------------------------------


def demo(options: argparse.Namespace) -> None:
    """The whole way on the digits."""
    from raynas.demo import run_demo

    run_demo(options.run)


def train(options: argparse.Namespace) -> None:
    """Train a supernet."""
    from raynas.heartbeat import heartbeat
    from raynas.training import train as train_supernet

    preset = _preset(options.preset, options)
    with heartbeat("training the supernet"):
        run = train_supernet(preset, run_dir=options.run, workers=options.workers, use_gpu=options.gpu)
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
            seeds=range(options.seeds),
            truth=options.truth,
            parallel=options.parallel,
        )
    for line in rank_lines(rows):
        print(line)


def evaluate(options: argparse.Namespace) -> None:
    """Measure finished networks on the test split."""
    from raynas.evaluate import evaluate as evaluate_networks
    from raynas.evaluate import networks_to_evaluate
    from raynas.heartbeat import heartbeat
    from raynas.results import RunDir

    run = RunDir(options.run)
    with heartbeat("evaluating"):
        rows = evaluate_networks(run, networks_to_evaluate(run, options.arch), options.again)
    print(f"{'arch':<14}{'weights':<12}{'seed':>5}{'MACs':>16}{'top-1':>9}{'images':>9}{'reading':>9}")
    for row in rows:
        seed = "" if row["seed"] is None else row["seed"]
        print(
            f"{row['arch']:<14}{row['how']:<12}{seed:>5}{row['macs']:>16,}{row['accuracy']:>9.2%}{row['images']:>9,}"
            f"{row['reading']:>9}"
        )
    count = max(row["reading"] for row in run.store.read("evaluations", ["reading"]).to_pylist())
    print(f"The test split has been read {count} time(s) in this run.")


def retrain(options: argparse.Namespace) -> None:
    """Train found networks on their own."""
    from raynas.console import retrained_lines
    from raynas.heartbeat import heartbeat
    from raynas.networks import find_arch
    from raynas.results import RunDir
    from raynas.retrain import retrain as retrain_networks

    run = RunDir(options.run)
    preset = _preset(run, options)
    start = options.start or preset.retrain.start
    how: Any = "finetuned" if start == "inherited" else "scratch"
    seeds = range(options.seeds) if options.seeds else preset.retrain.seeds
    train_on = options.on or preset.retrain.train_on
    archs = [find_arch(run, name) for name in options.arch or ["best"]]
    with heartbeat("retraining"):
        rows = retrain_networks(run, archs, preset.retrain_recipe, how, list(seeds), train_on, options.parallel)
    for line in retrained_lines(rows):
        print(line)
    print(f"Next: raynas evaluate {shlex.quote(options.run)}")


def import_(options: argparse.Namespace) -> None:
    """Read released weights."""
    from raynas.importing import import_supernet

    preset = _preset(options.preset, options) if options.preset else None
    given = (options.system, options.checkpoint, options.run, options.data, options.space, preset, options.weights)
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
    network = Network(arch, "inherited") if options.inherited else choose(trained_networks(run), arch)
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
    from raynas.searches import traces

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


def bench_search(options: argparse.Namespace) -> None:
    """Compare search algorithms on a space whose every subnet has been scored."""
    from raynas.bench.search import bench_search as measure
    from raynas.statistics import mean_interval

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


# -- the parser ----------------------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as every other mistake is told."""

    def error(self, message: str) -> NoReturn:
        if wrong := re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message):
            known = re.findall(r"[\w+-]+", wrong[2])
            message = f"no such choice: {wrong[1]!r}{nearest(wrong[1], known)}"
        raise UserError(f"{message} (see {self.prog} --help)")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="raynas",
        description="Find the best vision transformer for a budget: train one supernet, score its subnets, search.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    this = _verb(verbs, "demo", demo, "everything once on a small dataset, in a few minutes on two CPUs")
    this.add_argument("--run", default="runs/demo", metavar="DIR", help="run directory (default: %(default)s)")

    this = _verb(verbs, "train", train, "train a supernet", "raynas train digits --run runs/a --set recipe.epochs=3")
    this.add_argument("preset", help="a shipped preset (digits, autoformer) or a YAML file")
    this.add_argument("--run", required=True, metavar="DIR", help="run directory: a path, or a URI such as s3://...")
    _data(this)
    this.add_argument("--workers", type=_positive, default=1, metavar="N", help="Ray Train workers (default: 1)")
    this.add_argument("--gpu", action="store_true", help="one GPU for each worker")
    _set(this)

    this = _verb(
        verbs,
        "search",
        search,
        "score subnets and find the best under a budget",
        "raynas search runs/a --set 'search.constraints.macs=[null, 4.5e9]' --replicas 4",
    )
    _run(this)
    this.add_argument("--replicas", type=int, default=2, metavar="N", help="scorers as Ray actors; 0: without Ray")
    this.add_argument("--gpu", action="store_true", help="one GPU for each replica")
    this.add_argument("--name", default="search", type=_name, help="of this search, where a run has several")
    this.add_argument("--random", action="store_true", help="random search at the same budget beside it")
    this.add_argument("--images", type=_positive, metavar="N", help="score on N images of the search split")
    this.add_argument("--precision", default="fp32", choices=["fp32", "bf16", "fp16"])
    _set(this)

    this = _verb(
        verbs,
        "rank",
        rank,
        "say how well inherited weights rank subnets: by MACs, and against networks trained on their own",
        "raynas rank runs/a --archs 2000 --train 50",
    )
    _run(this)
    this.add_argument("--archs", type=_positive, default=2000, metavar="N", help="subnets to score (default: 2000)")
    this.add_argument("--buckets", type=_positive, default=8, metavar="N", help="equal ranges of MACs (default: 8)")
    this.add_argument(
        "--truth", metavar="FILE", help="Parquet file of networks trained alone: network, values, accuracy"
    )
    this.add_argument(
        "--train", type=_positive, default=0, metavar="N", help="train N of the subnets alone as the truth"
    )
    this.add_argument("--finetune", type=_positive, metavar="EPOCHS", help="and fine-tune the same for so many epochs")
    this.add_argument("--seeds", type=_positive, default=1, metavar="N", help="trainings of each (default: 1)")
    this.add_argument("--parallel", type=_positive, metavar="N", help="trainings at a time; 1: without Ray")
    this.add_argument("--replicas", type=int, default=2, metavar="N", help="scorers as Ray actors; 0: without Ray")
    this.add_argument("--gpu", action="store_true", help="one GPU for each replica")
    _set(this)

    this = _verb(verbs, "evaluate", evaluate, "measure finished networks on the test split", "raynas evaluate runs/a")
    _run(this)
    _arch(this, default=None, more=" (default: the winner and every retrained network)")
    this.add_argument("--again", action="store_true", help="measure even what has been measured")

    this = _verb(
        verbs, "retrain", retrain, "train found networks on their own", "raynas retrain runs/a --seeds 3 --arch best"
    )
    _run(this)
    this.add_argument("--arch", action="append", metavar="ARCH", help="best, reference, an id or a file; repeatable")
    this.add_argument("--from", dest="start", choices=["scratch", "inherited"], help="default: as the preset says")
    this.add_argument("--on", choices=["train", "train+search"], help="images to train on; default: as the preset says")
    this.add_argument("--seeds", type=_positive, metavar="N", help="train N times, with seeds 0 to N - 1")
    this.add_argument("--parallel", type=_positive, metavar="N", help="at a time; 1: without Ray (default: all CPUs)")
    _set(this)

    this = _verb(
        verbs,
        "import",
        import_,
        "read a released supernet, or a model of timm, into a run directory",
        "raynas import autoformer supernet-tiny.pth --run runs/tiny --data /data/imagenet\n"
        "  raynas import timm twins_svt_small --run runs/twins --data /data/imagenet",
    )
    this.add_argument("system", help="whose it is: autoformer or timm")
    this.add_argument("checkpoint", help="the file as released; timm: a model's name, whose weights timm downloads")
    this.add_argument("--weights", metavar="FILE", help="timm: a file of the model's weights instead of a download")
    this.add_argument("--run", required=True, metavar="DIR", help="run directory to make")
    this.add_argument("--space", help="the space that the checkpoint is of (default: told from the checkpoint)")
    this.add_argument("--preset", help="search and retraining for the run (default: the system's own)")
    _data(this, required=True)
    _set(this)

    this = _verb(verbs, "export", export, "write a network as plain files", "raynas export runs/a --to my_network")
    _run(this)
    _arch(this, default="best")
    this.add_argument("--inherited", action="store_true", help="with inherited weights, even if it was retrained")
    this.add_argument("--to", metavar="DIR", help="folder to write (default: export in the run directory)")
    this.add_argument(
        "--onnx", action=argparse.BooleanOptionalAction, help="ONNX too (default: where raynas[onnx] is installed)"
    )

    this = _verb(verbs, "report", report, "write one HTML page about a run", "raynas report runs/a")
    _run(this)

    bench = verbs.add_parser(
        "bench", help="measure speed on this machine", description="Measure speed on this machine."
    )
    kinds = bench.add_subparsers(title="what", metavar="WHAT", required=True)
    this = _verb(
        kinds,
        "forward",
        bench_forward,
        "time forward passes of networks",
        "raynas bench forward autoformer/published/tiny my_network --batch-size 32",
    )
    this.add_argument("names", nargs="+", metavar="NETWORK", help="export folder, arch file or a shipped arch's name")
    this.add_argument("--batch-size", type=_positive, default=1, metavar="N", help="images of one pass (default: 1)")
    this.add_argument("--rounds", type=_positive, default=30, metavar="N", help="timed passes of each (default: 30)")
    this.add_argument("--threads", type=_positive, metavar="N", help="of torch (default: torch's own choice)")
    this.add_argument("--run", metavar="DIR", help="run directory that keeps the timings")
    this = _verb(
        kinds,
        "latency",
        bench_latency,
        "time subnets alone, one after the other, as a search by latency does",
        "raynas bench latency autoformer/published/tiny --device cuda --batch-size 64 --dtype fp16",
    )
    this.add_argument("archs", nargs="+", metavar="ARCH", help="arch file, shipped arch; with --run also best or an id")
    this.add_argument("--device", default="cpu", help="cpu, cuda or cuda:1 (default: %(default)s)")
    this.add_argument("--batch-size", type=_positive, default=1, metavar="N", help="images of one pass (default: 1)")
    this.add_argument("--dtype", default="fp32", choices=["fp32", "bf16", "fp16"], help="default: %(default)s")
    this.add_argument("--threads", type=_positive, default=1, metavar="N", help="of torch (default: 1)")
    this.add_argument("--seconds", type=_above_0, default=0.3, metavar="S", help="of each timing (default: 0.3)")
    this.add_argument("--run", metavar="DIR", help="run directory that keeps the timings, and answers from them")
    text = "time in a Ray actor with this, such as GPU=1 or jetson=1; repeatable (default: in this process)"
    this.add_argument("--resource", dest="resources", action=_Resource, metavar="NAME=AMOUNT", help=text)
    this = _verb(kinds, "search", bench_search, "compare search algorithms on 4,000 subnets that all have been scored")
    this.add_argument("--macs", type=float, default=1e6, metavar="N", help="budget in MACs (default: 1e6)")
    this.add_argument("--evaluations", type=_positive, default=400, metavar="N", help="of each (default: 400)")
    this.add_argument("--seeds", type=_positive, default=20, metavar="N", help="of each algorithm (default: 20)")
    this.add_argument("--figure", metavar="FILE", help="draw regret against evaluations")
    this = _verb(kinds, "score", bench_score, "compare a scoring pool with its bare forward passes")
    this.add_argument("--run", metavar="DIR", help="its supernet and images (default: an untrained one on the digits)")
    this.add_argument("--replicas", type=_positive, default=2, metavar="N", help="Ray actors (default: 2)")
    this.add_argument("--archs", type=_positive, default=200, metavar="N", help="subnets to score (default: 200)")
    this = _verb(kinds, "step", bench_step, "compare training steps of a DeiT-Ti-shaped subnet with timm's deit_tiny")
    this.add_argument("--rounds", type=_positive, default=11, metavar="N", help="timed steps of each (default: 11)")
    this.add_argument("--batch-size", type=_positive, default=8, metavar="N", help="images of one step (default: 8)")
    this.add_argument("--threads", type=_positive, default=1, metavar="N", help="of torch (default: 1)")

    this = _verb(
        kinds,
        "window",
        bench_window,
        "time random archs within narrow windows of a cost",
        "raynas bench window vitas/twins_small --shares 0.001 0.0001",
    )
    this.add_argument("space", help="a shipped space, or a YAML file")
    this.add_argument("--cost", choices=("macs", "params"), default="macs", help="default: macs")
    this.add_argument(
        "--shares",
        nargs="+",
        type=float,
        default=(1e-2, 1e-3, 1e-4),
        metavar="SHARE",
        help="of all archs, one window above the median for each (default: 0.01 0.001 0.0001)",
    )
    this.add_argument("--draws", type=_positive, default=2000, metavar="N", help="from each window (default: 2000)")
    this.add_argument(
        "--uniform-over", choices=("dimensions", "archs"), default="dimensions", help="how archs are drawn"
    )

    this = _verb(verbs, "cost", cost, "print MACs and parameters of a space or an arch", "raynas cost autoformer/tiny")
    this.add_argument("name", help="a shipped space or arch, or a YAML file")
    return parser


def _verb(verbs: Any, name: str, function: Any, summary: str, example: str = "") -> argparse.ArgumentParser:
    parser = verbs.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=f"example:\n  {example}" if example else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(verb=function)
    return parser


def _run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="run directory: a path, or a URI such as s3://bucket/run")


def _data(parser: argparse.ArgumentParser, required: bool = False) -> None:
    text = "digits, mnist5k, a folder of class folders, Parquet files, a URI, or module:function"
    parser.add_argument("--data", required=required, help=text)


def _arch(parser: argparse.ArgumentParser, default: str | None, more: str = "") -> None:
    text = f"best, reference, the id of a scored subnet, or an arch file{more}"
    parser.add_argument("--arch", default=default, help=text)


def _set(parser: argparse.ArgumentParser) -> None:
    text = "change a value of the preset, such as recipe.epochs=3; repeatable"
    parser.add_argument("--set", dest="changes", action="append", default=[], metavar="KEY=VALUE", help=text)


def _all_given(argv: list[str]) -> list[str]:
    """Refuse empty arguments: as a path each would mean the current directory, as data the preset's."""
    for index, argument in enumerate(argv):
        if not argument or re.fullmatch(r"--[a-z]+=", argument):
            after = argument.rstrip("=") or f"after {argv[index - 1]}" if index else "the command"
            raise UserError(f"an argument is empty: {after} (a variable that is not set?)")
    return argv


class _Resource(argparse.Action):
    """Collects NAME=AMOUNT into one mapping."""

    def __call__(self, parser: Any, namespace: Any, value: Any, option: str | None = None) -> None:
        name, _, amount = value.partition("=")
        try:
            setattr(namespace, self.dest, {**(getattr(namespace, self.dest) or {}), name: _above_0(amount)})
        except argparse.ArgumentTypeError:
            raise UserError(f"{option} {value}: give NAME=AMOUNT, such as GPU=1") from None


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return int(text)


def _above_0(text: str) -> float:
    if not re.fullmatch(r"\d*\.?\d+", text, re.ASCII) or float(text) <= 0:
        raise argparse.ArgumentTypeError(f"must be a number above 0, not {text!r}")
    return float(text)


def _name(text: str) -> str:
    if not text.replace("-", "").replace("_", "").isalnum():
        raise argparse.ArgumentTypeError(f"must be of letters, digits, - and _, not {text!r}")
    return text


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


if __name__ == "__main__":
    sys.exit(main())
