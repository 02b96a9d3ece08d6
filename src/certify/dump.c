/* dump.c - see dump.h */
#include "certify/dump.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "base/text.h"

static const char *const names[] = {"R",    "W_g", "W_p", "delta", "alpha", "weight", "layers",
                                    "loss", "M",   "dR",  "dW_g",  "dW_p",  "eps"};
enum { N_NAMES = sizeof names / sizeof *names };

/* ---- names ---- */

/* Whether they are the same but for underscores, dots and the size of letters: dWg for dW_g. */
static bool is_alike(const char *a, const char *b)
{
    for (;; a++, b++) {
        while (*a == '_' || *a == '.') a++;
        while (*b == '_' || *b == '.') b++;
        const int x = *a >= 'A' && *a <= 'Z' ? *a + 32 : *a;
        const int y = *b >= 'A' && *b <= 'Z' ? *b + 32 : *b;
        if (x != y) return false;
        if (!x) return true;
    }
}

/* A gradient under a name that is not read would count as none. */
static cpl_status check_names(const cpl_certify_dump *dump)
{
    for (int64_t i = 0; i < cpl_safetensors_count(dump->file); i++) {
        const char *name = cpl_safetensors_at(dump->file, i)->name, *near = NULL;
        bool known = false;
        for (int k = 0; k < N_NAMES; k++) known = known || strcmp(name, names[k]) == 0;
        if (known) continue;
        for (int k = 0; k < N_NAMES; k++) near = is_alike(name, names[k]) ? names[k] : near;
        if (!near) near = cpl_text_nearest(name, names, N_NAMES);
        return CPL_FAIL(
            CPL_ERR_INPUT,
            "%s: tensor %.100s is none of a dump's%s%s%s a dump has R, W_g, W_p, delta, "
            "alpha, weight, layers, loss, M, dR, dW_g, dW_p",
            cpl_safetensors_path(dump->file), name, near ? ": did you mean " : "", near ? near : "",
            near ? "?" : ";");
    }
    return CPL_OK;
}

/* ---- values ---- */

static bool is_whole(cpl_safetensors_dtype dtype)
{
    return dtype == CPL_SAFETENSORS_I64 || dtype == CPL_SAFETENSORS_I32;
}

static bool is_short(const cpl_safetensors_entry *entry)
{
    return entry->dtype == CPL_SAFETENSORS_BF16 || entry->dtype == CPL_SAFETENSORS_F16;
}

static cpl_status check_dtype(const cpl_certify_dump *dump, const cpl_safetensors_entry *entry,
                              bool whole_too)
{
    if (entry->dtype == CPL_SAFETENSORS_F64 || entry->dtype == CPL_SAFETENSORS_F32 ||
        is_short(entry) || (whole_too && is_whole(entry->dtype)))
        return CPL_OK;
    return CPL_FAIL(CPL_ERR_INPUT, "%s: tensor %s is %s; a dump holds F32, F64, BF16 or F16",
                    cpl_safetensors_path(dump->file), entry->name,
                    cpl_safetensors_dtype_name(entry->dtype));
}

/* Elements [first, first + count) as doubles; F64 keeps all its digits. */
static cpl_status read_doubles(const cpl_certify_dump *dump, const cpl_safetensors_entry *entry,
                               double *out, int64_t first, int64_t count)
{
    float piece[4096];
    if (entry->dtype == CPL_SAFETENSORS_F64)
        return cpl_safetensors_read_raw(dump->file, entry, out, 8 * (uint64_t)first,
                                        8 * (size_t)count);
    for (int64_t at = 0; at < count;) {
        const int64_t left = count - at, now = left < 4096 ? left : 4096;
        CPL_TRY(cpl_safetensors_read_f32(dump->file, entry, piece, first + at, now));
        for (int64_t k = 0; k < now; k++) out[at + k] = (double)piece[k];
        at += now;
    }
    return CPL_OK;
}

/* The indices of element `at`, "[1,0,2]". */
static const char *place_text(char out[96], const cpl_safetensors_entry *entry, int64_t at)
{
    int length     = snprintf(out, 96, "[");
    uint64_t below = (uint64_t)entry->n_elements;
    for (int k = 0; k < entry->rank; k++) {
        below /= entry->shape[k];
        length += snprintf(out + length, 96 - (size_t)length, "%s%llu", k ? "," : "",
                           (unsigned long long)((uint64_t)at / below % entry->shape[k]));
    }
    snprintf(out + length, 96 - (size_t)length, "]");
    return out;
}

static cpl_status check_finite(const cpl_certify_dump *dump, const cpl_safetensors_entry *entry,
                               const double *values, int64_t first, int64_t count)
{
    char place[96];
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(values[i]))
            return CPL_FAIL(
                CPL_ERR_INPUT,
                "%s: tensor %s is %s at %s: a dump's numbers must be finite; of a "
                "gradient, look for the norm of a zero vector or for a division by zero",
                cpl_safetensors_path(dump->file), entry->name,
                isnan(values[i]) ? "NaN" : "infinite", place_text(place, entry, first + i));
    return CPL_OK;
}

