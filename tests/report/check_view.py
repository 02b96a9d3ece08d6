#!/usr/bin/env python3
"""check_view.py PROGRAM [WORD...]: draws pages in a Chromium: the pages that a test program writes into a folder, or
the page that a program writes after the words.

Every page is loaded wide and narrow, light and dark, with a script put at its end. Checked are: no script error, no
refused request, every chart with its marks and with the numbers that couplet.plot finds in its report, text of 12
pixels, every map with more than one colour, tips and read-outs that answer, tables that sort, the report's own
sentences on the page, names of checkpoints as text, no element wider than the window. With scripts switched off the
conclusion and a table are there. Exit code 77, skipped, where no Chromium runs."""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "python/couplet/report"))
import _resolve  # noqa: E402

BROWSERS = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"]
CASES = [(1280, "light"), (390, "dark")]

# A window is never as narrow as a telephone, but a frame is.
FRAME = """<!DOCTYPE html><html><body style="margin:0"><script>
addEventListener('message', e => document.documentElement.setAttribute('data-probe', e.data));
</script><iframe src="probed.html" style="border:0;width:%dpx;height:900px;color-scheme:%s"></iframe>
</body></html>"""

BARE = """<!DOCTYPE html><html><body><script>
const frame = document.createElement('iframe');
frame.sandbox = 'allow-same-origin';
frame.width = 1000;
frame.height = 900;
frame.srcdoc = %s;
frame.onload = () => {
  const page = frame.contentDocument, count = what => page.querySelectorAll(what).length;
  const sentences = [...page.querySelectorAll('noscript p, noscript h1')].filter(n => n.offsetHeight > 0).length;
  document.documentElement.setAttribute('data-probe', [count('.table td'), sentences, count('svg')].join(' '));
};
document.body.append(frame);
</script></body></html>
"""

# Waits until the page reports that it has drawn all, tries hover, keys and choice, passes findings to its frame.
PROBE = """
<script>
(() => {
const refused = [];
addEventListener('securitypolicyviolation', e => refused.push(e.blockedURI || e.violatedDirective));
function colours(canvas) {
  const seen = new Set(), pen = canvas.getContext('2d');
  for (const c of new Uint32Array(pen.getImageData(0, 0, canvas.width, canvas.height).data.buffer)) seen.add(c);
  return { cells: canvas.width * canvas.height, colours: seen.size, shown: canvas.getBoundingClientRect().width };
}
const point = (of, type, x, y) =>
  of.dispatchEvent(new PointerEvent(type, { clientX: x, clientY: y, bubbles: true }));
function probe(tries) {
  const page = document.documentElement, found = { tries };
  if (!page.dataset.ready && !page.dataset.error && tries < 400) return setTimeout(probe, 10, tries + 1);
  found.ready = page.dataset.ready || '';
  for (const fold of document.querySelectorAll('details')) fold.open = true;
  const bare = ({ x, y, low, high, infinite, name }) => ({ x, y: y || null, low: low || null, high: high || null, infinite: infinite || [], name: name ?? null });
  found.numbers = list.charts.filter(c => FORMS[c.form] && itemsOf(c.of).length).flatMap(c => FORMS[c.form](c, itemsOf(c.of)))
    .map(c => ({ id: c.id, series: (c.series || []).map(bare), boxes: c.boxes || [] }));
  found.charts = charts.filter(c => !c.figure.closest('.maps')).flatMap(c => [...c.figure.querySelectorAll('svg.chart')].map(svg => {
    const box = svg.getBoundingClientRect(), drawn = +svg.getAttribute('viewBox').split(' ')[2];
    return { name: c.id, marks: svg.querySelectorAll('.m').length, bad: /NaN|Infinity|undefined/.test(svg.outerHTML),
      width: box.width, height: box.height, scale: box.width / drawn };
  }));
  found.empty = charts.filter(c => !c.figure.querySelector('svg.chart')).map(c => c.id);
  found.canvases = [...document.querySelectorAll('canvas')].map(colours);
  found.readout = [];
  for (const figure of document.querySelectorAll('.maps figure')) {
    const buttons = figure.parentNode.querySelectorAll('.thumbs button');
    if (buttons.length) buttons[0].click();
    const shown = figure.dataset.shown;
    if (buttons.length) buttons[buttons.length - 1].click();
    const svg = figure.querySelector('svg'), text = () => figure.querySelector('.readout').textContent, first = text();
    svg.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowRight' }));
    const second = text(), image = svg.querySelector('image'), box = image.getBoundingClientRect();
    point(svg, 'pointermove', box.left + box.width - 1, box.top + box.height - 1);
    found.readout.push({ said: [first, second, text()], other: buttons.length < 2 || figure.dataset.shown !== shown,
      columns: Math.round(image.getAttribute('width') / svg.querySelector('.cursor').getAttribute('width')) });
  }
  const dot = document.querySelector('svg.chart [data-tip]');
  if (dot) {
    const at = dot.getBoundingClientRect();
    point(dot, 'pointermove', at.left + 1, at.top + 1);
  }
  found.tip = !dot || !document.getElementById('tip').hidden && document.getElementById('tip').textContent.length > 0;
  const saved = [...document.querySelectorAll('svg.chart')].map(svgText);
  found.saved = saved.every(t => new DOMParser().parseFromString(t, 'image/svg+xml').documentElement.tagName === 'svg');
  found.sorted = [];
  for (const table of document.querySelectorAll('.table table')) {
    const rows = [...table.tBodies[0].rows], heading = table.tHead.rows[0].cells[0];
    if (rows.length < 2 || !heading.onclick) continue;
    const named = rows[0].cells[0].textContent !== '';
    heading.click();
    heading.click();
    const keys = [...table.tBodies[0].rows].map(r => r.cells[0].textContent);
    const numbers = keys.map(numberOf).filter(v => v !== null);
    found.sorted.push({ same: keys.length === rows.length, down: heading.getAttribute('aria-sort') === 'descending',
      whole: !named || keys.every(k => k !== ''),
      order: numbers.every((v, k) => k === 0 || numbers[k - 1] >= v) });
  }
  found.elements = document.querySelectorAll('main b:not(.figure b), main i:not(.figure i), main img').length;
  found.text = document.querySelector('main').textContent;
  found.feet = document.querySelectorAll('main footer').length;
  found.first = [...document.querySelectorAll('.head .figure b')].map(b => b.textContent);
  found.dark = matchMedia('(prefers-color-scheme:dark)').matches;
  found.ground = getComputedStyle(document.body).backgroundColor;
  found.tables = [...document.querySelectorAll('.table')].map(t => ({
    rows: t.querySelectorAll('tbody tr').length, hidden: t.scrollHeight - t.clientHeight,
    height: t.clientHeight }));
  found.window = innerWidth;
  found.wide = document.documentElement.scrollWidth;
  found.error = page.dataset.error || '';
  found.refused = refused;
  parent.postMessage(JSON.stringify(found), '*');
}
probe(0);
})();
</script>
"""


