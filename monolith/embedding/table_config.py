"""The settings of an `ml.Table`: checked once, readable, and kept beside its rows in a file.

Example:
    >>> config = TableConfig("users", 8, optimizers.Adagrad(0.1), expire_after_days=30)
    >>> config
    TableConfig(name='users', dim=8, optimizer=Adagrad(learning_rate=0.1, ...), ...)
    >>> TableConfig.from_dict(config.to_dict()) == config
    True
"""

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from typing import Any

from google.protobuf import json_format

from monolith import errors
from monolith.embedding import entry, optimizers
from monolith.optimizer import learning_rate
from monolith.proto import embedding_hash_table_pb2 as proto

MOST_OCCURRENCES = 15  # The filter counts in 4 bits.
MOST_DAYS = 36500

# An expired row leaves memory within so many hours.
_EVICT_EVERY_HOURS = 24

_INITIALIZERS: Mapping[str, Callable[[], entry.Initializer]] = {
    "uniform": entry.RandomUniformInitializer,
    "zeros": entry.ZerosInitializer,
    "ones": lambda: entry.ConstantsInitializer(1.0),
}
_COMPRESSORS: Mapping[str, Callable[[], entry.Compressor]] = {
    "fp32": entry.Fp32Compressor,
    "fp16": entry.Fp16Compressor,
    "fixed_r8": entry.FixedR8Compressor,
    "one_bit": entry.OneBitCompressor,
}


