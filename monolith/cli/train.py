"""`monolith train MODULE:NAME`: trains on several processes, all of this machine or one of many.

What the options mean is in docs/launching.md.
"""

import logging
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from monolith import errors
from monolith.core import silence

if TYPE_CHECKING:
    from monolith.cluster.local.supervisor import Outcome

_ROLES = ("ps", "worker", "chief")


def train(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:NAME",
            help="A task, an ml.Model, an Estimator, or a function that makes one.",
        ),
    ],
    data: Annotated[
        str | None,
        typer.Option(metavar="[MODULE:]NAME", help="Data of an ml.Model: a function, or a reader."),
    ] = None,
    ps: Annotated[
        int | None, typer.Option(min=0, help="How many parameter servers the job has.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="How many workers, with the chief.")
    ] = None,
    model_dir: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Where checkpoints go; all members share it."),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps to train, of all workers together.")
    ] = None,
    max_steps: Annotated[
        int | None, typer.Option(min=1, help="Step to train to, counted from the first one ever.")
    ] = None,
    epochs: Annotated[
        int, typer.Option(min=1, help="How often the data of an ml.Model is read.")
    ] = 1,
    sync_to: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE",
            help="Send what changes to the servers that announce themselves there, file:DIR or "
            "zk:HOSTS/BZID/NAME, as for `monolith serve --discovery`.",
        ),
    ] = None,
    sync_interval: Annotated[
        float | None,
        typer.Option(min=0.01, metavar="SECONDS", help="How often; by default every 10 seconds."),
    ] = None,
    sync_model: Annotated[
        str | None,
        typer.Option(help="What they call a model that was exported as a whole: 'default'."),
    ] = None,
    sync_dense_interval: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            metavar="SECONDS",
            help="How often they get the variables; by default every 60 seconds.",
        ),
    ] = None,
    sync_timeout: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            metavar="SECONDS",
            help="How long one of them may take to answer a message; by default 3 seconds.",
        ),
    ] = None,
    sync_token_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="The token that they ask for.")
    ] = None,
    sync_ca_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Call them over TLS; their authorities are in this file (PEM)."
        ),
    ] = None,
    transfer_float16: Annotated[
        bool,
        typer.Option(
            "--transfer-float16",
            help="Rows and gradients travel as float16 between workers and servers.",
        ),
    ] = False,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Port on which each member tells its metrics to Prometheus; 0 takes a free one, "
            "which `monolith status` shows.",
        ),
    ] = None,
    metrics_host: Annotated[
        str | None,
        typer.Option(metavar="HOST", help="Address that it is opened on: 127.0.0.1."),
    ] = None,
    controller_host: Annotated[
        str | None,
        typer.Option(
            metavar="HOST",
            help="Address that the controller listens on, for calls with its token: 127.0.0.1.",
        ),
    ] = None,
    max_restarts: Annotated[
        int | None,
        typer.Option(min=0, help="How often members that die are started again, in sum: 10."),
    ] = None,
    grace: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="SECONDS", help="How long members may save after Ctrl-C or SIGTERM: 300."
        ),
    ] = None,
    role: Annotated[
        str | None,
        typer.Option(
            metavar="ps|worker|chief",
            help="Start one member of a job on several machines, and nothing else.",
        ),
    ] = None,
    index: Annotated[
        int | None,
        typer.Option(min=0, help="Which of its role this member is; worker 0 is the chief."),
    ] = None,
    discovery: Annotated[
        str | None,
        typer.Option(
            help="Where the members of such a job meet: file, file:///DIR, zk://HOST:PORT/JOB, "
            "consul, consul://JOB, tf_config."
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(metavar="HOST", help="Address of this machine that such a member listens on."),
    ] = None,
) -> None:
    """Train on several processes: parameter servers, a chief, and workers.

    Without --role, all of them are started on this machine; what dies is started again. Ctrl-C
    saves and ends; the same command goes on from there.
    """
    # As Python does it where a script is: modules of the current directory can be imported.
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    wanted = {
        "target": target,
        "data": data,
        "model_dir": None if model_dir is None else _to_absolute(model_dir),
        "steps": steps,
        "max_steps": max_steps,
        "epochs": epochs,
        "settings": _list_given(
            sync_to=sync_to,
            sync_interval_secs=sync_interval,
            sync_model=sync_model,
            sync_dense_interval_secs=sync_dense_interval,
            sync_timeout_secs=sync_timeout,
            sync_token_file=sync_token_file and os.path.abspath(sync_token_file),
            sync_ca_file=sync_ca_file and os.path.abspath(sync_ca_file),
            transfer_float16=transfer_float16 or None,
            metrics_port=metrics_port,
            metrics_host=metrics_host,
            controller_host=controller_host,
        ),
    }
    try:
        _check(target, steps, max_steps)
        if role is None and discovery is None and index is None and address is None:
            given = _list_given(max_restarts=max_restarts, grace_sec=grace)
            _end(_train_here(wanted, ps, workers, **given))
            return
        if role is None and discovery != "tf_config":
            raise errors.ConfigError(
                "--index, --discovery and --address are for one member of a job; name its --role, "
                "too: ps, worker or chief."
            )
        _refuse_for_member(**{"--max-restarts": max_restarts, "--grace": grace})
        _take_part(wanted, role, index, ps, workers, discovery or "file", address)
    except errors.MonolithError as error:
        _fail(str(error))


