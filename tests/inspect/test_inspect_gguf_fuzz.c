/* test_inspect_gguf_fuzz.c - damaged GGUF files through all of inspection: words, numbers behind
 * the names of tensors, and any bytes. */
#include "inspect/inspect_fuzz.h"

/* Numbers behind a tensor's name in a GGUF file: how many axes, each, the type, the place. */
static void change_gguf_entry(fuzz *f, cpl_text *file)
{
    static const uint64_t hard[] = {0, 1, 2, 3, 4, 5, 6, 8, 12, 14, 30, 32, 256, 512, 1ull << 40};
    size_t count = 0, chosen = 0;
    for (size_t i = 0; i + 64 < file->length; i++)
        if (memcmp(file->bytes + i, "blk.", 4) == 0 && fuzz_below(f, ++count) == 0) chosen = i;
    if (!count) return;
    const size_t at = chosen + fuzz_below(f, 64);
    uint64_t number = hard[fuzz_below(f, sizeof hard / sizeof *hard)];
    if (fuzz_below(f, 2)) {
        memcpy(file->bytes + at - at % 4, &number, 4);
    } else {
        while (chosen + 64 < file->length && (file->bytes[chosen] & 0xe0)) chosen++;
        memcpy(file->bytes + chosen + 4 * fuzz_below(f, 9), &number, 4);
    }
}

/* One word becomes another of its length. */
static void change_gguf_word(fuzz *f, cpl_text *file)
{
    static const char *const words[][2] = {
        {"ffn_gate_exps", "ffn_down_exps"}, {"blk.0.", "blk.1."}, {"blk.1.", "blk.3."},
        {"ffn_gate_inp", "ffn_gate_inq"},   {"llama", "olmoe"},   {"deepseek2", "qwen3moe."},
        {"expert_count", "expert_cuont"},   {"blk.2.", "blk.1."}, {"_exps", "_shxp"}};
    const char *const *pair = words[fuzz_below(f, sizeof words / sizeof *words)];
    const size_t length     = strlen(pair[0]);
    for (size_t i = 0; i + length < file->length; i++)
        if (memcmp(file->bytes + i, pair[0], length) == 0 && fuzz_below(f, 3))
            memcpy(file->bytes + i, pair[1], length);
}

static void write_gguf(fuzz *f, const cpl_text *whole, const char *path)
{
    cpl_text file = {0};
    cpl_text_append(&file, whole->bytes, whole->length);
    for (size_t n = 1 + fuzz_below(f, 2); n; n--) switch (fuzz_below(f, 4)) {
        case 0:
            fuzz_once(f, &file);
            break;
        case 1:
            change_gguf_word(f, &file);
            break;
        default:
            change_gguf_entry(f, &file);
            break;
        }
    fuzz_write(path, &file);
    cpl_text_free(&file);
}

TEST(damaged_gguf)
{
    static const char *const names[] = {"gguf/moe/deepseek2.gguf", "gguf/moe/llama.gguf"};
    outcomes all                     = {0};
    cpl_text whole[2]                = {{0}, {0}};
    const char *folder               = scratch_folder();
    print_message("the damaged files are in %s\n", folder);
    for (int i = 0; i < 2; i++) assert_ok(cpl_file_read(&whole[i], golden_path(names[i]), 1 << 20));
    for (fuzz f = fuzz_start(72, ROUNDS / 4); fuzz_next(&f);) {
        note_round(folder, f.round);
        write_gguf(&f, &whole[f.round % 2], in(folder, "model.gguf"));
        inspect_twice(&f, in(folder, "model.gguf"), &all);
    }
    tell("GGUF", &all);
    for (int i = 0; i < 2; i++) cpl_text_free(&whole[i]);
    cpl_folder_remove(folder);
}
