/* layouts.h - equal random numbers as checkpoints in every layout of docs/formats.md, "Published
 * MoE checkpoints", written as real files, with the router and gate rows that reading them must
 * give.
 *
 * Numbers: router R(l,i,a), gate and up of expert e W(l,e,half,c,a) are hashes of their indices.
 *          Plain numbers are exact in bf16. Quantised numbers are a hashed code times a hashed
 *          scale, multiplied here as "Quantised numbers" of that page says. */
#ifndef CPL_TESTS_INSPECT_FAMILIES_LAYOUTS_H
#define CPL_TESTS_INSPECT_FAMILIES_LAYOUTS_H

#include <math.h>

#include "check.h"
#include "io/file.h"
#include "support/files.h"
#include "support/tensors.h"

/* Ways in which gate and up of an expert share tensors. */
typedef enum layout_kind {
    EACH,              /* [D,d] an expert */
    EACH_TURNED,       /* [d,D] */
    EACH_PAIR_TURNED,  /* [d,2D] */
    ROWS,              /* [n,2D,d] */
    ROWS_ALTERNATE,    /* [n,2D,d], gate at the even rows */
    COLUMNS,           /* [n,d,2D] */
    COLUMNS_ALTERNATE, /* [n,d,2D], gate at the even columns */
    APART,             /* [n,D,d], the up projection in its own tensor */
    FLAT               /* [n D,d] */
} layout_kind;

typedef enum layout_numbers {
    AS_F32,
    AS_BF16,
    AS_F16,
    AS_F8_BLOCKS,    /* .weight_scale_inv F32 */
    AS_F8_BF16,      /* .weight_scale_inv BF16 */
    AS_F8_U8,        /* .weight_scale_inv U8 exponents */
    AS_F8_E8M0,      /* .scale F8_E8M0 */
    AS_F8_CHANNEL,   /* .weight_scale [out,1] */
    AS_F8_TENSOR,    /* .weight_scale [1] */
    AS_F8_COLUMN,    /* _scale [n,1,out] */
    AS_F8_STACKED,   /* _scale_inv [n,...] */
    AS_MXFP4,        /* _blocks [..., G, 16], _scales */
    AS_MXFP4_FLAT,   /* _blocks [..., G 16] */
    AS_MXFP4_PACKED, /* .weight_packed U8, .weight_scale */
    AS_F4,           /* I8, .scale F8_E8M0 */
    AS_INT4          /* .weight_packed, .weight_scale, .weight_shape */
} layout_numbers;

typedef struct layout {
    const char *name, *config;
    const char *prefix;        /* %d is the layer's number */
    const char *router, *gate; /* `gate` has %d for the expert, or none */
    layout_kind kind;
    layout_numbers numbers;
    int n, d, D, K, extra; /* extra rows of the router */
    int vision;            /* number of additional experts with another width */
    bool router_turned;
    int cut;                    /* rows of the first of two slices; 0: whole */
    bool router_in_each;        /* whole in both slices, otherwise in its own file */
    int shards;                 /* number of files; 0: one file without index */
    int block_rows, block_cols; /* size of a scale's block */
    const char *others;         /* names of further tensors to be left alone, separated by spaces */
    int first;                  /* number of the first of two layers */
} layout;

enum { LAYOUT_LAYERS = 2, LAYOUT_MAX_TENSORS = 512 };

/* ---- numbers ---- */

static inline uint32_t layout_hash(int what, int l, int e, int c, int a)
{
    uint32_t h = 2166136261u;
    int all[5] = {what, l, e, c, a};
    for (int i = 0; i < 5; i++) {
        h = (h ^ (uint32_t)all[i]) * 16777619u;
        h ^= h >> 15;
        h *= 2246822519u;
        h ^= h >> 13;
    }
    return h;
}

static inline float layout_plain(int what, int l, int e, int c, int a)
{
    return ((float)(layout_hash(what, l, e, c, a) % 255u) - 127.0f) / 64.0f; /* 8 bits: exact */
}

static inline float layout_router(int l, int i, int a)
{
    return layout_plain(1, l, i, 0, a);
}

