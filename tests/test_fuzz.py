"""What hypothesis makes up: any bytes and rows as data, any header of weights.

Some dozen examples of each property; the variable FUZZ_EXAMPLES asks for more.
"""

from __future__ import annotations

import gzip
import json
import os
from functools import cache
from pathlib import Path

import pytest
import torch
from conftest import given, require_package, st

from data.readers import DataError, read_preferences, read_prompts, read_responses, read_text
from gpt.checkpoint import load_gpt, save_gpt
from gpt.model import GPT, GPTConfig
from gpt.tokenizer import load_tokenizer
from harness.errors import UserError
from harness.files import keep_until, read_jsonl
from harness.paths import MODEL_FILE

hypothesis = require_package("hypothesis")

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "40"))
fuzz = hypothesis.settings(
    max_examples=EXAMPLES,
    derandomize=True,
    deadline=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)
TOKENIZER = load_tokenizer("glassbox")
READERS = (read_preferences, read_responses, read_prompts)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


def refused_or(read, path: Path):
    """What it gives; None if it refuses the file in one sentence that names it."""
    try:
        return read(path)
    except (DataError, UserError) as error:
        text = str(error)
        assert "\n" not in text and path.name in text and len(text) < 2000, text
        return None


# Readers

ANY_TEXT = st.text(max_size=20)
PLAIN = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), ANY_TEXT,
    st.sampled_from(["\n\nHuman: a\n\nAssistant: b", "#### 7", " ", "a"]),
)  # fmt: skip
TURN = st.fixed_dictionaries(
    {}, optional={"role": st.sampled_from(["user", "assistant", "system", "x"]), "content": PLAIN}
)
VALUE = st.recursive(
    st.one_of(PLAIN, st.lists(TURN, max_size=4)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(ANY_TEXT, inner, max_size=3)
    ),
    max_leaves=6,
)
KEYS = (
    "question", "answer",
    "instruction", "input", "output", "chosen", "rejected", "prompt", "completion", "label",
    "response", "messages", "score_chosen", "score_rejected", "margin", "text", "step",
)  # fmt: skip
ROW = st.dictionaries(st.one_of(st.sampled_from(KEYS), ANY_TEXT), VALUE, max_size=5)
LIKELY = st.sampled_from([
    ("prompt", "chosen", "rejected"), ("chosen", "rejected"), ("prompt", "response"), ("messages",),
    ("prompt", "completion"), ("prompt", "answer"), ("prompt",), ("question", "answer"),
    ("instruction", "input", "output"), ("instruction", "input", "chosen", "rejected"),
    ("text",),
]).flatmap(lambda keys: st.fixed_dictionaries(dict.fromkeys(keys, VALUE)))  # fmt: skip


@fuzz
@given(st.lists(st.one_of(ROW, LIKELY, VALUE), min_size=1, max_size=4), st.booleans())
def test_rows_of_any_values_are_read_or_refused(folder, rows, lines):
    path = folder / "rows.jsonl"
    text = "\n".join(map(json.dumps, rows)) if lines else json.dumps(rows)
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    for read in READERS:
        result = refused_or(read, path)
        for record in result.records if result else []:
            texts = [value for key, value in vars(record).items() if key != "meta"]
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


@fuzz
@given(st.one_of(
    st.binary(max_size=200),
    st.lists(st.one_of(VALUE, st.fixed_dictionaries({"step": PLAIN})), max_size=4).map(
        lambda rows: "\n".join(map(json.dumps, rows)).encode("utf-8", "surrogatepass")
    ),
))  # fmt: skip
def test_any_metrics_are_read_or_refused(folder, content):
    path = folder / "metrics.jsonl"
    path.write_bytes(content)
    rows = refused_or(read_jsonl, path)
    kept = refused_or(lambda file: keep_until(file, 3), path)
    if kept is None:
        assert path.read_bytes() == content  # it refuses before it touches the file
    else:
        assert kept == [row for row in rows if row["step"] <= 3] or "nan" in str(rows)


# Models


@cache
def model_bytes(folder: Path) -> bytes:
    shape = GPTConfig(TOKENIZER.n_vocab, context=8, n_layer=1, n_head=1, n_embd=2)
    model = GPT(shape).initialize(torch.Generator().manual_seed(0))
    save_gpt(folder / MODEL_FILE, model, TOKENIZER)
    return (folder / MODEL_FILE).read_bytes()


@fuzz
@given(st.data())
def test_a_changed_header_is_refused_or_harmless(folder, data):
    """A byte, or several, become others; what loads all the same is a model of its own tensors."""
    content = bytearray(model_bytes(folder))
    end = 8 + int.from_bytes(content[:8], "little")
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, end - 1))
        content[place] = data.draw(
            st.one_of(st.integers(0, 255), st.sampled_from(b'0123456789"{}[],'))
        )
    path = folder / "changed" / MODEL_FILE
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    loaded = refused_or(load_gpt, path)
    if loaded is not None:
        assert loaded[0].wte.weight.shape == (TOKENIZER.n_vocab, 2)
