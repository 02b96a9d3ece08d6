/* page_heat.c - M of every layer on canvases; see page_internal.h
 *
 * 61 layers of 256 x 256 cells would be 50 MB of vectors. The page holds 16 bits a cell instead:
 * 0 for 0, else 1 + round(65534 log(M / low) / log(high / low)) between the least and the greatest M
 * above 0 of the layer, as base64, little end first. A step is less than 2.2e-4 of a value where the
 * values of a layer span six decades, so that what is shown with four digits is right to one in the
 * last. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "inspect/page_internal.h"
#include "report/markup.h"
#include "report/page.h"

enum { STEPS = 65534, LEVELS = 64 };

const char cpl_coupling_page_heat_style[] =
    ".heats{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,345px),1fr));"
    "gap:22px 32px;margin:14px 0;align-items:start}\n"
    ".heats.one{grid-template-columns:minmax(0,1fr)}\n"
    "figure.heat{max-width:none}\n"
    "@media(min-width:860px){.heats.one figure.heat{display:grid;grid-template-columns:440px 1fr;"
    "gap:0 32px}.heats.one .thumbs{grid-column:2;grid-row:1/span 6;align-content:start}}\n"
    ".heat h3{margin:0 0 4px}\n"
    ".heat .which{font-size:13px;font-weight:600;margin:0 0 4px}\n"
    ".heat canvas{display:block;width:100%;aspect-ratio:1;image-rendering:pixelated}\n"
    ".heat .big{max-width:440px;cursor:crosshair;touch-action:pan-y;border:1px solid var(--axis)}\n"
    ".heat .sides{font-size:12px;color:var(--muted);margin:2px 0 0;max-width:440px}\n"
    ".heat .readout{font-size:13px;font-variant-numeric:tabular-nums;min-height:4.2em;"
    "margin:4px 0;max-width:440px}\n"
    ".thumbs{display:grid;grid-template-columns:repeat(auto-fill,minmax(64px,1fr));gap:8px;"
    "margin-top:8px}\n"
    ".thumbs button{font:inherit;font-size:12px;color:var(--muted);background:none;border:0;"
    "padding:3px;cursor:pointer;border-radius:3px;text-align:center}\n"
    ".thumbs button[aria-pressed=true]{outline:2px solid var(--q0);color:var(--ink)}\n"
    ".bar{max-width:370px;margin:6px 0}\n";

/* The value of a cell is found again where it is shown; the colours are those of the files. */
static const char script[] =
    "function bytes(text){return Uint8Array.from(atob(text),c=>c.charCodeAt(0))}\n"
    "function words16(text){\n"
    "  const b=bytes(text),w=new Uint16Array(b.length/2);\n"
    "  for(let i=0;i<w.length;i++)w[i]=b[2*i]|b[2*i+1]<<8;\n"
    "  return w;\n"
    "}\n"
    "class Matrix{\n"
    "  constructor(button){\n"
    "    const d=button.dataset;\n"
    "    this.n=+d.n;this.low=+d.low;this.high=+d.high;this.scale=+d.scale;\n"
    "    this.name=d.name;this.order=words16(d.order);this.cells=words16(d.m);\n"
    "  }\n"
    "  at(i,j){\n"
    "    const q=this.cells[i*this.n+j];\n"
    "    return q?this.low*Math.exp((q-1)/65534*Math.log(this.high/this.low)):0;\n"
    "  }\n"
    "  paint(canvas){\n"
    "    const n=canvas.width=canvas.height=this.n,pen=canvas.getContext('2d');\n"
    "    const image=pen.createImageData(n,n);\n"
    "    for(let r=0,k=0;r<n;r++)for(let c=0;c<n;c++){\n"
    "      const v=this.at(this.order[r],this.order[c])*this.scale;\n"
    "      const rgb=colours[level(v)];\n"
    "      image.data[k++]=rgb>>16;image.data[k++]=rgb>>8&255;image.data[k++]=rgb&255;\n"
    "      image.data[k++]=255;\n"
    "    }\n"
    "    pen.putImageData(image,0,0);\n"
    "  }\n"
    "}\n"
    "function level(v){\n"
    "  if(!(v>scale.low))return 0;\n"
    "  if(v>=scale.high)return colours.length-1;\n"
    "  const s=scale.log?Math.log(v/scale.low)/Math.log(scale.high/scale.low)\n"
    "    :(v-scale.low)/(scale.high-scale.low);\n"
    "  return Math.min(colours.length-1,Math.floor(s*colours.length));\n"
    "}\n"
    "function figure(v){\n"
    "  return Number.isFinite(v)?String(+v.toPrecision(4)).replace('-','\\u2212')\n"
    "    :Number.isNaN(v)?'\\u2013':'\\u221e';\n"
    "}\n"
    "class Heat{\n"
    "  constructor(root){\n"
    "    this.big=root.querySelector('.big');this.text=root.querySelector('.readout');\n"
    "    this.which=root.querySelector('.which');\n"
    "    this.buttons=[...root.querySelectorAll('.thumbs button')];\n"
    "    for(const b of this.buttons)b.onclick=()=>choose(b.dataset.name);\n"
    "    const point=e=>{\n"
    "      const r=this.big.getBoundingClientRect(),n=this.matrix.n;\n"
    "      const cut=v=>Math.max(0,Math.min(n-1,Math.floor(v*n)));\n"
    "      this.tell(cut((e.clientY-r.top)/r.height),cut((e.clientX-r.left)/r.width));\n"
    "    };\n"
    "    this.big.onpointermove=point;this.big.onpointerdown=point;\n"
    "    this.big.onkeydown=e=>{\n"
    "      const step={ArrowUp:[-1,0],ArrowDown:[1,0],ArrowLeft:[0,-1],ArrowRight:[0,1]}[e.key];\n"
    "      if(!step)return;\n"
    "      e.preventDefault();\n"
    "      const n=this.matrix.n,move=(at,by)=>Math.max(0,Math.min(n-1,at+by));\n"
    "      this.tell(move(this.row,step[0]),move(this.column,step[1]));\n"
    "    };\n"
    "  }\n"
    "  show(name){\n"
    "    const button=this.buttons.find(b=>b.dataset.name===name);\n"
    "    if(!button)return false;\n"
    "    for(const b of this.buttons)b.setAttribute('aria-pressed',b===button);\n"
    "    this.matrix=new Matrix(button);this.matrix.paint(this.big);\n"
    "    this.which.textContent=button.dataset.title;\n"
    "    this.tell(0,0);\n"
    "    return true;\n"
    "  }\n"
    "  tell(row,column){\n"
    "    const m=this.matrix,i=m.order[row],j=m.order[column],v=m.at(i,j);\n"
    "    this.row=row;this.column=column;\n"
    "    this.text.textContent=`Router row ${i}, expert ${j}: M = ${figure(v)}`+\n"
    "      ` (${figure(v*m.scale)} of the mean diagonal)`+(i===j?', on the diagonal.':\n"
    "      `; ${figure(v/m.at(i,i))} of row ${i}\\u2019s own, `+\n"
    "      `${figure(v/m.at(j,j))} of expert ${j}\\u2019s own.`);\n"
    "  }\n"
    "}\n"
    "function choose(name){for(const h of heats)h.show(name)}\n"
    "const heats=[...document.querySelectorAll('figure.heat')].map(f=>new Heat(f));\n"
    "for(const h of heats)h.show(h.buttons[0].dataset.name);\n"
    "const waiting=heats.flatMap(h=>h.buttons);\n"
    "function paintNext(){\n"
    "  const end=performance.now()+30;\n"
    "  while(waiting.length&&performance.now()<end){\n"
    "    const b=waiting.shift();new Matrix(b).paint(b.querySelector('canvas'));\n"
    "  }\n"
    "  if(waiting.length)setTimeout(paintNext,0);else page.dataset.ready='1';\n"
    "}\n"
    "paintNext();\n";

