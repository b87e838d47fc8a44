"""The ``tidegate`` command.

A command's module is imported only when that command (or the list of all) is asked for: ``keygen`` need not wait for
the gateway's imports. Faults that a user can mend end with their message and a status, never with a traceback.
"""

from __future__ import annotations

import sys
from importlib import import_module

import typer
from typer.core import TyperCommand, TyperGroup

from tidegate._version import __version__
from tidegate.cli import _hangup
from tidegate.cli._output import hold_descriptors, spare_letters, status_of, tell
from tidegate.core import TidegateError

__all__ = ["app", "main"]

COMMANDS = {
    "serve": "tidegate.cli.serve",
    "demo": "tidegate.cli.demo",
    "init": "tidegate.cli.init",
    "check": "tidegate.cli.check",
    "keygen": "tidegate.cli.keygen",
    "engine": "tidegate.cli.engine",
    "simulate": "tidegate.cli.simulate",
    "replay": "tidegate.cli.replay",
    "tune": "tidegate.cli.tune",
    "mode": "tidegate.cli.mode",
    "top": "tidegate.cli.top",
    "jobs": "tidegate.cli.jobs",
}
"""Command to the module that holds a function of the same name, in the order of ``--help``."""


class _Commands(TyperGroup):
    """Imports a command's module when it is needed."""

    def list_commands(self, ctx: object) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: object, cmd_name: str) -> TyperCommand | TyperGroup | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        found = getattr(import_module(COMMANDS[cmd_name]), cmd_name)
        if isinstance(found, typer.Typer):
            group = typer.main.get_command(found)
            assert isinstance(group, TyperGroup)
            group.name = cmd_name
            return group
        single = typer.Typer(add_completion=False)
        single.command(cmd_name)(found)
        command = typer.main.get_command(single)
        assert isinstance(command, TyperCommand)
        return command


app = typer.Typer(cls=_Commands, add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tidegate {__version__}")
        raise typer.Exit


@app.callback()
def _tidegate(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """LLM traffic scheduler: an OpenAI-compatible gateway that decides what runs, what waits and what is refused."""


def main() -> None:
    """Run the command line."""
    if sys.argv[1:2] == ["serve"]:  # its imports alone take half a second
        _hangup.hold()
    hold_descriptors()
    spare_letters()
    try:
        app(prog_name="tidegate")
    except (TidegateError, OSError) as error:
        tell(error)
        sys.exit(status_of(error))
