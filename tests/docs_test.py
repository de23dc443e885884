"""The documentation is run: its Python code, what it says that prints, and its links.

A block of `text` right after a block of `python` is what that one prints; with a line
`<!-- numbers within 0.02 -->` between them, about that. `/shared/` on a page stands for a disk that
machines share; here it is a temporary directory. Code that needs a cluster is marked by a line
`<!-- not run: why -->` before its fence; of it only the imports are run. The model of
docs/five-minutes.md is served and asked as the page says.
"""

import ast
import dataclasses
import json
import pathlib
import re
import shlex
import subprocess

import pytest
import typer
from support import jobs, scripts

from monolith.cli import app as cli

ROOT = pathlib.Path(__file__).parents[1]
# Their code takes more than 10 seconds.
SLOW_PAGES = ["docs/training.md"]
FIVE_MINUTES = "docs/five-minutes.md"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


@dataclasses.dataclass
class Block:
    """A fenced block: its language, the line of its fence, and what it holds."""

    language: str
    line: int
    text: str
    before: str  # What stands between this block and the one before.

    @property
    def code(self) -> str:
        """The code to run: all of it, or only the imports."""
        if not re.search(r"<!-- not run: .+ -->\n$", self.before):
            return self.text
        body = ast.parse(self.text).body
        imports = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
        return "\n".join(ast.unparse(node) for node in imports)

    @property
    def is_output(self) -> bool:
        """Whether it is what the block before it prints."""
        return self.language == "text" and self.tolerance is not None

    @property
    def tolerance(self) -> float | None:
        """By how much numbers may differ; None if there is something else in front of it."""
        between = self.before.strip()
        match = re.fullmatch(r"<!-- numbers within ([\d.]+) -->", between)
        return float(match[1]) if match else None if between else 0.0

    def is_printed(self, output: str) -> bool:
        """Whether `output` is what this block says."""
        if not self.tolerance:
            return output == self.text
        number = r"-?\d+(?:\.\d+)?"
        pairs = zip(re.findall(number, output), re.findall(number, self.text), strict=False)
        return re.sub(number, "", output) == re.sub(number, "", self.text) and all(
            abs(float(a) - float(b)) <= self.tolerance for a, b in pairs
        )


