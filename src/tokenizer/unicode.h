/* unicode.h - tables of the properties of code points that tokenizers need.
 *
 * Room:  tokenizer. Other rooms do not include it. */
#ifndef CPL_TOKENIZER_UNICODE_H
#define CPL_TOKENIZER_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

enum {
    CPL_CLASS_OTHER  = 0, /* punctuation, symbols, combining marks, controls, unassigned */
    CPL_CLASS_LETTER = 1, /* general category L* */
    CPL_CLASS_NUMBER = 2, /* general category N* */
    CPL_CLASS_SPACE  = 3, /* White_Space */
    CPL_CLASS_MASK   = 3,
    CPL_NFC_CARE     = 4, /* NFC may change or move the point, or join it to the previous point */
};

/* A two-stage table with pages of 256 code points. tools/make_unicode_classes.c makes it from
 * unicode-classes.tsv during the build. */
extern const uint8_t cpl_unicode_page[4352];
extern const uint8_t cpl_unicode_table[][256];

/* Returns the class of `point`, at most 10FFFF, plus CPL_NFC_CARE if it applies. */
static inline uint8_t cpl_unicode_traits(uint32_t point)
{
    return cpl_unicode_table[cpl_unicode_page[point >> 8]][point & 255];
}

/* Returns the code point at `s` in well-formed UTF-8. Sets its length in bytes. */
static inline uint32_t cpl_unicode_next(const unsigned char *s, int *length)
{
    *length = s[0] < 0x80 ? 1 : s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : 4;
    return cpl_utf8_decode(s, *length);
}

/* Returns the length of the longest prefix of `s` that is ASCII. */
size_t cpl_unicode_ascii(const char *s, size_t length);

/* Returns whether the whole text is well-formed UTF-8. */
bool cpl_unicode_is_utf8(const char *text, size_t length);

/* Memory of the normalisation. All zero is valid. */
typedef struct cpl_nfc {
    uint32_t *points; /* code points of one segment, decomposed */
    uint8_t *classes; /* their combining classes */
    size_t count, capacity;
} cpl_nfc;
void cpl_nfc_free(cpl_nfc *nfc);

/* Returns whether no code point has CPL_NFC_CARE. The text is in NFC then. A text for which this
 * returns false may be in NFC too. */
bool cpl_nfc_is_plain(const char *text, size_t length);

/* Appends the NFC of well-formed UTF-8, with the marks listed in nfc.c in class 0. */
CPL_NODISCARD cpl_status cpl_nfc_append(cpl_nfc *nfc, cpl_text *out, const char *text,
                                        size_t length);

#endif /* CPL_TOKENIZER_UNICODE_H */
