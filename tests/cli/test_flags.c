/* test_flags.c - reading the words after a verb, with a verb made for the test. */
#include "cli/arguments/flags.h"

#include "base/arena.h"
#include "check.h"
#include "cli/arguments/configure.h"

static cpl_status do_nothing(const cpl_arguments *args)
{
    (void)args;
    return CPL_OK;
}

static const cpl_flag flags[] = {
    {.name = "--out", .kind = CPL_FLAG_FOLDER, .value_name = "RUN", .help = "A folder."},
    {.name = "--dry-run", .kind = CPL_FLAG_SWITCH, .help = "A switch."},
    LIST(.name = "--tokens", .kind = CPL_FLAG_INT, .value_name = "N", .help = "A number.",
         .default_value = "64", .low = 1, .high = 1e6, .unit = "tokens"),
    LIST(.name = "--top-p", .kind = CPL_FLAG_NUMBER, .value_name = "P", .help = "A number.",
         .default_value = "0.9", .low = 0, .high = 1),
    LIST(.name = "--form", .kind = CPL_FLAG_CHOICE, .value_name = "WORD", .help = "A word.",
         .default_value = "text", .unit = "text|json"),
    CPL_FLAG_ROW_THREADS,
    CPL_FLAG_ROW_SET,
};

static const cpl_verb verb =
    LIST(.name = "try", .summary = "try flags", .usage = "WORD [WORD]", .least = 1, .most = 2,
         .flags = flags, .n_flags = sizeof flags / sizeof *flags, .settings = "erc train.seed",
         .run = do_nothing);

static cpl_arguments args;

/* Reads the words of a line, with blanks between them. */
static cpl_status read_line(const char *line)
{
    static char bytes[256]; /* `args` borrows the words */
    char *words[16];
    int count = 0;
    snprintf(bytes, sizeof bytes, "%s", line);
    for (char *word = strtok(bytes, " "); word; word = strtok(NULL, " ")) words[count++] = word;
    cpl_arguments_free(&args);
    return cpl_arguments_read(&args, &verb, count, words);
}

