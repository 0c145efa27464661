"""The `raynas` command: its table of commands, exit codes and signals; each command is a module of this package."""

from __future__ import annotations

import argparse
import atexit
import gc
import logging
import os
import re
import select
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from raynas.commands.parser import Parser
from raynas.errors import ClusterError, UserError
from raynas.locations import hide_secrets, refuse_credentials
from raynas.text import is_text, one_line, shown

FAILED, USER_ERROR, INTERRUPTED, TERMINATED = 1, 2, 130, 143
LONGEST_MESSAGE = 2000  # characters

COMMANDS = {
    "demo": "run everything once on a small dataset, in a few minutes on two CPUs",
    "pipeline": "run a whole preset: train, search, retrain, evaluate, export, report",
    "adapt": "adapt a trained model: find the best smaller network in it for a budget, on your images",
    "check": "look at data, a preset and a cluster before hours are spent: what is there, what is missing",
    "train": "train a supernet",
    "search": "score subnets and find the best within a budget",
    "rank": "measure how well inherited weights rank subnets",
    "evolve-space": "search the search space: measure it with a supernet, change its choices, repeat (S3)",
    "ablate": "compare rows of changes to a preset over several seeds: the table of an ablation, with intervals",
    "tune": "tune a preset: let Optuna choose settings of training, search and space",
    "evaluate": "measure finished networks on the test split",
    "retrain": "train found networks on their own",
    "import": "read a released supernet or a timm model into a run directory",
    "export": "write a network as plain files",
    "watch": "show how far a run is, from any machine",
    "report": "write one HTML page about a run, or about all trials of an experiment",
    "runs": "list the run directories in a folder, with their state and best result",
    "compare": "compare runs side by side: their results, and the settings in which they differ",
    "bench": "measure speed on this machine, or a backbone in segmentation and detection",
    "cost": "print MACs and parameters of a space or an arch",
}
"""Each command with its line in the help; `evolve-space` is the module `raynas.commands.evolve_space`."""

_STORE_NOTHING = ("check", "watch", "report", "runs", "compare", "cost", "bench")
"""Commands that begin anew when they are given again."""

_EPILOG = """\
typical use:
  raynas demo                                   run everything on a small dataset, in a few minutes
  raynas check --data /data/imagenet            look at the images first
  raynas train autoformer/preset --run runs/a --data /data/imagenet
  raynas search runs/a                          score subnets and find the best within the budget
  raynas retrain runs/a                         train the winner on its own
  raynas evaluate runs/a                        measure the winner on the test split
  raynas export runs/a --to my_network          write plain files: weights, ONNX, torch.export
  raynas report runs/a                          write one HTML page about all of it
  raynas pipeline digits --run runs/b           all of these, one after the other

Every command can be stopped at any time; the same command continues where it stopped.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line.

    Returns:
        The exit code: 0, 1 if Ray or the reader of the output was lost, 2 for a user's mistake (told in one line), 130
        if interrupted (Ctrl-C), 143 if terminated (SIGTERM).
    """
    argv = list(sys.argv[1:] if arguments is None else arguments)
    # Ray would print a C++ stack when a command is terminated (SIGTERM). It reads this when it is imported, and workers
    # of a local Ray inherit it; if one of those crashes, Python's own stack is still in Ray's logs.
    os.environ.setdefault("RAY_DISABLE_FAILURE_SIGNAL_HANDLER", "1")
    # At the end Python would look for garbage among all objects of PyTorch, for more than a second.
    atexit.register(gc.freeze)
    interruption = _Interruption()
    try:
        with _warnings(), interruption.by_sigterm():
            check_arguments(argv)
            options = make_parser().parse_args(argv)
            options.action(options)
            sys.stdout.flush()
            return 0
    except UserError as error:
        cause = getattr(error, "cause", None)  # a Ray task's error carries the task's whole traceback as its text
        for line in (cause if isinstance(cause, UserError) else error).lines:
            print(f"raynas: {told(line)}", file=sys.stderr)
        return USER_ERROR
    except ClusterError as error:
        from raynas.cluster.lost_ray import was_lost

        print(f"raynas: {told(error)}{_how_to_go_on(argv)}", file=sys.stderr)
        if was_lost():
            sys.stdout.flush()
            os._exit(FAILED)
        return FAILED
    except BrokenPipeError:
        if not _reader_is_gone():
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python writes to it once more at its end
        return FAILED
    except (KeyboardInterrupt, SystemExit) as error:
        if isinstance(error, SystemExit) and error.code != signal.SIGTERM:  # Ray's handler exits so while Ray starts
            raise
        print(f"\nraynas: stopped{_how_to_go_on(argv)}", file=sys.stderr)
        return TERMINATED if isinstance(error, SystemExit) else interruption.code


