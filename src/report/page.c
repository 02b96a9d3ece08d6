/* page.c - see page.h */
#include "report/page.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "report/chart.h"
#include "report/markup.h"

static const char style[] =
    "*{box-sizing:border-box}\n"
    "html{-webkit-text-size-adjust:100%;color-scheme:light dark}\n"
    "body{margin:0;background:var(--ground);color:var(--ink);"
    "font:15px/1.5 system-ui,-apple-system,\"Segoe UI\",Roboto,Helvetica,Arial,sans-serif}\n"
    "main{max-width:1160px;margin:0 auto;padding:28px 20px 60px}\n"
    "h1{font-size:25px;line-height:1.25;margin:0 0 8px;overflow-wrap:anywhere}\n"
    "h2{font-size:19px;line-height:1.3;margin:42px 0 8px;padding-top:12px;"
    "border-top:1px solid var(--grid)}\n"
    "h3{font-size:15px;margin:24px 0 4px;overflow-wrap:anywhere}\n"
    "p{margin:0 0 12px;max-width:76ch;overflow-wrap:anywhere}\n"
    ".lead{color:var(--muted)}\n"
    ".note{border-left:3px solid var(--q4);padding:2px 0 2px 12px}\n"
    ".small{font-size:13px;color:var(--muted)}\n"
    "dl{display:grid;grid-template-columns:minmax(9em,13em) minmax(0,1fr);gap:8px 20px;"
    "max-width:100ch;margin:12px 0}\n"
    "dt{font-weight:600;overflow-wrap:anywhere}\n"
    "dd{margin:0;overflow-wrap:anywhere}\n"
    ".table{overflow:auto;margin:12px 0 20px;max-width:100%}\n"
    ".table:has(tbody tr:nth-child(61)){max-height:46em}\n"
    "table{border-collapse:separate;border-spacing:0;font-size:13px;font-variant-numeric:tabular-"
    "nums}\n"
    "th,td{padding:4px 10px;text-align:right;white-space:nowrap;"
    "border-bottom:1px solid var(--grid)}\n"
    "thead th{position:sticky;top:0;z-index:1;background:var(--ground);vertical-align:bottom;"
    "white-space:normal;min-width:4.6em;color:var(--muted);"
    "font-weight:500;border-bottom:1px solid var(--axis)}\n"
    "tbody th{font-weight:500;position:sticky;left:0;background:var(--ground);max-width:40vw;"
    "white-space:normal;overflow-wrap:anywhere}\n"
    "th:first-child{text-align:left;padding-left:0}\n"
    "tbody tr:hover>*{background:var(--grid)}\n"
    "td.words{text-align:left;white-space:normal;min-width:30em;color:var(--muted)}\n"
    ".charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,345px),1fr));"
    "gap:22px 26px;margin:14px 0 8px;align-items:start}\n"
    "figure{margin:0;min-width:0;max-width:460px}\n"
    "figcaption{font-size:13px;color:var(--muted);line-height:1.4;margin-top:2px;"
    "overflow-wrap:anywhere}\n"
    "svg.chart{display:block;width:100%;height:auto}\n"
    "svg.chart [data-tip]:hover{filter:brightness(1.25)}\n"
    "#tip{position:absolute;z-index:9;pointer-events:none;background:var(--ink);"
    "color:var(--ground);font-size:12px;line-height:1.35;padding:4px 8px;border-radius:4px;"
    "max-width:min(300px,90vw);overflow-wrap:anywhere}\n"
    "@media(max-width:560px){main{padding:18px 14px 40px}h1{font-size:21px}"
    "dl{grid-template-columns:1fr;gap:2px}dd{margin-bottom:10px}td.words{min-width:18em}}\n"
    "@media "
    "print{.table{max-height:none!important}h2{break-after:avoid}figure{break-inside:avoid}}\n";

/* Shows the <title> of a mark as a tip; on a small mark the nearest within 14 pixels counts. */
static const char script_begin[] =
    "'use strict';\n"
    "const page=document.documentElement;\n"
    "addEventListener('error',e=>{page.dataset.error=e.message||'error'});\n"
    "addEventListener('unhandledrejection',e=>{page.dataset.error=String(e.reason)});\n";
static const char script_tips[] =
    "const tip=document.body.appendChild(document.createElement('div'));\n"
    "tip.id='tip';tip.hidden=true;\n"
    "for(const t of document.querySelectorAll('svg.chart title')){\n"
    "  t.parentNode.dataset.tip=t.textContent;t.remove();\n"
    "}\n"
    "function nearest(svg,x,y){\n"
    "  let best=null,least=14;\n"
    "  for(const mark of svg.querySelectorAll('[data-tip]')){\n"
    "    const r=mark.getBoundingClientRect();\n"
    "    const dx=Math.max(r.left-x,0,x-r.right),dy=Math.max(r.top-y,0,y-r.bottom);\n"
    "    const far=Math.hypot(dx,dy);\n"
    "    if(far<least){least=far;best=mark}\n"
    "  }\n"
    "  return best;\n"
    "}\n"
    "function showTip(e){\n"
    "  const svg=e.target.closest&&e.target.closest('svg.chart');\n"
    "  const mark=svg&&nearest(svg,e.clientX,e.clientY);\n"
    "  tip.hidden=!mark;\n"
    "  if(!mark)return;\n"
    "  tip.textContent=mark.dataset.tip;\n"
    "  const w=tip.offsetWidth,room=page.clientWidth;\n"
    "  tip.style.left=Math.max(4,Math.min(e.clientX-w/2,room-w-4))+scrollX+'px';\n"
    "  const above=e.clientY-tip.offsetHeight-12;\n"
    "  tip.style.top=(above>4?above:e.clientY+16)+scrollY+'px';\n"
    "}\n"
    "addEventListener('pointermove',showTip);\n"
    "addEventListener('pointerdown',showTip);\n";