/* ---- numbers ---- */

static void put_words(cpl_text *out, const uint16_t *words, int64_t count)
{
    unsigned char *bytes = cpl_alloc(2 * (size_t)count + 1);
    if (!bytes) {
        out->failed = true;
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        bytes[2 * i]     = (unsigned char)(words[i] & 255);
        bytes[2 * i + 1] = (unsigned char)(words[i] >> 8);
    }
    cpl_markup_base64(out, bytes, 2 * (size_t)count);
    cpl_free(bytes);
}

typedef struct limits {
    double least, most; /* of all */
    double low, high;   /* low < high: those above 0 lie between */
} limits;

static limits limits_of(const cpl_layer_report *layer)
{
    limits of = {.least = layer->M[0], .low = INFINITY};
    for (int64_t i = 0; i < layer->at->n * layer->at->n; i++) {
        double value = layer->M[i];
        of.least     = fmin(of.least, value);
        if (value > 0) of.low = fmin(of.low, value);
        of.most = fmax(of.most, value);
    }
    of.high = of.most;
    if (of.high <= 0) of.low = of.high = 1;
    if (of.high <= of.low) of.high = of.low * 1.0001; /* a span for the logarithm */
    return of;
}

static void put_cells(cpl_text *out, const cpl_layer_report *layer, limits of)
{
    int64_t cells   = layer->at->n * layer->at->n;
    double span     = log(of.high / of.low);
    uint16_t *words = cpl_alloc((size_t)cells * sizeof *words);
    if (!words) {
        out->failed = true;
        return;
    }
    for (int64_t i = 0; i < cells; i++) {
        double value = layer->M[i];
        words[i] = value > 0 ? (uint16_t)(1 + (int)(STEPS * log(value / of.low) / span + 0.5)) : 0;
    }
    put_words(out, words, cells);
    cpl_free(words);
}