/* Returns e4m3 by its definition: (-1)^s 2^(x-7) (1 + m/8), or m/8 2^-6 where x is 0. */
static inline float layout_f8(unsigned code)
{
    int x = code >> 3 & 15, m = code & 7;
    float size = x ? ldexpf(1 + (float)m / 8, x - 7) : ldexpf((float)m / 8, -6);
    return code & 128 ? -size : size;
}

static inline float layout_f4(unsigned code)
{
    static const float values[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    return code & 8 ? -values[code & 7] : values[code & 7];
}

static inline bool layout_is_f8(const layout *t)
{
    return t->numbers >= AS_F8_BLOCKS && t->numbers <= AS_F8_STACKED;
}

static inline bool layout_is_f4(const layout *t)
{
    return t->numbers >= AS_MXFP4 && t->numbers <= AS_F4;
}

static inline unsigned layout_code(const layout *t, int l, int e, int half, int c, int a)
{
    unsigned h = layout_hash(2 + half, l, e, c, a);
    if (!layout_is_f8(t)) return h & 15;
    return (h & 127) == 127 ? 0 : h & 255; /* no NaN */
}

/* ---- the places of gate and up ---- */

static inline bool layout_pair(const layout *t)
{
    return t->kind == EACH_PAIR_TURNED || (t->kind >= ROWS && t->kind <= COLUMNS_ALTERNATE);
}

static inline bool layout_each(const layout *t)
{
    return t->kind <= EACH_PAIR_TURNED;
}

static inline bool layout_turned(const layout *t)
{
    return t->kind == EACH_TURNED || t->kind == EACH_PAIR_TURNED || t->kind == COLUMNS ||
           t->kind == COLUMNS_ALTERNATE;
}

/* Returns the axis of the stored matrix that gate (half 0) and up (1) share. */
static inline int layout_width(const layout *t)
{
    return layout_pair(t) ? 2 * t->D : t->D;
}

static inline int layout_at(const layout *t, int half, int c)
{
    if (t->kind == ROWS_ALTERNATE || t->kind == COLUMNS_ALTERNATE) return 2 * c + half;
    return half * t->D + c;
}

/* Returns the rows of the stored matrix. */
static inline int layout_stored_rows(const layout *t)
{
    return layout_turned(t) ? t->d : layout_width(t);
}

static inline int layout_stored_cols(const layout *t)
{
    return layout_turned(t) ? layout_width(t) : t->d;
}

/* ---- scales ---- */

static inline void layout_blocks(const layout *t, int *rows, int *cols)
{
    *rows = t->block_rows;
    *cols = t->block_cols;
    if (t->numbers == AS_F8_CHANNEL || layout_is_f4(t) || t->numbers == AS_INT4) *rows = 1;
    if (t->numbers == AS_F8_CHANNEL) *cols = layout_stored_cols(t);
    if (t->numbers == AS_F8_COLUMN) *rows = layout_stored_rows(t), *cols = 1;
    if (t->numbers == AS_F8_TENSOR) {
        *rows = layout_stored_rows(t);
        *cols = layout_stored_cols(t);
    }
    if (layout_is_f4(t)) *cols = 32;
}

static inline bool layout_exponents(const layout *t)
{
    return layout_is_f4(t) || t->numbers == AS_F8_U8 || t->numbers == AS_F8_E8M0;
}

static inline unsigned layout_exponent(int l, int e, int br, int bc)
{
    return 120 + layout_hash(9, l, e, br, bc) % 12;
}

static inline float layout_scale(const layout *t, int l, int e, int br, int bc)
{
    if (layout_exponents(t)) return ldexpf(1, (int)layout_exponent(l, e, br, bc) - 127);
    return (float)(2 * (layout_hash(9, l, e, br, bc) % 120u) + 1) / 64.0f; /* exact in bf16 */
}

/* Returns the number that stands for gate (half 0) or up in the stored matrix. */
static inline float layout_value(const layout *t, int l, int e, int half, int c, int a)
{
    if (t->numbers <= AS_F16) return layout_plain(2 + half, l, e, c, a);
    int rows, cols, at = layout_at(t, half, c);
    layout_blocks(t, &rows, &cols);
    float scale   = layout_turned(t) ? layout_scale(t, l, e, a / rows, at / cols)
                                     : layout_scale(t, l, e, at / rows, a / cols);
    unsigned code = layout_code(t, l, e, half, c, a);
    if (layout_is_f8(t)) return layout_f8(code) * scale;
    if (layout_is_f4(t)) return layout_f4(code) * scale;
    return ((float)code - 8) * scale;
}

/* ---- tensors in memory ---- */

typedef struct layout_tensor {
    char name[200];
    cpl_safetensors_dtype dtype;
    int rank;
    int64_t shape[4];
    size_t bytes;
    unsigned char *data;
} layout_tensor;

typedef struct layout_files {
    layout_tensor all[LAYOUT_MAX_TENSORS];
    int count;
} layout_files;

static inline unsigned char *layout_add(layout_files *f, const char *name,
                                        cpl_safetensors_dtype dtype, int rank, const int64_t *shape,
                                        size_t bytes)
{
    if (f->count == LAYOUT_MAX_TENSORS) fail_msg("too many tensors");
    layout_tensor *one = &f->all[f->count++];
    snprintf(one->name, sizeof one->name, "%s", name);
    one->dtype = dtype;
    one->rank  = rank;
    one->bytes = bytes;
    memcpy(one->shape, shape, (size_t)rank * sizeof *shape);
    return one->data = calloc(bytes + 8, 1);
}

static inline uint16_t layout_bf16(float x) /* x is exact in bf16 */
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return (uint16_t)(bits >> 16);
}

