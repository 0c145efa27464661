"""The `raynas` command: one thin function for each verb."""

from __future__ import annotations

import argparse
import math
import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

from raynas.config import nearest
from raynas.errors import UserError
from raynas.verbs import (
    bench_forward,
    bench_latency,
    bench_mixed,
    bench_score,
    bench_search,
    bench_step,
    bench_window,
    cost,
    demo,
    evaluate,
    evolve_space,
    export,
    import_,
    pipeline,
    rank,
    report,
    retrain,
    search,
    train,
)

USER_ERROR, INTERRUPTED, TERMINATED = 2, 130, 143

_EPILOG = """\
the usual way:
  raynas demo                                   see all of it on a small dataset, in a few minutes
  raynas train autoformer/preset --run runs/a --data /data/imagenet
  raynas search runs/a                          score subnets, find the best under the preset's budget
  raynas retrain runs/a                         train the winner on its own
  raynas evaluate runs/a                        measure it on the test split
  raynas export runs/a --to my_network          plain files: weights, ONNX, torch.export
  raynas report runs/a                          one HTML page about all of it
  raynas pipeline digits --run runs/b           all of these, one after the other

Every command can be stopped at any time; the same command goes on where it was.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line.

    Returns:
        The exit code: 0, 2 for a user's mistake (one line says which), 130 when interrupted (Ctrl-C), 143 when told to
        end (SIGTERM).
    """
    argv = list(sys.argv[1:] if arguments is None else arguments)
    # A command that is told to end (SIGTERM) has not crashed: without this Ray prints a C++ stack. Ray reads it when it
    # is imported. Workers of a local Ray inherit it; where one crashes, Python's own stack is still in Ray's logs.
    os.environ.setdefault("RAY_DISABLE_FAILURE_SIGNAL_HANDLER", "1")
    end = _End()
    try:
        with end.by_sigterm():
            options = _parser().parse_args(_all_given(argv))
            return options.verb(options) or 0
    except UserError as error:
        cause = getattr(error, "cause", None)  # a Ray task's error carries the task's whole traceback as its text
        message = str(cause if isinstance(cause, UserError) else error)
        print(f"raynas: {' '.join(message.split())}", file=sys.stderr)
        return USER_ERROR
    except (KeyboardInterrupt, SystemExit) as error:
        if isinstance(error, SystemExit) and error.code != signal.SIGTERM:  # as Ray's handler ends, while Ray starts
            raise
        print(f"\nraynas: stopped. To go on where it was: raynas {shlex.join(argv)}", file=sys.stderr)
        return TERMINATED if isinstance(error, SystemExit) else end.code


