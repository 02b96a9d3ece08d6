/* make_unicode_classes.c - writes the two-stage table of every code point's traits, for the build.
 *
 *     make_unicode_classes src/tokenizer/unicode-classes.tsv > unicode_classes.c
 *
 * The classes come from the file and are exact. CPL_NFC_CARE is only a warning, from utf8proc,
 * which normalises at run time too (tokenizer/nfc.c). It is set for every code point that NFC may
 * change, reorder or join to the code point before it. An unneeded mark only costs time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "tokenizer/unicode.h"

enum { POINTS = 0x110000, PAGE = 256, PAGES = POINTS / PAGE, DECOMPOSED_MAX = 18 };

static uint8_t traits[POINTS];

static int fail(const char *path)
{
    fprintf(stderr, "make_unicode_classes: cannot read %s\n", path);
    return 1;
}

/* Reads the file. A line has the first and last code point in hexadecimal, then L, N or S. */
static bool read_classes(const char *path)
{
    char line[256], name;
    unsigned first, last;
    FILE *file = fopen(path, "r");
    if (!file) return false;
    bool good = true;
    while (good && fgets(line, sizeof line, file)) {
        if (line[0] == '#') continue;
        good = sscanf(line, "%x %x %c", &first, &last, &name) == 3 && last < POINTS &&
               strchr("LNS", name);
        for (unsigned at = first; good && at <= last; at++)
            traits[at] |= name == 'L'   ? CPL_CLASS_LETTER
                          : name == 'N' ? CPL_CLASS_NUMBER
                                        : CPL_CLASS_SPACE;
    }
    fclose(file);
    return good;
}

static bool changes(utf8proc_int32_t point)
{
    utf8proc_uint8_t text[5] = {0};
    utf8proc_encode_char(point, text);
    utf8proc_uint8_t *normal = utf8proc_NFC(text);
    bool differs             = !normal || strcmp((char *)text, (char *)normal) != 0;
    free(normal);
    return differs;
}

static void mark_care(utf8proc_int32_t point)
{
    const utf8proc_property_t *is = utf8proc_get_property(point);
    if (is->category == UTF8PROC_CATEGORY_CS) return;
    if (is->category == UTF8PROC_CATEGORY_CN || is->combining_class || (point && changes(point)))
        traits[point] |= CPL_NFC_CARE;
    utf8proc_int32_t parts[DECOMPOSED_MAX];
    utf8proc_ssize_t n =
        utf8proc_decompose_char(point, parts, DECOMPOSED_MAX, UTF8PROC_DECOMPOSE, NULL);
    for (utf8proc_ssize_t i = 1; i < n; i++) traits[parts[i]] |= CPL_NFC_CARE;
}

/* Writes the numbers of the pages, then each page that differs from all earlier pages. */
static void write_tables(void)
{
    static int first_with[PAGES]; /* page -> the first page of equal content */
    int numbers[PAGES], n = 0;
    printf("#include \"tokenizer/unicode.h\"\nconst uint8_t cpl_unicode_page[%d] = {", PAGES);
    for (int page = 0; page < PAGES; page++) {
        int same = 0;
        while (memcmp(traits + same * PAGE, traits + page * PAGE, PAGE) != 0) same++;
        numbers[page]    = same == page ? n++ : numbers[same];
        first_with[page] = same;
        printf("%d,", numbers[page]);
    }
    printf("};\nconst uint8_t cpl_unicode_table[][%d] = {", PAGE);
    for (int page = 0; page < PAGES; page++) {
        if (first_with[page] != page) continue;
        printf("\n{");
        for (int i = 0; i < PAGE; i++) printf("%d,", traits[page * PAGE + i]);
        printf("},");
    }
    printf("};\n");
}

int main(int count, char **words)
{
    if (count != 2 || !read_classes(words[1])) return fail(count == 2 ? words[1] : "its argument");
    for (utf8proc_int32_t point = 0; point < POINTS; point++) mark_care(point);
    write_tables();
    return fflush(stdout) != 0;
}
