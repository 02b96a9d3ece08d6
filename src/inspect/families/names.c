#include "inspect/families/internal.h"

#include <ctype.h>
#include <string.h>

enum { MAX_DIGITS = 9 };

/* ---- numbers and layers ---- */

/* Sets the number at `text`. Returns the count of its digits, or 0 without digits or with too
 * many. */
static size_t number_at(const char *text, int64_t *number)
{
    size_t digits = 0;
    *number       = 0;
    while (digits <= MAX_DIGITS && isdigit((unsigned char)text[digits]))
        *number = *number * 10 + (text[digits++] - '0');
    return digits <= MAX_DIGITS ? digits : 0;
}

bool cpl_name_layer(const char *name, size_t *prefix, int64_t *layer)
{
    static const char *const markers[] = {"layers.", "blocks.", "decoder_layer.",
                                          "h.",      "block.",  "blk."};
    for (const char *at = name; at; at = strchr(at, '.') ? strchr(at, '.') + 1 : NULL)
        for (size_t i = 0; i < sizeof markers / sizeof *markers; i++) {
            size_t length = strlen(markers[i]);
            if (strncmp(at, markers[i], length) != 0) continue;
            size_t digits = number_at(at + length, layer);
            if (!digits || at[length + digits] != '.') continue;
            *prefix = (size_t)(at - name) + length + digits + 1;
            return true;
        }
    return false;
}

bool cpl_name_is_mtp(const char *name)
{
    return strncmp(name, "mtp.", 4) == 0 || strstr(name, ".mtp.") || strstr(name, ".mtp_") ||
           strncmp(name, "mtp_", 4) == 0;
}

/* ---- words in names: tools/make_families_json.py reads these lists for Python ---- */

#define COUNT(list) (sizeof(list) / sizeof *(list))

/* Words in names of tensors outside the text model. */
static const char *const not_text[] = {"vision", "visual",   "audio",
                                       "talker", "code2wav", "code_predictor"};

/* Words in names, after the layer's number, of tensors outside routed experts. */
static const char *const not_routed[] = {"shared_expert", "share_expert",  "shared_mlp",
                                         "residual_mlp",  "chunk_experts", "vision_moe",
                                         "self_att",      "attention.",    "attn."};

/* Words in names of layers that have no figures, and the reason. */
static const struct {
    const char *text, *reason;
} unmeasured[] = {
    {"experts.0.gate_a_proj", "Autonomy-of-Experts: it has no router"},
    {"tid2eid", "hash-routed: a fixed table chooses the experts"},
    {"router_mlp", "its router is a small network, no single matrix"},
    {"mlp.router_gate.",
     "its router is no single matrix: it chooses keys whose pairs are experts, and "
     "experts are single rows"},
};

/* ---- latent experts: names as in families.def ---- */

/* Projections W_l [l,d]. The names of Nemotron-H, Megatron-Core and Muse Spark are those of their
 * classes, the others were read in public code. */
static const char *const projections[] = {
    "*fc1_latent_proj",         /* Transformers 5.24, NemotronHMoE; Megatron-Core, MoELayer */
    "*pre_expert_proj",         /* Transformers 5.24, MuseSparkMoE */
    "*routed_expert_down_proj", /* Kimi K3: vllm, kimi_k3; Shensi: transformers #48404 */
    "*ffn_latent_down",         /* GGUF: llama.cpp, LLM_TENSOR_FFN_LATENT_DOWN */
};

/* Norms of W_l x, which multiply by 1 + weight. Norms of the experts' combined output
 * (routed_expert_norm of Kimi K3) are not among them. */
static const char *const projection_norms[] = {
    "*pre_expert_norm", /* Transformers 5.24, MuseSparkMoE */
};

static bool has_any(const char *name, const char *const *words, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strstr(name, words[i])) return true;
    return false;
}

bool cpl_name_is_text(const char *name)
{
    return !has_any(name, not_text, COUNT(not_text));
}

bool cpl_name_is_routed(const char *suffix)
{
    return !has_any(suffix, not_routed, COUNT(not_routed));
}

const char *cpl_name_unmeasured(const char *suffix)
{
    for (size_t i = 0; i < COUNT(unmeasured); i++)
        if (strstr(suffix, unmeasured[i].text)) return unmeasured[i].reason;
    return NULL;
}

bool cpl_name_in_words(const char *words, const char *word)
{
    size_t length;
    for (const char *one; cpl_name_next_word(&words, &one, &length);)
        if (length == strlen(word) && strncmp(one, word, length) == 0) return true;
    return false;
}

/* ---- patterns ---- */

