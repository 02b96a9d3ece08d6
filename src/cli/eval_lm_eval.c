/* eval_lm_eval.c - see eval_forms.h: the files of --format lm-eval */
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "base/clock.h"
#include "cli/eval_forms.h"
#include "cli/output_paths.h"
#include "cli/terminal/output.h"
#include "eval/lm_eval.h"
#include "io/file.h"
#include "io/json.h"
#include "io/paths.h"

bool cpl_eval_lm_eval_chosen(const cpl_arguments *args)
{
    return strcmp(cpl_flag_text(args, "--format"), "lm-eval") == 0;
}

/* ---- the names of samples files ---- */

/* Where samples go: their folder, owned, and what ends their names. */
typedef struct place {
    char *folder;
    const char *date; /* in the name of --json */
    int length;
} place;

/* The date is what is after the last "_" of `results_DATE.json`, or the whole name. */
static cpl_status find_place(place *p, const char *json)
{
    const char *name = strrchr(json, '/');
    name             = name ? name + 1 : json;
    const char *mark = strrchr(name, '_');
    p->date          = mark ? mark + 1 : name;
    const size_t n   = strlen(p->date);
    p->length        = (int)(n > 5 && strcmp(p->date + n - 5, ".json") == 0 ? n - 5 : n);
    p->folder        = cpl_path_folder(json);
    return p->folder ? CPL_OK : CPL_ERR_MEMORY;
}

static void put_name(cpl_text *out, const place *p, const char *task)
{
    cpl_text_printf(out, "%s/samples_%s_%.*s.jsonl", p->folder, task, p->length, p->date);
}

/* Whether a file's name is that of samples at this place, of any task. */
static bool is_name(const place *p, const char *name)
{
    char end[300];
    const int n         = snprintf(end, sizeof end, "_%.*s.jsonl", p->length, p->date);
    const size_t length = strlen(name);
    return n > 0 && (size_t)n < sizeof end && length > (size_t)n &&
           strncmp(name, "samples_", 8) == 0 && strcmp(name + length - (size_t)n, end) == 0;
}

/* ---- before the evaluation ---- */

static cpl_status refuse_old(const place *p)
{
    cpl_strings names = {0};
    cpl_status status = cpl_folder_list(&names, p->folder);
    for (int64_t i = 0; i < names.count && status == CPL_OK; i++)
        if (is_name(p, names.at[i]))
            status =
                CPL_FAIL(CPL_ERR_INPUT,
                         "%s/%s is there already: --overwrite replaces it, or write to another "
                         "file",
                         p->folder, names.at[i]);
    cpl_paths_free(&names);
    return status;
}

/* Samples beside an evaluation that was interrupted are its own: it stopped while it wrote them. */
static cpl_status is_interrupted(bool *is, const char *json)
{
    cpl_text path = {0};
    cpl_text_printf(&path, "%s.partial", json);
    cpl_status status = cpl_text_status(&path);
    *is               = status == CPL_OK && cpl_path_exists(path.bytes);
    cpl_text_free(&path);
    return status;
}

cpl_status cpl_eval_lm_eval_check(const cpl_arguments *args, const cpl_selection *selection)
{
    place p          = {0};
    const char *json = cpl_flag_text(args, "--json");
    bool goes_on;
    if (!cpl_eval_lm_eval_chosen(args)) return CPL_OK;
    CPL_TRY(cpl_lm_eval_check(selection));
    if (!cpl_flag_on(args, "--samples")) return CPL_OK;
    if (!cpl_output_paths_is_file(args, "--json"))
        return CPL_FAIL(CPL_ERR_USAGE, "--samples with --format lm-eval writes files next to that "
                                       "of --json, which must be a file");
    CPL_TRY(is_interrupted(&goes_on, json));
    if (cpl_flag_on(args, "--overwrite") || goes_on) return CPL_OK;
    CPL_TRY(find_place(&p, json));
    cpl_status status = refuse_old(&p);
    cpl_free(p.folder);
    return status;
}

/* ---- after it ---- */

static cpl_status write_lines(const place *p, const cpl_lm_eval_task *task)
{
    cpl_text path = {0}, lines = {0};
    json_t *line;
    size_t i;
    json_array_foreach(task->lines, i, line)
    {
        char *text = json_dumps(line, 0);
        if (text) cpl_text_printf(&lines, "%s\n", text);
        lines.failed |= !text;
        cpl_json_text_free(text);
    }
    put_name(&path, p, task->name);
    cpl_status status = cpl_text_status(&lines);
    if (status == CPL_OK) status = cpl_text_status(&path);
    if (status == CPL_OK) status = cpl_json_check(path.bytes);
    if (status == CPL_OK) status = cpl_output_file(path.bytes, lines.bytes, lines.length);
    cpl_text_free(&lines);
    cpl_text_free(&path);
    return status;
}

static cpl_status write_samples(const cpl_lm_eval *l, const char *json)
{
    place p           = {0};
    cpl_status status = find_place(&p, json);
    int64_t n         = 0;
    for (int64_t i = 0; i < l->n_tasks && status == CPL_OK; i++)
        if (l->task[i].lines) {
            status = write_lines(&p, &l->task[i]);
            n++;
        }
    if (n > 0 && status == CPL_OK)
        printf("samples: %s/samples_*_%.*s.jsonl, %lld file%s\n", p.folder, p.length, p.date,
               (long long)n, n == 1 ? "" : "s");
    cpl_free(p.folder);
    return status;
}

cpl_status cpl_eval_lm_eval_write(const cpl_arguments *args, const cpl_evaluation *e,
                                  cpl_lm_eval_run *run)
{
    cpl_lm_eval l    = {0};
    const char *json = cpl_flag_text(args, "--json");
    CPL_TRY(cpl_lm_eval_open(&l, e));
    run->model        = args->words[0];
    run->end          = cpl_seconds_now();
    cpl_status status = write_samples(&l, json);
    if (status == CPL_OK)
        status = cpl_output_json(cpl_lm_eval_json(&l, run), "the results", json,
                                 JSON_REAL_PRECISION(15));
    cpl_lm_eval_close(&l);
    return status;
}
