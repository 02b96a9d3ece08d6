'use strict';
// Draws the charts of the page's data (docs/formats.md, "Charts: --series") as inline SVG.
const root = document.documentElement;
addEventListener('error', e => { root.dataset.error = e.message || 'error' });
addEventListener('unhandledrejection', e => { root.dataset.error = String(e.reason) });

const W = 420, PLOT = 180, LETTER = 5.9;
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
  if (v == null || Number.isNaN(v)) return '\u2013';
  if (v === 0) return '0';
  const size = Math.abs(v);
  const text = size >= 1e7 || size < 1e-4 ? v.toExponential(digits - 1).replace(/\.?0+e/, 'e').replace('e+', 'e')
    : String(+v.toPrecision(digits));
  return text.replace(/-/g, '\u2212');
}
const percentText = v => figureText(100 * v, 3) + ' %';
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
  add(svg, 'text', { x, y, 'font-size': 11, fill: theme.muted, ...more }, text);
const mark = (made, tip) => { made.dataset.tip = tip; return made };

function open(figure, chart) {
  const svg = add(figure, 'svg', { class: 'chart', role: 'img',
    'font-family': 'Helvetica, Arial, sans-serif', 'aria-label': chart.title });
  label(svg, 8, 13, cut(chart.title, 1.02 * W - 70), { 'font-size': 13, 'font-weight': 600, fill: theme.ink });
  return { svg, chart, top: 22, left: 8, right: W - 10 };
}
const close = (svg, height) => svg.setAttribute('viewBox', `0 0 ${W} ${Math.round(height)}`);

// Keys: {name, colour, kind}; as many rows as it takes.
function legend(c, keys) {
  let x = 8;
  for (const key of keys) {
    const name = cut(key.name, W - 40), width = 22 + LETTER * [...name].length + 10;
    if (x > 8 && x + width > W) { x = 8; c.top += 15 }
    const y = c.top + 7, line = { stroke: key.colour, 'stroke-width': 1.6, x1: x, x2: x + 16, y1: y, y2: y };
    if (key.kind === 'band')
      add(c.svg, 'rect', { x, y: y - 5, width: 16, height: 10, fill: key.colour, 'fill-opacity': .22 });
    else if (key.kind === 'dots')
      add(c.svg, 'circle', { cx: x + 8, cy: y, r: 3, fill: key.colour });
    else
      add(c.svg, 'line', key.kind === 'line' ? line
        : { ...line, 'stroke-dasharray': key.kind === 'rule' ? '2 3' : '5 3' });
    label(c.svg, x + 21, y + 4, name, { fill: theme.ink });
    x += width;
  }
  if (keys.length) c.top += 20;
}

function ramp(c, names) {
  const first = cut(names[0], 150), x = 12 + LETTER * [...first].length;
  label(c.svg, 8, c.top + 11, first, { fill: theme.ink });
  for (let k = 0; k < 40; k++)
    add(c.svg, 'rect', { x: x + 2 * k, y: c.top + 3, width: 2.2, height: 9, fill: colourOf({ share: k / 39 }) });
  label(c.svg, x + 86, c.top + 11, cut(names[1], 150), { fill: theme.ink });
  c.top += 20;
}

// ---- axes ----

const roundUp = v => {
  const power = 10 ** Math.floor(Math.log10(v) + 1e-9), lead = v / power;
  return power * (lead <= 1.000001 ? 1 : lead <= 2.000001 ? 2 : lead <= 5.000001 ? 5 : 10);
};

function logScale(axis, low, high) {
  if (!(high > 0)) { low = .1; high = 1 }
  const first = Math.floor(Math.log10(low) + 1e-9), last = Math.max(Math.ceil(Math.log10(high) - 1e-9), first + 1);
  const foot = axis.zero ? .1 : 0, stride = Math.max(1, Math.ceil((last - first) / 6)), ticks = axis.zero ? [0] : [];
  for (let p = first; p <= last; p += stride)
    for (const lead of last - first <= 2 ? [1, 2, 5] : [1])
      if (p < last || lead === 1) ticks.push(lead * 10 ** p);
  return { ticks, share: v => v > 0 ? foot + (1 - foot) * clamp((Math.log10(v) - first) / (last - first), 0, 1) : 0,
    text: v => axis.percent ? percentText(v) : figureText(v, 3) };
}

