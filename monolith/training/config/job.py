"""The settings of a training job.

`CpuTrainingConfig` is what one training process needs, `DistributedCpuTrainingConfig` adds what
it takes to be a member of a cluster, and `monolith.training.runner.RunnerConfig` adds where the
job comes from and where its data is.

The fields live in groups, one for each concern, in the files beside this one; a config inherits
them, so that they keep the flat names of the flags. A field with a `:param` line becomes a
command-line flag of the same name through `RunnerConfig`. None means that a setting was not given.
`monolith.training.config.supported` says which of them this version refuses.

Example:
    >>> config = CpuTrainingConfig(enable_sync_training=True)
    >>> config.index, config.enable_full_sync_training
    (0, True)
"""

import dataclasses

from monolith.core.flags import LinkDataclassToFlags, update_by_flags
from monolith.data import flags as _data_flags  # noqa: F401 - defines the flag linked below
from monolith.training.config.checkpoint import RestoreSettings, SaveSettings, TaskSettings
from monolith.training.config.cluster import MemberSettings, RoleSettings
from monolith.training.config.export import ExportSettings
from monolith.training.config.input import ItemSettings
from monolith.training.config.metrics import ReportSettings, ScrapeSettings
from monolith.training.config.sync import SyncSettings
from monolith.training.config.tables import TableSettings


# A dataclass lists the fields of its last base first: a process says what it is before the rest.
@LinkDataclassToFlags(linked_map={"use_dataservice": "dataset_use_dataservice"})
@dataclasses.dataclass
class CpuTrainingConfig(
    ItemSettings,
    ExportSettings,
    ReportSettings,
    RestoreSettings,
    SaveSettings,
    SyncSettings,
    TableSettings,
    RoleSettings,
):
    """How one process trains."""

    @property
    def enable_full_sync_training(self) -> bool:
        """Whether rows and dense gradients both go through collectives, without any server."""
        return self.enable_sync_training and not self.enable_partial_sync_training

    def prepare_process(self) -> None:
        """Does to this process what the config asks for; entry points call it.

        This one asks for nothing. `RunnerConfig`, whose module defines a flag for each setting,
        does: so those who train without it, and have flags of their own, need not import it.
        """


@update_by_flags
@dataclasses.dataclass
class DistributedCpuTrainingConfig(TaskSettings, ScrapeSettings, MemberSettings, CpuTrainingConfig):
    """How a process takes part in a cluster."""
