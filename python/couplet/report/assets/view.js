'use strict';
// Draws a report: the charts and tables of charts.json from the JSON that `--json` writes.
// docs/formats.md, "Pages", has the forms of its rows.
const root = document.documentElement;
addEventListener('error', e => { root.dataset.error = e.message || 'error' });
addEventListener('unhandledrejection', e => { root.dataset.error = String(e.reason) });

const view = JSON.parse(document.getElementById('couplet-data').textContent);
const list = JSON.parse(document.getElementById('couplet-charts').textContent);

// ---- figures of the report ----

// Returns member `names` of a value: "@" is the alpha that is shown, "*" every element, "#" the place of the element `e`,
// "$" the name of its panel.
function member(from, names, e = {}) {
  for (let k = 0; k < names.length && from != null; k++) {
    if (names[k] === '*') return Object.values(from).map(one => member(one, names.slice(k + 1), e));
    from = names[k] === '@' ? from['1' in from ? '1' : Object.keys(from)[0]]
      : from[names[k] === '#' ? e.place : names[k] === '$' ? e.panel : names[k]];
  }
  return from;
}

// Returns the member of a key, which begins at the element `e`, or after "/" at its item.
function read(e, key) {
  if (key === '') return e.at;
  return key[0] === '/' ? member(e.item.at, key.slice(1).split('.'), e) : member(e.at, key.split('.'), e);
}
// Returns a text, or for "/PATH" the member of the report at PATH.
const textOf = (text, item) => text && text[0] === '/' ? read({ item }, text) : text;

// Returns a number, Infinity, or null.
function valueOf(e, of) {
  if (read(e, of.key + '_infinite') === true) return Infinity;
  const x = read(e, of.key), divisor = of.over ? read(e, of.over) : 1;
  if (typeof x !== 'number' || typeof divisor !== 'number') return null;
  return Number.isFinite(x / divisor) ? x / divisor * (of.times || 1) : null;
}