def told(error: Exception | str) -> str:
    """Return the message of an error as a command tells it: one line, without credentials."""
    return one_line(hide_secrets(str(error)), LONGEST_MESSAGE)


def _how_to_go_on(argv: Sequence[str]) -> str:
    """Return the end of a message about a command that has ended early; empty if there is nothing to go on with."""
    stores = (argv[:1] and argv[0] not in _STORE_NOTHING) or argv[1:2] in (["segment"], ["detect"])
    return f". To go on where it was: raynas {shlex.join(argv)}" if stores else ""


class _Line(logging.Formatter):
    """Format a warning as the command's errors are: in one line, without credentials."""

    def format(self, record: logging.LogRecord) -> str:
        return f"raynas: {hide_secrets(one_line(record.getMessage(), LONGEST_MESSAGE))}"


@contextmanager
def _warnings() -> Iterator[None]:
    """Write the warnings of raynas to standard error during the block."""
    handler, logger = logging.StreamHandler(), logging.getLogger("raynas")
    handler.setFormatter(_Line())
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def make_parser() -> Parser:
    """Return the parser of all commands; the module of a command is imported once the command is chosen."""
    parser = Parser(
        prog="raynas",
        description="Find the best vision transformer for a budget: train one supernet, score its subnets, search.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    text, none = "show the version and exit", argparse.SUPPRESS  # which makes it no option of the commands
    parser.add_argument("--version", action=_Version, nargs=0, help=text, dest=none, default=none)
    parser.add_commands("commands", "COMMAND", "raynas.commands", COMMANDS)
    return parser


class _Version(argparse.Action):
    """An option that prints the version, which is looked up only then."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from raynas.results.versions import versions

        print(f"raynas {versions()['raynas']}")
        parser.exit()


def check_arguments(argv: Sequence[str]) -> None:
    """Refuse what no command takes, before anything repeats or stores it.

    An empty argument is refused because as a path it would mean the current directory, and as data the preset's.

    Raises:
        UserError: an argument is not text, holds credentials in a URI, or is empty.
    """
    for index, argument in enumerate(argv):
        before = argv[index - 1] if index else ""
        if not is_text(argument):
            raise UserError(f"an argument is no text (a NUL character, or bytes that are not UTF-8): {shown(argument)}")
        option = argument.partition("=")[0] if argument.startswith("-") else before if before.startswith("--") else ""
        where = option if re.fullmatch("--?[a-z-]+", option) else f"after {shown(before)}" if index else "1"
        refuse_credentials(argument, f"argument {where}")
        if not argument or re.fullmatch(r"--[a-z]+=", argument):
            after = argument.rstrip("=") or f"after {before}" if index else "the command"
            raise UserError(f"an argument is empty: {after} (a variable that is not set?)")


def _reader_is_gone() -> bool:
    """Return True if what reads the output, such as `head`, has ended."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


class _Interruption:
    """Exit code of an interrupted command.

    SIGTERM interrupts a command as Ctrl-C does. The code is kept here and not in an exception of our own because Ray
    turns whatever interrupts its waiting into a plain KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self.code = INTERRUPTED

    @contextmanager
    def by_sigterm(self) -> Iterator[None]:
        """Let SIGTERM interrupt the block; outside the main thread, which cannot set signal handlers, do nothing."""
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


if __name__ == "__main__":
    sys.exit(main())
