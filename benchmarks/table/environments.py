"""The peers' own environments: their TensorFlow and PyTorch do not go together with ours."""

import os
import pathlib
import subprocess
import sys


class Unavailable(Exception):
    """A peer cannot be had on this machine; the message says why."""


OURS = "ours"
TFRA = "tfra"
TORCH = "torch"
PLOT = "plot"

# Keras 2 for our own TensorFlow; added to our environment's packages, not installed in it.
KERAS_2 = "tf-keras==2.21.0"

REQUIREMENTS = {
    TFRA: [
        "tensorflow-cpu==2.16.2",
        "tf-keras==2.16.0",
        "tensorflow-recommenders-addons==0.8.1",
    ],
    TORCH: ["torch==2.13.0", "fbgemm-gpu-cpu==1.8.0", "numpy"],
    PLOT: ["matplotlib==3.10.8"],
}
# An interpreter with the packages, to be used instead of an environment of our own.
VARIABLES = {
    TFRA: "MONOLITH_BENCH_TFRA_PYTHON",
    TORCH: "MONOLITH_BENCH_TORCH_PYTHON",
    PLOT: "MONOLITH_BENCH_PLOT_PYTHON",
}


def python_of(environment: str, directory: pathlib.Path) -> str:
    """Returns the interpreter of an environment, which is made below `directory` if missing.

    Raises:
        Unavailable: The packages could not be installed.
    """
    if environment == OURS:
        return sys.executable
    chosen = os.environ.get(VARIABLES[environment])
    if chosen:
        if not os.access(chosen, os.X_OK):
            raise Unavailable(f"{VARIABLES[environment]}={chosen} is not an interpreter.")
        return chosen
    home = directory / environment
    python = home / "bin" / "python"
    done = home / "requirements.txt"
    wanted = "\n".join(REQUIREMENTS[environment])
    if done.exists() and done.read_text() == wanted:
        return str(python)
    print(f"making the environment {home} ...", flush=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    try:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
        subprocess.run([*install, *REQUIREMENTS[environment]], check=True)
    except subprocess.CalledProcessError as error:
        raise Unavailable(
            f"{', '.join(REQUIREMENTS[environment])} could not be installed (code "
            f"{error.returncode}, see above); set {VARIABLES[environment]} to an interpreter that "
            "has them."
        ) from error
    done.write_text(wanted)
    return str(python)


def add_packages(requirement: str, directory: pathlib.Path) -> pathlib.Path:
    """Returns where a package is, without what it depends on: for a process's `PYTHONPATH`.

    Raises:
        Unavailable: The package could not be installed.
    """
    home = directory / requirement
    if home.exists():
        return home
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    unfinished = directory / f"{requirement}.unfinished"
    try:
        subprocess.run(
            [*install, "--no-deps", "--upgrade", "--target", str(unfinished), requirement],
            check=True,
        )
    except subprocess.CalledProcessError as error:
        raise Unavailable(
            f"{requirement} could not be installed (code {error.returncode}, see above)."
        ) from error
    return unfinished.rename(home)
