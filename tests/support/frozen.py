"""The last that the process of `jobs` imports before it forks: what is there by then is no garbage.

Without it each collection of a forked process looks through everything that TensorFlow has made at
its import, and so copies it, too.
"""

import gc

gc.collect()
gc.freeze()
