"""The `monolith` command and its subcommands.

TensorFlow takes seconds to import, so subcommands import what they need when they run, and
`monolith --help` answers at once.

Example:
    >>> from typer.testing import CliRunner
    >>> CliRunner().invoke(app, ["--version"]).output.split()[0]
    'monolith'
"""

import os
from typing import Annotated

import typer

from monolith import version
from monolith.cli import control, demo

app = typer.Typer(
    name="monolith",
    help="Train and serve recommendation models whose vocabulary never stops growing.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,  # A local may be a token.
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"monolith {version.__version__}")
        raise typer.Exit


@app.callback()
def _monolith(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Options that stand before a subcommand."""


app.command("control")(control.control)
app.command("demo")(demo.demo)


def main() -> None:
    """Runs the command; the entry point of the package."""
    # What TensorFlow tells about its own start is not what an operator has asked for.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    app()


if __name__ == "__main__":
    main()
