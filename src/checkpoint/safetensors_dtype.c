/* safetensors_dtype.c - names and sizes of the dtypes, and shapes, of safetensors.h */
#include <stdio.h>
#include <string.h>

#include "checkpoint/safetensors.h"

static const struct {
    const char *name;
    int bits;
} dtypes[CPL_SAFETENSORS_N_DTYPES] = {
    [CPL_SAFETENSORS_U64]         = {"U64", 64},
    [CPL_SAFETENSORS_I64]         = {"I64", 64},
    [CPL_SAFETENSORS_F64]         = {"F64", 64},
    [CPL_SAFETENSORS_C64]         = {"C64", 64},
    [CPL_SAFETENSORS_F32]         = {"F32", 32},
    [CPL_SAFETENSORS_U32]         = {"U32", 32},
    [CPL_SAFETENSORS_I32]         = {"I32", 32},
    [CPL_SAFETENSORS_BF16]        = {"BF16", 16},
    [CPL_SAFETENSORS_F16]         = {"F16", 16},
    [CPL_SAFETENSORS_U16]         = {"U16", 16},
    [CPL_SAFETENSORS_I16]         = {"I16", 16},
    [CPL_SAFETENSORS_F8_E5M2FNUZ] = {"F8_E5M2FNUZ", 8},
    [CPL_SAFETENSORS_F8_E4M3FNUZ] = {"F8_E4M3FNUZ", 8},
    [CPL_SAFETENSORS_F8_E8M0]     = {"F8_E8M0", 8},
    [CPL_SAFETENSORS_F8_E4M3]     = {"F8_E4M3", 8},
    [CPL_SAFETENSORS_F8_E5M2]     = {"F8_E5M2", 8},
    [CPL_SAFETENSORS_I8]          = {"I8", 8},
    [CPL_SAFETENSORS_U8]          = {"U8", 8},
    [CPL_SAFETENSORS_F6_E3M2]     = {"F6_E3M2", 6},
    [CPL_SAFETENSORS_F6_E2M3]     = {"F6_E2M3", 6},
    [CPL_SAFETENSORS_F4]          = {"F4", 4},
    [CPL_SAFETENSORS_BOOL]        = {"BOOL", 8},
};

const char *cpl_safetensors_dtype_name(cpl_safetensors_dtype dtype)
{
    return dtypes[dtype].name;
}

int cpl_safetensors_dtype_bits(cpl_safetensors_dtype dtype)
{
    return dtypes[dtype].bits;
}

bool cpl_safetensors_dtype_parse(cpl_safetensors_dtype *dtype, const char *name)
{
    for (int i = 0; i < CPL_SAFETENSORS_N_DTYPES; i++)
        if (strcmp(name, dtypes[i].name) == 0) {
            *dtype = (cpl_safetensors_dtype)i;
            return true;
        }
    return false;
}

bool cpl_safetensors_has_shape(const cpl_safetensors_entry *entry, int rank, const int64_t *shape)
{
    if (entry->rank != rank) return false;
    for (int i = 0; i < rank; i++)
        if (shape[i] < 0 || entry->shape[i] != (uint64_t)shape[i]) return false;
    return true;
}

const char *cpl_safetensors_shape_text(char out[128], const cpl_safetensors_entry *entry)
{
    enum { ROOM = 128, LONGEST = 21 + 5 }; /* a comma and a number; "...]" with its NUL */
    int used = snprintf(out, ROOM, "[");
    for (int i = 0; i < entry->rank; i++) {
        if (used > ROOM - LONGEST) {
            used += snprintf(out + used, (size_t)(ROOM - used), "...");
            break;
        }
        used += snprintf(out + used, (size_t)(ROOM - used), "%s%llu", i ? "," : "",
                         (unsigned long long)entry->shape[i]);
    }
    snprintf(out + used, (size_t)(ROOM - used), "]");
    return out;
}
