/* yaml_write.c - writing a configuration; see yaml.h */
#include <string.h>

#include "settings/yaml.h"

enum { LINE_BYTES = 100 };

/* Appends `sentence` as comment lines of at most LINE_BYTES, broken between words. */
static void write_comment(cpl_text *out, const char *sentence)
{
    static const char head[] = "    #";
    size_t column            = sizeof head - 1;
    cpl_text_append(out, head, column);
    while (*sentence) {
        size_t word = strcspn(sentence, " ");
        if (column + 1 + word > LINE_BYTES && column > sizeof head) {
            column = sizeof head - 1;
            cpl_text_char(out, '\n');
            cpl_text_append(out, head, column);
        }
        cpl_text_char(out, ' ');
        cpl_text_append(out, sentence, word);
        column += 1 + word;
        sentence += word + strspn(sentence + word, " ");
    }
    cpl_text_char(out, '\n');
}

static void write_setting(cpl_text *out, const cpl_setting *setting, const void *field,
                          bool commented)
{
    cpl_text sentence = {0};
    if (commented) {
        cpl_setting_describe(&sentence, setting);
        write_comment(out, sentence.bytes ? sentence.bytes : "");
        out->failed |= sentence.failed;
        cpl_text_free(&sentence);
    }
    cpl_text_printf(out, "    %s: ", setting->name);
    cpl_setting_print(out, setting, field);
    cpl_text_char(out, '\n');
}

void cpl_yaml_write(cpl_text *out, const void *joint, const cpl_section *sections, size_t count,
                    bool commented)
{
    for (const cpl_section *s = sections; s < sections + count; s++) {
        cpl_text_printf(out, "%s%s:\n", s == sections ? "" : "\n", s->name);
        for (size_t i = 0; i < s->count; i++)
            write_setting(out, &s->list[i], (const char *)joint + s->offset + s->list[i].offset,
                          commented);
    }
}