def dump(browser, page, folder, scheme):
    """Returns the page's elements after its scripts have run, and the browser's messages."""
    command = [
        browser,
        *"--headless=new --no-sandbox --disable-gpu --hide-scrollbars".split(),
        f"--user-data-dir={folder}/profile",
        "--window-size=1400,1000",
        f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}",
        "--virtual-time-budget=20000",
        "--dump-dom",
        page.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.stdout, done.stderr


def works(browser, folder):
    """Returns whether the browser can be used: some may not read files here, or not run as this user."""
    page = folder / "hello.html"
    page.write_text("<body><script>document.body.id='hel' + 'lo'</script></body>")
    return 'id="hello"' in dump(browser, page, folder, "light")[0]


def load(browser, page, folder, width, scheme):
    """Returns the findings of the probe in the page."""
    (folder / "probed.html").write_text(page.read_text().replace("</body>", PROBE + "</body>"))
    frame = folder / "frame.html"
    frame.write_text(FRAME % (width, scheme))
    elements, said = dump(browser, frame, folder, scheme)
    hit = re.search(r'data-probe="([^"]*)"', elements)
    if not hit:
        return {"error": f"the probe did not run: {said[-400:]}"}
    text = hit[1].replace("&quot;", '"').replace("&lt;", "<").replace("&gt;", ">")
    return json.loads(text.replace("&nbsp;", " ").replace("&amp;", "&"))


def faults(found, width, scheme):
    """Returns the faults of the findings, as sentences."""
    if found["error"]:
        return [f"script error: {found['error']}"]
    wrong = [] if found["ready"] else ["data-ready was never set"]
    wrong += [f"refused by the page's own policy: {found['refused']}"] if found["refused"] else []
    if found["window"] != width:
        wrong.append(f"the window is {found['window']} wide, not {width}")
    if found["wide"] > found["window"]:
        wrong.append(f"the page is {found['wide']} wide in a window of {found['window']}")
    if found["dark"] != (scheme == "dark") or (found["ground"] == "rgb(255, 255, 255)") == found["dark"]:
        wrong.append(f"{scheme} was asked for, the ground is {found['ground']}")
    for c in found["charts"]:
        if not c["marks"] or c["bad"]:
            wrong.append(f"chart {c['name']} is not drawn: {c}")
        elif not 200 < c["width"] <= width or c["height"] < 40 or c["scale"] < 0.99:
            wrong.append(f"chart {c['name']} is {c['width']} x {c['height']}, of scale {c['scale']}")
    wrong += [f"chart {name} is empty" for name in found["empty"]]
    wrong += [
        f"a table of {t['rows']} rows hides {t['hidden']} pixels"
        for t in found["tables"]
        if t["rows"] <= 60 and t["hidden"] > 1
    ]
    wrong += [
        f"a table of {t['rows']} rows is {t['height']} high"
        for t in found["tables"]
        if t["rows"] > 60 and t["height"] > 800
    ]
    wrong += [f"a table does not sort: {s}" for s in found["sorted"] if not all(s.values())]
    wrong += [
        f"a canvas is blank or hidden: {c}"
        for c in found["canvases"]
        if c["colours"] < (2 if c["cells"] > 4 else 1) or c["shown"] < 20
    ]
    wrong += [
        f"a map does not answer: {r}"
        for r in found["readout"]
        if not r["other"] or len(set(r["said"])) < min(r["columns"], 3)
    ]
    wrong += [f"{found['elements']} elements that no page has: a name became markup"] if found["elements"] else []
    wrong += [] if found["feet"] == 1 else ["the page has no footer"]
    wrong += [] if found["saved"] else ["a chart cannot be saved"]
    return wrong if found["tip"] else wrong + ["a mark shows no tip"]


