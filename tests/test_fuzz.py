"""What hypothesis makes up: any bytes and rows as data.

Some dozen examples of each property; the variable FUZZ_EXAMPLES asks for more.
"""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest
from conftest import require_package

from data.files.read import read_preferences, read_prompts, read_responses, read_text
from harness.errors import UserError

hypothesis = require_package("hypothesis")
given, st = hypothesis.given, require_package("hypothesis.strategies")

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "40"))
fuzz = hypothesis.settings(
    max_examples=EXAMPLES, derandomize=True, deadline=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)  # fmt: skip
READERS = (read_preferences, read_responses, read_prompts)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


def refused_or(read, path: Path):
    """What it gives; None if it refuses the file in one sentence that names it."""
    try:
        return read(path)
    except UserError as error:
        text = str(error)
        assert "\n" not in text and path.name in text and len(text) < 2000, text
        return None


ANY_TEXT = st.text(max_size=20)
PLAIN = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), ANY_TEXT,
    st.sampled_from(["\n\nHuman: a\n\nAssistant: b", "#### 7", " ", "a"]),
)  # fmt: skip
ROLES = st.sampled_from(["user", "assistant", "system", "x"])
TURN = st.fixed_dictionaries({}, optional={"role": ROLES, "content": PLAIN})
VALUE = st.recursive(
    st.one_of(PLAIN, st.lists(TURN, max_size=4)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(ANY_TEXT, inner, max_size=3)
    ),
    max_leaves=6,
)
LIKELY = st.sampled_from([
    ("prompt", "chosen", "rejected"), ("chosen", "rejected"), ("prompt", "response"),
    ("prompt", "answer"), ("prompt",), ("question", "answer"),
    ("instruction", "input", "output"), ("instruction", "input", "chosen", "rejected"),
    ("text",), ("messages",), ("prompt", "completion"), ("system", "messages", "prompt"),
]).flatmap(lambda keys: st.fixed_dictionaries(dict.fromkeys(keys, VALUE)))  # fmt: skip


@fuzz
@given(st.lists(st.one_of(LIKELY, VALUE), min_size=1, max_size=4), st.booleans())
def test_rows_of_any_values_are_read_or_refused(folder, rows, lines):
    path = folder / "rows.jsonl"
    text = "\n".join(map(json.dumps, rows)) if lines else json.dumps(rows)
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    for read in READERS:
        result = refused_or(read, path)
        for record in result.records if result else []:
            others = ("meta", "answer", "turns")
            texts = [value for key, value in vars(record).items() if key not in others]
            assert all(value is None or (isinstance(value, str) and value) for value in texts)
            assert record.prompt.strip() and "\n" not in result.summary()
    refused_or(read_text, path)


@fuzz
@given(st.one_of(
    st.binary(max_size=300),
    st.binary(max_size=100).map(gzip.compress),
    st.tuples(st.binary(max_size=200), st.integers(0, 60)).map(
        lambda pair: gzip.compress(pair[0])[: pair[1]]
    ),
    st.text(alphabet='[]{}",:\\ \n0123456789prompttruenull', max_size=120).map(str.encode),
))  # fmt: skip
def test_any_bytes_are_read_or_refused(folder, content):
    path = folder / "file.json"
    path.write_bytes(content)
    for read in (*READERS, read_text):
        refused_or(read, path)
    path = folder / "file.txt"
    path.write_bytes(content)
    refused_or(read_text, path)
