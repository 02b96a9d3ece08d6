/* alphabet.c - the characters that stand for bytes in tokenizer files.
 *
 * The bytes 21-7E, A1-AC and AE-FF stand as the code point of the same value; the other 68, in
 * increasing order, as U+0100, U+0101, ... (a space is U+0120, a line end U+010A). */
#include "tokenizer/internal.h"

static bool stands_for_itself(int b)
{
    return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
}

void cpl_alphabet_points(uint32_t point_of[256])
{
    uint32_t next = 0x100;
    for (int b = 0; b < 256; b++) point_of[b] = stands_for_itself(b) ? (uint32_t)b : next++;
}

void cpl_alphabet_bytes(int16_t byte_of[CPL_ALPHABET_POINTS])
{
    uint32_t point_of[256];
    cpl_alphabet_points(point_of);
    for (int i = 0; i < CPL_ALPHABET_POINTS; i++) byte_of[i] = -1;
    for (int b = 0; b < 256; b++) byte_of[point_of[b]] = (int16_t)b;
}
