"""A parser that imports the module of a command once the command is chosen, so that the others cost nothing.

A command is a module with:

* a docstring: the description that its `--help` shows;
* `EXAMPLES`: command lines for the end of the help, one a line (may be missing);
* `add_arguments(parser)`: declare the options;
* `run(options)`: carry the command out. It imports what it needs itself, so that `--help` and usage errors do not load
  torch.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, NoReturn

from raynas.errors import UserError
from raynas.text import nearest


class Parser(argparse.ArgumentParser):
    """An argument parser that raises `UserError` for a mistake, and can take its options from a command's module."""

    _module: str | None = None

    def add_commands(self, title: str, metavar: str, package: str, summaries: Mapping[str, str]) -> None:
        """Add commands, each a module of a package.

        Args:
            title: heading of their list in the help.
            metavar: stands for any of them in the usage.
            package: holds their modules.
            summaries: their names, with `-` for `_`, and the line about each.
        """
        commands = self.add_subparsers(title=title, metavar=metavar, required=True)
        for name, summary in summaries.items():
            parser: Parser = commands.add_parser(
                name, help=summary, formatter_class=argparse.RawDescriptionHelpFormatter
            )
            module = name.replace("-", "_")
            parser._module = f"{package}.{'import_' if module == 'import' else module}"

    def load(self) -> None:
        """Take description and options from the command's module; the second time do nothing."""
        if self._module is None:
            return
        module: Any = import_module(self._module)
        self._module = None
        self.description = module.__doc__
        if examples := getattr(module, "EXAMPLES", ""):
            self.epilog = "example:\n" + "\n".join(f"  {line}" for line in examples.splitlines())
        module.add_arguments(self)
        if hasattr(module, "run"):  # a group of commands has none of its own
            self.set_defaults(action=module.run)

    def with_commands(self, name: str) -> Iterator[tuple[str, Parser]]:
        """Yield this parser and, those of its commands, each with its command line: `raynas bench step`."""
        self.load()
        yield name, self
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for verb, parser in action.choices.items():
                    yield from parser.with_commands(f"{name} {verb}".strip())

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does, which calls this of the chosen command only."""
        self.load()
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Raise a mistake as every other one: a `UserError`, in one line."""
        if wrong := re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message):
            known = re.findall(r"[\w+-]+", wrong[2])
            message = f"no such choice: {wrong[1]!r}{nearest(wrong[1], known)}"
        raise UserError(f"{message} (see {self.prog} --help)")