/* ---- tensors ---- */

static cpl_status fail_missing(const cpl_certify_dump *dump, const char *name)
{
    return CPL_FAIL(CPL_ERR_INPUT,
                    "%s: there is no tensor %s; a dump needs R [n,d], W_g [n,D,d] and loss []",
                    cpl_safetensors_path(dump->file), name);
}

/* Finds a tensor that may be absent (*entry NULL) and checks shape and type. */
static cpl_status find(const cpl_certify_dump *dump, const cpl_safetensors_entry **entry,
                       const char *name, int rank, const int64_t *shape)
{
    char got[128], want[96];
    *entry = cpl_safetensors_find(dump->file, name);
    if (!*entry) return CPL_OK;
    if (!cpl_safetensors_has_shape(*entry, rank, shape)) {
        int length = 0;
        for (int k = 0; k < rank; k++)
            length += snprintf(want + length, sizeof want - (size_t)length, "%s%lld", k ? "," : "",
                               (long long)shape[k]);
        return CPL_FAIL(CPL_ERR_INPUT, "%s: tensor %s is %s, but R and W_g make it [%s]",
                        cpl_safetensors_path(dump->file), name,
                        cpl_safetensors_shape_text(got, *entry), want);
    }
    return check_dtype(dump, *entry, false);
}

/* The whole tensor in memory of its own; *out NULL where it is absent. */
static cpl_status take(const cpl_certify_dump *dump, double **out, const char *name,
                       const int64_t shape[2])
{
    const cpl_safetensors_entry *entry;
    CPL_TRY(find(dump, &entry, name, 2, shape));
    if (!entry) return CPL_OK;
    *out = cpl_alloc((size_t)entry->n_elements * sizeof **out);
    if (!*out) return CPL_ERR_MEMORY;
    CPL_TRY(read_doubles(dump, entry, *out, 0, entry->n_elements));
    return check_finite(dump, entry, *out, 0, entry->n_elements);
}

static cpl_status take_whole_scalar(const cpl_certify_dump *dump, double *value,
                                    const cpl_safetensors_entry *entry)
{
    unsigned char raw[8] = {0};
    int64_t wide;
    int32_t narrow;
    const size_t bytes = entry->dtype == CPL_SAFETENSORS_I64 ? 8 : 4;
    CPL_TRY(cpl_safetensors_read_raw(dump->file, entry, raw, 0, bytes));
    memcpy(&wide, raw, sizeof wide);
    memcpy(&narrow, raw, sizeof narrow);
    *value = bytes == 8 ? (double)wide : (double)narrow;
    return CPL_OK;
}

/* A value alone, [] or [1]; unchanged where it is absent. */
static cpl_status take_scalar(const cpl_certify_dump *dump, double *value, const char *name)
{
    char got[128];
    const cpl_safetensors_entry *entry = cpl_safetensors_find(dump->file, name);
    if (!entry) return CPL_OK;
    if (entry->rank > 1 || entry->n_elements != 1)
        return CPL_FAIL(CPL_ERR_INPUT, "%s: tensor %s is %s, wanted a single number, [] or [1]",
                        cpl_safetensors_path(dump->file), name,
                        cpl_safetensors_shape_text(got, entry));
    CPL_TRY(check_dtype(dump, entry, true));
    if (is_whole(entry->dtype)) return take_whole_scalar(dump, value, entry);
    CPL_TRY(read_doubles(dump, entry, value, 0, 1));
    return check_finite(dump, entry, value, 0, 1);
}

static cpl_status fail_scalar(const cpl_certify_dump *dump, const char *name, double value,
                              const char *wanted)
{
    return CPL_FAIL(CPL_ERR_INPUT, "%s: tensor %s is %g, wanted %s",
                    cpl_safetensors_path(dump->file), name, value, wanted);
}

static cpl_status take_scalars(cpl_certify_dump *dump)
{
    dump->alpha = dump->weight = dump->layers = 1;
    if (!cpl_safetensors_find(dump->file, "loss")) return fail_missing(dump, "loss");
    CPL_TRY(take_scalar(dump, &dump->loss, "loss"));
    CPL_TRY(take_scalar(dump, &dump->alpha, "alpha"));
    CPL_TRY(take_scalar(dump, &dump->weight, "weight"));
    CPL_TRY(take_scalar(dump, &dump->layers, "layers"));
    if (dump->alpha < 0) return fail_scalar(dump, "alpha", dump->alpha, "0 or more");
    if (!(dump->weight > 0))
        return fail_scalar(dump, "weight", dump->weight,
                           "more than 0: with weight 0 all gradients are 0");
    if (!(dump->layers >= 1)) return fail_scalar(dump, "layers", dump->layers, "1 or more");
    return CPL_OK;
}

/* ---- sizes ---- */

enum { MOST_EXPERTS = 65535, MOST_WIDTH = 1 << 24 };

