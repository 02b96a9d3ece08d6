"""tests/golden/tokenizers/parts.jsonl has the parts of a tokenizer.json with which the program is tested. These tests
check that it has all types of the package tokenizers, and the ids that the package gives now."""

import json
import shutil
import subprocess
import sys

import couplet
import pytest
from conftest import ROOT

tokenizers = pytest.importorskip("tokenizers")
FOLDER = ROOT / "tests" / "golden" / "tokenizers"


@pytest.fixture(scope="module")
def make_parts():
    sys.path.insert(0, str(FOLDER))
    yield __import__("make_parts")
    sys.path.remove(str(FOLDER))


def types_in(part):
    if isinstance(part, dict):
        yield part.get("type")
        part = list(part.values())
    if isinstance(part, list):
        for member in part:
            yield from types_in(member)


@pytest.mark.parametrize(
    "kind, module, bases",
    [
        ("normalizer", "normalizers", {"Normalizer"}),
        ("pre_tokenizer", "pre_tokenizers", {"PreTokenizer"}),
        ("post_processor", "processors", {"PostProcessor"}),
        ("decoder", "decoders", {"Decoder", "DecodeStream"}),
    ],
)
def test_every_part_is_there(make_parts, kind, module, bases):
    classes = {name for name, value in vars(getattr(tokenizers, module)).items() if isinstance(value, type)}
    tried = {name for _, at, value in make_parts.cases() if at == (kind,) for name in types_in(value)}
    assert classes - bases - tried == set()


def test_every_option_is_there(make_parts):
    written = json.loads(tokenizers.Tokenizer(tokenizers.models.BPE()).to_str())
    tried = {at for _, at, _ in make_parts.cases()}
    assert {key for key in written["model"] if ("model", key) not in tried} == {"type", "vocab"}
    assert {key for key in written if (key,) not in tried} == {"version", "model"}


def test_ids_are_those_of_the_library(make_parts):
    assert list(make_parts.lines()) == [json.loads(line) for line in (FOLDER / "parts.jsonl").open()]


@pytest.mark.skipif(couplet.find_program() is None, reason="the program couplet is not on PATH")
@pytest.mark.parametrize("kind", ["GPTNeoXTokenizer", "PreTrainedTokenizerFast"])
def test_a_folder_that_transformers_saved_is_read(tmp_path, kind):
    transformers = pytest.importorskip("transformers")
    own, saved, text = tmp_path / "own", tmp_path / "saved", tmp_path / "text.txt"
    shutil.copytree(ROOT / "tests" / "golden" / "eval" / "model", own)
    config = json.loads((own / "tokenizer_config.json").read_text())
    (own / "tokenizer_config.json").write_text(json.dumps({**config, "tokenizer_class": kind}))
    tokenizer = transformers.AutoTokenizer.from_pretrained(own)
    tokenizer(["a b", "c d e f"], padding=True, truncation=True, max_length=16)
    transformers.AutoModelForCausalLM.from_pretrained(own).save_pretrained(saved)
    tokenizer.save_pretrained(saved)
    text.write_text("The wheel  turned, they'd say,\n\n 100 times: naïve, nai\u0308ve.")

    def run(*words):
        return subprocess.run([couplet.find_program(), *words], check=True, capture_output=True, text=True)

    made = subprocess.run(
        [couplet.find_program(), "tokenize", "encode", "--ids", "--tokenizer", saved],
        check=True,
        capture_output=True,
        input=text.read_bytes(),
    ).stdout
    assert [int(id) for id in made.split()] == transformers.AutoTokenizer.from_pretrained(saved)(text.read_text())[
        "input_ids"
    ]
    for words in (
        ("eval", saved, "--text", text),
        ("generate", saved, "--prompt", "The", "--tokens", "3"),
        ("export", saved, "--gguf", tmp_path / "model.gguf"),
    ):
        warned = [line for line in run(*words).stderr.splitlines() if "truncation is ignored" in line]
        assert len(warned) == (words[0] != "export"), words
