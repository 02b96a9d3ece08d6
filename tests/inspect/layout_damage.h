/* layout_damage.h - random changes of a checkpoint's tensors and settings: names, shapes, number
 * formats, numbers, the list of tensors, settings. The files stay whole. */
#ifndef CPL_TESTS_INSPECT_LAYOUT_DAMAGE_H
#define CPL_TESTS_INSPECT_LAYOUT_DAMAGE_H

#include "fuzz.h"
#include "inspect/families/families.h"
#include "inspect/families/layouts.h"

enum { MOST_TENSOR = 1 << 18 }; /* bytes that a changed tensor may have */

typedef struct changed {
    layout_files files; /* data is owned */
    cpl_text config, index;
    int shards;
} changed;

static inline size_t bytes_of(const layout_tensor *t)
{
    double bytes = cpl_safetensors_dtype_bits(t->dtype) / 8.0;
    for (int i = 0; i < t->rank; i++) bytes *= (double)t->shape[i];
    return bytes <= MOST_TENSOR ? (size_t)bytes : SIZE_MAX;
}

/* Gives a tensor the bytes of its shape: its old bytes, repeated. */
static inline void refill(layout_tensor *t)
{
    const size_t bytes = bytes_of(t);
    if (bytes == SIZE_MAX || bytes == t->bytes) return;
    unsigned char *data = calloc(bytes + 8, 1);
    for (size_t i = 0; i < bytes && t->bytes; i++) data[i] = t->data[i % t->bytes];
    free(t->data);
    t->data  = data;
    t->bytes = bytes;
}

static inline layout_tensor *any_tensor(fuzz *f, changed *c)
{
    return &c->files.all[fuzz_below(f, (size_t)c->files.count)];
}

/* ---- names ---- */

/* Replaces the first `from` of the name, if the name contains it. */
static inline void replace(layout_tensor *t, const char *from, const char *to)
{
    char name[sizeof t->name + 64];
    char *at = strstr(t->name, from);
    if (!at) return;
    snprintf(name, sizeof name, "%.*s%s%s", (int)(at - t->name), t->name, to, at + strlen(from));
    snprintf(t->name, sizeof t->name, "%.199s", name);
}

static inline const char *any_number(fuzz *f)
{
    static const char *const numbers[] = {
        "0",  "1", "5", "6", "7", "00", "65536", "999999999", "1000000000", "18446744073709551616",
        "-1", ""};
    return numbers[fuzz_below(f, sizeof numbers / sizeof *numbers)];
}

static inline void change_number(fuzz *f, layout_tensor *t)
{
    const char *to = any_number(f);
    size_t from = fuzz_below(f, strlen(t->name) + 1), length = 0;
    char digits[64] = "";
    while (t->name[from] && (t->name[from] < '0' || t->name[from] > '9')) from++;
    while (t->name[from + length] >= '0' && t->name[from + length] <= '9' && length < 60) length++;
    if (!length) return;
    snprintf(digits, sizeof digits, ".%.*s.", (int)length, t->name + from);
    char wanted[64];
    snprintf(wanted, sizeof wanted, ".%s.", to);
    replace(t, digits, wanted);
}

/* Replaces the text up to the first number of a name, with the number, in every name that begins
 * with it: a layer becomes another. */
static inline void change_layer(fuzz *f, changed *c)
{
    char from[64], to[96];
    const layout_tensor *t = any_tensor(f, c);
    const size_t before    = strcspn(t->name, "0123456789");
    const size_t length    = before + strspn(t->name + before, "0123456789");
    if (length + 2 > sizeof from || t->name[length] != '.') return;
    snprintf(from, sizeof from, "%.*s", (int)length + 1, t->name);
    snprintf(to, sizeof to, "%.*s%s.", (int)before, t->name, any_number(f));
    for (int i = 0; i < c->files.count; i++)
        if (strncmp(c->files.all[i].name, from, length + 1) == 0)
            replace(&c->files.all[i], from, to);
}