static void element(cpl_text *out, const char *tag, const char *class, const char *text)
{
    cpl_text_printf(out, "<%s", tag);
    if (class) cpl_text_printf(out, " class=\"%s\"", class);
    cpl_text_char(out, '>');
    cpl_markup_text(out, text);
    cpl_text_printf(out, "</%s>\n", tag);
}

static void put(cpl_text *out, const char *markup)
{
    if (markup) cpl_text_append(out, markup, strlen(markup));
}

static void put_style(cpl_text *out, const char *more)
{
    put(out, "<style>\n:root{");
    cpl_chart_colours(out, false);
    put(out, "}\n@media(prefers-color-scheme:dark){:root{");
    cpl_chart_colours(out, true);
    put(out, "}}\n");
    put(out, style);
    cpl_chart_style(out, true);
    put(out, more);
    put(out, "</style>\n");
}

/* The policy lets the browser itself refuse every request that a page could make. */
void cpl_page_open(cpl_text *out, const char *title, const char *lead, const char *more_style)
{
    put(out, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
             "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
             "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
             "style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n");
    element(out, "title", NULL, title);
    put_style(out, more_style);
    put(out, "<script>\n");
    put(out, script_begin);
    put(out, "</script>\n</head>\n<body>\n<main>\n");
    element(out, "h1", NULL, title);
    if (lead) element(out, "p", "lead", lead);
}

void cpl_page_close(cpl_text *out, const char *script)
{
    put(out, "</main>\n<script>\n");
    put(out, script_tips);
    if (script)
        put(out, script);
    else
        put(out, "page.dataset.ready='1';\n");
    put(out, "</script>\n</body>\n</html>\n");
}

void cpl_page_section(cpl_text *out, const char *heading)
{
    element(out, "h2", NULL, heading);
}

void cpl_page_subsection(cpl_text *out, const char *heading)
{
    element(out, "h3", NULL, heading);
}

void cpl_page_paragraph(cpl_text *out, const char *text)
{
    element(out, "p", NULL, text);
}

void cpl_page_note(cpl_text *out, const char *text)
{
    element(out, "p", "note", text);
}

void cpl_page_small(cpl_text *out, const char *text)
{
    element(out, "p", "small", text);
}

void cpl_page_terms_open(cpl_text *out)
{
    put(out, "<dl>\n");
}

void cpl_page_term(cpl_text *out, const char *name, const char *explanation)
{
    element(out, "dt", NULL, name);
    element(out, "dd", NULL, explanation);
}

void cpl_page_terms_close(cpl_text *out)
{
    put(out, "</dl>\n");
}

void cpl_page_table_open(cpl_text *out, const char *caption, const char *const *columns,
                         int64_t n_columns)
{
    if (caption) element(out, "p", "small", caption);
    put(out, "<div class=\"table\"><table>\n<thead><tr>\n");
    for (int64_t i = 0; i < n_columns; i++) element(out, "th", NULL, columns[i]);
    put(out, "</tr></thead>\n<tbody>\n");
}

void cpl_page_row_open(cpl_text *out, const char *name)
{
    put(out, "<tr>");
    element(out, "th", NULL, name);
}

void cpl_page_cell(cpl_text *out, const char *text)
{
    element(out, "td", NULL, text);
}

void cpl_page_figure(cpl_text *out, double value, int digits)
{
    char words[48];
    cpl_page_cell(out, cpl_markup_figure(words, value, digits));
}

void cpl_page_percent(cpl_text *out, double share)
{
    char words[32];
    snprintf(words, sizeof words, "%.3g %%", 100 * share);
    cpl_page_cell(out, isfinite(share) ? words : "–");
}

void cpl_page_count(cpl_text *out, int64_t value)
{
    char words[24];
    snprintf(words, sizeof words, "%lld", (long long)value);
    cpl_page_cell(out, words);
}

void cpl_page_cell_span(cpl_text *out, const char *text, int64_t columns)
{
    cpl_text_printf(out, "<td class=\"words\" colspan=\"%lld\">", (long long)columns);
    cpl_markup_text(out, text);
    put(out, "</td>\n");
}

void cpl_page_row_close(cpl_text *out)
{
    put(out, "</tr>\n");
}

void cpl_page_table_close(cpl_text *out)
{
    put(out, "</tbody></table></div>\n");
}

void cpl_page_charts_open(cpl_text *out)
{
    put(out, "<div class=\"charts\">\n");
}

void cpl_page_chart_open(cpl_text *out)
{
    put(out, "<figure>\n");
}

void cpl_page_chart_close(cpl_text *out, const char *caption)
{
    if (caption) element(out, "figcaption", NULL, caption);
    put(out, "</figure>\n");
}

void cpl_page_charts_close(cpl_text *out)
{
    put(out, "</div>\n");
}