def find_blocks(page: str) -> list[Block]:
    blocks: list[Block] = []
    end_of_last = 0
    for match in re.finditer(r"^```(\S*)[^\n]*\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        line = page.count("\n", 0, match.start()) + 1
        blocks.append(Block(match[1], line, match[2], page[end_of_last : match.start()]))
        end_of_last = match.end()
    return blocks


def find_anchors(page: str) -> set[str]:
    """Returns the anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def page_name(path: pathlib.Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize(
    "path",
    [pytest.param(p, marks=[pytest.mark.slow] * (page_name(p) in SLOW_PAGES)) for p in PAGES],
    ids=page_name,
)
def test_python_code_runs_and_prints_what_the_page_says(path, tmp_path):
    blocks = find_blocks(path.read_text())
    code = [block for block in blocks if block.language == "python"]
    if not code:
        return
    runnable = [[block.line, block.code.replace("/shared/", f"{tmp_path}/")] for block in code]
    printed = scripts.run_blocks(tmp_path, str(path), runnable)
    for block, output in zip(code, printed, strict=True):
        after = blocks[blocks.index(block) + 1 :]
        if after and after[0].is_output:
            said = after[0]
            assert said.is_printed(output), f"{path}:{said.line} says {said.text!r}, not {output!r}"
    if page_name(path) == FIVE_MINUTES:
        [served] = [block.text for block in blocks if "monolith serve" in block.text]
        (probability,) = ask_server(tmp_path, served)["outputs"]
        assert 0 < probability < 1


def ask_server(directory, text):
    """Does what a block of shell says: starts a server, and asks it; returns the answer."""
    command, _, request = text.partition(" &\n")
    arguments = shlex.split(command.replace("--rest-port 8501", "--port 0 --rest-port 0"))[1:]
    with jobs.Job(directory / "logs") as job:
        server = job.start("server", "support.scripts", "run_command", str(directory), arguments)
        server.wait_for_log("Ctrl-C")
        port = re.search(r":(\d+)/v1/models", server.log)[1]
        said = subprocess.check_output(["bash", "-c", request.replace("8501", port)], text=True)
    return json.loads(said.splitlines()[-1])  # Before that, that the model is being loaded.


@pytest.mark.parametrize("path", PAGES, ids=page_name)
def test_links_lead_somewhere(path):
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"\w+:", target):
            continue  # The web; tests have no network.
        file, _, anchor = target.partition("#")
        linked = (path.parent / file).resolve() if file else path
        assert linked.exists(), f"{path} links to {target}, which does not exist."
        if anchor:
            assert anchor in find_anchors(linked.read_text()), f"{path} links to {target}."


def test_index_lists_every_page():
    index = (ROOT / "docs" / "README.md").read_text()
    for path in ROOT.glob("docs/**/*.md"):
        relative = str(path.relative_to(ROOT / "docs"))
        assert relative == "README.md" or f"]({relative})" in index, f"{relative} is not listed."


def test_make_targets_that_pages_name_exist():
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for path in PAGES:
        text = path.read_text()
        named = re.findall(r"`make ([\w-]+)", text) + [
            target
            for block in find_blocks(text)
            if block.language in ("bash", "sh", "console")
            for target in re.findall(r"^make ([\w-]+)", block.text, re.MULTILINE)
        ]
        assert set(named) <= targets, f"{path} names make targets that do not exist."


def test_benchmarks_that_write_results_are_those_that_say_so():
    makefile, page = (ROOT / "Makefile").read_text(), (ROOT / "benchmarks/README.md").read_text()
    writing = re.findall(r"^(bench-\w+):.*\n\t.* --write$", makefile, re.MULTILINE)
    saying = re.findall(r"^\| `make (bench-\w+)` .*\(RESULTS\.md\)", page, re.MULTILINE)
    assert sorted(writing) == sorted(saying)
    assert "bench-rows" in writing


def list_commands(page: str) -> list[str]:
    """Returns the lines of shell on a page: in blocks, and between backticks."""
    blocks = [b for b in find_blocks(page) if b.language in ("bash", "sh", "console")]
    lines = [line for b in blocks for line in b.text.replace("\\\n", " ").splitlines()]
    prose = re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    return [line.partition(" #")[0] for line in lines] + re.findall(r"`([^`\n]+)`", prose)


def list_options() -> dict[str, set[str]]:
    """Returns the options of each subcommand of `monolith`, and of `monolith` itself as ""."""

    def walk(command, name):
        options = {option for p in command.params for option in (*p.opts, *p.secondary_opts)}
        found = {name: {option for option in options if option.startswith("-")}}
        for part, below in getattr(command, "commands", {}).items():
            found.update(walk(below, f"{name} {part}".strip()))
        return found

    return walk(typer.main.get_command(cli.app), "")


def test_commands_that_pages_name_exist():
    options = list_options()
    for path in [*PAGES, ROOT / "benchmarks" / "README.md"]:
        for line in list_commands(path.read_text()):
            for words in re.findall(r"(?<!import )(?<![\w.:-])monolith ([a-z]+\b[^|;&]*)", line):
                name = max(options, key=lambda n: len(n) * f"{words} ".startswith(f"{n} "))
                assert name, f"{path}: there is no command `monolith {words}`."
                # What follows the script belongs to it.
                own = words.partition(".py")[0] if name == "run" else words
                named = set(re.findall(r"(?<!\S)(--?[a-z][a-z-]*)", own))
                assert named - {"--help"} <= options[name], f"{path}: {line!r}"
            for module in re.findall(r"python -m ((?:benchmarks|monolith)[.\w]*)", line):
                file = ROOT / (module.replace(".", "/") + ".py")
                assert file.exists(), f"{path}: there is no module {module}."


def test_a_block_of_text_tells_whether_it_was_printed():
    page = "```python\n```\n<!-- numbers within 0.02 -->\n```text\nAUC 0.77, x1\n```\n"
    [_, about] = find_blocks(page)
    assert about.is_output
    assert about.is_printed("AUC 0.78, x1\n")
    assert not about.is_printed("AUC 0.80, x1\n")
    assert not about.is_printed("auc 0.77, x1\n")
    assert not about.is_printed("AUC 0.77\n")
    [_, exact, apart] = find_blocks("```python\n```\n```text\n0.7\n```\nAnd:\n```text\n```\n")
    assert exact.is_printed("0.7\n")
    assert not exact.is_printed("0.71\n")
    assert not apart.is_output


def test_five_minutes_are_enough_for_the_model():
    page = (ROOT / FIVE_MINUTES).read_text()
    [model] = [block.text for block in find_blocks(page) if "(ml.Model)" in block.text]
    lines = [line for line in model.splitlines() if line and not line.startswith("import ")]
    assert len(lines) <= 25
    for column in ("user", "item", "genres", "age", "occupation"):
        assert f'("{column}")' in model, f"The schema has no {column}."
    assert ".train(" in model
    assert ".evaluate(" in model