static inline uint16_t layout_f16(float x) /* x is exact in f16 and no subnormal */
{
    int exponent;
    float m = frexpf(fabsf(x), &exponent);
    if (m == 0) return x < 0 ? 0x8000 : 0;
    return (uint16_t)((x < 0 ? 0x8000 : 0) | (exponent + 14) << 10 | ((int)(m * 2048) - 1024));
}

static inline void layout_put(unsigned char *data, layout_numbers numbers, size_t i, float x)
{
    uint16_t half = numbers == AS_F16 ? layout_f16(x) : layout_bf16(x);
    if (numbers == AS_F32)
        memcpy(data + 4 * i, &x, 4);
    else
        memcpy(data + 2 * i, &half, 2);
}

/* ---- one expert's slab ---- */

static inline size_t layout_row_bytes(const layout *t)
{
    int cols = layout_stored_cols(t);
    if (t->numbers == AS_F32) return 4 * (size_t)cols;
    if (t->numbers <= AS_F16) return 2 * (size_t)cols;
    if (layout_is_f8(t)) return (size_t)cols;
    return layout_is_f4(t) ? (size_t)cols / 2 : (size_t)(cols + 7) / 8 * 4;
}

static inline void layout_put_stored(const layout *t, unsigned char *slab, int row, int col,
                                     float plain, unsigned code)
{
    unsigned char *at = slab + (size_t)row * layout_row_bytes(t);
    if (t->numbers <= AS_F16)
        layout_put(at, t->numbers, (size_t)col, plain);
    else if (layout_is_f8(t))
        at[col] = (unsigned char)code;
    else /* nibbles, the lower first; words of 32 bits have equal bytes */
        at[col / 2] |= (unsigned char)(code << (col % 2 * 4));
}

static inline void layout_slab(const layout *t, unsigned char *slab, int l, int e)
{
    for (int half = 0; half <= layout_pair(t); half++)
        for (int c = 0; c < t->D; c++)
            for (int a = 0; a < t->d; a++) {
                int at = layout_at(t, half, c);
                layout_put_stored(t, slab, layout_turned(t) ? a : at, layout_turned(t) ? at : a,
                                  layout_plain(2 + half, l, e, c, a),
                                  layout_code(t, l, e, half, c, a));
            }
}

