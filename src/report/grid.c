/* grid.c - see grid.h */
#include "report/grid.h"

#include <string.h>

#include "base/arena.h"
#include "report/markup.h"

enum { WIDEST_NAME = 48, WIDEST_CELL = 34 };

cpl_status cpl_grid_open(cpl_grid *g, cpl_pool *pool, int64_t n_rows, int64_t n_columns)
{
    const size_t rows = (size_t)n_rows, columns = (size_t)n_columns;
    *g         = (cpl_grid){.corner = "", .n_rows = n_rows, .n_columns = n_columns};
    g->rows    = cpl_pool_take(pool, rows * sizeof *g->rows);
    g->columns = cpl_pool_take(pool, columns * sizeof *g->columns);
    g->cells   = cpl_pool_take(pool, rows * columns * sizeof *g->cells);
    if (!g->rows || !g->columns || !g->cells) return cpl_pool_status(pool);
    for (size_t i = 0; i < rows; i++) g->rows[i] = "";
    for (size_t i = 0; i < columns; i++) g->columns[i] = "";
    for (size_t i = 0; i < rows * columns; i++) g->cells[i] = "";
    return CPL_OK;
}

void cpl_grid_set(cpl_grid *g, int64_t row, int64_t column, const char *text)
{
    CPL_ASSERT(row >= 0 && row < g->n_rows && column >= 0 && column < g->n_columns);
    g->cells[row * g->n_columns + column] = text;
}

static const char *cell(const cpl_grid *g, int64_t row, int64_t column)
{
    return g->cells[row * g->n_columns + column];
}

/* ---- terminal ---- */

typedef struct sign {
    const char *sign, *plain;
} sign;

static const sign signs[] = {{"−", "-"}, {"–", "-"},      {"±", "+-"},    {"∞", "inf"},
                             {"…", "~"}, {"\n", "\\x0a"}, {"\t", "\\x09"}};

/* Appends at most `most` characters of the text, with ASCII signs. */
static void put_plain(cpl_text *out, const char *text, int64_t most)
{
    const int64_t length = cpl_markup_length(text), tail = (most - 1) / 2;
    int64_t at = 0;
    for (const char *s = text; *s; at++) {
        int bytes         = cpl_utf8_length((const unsigned char *)s, strlen(s));
        const char *plain = NULL;
        if (bytes == 0) bytes = 1;
        for (size_t i = 0; i < sizeof signs / sizeof *signs; i++)
            if (strncmp(s, signs[i].sign, strlen(signs[i].sign)) == 0) plain = signs[i].plain;
        const bool shown = length <= most || at < most - 1 - tail || at >= length - tail;
        if (shown && plain)
            cpl_text_append(out, plain, strlen(plain));
        else if (shown)
            cpl_text_append(out, s, (size_t)bytes);
        if (length > most && at == most - 1 - tail) cpl_text_char(out, '~');
        s += bytes;
    }
}

static int64_t plain_width(const char *text, int64_t most)
{
    cpl_text plain = {0};
    put_plain(&plain, text, most);
    const int64_t width = plain.bytes ? cpl_markup_length(plain.bytes) : 0;
    cpl_text_free(&plain);
    return width;
}

static void put_blanks(cpl_text *out, int64_t count)
{
    for (int64_t i = 0; i < count; i++) cpl_text_char(out, ' ');
}

static void put_right(cpl_text *out, const char *text, int64_t width)
{
    put_blanks(out, 2 + width - plain_width(text, WIDEST_CELL));
    put_plain(out, text, WIDEST_CELL);
}

static int64_t name_width(const cpl_grid *g)
{
    int64_t width = plain_width(g->corner, WIDEST_NAME);
    for (int64_t r = 0; r < g->n_rows; r++) {
        const int64_t own = plain_width(g->rows[r], WIDEST_NAME);
        width             = own > width ? own : width;
    }
    return width;
}

static const char *group_of(const cpl_grid *g, int64_t column)
{
    const char *group = g->groups ? g->groups[column] : NULL;
    return group ? group : "";
}

