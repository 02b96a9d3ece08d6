/* formats.c - names and block sizes of the stored formats, from the one list in formats.h. */
#include "tensor/formats.h"

static const struct {
    const char *name;
    int64_t numbers, bytes;
} formats[] = {
#define ROW(name, numbers, bytes, what) {#name, numbers, bytes},
    CPL_FORMATS(ROW)
#undef ROW
        {"other", 1, 0},
};

/* Returns the row of the format. An unknown value gives the row of OTHER. */
static int row_of(cpl_format format)
{
    return (unsigned)format < CPL_N_FORMATS ? (int)format : CPL_N_FORMATS;
}

const char *cpl_format_name(cpl_format format)
{
    return formats[row_of(format)].name;
}

int64_t cpl_format_block_numbers(cpl_format format)
{
    return formats[row_of(format)].numbers;
}

int64_t cpl_format_block_bytes(cpl_format format)
{
    return formats[row_of(format)].bytes;
}
