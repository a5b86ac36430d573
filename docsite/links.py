"""Links and headings of a page in Markdown, as they stand in its text.

Invariant: what stands in a block of code or in a span of it is no link and no heading.

Not promised: links by reference (`[text][label]`); the pages here have none, and a test says so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_FENCE = re.compile(r"^ *(`{3,}|~{3,})[^\n]*\n.*?^ *\1[ \t]*$", flags=re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", flags=re.DOTALL)
_SPAN = re.compile(r"(?<!`)(`+)(?!`)((?:(?!\n\n).)+?)(?<!`)\1(?!`)", flags=re.DOTALL)
_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s]+)(?: \"[^\"]*\")?\)")
_HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", flags=re.MULTILINE)
_BY_REFERENCE = re.compile(r"^ {0,3}\[[^\]]+\]: +\S+", flags=re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Link:
    """A link or a picture: `text` as written, `target` with its anchor, and where both stand in the page."""

    text: str
    target: str
    start: int
    end: int

    @property
    def path(self) -> str:
        """The target without its anchor; empty for a place on the same page."""
        return self.target.partition("#")[0]

    @property
    def anchor(self) -> str:
        return self.target.partition("#")[2]

    @property
    def external(self) -> bool:
        return re.match(r"[a-z][a-z0-9+.-]*:", self.target, flags=re.IGNORECASE) is not None


def prose(text: str) -> str:
    r"""Return the page with blocks of code and comments blanked out, each letter in its place.

    >>> prose("a\n```\n[b](c)\n```\nd").split()
    ['a', 'd']
    """
    for pattern in (_FENCE, _COMMENT):
        text = pattern.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    return text


def links(text: str) -> list[Link]:
    """Return every link of a page, in its order.

    >>> [(link.text, link.path, link.anchor) for link in links("`[a](b)` [`c`](d.md#e)")]
    [('`c`', 'd.md', 'e')]
    """
    bare = prose(text)
    spans = [found.span() for found in _SPAN.finditer(bare)]
    return [
        Link(text[found.start(1) : found.end(1)], found[2], *found.span())
        for found in _LINK.finditer(bare)
        if not any(start < found.start() < end for start, end in spans)
    ]


def by_reference(text: str) -> list[str]:
    """Return the definitions of links by reference on a page."""
    return _BY_REFERENCE.findall(prose(text))


def slug(title: str) -> str:
    """Return the anchor that a heading gets, on the site and where the file is looked at on a forge.

    >>> slug("7. Control operations: `GET /x`")
    '7-control-operations-get-x'
    """
    plain = re.sub(r"!?\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\([^)]*\)", r"\1", title)
    plain = re.sub(r"[*`]|<[^>]+>", "", plain)
    return re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-")


def anchors(text: str) -> set[str]:
    r"""Return the anchors of a page. Of equal headings only the first can be linked to in both places.

    >>> sorted(anchors("# A b\n## `c_d`"))
    ['a-b', 'c_d']
    """
    return {slug(title) for title in _HEADING.findall(prose(text))}


def title(text: str) -> str:
    r"""Return the first heading of a page, without marks of code.

    >>> title("text\n# A `b`\n")
    'A b'
    """
    found = _HEADING.search(prose(text))
    return text[found.start(1) : found.end(1)].replace("`", "") if found else ""