class _End:
    """How a command ended that did not end by itself.

    SIGTERM interrupts a command as Ctrl-C does. The code is kept here and not in an exception of our own, since Ray
    makes a plain KeyboardInterrupt of whatever interrupts its waiting.
    """

    def __init__(self) -> None:
        self.code = INTERRUPTED

    @contextmanager
    def by_sigterm(self) -> Iterator[None]:
        """Inside the block SIGTERM interrupts; signals are a matter of the main thread, elsewhere nothing changes."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGTERM, self._interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self.code = TERMINATED
        raise KeyboardInterrupt


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

    this = _verb(
        verbs,
        "pipeline",
        pipeline,
        "carry out a whole procedure: train, search, retrain, evaluate, export, report",
        "raynas pipeline autoformer --data /data/imagenet --run runs/a --workers 8 --replicas 8 --gpu",
    )
    _procedure(this)
    this.add_argument("--replicas", type=int, default=2, metavar="N", help="scorers as Ray actors; 0: without Ray")
    this.add_argument("--gpu", action="store_true", help="one GPU for each worker and each replica")

    this = _verb(verbs, "train", train, "train a supernet", "raynas train digits --run runs/a --set recipe.epochs=3")
    _procedure(this)
    this.add_argument("--gpu", action="store_true", help="one GPU for each worker")

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
    this.add_argument("--seeds", type=_positive, metavar="N", help="trainings of each (default: 1)")
    text = "trainings at a time; 1: without Ray (default: all CPUs; with --replicas 0: 1)"
    this.add_argument("--parallel", type=_positive, metavar="N", help=text)
    this.add_argument("--replicas", type=int, default=2, metavar="N", help="scorers as Ray actors; 0: without Ray")
    this.add_argument("--gpu", action="store_true", help="one GPU for each replica")
    _set(this)

    this = _verb(
        verbs,
        "evolve-space",
        evolve_space,
        "search the search space: measure it by a supernet, move its choices, again and again (S3)",
        "raynas evolve-space digits/preset_evolution --run runs/e\n"
        "  raynas evolve-space digits/preset_evolution --run runs/f --try space_evolution.tau=[0.2,0.4]",
    )
    this.add_argument("preset", help="a shipped preset, or a YAML file; its space is the initial one")
    this.add_argument("--run", required=True, metavar="DIR", help="run directory: a path, or a URI such as s3://...")
    _data(this)
    text = "values of the preset to try side by side, as a list; repeatable: all combinations"
    this.add_argument("--try", dest="values", action="append", default=[], metavar="KEY=[...]", help=text)
    text = "let Optuna suggest N of the combinations, one after the other (default: all of them)"
    this.add_argument("--trials", type=_positive, metavar="N", help=text)
    text = "trials side by side (default: as many as there is room for)"
    this.add_argument("--at-a-time", type=_positive, metavar="N", help=text)
    this.add_argument("--workers", type=_positive, default=1, metavar="N", help="Ray Train workers (default: 1)")
    this.add_argument("--replicas", type=int, default=2, metavar="N", help="scorers as Ray actors; 0: in the trial")
    this.add_argument("--gpu", action="store_true", help="one GPU for each worker and each replica")
    _set(this)

    this = _verb(verbs, "evaluate", evaluate, "measure finished networks on the test split", "raynas evaluate runs/a")
    _run(this)
    more = "; front or NAME/front: all of a search's front (default: the winner and every retrained network)"
    _arch(this, default=None, more=more)
    this.add_argument("--again", action="store_true", help="measure even what has been measured")

    this = _verb(
        verbs, "retrain", retrain, "train found networks on their own", "raynas retrain runs/a --seeds 3 --arch best"
    )
    _run(this)
    this.add_argument("--arch", action="append", metavar="ARCH", help="best, reference, an id or a file; repeatable")
    text = "; trained: fine-tune, at another image size, what was retrained"
    choices = ["scratch", "inherited", "trained"]
    this.add_argument("--from", dest="start", choices=choices, help=f"default: as the preset says{text}")
    text = "height and width of the images (default: the run's; --from trained: as the preset says)"
    this.add_argument("--size", type=_positive, metavar="PIXELS", help=text)
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
    this.add_argument("system", help="whose it is: autoformer, vit-resnas, nasvit, s3 or timm")
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
    text = "image size of the retrained network (default: the run's)"
    this.add_argument("--size", type=_positive, metavar="PIXELS", help=text)
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
    this = _verb(
        kinds,
        "mixed",
        bench_mixed,
        "time batches that several subnets share, by masks and by groups",
        "raynas bench mixed vit_resnas/tiny --archs 4 --batch-size 32 --device cuda",
    )
    this.add_argument("space", help="a shipped space, or a YAML file")
    this.add_argument("--archs", type=_positive, default=8, metavar="N", help="subnets that share it (default: 8)")
    this.add_argument("--batch-size", type=_positive, default=64, metavar="N", help="images (default: 64)")
    this.add_argument("--rounds", type=_positive, default=5, metavar="N", help="timed passes of each (default: 5)")
    this.add_argument("--threads", type=_positive, default=1, metavar="N", help="of torch (default: 1)")
    this.add_argument("--device", default="cpu", help="cpu, cuda or cuda:1 (default: %(default)s)")
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


def _procedure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("preset", help="a shipped preset (digits, autoformer) or a YAML file")
    parser.add_argument("--run", required=True, metavar="DIR", help="run directory: a path, or a URI such as s3://...")
    _data(parser)
    parser.add_argument("--workers", type=_positive, default=1, metavar="N", help="Ray Train workers (default: 1)")
    _set(parser)


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
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number above 0, not {text!r}")
    return value


def _name(text: str) -> str:
    if not text.replace("-", "").replace("_", "").isalnum():
        raise argparse.ArgumentTypeError(f"must be of letters, digits, - and _, not {text!r}")
    return text


if __name__ == "__main__":
    sys.exit(main())
