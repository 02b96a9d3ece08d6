#!/usr/bin/env python3
"""check_page.py PROGRAM: the pages and chart files of study/test_page, read by others than ourselves.

Every SVG file must parse as XML. Where a Chromium is installed every page is loaded in it, wide and
narrow, light and dark, by a script put at its end: no script error, no request refused, every chart
with its marks, every canvas with more than one colour, nothing wider than the window. Exit code 77,
skipped, where there is none that runs."""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml

BROWSERS = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"]
MARKS = ".c-dot,.c-point,.c-inf,.c-box,.c-band,.c-bar rect"
CASES = [(1280, "light"), (390, "dark")]

# A window is never as narrow as a telephone, a frame is.
FRAME = """<!DOCTYPE html><html><body style="margin:0"><script>
addEventListener('message', e => document.documentElement.setAttribute('data-probe', e.data));
</script><iframe src="probed.html" style="border:0;width:%dpx;height:900px;color-scheme:%s"></iframe>
</body></html>"""

# Waits until the page says that it has drawn all, tries hover, keys and choice, and hands what it
# found to the frame around it.
PROBE = """
<script>
(() => {
const refused = [];
addEventListener('securitypolicyviolation', e => refused.push(e.blockedURI || e.violatedDirective));
function colours(canvas) {
  const n = canvas.width, seen = new Set();
  const data = new Uint32Array(canvas.getContext('2d').getImageData(0, 0, n, n).data.buffer);
  for (const c of data) seen.add(c);
  return { size: n, colours: seen.size, shown: canvas.getBoundingClientRect().width };
}
function probe(tries) {
  const page = document.documentElement, found = { tries };
  if (!page.dataset.ready && !page.dataset.error && tries < 400) return setTimeout(probe, 10, tries + 1);
  found.ready = page.dataset.ready || '';
  found.charts = [...document.querySelectorAll('svg.chart')].map(s => ({
    name: s.getAttribute('aria-label') || s.textContent.trim().slice(0, 30),
    marks: s.querySelectorAll('MARKS').length, empty: s.textContent.includes('no values'),
    width: s.getBoundingClientRect().width, height: s.getBoundingClientRect().height }));
  found.canvases = [...document.querySelectorAll('canvas')].map(colours);
  found.cells = [...document.querySelectorAll('.thumbs button')].map(b => +b.dataset.n);
  found.dark = matchMedia('(prefers-color-scheme:dark)').matches;
  found.ground = getComputedStyle(document.body).backgroundColor;
  found.readout = [];
  for (const f of document.querySelectorAll('figure.heat')) {
    const big = f.querySelector('.big'), text = () => f.querySelector('.readout').textContent;
    f.querySelector('.thumbs button:last-child').click();
    const first = text(), box = big.getBoundingClientRect();
    big.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowRight' }));
    const second = text();
    big.dispatchEvent(new PointerEvent('pointermove', { clientX: box.left + box.width - 1,
                                                        clientY: box.top + 1, bubbles: true }));
    found.readout.push([first, second, text(), f.querySelector('.which').textContent]);
  }
  const dot = document.querySelector('svg.chart [data-tip]');
  const at = dot.getBoundingClientRect();
  dot.dispatchEvent(new PointerEvent('pointermove', { clientX: at.left + 1, clientY: at.top + 1,
                                                      bubbles: true }));
  found.tip = document.getElementById('tip').hidden ? '' : document.getElementById('tip').textContent;
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
""".replace("MARKS", MARKS)


def dump(browser, page, folder, scheme):
    """The page's elements after its scripts have run, and what the browser said."""
    command = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
               f"--user-data-dir={folder}/profile", "--window-size=1400,1000",
               f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}",
               "--virtual-time-budget=20000", "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.stdout, done.stderr


def works(browser, folder):
    """Whether the browser can be used at all: some may not read files here, or not run as this user."""
    page = folder / "hello.html"
    page.write_text("<body><script>document.body.id='hel' + 'lo'</script></body>")
    return 'id="hello"' in dump(browser, page, folder, "light")[0]


def load(browser, page, folder, width, scheme):
    """What the probe found in the page."""
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
    """What is wrong with it, as sentences."""
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
    wrong += [f"chart {c['name']!r} has no mark" for c in found["charts"]
              if not c["marks"] and not c["empty"]]
    wrong += [f"chart {c['name']!r} is {c['width']} x {c['height']}" for c in found["charts"]
              if not 200 < c["width"] <= width or c["height"] < 40]
    wrong += [f"a table of {t['rows']} rows hides {t['hidden']} pixels" for t in found["tables"]
              if t["rows"] <= 60 and t["hidden"] > 1]
    wrong += [f"a table of {t['rows']} rows is {t['height']} high" for t in found["tables"]
              if t["rows"] > 60 and t["height"] > 800]
    canvases = found["canvases"]
    if len(canvases) != len(found["cells"]) + len(found["readout"]):
        wrong.append(f"{len(canvases)} canvases for {len(found['cells'])} layers")
    wrong += [f"a canvas is blank or hidden: {c}" for c in canvases
              if c["colours"] < (2 if c["size"] > 1 else 1) or c["shown"] < 20]
    for first, second, third, which in found["readout"]:
        one = max(found["cells"]) == 1
        if not re.match(r"Router row \d+, expert \d+: M = ", third) or not which:
            wrong.append(f"the large map says {third!r}")
        if not one and len({first, second, third}) < 3:
            wrong.append(f"the large map always says {first!r}")
    return wrong if found["tip"] else wrong + ["a mark shows no tip"]


def main():
    program = pathlib.Path(sys.argv[1]).resolve()
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    wrong = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        subprocess.run([program, folder], check=True)
        files = sorted(folder.rglob("*.svg"))
        for file in files:
            root = xml.parse(file).getroot()
            if root.tag != "{http://www.w3.org/2000/svg}svg" or not root.get("viewBox"):
                wrong.append(f"{file.relative_to(folder)}: is no SVG")
        pages = sorted(folder.glob("*.html"))
        browser = browser if browser and works(browser, folder) else None
        if len(pages) < 5 or len(files) < 50:
            wrong.append(f"only {len(pages)} pages and {len(files)} charts were written")
        for page in pages if browser else []:
            for width, scheme in CASES:
                found = load(browser, page, folder, width, scheme)
                wrong += [f"{page.name}, {width} wide, {scheme}: {fault}"
                          for fault in faults(found, width, scheme)]
    print("\n".join(wrong))
    if not browser:
        print("there is no Chromium that runs here: the pages were not loaded")
    return 1 if wrong else 0 if browser else 77


sys.exit(main())
