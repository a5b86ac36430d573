"""What mkdocs calls while it builds the site.

* Pages that lie beside `docs/` (the architecture, the changes) and the list of decisions become pages of the site.
* A link to a file outside of `docs/` works where the page is read as a file. On the site it leads to the repository,
  if the package names one ("Repository" among the URLs in pyproject.toml); else it becomes the file's name.
* The box of the search, which the theme makes a dialog without a name, gets one.
* A glob in the navigation stands for the pages that it matches and that no other entry names.

Invariant: no page is changed on the disk.
"""

from __future__ import annotations

import posixpath
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path
from typing import Any, TypeAlias, cast

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docsite.links import links, title

ROOT = Path(__file__).parents[1]
BESIDE = {
    "README.md": "overview.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
"""Files beside `docs/`, and the pages of the site that hold the same."""
DECISIONS = "design/index.md"
SEARCH = '<div class="md-search" data-md-component="search" role="dialog">'
Entry: TypeAlias = "str | dict[str, Entry] | list[Entry]"


def repository() -> str:
    """Return where the package says that its source lies; an empty text while it does not say."""
    try:
        urls = metadata.metadata("unbroken").get_all("Project-URL") or []
    except metadata.PackageNotFoundError:  # a tree that is not installed
        urls = []
    named: dict[str, str] = dict(url.split(", ", 1) for url in map(str, urls))
    return named.get("Repository", "").rstrip("/")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Write out the globs in the navigation."""
    docs = Path(config.docs_dir)
    pages = {file.relative_to(docs).as_posix() for file in docs.rglob("*.md")}
    pages |= {page for page in BESIDE.values() if page not in pages} | {DECISIONS}
    nav = cast("list[Entry]", config["nav"])
    named = {entry for entry in _leaves(nav) if "*" not in entry}
    config.nav = cast("list[Any]", _written_out(nav, sorted(pages - named)))
    return config


def _leaves(entry: Entry) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    inner = entry.values() if isinstance(entry, dict) else entry
    return [leaf for one in inner for leaf in _leaves(one)]


def _written_out(entries: list[Entry], unnamed: list[str]) -> list[Entry]:
    written: list[Entry] = []
    for entry in entries:
        if isinstance(entry, str) and "*" in entry:
            matched = [page for page in unnamed if fnmatch(page, entry)]
            unnamed = [page for page in unnamed if page not in matched]
            written.extend(matched)
        elif isinstance(entry, dict):
            for name, value in entry.items():
                inner = _written_out(value if isinstance(value, list) else [value], unnamed)
                unnamed = [page for page in unnamed if page not in _leaves(inner)]
                if isinstance(value, list) and inner:  # a section of which no page matched is none
                    written.append({name: inner})
                elif inner:
                    written.append({name: inner[0]})
        else:
            written.append(entry)
    return written


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that do not lie in `docs/`."""
    for source, page in BESIDE.items():
        if files.get_file_from_path(page) is None:
            files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    files.append(File.generated(config, DECISIONS, content=decisions(Path(config.docs_dir) / "design")))
    return files


def decisions(folder: Path) -> str:
    """Return the page that lists every decision."""
    rows = [
        f"{int(file.name[:3])}. [{title(file.read_text())}]({file.name})"
        for file in sorted(folder.glob("0*.md"))
    ]
    return (
        "# Decisions\n\nEach page has a problem, what was decided, what was rejected, and how it is tested.\n\n"
        + "\n".join(f"* {row}" for row in rows)
        + "\n"
    )


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links that leave `docs/` into those that hold on the site."""
    del config, files
    return for_the_site(markdown, page.file.src_uri, repository())


def on_post_page(output: str, *, page: Page, config: MkDocsConfig) -> str:
    """Name the search of a page."""
    del page, config
    return search_named(output)


def on_post_template(output_content: str, *, template_name: str, config: MkDocsConfig) -> str:
    """Name the search of the page for what is not there."""
    del config
    return search_named(output_content) if template_name.endswith(".html") else output_content


def search_named(page: str) -> str:
    """Return a page whose search has a name for those who hear it."""
    if SEARCH not in page:
        raise PluginError("The theme's search is another one by now: look whether it needs a name still.")
    return page.replace(SEARCH, f'{SEARCH[:-1]} aria-label="Search">')


def for_the_site(text: str, page: str, source: str) -> str:
    """Return the text of a page with links as the site has them.

    `page` is its path below `docs/`, `source` the address of the repository, or empty.
    """
    beside = {page: file for file, page in BESIDE.items()}
    lies_in_docs = (ROOT / "docs" / page).exists() or page not in beside
    here = posixpath.dirname(f"docs/{page}") if lies_in_docs else ""
    parts: list[str] = []
    at = 0
    for link in links(text):
        if link.external or not link.path:
            continue
        target = posixpath.normpath(posixpath.join(here, link.path))
        parts += [text[at : link.start], _link(link.text, target, link.anchor, page, source)]
        at = link.end
    return "".join([*parts, text[at:]])


def _link(text: str, target: str, anchor: str, page: str, source: str) -> str:
    behind = f"#{anchor}" if anchor else ""
    inside = BESIDE.get(target) or (DECISIONS if target == "docs/design" else "")
    if not inside and target.startswith("docs/"):
        inside = target.removeprefix("docs/")
    if inside:
        return f"[{text}]({posixpath.relpath(inside, posixpath.dirname(page) or '.')}{behind})"
    if source:
        return f"[{text}]({source}/blob/main/{target}{behind})"
    bare = text.strip("`")
    # What is named by its path, or the end of it, needs no second mention.
    if target.endswith(bare):
        return f"`{target}`"
    return f"{text} (`{target}`)"
