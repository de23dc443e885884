"""`monolith row`: one row of a running job, with its optimizer state."""

from typing import Annotated

import typer

from monolith import errors
from monolith.core import silence

# Ids may be negative, and are no options then.
CONTEXT = {"ignore_unknown_options": True}


def row(
    model_dir: Annotated[str, typer.Argument(help="Model directory of the job.")],
    feature: Annotated[str, typer.Argument(help="Name of the feature.")],
    row_id: Annotated[str, typer.Argument(metavar="ID", help="The id, a whole number.")],
) -> None:
    """Print the row of an id, as the parameter servers of a running job hold it."""
    # TensorFlow takes seconds to import.
    with silence.silenced_stderr():
        from monolith.training.distributed.debugging import DebuggingWorker

    try:
        with DebuggingWorker(model_dir) as worker:
            found = worker.fetch_features([feature], [row_id])
            known = sorted(worker.features)
    except errors.ConfigError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    if feature not in known:
        typer.echo(
            f"error: The job has no feature {feature!r}; it has {', '.join(known)}.", err=True
        )
        raise typer.Exit(1)
    if not found:
        typer.echo(f"error: Feature {feature!r} has no row of id {row_id}.", err=True)
        raise typer.Exit(1)
    typer.echo(found[feature][row_id], nl=False)
