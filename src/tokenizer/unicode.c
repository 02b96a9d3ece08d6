/* unicode.c - see unicode.h */
#include "tokenizer/unicode.h"

#include <string.h>

size_t cpl_unicode_ascii(const char *s, size_t length)
{
    size_t at = 0;
    for (; at + 32 <= length; at += 32) {
        uint64_t word[4];
        memcpy(word, s + at, sizeof word);
        if ((word[0] | word[1] | word[2] | word[3]) & 0x8080808080808080u) break;
    }
    while (at < length && (unsigned char)s[at] < 0x80) at++;
    return at;
}

bool cpl_unicode_is_utf8(const char *text, size_t length)
{
    for (size_t at = 0; at < length;) {
        at += cpl_unicode_ascii(text + at, length - at);
        for (int n; at < length && (unsigned char)text[at] >= 0x80; at += (size_t)n) {
            n = cpl_utf8_length((const unsigned char *)text + at, length - at);
            if (n == 0) return false;
        }
    }
    return true;
}
