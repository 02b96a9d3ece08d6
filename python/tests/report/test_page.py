"""couplet.report.page writes the page that the program writes, complete and escaped."""

import json
import pathlib
import re

import pytest
from couplet.report import _resolve, page

DATA = json.loads(pathlib.Path(__file__).with_name("page.json").read_text(encoding="utf-8"))


def test_a_page_has_all_parts():
    made = page.page("inspect", "A & <b>", DATA["report"], DATA["made"], ["Said <i>."], ["a", "b"], [["1", "<2>"]])
    assert "{{" not in made and made.startswith("<!DOCTYPE html>") and made.endswith("</html>\n")
    assert _resolve.asset("view.js") in made and _resolve.asset("view.css") in made
    assert "<title>A &amp; &lt;b&gt;</title>" in made and "<p>Said &lt;i&gt;.</p>" in made
    assert "<th>1</th>\n<td>&lt;2&gt;</td>" in made and "<b>" not in made
    held = re.search(r'id="couplet-data">(.*?)</script>', made)[1]
    assert json.loads(held) == {"kind": "inspect", "title": "A & <b>", "made": DATA["made"], "report": DATA["report"]}
    assert json.loads(re.search(r'id="couplet-charts">(.*?)</script>', made, re.S)[1])["charts"]


def test_data_cannot_end_its_element():
    made = page.page("compare", "t", {"name": "</script><script>alert(1)</script>"})
    assert made.count("</script>") == 3 and "\\u003c/script>" in made


def test_no_number_that_json_lacks():
    with pytest.raises(ValueError):
        page.page("compare", "t", {"x": float("nan")})