static inline void change_word(fuzz *f, layout_tensor *t)
{
    static const char *const words[] =
        LIST(".weight", "_blocks", "_scales", ".weight_scale_inv", ".weight_scale", ".scale",
             "_scale_inv", ".bias", ".weight_packed", ".weight_shape", ".qweight", "gate_proj",
             "up_proj", "gate_up_proj", "down_proj", "mlp", "experts", "gate", "router",
             "block_sparse_moe", "w1", "w13_weight", "w3", "fc1", "shared_experts", "model.",
             "encoder.", "decoder.", "mtp.", "vision_tower.", "layers", "blocks", "layer",
             "input_linear", "wg", "", "e_score_correction_bias");
    enum { COUNT = sizeof words / sizeof *words };
    for (int tries = 0; tries < 60; tries++) {
        const char *from = words[fuzz_below(f, COUNT)];
        if (!*from || !strstr(t->name, from)) continue;
        replace(t, from, words[fuzz_below(f, COUNT)]);
        return;
    }
}

static inline void change_name(fuzz *f, changed *c)
{
    layout_tensor *t = any_tensor(f, c), *other = any_tensor(f, c);
    char name[sizeof t->name];
    switch (fuzz_below(f, 7)) {
    case 0:
        memcpy(name, t->name, sizeof name);
        memcpy(t->name, other->name, sizeof name);
        memcpy(other->name, name, sizeof name);
        break;
    case 1:
        change_number(f, t);
        break;
    case 2: /* all its occurrences */
        for (int i = 0; i < c->files.count; i++) {
            const uint64_t draw = f->draw;
            change_word(f, &c->files.all[i]);
            f->draw = draw;
        }
        break;
    case 3:
        t->name[fuzz_below(f, strlen(t->name) + 1)] = "ab.0_"[fuzz_below(f, 5)];
        break;
    case 4:
        change_layer(f, c);
        break;
    default:
        change_word(f, t);
        break;
    }
}

/* ---- shapes and number formats ---- */

static const int64_t LARGE = 1ll << 31; /* a length that is not reckoned with further */

static inline void transpose(fuzz *f, layout_tensor *t)
{
    if (t->rank < 2) return;
    const size_t a = fuzz_below(f, (size_t)t->rank), b = fuzz_below(f, (size_t)t->rank);
    const int64_t held = t->shape[a];
    t->shape[a]        = t->shape[b];
    t->shape[b]        = held;
}

/* Joins an axis with the next one, or splits it into two. */
static inline void regroup(fuzz *f, layout_tensor *t)
{
    static const int64_t parts[] = {1, 2, 3, 6, 8, 16};
    if (t->rank >= 2 && fuzz_below(f, 2)) {
        const size_t at = fuzz_below(f, (size_t)t->rank - 1);
        if (t->shape[at] >= LARGE || t->shape[at + 1] >= LARGE) return;
        t->shape[at] *= t->shape[at + 1];
        for (int i = (int)at + 1; i + 1 < t->rank; i++) t->shape[i] = t->shape[i + 1];
        t->rank--;
    } else if (t->rank >= 1 && t->rank < 4) {
        const size_t at    = fuzz_below(f, (size_t)t->rank);
        const int64_t part = parts[fuzz_below(f, 6)];
        if (t->shape[at] % part) return;
        for (int i = t->rank; i > (int)at; i--) t->shape[i] = t->shape[i - 1];
        t->shape[at] = part;
        t->shape[at + 1] /= part;
        t->rank++;
    }
}

