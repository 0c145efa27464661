"""`raynas bench`: its options, and one thin function for each kind of measurement.

Imports stand in the functions, as in `raynas.commands.verbs`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raynas.commands.options import Resource, above_0, add_verb, positive, share
from raynas.errors import ConfigError, UserError

if TYPE_CHECKING:
    from raynas.results import RunDir
    from raynas.space import Arch


def add_bench(verbs: Any) -> None:
    """The command's options."""
    bench = verbs.add_parser(
        "bench", help="measure speed on this machine", description="Measure speed on this machine."
    )
    kinds = bench.add_subparsers(title="what", metavar="WHAT", required=True)
    this = add_verb(
        kinds,
        "forward",
        bench_forward,
        "time forward passes of networks",
        "raynas bench forward autoformer/published/tiny my_network --batch-size 32",
    )
    this.add_argument("names", nargs="+", metavar="NETWORK", help="export folder, arch file or a shipped arch's name")
    this.add_argument("--batch-size", type=positive, default=1, metavar="N", help="images of one pass (default: 1)")
    this.add_argument("--rounds", type=positive, default=30, metavar="N", help="timed passes of each (default: 30)")
    this.add_argument("--threads", type=positive, metavar="N", help="of torch (default: torch's own choice)")
    this.add_argument("--run", metavar="DIR", help="run directory that keeps the timings")
    this = add_verb(
        kinds,
        "latency",
        bench_latency,
        "time subnets alone, one after the other, as a search by latency does",
        "raynas bench latency autoformer/tiny --device cuda --batch-size 64 --dtype fp16",
    )
    text = "arch or space, shipped or a file (of a space its smallest and largest); with --run also best or an id"
    this.add_argument("names", nargs="+", metavar="NAME", help=text)
    this.add_argument("--device", default="cpu", help="cpu, cuda or cuda:1 (default: %(default)s)")
    this.add_argument("--batch-size", type=positive, default=1, metavar="N", help="images of one pass (default: 1)")
    this.add_argument("--dtype", default="fp32", choices=["fp32", "bf16", "fp16"], help="default: %(default)s")
    this.add_argument("--threads", type=positive, default=1, metavar="N", help="of torch (default: 1)")
    this.add_argument("--seconds", type=above_0, default=0.3, metavar="S", help="of each timing (default: 0.3)")
    this.add_argument("--run", metavar="DIR", help="run directory that keeps the timings, and answers from them")
    text = "time in a Ray actor with this, such as GPU=1 or jetson=1; repeatable (default: in this process)"
    this.add_argument("--resource", dest="resources", action=Resource, metavar="NAME=AMOUNT", help=text)
    this = add_verb(
        kinds,
        "mixed",
        bench_mixed,
        "time batches that several subnets share, by masks and by groups",
        "raynas bench mixed vit_resnas/tiny --archs 4 --batch-size 32 --device cuda",
    )
    this.add_argument("space", help="a shipped space, or a YAML file")
    this.add_argument("--archs", type=positive, default=8, metavar="N", help="subnets that share it (default: 8)")
    this.add_argument("--batch-size", type=positive, default=64, metavar="N", help="images (default: 64)")
    this.add_argument("--rounds", type=positive, default=5, metavar="N", help="timed passes of each (default: 5)")
    this.add_argument("--threads", type=positive, default=1, metavar="N", help="of torch (default: 1)")
    this.add_argument("--device", default="cpu", help="cpu, cuda or cuda:1 (default: %(default)s)")
    this = add_verb(
        kinds, "search", bench_search, "compare search algorithms on 4,000 subnets that all have been scored"
    )
    this.add_argument("--macs", type=above_0, default=1e6, metavar="N", help="budget in MACs (default: 1e6)")
    this.add_argument("--evaluations", type=positive, default=400, metavar="N", help="of each (default: 400)")
    this.add_argument("--seeds", type=positive, default=20, metavar="N", help="of each algorithm (default: 20)")
    this.add_argument("--figure", metavar="FILE", help="draw regret against evaluations")
    this = add_verb(kinds, "score", bench_score, "compare a scoring pool with its bare forward passes")
    this.add_argument("--run", metavar="DIR", help="its supernet and images (default: an untrained one on the digits)")
    this.add_argument("--replicas", type=positive, default=2, metavar="N", help="Ray actors (default: 2)")
    this.add_argument("--archs", type=positive, default=200, metavar="N", help="subnets to score (default: 200)")
    this = add_verb(
        kinds, "step", bench_step, "compare training steps of a DeiT-Ti-shaped subnet with timm's deit_tiny"
    )
    this.add_argument("--rounds", type=positive, default=11, metavar="N", help="timed steps of each (default: 11)")
    this.add_argument("--batch-size", type=positive, default=8, metavar="N", help="images of one step (default: 8)")
    this.add_argument("--threads", type=positive, default=1, metavar="N", help="of torch (default: 1)")

    this = add_verb(
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
        type=share,
        default=(1e-2, 1e-3, 1e-4),
        metavar="SHARE",
        help="of all archs, one window above the median for each (default: 0.01 0.001 0.0001)",
    )
    this.add_argument("--draws", type=positive, default=2000, metavar="N", help="from each window (default: 2000)")
    this.add_argument(
        "--uniform-over", choices=("dimensions", "archs"), default="dimensions", help="how archs are drawn"
    )


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
    from raynas.latency.rows import on_of
    from raynas.latency.timing import Conditions
    from raynas.phases.timing import time_archs
    from raynas.progress.heartbeat import heartbeat
    from raynas.results import RunDir

    run = None if options.run is None else RunDir(options.run)
    given = {name: getattr(options, name) for name in Conditions.model_fields}
    conditions = validate(Conditions, Document(given, "raynas bench latency"))
    archs = {label: arch for name in options.names for label, arch in _archs_to_time(run, name).items()}
    with heartbeat("timing"):
        rows = time_archs(run, list(archs.values()), conditions, options.resources)
    print(f"on {on_of(rows[0])}")
    print(f"{'subnet':<40}{'MACs':>16}{'median ms':>12}{'quartiles ms':>20}{'images/s':>12}{'passes':>8}")
    for name, row in zip(archs, rows, strict=True):
        if row["status"] == "ok":
            spread = f"{row['ms_q1']:.3f} to {row['ms_q3']:.3f}"
            rest = f"{row['ms']:>12.3f}{spread:>20}{row['images_per_s']:>12,.1f}{row['passes']:>8}"
        else:
            rest = f"  {row['reason']}"
        print(f"{name:<40}{row['macs']:>16,}{rest}")