def _check(target: str, steps: int | None, max_steps: int | None) -> None:
    """Refuses what can be refused before anything is loaded."""
    module, colon, name = target.partition(":")
    if not colon or not module or not name:
        raise errors.ConfigError(
            "What to train is given as MODULE:NAME, such as jobs.ranking:make_estimator; got "
            f"{target!r}."
        )
    if steps is not None and max_steps is not None:
        raise errors.ConfigError("Give --steps or --max-steps, not both.")


def _refuse_for_member(**options: float | None) -> None:
    """Refuses options of a launcher, which one member of a job does not have."""
    for name, value in options.items():
        if value is not None:
            raise errors.ConfigError(
                f"{name} is for a job that is on this machine as a whole; leave it out for one "
                "member, which its scheduler ends and starts again."
            )


def _list_given(**settings: Any) -> dict[str, Any]:
    """Returns the settings that the command line has given."""
    return {name: value for name, value in settings.items() if value is not None}


def _to_absolute(path: str) -> str:
    return path if "://" in path else os.path.abspath(path)


def _train_here(
    wanted: dict[str, Any],
    ps: int | None,
    workers: int | None,
    max_restarts: int = 10,
    grace_sec: float = 300.0,
) -> "Outcome":
    """Runs a whole job on this machine."""
    from monolith.cluster.local import start, supervisor
    from monolith.cluster.local.display import JobDisplay
    from monolith.core import directories

    if wanted["model_dir"] is not None:
        directories.make_writable("--model-dir", wanted["model_dir"])
    process = start.describe_process(logging.INFO)
    with supervisor.leaving_nothing(), start.open_nursery() as nursery:
        line = _make_line()
        found = start.ask(nursery, process, wanted)
        num_ps = found["num_ps"] or 1 if ps is None else ps
        num_workers = found["num_workers"] if workers is None else workers
        num_members = num_ps + found["num_spare_ps"] + num_workers
        if num_ps == 0:
            raise errors.ConfigError(
                f"--ps is {num_ps}, but the members of a job share what they learn through "
                "parameter servers; give --ps 1 or more."
            )
        port = wanted["settings"].get("metrics_port")
        if port:
            raise errors.ConfigError(
                f"--metrics-port {port} is one port, and the job has {num_members} "
                "members on this machine; give 0, and each takes a free one."
            )
        model_dir = _to_absolute(found["model_dir"])
        directories.make_writable("--model-dir", model_dir)
        outcome = start.run_job(
            num_ps=num_ps,
            num_workers=num_workers,
            num_spare_ps=found["num_spare_ps"],
            model_dir=model_dir,
            process=process,
            target=wanted,
            max_restarts=max_restarts,
            grace_sec=grace_sec,
            display=JobDisplay(sys.stderr, total_steps=wanted["max_steps"], line=line),
            nursery=nursery,
        )
        if outcome.code == 0 and found["only_features"]:
            features = os.path.join(model_dir, "features")
            typer.echo(f"The features of {found['name']} are in {features}; nothing was trained.")
        elif outcome.code == 0:
            typer.echo(f"{found['name']} is trained; its checkpoints are in {model_dir}.")
        return outcome


def _make_line() -> Any:
    """Returns the bottom line of the terminal, None where there is none."""
    if not sys.stderr.isatty():
        return None
    # It comes with TensorFlow, which the members load meanwhile.
    with silence.silenced_stderr():
        from monolith.training.launch import cluster
    return cluster.make_line()


def _take_part(
    wanted: dict[str, Any],
    role: str | None,
    index: int | None,
    ps: int | None,
    workers: int | None,
    discovery: str,
    address: str | None,
) -> None:
    """Runs one member of a job."""
    if role is not None and role not in _ROLES:
        raise errors.ConfigError(f"--role must be ps, worker or chief, got {role!r}.")
    if role == "chief" and index not in (None, 0):
        raise errors.ConfigError(
            f"--role chief is worker 0, but --index is {index}; leave it out, or give --role "
            "worker."
        )
    if role in ("ps", "worker") and index is None:
        raise errors.ConfigError(f"--role {role} needs an --index, from 0.")
    _narrow(address, discovery)
    with silence.silenced_stderr():
        from monolith.training.launch import single
    single.take_part(
        wanted,
        role="worker" if role == "chief" else role,
        index=0 if role == "chief" else index,
        num_ps=ps,
        num_workers=workers,
        where=discovery,
    )


def _narrow(address: str | None, discovery: str) -> None:
    """Starts this process anew so that it listens on one address alone."""
    from monolith.cluster import meeting, narrow, net

    if narrow.get_listen_address() is not None:
        return
    try:
        if address is None and discovery == meeting.TF_CONFIG:
            planned = meeting.read_tf_config().addr
            try:
                environment = narrow.get_environment(planned)
            except errors.ConfigError as error:
                # A name of the scheduler's own, which need not lead to an address of the machine.
                typer.echo(f"warning: {error} This member listens on all interfaces.", err=True)
                return
        else:
            environment = narrow.get_environment(address or net.get_local_ip())
    except OSError as error:
        raise errors.ConfigError(f"This machine has no address: {error}.") from error
    if environment:
        # The library must be there before all others.
        os.execve(
            sys.executable,
            [sys.executable, "-m", "monolith.cli.app", *sys.argv[1:]],
            {**os.environ, **environment},
        )


def _end(outcome: "Outcome") -> None:
    if outcome.received is not None and outcome.code != 0:
        typer.echo(
            f"monolith: {outcome.message} The same command goes on from the last checkpoint.",
            err=True,
        )
        raise typer.Exit(outcome.code)
    if outcome.code != 0:
        _fail(outcome.message)


def _fail(message: str) -> None:
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(1)
