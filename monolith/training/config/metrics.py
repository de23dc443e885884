"""What a job reports about itself: summaries, log lines, metrics, profiles."""

import dataclasses


@dataclasses.dataclass
class ReportSettings:
    """How often a job reports, and what its metrics are tagged with.

    `profile_save_steps_interval` has no flag: it is the steps between two profiles of the chief.

    :param save_summary_steps: Steps between summaries.
    :param log_step_count_steps: Steps between log lines with the speed.
    :param profile_some_steps_from: Step at which the chief starts to profile 10 steps.
    :param profile_with_nvprof_from_to: Steps 'start,end' between which nvprof records.
    :param submit_time_secs: When the job was submitted, in seconds since 1970; for metrics.
    :param containers_ready_time_secs: When the job's machines were there, in seconds since 1970;
        for metrics.
    :param cluster_type: Kind of cluster, 'stable', 'tide' or 'k8s'; a tag of metrics.
    """

    save_summary_steps: int = 100
    log_step_count_steps: int = 100
    profile_some_steps_from: int | None = None
    profile_save_steps_interval: int = 5000
    profile_with_nvprof_from_to: str | None = None
    submit_time_secs: int | None = None
    containers_ready_time_secs: int | None = None
    cluster_type: str = "stable"


@dataclasses.dataclass
class ScrapeSettings:
    """Where the processes of a job can be reached, and how rows travel between them.

    The last two are for the task, whose `train.controller_host` and `train.transfer_float16` an
    estimator sets by them.

    :param metrics_port: Port on which each process tells its metrics as Prometheus reads them. 0
        takes a free one, which `monolith status` shows. If unset, none is opened.
    :param metrics_host: Address that metrics_port is opened on. The default can be reached from
        the same machine only; 0.0.0.0 is all addresses.
    :param controller_host: Address that the controller listens on, for calls with its token;
        0.0.0.0 is all addresses. If unset, as the task says, which is 127.0.0.1 by default.
    :param transfer_float16: Whether rows and gradients travel as float16 between workers and
        servers, which is half of the bytes. False leaves it to the task.
    """

    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    controller_host: str | None = None
    transfer_float16: bool = False


@dataclasses.dataclass
class InsightSettings:
    """What a model is called where its metrics arrive, and which of them are computed.

    :param deep_insight_name: Name of the model in metrics; with discovery_type 'zk' also the name
        of the job.
    :param deep_insight_target: Heads that are sampled for deep insight, separated by commas.
    :param deep_insight_sample_ratio: Share of examples that are sampled for deep insight.
    :param disable_native_metrics: Whether the metrics of heads are not computed within the step.
    """

    deep_insight_name: str | None = None
    deep_insight_target: str | None = None
    deep_insight_sample_ratio: float | None = None
    disable_native_metrics: bool = True
