/* damage.c - `damage FILE FOLDER FIRST COUNT` writes damaged copies of a file to FOLDER/FIRST
 * and the COUNT - 1 numbers after it, damaged as in the fuzzing tests. Copy n of a file never
 * changes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "fuzz.h"

static bool read_whole(cpl_text *text, const char *path)
{
    char bytes[4096];
    FILE *in = fopen(path, "rb");
    if (!in) return false;
    for (size_t got; (got = fread(bytes, 1, sizeof bytes, in)) > 0;)
        cpl_text_append(text, bytes, got);
    fclose(in);
    return !text->failed;
}

int main(int count, char **words)
{
    cpl_text whole = {0}, copy = {0}, path = {0};
    if (count != 5 || !read_whole(&whole, words[1])) return 2;
    fuzz f = fuzz_start(whole.length, 0);
    for (long n = atol(words[3]), end = n + atol(words[4]); n < end; n++) {
        f.round = n;
        f.draw  = (uint64_t)n << 20;
        fuzz_damage(&f, &copy, &whole);
        cpl_text_clear(&path);
        cpl_text_printf(&path, "%s/%ld", words[2], n);
        fuzz_write(path.bytes, &copy);
    }
    cpl_text_free(&whole);
    cpl_text_free(&copy);
    cpl_text_free(&path);
    return 0;
}
