"""The documentation site: built without a warning, whole, and without asking other hosts for anything."""

import html.parser
import re
import tomllib
import urllib.parse
from pathlib import Path
from typing import Any

import pytest

from docs import site

ELSEWHERE = re.compile(r"^(?:[a-z]+:)?//", re.IGNORECASE)


class Built(html.parser.HTMLParser):
    """What a page of the site loads, where it leads, and which places it has."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.loaded: set[str] = set()
        self.links: set[str] = set()
        self.places: set[str] = set()
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Sort what an element names."""
        given = {name: value or "" for name, value in attrs}
        if "id" in given:
            self.places.add(given["id"])
        if tag == "a":
            self.links.add(given.get("href", ""))
        elif tag == "link" and given.get("rel") not in ("canonical", "next", "prev"):
            self.loaded.add(given.get("href", ""))
        self.loaded |= {
            given[name] for name in ("src", "srcset", "poster", "data") if name in given
        }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built. That there was no warning is shown by its being there."""
    out = tmp_path_factory.mktemp("site") / "out"
    site.build(out)
    return out


@pytest.fixture(scope="module")
def pages(folder: Path) -> dict[str, Built]:
    """Every page by its name; example pages are no pages of the site."""
    return {file.name: Built(file) for file in folder.glob("*.html")}


def test_every_page_is_there_and_in_the_menu(folder: Path) -> None:
    """Each Markdown file of `docs` is a page, and the menu has each once."""

    def entries(item: Any) -> list[str]:
        if isinstance(item, str):
            return [item]
        below = item.values() if isinstance(item, dict) else item
        return [page for each in below for page in entries(each)]

    with site.CONFIGURATION.open("rb") as file:
        menu = entries(tomllib.load(file)["project"]["nav"])
    written = {page.name for page in site.DOCS.glob("*.md")} | set(site.BESIDE.values())
    assert sorted(menu) == sorted(written)
    assert {f"{Path(page).stem}.html" for page in menu} <= {f.name for f in folder.glob("*.html")}


def test_nothing_is_loaded_from_elsewhere(folder: Path, pages: dict[str, Built]) -> None:
    """No page has a script, a style, a font or a picture of another host; nor has a style sheet."""
    assert len(pages) > 20
    for name, page in pages.items():
        assert page.loaded, name
        assert not [address for address in page.loaded if ELSEWHERE.match(address)], name
    for sheet in folder.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        loaded = re.findall(r"(?:url\(|@import)\s*[\"']?([^\"')\s;]+)", text)
        assert not [address for address in loaded if ELSEWHERE.match(address)], sheet


def test_what_is_loaded_is_there(folder: Path, pages: dict[str, Built]) -> None:
    """Every script, style and picture that a page names is a file of the site."""
    for name, page in pages.items():
        for address in page.loaded:
            path = urllib.parse.urlsplit(address).path
            # The page for what is not found is shown at any depth, so its paths begin at the root.
            if path and not address.startswith("data:"):
                assert (folder / path.lstrip("/")).exists(), (name, address)


def test_links_lead_somewhere(folder: Path, pages: dict[str, Built]) -> None:
    """Links within the site lead to a page, and to a place that the page has."""
    checked = 0
    for name, page in pages.items():
        for address in page.links:
            parts = urllib.parse.urlsplit(address)
            if parts.scheme or parts.netloc or not (parts.path or parts.fragment):
                continue
            target = parts.path.removeprefix("/").removeprefix("./") or name
            if target == ".":
                continue
            assert (folder / target).exists(), (name, address)
            if parts.fragment and target in pages:
                assert urllib.parse.unquote(parts.fragment) in pages[target].places, (name, address)
                checked += 1
    assert checked > 200


def test_examples_are_shown_whole(folder: Path) -> None:
    """The page of examples has each file of `docs/examples` in it, and no placeholder."""
    text = re.sub(r"<[^>]+>", "", (folder / "examples.html").read_text(encoding="utf-8"))
    shown = html.unescape(text)
    for name in ("agent.py", "telephone.py", "book.py", "browser.html"):
        source = (site.DOCS / "examples" / name).read_text(encoding="utf-8")
        for line in source.splitlines():
            assert line.strip() in shown, (name, line)


def test_docstrings_are_shown(pages: dict[str, Built]) -> None:
    """Whatever the client exports, and both contracts, have an entry in the reference."""
    from orpheus_ws import client

    exported = {name for name in client.__all__ if not name.isupper()}
    aliases = {"ServerMessage", "SpokenText"}  # unions, not classes
    found = {place.rpartition(".")[2] for place in pages["api-client.html"].places}
    assert exported - aliases <= found
    assert "orpheus_ws.engine.Engine.generate" in pages["api-engine.html"].places
    assert "orpheus_ws.codec.Decoder.step" in pages["api-codec.html"].places


def test_a_broken_link_fails_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that leads nowhere is an error, which says where in plain text, and leaves no site."""
    pages = tmp_path / "docs"
    pages.mkdir()
    for page in site.DOCS.glob("*.md"):
        (pages / page.name).write_text("# A page\n", encoding="utf-8")
    (pages / "index.md").write_text("# Home\n\n[Away](nowhere.md)\n", encoding="utf-8")
    monkeypatch.setattr(site, "DOCS", pages)
    monkeypatch.setattr(site, "BESIDE", {})
    with pytest.raises(site.NotBuilt, match=r"index\.md:3") as error:
        site.build(tmp_path / "out")
    assert "\x1b" not in str(error.value)
    assert "Traceback" not in str(error.value)
    assert not (tmp_path / "out").exists()
