"""The `monolith` command and its subcommands.

TensorFlow takes seconds to import, so subcommands import what they need when they run, and
`monolith --help` answers at once.

Example:
    >>> from typer.testing import CliRunner
    >>> CliRunner().invoke(app, ["--version"]).output.split()[0]
    'monolith'
"""

import os
import pathlib
import sys
from typing import Annotated

import typer

from monolith import version
from monolith.cli import control, demo, demo_online, row, run, serve, status, train

app = typer.Typer(
    name="monolith",
    help="Train and serve recommendation models whose vocabulary never stops growing.",
    no_args_is_help=True,
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
app.add_typer(demo.app, name="demo")
demo.app.command("online")(demo_online.online)
app.command("row", context_settings=row.CONTEXT)(row.row)
app.command("run", context_settings=run.CONTEXT)(run.run)
app.command("serve")(serve.serve)
app.command("status")(status.status)
app.command("train")(train.train)


def main() -> None:
    """Runs the command; the entry point of the package."""
    # What TensorFlow tells about its own start is not what an operator has asked for.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        app()
    finally:
        if "--install-completion" in sys.argv:
            _answer_the_first_tab_in_zsh()


def _answer_the_first_tab_in_zsh() -> None:
    """Adds a call to the file that typer writes for zsh.

    zsh loads the file when it first asks for completions, and takes what that call returns for the
    answer. Without it the file registers a function for the next TAB, and the first does nothing.
    """
    path = pathlib.Path.home() / ".zfunc" / "_monolith"
    call = '_monolith_completion "$@"'
    if path.exists() and call not in path.read_text():
        with path.open("a") as file:
            file.write(f"\n{call}\n")


if __name__ == "__main__":
    main()