static inline void layout_grid(const layout *t, unsigned char *grid, int l, int e)
{
    int br, bc, i = 0;
    layout_blocks(t, &br, &bc);
    int rows = (layout_stored_rows(t) + br - 1) / br, cols = (layout_stored_cols(t) + bc - 1) / bc;
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < cols; c++, i++)
            if (layout_exponents(t))
                grid[i] = (unsigned char)layout_exponent(l, e, r, c);
            else
                layout_put(grid,
                           t->numbers == AS_F8_BF16 || t->numbers == AS_INT4 ? AS_BF16 : AS_F32,
                           (size_t)i, layout_scale(t, l, e, r, c));
}

/* ---- tensors of the gates ---- */

static inline void layout_names(const layout *t, const char **weight, const char **scale)
{
    static const char *const plain_weight[2] = {"", ".weight"};
    bool bare = strstr(t->gate, "gate_up_proj") || strstr(t->gate, "w13") || t->kind == FLAT;
    *weight   = plain_weight[!bare || layout_each(t)];
    *scale    = ".weight_scale_inv";
    if (t->numbers == AS_F8_E8M0 || t->numbers == AS_F4) *scale = ".scale";
    if (t->numbers == AS_F8_CHANNEL || t->numbers == AS_F8_TENSOR) *scale = ".weight_scale";
    if (t->numbers == AS_F8_COLUMN) *scale = "_scale";
    if (t->numbers == AS_F8_STACKED) *scale = "_scale_inv";
    if (t->numbers == AS_INT4 || t->numbers == AS_MXFP4_PACKED)
        *weight = ".weight_packed", *scale = ".weight_scale";
    if (t->numbers == AS_MXFP4 || t->numbers == AS_MXFP4_FLAT)
        *weight = "_blocks", *scale = "_scales";
}

static inline cpl_safetensors_dtype layout_dtype(const layout *t)
{
    if (layout_is_f8(t)) return CPL_SAFETENSORS_F8_E4M3;
    switch (t->numbers) {
    case AS_F32:
        return CPL_SAFETENSORS_F32;
    case AS_F16:
        return CPL_SAFETENSORS_F16;
    case AS_F4:
        return CPL_SAFETENSORS_I8;
    case AS_INT4:
        return CPL_SAFETENSORS_I32;
    case AS_MXFP4:
    case AS_MXFP4_FLAT:
    case AS_MXFP4_PACKED:
        return CPL_SAFETENSORS_U8;
    default:
        return CPL_SAFETENSORS_BF16;
    }
}

static inline void layout_add_weight(const layout *t, layout_files *f, const char *name, int l,
                                     int first, int count)
{
    size_t slab      = layout_row_bytes(t) * (size_t)layout_stored_rows(t);
    int64_t shape[4] = {count, layout_stored_rows(t), layout_stored_cols(t), 0};
    int rank         = 3;
    if (layout_is_f4(t)) shape[2] /= 2;
    if (t->numbers == AS_INT4) shape[2] = (shape[2] + 7) / 8;
    if (t->numbers == AS_MXFP4) shape[rank++] = 16, shape[2] /= 16;
    if (t->kind == FLAT) shape[1] *= count;
    bool less = t->kind == FLAT || layout_each(t);
    unsigned char *data =
        layout_add(f, name, layout_dtype(t), rank - less, shape + less, slab * (size_t)count);
    for (int e = 0; e < count; e++) layout_slab(t, data + slab * (size_t)e, l, first + e);
}

static inline void layout_add_scale(const layout *t, layout_files *f, const char *name, int l,
                                    int first, int count)
{
    int br, bc;
    layout_blocks(t, &br, &bc);
    int64_t shape[3]            = {count, (layout_stored_rows(t) + br - 1) / br,
                                   (layout_stored_cols(t) + bc - 1) / bc};
    bool bf16                   = t->numbers == AS_F8_BF16 || t->numbers == AS_INT4;
    size_t each                 = layout_exponents(t) ? 1 : bf16 ? 2 : 4;
    size_t grid                 = (size_t)(shape[1] * shape[2]) * each;
    bool e8m0                   = t->numbers == AS_F8_E8M0 || t->numbers == AS_F4;
    cpl_safetensors_dtype dtype = e8m0                  ? CPL_SAFETENSORS_F8_E8M0
                                  : layout_exponents(t) ? CPL_SAFETENSORS_U8
                                  : bf16                ? CPL_SAFETENSORS_BF16
                                                        : CPL_SAFETENSORS_F32;
    int less                    = layout_each(t) + (t->numbers == AS_F8_TENSOR);
    unsigned char *data = layout_add(f, name, dtype, 3 - less, shape + less, grid * (size_t)count);
    for (int e = 0; e < count; e++) layout_grid(t, data + grid * (size_t)e, l, first + e);
}