/* Returns whether the two neighbouring columns have the same group. */
static bool is_joined(const cpl_grid *g, int64_t column, int64_t next)
{
    return *group_of(g, column) && strcmp(group_of(g, column), group_of(g, next)) == 0;
}

/* Returns the width of a column. The last column of a group is wide enough for the group's name. */
static int64_t column_width(const cpl_grid *g, int64_t column)
{
    int64_t width = plain_width(g->columns[column], WIDEST_CELL);
    for (int64_t r = 0; r < g->n_rows; r++) {
        const int64_t own = plain_width(cell(g, r, column), WIDEST_CELL);
        width             = own > width ? own : width;
    }
    if (column + 1 < g->n_columns && is_joined(g, column, column + 1)) return width;
    int64_t group = plain_width(group_of(g, column), WIDEST_CELL);
    for (int64_t c = column; c > 0 && is_joined(g, c - 1, c); c--)
        group -= column_width(g, c - 1) + 2;
    return group > width ? group : width;
}

/* Appends the line of groups, each aligned to the right of its columns. */
static void put_groups(cpl_text *out, const cpl_grid *g, int64_t names)
{
    int64_t width = 0;
    put_blanks(out, names);
    for (int64_t c = 0; c < g->n_columns; c++) {
        width += column_width(g, c) + 2;
        if (!*group_of(g, c) || (c + 1 < g->n_columns && is_joined(g, c, c + 1))) continue;
        put_right(out, group_of(g, c), width - 2);
        width = 0;
    }
    cpl_text_char(out, '\n');
}

static void put_name(cpl_text *out, const char *name, int64_t width)
{
    put_plain(out, name, WIDEST_NAME);
    put_blanks(out, width - plain_width(name, WIDEST_NAME));
}

void cpl_grid_text(cpl_text *out, const cpl_grid *g)
{
    if (g->n_rows == 0) return;
    const int64_t names = name_width(g);
    if (g->title) cpl_text_printf(out, "\n%s\n", g->title);
    if (g->groups) put_groups(out, g, names);
    put_name(out, g->corner, names);
    for (int64_t c = 0; c < g->n_columns; c++) put_right(out, g->columns[c], column_width(g, c));
    cpl_text_char(out, '\n');
    for (int64_t r = 0; r < g->n_rows; r++) {
        put_name(out, g->rows[r], names);
        for (int64_t c = 0; c < g->n_columns; c++)
            put_right(out, cell(g, r, c), column_width(g, c));
        cpl_text_char(out, '\n');
    }
    if (g->note) cpl_text_printf(out, "%s\n", g->note);
}

/* ---- page ---- */

/* Appends a heading: the group, then the name. A word divided over the two lines of the terminal is
 * joined. */
static void put_heading(cpl_text *out, const cpl_grid *g, int64_t column)
{
    const char *group   = group_of(g, column);
    const size_t length = strlen(group);
    const bool divided  = length && group[length - 1] == '-';
    cpl_text name       = {0};
    cpl_text_append(&name, group, length - divided);
    cpl_text_printf(&name, "%s%s", length && !divided ? ": " : "", g->columns[column]);
    cpl_markup_element(out, "th", name.bytes ? name.bytes : "");
    out->failed = out->failed || name.failed;
    cpl_text_free(&name);
}

void cpl_grid_page(cpl_text *out, const cpl_grid *g)
{
    if (g->n_rows == 0) return;
    cpl_text_printf(out, "<div class=\"table\"><table>\n<thead><tr>\n");
    cpl_markup_element(out, "th", g->corner);
    for (int64_t c = 0; c < g->n_columns; c++) put_heading(out, g, c);
    cpl_text_printf(out, "</tr></thead>\n<tbody>\n");
    for (int64_t r = 0; r < g->n_rows; r++) {
        cpl_text_printf(out, "<tr>");
        cpl_markup_element(out, "th", g->rows[r]);
        for (int64_t c = 0; c < g->n_columns; c++) cpl_markup_element(out, "td", cell(g, r, c));
        cpl_text_printf(out, "</tr>\n");
    }
    cpl_text_printf(out, "</tbody></table></div>\n");
    if (g->note) cpl_markup_element(out, "p", g->note);
}