static void write_file(char path[128], const char *name, const char *text)
{
    snprintf(path, 128, "%s/%s", scratch_folder(), name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static int tear_down(void **state)
{
    (void)state;
    cpl_arguments_free(&args);
    return 0;
}
TESTS_DO(after_each, tear_down);

TEST(defaults)
{
    assert_ok(read_line("word"));
    assert_int_equal(args.n_words, 1);
    assert_null(cpl_flag_text(&args, "--out"));
    assert_false(cpl_flag_given(&args, "--dry-run"));
    assert_int_equal(cpl_flag_int(&args, "--tokens"), 64);
    assert_true(cpl_flag_number(&args, "--top-p") == 0.9);
    assert_int_equal(cpl_flag_int(&args, "--form"), 0);
    assert_false(cpl_flag_given(&args, "--tokens"));
}

TEST(every_form)
{
    assert_ok(read_line("--out a/b first --tokens=1e3 --dry-run --top-p .5 --form=json "
                        "--set erc.alpha=1 --set=erc.alpha=2 -- --out"));
    assert_string_equal(cpl_flag_text(&args, "--out"), "a/b");
    assert_true(cpl_flag_known(&args, "--out") && !cpl_flag_known(&args, "--otu"));
    assert_int_equal(cpl_flag_int(&args, "--tokens"), 1000);
    assert_int_equal(cpl_flag_int_or(&args, "--tokens", 7), 1000);
    assert_int_equal(cpl_flag_int_or(&args, "--threads", 7), 7);
    assert_true(cpl_flag_given(&args, "--dry-run"));
    assert_true(cpl_flag_number(&args, "--top-p") == 0.5);
    assert_int_equal(cpl_flag_int(&args, "--form"), 1);
    assert_int_equal(args.n_sets, 2);
    assert_string_equal(args.sets[1], "erc.alpha=2");
    assert_int_equal(args.n_words, 2);
    assert_string_equal(args.words[0], "first");
    assert_string_equal(args.words[1], "--out");
    assert_ok(read_line("- --out="));
    assert_string_equal(args.words[0], "-");
    assert_string_equal(cpl_flag_text(&args, "--out"), "");
    assert_ok(read_line("--out \"null\" x")); /* a text is taken literally */
    assert_string_equal(cpl_flag_text(&args, "--out"), "\"null\"");
}

/* Wrong lines, each with a part of the sentence. */
typedef struct wrong_line {
    const char *line, *sentence;
} wrong_line;

TEST(wrong_use)
{
    static const wrong_line wrong[] = {
        {"x --otu=3", "try has no flag --otu; did you mean --out?"},
        {"x --entirely-else", "try --help lists them"},
        {"x -o", "has no flag -o"},
        {"x --out", "--out needs a value: --out RUN"},
        {"x --out --dry-run", "--out needs a value"},
        {"x --out=a --out=b", "--out is given twice"},
        {"x --dry-run=1", "--dry-run takes no value"},
        {"x --tokens 0", "--tokens is 0, but must be a whole number of tokens from 1 to 1e6"},
        {"x --top-p -1", "--top-p is -1, but must be a number from 0 to 1"},
        {"x --form xml", "--form is xml, but must be text or json"},
        {"x --threads=4097", "whole number of threads from 0 to 4096"},
        {"", "try needs more arguments: couplet try WORD [WORD]"},
        {"a b c", "try does not take the argument c"},
        {"x tokens=3", "did you mean --tokens 3?"},
        {"x threads: 3", "did you mean --threads 3?"},
        {"x dry-run=1", "did you mean --dry-run?"},
        {"x alpha=3", "did you mean --set erc.alpha=3?"},
        {"x erc.alhpa=3", "did you mean --set erc.alpha=3?"},
        {"x ecr.alpha=3", "did you mean --set erc.alpha=3?"},
        {"x --alpha=3", "did you mean --set erc.alpha=3?"},
        {"x erc.alpha: 3", "did you mean --set erc.alpha=3?"},
        {"seed=3", "did you mean --set train.seed=3?"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_fails(CPL_ERR_USAGE, wrong[i].sentence, read_line(wrong[i].line));
    assert_ok(read_line("x weight_decay=3")); /* a setting of other verbs */
    assert_ok(read_line("x train.lr=3"));
}

TEST(required_flag)
{
    const cpl_flag one[] = {
        {.name = "--in", .kind = CPL_FLAG_FILE, .value_name = "FILE", .required = true}};
    cpl_verb strict    = {.name = "strict", .usage = "", .flags = one, .n_flags = 1};
    char *words[]      = {"--in", "f"};
    cpl_arguments read = {0};
    assert_fails(CPL_ERR_USAGE, "strict needs --in FILE",
                 cpl_arguments_read(&read, &strict, 0, words));
    assert_ok(cpl_arguments_read(&read, &strict, 2, words));
    cpl_arguments_free(&read);
}

TEST(help_wins)
{
    assert_ok(read_line("--unknown --help"));
    assert_true(args.help);
    assert_ok(read_line("x -h"));
    assert_true(args.help);
    assert_null(args.topic);
    assert_ok(read_line("x --help erc"));
    assert_string_equal(args.topic, "erc");
    assert_ok(read_line("--help --dry-run"));
    assert_null(args.topic);
    assert_ok(read_line("x -- --help"));
    assert_false(args.help);
}

TEST(excluding_flags)
{
    assert_ok(read_line("x --out=a --dry-run"));
    assert_fails(CPL_ERR_USAGE, "--out and --dry-run cannot be given together",
                 cpl_flags_exclude(&args, "--out", "--dry-run"));
    assert_ok(cpl_flags_exclude(&args, "--out", "--tokens"));
}

TEST(configuring)
{
    static const wrong_line wrong[] = {
        {"x --set data.seed=1", "try does not use --set data.seed=1"},
        {"x --set train.lr=1", "try --help all lists"}, /* a flag of the section, not of the verb */
        {"x --set erc.alhpa=1", "did you mean erc.alpha?"},
        {"x --threads=3 --set compute.threads=2",
         "--threads and --set compute.threads=2 give different values"},
    };
    cpl_configuration c;
    char path[128];
    write_file(path, "c.yaml", "erc:\n  alpha: 0.5\n  weight: 2\n");
    assert_ok(read_line("x --set erc.alpha=0.25 --set=train.seed=1"));
    assert_ok(cpl_configure(&c, path, &args));
    assert_true(c.settings.losses.erc.alpha == 0.25 && c.settings.losses.erc.weight == 2);
    assert_true(cpl_configuration_gives(&c, "erc.weight"));
    assert_true(cpl_configuration_gives(&c, "train.seed"));
    assert_false(cpl_configuration_gives(&c, "train.lr"));
    cpl_configuration_free(&c);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_ok(read_line(wrong[i].line));
        assert_fails(CPL_ERR_USAGE, wrong[i].sentence, cpl_configure(&c, NULL, &args));
    }
    assert_ok(read_line("x"));
    assert_fails(CPL_ERR_IO, "none.yaml", cpl_configure(&c, "none.yaml", &args));
}

/* --threads is another name of compute.threads, and takes precedence over a file. */
TEST(flags_as_settings)
{
    static const struct {
        const char *line;
        int64_t threads;
    } cases[] = {{"x --threads 2", 2}, {"x", 7}, {"x --threads=3 --set compute.threads=3", 3}};
    cpl_configuration c;
    char path[128];
    write_file(path, "threads.yaml", "compute:\n  threads: 7\n");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_ok(read_line(cases[i].line));
        assert_ok(cpl_configure(&c, path, &args));
        assert_int_equal(c.settings.compute.threads, cases[i].threads);
        assert_true(cpl_configuration_gives(&c, "compute.threads"));
        cpl_configuration_free(&c);
    }
}

/* A text with quotes and colons is taken literally, and a switch sets the value in its row. */
TEST(documents_flags)
{
    cpl_configuration c;
    cpl_arguments read;
    char *words[] = {"in", "--vocab-size=300", "--out=T", "--separator", "\"a: b\"", "--no-strip"};
    assert_ok(cpl_arguments_read(&read, &cpl_verb_tokenize_train, 6, words));
    assert_ok(cpl_configure(&c, NULL, &read));
    assert_string_equal(c.settings.data.separator, "\"a: b\"");
    assert_false(c.settings.data.strip);
    cpl_configuration_free(&c);
    cpl_arguments_free(&read);
}

/* Flags and settings that a form of a verb does not use are refused. */
TEST(only_some)
{
    const char *const some[] = {"--out", "erc.alpha"};
    assert_ok(read_line("x --out=a --set erc.alpha=1"));
    assert_ok(cpl_flags_only(&args, "--form", some, 2));
    assert_ok(read_line("x --out=a --dry-run"));
    assert_fails(CPL_ERR_USAGE, "try --form does not take --dry-run",
                 cpl_flags_only(&args, "--form", some, 2));
    assert_ok(read_line("x --set erc.weight=1"));
    assert_fails(CPL_ERR_USAGE, "try --form does not use --set erc.weight=1",
                 cpl_flags_only(&args, "--form", some, 2));
}

/* The words of a verb's list of settings name sections and settings. */
static void check_words(const cpl_verb *v, const char *words, const cpl_section *sections)
{
    char word[CPL_SETTING_NAME_BYTES];
    for (const char *at = words; at && *at; at += strspn(at, " ")) {
        const int length = (int)strcspn(at, " ");
        bool known       = false;
        const int minus  = *at == '-'; /* a minus before a word that is removed */
        snprintf(word, sizeof word, "%.*s", length - minus, at + minus);
        for (size_t s = 0; s < CPL_N_SECTIONS; s++) known |= strcmp(sections[s].name, word) == 0;
        known |= cpl_settings_find(NULL, sections, CPL_N_SECTIONS, word, NULL) != NULL;
        if (!known && strcmp(words, "*") != 0) fail_msg("%s names %s", v->name, word);
        at += length;
    }
}

/* Checks that a flag that stands for a setting has its bounds, its words and its default. */
static void check_twin(const cpl_verb *v, const cpl_flag *flag, const cpl_section *sections)
{
    char name[CPL_SETTING_NAME_BYTES];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(flag->setting, "="), flag->setting);
    const cpl_setting *s = cpl_settings_find(NULL, sections, CPL_N_SECTIONS, name, NULL);
    if (!s) fail_msg("%s %s is no setting %s", v->name, flag->name, name);
    if (flag->kind == CPL_FLAG_SWITCH) return;
    if (strcmp(s->default_value, "unset") == 0)
        assert_null(flag->default_value);
    else
        assert_string_equal(flag->default_value, s->default_value);
    const cpl_setting as_flag = cpl_flag_as_setting(flag);
    if (flag->kind == CPL_FLAG_TEXT) return;
    assert_int_equal(as_flag.kind, s->kind);
    assert_true(as_flag.low == s->low && as_flag.high == s->high);
    assert_string_equal(as_flag.unit, s->unit);
}

TEST(tables)
{
    cpl_section sections[CPL_N_SECTIONS];
    cpl_settings_sections(sections);
    for (const cpl_verb *const *v = cpl_verbs; *v; v++) {
        check_words(*v, (*v)->settings, sections);
        check_words(*v, (*v)->first, sections);
        for (size_t f = 0; f < (*v)->n_flags; f++)
            if ((*v)->flags[f].setting) check_twin(*v, &(*v)->flags[f], sections);
    }
}

TEST(no_memory)
{
    cpl_configuration c;
    cpl_status status = CPL_ERR_MEMORY;
    for (int n = 1; status == CPL_ERR_MEMORY; n++) {
        cpl_alloc_fail_at(n);
        status = read_line("x --set erc.alpha=1 --form=text");
        if (status == CPL_OK) status = cpl_configure(&c, NULL, &args);
        cpl_alloc_fail_at(0);
    }
    assert_ok(status);
    cpl_configuration_free(&c);
}
