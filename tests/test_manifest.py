"""The manifest: written and read again, and what is said of one that cannot be."""

import datetime
import json
import string
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orpheus_ws import manifest as m
from orpheus_ws.errors import StartupError

WORDS = st.text(min_size=1).filter(lambda text: bool(text.strip()))
HASHES = st.text(string.hexdigits[:16], min_size=64, max_size=64)
COUNTS = st.integers(1, 2**40)
FILES = st.builds(
    m.File, size=st.integers(0, 2**40), sha256=HASHES, header_sha256=st.none() | HASHES
)
NAMES = st.text(min_size=1).filter(lambda text: not set(text) & set("/\\\0"))
MODELS = st.builds(
    m.Model,
    architecture=WORDS,
    files=st.dictionaries(NAMES, FILES, min_size=1, max_size=3),
    sha256=HASHES,
)
EVIDENCE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
CAPACITIES = st.builds(
    m.Capacity,
    gpu=WORDS,
    driver=WORDS,
    model=HASHES,
    streams=COUNTS,
    date=st.dates(),
    evidence=st.dictionaries(st.text(), EVIDENCE, max_size=3),
)
MANIFESTS = st.builds(
    m.Manifest,
    model=MODELS,
    quantization=st.builds(m.Quantization, weights=st.none() | WORDS, kv_cache=st.none() | WORDS),
    built_with=st.dictionaries(WORDS, WORDS, max_size=3),
    limits=st.builds(
        m.Limits,
        max_batch_size=COUNTS,
        max_num_tokens=COUNTS,
        max_prompt_tokens=COUNTS,
        max_tokens=COUNTS,
        graph_sizes=st.lists(COUNTS, max_size=4).map(tuple),
    ),
    voices=st.lists(WORDS, min_size=1, max_size=4, unique=True).map(tuple),
    capacity=st.lists(
        CAPACITIES, max_size=3, unique_by=lambda each: (each.gpu, each.driver, each.model)
    ).map(tuple),
)

