"""`monolith serve DIR --name NAME`: answers requests with the newest version of a model in DIR.

The options are groups of `monolith.serving.server.config`; what they mean is in docs/serving.md.
"""

import contextlib
import gc
import logging
import os
import signal
import threading
from typing import TYPE_CHECKING, Annotated, Any

import rich.console
import typer

from monolith.core import silence

if TYPE_CHECKING:
    from monolith.serving.server.config import ModelConfig, ServerConfig
    from monolith.serving.server.server import PredictionServer

logger = logging.getLogger(__name__)

_MEGABYTE = 1 << 20


class _ServeError(Exception):
    """What went wrong, in a sentence for the operator."""


def serve(
    directory: Annotated[
        str | None,
        typer.Argument(
            metavar="DIR",
            help="Directory of all versions of a model, such as MODEL_DIR/exported_models.",
        ),
    ] = None,
    name: Annotated[str, typer.Option(help="What clients call the model.")] = "default",
    models_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Several models in place of DIR: a ModelServerConfig of TensorFlow Serving in "
            "text format. It is read again when it changes.",
        ),
    ] = None,
    port: Annotated[int, typer.Option(help="Port of gRPC; 0 takes a free one.")] = 8500,
    rest_port: Annotated[int, typer.Option(help="Port of REST; 0 takes a free one.")] = 8501,
    no_grpc: Annotated[bool, typer.Option("--no-grpc", help="Do without gRPC.")] = False,
    no_rest: Annotated[bool, typer.Option("--no-rest", help="Do without REST.")] = False,
    host: Annotated[
        str, typer.Option(help="Address to listen on; only this machine can reach the default.")
    ] = "127.0.0.1",
    versions: Annotated[
        str,
        typer.Option(help="Which versions to serve: latest, latest:N, all, or numbers as 3,5."),
    ] = "latest",
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="LABEL=N", help="A name of a version; may be given several times."),
    ] = None,
    batch_rows: Annotated[
        int,
        typer.Option(
            min=0,
            help="Merge requests into calls of the model with up to so many rows; 0: do not. Only "
            "for models whose answer for a row does not depend on other rows.",
        ),
    ] = 0,
    batch_delay_ms: Annotated[
        float, typer.Option(min=0, help="How long a request may be held back so that others join.")
    ] = 2.0,
    batch_parallel: Annotated[
        int | None,
        typer.Option(min=1, help="Merged requests that run at once; by default half the cores."),
    ] = None,
    max_request_mb: Annotated[
        int, typer.Option(min=1, help="Largest request, as sent and in memory.")
    ] = 64,
    max_concurrent: Annotated[
        int, typer.Option(min=1, help="Requests that are answered at once; more are refused.")
    ] = 256,
    client_timeout: Annotated[
        float,
        typer.Option(
            min=0.1, metavar="SECONDS", help="How long a REST client may be idle or slow."
        ),
    ] = 60.0,
    tls_cert: Annotated[
        str | None, typer.Option(metavar="FILE", help="Certificate of the server (PEM).")
    ] = None,
    tls_key: Annotated[
        str | None, typer.Option(metavar="FILE", help="Private key of the server (PEM).")
    ] = None,
    tls_client_ca: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Clients need a certificate of one of these authorities (PEM)."
        ),
    ] = None,
    token_file: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Clients must send one of these tokens, one in a line."),
    ] = None,
    poll: Annotated[
        float, typer.Option(min=0.01, metavar="SECONDS", help="How often to look for versions.")
    ] = 1.0,
    allow_reload: Annotated[
        bool,
        typer.Option("--allow-reload", help="Let clients change which models are served, by gRPC."),
    ] = False,
    allow_writes: Annotated[
        bool,
        typer.Option("--allow-writes", help="Let clients overwrite rows of a model's tables."),
    ] = False,
    grace: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="How long requests may go on after a SIGTERM."),
    ] = 30.0,
    servers: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=ADDRESSES",
            help="Where a part of a model is served, such as ps_0=10.0.0.1:8500,10.0.0.2:8500; may "
            "be given several times.",
        ),
    ] = None,
    discovery: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE",
            help="Where servers of parts announce themselves and find each other: file:DIR or "
            "zk:HOSTS/BZID/NAME.",
        ),
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="The address to announce, if others know it by another one."
        ),
    ] = None,
    replica: Annotated[
        int | None,
        typer.Option(min=0, help="Its number among servers of the same part; by default any."),
    ] = None,
    ps_timeout_ms: Annotated[
        float,
        typer.Option(
            min=0, help="How long a call of a part may take; 0: what the model was exported with."
        ),
    ] = 200.0,
    ps_retries: Annotated[
        int, typer.Option(min=0, help="How often a call of a part that failed is made again.")
    ] = 2,
    ps_hedge_ms: Annotated[
        float,
        typer.Option(
            min=0, help="A call that takes so long is sent to another replica, too; 0: never."
        ),
    ] = 50.0,
    ps_default_row: Annotated[
        float | None,
        typer.Option(
            help="What each number of rows is whose part does not answer; by default requests fail."
        ),
    ] = None,
    ps_token_file: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="The token that servers of parts ask for."),
    ] = None,
    ps_ca: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Call parts over TLS; their authorities are in this file (PEM)."
        ),
    ] = None,
) -> None:
    """Serve a model over gRPC and REST, with the API of TensorFlow Serving.

    New versions are loaded while the old one answers; SIGTERM or Ctrl-C ends it in order.
    """
    console = rich.console.Console(soft_wrap=True, highlight=False)
    messages = rich.console.Console(stderr=True, soft_wrap=True, highlight=False)
    try:
        _check_what(directory, models_file, label)
        with silence.silenced_stderr():
            import tensorflow as tf  # noqa: F401 - it takes seconds, and tells things
        from monolith import errors
        from monolith.cli import serve_parts
        from monolith.serving.remote import RemoteConfig
        from monolith.serving.server import config
        from monolith.serving.server.server import PredictionServer

        _set_up_logging()
        try:
            batching = None
            if batch_rows:
                parallel = {} if batch_parallel is None else {"parallel": batch_parallel}
                batching = config.Batching(
                    max_rows=batch_rows, max_delay_ms=batch_delay_ms, **parallel
                )
            server_config = config.ServerConfig(
                models=_make_models(directory, name, models_file, versions, label),
                host=host,
                port=None if no_grpc else port,
                rest_port=None if no_rest else rest_port,
                batching=batching,
                limits=config.Limits(
                    max_request_bytes=max_request_mb * _MEGABYTE,
                    max_concurrent=max_concurrent,
                    client_timeout_sec=client_timeout,
                ),
                security=config.Security(
                    certificate=tls_cert,
                    key=tls_key,
                    client_authority=tls_client_ca,
                    token_file=token_file,
                ),
                loading=config.Loading(poll_sec=poll),
                allow_reload=allow_reload,
                allow_writes=allow_writes,
                grace_sec=grace,
                servers=serve_parts.find_servers(servers, discovery),
                remote=RemoteConfig(
                    timeout_ms=ps_timeout_ms or None,
                    retries=ps_retries,
                    hedge_ms=ps_hedge_ms or None,
                    default_row=ps_default_row,
                    token_file=ps_token_file,
                    server_authority=ps_ca,
                ),
            )
            server = PredictionServer(server_config)
            announcer = serve_parts.make_announcer(
                server, server_config, discovery, advertise, replica
            )
        except errors.ConfigError as e:
            raise _ServeError(str(e)) from e
    except _ServeError as error:
        messages.print(f"error: {error}", style="red", markup=False)
        raise typer.Exit(1) from error
    _run(server, server_config, models_file, console, announcer)


