/* lookup.c - see lookup.h */
#include "base/lookup.h"

#include <stdio.h>
#include <string.h>

#include "base/text.h"

static cpl_status no_such_name(const char *kind, const char *word, const char *const *names,
                               size_t count)
{
    const char *near = cpl_text_nearest(word, names, count);
    if (near)
        return CPL_FAIL(CPL_ERR_INPUT, "there is no %s %.100s; did you mean %s?", kind, word, near);
    char all[512] = "";
    for (size_t i = 0, used = 0; i < count && used < sizeof all; i++)
        used += (size_t)snprintf(all + used, sizeof all - used, "%s%s", i ? ", " : "", names[i]);
    return CPL_FAIL(CPL_ERR_INPUT, "there is no %s %.100s; there are %s", kind, word, all);
}

cpl_status cpl_lookup(size_t *index, const char *kind, const char *word, const char *const *names,
                      size_t count)
{
    for (*index = 0; *index < count; ++*index)
        if (strcmp(names[*index], word) == 0) return CPL_OK;
    return no_such_name(kind, word, names, count);
}

cpl_status cpl_lookup_in(size_t *index, const char *kind, const char *word, const void *rows,
                         size_t count, size_t size)
{
    enum { MOST = 64 };
    const char *names[MOST];
    CPL_ASSERT(count <= MOST);
    for (size_t i = 0; i < count; i++)
        memcpy(&names[i], (const char *)rows + i * size, sizeof names[i]);
    return cpl_lookup(index, kind, word, names, count);
}