static inline void change_length(fuzz *f, layout_tensor *t)
{
    static const int64_t hard[] = {0, 1, 2, 3, 5, 7, 31, 33, 100, 1ll << 20, 1ll << 40, INT64_MAX};
    if (!t->rank) return;
    int64_t *length = &t->shape[fuzz_below(f, (size_t)t->rank)];
    if (*length >= LARGE) return;
    switch (fuzz_below(f, 5)) {
    case 0:
        *length = hard[fuzz_below(f, sizeof hard / sizeof *hard)];
        break;
    case 1:
        *length += 1;
        break;
    case 2:
        *length -= *length > 0;
        break;
    case 3:
        *length *= 2;
        break;
    default:
        *length /= 2;
        break;
    }
}

static inline void change_shape(fuzz *f, changed *c)
{
    layout_tensor *t = any_tensor(f, c), *other = any_tensor(f, c), held = *t;
    switch (fuzz_below(f, 6)) {
    case 0:
        t->rank = other->rank, other->rank = held.rank;
        memcpy(t->shape, other->shape, sizeof t->shape);
        memcpy(other->shape, held.shape, sizeof t->shape);
        refill(other);
        break;
    case 1:
        transpose(f, t);
        break;
    case 2:
        regroup(f, t);
        break;
    case 3: /* all tensors of this shape */
        for (int i = 0; i < c->files.count; i++) {
            const uint64_t draw = f->draw;
            layout_tensor *like = &c->files.all[i];
            if (like->rank != held.rank || memcmp(like->shape, held.shape, sizeof held.shape))
                continue;
            change_length(f, like);
            refill(like);
            f->draw = draw;
        }
        break;
    default:
        change_length(f, t);
        break;
    }
    refill(t);
}

/* Changes a type to one of equal width, so that the bytes stay, or to any other. The last axis may
 * then give the bytes their old number. */
static inline void change_type(fuzz *f, changed *c)
{
    layout_tensor *t = any_tensor(f, c);
    const int bits   = cpl_safetensors_dtype_bits(t->dtype);
    const bool all   = fuzz_below(f, 3) == 0;
    for (int tries = 0; tries < 50; tries++) {
        const cpl_safetensors_dtype to = fuzz_below(f, CPL_SAFETENSORS_N_DTYPES);
        const int wide                 = cpl_safetensors_dtype_bits(to);
        if (to == t->dtype || (wide != bits && tries < 25)) continue;
        const cpl_safetensors_dtype from = t->dtype;
        for (int i = 0; i < c->files.count; i++) {
            layout_tensor *like = &c->files.all[i];
            if (like->dtype != from || (!all && like != t)) continue;
            int64_t *last = like->rank ? &like->shape[like->rank - 1] : NULL;
            if (last && *last < LARGE && *last * bits % wide == 0) *last = *last * bits / wide;
            like->dtype = to;
            refill(like);
        }
        return;
    }
}

/* ---- numbers, and the list of tensors ---- */

static inline void change_data(fuzz *f, changed *c)
{
    layout_tensor *t = any_tensor(f, c);
    for (size_t n = 1 + fuzz_below(f, 8); n && t->bytes; n--) {
        const size_t at = fuzz_below(f, t->bytes);
        t->data[at]     = (unsigned char)(fuzz_below(f, 2) ? 0xff : fuzz_below(f, 256));
        if (at + 1 < t->bytes && fuzz_below(f, 2)) t->data[at + 1] = 0x7f;
    }
    if (fuzz_below(f, 8) == 0) memset(t->data, 0, t->bytes);
    if (fuzz_below(f, 16) == 0) memset(t->data, 0x7f, t->bytes); /* large numbers */
}

static inline void change_list(fuzz *f, changed *c)
{
    layout_tensor *t = any_tensor(f, c), *last = &c->files.all[c->files.count - 1];
    if (fuzz_below(f, 2)) {
        if (c->files.count < 2) return;
        free(t->data);
        *t = *last;
        c->files.count--;
    } else if (c->files.count < LAYOUT_MAX_TENSORS) {
        last[1]      = *t;
        last[1].data = calloc(t->bytes + 8, 1);
        memcpy(last[1].data, t->data, t->bytes);
        c->files.count++;
        change_word(f, &last[1]);
        change_number(f, &last[1]);
    }
}

