"""Tasks whose embeddings are looked up by an accelerator, in tables of a fixed size.

That is how models run on TPUs: before the model is built, the runner asks the task which features
and tables there are, and hands both to the estimator, which looks rows up and gives the model what
they sum up to. So the task's `logits_fn` is run once to see what it looks up, and again to build
the model. Tables here have a size, their vocabulary; ids beyond it would share rows.

Example:
    >>> class Ranking(BaseEmbeddingTask):
    ...     def logits_fn(self):
    ...         return self.env.lookup("user", slot=1, dim=4) + self.env.lookup("item", 2, dim=4)
    >>> task = Ranking.params().set(name="r", vocab_size_per_slot=100).instantiate()
    >>> task.init_slot_to_env()
    >>> features, tables = task.create_feature_and_table_config_dict()
    >>> {name: feature.table_id for name, feature in features.items()}
    {'user_0': 'table_1_0', 'item_0': 'table_2_0'}
    >>> tables["table_1_0"]
    TableConfig(vocabulary_size=100, dimension=4, combiner='sum')
"""

import contextlib
import dataclasses
import math
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from monolith import errors
from monolith.core.hyperparams import InstantiableParams
from monolith.data.dated_files import range_dateset
from monolith.graph.mode_keys import ModeKeys
from monolith.model.base_task import BaseTask

# What a batch is called that says to TensorFlow's TPU loop that the input has ended.
STOPPING_SIGNAL = "_user_provided_signal_name"

_UID, _UID_BUCKET, _NUM_UID_BUCKETS = "uid", "uid_bucket", 1000


@dataclasses.dataclass(frozen=True)
class TableConfig:
    """A table of an accelerator.

    Attributes:
        vocabulary_size: How many rows it has.
        dimension: How many numbers a row has.
        combiner: What is made of the rows of a feature.
    """

    vocabulary_size: int
    dimension: int
    combiner: str = "sum"


@dataclasses.dataclass(frozen=True)
class FeatureConfig:
    """A feature that is looked up.

    Attributes:
        table_id: Name of its table.
        feature: Name of the ids in the input.
        divisor: By what ids are divided before they are looked up; None if they are not.
        modulus: The rest of what division is looked up; None for that by the table's size.
    """

    table_id: str
    feature: str
    divisor: int | None = None
    modulus: int | None = None


