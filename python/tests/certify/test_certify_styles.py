"""couplet.certify on functions in the styles of public trainers. styles/table.py has the verdicts."""

import pathlib

import pytest
import torch
from couplet import certify
from styles import table

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("name, kind, public, expected", table.TABLE, ids=[row[0] for row in table.TABLE])
def test_the_verdict(name, kind, public, expected):
    got, said = table.judge_function(name, kind)
    assert got == expected, said


@pytest.mark.parametrize("name, kind", [row[:2] for row in table.TABLE if row[3] == "right"])
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_right_in_other_formats(name, kind, dtype):
    certify.assert_right(table.function(name), kind, dtype=dtype, seed=3)


def test_the_table_has_each_function_once():
    names = [row[0] for row in table.TABLE]
    functions = [
        f"{path.stem}.{line.partition('(')[0][4:]}"
        for path in pathlib.Path(table.__file__).parent.glob("*.py")
        for line in path.read_text().splitlines()
        if path.stem != "table" and line.startswith("def ") and not line.startswith("def _")
    ]
    assert len(names) == 24 and sorted(names) == sorted(functions)
