"""The `raynas` command: its options, its exit codes, and what ends it; `raynas.commands.verbs` does the work."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from raynas.cluster.connection import was_lost
from raynas.commands.bench_verbs import add_bench
from raynas.commands.options import (
    Parser,
    add_arch,
    add_data,
    add_procedure,
    add_replicas,
    add_run,
    add_set,
    add_verb,
    add_workers,
    from_0,
    name_of_search,
    positive,
    whole,
)
from raynas.commands.verbs import (
    check,
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
from raynas.config import MOST_SEEDS
from raynas.errors import ClusterError, UserError
from raynas.locations import hide_secrets, refuse_credentials
from raynas.text import is_text, one_line, shown

FAILED, USER_ERROR, INTERRUPTED, TERMINATED = 1, 2, 130, 143
LONGEST_MESSAGE = 2000  # characters

_EPILOG = """\
the usual way:
  raynas demo                                   see all of it on a small dataset, in a few minutes
  raynas check --data /data/imagenet            look at the images first
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
        The exit code: 0, 1 when Ray was lost, 2 for a user's mistake (one line says which), 130 when interrupted
        (Ctrl-C), 143 when told to end (SIGTERM).
    """
    argv = list(sys.argv[1:] if arguments is None else arguments)
    # A command that is told to end (SIGTERM) has not crashed: without this Ray prints a C++ stack. Ray reads it when it
    # is imported. Workers of a local Ray inherit it; where one crashes, Python's own stack is still in Ray's logs.
    os.environ.setdefault("RAY_DISABLE_FAILURE_SIGNAL_HANDLER", "1")
    end = _End()
    try:
        with end.by_sigterm():
            options = _parser().parse_args(_checked(argv))
            return options.verb(options) or 0
    except UserError as error:
        cause = getattr(error, "cause", None)  # a Ray task's error carries the task's whole traceback as its text
        message = str(cause if isinstance(cause, UserError) else error)
        print(f"raynas: {hide_secrets(one_line(message, LONGEST_MESSAGE))}", file=sys.stderr)
        return USER_ERROR
    except ClusterError as error:
        message = hide_secrets(one_line(str(error), LONGEST_MESSAGE))
        print(f"raynas: {message}. To go on where it was: raynas {shlex.join(argv)}", file=sys.stderr)
        if was_lost():
            sys.stdout.flush()
            os._exit(FAILED)
        return FAILED
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


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="raynas",
        description="Find the best vision transformer for a budget: train one supernet, score its subnets, search.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    this = add_verb(verbs, "demo", demo, "everything once on a small dataset, in a few minutes on two CPUs")
    this.add_argument("--run", default="runs/demo", metavar="DIR", help="run directory (default: %(default)s)")
    add_workers(this, default=2)
    add_replicas(this)

    this = add_verb(
        verbs,
        "pipeline",
        pipeline,
        "carry out a whole procedure: train, search, retrain, evaluate, export, report",
        "raynas pipeline autoformer --data /data/imagenet --run runs/a --workers 8 --replicas 8 --gpu",
    )
    add_procedure(this)
    add_replicas(this)
    this.add_argument("--gpu", action="store_true", help="one GPU for each worker and each replica")

    this = add_verb(verbs, "train", train, "train a supernet", "raynas train digits --run runs/a --set recipe.epochs=3")
    add_procedure(this)
    this.add_argument("--gpu", action="store_true", help="one GPU for each worker")

    this = add_verb(
        verbs,
        "search",
        search,
        "score subnets and find the best under a budget",
        "raynas search runs/a --set 'search.constraints.macs=[null, 4.5e9]' --replicas 4",
    )
    add_run(this)
    add_replicas(this)
    this.add_argument("--gpu", action="store_true", help="one GPU for each replica")
    this.add_argument("--name", default="search", type=name_of_search, help="of this search, where a run has several")
    this.add_argument("--random", action="store_true", help="random search at the same budget beside it")
    this.add_argument("--images", type=positive, metavar="N", help="score on N images of the search split")
    this.add_argument("--precision", default="fp32", choices=["fp32", "bf16", "fp16"])
    add_set(this)

    this = add_verb(
        verbs,
        "rank",
        rank,
        "say how well inherited weights rank subnets: by MACs, and against networks trained on their own",
        "raynas rank runs/a --archs 2000 --train 50",
    )
    add_run(this)
    this.add_argument("--archs", type=positive, default=2000, metavar="N", help="subnets to score (default: 2000)")
    this.add_argument("--buckets", type=positive, default=8, metavar="N", help="equal ranges of MACs (default: 8)")
    this.add_argument(
        "--truth", metavar="FILE", help="Parquet file of networks trained alone: network, values, accuracy"
    )
    this.add_argument(
        "--train", type=positive, default=0, metavar="N", help="train N of the subnets alone as the truth"
    )
    this.add_argument("--finetune", type=positive, metavar="EPOCHS", help="and fine-tune the same for so many epochs")
    this.add_argument("--seeds", type=whole(1, MOST_SEEDS), metavar="N", help="trainings of each (default: 1)")
    text = "trainings at a time; 1: without Ray (default: all CPUs; with --replicas 0: 1)"
    this.add_argument("--parallel", type=positive, metavar="N", help=text)
    add_replicas(this)
    this.add_argument("--gpu", action="store_true", help="one GPU for each replica")
    add_set(this)

    this = add_verb(
        verbs,
        "check",
        check,
        "look at data before anything is trained: what there is, what cannot be read, how images will be read",
        "raynas check --data /data/flowers\n  raynas check autoformer --data /data/flowers",
    )
    this.add_argument("preset", nargs="?", help="the preset that the data are for: a shipped one, or a YAML file")
    add_data(this)
    add_set(this)

    this = add_verb(
        verbs,
        "evolve-space",
        evolve_space,
        "search the search space: measure it by a supernet, move its choices, again and again (S3)",
        "raynas evolve-space digits/preset_evolution --run runs/e\n"
        "  raynas evolve-space digits/preset_evolution --run runs/f --try space_evolution.tau=[0.2,0.4]",
    )
    this.add_argument("preset", help="a shipped preset, or a YAML file; its space is the initial one")
    this.add_argument("--run", required=True, metavar="DIR", help="run directory: a path, or a URI such as s3://...")
    add_data(this)
    text = "values of the preset to try side by side, as a list; repeatable: all combinations"
    this.add_argument("--try", dest="values", action="append", default=[], metavar="KEY=[...]", help=text)
    text = "let Optuna suggest N of the combinations, one after the other (default: all of them)"
    this.add_argument("--trials", type=positive, metavar="N", help=text)
    text = "trials side by side (default: as many as there is room for)"
    this.add_argument("--at-a-time", type=positive, metavar="N", help=text)
    text = "then carry out the preset's search in every space, for the best subnet of each at the same budget"
    this.add_argument("--search", action="store_true", help=text)
    this.add_argument("--workers", type=positive, default=1, metavar="N", help="Ray Train workers (default: 1)")
    add_replicas(this)
    this.add_argument("--gpu", action="store_true", help="one GPU for each worker and each replica")
    add_set(this)

    this = add_verb(
        verbs, "evaluate", evaluate, "measure finished networks on the test split", "raynas evaluate runs/a"
    )
    add_run(this)
    more = "; front or NAME/front: all of a search's front (default: the winner and every retrained network)"
    add_arch(this, default=None, more=more)
    this.add_argument("--again", action="store_true", help="measure even what has been measured")

    this = add_verb(
        verbs, "retrain", retrain, "train found networks on their own", "raynas retrain runs/a --seeds 3 --arch best"
    )
    add_run(this)
    this.add_argument("--arch", action="append", metavar="ARCH", help="best, reference, an id or a file; repeatable")
    text = "; trained: fine-tune, at another image size, what was retrained"
    choices = ["scratch", "inherited", "trained"]
    this.add_argument("--from", dest="start", choices=choices, help=f"default: as the preset says{text}")
    text = "height and width of the images (default: the run's; --from trained: as the preset says)"
    this.add_argument("--size", type=positive, metavar="PIXELS", help=text)
    this.add_argument("--on", choices=["train", "train+search"], help="images to train on; default: as the preset says")
    this.add_argument("--seeds", type=whole(1, MOST_SEEDS), metavar="N", help="train N times, with seeds 0 to N - 1")
    this.add_argument("--parallel", type=positive, metavar="N", help="at a time; 1: without Ray (default: all CPUs)")
    add_set(this)

    this = add_verb(
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
    add_data(this, required=True)
    add_set(this)

    this = add_verb(verbs, "export", export, "write a network as plain files", "raynas export runs/a --to my_network")
    add_run(this)
    add_arch(this, default="best")
    this.add_argument("--inherited", action="store_true", help="with inherited weights, even if it was retrained")
    text = "image size of the retrained network (default: the run's)"
    this.add_argument("--size", type=positive, metavar="PIXELS", help=text)
    text = "the retrained network of this seed (default: the lowest)"
    this.add_argument("--seed", type=from_0, metavar="SEED", help=text)
    this.add_argument("--to", metavar="DIR", help="folder to write (default: export in the run directory)")
    this.add_argument(
        "--onnx", action=argparse.BooleanOptionalAction, help="ONNX too (default: where raynas[onnx] is installed)"
    )

    this = add_verb(verbs, "report", report, "write one HTML page about a run, or all trials", "raynas report runs/a")
    add_run(this)

    add_bench(verbs)

    this = add_verb(
        verbs, "cost", cost, "print MACs and parameters of a space or an arch", "raynas cost autoformer/tiny"
    )
    this.add_argument("name", help="a shipped space or arch, or a YAML file")
    return parser


def _checked(argv: list[str]) -> list[str]:
    """Refuse what no command takes, before anything repeats or stores it.

    That is an argument that is no text, a credential in a URI, and an empty argument: as a path it would mean the
    current directory, as data the preset's.
    """
    for index, argument in enumerate(argv):
        if not is_text(argument):
            raise UserError(f"an argument is no text (a NUL character, or bytes that are not UTF-8): {shown(argument)}")
        refuse_credentials(argument, f"argument {index + 1}")
        if not argument or re.fullmatch(r"--[a-z]+=", argument):
            after = argument.rstrip("=") or f"after {argv[index - 1]}" if index else "the command"
            raise UserError(f"an argument is empty: {after} (a variable that is not set?)")
    return argv


if __name__ == "__main__":
    sys.exit(main())