const runName = path => path.replace(/\/+$/, '').split('/').slice(/\/step-\d+\/*$/.test(path) ? -2 : -1).join('/');

// Returns the parts that are shown side by side: checkpoints, or the whole report.
function itemsOf(of) {
  const report = view.report;
  if (of === 'routing') return report.routing ? [{ at: report.routing, name: runName(report.routing.model) }] : [];
  if (of !== view.kind) return [];
  const all = report.checkpoints || (of !== 'inspect' || report.layers ? [report] : []);
  return all.map(at => ({ at, name: at.checkpoint ? runName(at.checkpoint) : '' }));
}

function nameOf(one, key) {
  if (one == null || typeof one !== 'object') return String(key);
  const layer = one.layer != null ? (one.part ? one.part + ' ' : '') + one.layer : null;
  return String(one.name ?? layer ?? (one.source === null ? 'all' : one.source) ?? one.setting ?? one.group ?? one.other ?? key);
}

// Returns the elements of an item that a chart or a table shows: {item, at, place, panel, name}.
function elementsOf(item, each = 'layers', panel = '') {
  if (each === '') return [{ item, at: item.at, place: 0, panel, name: item.name }];
  const [outer, inner] = each.split('.*.');
  if (inner) return elementsOf(item, outer).flatMap((one, _, { length }) => elementsOf({ at: one.at }, inner)
    .map(e => ({ ...e, item, name: length > 1 ? `${one.name}, ${e.name}` : e.name })));
  const all = member(item.at, each.split('.')) || [];
  return Object.keys(all).map((key, place) => ({ item, at: all[key], place, panel, name: nameOf(all[key], key) }));
}

function quantiles(values) {
  const x = values.filter(Number.isFinite).sort((a, b) => a - b), last = x.length - 1;
  if (last < 0) return null;
  const at = share => {
    const i = Math.min(Math.floor(share * last), last), next = Math.min(i + 1, last);
    return x[i] + (x[next] - x[i]) * (share * last - i);
  };
  return { low: x[0], q05: at(.05), q25: at(.25), q50: at(.5), q75: at(.75), q95: at(.95), high: x[last],
    mean: x.reduce((sum, v) => sum + v, 0) / x.length };
}

function boxOf(e, chart) {
  let box = read(e, chart.key);
  if (!Array.isArray(box)) return box || null;
  const mean = chart.over_mean ? box.reduce((sum, v) => sum + v, 0) / box.length : 1;
  return quantiles(box.map(v => v / mean));
}

// ---- charts with their numbers: {id, kind, title, caption, x, y, series or boxes} ----

const LINES = 8, MARKED = 80, WIDE = 30, SHOWN = 4; // colours; points of a curve with marks; ends of a logarithmic axis; values of a first figure

const curveOf = (rows, of, places) => {
  const by = new Map(rows.map(e => [e.name, valueOf(e, of)]));
  const y = places.map(name => by.get(name) ?? null);
  return { x: places.map((_, k) => k), y: y.map(v => v === Infinity ? null : v),
    infinite: places.map((_, k) => k).filter(k => y[k] === Infinity) };
};
const hasValue = curve => curve.infinite.length > 0 || curve.y.some(v => v !== null);

function bandOf(rows, of, places) {
  const mean = curveOf(rows, of, places), sd = curveOf(rows, { ...of, key: of.sd }, places);
  const end = sign => mean.y.map((v, k) => v === null || sd.y[k] === null ? null : v + sign * of.by * sd.y[k]);
  return { name: of.name, group: -1, x: mean.x, low: end(-1), high: end(1) };
}

const rulesOf = ({ rule }, [item]) => rule ? [{ name: textOf(rule.name, item), group: -1, x: [0], y: [rule.at], style: 'rule' }] : [];

// Returns charts of lines. With one item each line has a colour. With several each item has a colour, and if more than
// six lines would share a picture, each solid line has a panel.
function lineCharts(chart, items) {
  const rows = items.map(item => elementsOf(item, chart.each));
  const places = [...new Set(rows.flat().map(e => e.name))];
  if (places.length < 2) return [];
  const lines = chart.lines.filter(of => rows.some(one => hasValue(curveOf(one, of, places))));
  const solid = lines.filter(of => !of.dashed), shown = [...lines.filter(of => of.colour >= 0), ...lines.filter(of => of.colour < 0)];
  if (!solid.length) return [];
  const split = items.length > 1 && solid.length > 1 && items.length * lines.filter(of => of.colour >= 0).length > 6;
  return (split ? solid : [null]).map(only => {
    const series = [];
    items.forEach((item, v) => {
      for (const of of shown) {
        if (only && of !== only && !(of.dashed && (of.colour < 0 || of.colour === only.colour))) continue;
        const grey = of.colour < 0, first = of === (only || solid[0]), own = only ? of.name.replace(only.name + ', ', '') : of.name;
        if (grey && v < items.length - 1) continue;
        series.push({ ...curveOf(rows[v], of, places), group: grey ? -1 : items.length > 1 ? v : of.colour,
          name: items.length < 2 || grey ? of.name : first ? item.name : `${item.name}, ${own}`,
          style: of.dashed || items.length > 1 && !first ? 'dashed' : 'line', marks: !of.dashed });
      }
      if (chart.band && !v && items.length === 1) series.push(bandOf(rows[v], chart.band, places));
    });
    series.push(...rulesOf(chart, items));
    return { ...chart, kind: 'lines', panel: only && only.name, series, x: { label: 'layer', ...chart.x, names: places } };
  });
}

// Returns the points that have a number, from `first` on.
function pointsOf(one, first) {
  const kept = one.x.map((_, k) => k).filter(k => one.y[k] !== null && one.x[k] >= first), of = row => row && kept.map(k => row[k]);
  return { ...one, x: of(one.x), y: of(one.y), low: of(one.low), high: of(one.high), marks: kept.length <= MARKED };
}

// Returns a curve for each element: over the array `at`, the names of an object of numbers, or the places of a list. The
// colours of "groups" are the colours of the report's groups.
function curveCharts(chart, items, panel) {
  const series = [];
  items.forEach((item, v) => {
    const rows = elementsOf(item, chart.each, panel), names = chart.colours === 'groups' ? elementsOf(item, 'groups').map(e => e.name) : null;
    rows.forEach((e, k) => {
      for (const of of chart.lines || [{ key: chart.key }]) {
        const values = read(e, of.key);
        if (!values || typeof values !== 'object') continue;
        const keys = Object.keys(values).sort((a, b) => a - b), x = chart.at ? read(e, chart.at) : keys.map(Number);
        const n = (names || rows).length, at = names ? names.indexOf(e.name) : k, ramp = items.length < 2 && (!names || n > LINES);
        series.push({ x, y: keys.map(key => Number.isFinite(values[key]) ? values[key] : null), low: of.low && read(e, of.low),
          high: of.high && read(e, of.high), group: names ? at : v, share: ramp ? n > 1 ? at / (n - 1) : 0 : null,
          marks: x.length <= MARKED, name: items.length > 1 ? k ? null : item.name : names ? e.name : `layer ${e.name}` });
      }
    });
  });
  const last = series.reduce((most, s) => s.x.reduce((a, b) => Math.max(a, b), most), 0);
  const drawn = series.map(s => chart.at ? pointsOf(s, last * (chart.x.from || 0)) : s).filter(s => s.y.some(y => y !== null));
  if (!drawn.length) return [];
  const ramp = drawn[0].share != null && drawn.length > 1 ? [drawn[0].name, drawn[drawn.length - 1].name] : null;
  if (!chart.at && drawn.every(s => s.y.every(y => y === 0)))
    return [{ ...chart, kind: 'lines', series: [], caption: `${chart.y.label} is 0 at every ${chart.x.label}, in every layer.` }];
  return [{ ...chart, kind: 'lines', panel, series: [...drawn, ...rulesOf(chart, items)], ramp }];
}

function boxCharts(chart, items) {
  const rows = items.map(item => elementsOf(item, chart.each));
  const places = [...new Set(rows.flat().map(e => e.name))];
  const boxes = rows.flatMap((own, group) => own.map(e => ({ ...boxOf(e, chart), group, place: places.indexOf(e.name) })))
    .filter(box => box.q50 != null);
  if (!boxes.length || places.length < 2) return [];
  return [{ ...chart, kind: 'boxes', boxes, groups: items.length > 1 ? items.map(item => item.name) : null,
    x: { label: 'layer', ...chart.x, names: places } }];
}

// Returns points with error bars of two standard errors: the headline of each task.
function dotCharts(chart, items) {
  const rows = items.flatMap(item => elementsOf(item, chart.each)).filter(e => valueOf(e, chart.lines[0]) !== null);
  const places = rows.map(e => e.name);
  if (!rows.length) return [];
  const series = chart.lines.map(of => {
    const curve = curveOf(rows, of, places), error = of.error && curveOf(rows, { key: of.error }, places);
    const end = sign => curve.y.map((y, k) => y === null ? null : clamp(y + sign * 2 * (error.y[k] || 0), 0, 1));
    return { ...curve, name: of.name, group: of.colour, style: 'dots', ...(error ? { low: end(-1), high: end(1) } : {}) };
  });
  return [{ ...chart, kind: 'lines', series, x: { label: '', names: places } }];
}

// Returns a point for each element at the number `at`, a line through the means of elements that share a number, and a
// level for elements without one.
function pointCharts(chart, items, panel) {
  const rows = items.flatMap(item => elementsOf(item, chart.each, panel));
  const all = rows.map(e => [valueOf(e, { key: chart.at }), valueOf(e, chart)]).filter(([, y]) => y !== null);
  const points = all.filter(([x]) => x !== null), places = [...new Set(points.map(([x]) => x))].sort((a, b) => a - b);
  const mean = place => meanOf(all.filter(([x]) => x === place).map(([, y]) => y));
  if (places.length < 2) return [];
  const log = chart.x.scale === 'wide' && places[0] > 0 && places[places.length - 1] > WIDE * places[0];
  return [{ ...chart, kind: 'lines', panel, x: { ...chart.x, label: textOf(chart.x.label, items[0]), scale: log ? 'log' : 'linear' }, series: [
    { name: 'mean', group: 0, x: places, y: places.map(mean), marks: true },
    { name: 'a run', group: 1, x: points.map(p => p[0]), y: points.map(p => p[1]), style: 'dots' },
    ...all.length > points.length ? [{ name: 'off', group: -1, x: [0], y: [mean(null)], style: 'rule' }] : []] }];
}

// Returns a function that makes the chart once for each name of the array `panels`.
const panelled = form => (chart, items) => !chart.panels ? form(chart, items, '')
  : (member(items[0].at, chart.panels.split('.')) || []).flatMap(panel => form(chart, items, panel));

const FORMS = { lines: lineCharts, curves: panelled(curveCharts), boxes: boxCharts, dots: dotCharts, points: panelled(pointCharts) };

// ---- matrices ----

// Returns {rows, columns, cells} of a matrix, which is packed (docs/formats.md, "Pages"), or rows of numbers.
function matrixOf(value) {
  if (Array.isArray(value)) {
    const columns = Math.max(0, ...value.map(row => row ? row.length : 0));
    return { rows: value.length, columns, cells: Float64Array.from(value.flatMap(row => row || Array(columns).fill(NaN)), v => v ?? NaN) };
  }
  const bytes = Uint8Array.from(atob(value.data), c => c.charCodeAt(0)), cells = new Float64Array(value.rows * value.columns);
  for (let i = 0; i < cells.length; i++) {
    const q = bytes[2 * i] | bytes[2 * i + 1] << 8;
    cells[i] = q && value.low * (value.high / value.low) ** ((q - 1) / 65534);
  }
  return { rows: value.rows, columns: value.columns, cells };
}

const meanOf = values => {
  const finite = [...values].filter(Number.isFinite);
  return finite.reduce((sum, v) => sum + v, 0) / finite.length;
};

// Returns M over its mean diagonal (over its mean if that is 0), with rows and columns by falling diagonal.
function byDiagonal({ rows: n, cells }) {
  const diagonal = Array.from({ length: n }, (_, i) => cells[i * n + i]), mean = meanOf(diagonal);
  const scale = 1 / (mean || meanOf(cells) || 1);
  const order = diagonal.map((_, i) => i).sort((i, j) => diagonal[j] - diagonal[i] || i - j);
  return { cells: Float64Array.from(cells, (_, k) => cells[order[Math.floor(k / n)] * n + order[k % n]] * scale), order, factor: 1 / scale };
}

function byRows({ columns, cells }) {
  return { cells: cells.map((v, k) => v / meanOf(cells.subarray(k - k % columns, k - k % columns + columns))) };
}

// Returns the tokens of both experts over their number under independence with the same number of pairs.
function byIndependence({ rows: n, cells }) {
  let pairs = 0, products = 0;
  for (let i = 0; i < n; i++) for (let j = 0; j < i; j++) {
    pairs += cells[i * n + j];
    products += cells[i * n + i] * cells[j * n + j];
  }
  return { cells: cells.map((v, k) => {
    const i = Math.floor(k / n), j = k % n, expected = pairs / products * cells[i * n + i] * cells[j * n + j];
    return i !== j && expected > 0 ? v / expected : NaN;
  }) };
}

// Returns, for every layer, the shares of a domain (place) by expert over their mean over the domains that have tokens.
function byDomain(layers, place) {
  const used = layers[0].map((_, s) => s).filter(s => layers[0][s].some(v => v > 0));
  return layers.map(domains => domains[place].map((v, j) => v / meanOf(used.map(s => domains[s][j]))));
}

function mapOf(chart, e) {
  const read_ = read(e, chart.key);
  if (!read_) return null;
  const matrix = matrixOf(chart.scaled === 'domains' ? byDomain(read_, e.place) : read_);
  if (matrix.columns < 2) return null;
  const scaled = { diagonal: byDiagonal, rows: byRows, independent: byIndependence }[chart.scaled];
  return Object.assign(matrix, scaled ? scaled(matrix) : {}, { chart, e });
}

// Returns the 1 % and the 99.9 % quantile of all maps, from at most some 100,000 of their cells.
function coloursOf(maps) {
  const stride = Math.ceil(maps.length * maps[0].cells.length / 1e5), all = [];
  for (const map of maps) for (let i = 0; i < map.cells.length; i += stride) if (map.cells[i] > 0) all.push(map.cells[i]);
  all.sort((a, b) => a - b);
  let low = all[Math.floor(.01 * (all.length - 1))] ?? 0, high = all[Math.floor(.999 * (all.length - 1))] ?? 1;
  if (!(high - low > 1e-6 * high)) { low /= 2; high *= 1.5 }
  return [low, high];
}

// ---- colours and numbers ----

const PLOT = 190, LETTER = 7, LABEL = 12;
const VIRIDIS = ('440154470d6048186a482374472d7b4536814240863f49893b528b375a8d33638d2f6a8e2c728e297a8e26818e' +
  '23898e21908c1f988b1f9f8821a68528ae8031b57b3ebc744cc26c5dc9636ece5882d34c96d83fabdc32c0df24d5e21aeae51a' +
  'fde725').match(/../g).map(h => parseInt(h, 16));
const BLUE = [33, 102, 172], WHITE = [247, 247, 247], RED = [178, 24, 43];

let theme = {};
function readTheme() {
  const style = getComputedStyle(root);
  for (const name of ['ink', 'muted', 'axis', 'grid', 'ground', 'none', 'q0', 'q1', 'q2', 'q3', 'q4', 'q5',
    'q6', 'q7', 'ramp-low', 'ramp-high']) theme[name] = style.getPropertyValue('--' + name).trim();
}

const clamp = (v, low, high) => Math.min(Math.max(v, low), high);
const mix = (a, b, t) => a.map((v, k) => Math.round(v + (b[k] - v) * t));
function heatColour(share, diverging) {
  const at = clamp(share, 0, 1);
  if (diverging) return at < .5 ? mix(BLUE, WHITE, 2 * at) : mix(WHITE, RED, 2 * at - 1);
  const i = Math.min(Math.floor(at * 32), 31);
  return mix(VIRIDIS.slice(3 * i, 3 * i + 3), VIRIDIS.slice(3 * i + 3, 3 * i + 6), at * 32 - i);
}
const rgb = c => `rgb(${c.join(',')})`;
function colourOf(series) {
  if (series.share != null) {
    const low = +theme['ramp-low'], high = +theme['ramp-high'];
    return rgb(heatColour(low + (high - low) * series.share));
  }
  return series.group < 0 || series.group == null ? theme.none : theme['q' + series.group % 8];
}

function figureText(v, digits = 4) {
  if (v === Infinity) return '\u221e';
  if (v == null || Number.isNaN(v)) return '\u2013';
  if (v === 0) return '0';
  const size = Math.abs(v);
  const text = size >= 1e7 || size < 1e-4 ? v.toExponential(digits - 1).replace(/\.?0+e/, 'e').replace('e+', 'e')
    : String(+v.toPrecision(digits));
  return text.replace(/-/g, '\u2212');
}
const shortText = v => {
  const [unit, name] = [[1e9, 'B'], [1e6, 'M'], [1e3, 'k']].find(([one]) => Math.abs(v) >= one) || [1, ''];
  return figureText(v / unit, 3) + name;
};
const percentText = v => v == null ? '\u2013' : figureText(100 * v, 3) + ' %';
const cut = (text, room) => {
  const letters = [...text], most = Math.max(3, Math.floor(room / LETTER));
  if (letters.length <= most) return text;
  const tail = Math.floor((most - 1) / 2);
  return letters.slice(0, most - 1 - tail).join('') + '\u2026' + letters.slice(letters.length - tail).join('');
};

// ---- SVG ----

function add(parent, tag, attributes = {}, text) {
  const made = parent.appendChild(document.createElementNS('http://www.w3.org/2000/svg', tag));
  for (const [name, value] of Object.entries(attributes))
    made.setAttribute(name, typeof value === 'number' ? +value.toFixed(2) : value);
  if (text != null) made.textContent = text;
  return made;
}
const label = (svg, x, y, text, more = {}) =>
  add(svg, 'text', { x, y, 'font-size': LABEL, fill: theme.muted, ...more }, text);
const mark = (made, tip) => { made.dataset.tip = tip; return made };

// Opens a picture as wide as its place. A unit is a pixel, so that its text has the size of the page's text.
function open(box, chart, title) {
  const W = clamp(box.clientWidth, 240, 640);
  const svg = add(box, 'svg', { class: 'chart', role: 'img', 'font-family': 'Helvetica, Arial, sans-serif',
    'aria-label': title });
  svg.style.maxWidth = W + 'px';
  const heading = label(svg, 4, 14, cut(title, (W - 46) * .93), { 'font-size': 14, 'font-weight': 600, fill: theme.ink });
  add(heading, 'title', {}, [title, ...(chart.lines || [chart]).map(of => of.key)].join('\n'));
  return { svg, chart, W, top: 22, left: 4, right: W - 8 };
}
const close = (c, height) => c.svg.setAttribute('viewBox', `0 0 ${c.W} ${Math.round(height)}`);

// Draws the legend in as many rows as needed. keys: {name, colour, kind}.
function legend(c, keys) {
  let x = 4;
  for (const key of keys) {
    const name = cut(key.name, c.W - 40), width = 22 + LETTER * [...name].length + 10;
    if (x > 4 && x + width > c.W) { x = 4; c.top += 17 }
    const y = c.top + 7, line = { stroke: key.colour, 'stroke-width': 1.6, x1: x, x2: x + 16, y1: y, y2: y };
    if (key.kind === 'band')
      add(c.svg, 'rect', { x, y: y - 5, width: 16, height: 10, fill: key.colour, 'fill-opacity': .22 });
    else if (key.kind === 'dots')
      add(c.svg, 'circle', { cx: x + 8, cy: y, r: 3, fill: key.colour });
    else
      add(c.svg, 'line', key.kind === 'dashed' || key.kind === 'rule' ? { ...line, 'stroke-dasharray': key.kind === 'rule' ? '2 3' : '5 3' } : line);
    label(c.svg, x + 21, y + 4, name, { fill: theme.ink });
    x += width;
  }
  if (keys.length) c.top += 21;
}

function ramp(c, names) {
  const room = c.W / 2 - 52, first = cut(names[0], room), x = 8 + LETTER * [...first].length;
  label(c.svg, 4, c.top + 11, first, { fill: theme.ink });
  for (let k = 0; k < 40; k++)
    add(c.svg, 'rect', { x: x + 2 * k, y: c.top + 3, width: 2.2, height: 9, fill: colourOf({ share: k / 39 }) });
  label(c.svg, x + 86, c.top + 11, cut(names[1], room), { fill: theme.ink });
  c.top += 21;
}

// ---- axes: they end where the data end ----

const roundUp = v => {
  const power = 10 ** Math.floor(Math.log10(v) + 1e-9), lead = v / power;
  return power * (lead <= 1.000001 ? 1 : lead <= 2.000001 ? 2 : lead <= 5.000001 ? 5 : 10);
};

function logScale(axis, low, high) {
  if (!(high > 0)) { low = .1; high = 1 }
  if (high < low * (axis.zero ? 3 : 1.0001)) { low /= 2; high *= 2 }
  const first = Math.log10(low), last = Math.log10(high), foot = axis.zero ? .1 : 0, ticks = axis.zero ? [0] : [];
  const stride = Math.max(1, Math.ceil((last - first) / 6)), leads = last - first <= 2.2 ? [1, 2, 5] : [1];
  for (let p = Math.floor(first); p <= last; p++)
    for (const lead of leads)
      if (p % stride === 0 && lead * 10 ** p >= low * .999 && lead * 10 ** p <= high * 1.001) ticks.push(lead * 10 ** p);
  if (ticks.length < 2) ticks.push(low, high);
  return { ticks, share: v => v > 0 ? foot + (1 - foot) * clamp((Math.log10(v) - first) / (last - first), 0, 1) : 0,
    text: v => axis.percent ? percentText(v) : figureText(v, 3) };
}

function linearScale(axis, low, high, pad) {
  if (axis.zero) { low = Math.min(low, 0); high = Math.max(high, 0) }
  if (!(high - low > 1e-9 * Math.max(Math.abs(low), Math.abs(high)))) {
    const half = Math.abs(low) / 2 || .5;
    low = low >= 0 ? Math.max(low - half, 0) : low - half;
    high += half;
  }
  const air = pad * (high - low), share = axis.percent && high <= 1;
  if (!axis.zero || low < 0) low -= air;
  high = share ? Math.min(high + air, 1) : high + air;
  if (share) low = Math.max(low, 0);
  let step = roundUp((high - low) / 6);
  if (axis.whole) step = Math.max(1, step);
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k <= high / step + 1e-9; k++) ticks.push(k * step);
  const digits = v => v ? clamp(Math.floor(Math.log10(Math.abs(v)) + 1e-9) - Math.floor(Math.log10(step) + 1e-9) + 1, 1, 9) : 1;
  return { ticks, share: v => clamp((v - low) / (high - low), 0, 1),
    text: v => axis.short ? shortText(v) : axis.percent ? figureText(Math.round(1e6 * v) / 1e4, 3) + ' %' : figureText(+v.toPrecision(12), digits(v)) };
}

function namedScale(axis, width) {
  const n = axis.names.length, longest = Math.max(...axis.names.map(name => [...name].length));
  const stride = longest > 8 ? 1 : Math.max(1, Math.ceil(n * (LETTER * longest + 8) / width)), ticks = [];
  for (let k = 0; k < n; k += stride) ticks.push(k);
  return { ticks, share: v => (v + .5) / n, text: v => axis.names[v], named: true, slot: 1 / n };
}

function scaleOf(axis, values, pad, width) {
  if (axis.names) return namedScale(axis, width);
  const seen = values.filter(v => Number.isFinite(v) && (axis.scale !== 'log' || v > 0));
  let low = Infinity, high = -Infinity;
  for (const v of seen) { low = Math.min(low, v); high = Math.max(high, v) }
  if (!seen.length) { low = axis.scale === 'log' ? .1 : 0; high = 1 }
  return axis.scale === 'log' ? logScale(axis, low / (1 + pad), high * (1 + pad)) : linearScale(axis, low, high, pad);
}

// Reserves room for both axes and draws grid, ticks and labels.
function axes(c, xs, ys) {
  const { chart, svg } = c, xAxis = chart.x || {}, yAxis = chart.y || {};
  if (yAxis.label) { label(svg, 4, c.top + 10, cut(yAxis.label, c.W - 12)); c.top += 18 }
  c.top += 6;
  c.y = scaleOf(yAxis, ys, .04);
  c.left = Math.max(...c.y.ticks.map(t => LETTER * c.y.text(t).length)) + 12;
  c.x = scaleOf(xAxis, xs, 0, c.right - c.left);
  const steep = c.x.named && Math.max(...c.x.ticks.map(t => c.x.text(t).length)) > 8;
  c.bottom = c.top + PLOT;
  const foot = c.bottom + (steep ? 74 : 20) + (xAxis.label ? 16 : 0);
  close(c, foot + 4);
  c.px = v => c.left + c.x.share(v) * (c.right - c.left);
  c.py = v => c.bottom - c.y.share(v) * (c.bottom - c.top);
  for (const t of c.y.ticks) {
    const y = c.py(t);
    add(svg, 'line', { x1: c.left, x2: c.right, y1: y, y2: y, stroke: theme.grid });
    label(svg, c.left - 6, y + 4, c.y.text(t), { 'text-anchor': 'end' });
  }
  add(svg, 'line', { x1: c.left, x2: c.right, y1: c.bottom, y2: c.bottom, stroke: theme.axis });
  let free = -Infinity;
  for (const t of c.x.ticks) {
    const x = c.px(t), text = cut(c.x.text(t), steep ? 120 : 100), half = LETTER * [...text].length / 2;
    if (steep) {
      label(svg, x, c.bottom + 13, text, { 'text-anchor': 'end', transform: `rotate(-35 ${x.toFixed(1)} ${(c.bottom + 13).toFixed(1)})` });
    } else if (x - half > free) {
      free = x + half + 4;
      label(svg, clamp(x, half, c.W - half - 2), c.bottom + 15, text, { 'text-anchor': 'middle' });
    }
  }
  if (xAxis.label)
    label(svg, (c.left + c.right) / 2, foot, cut(xAxis.label, c.right - c.left), { 'text-anchor': 'middle' });
}
const xText = ({ x = {} }, v) => `${x.label ? x.label + ' ' : ''}${x.names ? x.names[v] : figureText(v, 6)}`;
const yText = ({ y = {} }, v) => y.percent ? percentText(v) : figureText(v);

// ---- kinds ----

const KINDS = {
  lines(box, chart, title, together) {
    const c = open(box, chart, title), all = chart.series, drawn = all.filter(s => s.style !== 'rule');
    if (chart.ramp) ramp(c, chart.ramp);
    else legend(c, all.filter(s => s.name != null).map(s => ({ name: s.name,
      colour: s.style === 'rule' ? theme.axis : colourOf(s), kind: s.y ? s.style : 'band' })));
    axes(c, drawn.flatMap(s => s.x), together.flatMap(one => one.series).flatMap(s => [...s.y || [], ...s.low || [], ...s.high || []]));
    for (const s of all) if (s.style === 'rule') {
      const y = c.py(s.y[0]);
      add(c.svg, 'line', { x1: c.left, x2: c.right, y1: y, y2: y, stroke: theme.axis, 'stroke-dasharray': '2 3' });
    }
    for (const s of drawn) band(c, s);
    for (const s of drawn) if (s.y) curve(c, s);
  },

  boxes(box, chart, title) {
    const c = open(box, chart, title), groups = chart.groups || [''];
    if (chart.groups) legend(c, groups.map((name, k) => ({ name, colour: theme['q' + k % 8], kind: 'dots' })));
    axes(c, [], chart.boxes.flatMap(b => [b.low, b.high]));
    const slot = c.x.slot * (c.right - c.left), share = .76 * slot / groups.length;
    const width = Math.min(.8 * share, 14);
    for (const b of chart.boxes) {
      const x = c.px(b.place) + (b.group - (groups.length - 1) / 2) * Math.min(share, 18);
      const colour = theme['q' + b.group % 8], r = clamp(.22 * width, .9, 1.9);
      const g = mark(add(c.svg, 'g', { class: 'm', stroke: colour, fill: 'none' }),
        `${chart.groups ? groups[b.group] + ', ' : ''}${xText(chart, b.place)}\n` +
        `median ${yText(chart, b.q50)}, mean ${yText(chart, b.mean)}; quartiles ${yText(chart, b.q25)} to ${yText(chart, b.q75)}; ` +
        `5 % to 95 %: ${yText(chart, b.q05)} to ${yText(chart, b.q95)}; least ${yText(chart, b.low)}, greatest ${yText(chart, b.high)}`);
      add(g, 'line', { x1: x, x2: x, y1: c.py(b.q05), y2: c.py(b.q25) });
      add(g, 'line', { x1: x, x2: x, y1: c.py(b.q75), y2: c.py(b.q95) });
      add(g, 'rect', { x: x - width / 2, y: c.py(b.q75), width, height: Math.max(c.py(b.q25) - c.py(b.q75), 0),
        fill: colour, 'fill-opacity': .28 });
      add(g, 'line', { x1: x - width / 2, x2: x + width / 2, y1: c.py(b.q50), y2: c.py(b.q50), 'stroke-width': 2 });
      add(g, 'circle', { cx: x, cy: c.py(b.low), r });
      add(g, 'circle', { cx: x, cy: c.py(b.high), r });
      add(g, 'circle', { cx: x, cy: c.py(b.mean), r, fill: colour });
    }
  },
};

function band(c, s) {
  if (!s.low || !s.high) return;
  const colour = colourOf(s), bars = s.style === 'dots';
  let top = '', foot = '';
  const flush = () => {
    if (top) add(c.svg, 'path', { class: 'm', d: 'M' + top.slice(1) + foot + 'Z', fill: colour, 'fill-opacity': .2 });
    top = foot = '';
  };
  s.x.forEach((x, i) => {
    if (s.low[i] == null || s.high[i] == null) return flush();
    const at = c.px(x).toFixed(2), low = c.py(s.low[i]).toFixed(2), high = c.py(s.high[i]).toFixed(2);
    if (bars) return add(c.svg, 'line', { x1: at, x2: at, y1: low, y2: high, stroke: colour, 'stroke-width': 1.4 });
    top += `L${at} ${high}`;
    foot = `L${at} ${low}` + foot;
  });
  flush();
}

function curve(c, s) {
  const colour = colourOf(s), name = s.name ? s.name + '\n' : '', many = s.x.length > 80;
  let d = '', pen = 'M';
  s.x.forEach((x, i) => {
    if (s.y[i] == null) { pen = 'M'; return }
    d += `${pen}${c.px(x).toFixed(2)} ${c.py(s.y[i]).toFixed(2)}`;
    pen = 'L';
  });
  if (s.style !== 'dots' && d) add(c.svg, 'path', { class: 'm', d, fill: 'none', stroke: colour, 'stroke-width': 1.6,
    'stroke-linejoin': 'round', ...(s.style === 'dashed' ? { 'stroke-dasharray': '5 3' } : {}) });
  s.x.forEach((x, i) => {
    if (s.y[i] == null) return;
    const alone = s.style === 'dots' || s.x.length === 1 || (s.y[i - 1] == null && s.y[i + 1] == null);
    const spread = s.low && s.high && s.low[i] != null ? ` (${yText(c.chart, s.low[i])} to ${yText(c.chart, s.high[i])})` : '';
    mark(add(c.svg, 'circle', { class: 'm', cx: c.px(x), cy: c.py(s.y[i]), r: alone ? 3 : many || !s.marks ? 1.6 : 2,
      fill: colour, 'fill-opacity': alone || s.marks && !many ? 1 : 0 }),
      `${name}${xText(c.chart, x)}: ${yText(c.chart, s.y[i])}${spread}`);
  });
  for (const x of s.infinite || [])
    mark(label(c.svg, c.px(x), c.top + 4, '\u221e', { class: 'm', 'text-anchor': 'middle', 'font-size': 14, fill: colour }),
      `${name}${xText(c.chart, x)}: \u221e`);
}

// ---- a map ----

function shareOf({ colours: [low, high], log }, v) {
  if (!(v > low)) return 0;
  return log ? Math.log(v / low) / Math.log(high / low) : (v - low) / (high - low);
}

function paint(map, canvas = document.createElement('canvas')) {
  canvas.width = map.columns;
  canvas.height = map.rows;
  const pen = canvas.getContext('2d'), image = pen.createImageData(map.columns, map.rows);
  map.cells.forEach((v, i) => {
    if (Number.isNaN(v)) return; // transparent
    image.data.set(heatColour(shareOf(map, v), map.chart.diverging), 4 * i);
    image.data[4 * i + 3] = 255;
  });
  pen.putImageData(image, 0, 0);
  return canvas;
}

function cellText(map, row, column) {
  const { chart, order, columns } = map, at = (i, j) => map.cells[i * columns + j], v = at(row, column);
  const name = (label, i) => `${label.replace(/ [ij]$/, '')} ${order ? order[i] : i}`;
  let text = `${name(chart.rows, row)}, ${name(chart.columns, column)}: `;
  text += chart.raw ? `${chart.raw} = ${figureText(v * map.factor)}; ${chart.value} ${figureText(v)}` : `${chart.value} ${figureText(v)}`;
  if (!order) return text;
  return text + (row === column ? ', on the diagonal.'
    : `; ${figureText(v / at(row, row))} of the row\u2019s own, ${figureText(v / at(column, column))} of the column\u2019s own.`);
}

function colourBar(c, map, x, y, width) {
  const [low, high] = map.colours, n = 48;
  for (let k = 0; k < n; k++)
    add(c.svg, 'rect', { x: x + k * width / n, y, width: width / n + .3, height: 9, fill: rgb(heatColour((k + .5) / n, map.chart.diverging)) });
  label(c.svg, x, y + 23, figureText(low, 3));
  label(c.svg, x + width, y + 23, figureText(high, 3), { 'text-anchor': 'end' });
  label(c.svg, x + width / 2, y + 23, map.chart.value, { 'text-anchor': 'middle' });
}

function drawMap(box, map, title) {
  const c = open(box, map.chart, title), left = 26, top = 24, side = Math.min(c.W - left - 10, 460);
  const height = map.rows === map.columns ? side : clamp(16 * map.rows, 60, 300);
  close(c, height + 84);
  add(c.svg, 'image', { class: 'm', x: left, y: top, width: side, height, preserveAspectRatio: 'none',
    style: 'image-rendering:pixelated', href: paint(map).toDataURL() });
  add(c.svg, 'rect', { x: left, y: top, width: side, height, fill: 'none', stroke: theme.axis });
  label(c.svg, left + side / 2, top + height + 15, map.chart.columns, { 'text-anchor': 'middle' });
  label(c.svg, 16, top + height / 2, cut(map.chart.rows, height), { 'text-anchor': 'middle',
    transform: `rotate(-90 16 ${top + height / 2})` });
  colourBar(c, map, left, top + height + 27, side);
  reader(box, c, map, left, top, side, height);
}

// Shows the value of one cell below the map, chosen by pointing, tapping or arrow keys.
function reader(box, c, map, left, top, width, height) {
  const out = box.appendChild(document.createElement('p'));
  out.className = 'readout';
  out.setAttribute('aria-live', 'polite');
  const cell = add(c.svg, 'rect', { class: 'cursor', fill: 'none', stroke: theme.q1, 'stroke-width': 1.5,
    width: width / map.columns, height: height / map.rows });
  let row = 0, column = 0;
  const tell = (r, k) => {
    row = clamp(r, 0, map.rows - 1);
    column = clamp(k, 0, map.columns - 1);
    cell.setAttribute('x', left + column * width / map.columns);
    cell.setAttribute('y', top + row * height / map.rows);
    out.textContent = cellText(map, row, column);
  };
  const point = e => {
    const at = c.svg.getBoundingClientRect(), unit = at.width / c.W;
    const x = (e.clientX - at.left) / unit - left, y = (e.clientY - at.top) / unit - top;
    if (x >= 0 && y >= 0 && x < width && y < height)
      tell(Math.floor(y / height * map.rows), Math.floor(x / width * map.columns));
  };
  c.svg.tabIndex = 0;
  c.svg.onpointermove = point;
  c.svg.onpointerdown = point;
  c.svg.onkeydown = e => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[e.key];
    if (!step) return;
    e.preventDefault();
    tell(row + step[0], column + step[1]);
  };
  tell(0, 0);
}

// ---- SVG files ----

function saveButton(figure, id) {
  const button = figure.appendChild(document.createElement('button'));
  button.className = 'save';
  button.textContent = 'SVG';
  button.title = 'Save this chart as an SVG file';
  button.onclick = () => figure.querySelectorAll('svg').forEach((svg, k) => save(svg, k ? `${id}-${k + 1}` : id));
}

function svgText(svg) {
  const copy = svg.cloneNode(true), [, , width, height] = svg.getAttribute('viewBox').split(' ');
  copy.setAttribute('width', width);
  copy.setAttribute('height', height);
  for (const cursor of copy.querySelectorAll('.cursor')) cursor.remove();
  for (const made of copy.querySelectorAll('[data-tip]')) {
    add(made, 'title', {}, made.dataset.tip);
    made.removeAttribute('data-tip');
  }
  const ground = add(copy, 'rect', { width: '100%', height: '100%', fill: theme.ground });
  copy.insertBefore(ground, copy.firstChild);
  return '<?xml version="1.0" encoding="UTF-8"?>\n' + new XMLSerializer().serializeToString(copy);
}

function save(svg, id) {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([svgText(svg)], { type: 'image/svg+xml' }));
  link.download = id + '.svg';
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// ---- the page: elements ----

function put(parent, tag, text, name) {
  const made = parent.appendChild(document.createElement(tag));
  if (text != null) made.textContent = text;
  if (name) made.className = name;
  return made;
}

const main = document.querySelector('main');
const charts = []; // {figure, draw}
let waiting = [];

// ---- conclusion and first figures ----

function putFigures(of, checkpoints) {
  const head = list.heads.find(one => one.of === of), groups = head && head.each && elementsOf(checkpoints[0], 'groups').map(e => e.name);
  const items = groups ? elementsOf(checkpoints[0], head.each).slice(0, SHOWN) : checkpoints;
  if (!head || !items.length || !head.figures.some(({ key }) => items.some(item => valueOf({ item, at: item.at }, { key }) !== null))) return;
  const grid = put(main, 'div', null, 'head');
  for (const figure of head.figures) {
    if (items.every(item => valueOf({ item, at: item.at }, { key: figure.key }) === null)) continue;
    const text = (e, key, to) => {
      const low = valueOf(e, { key }), high = to ? valueOf(e, { key: to }) : null;
      const one = v => figure.percent ? percentText(v) : figureText(v, 3);
      return to && one(low) !== one(high) ? `${one(low)} to ${one(high)}` : one(low);
    };
    const cell = put(grid, 'div', figure.name, 'figure');
    for (const [v, item] of items.entries()) {
      const e = { item, at: item.at }, value = put(cell, 'b');
      if (items.length > 1) put(value, 'span', null, 'dot').style.background = `var(--q${(groups ? groups.indexOf(item.name) : v) % 8})`;
      value.append(text(e, figure.key, figure.to));
      if (items.length > 1) put(cell, 'i', item.name);
      if (figure.least) put(cell, 'i', `by layer ${text(e, figure.least, figure.most)}`);
      if (figure.centred && valueOf(e, { key: figure.centred }) !== null)
        put(cell, 'i', `centred rows: ${text(e, figure.centred, figure.centred_to)}`);
    }
    const first = { item: items[0], at: items[0].at };
    if (figure.chance) put(cell, 'i', `chance: ${figure.chance.words || text(first, figure.chance.key)}`);
  }
}

// Shows each item's first sentence, four figures, and the other sentences; sentences with the figures' numbers are folded.
function putConclusion(items, of) {
  const said = items.map(({ at }) => at.conclusion || (at.verdict || '').split('\n')), several = items.length > 1;
  const isFolded = ({ at }, line) => at.verdict && /\d/.test(line);
  items.forEach((item, v) => {
    if (several) put(main, 'p', item.name, 'name');
    put(main, 'p', said[v][0], 'conclusion');
  });
  putFigures(of, items);
  const rest = new Map();
  items.forEach((item, v) => {
    for (const line of said[v].slice(1).filter(line => !isFolded(item, line))) rest.set(line, [...rest.get(line) || [], item.name]);
  });
  for (const [line, names] of rest) put(main, 'p', several && names.length < items.length ? `${names.join(', ')}: ${line}` : line, 'lead');
  const folded = items.map((item, v) => said[v].slice(1).filter(line => isFolded(item, line)));
  if (!folded.flat().length) return;
  const fold = put(main, 'details', null, 'words');
  put(fold, 'summary', 'The same in sentences');
  items.forEach((item, v) => {
    if (several) put(fold, 'p', item.name, 'name');
    for (const line of folded[v]) put(fold, 'p', line);
  });
}

const layersNamed = layers => (layers.length > 1 ? 'Layers ' : 'Layer ') + layers.join(', ');

// Shows the notes on a checkpoint and its layers; a sentence on several layers is shown once.
function putNotes({ at, name }, several) {
  const said = new Map(), of = sentence => sentence && !said.has(sentence) ? said.set(sentence, []).get(sentence) : said.get(sentence);
  const tell = (layer, sentence) => sentence && of(sentence).push(nameOf(layer));
  const notes = [...at.warnings || [], at.guessed ? at.guess || 'The family of this checkpoint is not known; its layers were found by names and shapes.' : '',
    at.noise_seed != null ? 'M is that of noisy router rows, as in training.' : '', ...at.notes || [],
    at.mtp_layers ? `Multi-token-prediction layers left out: ${at.mtp_layers}.` : ''];
  for (const note of notes.filter(Boolean)) put(main, 'p', several ? `${name}: ${note}` : note, 'note');
  for (const layer of at.faulty || []) tell(layer, layer.reason);
  for (const layer of at.skipped || []) tell(layer, `skipped: ${layer.reason}`);
  if (view.kind === 'inspect') for (const layer of at.layers) {
    tell(layer, layer.note);
    tell(layer, layer.comparable === false && 'router and experts read different vectors, so there is no M.');
    tell(layer, layer.biases_left_out && 'biases of router, gates or projection are left out.');
    tell(layer, layer.alpha_min_infinite && 'α_min is infinite (∞): a diagonal entry of M is 0 while another of its row or column is not.');
  }
  for (const [sentence, layers] of said) put(main, 'p', `${several ? name + ', l' : 'L'}${layersNamed(layers).slice(1)}: ${sentence}`, 'small');
}

// ---- charts ----

function putChart(grid, chart, items) {
  const made = FORMS[chart.form](chart, items);
  if (!made.length) return false;
  const figure = put(grid(), 'figure', null, made.length > 1 ? 'wide' : '');
  figure.id = 'chart-' + chart.id;
  if (made.length > 1 || made[0].panel || made[0].kind === 'lines' && !made[0].series.length) put(figure, 'h3', chart.title);
  if (made[0].kind !== 'lines' || made[0].series.length) {
    const box = put(figure, 'div', null, made.length < 2 ? '' : made.length % 3 ? 'panels two' : 'panels');
    const places = made.map(() => put(box, 'div'));
    const draw = () => made.forEach((one, k) => {
      places[k].replaceChildren();
      KINDS[one.kind](places[k], one, one.panel || chart.title, chart.panels ? [one] : made);
    });
    charts.push({ id: chart.id, figure, draw });
    saveButton(figure, chart.id);
  }
  put(figure, 'figcaption', made[0].caption || '');
  return true;
}

// Returns the map of the element whose figure lies in the middle.
function middleOf(maps, key) {
  const sorted = maps.map(map => [valueOf(map.e, { key }) ?? Infinity, map]).sort((a, b) => a[0] - b[0]);
  return sorted[Math.floor((sorted.length - 1) / 2)][1];
}

// Shows one large map for every item, with small maps to choose from.
function putMaps(parent, chart, items) {
  const all = items.map(item => elementsOf(item, chart.each).map(e => mapOf(chart, e)).filter(Boolean)).filter(maps => maps.length);
  if (!all.length) return false;
  const colours = chart.colours || coloursOf(all.flat());
  const log = chart.log && colours[0] > 0 && (chart.diverging || colours[1] > 8 * colours[0]);
  for (const map of all.flat()) Object.assign(map, { colours, log });
  const box = put(parent(), 'div', null, 'maps'), shows = [];
  const choose = name => shows.forEach(show => show(name));
  box.dataset.maps = chart.id;
  for (const maps of all) {
    const pair = put(box, 'div', null, all.length > 1 ? '' : 'alone'), figure = put(pair, 'figure');
    const thumbs = put(pair, 'div', null, 'thumbs'), place = put(figure, 'div');
    let shown;
    const draw = () => {
      place.replaceChildren();
      drawMap(place, shown, `${all.length > 1 ? shown.e.item.name + ': ' : ''}${chart.title} ${shown.e.name}`);
    };
    for (const map of maps.length > 1 ? maps : []) {
      const button = put(thumbs, 'button');
      button.dataset.name = map.e.name;
      button.title = `${chart.title} ${map.e.name}`;
      waiting.push(() => paint(map, button.insertBefore(document.createElement('canvas'), button.firstChild)));
      button.append(map.e.name);
      button.onclick = () => choose(map.e.name);
    }
    shows.push(name => {
      const map = maps.find(one => one.e.name === name);
      if (!map) return;
      shown = map;
      figure.dataset.shown = name;
      if (theme.ink) draw();
      for (const b of thumbs.children) b.setAttribute('aria-pressed', b.dataset.name === name);
    });
    shows[shows.length - 1](middleOf(maps, chart.opens || '').e.name);
    if (maps !== all[0]) shows[shows.length - 1](all[0][0] && box.querySelector('figure').dataset.shown);
    charts.push({ id: chart.id, figure, draw });
    saveButton(figure, chart.id);
    if (chart.caption) put(figure, 'figcaption', chart.caption);
  }
  return true;
}

// ---- tables ----

// Returns the metrics of an evaluation: shares, or losses; "a,filter" has the error "a_stderr,filter".
const metricNames = metrics => Object.keys(metrics || {}).filter(name => typeof metrics[name] === 'number' && !name.includes('_stderr') && name !== 'n');
const isLoss = name => /^(bpb|ce_loss)/.test(name);
function metricText(metrics, name) {
  const text = v => isLoss(name) ? figureText(v, 4) : percentText(v), sd = metrics[name.replace(/(?=,|$)/, '_stderr')];
  return text(metrics[name]) + (typeof sd === 'number' ? ` ± ${isLoss(name) ? figureText(sd, 2) : figureText(100 * sd, 2)}` : '');
}

const LISTS = {
  pairs: (pairs, e) => pairs.slice(0, 3).map(p => `${p.experts.join(' + ')}: ${percentText(p.tokens / e.item.at.tokens)} (${figureText(p.tokens / p.expected, 2)})`),
  headline: (metrics, { at }) => [metricText(metrics, at.headline)],
  metrics: (metrics, { at }) => metricNames(metrics).filter(name => name !== at.headline).map(name => `${name} ${metricText(metrics, name)}`),
  profile: (profile, { at }) => [at.best_of ? `best: ${at.best_of.split('/').slice(1).join('/')}` : at.variant ? `${profile}/${at.variant}` : profile],
  shots: (shots, { at }) => [String(at.shots ?? shots)],
  values: values => values.map(String),
  source: (source, { at }) => source ? [`${source} (${at.summary.licence || 'licence not stated'})`] : [],
};

function cellOf(e, of) {
  const value = read(e, of.key), text = v => of.percent ? percentText(v) : figureText(v, of.digits || 4);
  if (of.text) return value == null ? '\u2013' : String(value);
  if (of.list) return LISTS[of.list](value ?? [], e).join(', ') || '\u2013';
  if (of.range || of.mean) {
    const numbers = (value || []).filter(v => typeof v === 'number'), least = Math.min(...numbers), most = Math.max(...numbers);
    if (!numbers.length) return '\u2013';
    return of.mean ? text(meanOf(numbers)) : text(least) === text(most) ? text(least) : `${text(least)} to ${text(most)}`;
  }
  const sd = of.sd ? valueOf(e, { ...of, key: of.sd }) : null;
  return spreadText(valueOf(e, of), of.percent && sd !== null ? 100 * sd : sd, text);
}

const spreadText = (mean, sd, text = figureText) => text(mean) + (sd != null ? ` ± ${figureText(sd, 2)}` : '');

// Returns the columns with a value in some row: for `alphas` a column for each alpha, for `sources` one for each source.
function columnsOf(chart, rows) {
  const all = chart.columns.flatMap(of => !of.alphas && !of.sources ? [of] : Object.keys(read(rows[0], of.key) || {})
    .map(alpha => ({ ...of, get: e => valueOf(e, { key: of.key }) ?? (read(e, of.key) || {})[alpha], name: of.name + alpha })));
  const text = (e, of) => !of.get ? cellOf(e, of) : of.sources ? spreadText(of.get(e).mean, of.get(e).sd) : figureText(of.get(e));
  return all.filter(of => rows.some(e => text(e, of) !== '\u2013')).map(of => ({ ...of, cell: e => text(e, of) }));
}

function putRows(corner, columns, rows) {
  const table = put(put(main, 'div', null, 'table'), 'table'), top = put(put(table, 'thead'), 'tr'), body = put(table, 'tbody');
  put(top, 'th', corner);
  if (corner === 'layer') table.className = 'layers';
  for (const of of columns) put(top, 'th', of.name, of.wide ? 'words' : '').title = of.key || of.name;
  for (const e of rows) {
    const row = put(body, 'tr');
    put(row, 'th', e.name);
    for (const of of columns) put(row, 'td', of.cell(e), of.bold ? 'bold' : of.wide ? 'words' : '');
  }
}

// Shows for every task a table of its parts, whose columns are metrics.
function putParts(parent, chart, items) {
  let any = false;
  for (const item of items) for (const task of elementsOf(item, chart.each)) for (const part of chart.parts) {
    const parts = task.at[part];
    if (!parts) continue;
    const rows = Object.entries(parts).map(([name, at]) => ({ item, at, name }));
    const columns = rows.length ? metricNames(rows[0].at).map(name => ({ name, cell: e => metricText(e.at, name) })) : [];
    put(parent(), 'h3', `${task.at.summary?.title || task.name}, ${part}`);
    putRows(part, [{ name: 'questions', cell: e => figureText(e.at.n) }, ...columns], rows);
    any = true;
  }
  return any;
}

function putTable(parent, chart, items) {
  if (chart.parts) return putParts(parent, chart, items);
  const groups = chart.each === '' ? [items.flatMap(item => elementsOf(item, ''))] : items.map(item => elementsOf(item, chart.each));
  let any = false;
  for (const rows of groups) {
    const columns = rows.length ? columnsOf(chart, rows) : [];
    if (!columns.length) continue;
    if (!any) put(parent(), 'h3', chart.title).title = chart.id;
    if (!any && chart.caption) put(main, 'p', chart.caption, 'small');
    if (groups.length > 1) put(main, 'p', rows[0].item.name, 'name');
    any = true;
    if (chart.turned || rows.length === 1 && columns.length > 9) putRows('figure', rows.map(e => ({ name: chart.turned || chart.corner ? e.name : `layer ${e.name}`, cell: of => of.cell(e) })), columns);
    else putRows(chart.corner || 'layer', columns, rows);
  }
  return any;
}

// ---- the whole page ----

function putSection(section) {
  const items = itemsOf(section.of);
  let begun = false, grid = null;
  const begin = () => {
    if (!begun) {
      put(main, 'h2', section.title);
      if (section.words) put(main, 'p', section.words, 'small');
    }
    begun = true;
    return main;
  };
  for (const chart of items.length ? list.charts.filter(one => one.of === section.of && one.section === section.id) : []) {
    if (chart.form === 'map') grid = putMaps(begin, chart, items) ? null : grid;
    else if (chart.form === 'table') grid = putTable(begin, chart, items) ? null : grid;
    else putChart(() => grid = grid || put(begin(), 'div', null, 'charts'), chart, items);
  }
}

function putTerms() {
  const terms = list.terms.filter(term => {
    const items = itemsOf(term.of);
    if (term.metric) return items.some(item => elementsOf(item, 'results').some(e => metricNames(e.at.metrics).some(name =>
      term.name[0] === '_' ? name.includes(term.name) : name.replace(/_m[ai]cro/, '').split(',')[0] === term.name)));
    return items.length && (!term.key || items.some(item => elementsOf(item, term.each).some(e => read(e, term.key) != null)));
  });
  if (!terms.length) return;
  put(main, 'h2', 'What the words mean');
  const names = put(main, 'dl');
  for (const term of terms) {
    put(names, 'dt', term.name);
    put(names, 'dd', term.words);
  }
}

function putFooter(made) {
  const footer = put(main, 'footer');
  if (!made) return;
  footer.append(`${made.program}, ${made.date}`);
  put(footer, 'br');
  put(footer, 'code', made.command);
  if (made.folder) footer.append(` in ${made.folder}`);
  for (const source of made.sources || []) {
    put(footer, 'br');
    footer.append(`${source.path}${source.step != null ? `, step ${source.step}` : ''}, ${source.xxh3 ? 'XXH3 ' + source.xxh3 : 'no hash of weights'}`);
  }
}

function putAll() {
  put(main, 'h1', view.title);
  for (const of of new Set(['routing', view.kind])) putConclusion(itemsOf(of), of);
  const items = itemsOf(view.kind);
  for (const item of items) putNotes(item, items.length > 1);
  for (const section of list.sections) putSection(section);
  putTerms();
  putFooter(view.made);
}
putAll();

// ---- drawing ----

function paintNext() {
  const end = performance.now() + 30;
  while (waiting.length && performance.now() < end) waiting.shift()();
  if (waiting.length) setTimeout(paintNext, 0);
  else root.dataset.ready = '1';
}

function drawAll() {
  readTheme();
  for (const chart of charts) chart.draw();
}

let width = innerWidth;
addEventListener('resize', () => {
  if (innerWidth !== width) drawAll();
  width = innerWidth;
});

// ---- theme ----

const THEMES = ['auto', 'light', 'dark'];
const switcher = main.appendChild(document.createElement('button'));
switcher.id = 'theme';
switcher.title = 'Colours: as the system has them, light, or dark';
function setTheme(name) {
  if (name === 'auto') delete root.dataset.theme;
  else root.dataset.theme = name;
  switcher.textContent = name;
  drawAll();
}
switcher.onclick = () => setTheme(THEMES[(THEMES.indexOf(switcher.textContent) + 1) % 3]);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', drawAll);

// A printed page is light and shows the folded parts.
let before = 'auto';
addEventListener('beforeprint', () => {
  before = switcher.textContent;
  for (const fold of document.querySelectorAll('details')) fold.open = true;
  setTheme('light');
});
addEventListener('afterprint', () => setTheme(before));

// ---- tips: the tip of the nearest mark within 14 pixels ----

const tip = document.body.appendChild(document.createElement('div'));
tip.id = 'tip';
tip.hidden = true;
function nearest(svg, x, y) {
  let best = null, least = 14;
  for (const one of svg.querySelectorAll('[data-tip]')) {
    const r = one.getBoundingClientRect();
    const far = Math.hypot(Math.max(r.left - x, 0, x - r.right), Math.max(r.top - y, 0, y - r.bottom));
    if (far < least) { least = far; best = one }
  }
  return best;
}
function showTip(e) {
  const svg = e.target.closest && e.target.closest('svg.chart');
  const one = svg && nearest(svg, e.clientX, e.clientY);
  tip.hidden = !one;
  if (!one) return;
  tip.textContent = one.dataset.tip;
  const room = root.clientWidth, width = tip.offsetWidth, above = e.clientY - tip.offsetHeight - 12;
  tip.style.left = Math.max(4, Math.min(e.clientX - width / 2, room - width - 4)) + scrollX + 'px';
  tip.style.top = (above > 4 ? above : e.clientY + 16) + scrollY + 'px';
}
addEventListener('pointermove', showTip);
addEventListener('pointerdown', showTip);

// ---- tables ----

// Returns the number with which a cell begins, or null.
function numberOf(text) {
  const plain = text.replace(/\u2212/g, '-').replace(/,(?=\d{3})/g, '').trim();
  if (plain.startsWith('\u221e')) return Infinity;
  const value = parseFloat(plain);
  return Number.isNaN(value) ? null : value;
}

// Copies the row above into empty first cells, which stand for its cells, since rows may move.
function fillFirstCells(rows) {
  rows.forEach((row, r) => {
    for (let c = 0; r > 0 && c < row.cells.length && row.cells[c].textContent === ''; c++) {
      row.cells[c].textContent = rows[r - 1].cells[c].textContent;
      row.cells[c].classList.add('repeated');
    }
  });
}

function sortBy(table, heading) {
  const column = heading.cellIndex, up = heading.getAttribute('aria-sort') !== 'ascending';
  const body = table.tBodies[0], rows = [...body.rows];
  fillFirstCells(rows);
  const keys = new Map(rows.map(row => {
    const text = row.cells[column] ? row.cells[column].textContent : '';
    return [row, { text, number: numberOf(text) }];
  }));
  const order = (a, b) => {
    const x = keys.get(a), y = keys.get(b);
    if (x.number === null && y.number === null) return (up ? 1 : -1) * x.text.localeCompare(y.text);
    if (x.number === null || y.number === null) return x.number === null ? 1 : -1; // missing numbers come last
    return up ? x.number - y.number : y.number - x.number;
  };
  for (const other of table.tHead.rows[0].cells) other.removeAttribute('aria-sort');
  heading.setAttribute('aria-sort', up ? 'ascending' : 'descending');
  body.append(...rows.sort(order));
}

for (const table of document.querySelectorAll('.table table')) {
  if (!table.tHead || table.tBodies[0].rows.length < 2) continue;
  for (const heading of table.tHead.rows[0].cells) {
    heading.tabIndex = 0;
    heading.onclick = () => sortBy(table, heading);
    heading.onkeydown = e => { if (e.key === 'Enter') sortBy(table, heading) };
  }
}

setTheme('auto');
paintNext();