function linearScale(axis, low, high) {
  if (axis.zero) { low = Math.min(low, 0); high = Math.max(high, 0) }
  if (!(high - low > 1e-9 * Math.max(Math.abs(low), Math.abs(high)))) {
    const half = Math.abs(low) / 2 || .5;
    low = low >= 0 ? Math.max(low - half, 0) : low - half;
    high += half;
  }
  let step = roundUp((high - low) / 5);
  if (axis.whole) step = Math.max(1, step);
  const first = Math.floor(low / step + 1e-9), last = Math.ceil(high / step - 1e-9), ticks = [];
  for (let k = first; k <= last; k++) ticks.push(k * step);
  const digits = v => v ? clamp(Math.floor(Math.log10(Math.abs(v)) + 1e-9) - Math.floor(Math.log10(step) + 1e-9) + 1, 1, 9) : 1;
  return { ticks, share: v => clamp((v - first * step) / ((last - first) * step), 0, 1),
    text: v => axis.percent ? figureText(Math.round(1e6 * v) / 1e4, 3) + ' %' : figureText(+v.toPrecision(12), digits(v)) };
}

function namedScale(axis) {
  const n = axis.names.length, stride = Math.max(1, Math.ceil(n / 16)), ticks = [];
  const longest = Math.max(...axis.names.map(name => [...name].length));
  const room = Math.max(1, Math.ceil(n * (LETTER * longest + 6) / 350));
  for (let k = 0; k < n; k += longest > 8 ? 1 : Math.max(stride, room)) ticks.push(k);
  return { ticks, share: v => (v + .5) / n, text: v => axis.names[v], named: true, slot: 1 / n };
}

function scaleOf(axis, values) {
  if (axis.names) return namedScale(axis);
  const log = axis.scale === 'log', seen = values.filter(v => Number.isFinite(v) && (!log || v > 0));
  if (axis.from != null && (!log || axis.from > 0)) seen.push(axis.from);
  if (axis.to != null) seen.push(axis.to);
  let low = Infinity, high = -Infinity;
  for (const v of seen) { low = Math.min(low, v); high = Math.max(high, v) }
  if (!seen.length) { low = log ? .1 : 0; high = 1 }
  return log ? logScale(axis, low, high) : linearScale(axis, low, high);
}

// Takes room for both axes and draws grid, ticks and labels.
function axes(c, xs, ys) {
  const { chart, svg } = c;
  if (chart.y.label) { label(svg, 8, c.top + 9, cut(chart.y.label, W - 16)); c.top += 16 }
  c.top += 6;
  c.x = scaleOf(chart.x, xs);
  c.y = scaleOf(chart.y, ys);
  const widest = Math.max(...c.y.ticks.map(t => LETTER * c.y.text(t).length));
  c.left = widest + 14;
  const steep = c.x.named && Math.max(...c.x.ticks.map(t => c.x.text(t).length)) > 8;
  c.bottom = c.top + PLOT;
  const foot = c.bottom + (steep ? 66 : 20) + (chart.x.label ? 14 : 0);
  close(svg, foot + 4);
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
    const x = c.px(t), text = cut(c.x.text(t), steep ? 110 : 90), half = LETTER * [...text].length / 2;
    if (steep) {
      label(svg, x, c.bottom + 12, text, { 'text-anchor': 'end', transform: `rotate(-35 ${x.toFixed(1)} ${(c.bottom + 12).toFixed(1)})` });
    } else if (x - half > free) {
      free = x + half + 4;
      label(svg, clamp(x, half, W - half - 2), c.bottom + 14, text, { 'text-anchor': 'middle' });
    }
  }
  if (chart.x.label)
    label(svg, (c.left + c.right) / 2, foot, cut(chart.x.label, 300), { 'text-anchor': 'middle' });
}
const xText = (chart, v) => `${chart.x.label ? chart.x.label + ' ' : ''}${chart.x.names ? chart.x.names[v] : figureText(v, 6)}`;
const yText = (chart, v) => chart.y.percent ? percentText(v) : figureText(v);

// ---- kinds ----