def differ(a, b):
    """Returns whether two values of charts differ, to the digits of a page."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() != b.keys() or any(differ(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) != len(b) or any(map(differ, a, b))
    if _resolve.is_number(a) and _resolve.is_number(b):
        return abs(a - b) > 1e-9 * max(abs(a), abs(b))
    return a != b


def otherwise_in_python(found, report):
    """Returns charts whose numbers differ from those that couplet.plot draws."""
    charts = [one for one in _resolve.charts_of(report) if one["kind"] != "map"]
    names = ("x", "y", "low", "high", "name")
    there = [
        {
            "series": [
                {**{name: one.get(name) for name in names}, "infinite": one.get("infinite", [])}
                for one in chart.get("series", [])
            ],
            "boxes": [
                {key: v for key, v in box.items() if key != "name"} | {"name": None} for box in chart.get("boxes", [])
            ],
        }
        for chart in charts
    ]
    here = [
        {"series": one["series"], "boxes": [{**box, "name": None} for box in one["boxes"]]} for one in found["numbers"]
    ]
    if len(here) != len(there):
        return [f"{len(here)} charts, couplet.plot has {len(there)}"]
    return [
        f"chart {one['id']} is not that of couplet.plot: {a} {b}"
        for one, a, b in zip(found["numbers"], here, there)
        if differ(a, b)
    ]


def untold(found, report):
    """Returns sentences of the report that the page lacks."""
    items = report.get("checkpoints") or [report]
    said = [line for one in (*items, report.get("routing") or {}) for line in (one.get("verdict") or "").split("\n")]
    for one in items:
        layers = one.get("faulty", []) + one.get("skipped", []) + one.get("layers", [])
        said += [one.get("guess", ""), *one.get("notes", []), *one.get("warnings", []), *one.get("conclusion", [])]
        said += [layer.get("reason") or layer.get("note") or "" for layer in layers if isinstance(layer, dict)]
    return [f"the page does not say: {sentence}" for sentence in said if sentence and sentence not in found["text"]]


def without_scripts(browser, page, folder):
    """Returns the faults of the page if scripts are switched off, as in this frame."""
    frame = folder / "frame.html"
    frame.write_text(BARE % json.dumps(page.read_text()).replace("<", "\\u003c"))
    elements, said = dump(browser, frame, folder, "light")
    hit = re.search(r'data-probe="(\d+) (\d+) (\d+)"', elements)
    if not hit:
        return [f"the page without scripts was not read: {said[-400:]}"]
    tables, sentences, drawn = map(int, hit.groups())
    wrong = ["scripts ran"] if drawn else []
    wrong += [] if tables else ["no table without scripts"]
    return wrong + ([] if sentences > 1 else ["no sentence without scripts"])


def report_of(page):
    data = re.search(r'<script type="application/json" id="couplet-data">(.*?)</script>', page.read_text())
    return json.loads(data[1])["report"]


def main():
    program = pathlib.Path(sys.argv[1]).resolve()
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    wrong = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        words = sys.argv[2:]
        subprocess.run(
            [program, *words, folder / "page.html" if words else folder], stdout=subprocess.DEVNULL, check=True
        )
        pages = sorted(folder.glob("*.html"))
        browser = browser if browser and works(browser, folder) else None
        if not pages:
            wrong.append("no pages were written")
        for page in pages if browser else []:
            for width, scheme in CASES:
                found = load(browser, page, folder, width, scheme)
                said = faults(found, width, scheme)
                if not found["error"]:
                    said += otherwise_in_python(found, report_of(page)) + untold(found, report_of(page))
                wrong += [f"{page.name}, {width} wide, {scheme}: {fault}" for fault in said]
            wrong += [f"{page.name}: {fault}" for fault in without_scripts(browser, page, folder)]
    print("\n".join(wrong))
    if not browser:
        print("not checked: no Chromium runs")
    return 1 if wrong else 0 if browser else 77


sys.exit(main())