const cpl_family cpl_families[] = {
#define CPL_FAMILY(types, title, gguf, router, gate, flags)                                        \
    {types, title, gguf, router, gate, flags},
#include "inspect/families/families.def"
};
const int64_t cpl_n_families = sizeof cpl_families / sizeof *cpl_families;

static cpl_name_pattern pattern_of(const char *text, size_t length, cpl_name_role role)
{
    static const char *const halves[] = {[CPL_HALF_FIRST]    = ":GD",
                                         [CPL_HALF_SECOND]   = ":UD",
                                         [CPL_HALF_IN_TURNS] = ":DG",
                                         [CPL_HALF_ALONE]    = ":D"};
    cpl_name_pattern pattern          = {.any_block = *text == '*', .role = role};
    pattern.text                      = text + pattern.any_block;
    pattern.length                    = strcspn(pattern.text, ": ");
    const size_t rest                 = (size_t)(text + length - pattern.text) - pattern.length;
    for (size_t half = CPL_HALF_FIRST; rest && half < COUNT(halves); half++)
        if (strlen(halves[half]) == rest &&
            strncmp(pattern.text + pattern.length, halves[half], rest) == 0)
            pattern.half = (cpl_gate_half)half;
    CPL_ASSERT(!rest || pattern.half != CPL_HALF_NONE); /* families.def has no other layouts */
    pattern.pair = pattern.half != CPL_HALF_NONE && pattern.half != CPL_HALF_ALONE;
    while (pattern.hole < pattern.length && pattern.text[pattern.hole] != '{') pattern.hole++;
    return pattern;
}

static bool same_pattern(const cpl_name_pattern *a, const cpl_name_pattern *b)
{
    return a->length == b->length && a->any_block == b->any_block && a->role == b->role &&
           a->half == b->half && strncmp(a->text, b->text, a->length) == 0;
}

static void add_words(cpl_name_patterns *patterns, const char *words, cpl_name_role role)
{
    size_t length;
    for (const char *word; cpl_name_next_word(&words, &word, &length);) {
        cpl_name_pattern pattern = pattern_of(word, length, role);
        bool known               = false;
        for (int i = 0; i < patterns->count; i++)
            known |= same_pattern(&patterns->all[i], &pattern);
        if (!known) patterns->all[patterns->count++] = pattern;
    }
}

/* Adds the names of a family's routers and gates. */
static void add_family(cpl_name_patterns *patterns, const cpl_family *family)
{
    add_words(patterns, family->router, CPL_NAME_ROUTER);
    add_words(patterns, family->gate, CPL_NAME_GATE);
}

static int n_words(const char *words)
{
    int count = *words != 0;
    for (const char *at = words; *at; at++) count += *at == ' ';
    return count;
}

cpl_name_patterns cpl_name_patterns_make(cpl_pool *pool, const cpl_family *family)
{
    int most = COUNT(projections) + COUNT(projection_norms);
    for (int64_t i = 0; i < cpl_n_families; i++)
        most += n_words(cpl_families[i].router) + n_words(cpl_families[i].gate);
    cpl_name_patterns patterns = {cpl_pool_take(pool, 2 * (size_t)most * sizeof(cpl_name_pattern)),
                                  0, 0};
    if (!patterns.all) return patterns;
    if (family) {
        add_family(&patterns, family);
        patterns.own = patterns.count;
    }
    for (int64_t i = 0; i < cpl_n_families; i++) add_family(&patterns, &cpl_families[i]);
    for (size_t i = 0; i < COUNT(projections); i++)
        add_words(&patterns, projections[i], CPL_NAME_PROJECTION);
    for (size_t i = 0; i < COUNT(projection_norms); i++)
        add_words(&patterns, projection_norms[i], CPL_NAME_NORM);
    return patterns;
}

static bool words_have_pattern(const char *words, const cpl_name_pattern *pattern)
{
    size_t length;
    for (const char *word; cpl_name_next_word(&words, &word, &length);) {
        cpl_name_pattern one = pattern_of(word, length, pattern->role);
        if (same_pattern(&one, pattern)) return true;
    }
    return false;
}

const cpl_family *cpl_name_patterns_in_turns(const cpl_name_pattern *router,
                                             const cpl_name_pattern *gate)
{
    cpl_name_pattern in_turns = *gate;
    in_turns.half             = CPL_HALF_IN_TURNS;
    for (int64_t i = 0; i < cpl_n_families; i++) {
        const cpl_family *one = &cpl_families[i];
        if (words_have_pattern(one->router, router) && words_have_pattern(one->gate, &in_turns))
            return one;
    }
    return NULL;
}

/* ---- one name against the patterns ---- */

