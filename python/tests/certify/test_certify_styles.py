"""couplet.certify on functions in the styles of public trainers: styles/table.py has the verdicts."""

import pathlib

import pytest
from styles import table

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("name, kind, public, expected", table.TABLE, ids=[row[0] for row in table.TABLE])
def test_the_verdict(name, kind, public, expected):
    got, said = table.judge_function(name, kind)
    assert got == expected, said


def test_the_table_has_each_function_once():
    names = [row[0] for row in table.TABLE]
    functions = [
        f"{path.stem}.{line.partition('(')[0][4:]}"
        for path in pathlib.Path(table.__file__).parent.glob("*.py")
        for line in path.read_text().splitlines()
        if path.stem != "table" and line.startswith("def ") and not line.startswith("def _")
    ]
    assert len(names) == 24 and sorted(names) == sorted(functions)