static inline void layout_add_gates(const layout *t, layout_files *f, const char *prefix, int l,
                                    int first, int count)
{
    char stem[160], name[200];
    const char *weight, *scale;
    layout_names(t, &weight, &scale);
    snprintf(stem, sizeof stem, t->gate, first);
    snprintf(name, sizeof name, "%s%s%s", prefix, stem, weight);
    layout_add_weight(t, f, name, l, first, count);
    if (t->numbers <= AS_F16) return;
    snprintf(name, sizeof name, "%s%s%s", prefix, stem, scale);
    layout_add_scale(t, f, name, l, first, count);
    if (t->numbers != AS_INT4) return;
    snprintf(name, sizeof name, "%s%s.weight_shape", prefix, stem);
    int64_t two = 2, shape[2] = {t->D, t->d};
    memcpy(layout_add(f, name, CPL_SAFETENSORS_I64, 1, &two, 16), shape, 16);
}

/* ---- a layer, a checkpoint ---- */

static inline void layout_add_router(const layout *t, layout_files *f, const char *prefix, int l)
{
    char name[200];
    int rows         = t->n + t->extra;
    int64_t shape[2] = {t->router_turned ? t->d : rows, t->router_turned ? rows : t->d};
    snprintf(name, sizeof name, "%s%s.weight", prefix, t->router);
    unsigned char *data =
        layout_add(f, name, CPL_SAFETENSORS_BF16, 2, shape, (size_t)(rows * t->d) * 2);
    for (int i = 0; i < rows; i++)
        for (int a = 0; a < t->d; a++)
            layout_put(data, AS_BF16, (size_t)(t->router_turned ? a * rows + i : i * t->d + a),
                       layout_router(l, i, a));
}

/* Adds the down projection of a pair, all zeros. */
static inline void layout_add_down(const layout *t, layout_files *f, const char *prefix, int e)
{
    char stem[100], name[200];
    int64_t shape[3] = {t->n, layout_turned(t) ? t->D : t->d, layout_turned(t) ? t->d : t->D};
    int each         = layout_each(t);
    snprintf(stem, sizeof stem, t->gate, e);
    *strrchr(stem, '.') = 0;
    snprintf(name, sizeof name, "%s%s.down_proj", prefix, stem);
    layout_add(f, name, CPL_SAFETENSORS_BF16, 3 - each, shape + each,
               (size_t)(shape[1] * shape[2]) * 2 * (size_t)(each ? 1 : t->n));
}

static inline void layout_add_layer(const layout *t, layout_files *f, int l)
{
    char prefix[80];
    snprintf(prefix, sizeof prefix, t->prefix, l + t->first);
    layout_add_router(t, f, prefix, l);
    for (int e = 0; layout_each(t) && e < t->n; e++) layout_add_gates(t, f, prefix, l, e, 1);
    if (!layout_each(t)) layout_add_gates(t, f, prefix, l, 0, t->n);
    for (int e = 0; layout_pair(t) && e < (layout_each(t) ? t->n : 1); e++)
        layout_add_down(t, f, prefix, e);
    layout other = *t;
    other.D      = t->D - 4;
    for (int e = t->n; e < t->n + t->vision; e++) layout_add_gates(&other, f, prefix, l, e, 1);
}

static inline void layout_add_others(const layout *t, layout_files *f)
{
    char words[512], *save = NULL;
    snprintf(words, sizeof words, "%s", t->others ? t->others : "");
    int64_t shape[2] = {3, 5};
    for (char *w = strtok_r(words, " ", &save); w; w = strtok_r(NULL, " ", &save))
        layout_add(f, w, CPL_SAFETENSORS_F32, 2, shape, 60);
}

