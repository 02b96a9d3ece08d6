/* resume.c - the settings that may change when a run is resumed, and the record of the program,
 * devices and versions that made a run; see loop.h and trainer.h. */
#include <string.h>

#include "tensor/product.h"
#include "train/trainer.h"

static bool may_change(const cpl_setting *s)
{
    static const char *const sections[] = {"checkpoint", "dist", "eval", "log"};
    for (size_t i = 0; i < sizeof sections / sizeof *sections; i++)
        if (strcmp(s->section, sections[i]) == 0) return true;
    if (strcmp(s->section, "train") == 0) return strcmp(s->name, "recompute") == 0;
    return strcmp(s->section, "compute") == 0 &&
           (strcmp(s->name, "threads") == 0 || strcmp(s->name, "device") == 0);
}

/* Returns whether the setting is train.micro_batch, which depends on the machine. With
 * balance.scope micro it changes the tokens that load balancing counts over (model/balance.h). */
static bool is_micro_batch(const cpl_setting *s)
{
    return strcmp(s->section, "train") == 0 && strcmp(s->name, "micro_batch") == 0;
}

static bool is_steps(const cpl_setting *s)
{
    return strcmp(s->section, "train") == 0 && strcmp(s->name, "steps") == 0;
}

/* Returns whether the record holds only an automatic value, without the value that the data (or in
 * older versions the machine) determined. Such a value is compared with the data when the data is
 * open (cpl_train_data_agrees), or not at all. */
static bool is_open(const cpl_setting *s, const void *old)
{
    if (strcmp(s->section, "data") == 0 && strcmp(s->name, "eos") == 0)
        return *(const cpl_field_INT *)old == CPL_UNSET;
    if (strcmp(s->section, "data") == 0 && strcmp(s->name, "token_type") == 0)
        return *(const cpl_field_CHOICE *)old == CPL_TOKEN_AUTO;
    return strcmp(s->section, "compute") == 0 && strcmp(s->name, "dtype") == 0 &&
           *(const cpl_field_CHOICE *)old == CPL_DTYPE_AUTO;
}

static bool is_path(const cpl_setting *s)
{
    return strcmp(s->unit, "path") == 0 || strcmp(s->unit, "paths") == 0;
}

/* ---- two sets of settings ---- */

typedef struct change {
    const cpl_setting *setting;
    const void *old, *fresh; /* values */
} change;

/* Two sets of settings, as given and with automatic values derived. Naming the value that an
 * automatic value becomes is not a change. */
typedef struct two {
    const cpl_settings *old, *fresh;
    cpl_settings old_became, fresh_became; /* their pointers are owned by old, fresh */
} two;

static two compared(const cpl_settings *old, const cpl_settings *fresh, int64_t ranks)
{
    two t = {old, fresh, *old, *fresh};
    cpl_train_derive(&t.old_became, ranks);
    cpl_train_derive(&t.fresh_became, ranks);
    return t;
}

/* Returns whether the setting at offset `at` is equal in both sets. */
static bool is_same(const two *t, const cpl_setting *s, size_t at)
{
    return cpl_setting_equal(s, (const char *)t->old + at, (const char *)t->fresh + at) ||
           cpl_setting_equal(s, (const char *)&t->old_became + at,
                             (const char *)&t->fresh_became + at);
}

/* Sets *c to the next setting, from `*index` on, that differs and may not change. Returns false at
 * the end. */
static bool next_change(change *c, size_t *index, const two *t)
{
    cpl_section sections[CPL_N_SECTIONS];
    size_t at = 0;
    cpl_settings_sections(sections);
    for (int i = 0; i < CPL_N_SECTIONS; i++)
        for (size_t k = 0; k < sections[i].count; k++, at++) {
            const cpl_setting *s = &sections[i].list[k];
            const size_t offset  = sections[i].offset + s->offset;
            const char *old      = (const char *)&t->old_became + offset;
            if (at < *index || may_change(s) || is_same(t, s, offset) || is_open(s, old)) continue;
            *c     = (change){s, old, (const char *)&t->fresh_became + offset};
            *index = at + 1;
            return true;
        }
    return false;
}

