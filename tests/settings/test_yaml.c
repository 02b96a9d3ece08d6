/* test_yaml.c - configuration files against the lists of every floor: values that are read, errors
 * with sentence and position, writing and reading back, damaged files, failing memory. */
#include "settings/yaml.h"

#include <math.h>

#include "base/arena.h"
#include "base/rng.h"
#include "check.h"
#include "train/config/settings.h"

static cpl_section sections[CPL_N_SECTIONS];
static cpl_settings settings;
static bool given[CPL_N_SETTINGS];

static int set_up(void **state)
{
    (void)state;
    memset(given, 0, sizeof given);
    cpl_settings_sections(sections);
    return cpl_settings_init(&settings, sections, CPL_N_SECTIONS) != CPL_OK;
}

static int tear_down(void **state)
{
    (void)state;
    cpl_settings_free(&settings, sections, CPL_N_SECTIONS);
    return 0;
}
TESTS_DO(before_each, set_up);
TESTS_DO(after_each, tear_down);

static cpl_status parse_as(const char *name, const char *text)
{
    return cpl_yaml_parse(&settings, sections, CPL_N_SECTIONS, name, text, strlen(text), given);
}

static cpl_status parse(const char *text)
{
    return parse_as("c.yaml", text);
}

static bool was_given(const char *dotted)
{
    const cpl_setting *setting = cpl_settings_find(NULL, sections, CPL_N_SECTIONS, dotted, NULL);
    return given[cpl_settings_index(sections, CPL_N_SECTIONS, setting)];
}

/* Every default fits its own bounds (set_up would fail) and the lists agree on their number. */
TEST(lists_are_whole)
{
    size_t total = 0;
    for (size_t s = 0; s < CPL_N_SECTIONS; s++) total += sections[s].count;
    assert_int_equal(total, CPL_N_SETTINGS);
    for (size_t s = 0; s < CPL_N_SECTIONS; s++)
        for (size_t i = 0; i < sections[s].count; i++) {
            const cpl_setting *one = &sections[s].list[i];
            assert_string_equal(one->section, sections[s].name);
            assert_true(one->low <= one->high);
            assert_int_equal(one->help[strlen(one->help) - 1], '.');
        }
}

TEST(reads)
{
    assert_ok(parse("\xEF\xBB\xBF# a comment\n"
                    "train:\n  steps: 1e3\n  lr: 3e-4 # rate\n"
                    "erc: {reduce: sum, noise: \"none\"}\n"
                    "data:\n  train: [a.txt, \"b c.txt\", null]\n  validation: v1, v2\n"
                    "  weights:\n    wiki: 2\n    \"a: b\": 0.5\n  separator: |-\n    x\n    y\n"
                    "  tokenizer:\n"
                    "model:\n"));
    assert_int_equal(settings.train.steps, 1000);
    assert_true(settings.train.lr == 3e-4);
    assert_int_equal(settings.losses.erc.reduce, CPL_ERC_SUM);
    assert_int_equal(settings.losses.erc.noise, CPL_NOISE_NONE);
    assert_int_equal(settings.data.train.count, 3);
    assert_string_equal(settings.data.train.at[1], "b c.txt");
    assert_string_equal(settings.data.train.at[2], "null");
    assert_int_equal(settings.data.validation.count, 2);
    assert_string_equal(settings.data.weights.name[1], "a: b");
    assert_true(settings.data.weights.weight[1] == 0.5);
    assert_string_equal(settings.data.separator, "x\ny");
    assert_null(settings.data.tokenizer);
    assert_true(was_given("train.steps") && was_given("erc.noise") && was_given("data.tokenizer"));
    assert_false(was_given("train.seed") || was_given("model.hidden_size"));
}

TEST(nothing_is_allowed)
{
    const char *texts[] = {"", "# only a comment\n", "---\n", "---\n...\n", "\xEF\xBB\xBF", "~\n"};
    for (int i = 0; i < 5; i++) assert_ok(parse(texts[i]));
    assert_fails(CPL_ERR_INPUT, "sections", parse(texts[5]));
    assert_int_equal(settings.train.steps, 1000);
}

