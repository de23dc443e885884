"""The wheel that `pip install .` makes: what is in it, and that it works away from the checkout.

Functions rather than classes: pytest-xdist keeps them in one process, which builds one wheel.

Covers monolith/version.py.
"""

import email.message
import email.parser
import fcntl
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile

import pytest
import tensorflow as tf

import monolith

ROOT = pathlib.Path(__file__).parents[1]
PROTOS = [path.stem for path in ROOT.glob("proto/monolith/proto/*.proto")]

pytestmark = pytest.mark.slow


def run(*arguments: object, cwd: pathlib.Path = ROOT) -> str:
    result = subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def copy_build(target: pathlib.Path) -> None:
    """Copies the build directory, so that the wheel needs to compile only what has changed."""
    source = ROOT / "build" / "Release"
    if not source.exists():
        return
    with open(ROOT / "build" / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # `make native` holds it while it compiles.
        shutil.copytree(source, target, symlinks=True)
    # CMake refuses a cache that names another directory.
    cache = target / "CMakeCache.txt"
    cache.write_text(cache.read_text().replace(str(source), str(target)))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> pathlib.Path:
    directory = tmp_path_factory.mktemp("wheel")
    copy_build(directory / "build")
    options = ["--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", directory]
    run("-m", "pip", "wheel", ROOT, *options, f"-Cbuild-dir={directory / 'build'}")
    (path,) = directory.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def names(wheel) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


@pytest.fixture(scope="module")
def metadata(wheel) -> email.message.Message:
    name = f"monolith-{monolith.__version__}.dist-info/METADATA"
    return email.parser.Parser().parsestr(zipfile.ZipFile(wheel).read(name).decode())


@pytest.fixture(scope="module")
def site(wheel, tmp_path_factory) -> pathlib.Path:
    """A directory that holds the installed wheel and nothing else."""
    directory = tmp_path_factory.mktemp("site")
    run("-m", "pip", "install", "--no-deps", "--no-index", "--target", directory, wheel)
    return directory


def run_installed(site: pathlib.Path, code: str, cwd: pathlib.Path) -> str:
    """Runs code that finds the wheel, its dependencies, and no trace of the checkout.

    Without `site`, Python does not read the file that makes the checkout importable.
    """
    paths = [str(site), sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"]]
    return run("-I", "-S", "-c", f"import sys\nsys.path += {paths!r}\n{code}", cwd=cwd)


def test_wheel_has_the_compiled_parts(names):
    assert {"monolith/native/libmonolith_ops.so", "monolith/native/built_for.txt"} <= names
    assert {f"monolith/proto/{name}_pb2.py" for name in PROTOS} <= names
    assert "monolith/proto/service_pb2_grpc.py" in names


def test_wheel_has_every_module(names):
    modules = {str(path.relative_to(ROOT)) for path in ROOT.glob("monolith/**/*.py")}
    assert modules <= names


def test_wheel_has_nothing_else(names):
    allowed = r"monolith/.*\.(py|so|txt|typed)|monolith-[^/]+\.dist-info/.*"
    assert [name for name in names if not re.fullmatch(allowed, name)] == []
    assert [name for name in names if re.search(r"_test\.py|conftest", name)] == []


def test_library_is_for_the_tensorflow_that_the_wheel_asks_for(wheel, metadata):
    built_for = zipfile.ZipFile(wheel).read("monolith/native/built_for.txt").decode().strip()
    assert built_for == tf.__version__
    minor = ".".join(built_for.split(".")[:2])
    assert f"tensorflow~={minor}.0" in metadata.get_all("Requires-Dist")


def test_wheel_has_the_licence(names, metadata):
    assert metadata["License-Expression"] == "Apache-2.0"
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_installed_ops_load_and_historical_paths_work(site, tmp_path):
    output = run_installed(
        site,
        "import monolith\n"
        "assert 'tensorflow' not in sys.modules\n"
        "from monolith.native import ops\n"
        "from monolith.native_training.runtime.ops import gen_monolith_ops\n"
        "assert gen_monolith_ops is ops\n"
        "from monolith.native_training.hooks.server import service_pb2\n"
        "print(ops._find_library())\n"
        "print(ops.monolith_fused_value_rowids([0, 2, 3]).numpy().tolist())\n",
        cwd=tmp_path,
    )
    assert output.splitlines() == [
        str(site / "monolith" / "native" / "libmonolith_ops.so"),
        "[0, 0, 1]",
    ]


def test_installed_example(site, tmp_path):
    example = str(ROOT / "examples" / "first_op.py")
    code = f"import runpy\nrunpy.run_path({example!r}, run_name='__main__')\n"
    assert "Same numbers" in run_installed(site, code, cwd=tmp_path)


def test_source_distribution_can_be_built_from(tmp_path):
    code = "import sys; from scikit_build_core import build; print(build.build_sdist(sys.argv[1]))"
    name = run("-c", code, tmp_path).split()[-1]
    with tarfile.open(tmp_path / name) as archive:
        names = {pathlib.PurePath(*pathlib.PurePath(n).parts[1:]) for n in archive.getnames()}
    names = set(map(str, names))
    assert {"CMakeLists.txt", "pyproject.toml", "LICENSE", "README.md"} <= names
    for pattern in ("csrc/**/*.cc", "csrc/**/*.h", "proto/**/*.proto", "monolith/**/*.py"):
        sources = {str(path.relative_to(ROOT)) for path in ROOT.glob(pattern)}
        assert sources
        assert sources <= names
    assert [name for name in names if name.startswith(("build", ".venv"))] == []
