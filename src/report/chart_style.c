/* chart_style.c - colours and style of chart.h.
 *
 * Classes of things take the palette of Okabe and Ito (Color Universal Design, 2008), which readers
 * with any kind of colour vision can tell apart; its yellow, too light on white, is a grey here. The
 * map of heat maps is viridis (S. van der Walt and N. Smith, CC0), even in lightness. */
#include <stdio.h>
#include <string.h>

#include "report/chart_internal.h"

/* Viridis at i / 32. */
static const uint32_t viridis[] = {
    0x440154, 0x470d60, 0x48186a, 0x482374, 0x472d7b, 0x453681, 0x424086, 0x3f4989, 0x3b528b,
    0x375a8d, 0x33638d, 0x2f6a8e, 0x2c728e, 0x297a8e, 0x26818e, 0x23898e, 0x21908c, 0x1f988b,
    0x1f9f88, 0x21a685, 0x28ae80, 0x31b57b, 0x3ebc74, 0x4cc26c, 0x5dc963, 0x6ece58, 0x82d34c,
    0x96d83f, 0xabdc32, 0xc0df24, 0xd5e21a, 0xeae51a, 0xfde725};

enum { LAST = sizeof viridis / sizeof *viridis - 1 };

typedef struct named_colour {
    const char *name;
    uint32_t light, dark;
} named_colour;

static const named_colour colours[] = {
    {"ink", 0x1c1e21, 0xe4e6ea},  {"muted", 0x5a6068, 0xa2a8b2},  {"axis", 0x80868f, 0x747b86},
    {"grid", 0xe6e8eb, 0x2e3238}, {"ground", 0xffffff, 0x16181c}, {"none", 0x9aa0a8, 0x7c838d},
    {"q0", 0x0072b2, 0x4da3dc},   {"q1", 0xd55e00, 0xee7f38},     {"q2", 0x009e73, 0x2bbd93},
    {"q3", 0xcc79a7, 0xdb93bb},   {"q4", 0xe69f00, 0xe8b13c},     {"q5", 0x56b4e9, 0x9fd6f7},
    {"q6", 0x000000, 0xf2f2f2},   {"q7", 0x8a8a8a, 0x8f8f8f},
};
enum { N_COLOURS = sizeof colours / sizeof *colours };

/* The ramp leaves out the end of the map that is near the ground. */
static uint32_t ramp_colour(int i, bool dark)
{
    double share = (double)i / (CPL_CHART_RAMP - 1);
    return cpl_chart_heat_colour(dark ? 0.22 + 0.78 * share : 0.85 * share);
}

uint32_t cpl_chart_heat_colour(double share)
{
    double at     = (share > 0 ? share < 1 ? share : 1 : 0) * LAST;
    int i         = at < LAST ? (int)at : LAST - 1;
    uint32_t made = 0;
    for (int shift = 0; shift < 24; shift += 8) {
        double a = viridis[i] >> shift & 255, b = viridis[i + 1] >> shift & 255;
        made |= (uint32_t)(a + (b - a) * (at - i) + 0.5) << shift;
    }
    return made;
}

void cpl_chart_colours(cpl_text *out, bool dark)
{
    for (int i = 0; i < N_COLOURS; i++)
        cpl_text_printf(out, "--%s:#%06x;", colours[i].name,
                        dark ? colours[i].dark : colours[i].light);
    for (int i = 0; i < CPL_CHART_RAMP; i++)
        cpl_text_printf(out, "--r%d:#%06x;", i, ramp_colour(i, dark));
}

/* "$name" is a colour. */
static const char *const rules[] = {
    ".c-title{font-size:13px;font-weight:600;fill:$ink}",
    ".c-sub{font-size:11px;fill:$muted}",
    ".c-label{font-size:11px;fill:$muted}",
    ".c-key{font-size:11px;fill:$ink}",
    ".c-own{fill:currentColor}",
    ".c-note{font-size:10px;fill:$muted}",
    ".c-grid{stroke:$grid;stroke-width:1;fill:none}",
    ".c-axis{stroke:$axis;stroke-width:1;fill:none}",
    ".c-rule{stroke:$axis;stroke-width:1;stroke-dasharray:2 3;fill:none}",
    ".c-line{stroke:currentColor;stroke-width:1.6;stroke-linejoin:round;fill:none}",
    ".c-dash{stroke-dasharray:5 3}",
    ".c-thin{stroke-width:1.1}",
    ".c-band{fill:currentColor;fill-opacity:.22;stroke:none}",
    ".c-dot{fill:currentColor;stroke:none}",
    ".c-point{fill:currentColor;fill-opacity:.75;stroke:none}",
    ".c-ring{fill:none;stroke:currentColor;stroke-width:1}",
    ".c-box{fill:currentColor;fill-opacity:.28;stroke:currentColor;stroke-width:1}",
    ".c-median{stroke:currentColor;stroke-width:2;fill:none}",
    ".c-inf{font-size:13px;fill:currentColor}",
    ".c-none{color:$none}",
};

static void rule(cpl_text *out, const char *text, bool in_page)
{
    for (const char *dollar; (dollar = strchr(text, '$')); text = dollar) {
        cpl_text_append(out, text, (size_t)(dollar - text));
        size_t length = strspn(++dollar, "abcdefghijklmnopqrstuvwxyz");
        for (int i = 0; i < N_COLOURS; i++) {
            if (strlen(colours[i].name) != length || memcmp(colours[i].name, dollar, length) != 0)
                continue;
            if (in_page)
                cpl_text_printf(out, "var(--%s)", colours[i].name);
            else
                cpl_text_printf(out, "#%06x", colours[i].light);
        }
        dollar += length;
    }
    cpl_text_printf(out, "%s\n", text);
}

static void class_rule(cpl_text *out, const char *kind, int i, uint32_t value, bool in_page)
{
    if (in_page)
        cpl_text_printf(out, ".c-%s%d{color:var(--%s%d)}\n", kind, i, kind, i);
    else
        cpl_text_printf(out, ".c-%s%d{color:#%06x}\n", kind, i, value);
}

void cpl_chart_style(cpl_text *out, bool in_page)
{
    const named_colour *classes = colours + N_COLOURS - CPL_CHART_COLOURS;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) rule(out, rules[i], in_page);
    for (int i = 0; i < CPL_CHART_COLOURS; i++) class_rule(out, "q", i, classes[i].light, in_page);
    for (int i = 0; i < CPL_CHART_RAMP; i++)
        class_rule(out, "r", i, ramp_colour(i, false), in_page);
}

void cpl_chart_colour_class(char out[24], int colour, bool ramp, double share)
{
    double at = (share > 0 ? share < 1 ? share : 1 : 0) * (CPL_CHART_RAMP - 1);
    CPL_ASSERT(colour < CPL_CHART_COLOURS);
    if (ramp)
        snprintf(out, 24, "c-r%d", (int)(at + 0.5));
    else if (colour < 0)
        strcpy(out, "c-none");
    else
        snprintf(out, 24, "c-q%d", colour);
}
