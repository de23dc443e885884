"""Tasks, training loops, hooks, runners.

Importing the package changes one thing in TensorFlow: its monitored sessions do not recover
silently from a lost parameter server any more, because the training loop has to ask for the new
cluster first.
"""

import logging

from monolith.core import files

try:
    files.enable_monkey_patch()
except Exception:  # a TensorFlow without this private name can still train on one machine
    logging.getLogger(__name__).exception("sessions will retry lost servers on their own")