const KINDS = {
  lines(figure, chart) {
    const c = open(figure, chart), all = chart.series, drawn = all.filter(s => s.style !== 'rule');
    const named = all.filter(s => s.name != null);
    if (chart.ramp) ramp(c, chart.ramp);
    else legend(c, named.map(s => ({ name: s.name, colour: colourOf(s),
      kind: !s.y ? 'band' : s.style })));
    axes(c, drawn.flatMap(s => s.x), all.flatMap(s => [...s.y || [], ...s.low || [], ...s.high || []]));
    for (const s of all) if (s.style === 'rule') {
      const y = c.py(s.y[0]);
      add(c.svg, 'line', { x1: c.left, x2: c.right, y1: y, y2: y, stroke: theme.axis, 'stroke-dasharray': '2 3' });
    }
    for (const s of drawn) band(c, s);
    for (const s of drawn) if (s.y) curve(c, s);
    if (!c.svg.querySelector('.m')) label(c.svg, W / 2, (c.top + c.bottom) / 2, 'no values', { 'text-anchor': 'middle' });
  },

  boxes(figure, chart) {
    const c = open(figure, chart), groups = chart.groups || [''];
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

  heat(figure, chart) {
    const map = new HeatMap(chart), tall = map.rows === map.columns;
    const side = W - 60, height = tall ? side : clamp(16 * map.rows, 60, 300);
    const c = open(figure, chart), left = 40, top = 24;
    close(c.svg, height + 80);
    add(c.svg, 'image', { class: 'm', x: left, y: top, width: side, height, preserveAspectRatio: 'none',
      style: 'image-rendering:pixelated', href: map.image().toDataURL() });
    add(c.svg, 'rect', { x: left, y: top, width: side, height, fill: 'none', stroke: theme.axis });
    for (const [row, column] of map.heat.boxes || [])
      add(c.svg, 'rect', { x: left + column * side / map.columns, y: top + row * height / map.rows,
        width: side / map.columns, height: height / map.rows, fill: 'none', stroke: theme.q1 });
    label(c.svg, left + side / 2, top + height + 14, map.heat.column_label, { 'text-anchor': 'middle' });
    label(c.svg, 28, top + height / 2, cut(map.heat.row_label, height), { 'text-anchor': 'middle',
      transform: `rotate(-90 28 ${top + height / 2})` });
    colourBar(c.svg, map, left, top + height + 26, side);
    reader(figure, c.svg, map, left, top, side, height);
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
    mark(label(c.svg, c.px(x), c.top + 4, '\u221e', { class: 'm', 'text-anchor': 'middle', 'font-size': 13, fill: colour }),
      `${name}${xText(c.chart, x)}: \u221e`);
}

// ---- matrices ----

class HeatMap {
  constructor(chart) {
    const h = this.heat = chart.heat, bytes = Uint8Array.from(atob(h.data), c => c.charCodeAt(0));
    this.rows = h.rows;
    this.columns = h.columns;
    this.cells = new Uint16Array(h.rows * h.columns);
    for (let i = 0; i < this.cells.length; i++) this.cells[i] = bytes[2 * i] | bytes[2 * i + 1] << 8;
    this.range = h.colours || [h.low, h.high];
    this.log = h.scale === 'log' && this.range[0] > 0;
  }
  at(row, column) {
    const q = this.cells[row * this.columns + column], h = this.heat;
    if (q === 65535) return NaN;
    if (q === 0 && h.zeros) return 0;
    return h.scale === 'log' ? h.low * Math.exp(q / 65534 * Math.log(h.high / h.low))
      : h.low + q / 65534 * (h.high - h.low);
  }
  share(v) {
    const [low, high] = this.range;
    if (!(v > low)) return 0;
    return this.log ? Math.log(v / low) / Math.log(high / low) : (v - low) / (high - low);
  }
  image(canvas = document.createElement('canvas')) {
    canvas.width = this.columns;
    canvas.height = this.rows;
    const pen = canvas.getContext('2d'), image = pen.createImageData(this.columns, this.rows);
    for (let i = 0; i < this.cells.length; i++) {
      const v = this.at(Math.floor(i / this.columns), i % this.columns);
      if (Number.isNaN(v)) continue; // transparent
      image.data.set(heatColour(this.share(v), this.heat.diverging), 4 * i);
      image.data[4 * i + 3] = 255;
    }
    pen.putImageData(image, 0, 0);
    return canvas;
  }
  text(row, column) {
    const h = this.heat, v = this.at(row, column), own = h.row_names && this.rows === this.columns;
    const name = (names, i) => names ? names[i] : i;
    let text = `${h.row_label} ${name(h.row_names, row)}, ${h.column_label} ${name(h.column_names, column)}: `;
    text += h.raw_label ? `${h.raw_label} = ${figureText(v * h.raw_factor)}; ${h.value_label} ${figureText(v)}`
      : `${h.value_label} ${figureText(v)}`;
    if (own) text += row === column ? ', on the diagonal.'
      : `; ${figureText(v / this.at(row, row))} of the row\u2019s own, ${figureText(v / this.at(column, column))} of the column\u2019s own.`;
    return text;
  }
}

function colourBar(svg, map, x, y, width) {
  const [low, high] = map.range, n = 48;
  for (let k = 0; k < n; k++)
    add(svg, 'rect', { x: x + k * width / n, y, width: width / n + .3, height: 9, fill: rgb(heatColour((k + .5) / n, map.heat.diverging)) });
  label(svg, x, y + 22, figureText(low, 3));
  label(svg, x + width, y + 22, figureText(high, 3), { 'text-anchor': 'end' });
  label(svg, x + width / 2, y + 22, map.heat.value_label, { 'text-anchor': 'middle' });
}

// Point, tap or arrow keys: the value of one cell below the map.
function reader(figure, svg, map, left, top, width, height) {
  const out = figure.appendChild(document.createElement('p'));
  out.className = 'readout';
  out.setAttribute('aria-live', 'polite');
  const cell = add(svg, 'rect', { class: 'cursor', fill: 'none', stroke: theme.q1, 'stroke-width': 1.5,
    width: width / map.columns, height: height / map.rows });
  let row = 0, column = 0;
  const tell = (r, k) => {
    row = clamp(r, 0, map.rows - 1);
    column = clamp(k, 0, map.columns - 1);
    cell.setAttribute('x', left + column * width / map.columns);
    cell.setAttribute('y', top + row * height / map.rows);
    out.textContent = map.text(row, column);
  };
  const point = e => {
    const box = svg.getBoundingClientRect(), unit = box.width / W;
    const x = (e.clientX - box.left) / unit - left, y = (e.clientY - box.top) / unit - top;
    if (x >= 0 && y >= 0 && x < width && y < height)
      tell(Math.floor(y / height * map.rows), Math.floor(x / width * map.columns));
  };
  svg.tabIndex = 0;
  svg.onpointermove = point;
  svg.onpointerdown = point;
  svg.onkeydown = e => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[e.key];
    if (!step) return;
    e.preventDefault();
    tell(row + step[0], column + step[1]);
  };
  tell(0, 0);
}

// ---- figures ----

function draw(figure, chart) {
  figure.replaceChildren();
  if (chart.kind !== 'lines' || chart.series.length) {
    KINDS[chart.kind](figure, chart);
    const button = figure.appendChild(document.createElement('button'));
    button.className = 'save';
    button.textContent = 'SVG';
    button.title = 'Save this chart as an SVG file';
    button.onclick = () => save(figure.querySelector('svg'), chart.id);
  } else {
    const heading = figure.appendChild(document.createElement('h3'));
    heading.textContent = chart.title;
  }
  const caption = figure.appendChild(document.createElement('figcaption'));
  caption.textContent = [chart.caption, ...chart.notes || []].filter(Boolean).join(' ');
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

// The maps of a section: of every checkpoint one large, with small ones to choose from.
function drawMaps(box, charts) {
  const groups = new Map();
  for (const chart of charts) {
    if (!groups.has(chart.heat.group)) groups.set(chart.heat.group, []);
    groups.get(chart.heat.group).push(chart);
  }
  const shows = [];
  const choose = name => shows.forEach(show => show(name));
  box.replaceChildren();
  for (const maps of groups.values()) {
    const pair = box.appendChild(document.createElement('div'));
    const figure = pair.appendChild(document.createElement('figure'));
    const thumbs = document.createElement('div');
    pair.className = groups.size > 1 ? '' : 'alone';
    thumbs.className = 'thumbs';
    if (maps.length > 1) pair.appendChild(thumbs);
    for (const chart of maps) {
      const button = thumbs.appendChild(document.createElement('button'));
      button.dataset.name = chart.heat.label;
      button.title = chart.title;
      waiting.push(() => new HeatMap(chart).image(button.insertBefore(document.createElement('canvas'), button.firstChild)));
      button.append(chart.heat.label);
      button.onclick = () => choose(chart.heat.label);
    }
    shows.push(name => {
      const chart = maps.find(one => one.heat.label === name);
      if (!chart) return;
      figure.id = 'chart-' + chart.id;
      figure.dataset.chart = chart.id;
      draw(figure, chart);
      for (const b of thumbs.children) b.setAttribute('aria-pressed', b.dataset.name === name);
    });
    shows[shows.length - 1](maps[0].heat.label);
  }
}

const data = JSON.parse(document.getElementById('couplet-data').textContent);
const charts = data.series ? data.series.charts : [];
let waiting = [];

function paintNext() {
  const end = performance.now() + 30;
  while (waiting.length && performance.now() < end) waiting.shift()();
  if (waiting.length) setTimeout(paintNext, 0);
  else root.dataset.ready = '1';
}

function drawAll() {
  readTheme();
  waiting = [];
  for (const chart of charts) {
    const figure = document.querySelector(`figure[data-chart="${chart.id}"]`);
    if (figure && !figure.closest('.maps')) draw(figure, chart);
  }
  for (const box of document.querySelectorAll('[data-maps]'))
    drawMaps(box, charts.filter(chart => chart.section === box.dataset.maps));
  paintNext();
}
