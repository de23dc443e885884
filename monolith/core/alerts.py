"""Flags that say whom to alert when a job is in trouble, for programs of the original's form.

Nothing here sends an alert; the command lines of such programs are accepted all the same. What a
job does is told by `monolith status` and by its metrics.

Example:
    >>> get_default_alert_manager() is None
    True
"""

import logging

from absl import flags

logger = logging.getLogger(__name__)

FLAGS = flags.FLAGS

flags.DEFINE_string(
    "monolith_alert_proto", "", "Whom to alert, as the text of an AlertProto. Nobody is alerted."
)
flags.DEFINE_string(
    "monolith_chief_alert_proto", "", "The same for the chief alone, in place of the other flag."
)


def get_default_alert_manager() -> object | None:
    """Returns what sends alerts: there is nothing that does."""
    return None


def take_over_as_chief() -> None:
    """Has the chief's own flag count in this process, if it is set, and says that nothing is sent.

    Before a command line was parsed the flags have their defaults, which say nothing.
    """
    text = FLAGS["monolith_chief_alert_proto"].value
    if text:
        FLAGS.monolith_alert_proto = text
        logger.warning(
            "--monolith_chief_alert_proto is set, but this version of Monolith sends no alerts; "
            "watch the job with `monolith status` or by its metrics."
        )
