"""All models of a server.

Example:
    With versions of a model below `exported_models`,

        config = ModelConfig(name="ads", base_path="exported_models")
        models = ModelManager((config,), Loading(), CallPool(max_calls=4))
        models.start()
        with models.use("ads") as version:
            print(version.number)
        models.stop()
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping

from monolith.serving.server import status
from monolith.serving.server.call_pool import CallPool
from monolith.serving.server.config import Batching, Loading, ModelConfig, check_models
from monolith.serving.server.metrics import ServerMetrics
from monolith.serving.server.model import Model
from monolith.serving.server.served import ServedVersion

logger = logging.getLogger(__name__)

_MAX_LISTED = 10


class ModelManager:
    """The models of a server. Thread-safe.

    Args:
        models: What to serve.
        loading: How versions are found and loaded.
        pool: Runs the models.
        batching: How requests are merged; None: each is run alone.
        metrics: Takes what is counted.
        max_request_bytes: How large a request to warm up with may be.
        on_change: Called, from any thread, after what is available has changed.
        allow_writes: Whether clients may call functions that change tables.
    """

    def __init__(
        self,
        models: tuple[ModelConfig, ...],
        loading: Loading,
        pool: CallPool,
        batching: Batching | None = None,
        metrics: ServerMetrics | None = None,
        max_request_bytes: int = 1 << 31,
        on_change: Callable[[], None] | None = None,
        allow_writes: bool = False,
    ) -> None:
        self._configs = models
        self._loading = loading
        self._pool = pool
        self._batching = batching
        self._metrics = metrics or ServerMetrics()
        self._max_request_bytes = max_request_bytes
        self._on_change = on_change
        self._allow_writes = allow_writes
        self._lock = threading.Lock()  # Held while the list of models changes.
        self._models: Mapping[str, Model] = {}

    def start(self) -> None:
        """Begins to load the models."""
        self.set_models(self._configs)

    def stop(self) -> None:
        """Gives all models back; requests must have ended."""
        with self._lock:
            models, self._models = self._models, {}
        for model in models.values():
            model.stop()

    @property
    def models(self) -> Mapping[str, Model]:
        return self._models

    @property
    def is_available(self) -> bool:
        """Whether each model has a version that answers."""
        return all(model.is_available for model in self._models.values())

    def wait_until_looked_at(self, timeout_sec: float | None = None) -> bool:
        """Waits until each model has loaded what was there, or failed to."""
        deadline = None if timeout_sec is None else time.monotonic() + timeout_sec
        for model in self._models.values():
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not model.wait_until_looked_at(left):
                return False
        return True

    def set_models(self, configs: tuple[ModelConfig, ...]) -> None:
        """Serves these models from now on; those that stay are not loaded again.

        Raises:
            errors.ConfigError: Two have one name.
        """
        check_models(configs)
        with self._lock:
            kept: dict[str, Model] = {}
            started = []
            for config in configs:
                model = self._models.get(config.name)
                if model is not None and model.config.base_path == config.base_path:
                    model.reconfigure(config)
                else:
                    model = Model(
                        config,
                        self._loading,
                        self._pool,
                        self._batching,
                        self._metrics,
                        self._max_request_bytes,
                        self._on_change,
                        allow_writes=self._allow_writes,
                    )
                    started.append(model)
                kept[config.name] = model
            removed = [m for m in self._models.values() if m not in kept.values()]
            self._models = kept
        for model in started:
            model.start()
        for model in removed:
            logger.info("model %s is not served any more", model.config.name)
            # Its requests may go on for a while; nobody has to wait for them here.
            threading.Thread(target=model.stop_when_unused, daemon=True).start()
        if self._on_change is not None:
            self._on_change()

    def get(self, name: str) -> Model:
        """Returns a model.

        Raises:
            RequestError: There is none of that name.
        """
        model = self._models.get(name)
        if model is None:
            if not name:
                raise status.invalid("The request names no model.")
            names = sorted(self._models)
            known = ", ".join(map(repr, names[:_MAX_LISTED]))
            more = ", ..." if len(names) > _MAX_LISTED else ""
            raise status.not_found(
                f"There is no model {status.shorten(name)!r}; there is {known or 'none'}{more}."
            )
        return model

    def use(
        self, name: str, number: int | None = None, label: str | None = None
    ) -> contextlib.AbstractContextManager[ServedVersion]:
        """Lends a version of a model; see `Model.use`."""
        return self.get(name).use(number, label)