@dataclasses.dataclass(frozen=True)
class TableConfig:
    """What a table is made of.

    Attributes:
        name: What messages and files call the table.
        dim: Width of the rows.
        optimizer: How rows are updated: one such as `ml.Adagrad(0.1)`, or of
            `monolith.embedding.entry`.
        initializer: What a new row starts with: "uniform" draws from -0.05 to 0.05, as
            `keras.layers.Embedding` does, "zeros", "ones", a number for all, or one of
            `monolith.embedding.entry`.
        admit_after: How often an id is seen in batches before the one that gives it a row, at most
            15: with 2 and one occurrence in a batch, the third is the first that it learns from.
            All occurrences in a batch count, and none of them makes the row. Until then it is
            all zeros.
        expire_after_days: Days without an update after which a row is dropped; None keeps it.
        compressor: How a row is stored in an exported model: "fp32", "fp16", "fixed_r8",
            "one_bit", or one of `monolith.embedding.entry`.
        storage: How the values of rows are kept in memory while they train: "float32", "float16"
            or "int8". Updates of the last two are rounded at random, right on average.

    Raises:
        ConfigError: A setting is out of its range.
    """

    name: str
    dim: int
    optimizer: Any
    initializer: Any = "uniform"
    admit_after: int = 0
    expire_after_days: int | None = None
    compressor: Any = "fp32"
    storage: str = "float32"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise errors.ConfigError(f"A table needs a name, got {self.name!r}.")
        self._check_int("dim", 1, None)
        self._check_int("admit_after", 0, MOST_OCCURRENCES)
        if self.expire_after_days is not None:
            self._check_int("expire_after_days", 1, MOST_DAYS)
        if type(self.initializer).__module__.split(".")[0] == "keras":
            object.__setattr__(self, "initializer", to_initializer(self.initializer))
        self.make_proto()  # Refuses the rest, here, where the traceback shows who wrote it.

    @property
    def learning_rate(self) -> optimizers.LearningRate:
        """The learning rate of the rows: a number or a function."""
        return optimizers.row_learning_rate(self.optimizer)

    @property
    def needs_steps(self) -> bool:
        """Whether an update depends on how many came before."""
        segment = self.make_proto().entry_config.segments[0]
        return (
            callable(self.learning_rate)
            or segment.comp_config.HasField("one_bit")
            or segment.opt_config.WhichOneof("type") in ("batch_softmax", "dynamic_wd_adagrad")
        )

    def make_proto(self, serving: bool = False) -> proto.EmbeddingHashTableConfig:
        """Returns what the native table reads.

        Args:
            serving: Whether rows are only looked up: compressed, and without optimizer state.
        """
        config = proto.EmbeddingHashTableConfig()
        evict = _EVICT_EVERY_HOURS if self.expire_after_days and not serving else 0
        entry.CuckooHashTableConfig(
            feature_evict_every_n_hours=evict, storage=self.storage
        ).mutate_table(config)
        if self.expire_after_days is not None:
            config.slot_expire_time_config.default_expire_time = self.expire_after_days
        if serving:
            config.entry_config.entry_type = proto.EntryConfig.SERVING
        config.entry_config.segments.append(
            entry.CombineAsSegment(
                self.dim,
                to_initializer(self.initializer),
                optimizers.to_row_optimizer(self.optimizer),
                to_compressor(self.compressor),
            )
        )
        return config

    def make_thresholds(self) -> bytes:
        """Returns what the filter in front of the table reads."""
        return proto.SlotOccurrenceThresholdConfig(
            default_occurrence_threshold=self.admit_after
        ).SerializeToString()

    def to_dict(self) -> dict[str, Any]:
        """Returns the settings as JSON can hold them."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: _to_json(value) for name, value in values.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "TableConfig":
        """Returns the settings that `to_dict` wrote.

        Raises:
            ConfigError: They are not complete: a learning rate was a function that no file holds.
        """
        return cls(**{name: _from_json(value) for name, value in values.items()})

    def _check_int(self, setting: str, least: int, most: int | None) -> None:
        value = getattr(self, setting)
        is_int = isinstance(value, int) and not isinstance(value, bool)
        if is_int and value >= least and (most is None or value <= most):
            return
        limits = f"an int of at least {least}" if most is None else f"an int in [{least}, {most}]"
        raise errors.ConfigError(
            f"`{setting}` of table '{self.name}' must be {limits}, got {value!r}."
        )


def to_initializer(initializer: Any) -> entry.Initializer:
    """Returns what a new row starts with, from a name, a number, or an initializer.

    Raises:
        ConfigError: Rows have no such initializer.
    """
    if isinstance(initializer, entry.Initializer):
        return initializer
    if isinstance(initializer, int | float) and not isinstance(initializer, bool):
        return entry.ConstantsInitializer(float(initializer))
    if isinstance(initializer, str) and initializer in _INITIALIZERS:
        return _INITIALIZERS[initializer]()
    if type(initializer).__module__.split(".")[0] == "keras":
        config = initializer.get_config()
        kind = type(initializer).__name__
        if kind == "RandomUniform":
            return entry.RandomUniformInitializer(config["minval"], config["maxval"])
        if kind in ("Zeros", "Ones", "Constant"):
            constant = {"Zeros": 0.0, "Ones": 1.0}.get(kind, config.get("value"))
            return entry.ConstantsInitializer(float(constant))
    raise errors.ConfigError(
        f"`initializer` must be {_list(_INITIALIZERS)}, a number, or one of "
        f"monolith.embedding.entry such as RandomUniformInitializer(-0.1, 0.1); got "
        f"{initializer!r}."
    )


def to_compressor(compressor: Any) -> entry.Compressor:
    """Returns how rows are stored for serving, from a name or a compressor.

    Raises:
        ConfigError: There is no such compressor.
    """
    if isinstance(compressor, entry.Compressor):
        return compressor
    if isinstance(compressor, str) and compressor in _COMPRESSORS:
        return _COMPRESSORS[compressor]()
    raise errors.ConfigError(
        f"`compressor` must be {_list(_COMPRESSORS)}, or one of monolith.embedding.entry; got "
        f"{compressor!r}."
    )


# How objects are written into JSON: the settings of `ml` by their fields, those of `entry` by their
# message, Keras schedules as Keras does it.


def _to_json(value: Any) -> Any:
    if isinstance(value, optimizers.Optimizer):
        fields = {f.name: _to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"optimizer": type(value).__name__, **fields}
    if isinstance(value, entry.Optimizer | entry.Initializer | entry.Compressor):
        message = value.as_proto()
        return {"message": type(message).__name__, "value": json_format.MessageToDict(message)}
    if isinstance(value, optimizers.KerasSchedule):
        keras = importlib.import_module("keras")
        return {"keras": keras.saving.serialize_keras_object(value.schedule)}
    if isinstance(value, learning_rate.PolynomialDecay):
        return {"schedule": type(value).__name__, **vars(value)}
    if callable(value):
        return {"function": getattr(value, "__qualname__", type(value).__name__)}
    return value


def _from_json(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    value = dict(value)
    if "optimizer" in value:
        make = _OPTIMIZERS[value.pop("optimizer")]
        return make(**{name: _from_json(field) for name, field in value.items()})
    if "message" in value:
        message = getattr(proto, value["message"])()
        return _MESSAGES[value["message"]](json_format.ParseDict(value["value"], message))
    if "keras" in value:
        keras = importlib.import_module("keras")
        return keras.saving.deserialize_keras_object(value["keras"])
    if value.pop("schedule", None) == "PolynomialDecay":
        return learning_rate.PolynomialDecay(**value)
    raise errors.ConfigError(
        f"The learning rate was the function {value.get('function')!r}, which no file can hold; "
        "give `optimizer` again."
    )


class _FromMessage:
    """Settings of `entry` as they come back from a file: their message is all that is needed."""

    def __init__(self, message: Any) -> None:
        self._message = message

    def as_proto(self) -> Any:
        return self._message

    def __eq__(self, other: object) -> bool:
        return hasattr(other, "as_proto") and other.as_proto() == self._message

    def __hash__(self) -> int:
        return hash(self._message.SerializeToString(deterministic=True))

    def __repr__(self) -> str:
        return f"{type(self._message).__name__}({str(self._message).strip()})"


class _OptimizerFromMessage(_FromMessage, entry.Optimizer):
    pass


class _InitializerFromMessage(_FromMessage, entry.Initializer):
    pass


class _CompressorFromMessage(_FromMessage, entry.Compressor):
    pass


_OPTIMIZERS: Mapping[str, Callable[..., optimizers.Optimizer]] = {
    kind.__name__: kind
    for kind in (
        optimizers.SGD,
        optimizers.Adagrad,
        optimizers.Momentum,
        optimizers.Adadelta,
        optimizers.Adam,
        optimizers.AMSGrad,
        optimizers.FTRL,
    )
}
_MESSAGES: Mapping[str, Callable[[Any], Any]] = {
    "OptimizerConfig": _OptimizerFromMessage,
    "InitializerConfig": _InitializerFromMessage,
    "FloatCompressorConfig": _CompressorFromMessage,
}


def _list(names: Mapping[str, Any]) -> str:
    return ", ".join(repr(name) for name in names)
