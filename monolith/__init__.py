"""Monolith: recommendation models whose vocabulary never stops growing.

Importing this package is cheap: TensorFlow and the compiled op library load with the
subpackage that needs them.

Example:
    >>> import monolith
    >>> monolith.__version__ == monolith.version.__version__
    True
"""

from monolith import version
from monolith.native_training import install_historical_paths
from monolith.version import __version__

install_historical_paths()

__all__ = ["__version__", "version"]
