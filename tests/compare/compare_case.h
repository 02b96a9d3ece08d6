/* compare_case.h - invented runs, lined up. */
#ifndef CPL_TESTS_COMPARE_COMPARE_CASE_H
#define CPL_TESTS_COMPARE_COMPARE_CASE_H

#include "compare/compare.h"
#include "compare/run_case.h"

typedef struct lined_up {
    cpl_run_record runs[CASE_RUNS];
    int64_t n;
    cpl_compare c;
} lined_up;

static inline const char *standard(const char *name)
{
    return strcmp(name, "erc.noise") == 0 ? "bounded" : NULL;
}

static inline void line_up_folders(lined_up *out, const char *const *folders, int64_t n,
                                   const char *by)
{
    const cpl_compare_options options = {.group_by = by, .default_value = standard};
    out->n                            = n;
    for (int64_t i = 0; i < n; i++) assert_ok(cpl_run_record_open(&out->runs[i], folders[i]));
    assert_ok(cpl_compare_open(&out->c, out->runs, n, &options));
}

static inline void line_up(lined_up *out, const run_case *cases, int64_t n, const char *by)
{
    const char *folders[CASE_RUNS], *root = scratch_folder();
    for (int64_t i = 0; i < n; i++) folders[i] = write_run(root, &cases[i]);
    line_up_folders(out, folders, n, by);
}

static inline void release(lined_up *l)
{
    cpl_compare_close(&l->c);
    for (int64_t i = 0; i < l->n; i++) cpl_run_record_close(&l->runs[i]);
}

/* Two groups of three seeds. */
static const run_case six[] = {
    {.name = "vanilla-s0", .seed = 0, .shift = 0, .last = 20, .steps = 20, .alpha = 1},
    {.name = "vanilla-s1", .seed = 1, .shift = 0.01, .last = 20, .steps = 20, .alpha = 1},
    {.name = "vanilla-s2", .seed = 2, .shift = -0.02, .last = 20, .steps = 20, .alpha = 1},
    {.name = "erc-s2", .seed = 2, .shift = -0.05, .weight = 1, .last = 20, .steps = 20, .alpha = 1},
    {.name = "erc-s0", .seed = 0, .shift = -0.04, .weight = 1, .last = 20, .steps = 20, .alpha = 1},
    {.name = "erc-s1", .seed = 1, .shift = 0.02, .weight = 1, .last = 20, .steps = 20, .alpha = 1},
};

/* vanilla-s0 and erc-s0. */
static inline void write_pair(const char *folders[2])
{
    const char *root = scratch_folder();
    for (int i = 0; i < 2; i++) folders[i] = write_run(root, &six[i * 4]);
}

/* ---- what came of it ---- */

static inline const cpl_compared_figure *figure(const cpl_compare *c, const char *file)
{
    for (int64_t i = 0; i < c->n_figures; i++)
        if (strcmp(c->figures[i].is->file, file) == 0) return &c->figures[i];
    fail_msg("there is no figure %s", file);
    return NULL;
}

static inline bool warns(const cpl_compare *c, const char *part)
{
    for (int64_t i = 0; i < c->warnings.count; i++)
        if (strstr(c->warnings.at[i], part)) return true;
    return false;
}

static inline const cpl_compared_setting *setting(const cpl_compare *c, const char *name)
{
    for (int64_t i = 0; i < c->n_settings; i++)
        if (strcmp(c->settings[i].name, name) == 0) return &c->settings[i];
    fail_msg("there is no setting %s", name);
    return NULL;
}

/* What a page is made of: the charts alone. The caller gives it back. */
__attribute__((unused)) static json_t *page_data(const cpl_compare *c)
{
    cpl_charts charts = {0};
    json_t *data      = json_object();
    assert_ok(cpl_compare_charts(&charts, c));
    assert_ok(cpl_charts_into(data, &charts, NULL));
    return data;
}

#endif /* CPL_TESTS_COMPARE_COMPARE_CASE_H */
