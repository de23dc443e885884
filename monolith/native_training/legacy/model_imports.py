"""Imports the modules that register models, so that a model can be given by name alone."""

import importlib
import logging
import pkgutil
from collections.abc import Iterable

logger = logging.getLogger(__name__)

_TASK_ROOT = "monolith.tasks"


def ImportAllParams(
    task_root: str = _TASK_ROOT, task_dirs: Iterable[str] = (), require_success: bool = False
) -> bool:
    """Imports everything below the given directories of `task_root`.

    Returns:
        Whether at least one module was imported.

    Raises:
        LookupError: None was, and `require_success` is true.
    """
    success = False
    for task_dir in task_dirs:
        package = f"{task_root}.{task_dir}"
        if not _try_import(package):
            continue
        success = True
        search_path = getattr(importlib.import_module(package), "__path__", [])
        for module in pkgutil.walk_packages(search_path, package + ".", onerror=_log_failure):
            _try_import(module.name)
    if require_success and not success:
        raise LookupError(
            f"Could not import any task below {task_root}; the log above says what failed."
        )
    return success


def ImportParams(
    model_name: str,
    task_root: str = _TASK_ROOT,
    task_dirs: Iterable[str] = (),
    require_success: bool = True,
) -> bool:
    """Imports the module of one model.

    Args:
        model_name: `module.Class`, or the short name under which a built-in model is registered.
        task_root: Package of the built-in models.
        task_dirs: Its directories that have models.
        require_success: Whether it is an error that nothing could be imported.

    Returns:
        Whether a module was imported.

    Raises:
        ValueError: `model_name` names no module.
        LookupError: No module was imported, and `require_success` is true.
    """
    module_name = model_name.rpartition(".")[0]
    if not module_name.strip(".") or module_name.startswith("."):
        raise ValueError(f"Invalid model name {model_name}")
    success = _try_import(module_name)
    for task_dir in task_dirs:
        if module_name.startswith(task_dir + "."):
            rest = module_name.removeprefix(task_dir + ".")
            # Short names leave out `params`, so both places are possible.
            for place in (f"{task_dir}.params.{rest}", f"{task_dir}.{rest}"):
                success = _try_import(f"{task_root}.{place}") or success
    if require_success and not success:
        raise LookupError(
            f"Could not find any valid import paths for module {module_name}. "
            f"The log above says what failed; is its directory on the Python path?"
        )
    return success


def _try_import(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError as error:
        # Missing modules are expected, since several places are tried.
        logger.warning("Could not import %s: %s", name, error)
        return False
    logger.info("Imported %s", name)
    return True


def _log_failure(name: str) -> None:
    logger.warning("Could not look for models in %s", name, exc_info=True)