/* ---- settings ---- */

static inline const char *any_family(fuzz *f, char out[64])
{
    const cpl_family *family = &cpl_families[fuzz_below(f, (size_t)cpl_n_families)];
    snprintf(out, 64, "%.*s", (int)strcspn(family->model_types, " "), family->model_types);
    return out;
}

/* Sets the settings' member `key` to the JSON text `value`. The old value stays after it. */
static inline void put_setting(cpl_text *config, const char *key, const char *value)
{
    cpl_text all = {0};
    if (!config->length || config->bytes[0] != '{') return;
    cpl_text_printf(&all, "{\"%s\":%s", key, value);
    if (config->length > 2) cpl_text_char(&all, ',');
    cpl_text_append(&all, config->bytes + 1, config->length - 1);
    cpl_text_free(config);
    *config = all;
}

/* Changes one number or name of the settings, written as JSON that has each key once. */
static inline void change_settings(fuzz *f, changed *c)
{
    static const char *const keys[] = {
        "num_experts", "n_routed_experts", "num_local_experts",   "num_experts_per_tok",
        "hidden_size", "moe_topk",         "num_hidden_layers",   "moe_intermediate_size",
        "ffn_config",  "text_config",      "quantization_config", "transformers_version",
        "n_experts",   "zero_expert_num"};
    static const char *const values[] = LIST(
        "0", "1", "2", "3", "6", "12", "-1", "1e30", "9223372036854775807", "[]", "[1,[2]]", "{}",
        "null", "\"\"", "true", "\"6\"", "\"5.0.0\"", "{\"num_experts\":3,\"moe_top_k\":[1]}",
        "{\"quant_method\":\"fp8\",\"weight_block_size\":[16,24]}",
        "{\"quant_method\":\"fp8\",\"weight_block_size\":[0,-1]}",
        "{\"quant_method\":\"fp8\",\"weight_block_size\":[9223372036854775807,1]}",
        "{\"quant_method\":\"fp8\"}", "{\"quant_method\":\"mxfp4\"}", "{\"quant_method\":\"gptq\"}",
        "{\"quant_method\":\"compressed-tensors\",\"format\":\"float-quantized\"}",
        "{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\",\"config_groups\":{"
        "\"g\":{\"weights\":{\"num_bits\":4,\"group_size\":16}}}}",
        "{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\",\"config_groups\":{"
        "\"g\":{\"weights\":{\"num_bits\":4,\"group_size\":0}}}}");
    char name[64], quoted[80];
    const char *key = keys[fuzz_below(f, sizeof keys / sizeof *keys)];
    switch (fuzz_below(f, 4)) {
    case 0:
        snprintf(quoted, sizeof quoted, "\"%s\"", any_family(f, name));
        put_setting(&c->config, "model_type", quoted);
        break;
    case 1:
        fuzz_once(f, &c->config);
        return;
    default:
        put_setting(&c->config, key, values[fuzz_below(f, sizeof values / sizeof *values)]);
        break;
    }
    json_t *json = json_loadb(c->config.bytes, c->config.length, 0, NULL); /* the last one stays */
    char *text   = json ? json_dumps(json, 0) : NULL;
    if (text) cpl_text_clear(&c->config), cpl_text_append(&c->config, text, strlen(text));
    free(text);
    json_decref(json);
}

static inline void change_something(fuzz *f, changed *c)
{
    switch (fuzz_below(f, 12)) {
    case 0:
    case 1:
    case 2:
        change_name(f, c);
        break;
    case 3:
    case 4:
    case 5:
        change_shape(f, c);
        break;
    case 6:
    case 7:
        change_type(f, c);
        break;
    case 8:
        change_data(f, c);
        break;
    case 9:
        change_list(f, c);
        break;
    default:
        change_settings(f, c);
        break;
    }
}

#endif /* CPL_TESTS_INSPECT_LAYOUT_DAMAGE_H */
