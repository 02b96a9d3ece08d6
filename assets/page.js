// The theme, tips on marks, and tables that are sorted by a click on a heading.

// ---- theme ----

const THEMES = ['auto', 'light', 'dark'];
const switcher = document.querySelector('main').appendChild(document.createElement('button'));
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

// Paper is light, and shows what is folded.
let before = 'auto';
addEventListener('beforeprint', () => {
  before = switcher.textContent;
  for (const fold of document.querySelectorAll('details')) fold.open = true;
  setTheme('light');
});
addEventListener('afterprint', () => setTheme(before));

// ---- tips: that of the nearest mark within 14 pixels ----

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

// The number that a cell begins with; null: none.
function numberOf(text) {
  const plain = text.replace(/\u2212/g, '-').replace(/,(?=\d{3})/g, '').trim();
  if (plain.startsWith('\u221e')) return Infinity;
  const value = parseFloat(plain);
  return Number.isNaN(value) ? null : value;
}

// Empty first cells mean those of the row above; a row that moves needs them itself.
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
    if (x.number === null || y.number === null) return x.number === null ? 1 : -1; // what is missing comes last
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