static cpl_status take_sizes(cpl_certify_dump *dump)
{
    char r[128], w[128];
    const cpl_safetensors_entry *R = cpl_safetensors_find(dump->file, "R");
    const cpl_safetensors_entry *W = cpl_safetensors_find(dump->file, "W_g");
    if (!R) return fail_missing(dump, "R");
    if (!W) return fail_missing(dump, "W_g");
    if (R->rank != 2 || R->n_elements == 0 || R->shape[0] > MOST_EXPERTS ||
        R->shape[1] > MOST_WIDTH)
        return CPL_FAIL(CPL_ERR_INPUT, "%s: tensor R is %s, wanted [n,d]: a row an expert",
                        cpl_safetensors_path(dump->file), cpl_safetensors_shape_text(r, R));
    if (W->rank != 3 || W->n_elements == 0 || W->shape[0] != R->shape[0] ||
        W->shape[2] != R->shape[1] || W->shape[1] > MOST_WIDTH)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: tensor W_g is %s and R is %s; wanted W_g [n,D,d] to R [n,d], rows as "
                        "nn.Linear stores them",
                        cpl_safetensors_path(dump->file), cpl_safetensors_shape_text(w, W),
                        cpl_safetensors_shape_text(r, R));
    dump->n = (int64_t)R->shape[0];
    dump->d = (int64_t)R->shape[1];
    dump->D = (int64_t)W->shape[1];
    return CPL_OK;
}

/* ---- all of it ---- */

/* Every number of an expert's tensors; the first fault in the order of the file's experts. */
static cpl_status check_experts(const cpl_certify_dump *dump, const cpl_safetensors_entry *entry)
{
    const int64_t each = dump->D * dump->d;
    cpl_status status  = CPL_OK;
    double *values     = entry ? cpl_alloc((size_t)each * sizeof *values) : NULL;
    if (!entry) return CPL_OK;
    if (!values) return CPL_ERR_MEMORY;
    for (int64_t j = 0; j < dump->n && status == CPL_OK; j++) {
        status = cpl_certify_dump_expert(dump, entry, values, j);
        if (status == CPL_OK) status = check_finite(dump, entry, values, j * each, each);
    }
    cpl_free(values);
    return status;
}

static cpl_status take_all(cpl_certify_dump *dump)
{
    CPL_TRY(check_names(dump));
    CPL_TRY(take_sizes(dump));
    CPL_TRY(take_scalars(dump));
    const int64_t nd[2] = {dump->n, dump->d}, nn[2] = {dump->n, dump->n};
    const int64_t ndd[3]                               = {dump->n, dump->D, dump->d};
    const cpl_safetensors_entry *M                     = cpl_safetensors_find(dump->file, "M");
    static const char *const of[CPL_CERTIFY_HALVES]    = {"W_g", "W_p"};
    static const char *const grads[CPL_CERTIFY_HALVES] = {"dW_g", "dW_p"};
    for (int h = 0; h < CPL_CERTIFY_HALVES; h++) {
        CPL_TRY(find(dump, &dump->weights[h], of[h], 3, ndd));
        CPL_TRY(find(dump, &dump->grads[h], grads[h], 3, ndd));
    }
    if (dump->grads[CPL_CERTIFY_UP] && !dump->weights[CPL_CERTIFY_UP])
        return CPL_FAIL(CPL_ERR_INPUT, "%s: there is a tensor dW_p but no W_p",
                        cpl_safetensors_path(dump->file));
    CPL_TRY(take(dump, &dump->R, "R", nd));
    CPL_TRY(take(dump, &dump->delta, "delta", nd));
    CPL_TRY(take(dump, &dump->M, "M", nn));
    CPL_TRY(take(dump, &dump->dR, "dR", nd));
    dump->short_M = M && is_short(M);
    dump->has_dR  = dump->dR != NULL;
    for (int h = 0; h < CPL_CERTIFY_HALVES; h++) {
        CPL_TRY(check_experts(dump, dump->weights[h]));
        CPL_TRY(check_experts(dump, dump->grads[h]));
    }
    if (dump->dR) return CPL_OK;
    dump->dR = cpl_alloc((size_t)(dump->n * dump->d) * sizeof *dump->dR);
    if (!dump->dR) return CPL_ERR_MEMORY;
    memset(dump->dR, 0, (size_t)(dump->n * dump->d) * sizeof *dump->dR);
    return CPL_OK;
}

cpl_status cpl_certify_dump_open(cpl_certify_dump *dump, const char *path)
{
    memset(dump, 0, sizeof *dump);
    CPL_TRY(cpl_safetensors_open(&dump->file, path));
    const cpl_status status = take_all(dump);
    if (status != CPL_OK) cpl_certify_dump_close(dump);
    return status;
}

void cpl_certify_dump_close(cpl_certify_dump *dump)
{
    cpl_free(dump->R);
    cpl_free(dump->delta);
    cpl_free(dump->M);
    cpl_free(dump->dR);
    cpl_safetensors_close(dump->file);
    memset(dump, 0, sizeof *dump);
}

cpl_status cpl_certify_dump_expert(const cpl_certify_dump *dump, const cpl_safetensors_entry *entry,
                                   double *out, int64_t j)
{
    const int64_t each = dump->D * dump->d;
    return read_doubles(dump, entry, out, j * each, each);
}