TEST(refuses)
{
    struct {
        const char *text, *part;
    } cases[] = {
        {"train:\n  lrr: 1\n", "c.yaml:2:3: there is no setting train.lrr; did you mean train.lr?"},
        {"trian:\n  lr: 1\n", "c.yaml:1:1: there is no section trian; did you mean train?"},
        {"zzzzzzz:\n", "c.yaml:1:1: there is no section zzzzzzz"},
        {"train.lr: 1\n", "c.yaml:1:1: train.lr is in the section train"},
        {"erc:\n  lr: 1\n", "c.yaml:2:3: there is no setting erc.lr; did you mean train.lr?"},
        {"train:\n  lr: 200\n", "c.yaml:2:7: train.lr is 200, but must be a number from 0 to 100"},
        {"train:\n  lr: fast\n", "c.yaml:2:7: train.lr is fast, but must be a number"},
        {"train:\n  lr:\n", "train.lr is unset, but must be a number from 0 to 100"},
        {"train:\n  steps: \"10\"\n", "c.yaml:2:10: train.steps is \"10\", but must be a whole"},
        {"erc:\n  reduce: max\n", "c.yaml:2:11: erc.reduce is max, but must be mean or sum"},
        {"train:\n  lr: 1\n  lr: 1\n", "c.yaml:3:3: lr is given twice"},
        {"train:\nmodel:\ntrain:\n", "c.yaml:3:1: train is given twice"},
        {"train: 3\n", "c.yaml:1:8: the section train must hold settings"},
        {"train: [a]\n", "c.yaml:1:8: the section train must hold settings"},
        {"- train\n", "c.yaml:1:1: a configuration is made of sections"},
        {"text\n", "c.yaml:1:1: a configuration is made of sections"},
        {"train:\n  lr: &a 1\n", "c.yaml:2:7: anchors (&a)"},
        {"train: &a\n  lr: 1\n", "c.yaml:1:8: anchors (&a)"},
        {"data:\n  train: &l [a]\n", "c.yaml:2:10: anchors (&l)"},
        {"train:\n  lr: *a\n", "c.yaml:2:7: aliases (*a)"},
        {"train:\n  lr: !!float 1\n", "c.yaml:2:7: tags ("},
        {"train:\n  lr: ! 1\n", "c.yaml:2:7: tags (!)"},
        {"train:\n  lr: [1]\n", "c.yaml:2:7: train.lr cannot be a list"},
        {"train:\n  lr: {a: 1}\n", "c.yaml:2:7: train.lr cannot be a mapping"},
        {"data:\n  train: {a: 1}\n", "c.yaml:2:10: data.train cannot be a mapping"},
        {"data:\n  train: [a, [b]]\n", "c.yaml:2:14: a list here holds texts only"},
        {"data:\n  train: [a, {b: c}]\n", "c.yaml:2:14: a list here holds texts only"},
        {"data:\n  weights: {a: [1]}\n", "c.yaml:2:16: a number is expected here"},
        {"data:\n  weights: {a: }\n", "a number is expected here"},
        {"data:\n  weights: {a: x}\n", "c.yaml:2:12: data.weights is x, but must be pairs"},
        {"data:\n  weights: {a: 1, a: 2}\n", "c.yaml:2:19: a is given twice"},
        {"data:\n  weights: {[a]: 1}\n", "c.yaml:2:13: a name is expected here"},
        {"? [a]\n: b\n", "c.yaml:1:3: a name is expected here"},
        {"train:\n---\nmodel:\n", "c.yaml:2:1: a second document begins here"},
        {"data:\n  separator: \"a\\0b\"\n", "c.yaml:2:14: a text holds a NUL character"},
        {"data:\n  train: [a\n", "c.yaml:3:1: "},
        {"train:\n\tlr: 1\n", "c.yaml:2:1: this line is indented with a tab"},
        {"train:\n  lr: 1\n  \tsteps: 1\n", "c.yaml:3:"},
        {"# \xC3\xA4\xC3\xB6\ndata:\n  train:\n\t- a\n",
         "c.yaml:4:1: this line is indented with a tab"},
        {"train:\t@x\n", "c.yaml:1:8: found character that cannot start any token"},
        {"erz:\n", "c.yaml:1:1: there is no section erz; did you mean erc?"},
        {"train:\n  lr: \x01\n", "c.yaml: byte 13: "},
        {"train:\n  lr: \xFF\n", "c.yaml: byte 13: "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tear_down(NULL);
        set_up(NULL);
        if (parse(cases[i].text) != CPL_ERR_INPUT) fail_msg("accepted: %s", cases[i].text);
        if (!strstr(cpl_last_error(), cases[i].part))
            fail_msg("\"%s\" does not say \"%s\"", cpl_last_error(), cases[i].part);
        for (size_t k = 0; i == 0 && k < CPL_N_SETTINGS; k++) assert_false(given[k]);
    }
}

/* Endless nesting is refused at once. */
TEST(deep_nesting)
{
    enum { DEEP = 200000 };
    cpl_text text = {0};
    for (const char *c = "[{-"; *c; c++) {
        cpl_text_clear(&text);
        for (int i = 0; i < DEEP; i++) cpl_text_printf(&text, *c == '-' ? "- " : "%c", *c);
        assert_int_equal(parse(text.bytes), CPL_ERR_INPUT);
        cpl_text_clear(&text);
        cpl_text_printf(&text, "data:\n  train: ");
        for (int i = 0; i < DEEP; i++) cpl_text_printf(&text, *c == '-' ? "- " : "%c", *c);
        assert_int_equal(parse(text.bytes), CPL_ERR_INPUT);
    }
    cpl_text_free(&text);
}

TEST(paths_are_taken_from_the_file)
{
    const char *text = "data:\n  train: [a.txt, /b.txt, ./c.txt, ../d]\n  tokenizer: t.json\n"
                       "  text_field: text\n";
    assert_ok(parse_as("some/folder/c.yaml", text));
    assert_string_equal(settings.data.train.at[0], "some/folder/a.txt");
    assert_string_equal(settings.data.train.at[1], "/b.txt");
    assert_string_equal(settings.data.train.at[2], "some/folder/c.txt");
    assert_string_equal(settings.data.train.at[3], "some/folder/../d");
    assert_string_equal(settings.data.tokenizer, "some/folder/t.json");
    assert_string_equal(settings.data.text_field, "text");
    assert_ok(parse(text));
    assert_string_equal(settings.data.train.at[0], "a.txt");
    assert_ok(
        cpl_settings_set(&settings, sections, CPL_N_SECTIONS, "data.tokenizer=t.json", given));
    assert_string_equal(settings.data.tokenizer, "t.json");
    assert_ok(cpl_yaml_absolute(&settings, sections, CPL_N_SECTIONS));
    char here[1024];
    assert_non_null(getcwd(here, sizeof here));
    assert_memory_equal(settings.data.train.at[0], here, strlen(here));
    assert_string_equal(settings.data.train.at[0] + strlen(here), "/a.txt");
    assert_string_equal(settings.data.train.at[1], "/b.txt");
    assert_ok(parse_as("/c.yaml", text));
    assert_string_equal(settings.data.tokenizer, "/t.json");
}

/* Random values ---------------------------------------------------------------------------------*/

static uint64_t turn;

static uint32_t random_number(void)
{
    cpl_rng_key key = {.seed = 3, .stream = CPL_STREAM_TEST};
    return cpl_rng_u32(&key, turn++);
}

static char *random_text(void)
{
    cpl_text text = {0};
    cpl_text_append(&text, "", 0);
    for (uint32_t k = random_number() % 10; k; k--) {
        static const uint32_t ranges[] = {0x80, 0x100, 0x3000, 0x110000};
        uint32_t c                     = random_number() % ranges[random_number() % 4];
        char bytes[4];
        if (c == 0 || (c >= 0xD800 && c < 0xE000)) c = ':';
        cpl_text_append(&text, bytes, (size_t)cpl_utf8_encode(c, bytes));
    }
    return text.bytes; /* a field takes a text of cpl_realloc */
}

static double random_within(const cpl_setting *setting)
{
    double u    = (random_number() + 0.5) / 4294967296.0;
    double high = isfinite(setting->high) ? setting->high : 1e30;
    return random_number() % 2 ? setting->low + u * (high - setting->low)
                               : fmax(setting->low, fmin(high, pow(10, 40 * u - 30)));
}

static void fill_strings(cpl_strings *strings)
{
    strings->count = random_number() % 4;
    strings->at    = cpl_alloc(4 * sizeof *strings->at);
    for (int64_t i = 0; i < strings->count; i++) strings->at[i] = random_text();
}

static void fill_weights(cpl_weight_list *weights, const cpl_setting *setting)
{
    weights->count  = random_number() % 4;
    weights->name   = cpl_alloc(4 * sizeof *weights->name);
    weights->weight = cpl_alloc(4 * sizeof *weights->weight);
    for (int64_t i = 0; i < weights->count; i++) {
        cpl_text name = {0};
        cpl_text_printf(&name, "%c %u: \"", (char)('a' + i), random_number());
        weights->name[i]   = name.bytes;
        weights->weight[i] = random_within(setting);
    }
}

static int count_choices(const char *choices)
{
    int count = 1;
    for (; *choices; choices++) count += *choices == '|';
    return count;
}

static void randomise(const cpl_setting *setting, void *field)
{
    cpl_setting_free(setting, field);
    if (cpl_setting_may_be_unset(setting) && random_number() % 4 == 0) {
        assert_ok(cpl_setting_parse(setting, field, "unset"));
        return;
    }
    switch (setting->kind) {
    case CPL_KIND_INT:
        *(int64_t *)field = (int64_t)ceil(random_within(setting));
        break;
    case CPL_KIND_FLOAT:
        *(double *)field = random_within(setting);
        break;
    case CPL_KIND_BOOL:
        *(int *)field = random_number() % 2;
        break;
    case CPL_KIND_CHOICE:
        *(int *)field = (int)(random_number() % (uint32_t)count_choices(setting->unit));
        break;
    case CPL_KIND_STRING:
        *(char **)field = random_text();
        break;
    case CPL_KIND_STRINGS:
        fill_strings(field);
        break;
    case CPL_KIND_WEIGHTS:
        fill_weights(field, setting);
        break;
    }
}

static void *field_of(cpl_settings *joint, size_t s, size_t i)
{
    return (char *)joint + sections[s].offset + sections[s].list[i].offset;
}

TEST(written_is_read_back)
{
    for (int round = 0; round < 300; round++) {
        cpl_text text = {0};
        cpl_settings back;
        for (size_t s = 0; s < CPL_N_SECTIONS; s++)
            for (size_t i = 0; i < sections[s].count; i++)
                randomise(&sections[s].list[i], field_of(&settings, s, i));
        cpl_yaml_write(&text, &settings, sections, CPL_N_SECTIONS, round % 2);
        assert_ok(cpl_text_status(&text));
        assert_ok(cpl_settings_init(&back, sections, CPL_N_SECTIONS));
        assert_ok(cpl_yaml_parse(&back, sections, CPL_N_SECTIONS, "written.yaml", text.bytes,
                                 text.length, given));
        for (size_t s = 0; s < CPL_N_SECTIONS; s++)
            for (size_t i = 0; i < sections[s].count; i++)
                if (!cpl_setting_equal(&sections[s].list[i], field_of(&settings, s, i),
                                       field_of(&back, s, i)))
                    fail_msg("%s.%s differs in\n%s", sections[s].name, sections[s].list[i].name,
                             text.bytes);
        for (size_t k = 0; k < CPL_N_SETTINGS; k++) assert_true(given[k]);
        cpl_settings_free(&back, sections, CPL_N_SECTIONS);
        cpl_text_free(&text);
    }
}

TEST(comments_are_within_the_line)
{
    cpl_text text = {0};
    cpl_yaml_write(&text, &settings, sections, CPL_N_SECTIONS, true);
    assert_ok(cpl_text_status(&text));
    assert_non_null(strstr(text.bytes, "    # Peak learning rate. (a number from 0 to 100; default "
                                       "4e-4)\n    lr: 0.0004\n"));
    for (const char *line = text.bytes; *line; line += strcspn(line, "\n") + 1)
        assert_true(strcspn(line, "\n") <= 100);
    cpl_text_free(&text);
}

/* Damages a file: bytes are changed, cut out or doubled. The result must be CPL_OK or a sentence
 * that begins with the name. */
TEST(damaged_files)
{
    cpl_text whole = {0};
    cpl_yaml_write(&whole, &settings, sections, CPL_N_SECTIONS, false);
    cpl_text_printf(&whole, "# [a, {b: \"c\"}] &x *x !t 'd' |- >\n");
    for (int round = 0; round < 3000; round++) {
        static const char bytes[] = "\n\t :-[]{}&*!|>'\"#%@`,?~\\\xFF\xC3\x00"
                                    "019eE.+ax";
        cpl_text text             = {0};
        size_t from = random_number() % whole.length, cut = random_number() % 40;
        if (cut > whole.length - from) cut = whole.length - from;
        cpl_text_append(&text, whole.bytes, from);
        if (round % 3 == 0) cpl_text_append(&text, whole.bytes + from, cut);
        cpl_text_append(&text, whole.bytes + from + (round % 3 == 1 ? cut : 0),
                        whole.length - from - (round % 3 == 1 ? cut : 0));
        for (uint32_t k = random_number() % 4; k && text.length; k--)
            text.bytes[random_number() % text.length] = bytes[random_number() % (sizeof bytes - 1)];
        cpl_status status = cpl_yaml_parse(&settings, sections, CPL_N_SECTIONS, "damaged.yaml",
                                           text.bytes, text.length, NULL);
        if (status != CPL_OK) {
            assert_int_equal(status, CPL_ERR_INPUT);
            assert_memory_equal(cpl_last_error(), "damaged.yaml:", 13);
        }
        cpl_text_free(&text);
    }
    cpl_text_free(&whole);
}

TEST(no_memory)
{
    cpl_status status = CPL_ERR_MEMORY;
    int n             = 1;
    for (; status == CPL_ERR_MEMORY; n++) {
        cpl_alloc_fail_at(n);
        status = parse_as("folder/c.yaml", "data:\n  train: [a, b]\n  weights: {a: 1, b: 2}\n"
                                           "  tokenizer: t.json\ntrain:\n  lr: 1\n");
        cpl_alloc_fail_at(0);
    }
    assert_ok(status);
    assert_true(n > 10);
    cpl_text text = {.failed = true};
    cpl_yaml_write(&text, &settings, sections, CPL_N_SECTIONS, true);
    assert_int_equal(cpl_text_status(&text), CPL_ERR_MEMORY);
    cpl_text_free(&text);
}

TEST(files)
{
    char path[256];
    const char *folder = scratch_folder();
    snprintf(path, sizeof path, "%s/none.yaml", folder);
    assert_fails(CPL_ERR_IO, path, cpl_yaml_read(&settings, sections, CPL_N_SECTIONS, path, given));
    assert_fails(CPL_ERR_INPUT, folder,
                 cpl_yaml_read(&settings, sections, CPL_N_SECTIONS, folder, given));
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("train:\n  steps: 12\ndata:\n  tokenizer: t.json\n", file);
    fclose(file);
    assert_ok(cpl_yaml_read(&settings, sections, CPL_N_SECTIONS, path, given));
    assert_int_equal(settings.train.steps, 12);
    assert_memory_equal(settings.data.tokenizer, folder, strlen(folder));
    assert_int_equal(truncate(path, CPL_YAML_MOST_BYTES + 1), 0);
    assert_fails(CPL_ERR_INPUT, path,
                 cpl_yaml_read(&settings, sections, CPL_N_SECTIONS, path, given));
}