def _check_what(directory: str | None, models_file: str | None, label: list[str] | None) -> None:
    """Refuses what can be refused before TensorFlow is loaded."""
    if (directory is None) == (models_file is None):
        raise _ServeError("Say what to serve: either DIR or --models-file, and not both.")
    if models_file is not None and label:
        raise _ServeError("Labels of models in a file are in the file, as `version_labels`.")
    if directory is None or "://" in directory:
        return
    if not os.path.isdir(directory):
        raise _ServeError(
            f"There is no directory {directory!r}; give the directory of all versions of a model."
        )
    if os.path.exists(os.path.join(directory, "saved_model.pb")):
        parent = os.path.dirname(os.path.abspath(directory))
        raise _ServeError(
            f"{directory!r} is one version of a model; give the directory of all versions, "
            f"{parent!r}, and choose with --versions."
        )


def _make_models(
    directory: str | None,
    name: str,
    models_file: str | None,
    versions: str,
    label: list[str] | None,
) -> "tuple[ModelConfig, ...]":
    from monolith.serving.server import config

    if models_file is not None:
        return config.read_models(models_file)
    labels = {}
    for text in label or ():
        key, _, number = text.partition("=")
        if not key or not number.isdigit():
            raise _ServeError(f"A label is given as LABEL=N, such as canary=7; got {text!r}.")
        labels[key] = int(number)
    policy = config.parse_policy(versions)
    return (config.ModelConfig(name=name, base_path=directory or "", policy=policy, labels=labels),)


def _run(
    server: "PredictionServer",
    config: "ServerConfig",
    models_file: str | None,
    console: rich.console.Console,
    announcer: contextlib.AbstractContextManager[Any],
) -> None:
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    watch = None if models_file is None else _FileWatch(models_file)
    # What is imported stays; going through it whenever a version goes would stop all requests.
    gc.collect()
    gc.freeze()
    with server, announcer:
        console.print(f"Serving {_describe(server, config)}; Ctrl-C ends it.", markup=False)
        while not stopped.wait(config.loading.poll_sec if watch else None):
            if watch is not None and watch.has_changed():
                _reload(server, watch.path)
        console.print("Stopping: requests that are being answered may go on.", markup=False)


def _describe(server: "PredictionServer", config: "ServerConfig") -> str:
    names = ", ".join(model.name for model in config.models) or "no models yet"
    places = []
    if server.port is not None:
        places.append(f"{config.host}:{server.port} (gRPC)")
    if server.rest_port is not None:
        scheme = "http" if config.security.certificate is None else "https"
        places.append(f"{scheme}://{config.host}:{server.rest_port}/v1/models (REST)")
    return f"{names} at {' and '.join(places)}"


class _FileWatch:
    """Says when a file was changed."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._seen = self._look()

    def has_changed(self) -> bool:
        seen, self._seen = self._seen, self._look()
        return self._seen is not None and self._seen != seen

    def _look(self) -> Any:
        try:
            stat = os.stat(self.path)
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _reload(server: "PredictionServer", path: str) -> None:
    from monolith import errors
    from monolith.serving.server import config

    try:
        server.models.set_models(config.read_models(path))
        logger.info("models are served as %s says now", path)
    except errors.ConfigError as e:
        logger.error("the models stay as they were: %s", e)


def _set_up_logging() -> None:
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    for name in ("tensorflow", "absl"):
        logging.getLogger(name).setLevel(logging.ERROR)