class Env:
    """What a task looks up: noted in a first run, and given to it in others.

    Args:
        get_vocab_size: Returns how many ids a slot has.
        qr_threshold: Slots with more ids have two small tables instead of a large one, for the
            quotient and for the remainder of an id; None for no such slots.
        qr_rate: By what ids of such slots are divided.
    """

    def __init__(
        self,
        get_vocab_size: Callable[[int], int],
        *,
        qr_threshold: int | None = None,
        qr_rate: int = 4,
    ) -> None:
        self._get_vocab_size = get_vocab_size
        self._qr_threshold = qr_threshold
        self._qr_rate = qr_rate
        self._slices: dict[tuple[str, int, int], int] = {}
        self._num_slices: dict[str, int] = {}
        self._is_final = False
        self._features: Mapping[str, Any] | None = None
        self.feature_to_config: dict[str, FeatureConfig] = {}
        self.table_to_config: dict[str, TableConfig] = {}

    def lookup(self, feature: str, slot: int, dim: int) -> tf.Tensor:
        """Returns what the rows of a feature's ids sum up to, `[batch, dim]`.

        Args:
            feature: Name of the ids in the input.
            slot: What the ids are of; features of one slot share its tables.
            dim: How many numbers a row has.

        Raises:
            ConfigError: It is looked up for the first time after the first run.
        """
        key = feature, slot, dim
        if key not in self._slices:
            if self._is_final:
                raise errors.ConfigError(
                    f"Feature {feature!r} of slot {slot} with dim {dim} was not looked up when the "
                    "features were collected; `logits_fn` must look up the same ones every time."
                )
            self._add(key)
        names = self._list_names(feature, self._slices[key], slot)
        if self._features is None:
            return tf.compat.v1.placeholder(tf.float32, [None, dim])
        return tf.add_n([self._features[name] for name, _ in names])

    def finalize(self) -> None:
        """Ends the first run."""
        self._is_final = True

    @contextlib.contextmanager
    def using(self, features: Mapping[str, Any]) -> Iterator[None]:
        """Has `lookup` return these features in a block."""
        previous, self._features = self._features, features
        try:
            yield
        finally:
            self._features = previous

    def _add(self, key: tuple[str, int, int]) -> None:
        feature, slot, dim = key
        number = self._num_slices.get(feature, 0)
        self._num_slices[feature] = number + 1
        self._slices[key] = number
        size = self._get_vocab_size(slot)
        names = self._list_names(feature, number, slot)
        if len(names) == 1:
            ((name, table),) = names
            self.feature_to_config[name] = FeatureConfig(table, feature)
            self.table_to_config[table] = TableConfig(size, dim)
            return
        (quotient, quotients), (remainder, remainders) = names
        rate = self._qr_rate
        self.feature_to_config[quotient] = FeatureConfig(quotients, feature, divisor=rate)
        self.feature_to_config[remainder] = FeatureConfig(remainders, feature, modulus=rate)
        self.table_to_config[quotients] = TableConfig(size // rate + 1, dim)
        self.table_to_config[remainders] = TableConfig(rate + 1, dim)

    def _list_names(self, feature: str, number: int, slot: int) -> list[tuple[str, str]]:
        """Returns the names of a slice of a feature, and of their tables."""
        name, table = f"{feature}_{number}", f"table_{slot}_{number}"
        if self._qr_threshold is None or self._get_vocab_size(slot) <= self._qr_threshold:
            return [(name, table)]
        return [(f"{name}_{part}", f"{table}_{part}") for part in (0, 1)]


class BaseEmbeddingTask(BaseTask):
    """A task for an accelerator; subclasses have `logits_fn`, `create_model_fn` and the features.

    Args:
        params: The settings, see `params`.
    """

    @classmethod
    def params(cls) -> InstantiableParams:
        """Returns the settings with their defaults; subclasses define more."""
        p = super().params()
        p.define("vocab_size_per_slot", None, "How many ids every slot has.")
        p.define("custom_vocab_size_mapping", None, "How many ids a slot has, by slot.")
        p.define("vocab_size_offset", None, "Added to the number of ids of every slot.")
        p.define("qr_multi_hashing", False, "Whether large slots have two small tables instead.")
        p.define("qr_hashing_threshold", 100000000, "Number of ids above which a slot is large.")
        p.define("qr_collision_rate", 4, "By what ids of large slots are divided.")
        p.define("vocab_file_path", None, "File of lines `slot TAB number of ids`.")
        p.define("enable_deepinsight", False, "Whether samples are sent for analysis.")
        p.define("enable_host_call_scalar_metrics", False, "Whether hosts write metrics.")
        p.define("enable_host_call_norm_metrics", False, "Whether hosts write norms.")
        p.define("files_interleave_cycle_length", 4, "How many files are read at once.")
        p.define("deterministic", False, "Whether examples come in the same order every time.")
        p.define("gradient_multiplier", 1.0, "By what gradients are multiplied.")
        p.define("enable_caching_with_tpu_var_mode", False, "Whether rows are cached by variables.")
        p.define("top_k_sampling_num_per_core", 6, "How many examples of a core are sampled.")
        p.define(
            "use_random_init_embedding_for_oov", False, "Whether unknown ids have random rows."
        )
        p.define("merge_vector", False, "Whether slices of a slot are one vector.")
        p.train.define("file_folder", None, "Folder of the files to train on.")
        p.train.define("date_and_file_name_format", "*/*/part*", "Which files below it.")
        p.train.define("start_date", None, "The first day to train on, as 20260131.")
        p.train.define("end_date", None, "The last one.")
        p.train.define("vocab_file_folder_prefix", None, "Before the date in a path of that file.")
        return p

    def __init__(self, params: InstantiableParams) -> None:
        super().__init__(params)
        self._vocab_sizes: dict[int, int] | None = None
        self.env = Env(
            self.get_vocab_size,
            qr_threshold=params.qr_hashing_threshold if params.qr_multi_hashing else None,
            qr_rate=params.qr_collision_rate,
        )

    def logits_fn(self) -> Any:
        """Builds the model, with what `self.env.lookup` returns."""
        raise NotImplementedError("Abstract method.")

    def _get_feature_map(self) -> dict[str, Any]:
        """Returns what is in an example, as for `tf.io.parse_example`."""
        raise NotImplementedError("Abstract method.")

    def get_vocab_size(self, slot: int) -> int:
        """Returns how many ids a slot has: the same for all, its own, or what the file says.

        Raises:
            AssertionError: Nothing says how many.
            ConfigError: The file does not know the slot.
        """
        p = self.p
        custom = p.custom_vocab_size_mapping or {}
        if p.vocab_size_per_slot is not None:
            size = p.vocab_size_per_slot
        elif slot in custom:
            size = custom[slot]
        else:
            if self._vocab_sizes is None:
                self._vocab_sizes = self._read_vocab_file()
            if slot not in self._vocab_sizes:
                raise errors.ConfigError(
                    f"The vocabulary file says nothing of slot {slot}; add it there, or to "
                    "`custom_vocab_size_mapping`."
                )
            size = self._vocab_sizes[slot]
        return int(size) + int(p.vocab_size_offset or 0)

    def init_slot_to_env(self) -> None:
        """Runs `logits_fn` for what it looks up."""
        with tf.Graph().as_default():
            self.logits_fn()
        self.env.finalize()

    def create_feature_and_table_config_dict(
        self,
    ) -> tuple[dict[str, FeatureConfig], dict[str, TableConfig]]:
        """Returns the features and tables by name; for after `init_slot_to_env`."""
        return self.env.feature_to_config, self.env.table_to_config

    def process_features_for_cpu_test(self, features: Mapping[str, Any]) -> dict[str, Any]:
        """Looks features up in variables, where no accelerator does.

        The two dictionaries of configs are emptied: an estimator has nothing to look up then.
        """
        processed = dict(features)
        variables: dict[str, Any] = {}
        for name, config in self.env.feature_to_config.items():
            table = self.env.table_to_config[config.table_id]
            if config.table_id not in variables:
                variables[config.table_id] = tf.compat.v1.get_variable(
                    config.table_id,
                    [table.vocabulary_size, table.dimension],
                    initializer=tf.compat.v1.random_normal_initializer(
                        stddev=1 / math.sqrt(table.dimension)
                    ),
                )
            sparse = features[config.feature]
            if not isinstance(sparse, tf.SparseTensor):
                raise errors.ConfigError(
                    f"Feature {config.feature!r} is looked up and must be a SparseTensor, got "
                    f"{type(sparse).__name__}; declare it with `tf.io.VarLenFeature`."
                )
            ids = sparse.values if config.divisor is None else sparse.values // config.divisor
            ids = tf.math.floormod(ids, config.modulus or table.vocabulary_size)
            processed[name] = tf.compat.v1.nn.safe_embedding_lookup_sparse(
                variables[config.table_id],
                tf.SparseTensor(sparse.indices, ids, sparse.dense_shape),
                combiner=table.combiner,
            )
        self.env.feature_to_config.clear()
        self.env.table_to_config.clear()
        return processed

    def create_input_fn(self, mode: str) -> Callable[..., tf.data.Dataset]:
        """Returns the function that builds the input, from `params` of the estimator."""
        assert mode == ModeKeys.TRAIN, f"Input is made for training only, not for {mode!r}."

        def input_fn(params: Mapping[str, Any]) -> tf.data.Dataset:
            has_folder = self.p.train.file_folder is not None and not params["cpu_test"]
            if self.p.train.file_pattern is None and not has_folder:
                raise errors.ConfigError(
                    "`train.file_pattern` is not set, so there is nothing to read; say which files "
                    "have the examples."
                )
            batch_size = params["batch_size"]
            if params["cpu_test"]:
                files = tf.data.Dataset.list_files(self.p.train.file_pattern, shuffle=False)
                records = tf.data.TFRecordDataset(files)
                return records.batch(batch_size, drop_remainder=True).map(self._parse).repeat()
            dataset = self._read_files(params).batch(batch_size, drop_remainder=True)
            dataset = dataset.map(self._parse, num_parallel_calls=tf.data.AUTOTUNE)
            if self.p.train.repeat:
                dataset = dataset.repeat()
            elif params.get("enable_stopping_signals"):
                dataset = _add_stopping_signals(dataset, batch_size)
            return dataset.prefetch(tf.data.AUTOTUNE)

        return input_fn

    def _read_files(self, params: Mapping[str, Any]) -> tf.data.Dataset:
        train, is_fixed = self.p.train, self.p.deterministic
        if train.file_folder is not None:
            pattern = os.path.join(train.file_folder, train.date_and_file_name_format)
            files = tf.data.Dataset.list_files(pattern, shuffle=False)
            root = os.path.join(train.file_folder, "")
            files = range_dateset(files, root, train.start_date, train.end_date)
        else:
            files = tf.data.Dataset.list_files(train.file_pattern, shuffle=False)
        if "context" in params:
            _, index, num_calls, _ = params["context"].current_input_fn_deployment()
            files = files.shard(num_calls, index)
        return files.interleave(
            tf.data.TFRecordDataset,
            cycle_length=self.p.files_interleave_cycle_length,
            num_parallel_calls=None if is_fixed else tf.data.AUTOTUNE,
            deterministic=is_fixed,
        )

    def _parse(self, serialized: tf.Tensor) -> dict[str, Any]:
        features: dict[str, Any] = tf.io.parse_example(serialized, self._get_feature_map())
        if _UID in features:
            features[_UID_BUCKET] = tf.cast(features[_UID] % _NUM_UID_BUCKETS, tf.int32)
        return features

    def _read_vocab_file(self) -> dict[int, int]:
        path, train = self.p.vocab_file_path, self.p.train
        if path is None:
            parts = (train.vocab_file_folder_prefix, train.end_date)
            assert None not in parts, (
                "Either provide vocab_file_path or vocab_file_folder_prefix and end date."
            )
            path = "".join(parts)
        sizes = {}
        with tf.io.gfile.GFile(path) as file:
            for number, line in enumerate(file, 1):
                fields = line.strip().split("\t")
                assert len(fields) == 2, f"Line {number} of {path} must have 2 fields: {line!r}"
                if fields[0].isdigit():  # The first line may name the columns.
                    sizes[int(fields[0])] = int(fields[1])
        return sizes


def _add_stopping_signals(dataset: tf.data.Dataset, batch_size: int) -> tf.data.Dataset:
    """Says of each batch whether the input has ended, and goes on with batches that say so."""

    def add(is_end: bool) -> Callable[[dict[str, Any]], dict[str, Any]]:
        return lambda features: {**features, STOPPING_SIGNAL: tf.fill([batch_size], is_end)}

    return dataset.map(add(False)).concatenate(dataset.take(1).map(add(True)).repeat())
