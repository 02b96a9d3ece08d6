/* markup.c - see markup.h */
#include "report/markup.h"

#include <stdio.h>
#include <string.h>

static const char replacement[] = "\xEF\xBF\xBD"; /* U+FFFD */

/* Returns the length of the character at `s`. Sets `good` to whether XML 1.0 allows it. */
static int next_character(bool *good, const unsigned char *s, size_t left)
{
    int length = cpl_utf8_length(s, left);
    *good      = length > 0;
    if (!length) return cpl_utf8_bad_length(s, left);
    uint32_t point = cpl_utf8_decode(s, length);
    *good          = (point >= 0x20 && point != 0x7F && point != 0xFFFE && point != 0xFFFF) ||
            point == '\t' || point == '\n';
    return length;
}

static void escaped(cpl_text *out, const unsigned char *s, int length)
{
    switch (*s) {
    case '&':
        cpl_text_append(out, "&amp;", 5);
        break;
    case '<':
        cpl_text_append(out, "&lt;", 4);
        break;
    case '>':
        cpl_text_append(out, "&gt;", 4);
        break;
    case '"':
        cpl_text_append(out, "&quot;", 6);
        break;
    case '\'':
        cpl_text_append(out, "&#39;", 5);
        break;
    default:
        cpl_text_append(out, s, (size_t)length);
    }
}

void cpl_markup_text(cpl_text *out, const char *string)
{
    const unsigned char *s = (const unsigned char *)string;
    size_t left            = strlen(string);
    while (left) {
        bool good;
        int length = next_character(&good, s, left);
        if (good)
            escaped(out, s, length);
        else
            cpl_text_append(out, replacement, 3);
        s += length;
        left -= (size_t)length;
    }
}

void cpl_markup_element(cpl_text *out, const char *tag, const char *string)
{
    cpl_text_printf(out, "<%s>", tag);
    cpl_markup_text(out, string);
    cpl_text_printf(out, "</%s>\n", tag);
}

int64_t cpl_markup_length(const char *string)
{
    const unsigned char *s = (const unsigned char *)string;
    size_t left            = strlen(string);
    int64_t count          = 0;
    for (bool good; left; count++) {
        int length = next_character(&good, s, left);
        s += length;
        left -= (size_t)length;
    }
    return count;
}

const char *cpl_markup_count(char out[32], int64_t number)
{
    char plain[24];
    int length = snprintf(plain, sizeof plain, "%lld", (long long)number), at = 0;
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0 && plain[i - 1] != '-') out[at++] = ',';
        out[at++] = plain[i];
    }
    out[at] = '\0';
    return out;
}

void cpl_markup_base64(cpl_text *out, const unsigned char *bytes, size_t length)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < length; i += 3) {
        size_t left   = length - i;
        uint32_t word = (uint32_t)bytes[i] << 16;
        if (left > 1) word |= (uint32_t)bytes[i + 1] << 8;
        if (left > 2) word |= bytes[i + 2];
        char four[4] = {digits[word >> 18], digits[word >> 12 & 63], digits[word >> 6 & 63],
                        digits[word & 63]};
        if (left < 3) four[3] = '=';
        if (left < 2) four[2] = '=';
        cpl_text_append(out, four, 4);
    }
}
