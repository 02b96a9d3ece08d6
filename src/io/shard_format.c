/* shard_format.c - see shard_format.h */
#include "io/shard_format.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static uint32_t le32(const unsigned char *b)
{
    return b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

/* ---- NumPy ---- */

/* In flat data these bytes would be the ids 20115, 19797, 22861, and then a small one and two that
 * spell "{'"; nothing but a NumPy file begins so. */
static bool is_numpy(const cpl_mapping *map, size_t *text)
{
    const unsigned char *b = map->bytes;
    if (map->length < 14 || memcmp(b, "\x93NUMPY", 6) != 0) return false;
    if (b[6] < 1 || b[6] > 3 || b[7] != 0) return false;
    *text = b[6] == 1 ? 10 : 12;
    return b[*text] == '{' && b[*text + 1] == '\'';
}

/* What follows `'key':` in the header's dictionary, or NULL. */
static const char *entry(const char *dictionary, const char *key)
{
    const char *at = strstr(dictionary, key);
    if (!at) return NULL;
    at += strlen(key);
    while (*at == ' ') at++;
    return at;
}

/* Bytes of an item of `'<u2'` and its like; 0 if that is no unsigned little-endian integer. */
static int item_bytes(const char *descr)
{
    if (descr[0] != '\'' || (descr[1] != '<' && descr[1] != '|') || descr[2] != 'u') return 0;
    if (descr[3] == '\0' || descr[4] != '\'') return 0;
    if (descr[1] == '|') return descr[3] == '1' ? 1 : 0;
    return strchr("1248", descr[3]) ? descr[3] - '0' : 0;
}

/* The number in `(<n>,)`, or -1. */
static long long one_dimension(const char *shape)
{
    char *end = NULL;
    if (shape[0] != '(' || shape[1] < '0' || shape[1] > '9') return -1;
    long long n = strtoll(shape + 1, &end, 10);
    return strncmp(end, ",)", 2) == 0 ? n : -1;
}

static cpl_status numpy(cpl_shard_format *format, const cpl_mapping *map, size_t text,
                        const char *path)
{
    enum { LONGEST = 4096 };
    char dictionary[LONGEST];
    size_t length = text == 10 ? map->bytes[8] | (size_t)map->bytes[9] << 8 : le32(map->bytes + 8);
    if (length >= LONGEST || text + length > map->length)
        return CPL_FAIL(CPL_ERR_INPUT, "%s: its NumPy header of %zu bytes does not fit", path,
                        length);
    memcpy(dictionary, map->bytes + text, length);
    dictionary[length] = '\0';
    const char *descr  = entry(dictionary, "'descr':");
    const char *order  = entry(dictionary, "'fortran_order':");
    const char *shape  = entry(dictionary, "'shape':");
    if (!descr || !order || !shape || strncmp(order, "False", 5) != 0)
        return CPL_FAIL(CPL_ERR_INPUT, "%s: its NumPy header is not one of a plain array", path);
    format->offset     = text + length;
    format->item_bytes = item_bytes(descr);
    if (!format->item_bytes)
        return CPL_FAIL(CPL_ERR_INPUT, "%s: its NumPy type is %.16s, token ids are '<u2' or '<u4'",
                        path, descr);
    long long n = one_dimension(shape);
    size_t left = map->length - format->offset, item = (size_t)format->item_bytes;
    if (n < 0 || left % item != 0 || (uint64_t)n != left / item)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: its NumPy shape %.32s does not fit the %zu bytes that follow", path,
                        shape, left);
    return CPL_OK;
}

/* ---- llm.c ---- */

static cpl_status llm_c(cpl_shard_format *format, const cpl_mapping *map, const char *path)
{
    enum { HEADER = 1024 };
    uint32_t version = le32(map->bytes + 4), count = le32(map->bytes + 8);
    if (version != 1)
        return CPL_FAIL(CPL_ERR_INPUT, "%s: version %u of llm.c's token files is not known", path,
                        version);
    if (map->length != HEADER + 2 * (size_t)count)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: its llm.c header says %u tokens, its %zu bytes do not fit that", path,
                        count, map->length);
    *format = (cpl_shard_format){HEADER, 2};
    return CPL_OK;
}

cpl_status cpl_shard_format_find(cpl_shard_format *format, const cpl_mapping *map, const char *path)
{
    enum { LLM_C = 20240520 };
    size_t text = 0;
    *format     = (cpl_shard_format){0, 0};
    if (is_numpy(map, &text)) return numpy(format, map, text, path);
    /* Flat ids that begin so would need the ids 55432 and 308, and a small number behind. */
    if (map->length >= 1024 && le32(map->bytes) == LLM_C && le32(map->bytes + 4) < 256)
        return llm_c(format, map, path);
    return CPL_OK;
}