def _archs_to_time(run: RunDir | None, name: str) -> dict[str, Arch]:
    """Return the archs of a name by their labels: one arch, or the smallest and the largest of a space."""
    from raynas.runs.networks import find_arch, read_space
    from raynas.space import load_arch, load_space
    from raynas.space.load import describes_arch

    try:
        one = describes_arch(name)
    except ConfigError:  # of a run, or nothing at all: what looks for an arch knows
        one = True
    if one:
        return {name: load_arch(name) if run is None else find_arch(run, name)}
    space = load_space(name)
    if run is not None:
        own = read_space(run)
        space = space.with_input(own.input_size, own.channels, own.classes)
    return {f"{name}, smallest": space.smallest(), f"{name}, largest": space.largest()}


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
    from raynas.intervals import mean_interval

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
    from raynas.progress.heartbeat import heartbeat

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


def _check_figure(path: Path) -> None:
    """Refuse what a figure cannot be written to before there is anything to draw."""
    from matplotlib.figure import Figure

    if not path.absolute().parent.is_dir():
        raise UserError(f"{path}: there is no such folder")
    kinds = Figure().canvas.get_supported_filetypes()
    if path.is_dir() or path.suffix.lower().removeprefix(".") not in kinds:
        raise UserError(f"{path}: give a file that ends in .png, .svg or .pdf")