static inline void layout_write_file(const layout_files *f, const char *path, int shard, int shards)
{
    cpl_safetensors_tensor *tensors = calloc((size_t)f->count + 1, sizeof *tensors);
    int64_t count                   = 0;
    for (int i = shard; i < f->count; i += shards)
        tensors[count++] = (cpl_safetensors_tensor){f->all[i].name, f->all[i].dtype, f->all[i].rank,
                                                    f->all[i].shape, f->all[i].data};
    assert_ok(write_tensors(path, tensors, count, NULL));
    free(tensors);
}

static inline void layout_write_index(const layout_files *f, const char *folder, int shards)
{
    FILE *index = fopen(in_folder(folder, "model.safetensors.index.json"), "w");
    fprintf(index, "{\"metadata\": {\"total_size\": 1}, \"weight_map\": {");
    for (int i = 0; i < f->count; i++)
        fprintf(index, "%s\"%s\": \"model-%05d-of-%05d.safetensors\"", i ? ", " : "",
                f->all[i].name, i % shards + 1, shards);
    fprintf(index, "}}");
    fclose(index);
}

/* Cuts every matrix but the routers along its rows: the first `cut` rows go into one file and the
 * rest into another. They are tensor-parallel slices with equal names. */
static inline void layout_write_slices(const layout_files *f, const char *folder, int cut,
                                       bool router_in_each)
{
    layout_files *slices[3] = {calloc(1, sizeof *f), calloc(1, sizeof *f), calloc(1, sizeof *f)};
    static const char *const names[] = {"m-00000-TP-common", "m-00001-TP-000", "m-00001-TP-001"};
    char name[64];
    for (int i = 0; i < f->count; i++) {
        const layout_tensor *t = &f->all[i];
        if (!strstr(t->name, "experts")) {
            for (int s = router_in_each; s <= 2 * router_in_each; s++)
                slices[s]->all[slices[s]->count++] = *t;
            continue;
        }
        size_t row = t->bytes / (size_t)t->shape[0];
        for (int s = 0; s < 2; s++) {
            layout_tensor *part = &slices[1 + s]->all[slices[1 + s]->count++];
            *part               = *t;
            part->shape[0]      = s ? t->shape[0] - cut : cut;
            part->bytes         = row * (size_t)part->shape[0];
            part->data          = t->data + (s ? row * (size_t)cut : 0);
        }
    }
    for (int k = 0; k < 3; k++) {
        snprintf(name, sizeof name, "%s.safetensors", names[k]);
        layout_write_file(slices[k], in_folder(folder, name), 0, 1);
    }
    FILE *index = fopen(in_folder(folder, "model.safetensors.index.json"), "w");
    fprintf(index, "{\"metadata\": {\"total_size\": 1}, \"weight_map\": {");
    for (int i = 0; i < f->count; i++)
        fprintf(index, "%s\"%s\": \"%s.safetensors\"", i ? ", " : "", f->all[i].name,
                names[strstr(f->all[i].name, "experts") || router_in_each]);
    fprintf(index, "}}");
    fclose(index);
    for (int k = 0; k < 3; k++) free(slices[k]);
}

/* Writes the checkpoint into `folder`. */
static inline void layout_write(const layout *t, const char *folder)
{
    layout_files *f = calloc(1, sizeof *f);
    char name[64]   = "model.safetensors";
    for (int l = 0; l < LAYOUT_LAYERS; l++) layout_add_layer(t, f, l);
    layout_add_others(t, f);
    int shards = t->shards ? t->shards : 1;
    if (t->cut) layout_write_slices(f, folder, t->cut, t->router_in_each);
    for (int s = 0; !t->cut && s < shards; s++) {
        if (t->shards) snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", s + 1, shards);
        layout_write_file(f, in_folder(folder, name), s, shards);
    }
    if (t->shards) layout_write_index(f, folder, shards);
    write_string(in_folder(folder, "config.json"), t->config);
    for (int i = 0; i < f->count; i++) free(f->all[i].data);
    free(f);
}

#endif /* CPL_TESTS_INSPECT_FAMILIES_LAYOUTS_H */
