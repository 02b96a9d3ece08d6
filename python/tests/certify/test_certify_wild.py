"""couplet.certify on public implementations. docs/verdicts.md has these verdicts."""

import importlib
import pathlib

import pytest
import verdicts
from couplet import certify

PAGE = (pathlib.Path(__file__).parents[3] / "docs" / "verdicts.md").read_text()


pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_page_has_the_verdicts():
    assert verdicts.table_of_rebuilt() in PAGE


def test_each_is_short_and_has_its_source():
    for path in verdicts.WILD.glob("*.py"):
        text = path.read_text()
        assert len(text.splitlines()) <= 30 and text.startswith('"""') and path.stem.split("_")[1] in text, path


@pytest.mark.parametrize("family", ("mixtral", "olmoe", "qwen3_moe"))
def test_transformers_as_installed(family):
    function = importlib.import_module(f"transformers.models.{family}.modeling_{family}").load_balancing_loss_func
    certify.assert_right(function, "load-balancing-mixtral")