static void warn_of_steps(const change *c, const cpl_log *log)
{
    cpl_log_warn(log,
                 "train.steps was %lld and is now %lld: the learning rates from here on are those "
                 "of a schedule of the new length",
                 (long long)*(const cpl_field_INT *)c->old,
                 (long long)*(const cpl_field_INT *)c->fresh);
}

static void warn_of_micro_batch(const change *c, const cpl_settings *settings, const cpl_log *log)
{
    if (settings->losses.balance.scope != CPL_BALANCE_MICRO) return;
    cpl_log_warn(log,
                 "train.micro_batch was %lld and is now %lld sequences: load balancing counts over "
                 "other tokens from here on (balance.scope: micro)",
                 (long long)*(const cpl_field_INT *)c->old,
                 (long long)*(const cpl_field_INT *)c->fresh);
}

/* Reports a setting that differs and is not a step count. `where` is the file that records the
 * settings of the run, if config.yaml differs from it. It is NULL if the user's settings differ
 * from config.yaml. Changed paths are only warned about, since the code that reads the files
 * compares their content. */
static cpl_status report_change(const change *c, const char *where, const cpl_log *log)
{
    cpl_text was = {0}, is = {0};
    char name[CPL_SETTING_NAME_BYTES];
    cpl_status status = CPL_OK;
    cpl_setting_print(&was, c->setting, c->old);
    cpl_setting_print(&is, c->setting, c->fresh);
    CPL_TRY_DONE(cpl_text_status(&was));
    CPL_TRY_DONE(cpl_text_status(&is));
    cpl_setting_dotted(name, c->setting);
    if (!where)
        status = CPL_FAIL(CPL_ERR_INPUT,
                          "%s is %s in the run and cannot become %s when it is resumed; begin a "
                          "new run (--from starts from this one's weights, for an equal model)",
                          name, was.bytes, is.bytes);
    else if (is_path(c->setting))
        cpl_log_warn(log, "%s was %s when %s was written, config.yaml says %s now", name, was.bytes,
                     where, is.bytes);
    else
        status =
            CPL_FAIL(CPL_ERR_INPUT,
                     "config.yaml of the run says %s %s now, but the run was made with %s (%s); "
                     "put that back, or begin a new run with --from",
                     name, is.bytes, was.bytes, where);
done:
    cpl_text_free(&was);
    cpl_text_free(&is);
    return status;
}

static cpl_status judge_all(const cpl_settings *old, const cpl_settings *fresh, int64_t ranks,
                            const char *where, const cpl_log *log)
{
    const two t = compared(old, fresh, ranks);
    change c;
    for (size_t index = 0; next_change(&c, &index, &t);)
        if (is_steps(c.setting))
            warn_of_steps(&c, log);
        else if (is_micro_batch(c.setting))
            warn_of_micro_batch(&c, &t.fresh_became, log);
        else
            CPL_TRY(report_change(&c, where, log));
    return CPL_OK;
}

/* Sets values of `fresh` that equal the derived old values to the old automatic values. */
static void keep_automatic(cpl_settings *fresh, const cpl_settings *old, int64_t ranks)
{
    const two t = compared(old, fresh, ranks);
    cpl_section sections[CPL_N_SECTIONS];
    cpl_settings_sections(sections);
    for (int i = 0; i < CPL_N_SECTIONS; i++)
        for (size_t k = 0; k < sections[i].count; k++) {
            const cpl_setting *s = &sections[i].list[k];
            const size_t at      = sections[i].offset + s->offset;
            if (s->kind <= CPL_KIND_CHOICE && !may_change(s) && is_same(&t, s, at))
                memcpy((char *)fresh + at, (const char *)old + at, cpl_setting_bytes(s));
        }
}

cpl_status cpl_train_may_resume(const cpl_settings *old, cpl_settings *fresh, int64_t ranks,
                                const cpl_log *log)
{
    cpl_compute_settings *c = &fresh->compute;
    if (c->dtype == CPL_DTYPE_AUTO) c->dtype = old->compute.dtype;
    if (c->activations == CPL_DTYPE_AUTO) c->activations = old->compute.activations;
    CPL_TRY(judge_all(old, fresh, ranks, NULL, log));
    keep_automatic(fresh, old, ranks);
    return CPL_OK;
}