/* The endings of names of routers and gates. `method` is a quantisation that is not read. */
static const struct {
    const char *text;
    cpl_ending ending;
    const char *method;
} endings[] = {
    {"", CPL_ENDING_WEIGHT, NULL},
    {".weight", CPL_ENDING_WEIGHT, NULL},
    {"_blocks", CPL_ENDING_BLOCKS, NULL},
    {".weight_packed", CPL_ENDING_PACKED, NULL},
    {"_scales", CPL_ENDING_SCALE, NULL},
    {".weight_scale_inv", CPL_ENDING_GRID, NULL},
    {"_scale_inv", CPL_ENDING_GRID, NULL},
    {".scale", CPL_ENDING_GRID, NULL},
    {".weight_scale", CPL_ENDING_SCALE, NULL},
    {"_weight_scale", CPL_ENDING_SCALE, NULL},
    {"_scale", CPL_ENDING_SCALE, NULL},
    {".qscale_weight", CPL_ENDING_SCALE, NULL},
    {".bias", CPL_ENDING_BIAS, NULL},
    {"_bias", CPL_ENDING_BIAS, NULL},
    {".qweight", CPL_ENDING_METHOD, "gptq or awq"},
    {".qzeros", CPL_ENDING_METHOD, "gptq or awq"},
    {".weight.absmax", CPL_ENDING_METHOD, "bitsandbytes"},
    {".SCB", CPL_ENDING_METHOD, "bitsandbytes"},
    {".weight_format", CPL_ENDING_METHOD, "bitsandbytes"},
    {".biases", CPL_ENDING_METHOD, "MLX"},
    {".scales", CPL_ENDING_METHOD, "MLX"},
    {".weight_scale_2", CPL_ENDING_METHOD, "modelopt (NVFP4)"},
    {".weight_global_scale", CPL_ENDING_METHOD, "compressed-tensors nvfp4-pack-quantized"},
    {".weight_zero_point", CPL_ENDING_METHOD, "compressed-tensors with zero points"},
    {".weight_g_idx", CPL_ENDING_METHOD, "compressed-tensors with activation ordering"},
};

static bool ending_of(cpl_name_match *match, const char *rest)
{
    match->end = rest;
    for (size_t i = 0; i < COUNT(endings); i++) {
        if (strcmp(rest, endings[i].text) != 0) continue;
        match->ending = endings[i].ending;
        match->method = endings[i].method;
        return true;
    }
    return false;
}

/* Returns whether `at` is the pattern, with a number for {e} and a known ending. */
static bool pattern_is_at(cpl_name_match *match, const cpl_name_pattern *pattern, const char *at)
{
    if (*at != *pattern->text || strncmp(at, pattern->text, pattern->hole) != 0) return false;
    at += pattern->hole;
    if (pattern->hole == pattern->length) return ending_of(match, at);
    size_t digits     = number_at(at, &match->expert);
    const char *after = pattern->text + pattern->hole + strlen("{e}");
    size_t length     = pattern->length - pattern->hole - strlen("{e}");
    if (!digits || strncmp(at + digits, after, length) != 0) return false;
    match->digits = at;
    return ending_of(match, at + digits + length);
}

static bool pattern_is_in(cpl_name_match *match, const cpl_name_pattern *pattern,
                          const char *suffix)
{
    if (pattern_is_at(match, pattern, suffix)) return true;
    if (!pattern->any_block) return false;
    for (const char *dot = strchr(suffix, '.'); dot; dot = strchr(dot + 1, '.'))
        if (pattern_is_at(match, pattern, dot + 1)) return true;
    return false;
}

/* Modules that training frameworks put around the modules of a layer. */
static const char *const wrappers[] = {"_checkpoint_wrapped_module.", "_fsdp_wrapped_module.",
                                       "_orig_mod."};

/* Passes over wrappers and over "layer.1." of Switch, which are between the layer's number and the
 * names. */
static const char *without_sublayer(const char *suffix)
{
    int64_t number;
    for (size_t i = 0; i < COUNT(wrappers); i++)
        if (strncmp(suffix, wrappers[i], strlen(wrappers[i])) == 0)
            return without_sublayer(suffix + strlen(wrappers[i]));
    if (strncmp(suffix, "layer.", 6) != 0) return suffix;
    size_t digits = number_at(suffix + 6, &number);
    return digits && suffix[6 + digits] == '.' ? suffix + 6 + digits + 1 : suffix;
}

bool cpl_name_patterns_find(cpl_name_match *match, const cpl_name_patterns *patterns,
                            const char *suffix)
{
    const char *name = without_sublayer(suffix);
    for (int i = 0; i < patterns->count; i++) {
        *match = (cpl_name_match){.pattern = i};
        if (pattern_is_in(match, &patterns->all[i], name)) return cpl_name_is_routed(suffix);
    }
    return false;
}