HASH = "0" * 64
PLAIN = m.Manifest(
    model=m.Model(
        architecture="LlamaForCausalLM",
        files={"config.json": m.File(size=3, sha256=HASH)},
        sha256=HASH,
    ),
    built_with={"tensorrt_llm": "1.2.1"},
    limits=m.Limits(max_batch_size=64, max_num_tokens=8192, max_prompt_tokens=512, max_tokens=2048),
    voices=("tara", "leo"),
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A place for a manifest."""
    return tmp_path_factory.mktemp("model") / m.NAME


@given(MANIFESTS)
@settings(deadline=None)
def test_what_is_written_is_read(path: Path, manifest: m.Manifest) -> None:
    """A manifest comes back as it was, equal ones are equal bytes, and nothing else is left behind."""
    m.write(path, manifest)
    content = path.read_bytes()
    assert m.read(path) == manifest
    m.write(path, m.read(path))
    assert path.read_bytes() == content
    assert [each.name for each in path.parent.iterdir()] == [m.NAME]


@given(st.dictionaries(NAMES, FILES, min_size=1, max_size=4), st.data())
def test_one_hash_for_all_files(files: dict[str, m.File], data: st.DataObject) -> None:
    """It does not depend on their order, and changes with any name, size or content."""
    shuffled = dict(data.draw(st.permutations(list(files.items()))))
    assert m.hash_of(shuffled) == m.hash_of(files)
    name = data.draw(st.sampled_from(sorted(files)))
    other = msgspec.structs.replace(files[name], size=files[name].size + 1)
    assert m.hash_of(files | {name: other}) != m.hash_of(files)
    assert m.hash_of({each: files[each] for each in files if each != name}) != m.hash_of(files)


@given(MANIFESTS, CAPACITIES)
def test_a_capacity_is_found_by_its_key(manifest: m.Manifest, measured: m.Capacity) -> None:
    """What was added last is found by GPU, driver and model together, and others stay."""

    def found(**other: str) -> m.Capacity | None:
        key = {"gpu": measured.gpu, "driver": measured.driver, "model": measured.model}
        return m.find_capacity(m.add_capacity(manifest, measured), **(key | other))

    assert found() == measured
    again = msgspec.structs.replace(measured, streams=measured.streams + 1)
    replaced = m.add_capacity(m.add_capacity(manifest, measured), again)
    assert again in replaced.capacity
    assert measured not in replaced.capacity
    empty = msgspec.structs.replace(manifest, capacity=())
    only = m.add_capacity(empty, measured)
    for other in ({"gpu": "x" + measured.gpu}, {"driver": "x" + measured.driver}):
        key = {"gpu": measured.gpu, "driver": measured.driver, "model": measured.model} | other
        assert m.find_capacity(only, **key) is None


def _changed(change: dict[str, Any]) -> bytes:
    content = msgspec.to_builtins(PLAIN)
    for keys, value in change.items():
        *sections, last = keys.split("/")
        part = content
        for section in sections:
            part = part[section]
        if value is None:
            del part[last]
        else:
            part[last] = value
    return json.dumps(content, default=str).encode()


MEASURED = {"gpu": "g", "driver": "d", "model": HASH, "streams": 1, "date": "2026-11-30"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not valid JSON"),
        (b"{" * 100_000, "not valid JSON"),
        (b'{"format": 1, "model": "\xff"}', "`model` has a wrong value"),
        (b"[]", "is no manifest"),
        (b'{"voices": ["tara"]}', "`format` is missing"),
        (_changed({"format": 2}), "has the format 2, and this orpheus-ws reads 1"),
        (_changed({"voice": "tara"}), "`voice` is unknown"),
        (_changed({"limits/max_batch": 3}), "`limits.max_batch` is unknown"),
        (_changed({"limits/max_tokens": None}), "`limits.max_tokens` is missing"),
        (_changed({"limits/max_tokens": 0}), "`limits.max_tokens` has a wrong value"),
        (_changed({"voices": []}), "`voices` has a wrong value"),
        (_changed({"voices": ["tara", " "]}), "`voices` has a wrong value"),
        (_changed({"voices": ["tara", "tara"]}), "do not go together"),
        (_changed({"model/sha256": "0"}), "`model.sha256` has a wrong value"),
        (_changed({"model/files": {}}), "`model.files` has a wrong value"),
        (_changed({"model/files": {"..\n/x": {"size": 1, "sha256": HASH}}}), "`model.files`"),
        (_changed({"capacity": [MEASURED | {"date": "soon"}]}), "`capacity` has a wrong value"),
        (_changed({"capacity": [MEASURED, MEASURED]}), "do not go together"),
    ],
)
def test_what_is_no_manifest(tmp_path: Path, content: bytes, said: str) -> None:
    """One line names the file, the key and the command that makes a new one."""
    file = tmp_path / m.NAME
    file.write_bytes(content)
    with pytest.raises(StartupError) as caught:
        m.read(file)
    assert said in str(caught.value)
    assert str(file) in str(caught.value)
    assert "python -m engine_build manifest" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_manifest(tmp_path: Path) -> None:
    """Where none is, the error says how to make one."""
    with pytest.raises(StartupError, match="make it with `python -m engine_build manifest`"):
        m.read(tmp_path / m.NAME)


def test_a_manifest_that_cannot_be_written(tmp_path: Path) -> None:
    """The old one stays as it is, and no part of the new one is left."""
    with pytest.raises(StartupError, match="cannot be written"):
        m.write(tmp_path / "nowhere" / m.NAME, PLAIN)
    (tmp_path / m.NAME).mkdir()
    with pytest.raises(StartupError, match="cannot be written"):
        m.write(tmp_path / m.NAME, PLAIN)
    assert [each.name for each in tmp_path.iterdir()] == [m.NAME]


def test_a_date_is_a_date(tmp_path: Path) -> None:
    """It is written as ISO 8601 has it."""
    measured = m.Capacity(
        gpu="g", driver="d", model=HASH, streams=1, date=datetime.date(2026, 11, 30)
    )
    m.write(tmp_path / m.NAME, m.add_capacity(PLAIN, measured))
    assert '"date": "2026-11-30"' in (tmp_path / m.NAME).read_text(encoding="utf-8")