/* ---- settings as an object of a checkpoint ---- */

cpl_status cpl_resume_settings(json_t **out, const cpl_settings *settings)
{
    cpl_section sections[CPL_N_SECTIONS];
    char name[CPL_SETTING_NAME_BYTES];
    bool whole = (*out = json_object()) != NULL;
    cpl_settings_sections(sections);
    for (int i = 0; i < CPL_N_SECTIONS; i++)
        for (size_t k = 0; k < sections[i].count; k++) {
            const cpl_setting *s = &sections[i].list[k];
            cpl_text value       = {0};
            if (may_change(s)) continue;
            cpl_setting_print(&value, s, (const char *)settings + sections[i].offset + s->offset);
            whole = !value.failed && value.bytes &&
                    json_object_set_new(*out, cpl_setting_dotted(name, s),
                                        json_string(value.bytes)) == 0 &&
                    whole;
            cpl_text_free(&value);
        }
    return whole ? CPL_OK : CPL_FAIL(CPL_ERR_MEMORY, "out of memory for the settings of the run");
}

/* Sets *out, which holds defaults, from the object. */
static cpl_status read_settings(cpl_settings *out, const json_t *object, const char *where)
{
    cpl_section sections[CPL_N_SECTIONS];
    const char *name;
    json_t *value, *all = (json_t *)object;
    cpl_settings_sections(sections);
    json_object_foreach(all, name, value)
    {
        void *field          = NULL;
        const cpl_setting *s = cpl_settings_find(out, sections, CPL_N_SECTIONS, name, &field);
        if (!s || !json_is_string(value))
            return CPL_FAIL(CPL_ERR_INPUT,
                            "%s: the run was made with a setting %s that this version does not "
                            "have; go on with the version that began it",
                            where, name);
        CPL_TRY(cpl_setting_parse(s, field, json_string_value(value)));
    }
    return CPL_OK;
}

cpl_status cpl_resume_check(const json_t *object, const char *where, const cpl_settings *config,
                            int64_t ranks, const cpl_log *log)
{
    cpl_section sections[CPL_N_SECTIONS];
    cpl_settings made;
    cpl_settings_sections(sections);
    CPL_TRY(cpl_settings_init(&made, sections, CPL_N_SECTIONS));
    cpl_status status = read_settings(&made, object, where);
    if (status == CPL_OK) status = judge_all(&made, config, ranks, where, log);
    cpl_settings_free(&made, sections, CPL_N_SECTIONS);
    return status;
}

/* ---- precision, kernels and versions of a run ---- */

json_t *cpl_resume_made_with(const cpl_backend *be, int n_ranks)
{
    const char *dtype = be->compute == CPL_BF16 ? "bf16" : "f32";
    return json_pack("{s:s, s:s, s:s, s:s*, s:s, s:s, s:i, s:i}", "couplet", COUPLET_VERSION,
                     "onednn", cpl_product_library(), "device", be->device, "libraries",
                     be->libraries, "kernels", cpl_cpu_isa(), "dtype", dtype, "threads",
                     be->n_threads, "ranks", n_ranks);
}

static void put_value(cpl_text *out, const json_t *value)
{
    if (json_is_string(value))
        cpl_text_printf(out, "%.80s", json_string_value(value));
    else
        cpl_text_printf(out, "%lld", (long long)json_integer_value(value));
}

cpl_status cpl_resume_compare(const json_t *was, const char *where, const json_t *now,
                              const cpl_log *log)
{
    cpl_text list = {0};
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)now, name, value)
    {
        const json_t *before = json_object_get(was, name);
        if (!before || json_equal(before, value)) continue;
        cpl_text_printf(&list, "%s%s ", list.length ? ", " : "", name);
        put_value(&list, before);
        cpl_text_printf(&list, " (now ");
        put_value(&list, value);
        cpl_text_char(&list, ')');
    }
    if (list.length)
        cpl_log_warn(log,
                     "%s was made with %s: the run goes on, but its figures may no longer be "
                     "bit for bit those of a run that was never interrupted",
                     where, list.bytes);
    const cpl_status status = cpl_text_status(&list);
    cpl_text_free(&list);
    return status;
}
