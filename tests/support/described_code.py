"""Notes which code this is, in the process from which members are forked.

All members of a test then run the same code, as far as they know, even if somebody edits the files
meanwhile; and none reads all of them itself.
"""

from monolith.training.distributed import plan

plan.describe_code()
