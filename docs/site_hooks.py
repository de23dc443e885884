"""What MkDocs does beyond the pages of docs/ (see mkdocs.yml).

Pages link to files of the checkout outside of docs/: examples, README, the changelog. On GitHub
these links lead to the file; here, each such file becomes a page of the site.
"""

import pathlib
import posixpath
import re

from mkdocs.structure.files import File, Files

ROOT = pathlib.Path(__file__).parents[1]
# Below this directory of the site are the files of the checkout.
_CHECKOUT = "checkout"
_LINK = re.compile(r"\]\((\.\./[^)#\s]+)")


def on_files(files: Files, config) -> Files:
    """Adds a page for each file outside of docs/ that a page links to."""
    wanted = [
        posixpath.normpath(posixpath.join("docs", target))
        for file in files.documentation_pages()
        for target in _LINK.findall(file.content_string)
    ]
    for path in sorted(set(wanted)):
        if (ROOT / path).is_file():
            page = File.generated(config, _page_of(path), content=_make_page(path))
            page.inclusion = page.inclusion.NOT_IN_NAV
            files.append(page)
    return files


def on_page_markdown(markdown: str, page, config, files: Files) -> str:
    """Leads links out of docs/ to the pages that were made of their targets."""
    if page.file.src_uri.startswith(f"{_CHECKOUT}/"):
        return markdown

    def replace(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", match[1]))
        return f"]({_page_of(path)}"

    return _LINK.sub(replace, markdown)


def _page_of(path: str) -> str:
    return f"{_CHECKOUT}/{path}.md"


def _make_page(path: str) -> str:
    text = (ROOT / path).read_text()
    if not path.endswith(".md"):
        return f"# {path}\n\n```{pathlib.Path(path).suffix[1:]}\n{text}```\n"

    def replace(match: re.Match[str]) -> str:
        """Keeps links to the web and into docs/; the rest of the checkout is not on the site."""
        words, target = match.groups()
        if re.match(r"\w+:|#", target):
            return match[0]
        linked = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        if not linked.startswith("docs/"):
            return words
        page = posixpath.relpath(linked.removeprefix("docs/"), posixpath.dirname(_page_of(path)))
        return f"[{words}]({page})"

    return re.sub(r"\[([^\]]*)\]\(([^)\s]+)\)", replace, text)