static void put_order(cpl_text *out, const int32_t *order, int64_t n)
{
    uint16_t *words = cpl_alloc((size_t)n * sizeof *words);
    if (!words) {
        out->failed = true;
        return;
    }
    for (int64_t i = 0; i < n; i++) words[i] = (uint16_t)order[i];
    put_words(out, words, n);
    cpl_free(words);
}

/* ---- markup ---- */

static void put_thumb(cpl_text *out, const cpl_coupling_view *view, int64_t index)
{
    const cpl_layer_report *layer = &view->report->layers[index];
    limits of                     = limits_of(layer);
    char label[48], words[64], low[48], high[48], mean[48];
    cpl_coupling_charts_label(label, layer);
    cpl_text_printf(out, "<button type=\"button\" aria-pressed=\"false\" data-name=\"");
    cpl_markup_text(out, label);
    cpl_text_printf(out, "\" data-title=\"L");
    cpl_markup_text(out, cpl_coupling_charts_words(words, layer) + 1);
    cpl_text_printf(out, ": M from %s to %s, mean diagonal %s\"",
                    cpl_markup_figure(low, of.least, 4), cpl_markup_figure(high, of.most, 4),
                    cpl_markup_figure(mean, layer->figures.m_diagonal, 4));
    cpl_text_printf(out,
                    " data-n=\"%lld\" data-low=\"%.9g\" data-high=\"%.9g\" data-scale=\"%.9g\"",
                    (long long)layer->at->n, of.low, of.high, cpl_coupling_charts_scale(layer));
    cpl_text_printf(out, " data-order=\"");
    put_order(out, view->orders[index], layer->at->n);
    cpl_text_printf(out, "\" data-m=\"");
    put_cells(out, layer, of);
    cpl_text_printf(out, "\"><canvas></canvas>");
    cpl_markup_text(out, label);
    cpl_text_printf(out, "</button>\n");
}

static void put_heat(cpl_text *out, const cpl_coupling_charts *charts, int64_t v)
{
    const cpl_coupling_report *r = charts->views[v].report;
    cpl_text_printf(out, "<figure class=\"heat\">\n<div>\n");
    if (charts->n_views > 1) cpl_page_subsection(out, r->name);
    cpl_text_printf(out,
                    "<p class=\"which\"></p>\n<canvas class=\"big\" tabindex=\"0\" role=\"img\" "
                    "aria-label=\"coupling matrix of the chosen layer\"></canvas>\n"
                    "<p class=\"sides\">Rows: router rows i. Columns: experts j. Both by "
                    "falling diagonal.</p>\n"
                    "<p class=\"readout\" aria-live=\"polite\"></p>\n</div>\n"
                    "<div class=\"thumbs\">\n");
    for (int64_t i = 0; i < r->n_layers; i++)
        if (r->layers[i].has_M) put_thumb(out, &charts->views[v], i);
    cpl_text_printf(out, "</div>\n</figure>\n");
}

void cpl_coupling_page_heats(cpl_text *out, const cpl_coupling_charts *charts)
{
    bool any      = false;
    cpl_chart bar = {.x_label = "colour: M / mean diagonal of its layer", .in_page = true};
    for (int64_t v = 0; v < charts->n_views; v++)
        any = any || cpl_coupling_charts_have(charts, v, CPL_COUPLING_KAPPA);
    if (!any) return;
    cpl_page_section(out, "Coupling matrices");
    cpl_page_small(
        out, charts->n_views > 1
                 ? "Tap a small map to see its layer in all checkpoints that have it. Point, "
                   "tap or use the arrow keys on a large one for single values. All maps "
                   "share one scale of colours; what lies beyond it has the colour of the end."
                 : "Tap a small map to enlarge it. Point, tap or use the arrow keys on the "
                   "large one for single values. All maps share one scale of colours; what "
                   "lies beyond it has the colour of the end.");
    cpl_text_printf(out, "<noscript><p class=\"note\">The maps are drawn by the page's own script, "
                         "which is switched off.</p></noscript>\n<div class=\"bar\">\n");
    cpl_chart_heat_bar(out, &bar, charts->heat, charts->heat_log);
    cpl_text_printf(out, "</div>\n<div class=\"heats%s\">\n", charts->n_views == 1 ? " one" : "");
    for (int64_t v = 0; v < charts->n_views; v++)
        if (cpl_coupling_charts_have(charts, v, CPL_COUPLING_KAPPA)) put_heat(out, charts, v);
    cpl_text_printf(out, "</div>\n");
}

void cpl_coupling_page_heat_script(cpl_text *out, const cpl_coupling_charts *charts)
{
    cpl_text_printf(out, "const scale={low:%.9g,high:%.9g,log:%s};\nconst colours=[",
                    charts->heat.low, charts->heat.high, charts->heat_log ? "true" : "false");
    for (int i = 0; i < LEVELS; i++)
        cpl_text_printf(out, "%s0x%06x", i ? "," : "", cpl_chart_heat_colour((i + 0.5) / LEVELS));
    cpl_text_printf(out, "];\n");
    cpl_text_append(out, script, strlen(script));
}
