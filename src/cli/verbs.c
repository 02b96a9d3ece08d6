/* verbs.c - the list of verbs, and the search in it; see verb.h */
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "cli/arguments/verb.h"

#define CPL_VERB(name) &cpl_verb_##name,
const cpl_verb *const cpl_verbs[] = {
#include "cli/arguments/verbs.def"
    NULL};
#undef CPL_VERB

bool cpl_verb_is_of(const cpl_verb *verb, const char *word)
{
    size_t length = strlen(word);
    return strncmp(verb->name, word, length) == 0 && verb->name[length] == ' ';
}

bool cpl_verb_is_family(const char *word)
{
    for (const cpl_verb *const *v = cpl_verbs; *v; v++)
        if (cpl_verb_is_of(*v, word)) return true;
    return false;
}

/* Fails with the name nearest to `word` among the second words of `family`, or among the first
 * words if `family` is NULL. */
static cpl_status no_such_verb(const char *word, const char *family)
{
    enum { BYTES = 32 };
    char name[BYTES], near[BYTES] = "";
    int limit = cpl_text_near_limit(word);
    for (const cpl_verb *const *v = cpl_verbs; *v; v++) {
        if ((*v)->hidden || (family && !cpl_verb_is_of(*v, family))) continue;
        const char *begin = family ? (*v)->name + strlen(family) + 1 : (*v)->name;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(begin, " "), begin);
        if (cpl_text_is_nearer(&limit, word, name)) memcpy(near, name, sizeof near);
    }
    const char *space = family ? " " : "";
    if (!family) family = "";
    if (*near)
        return CPL_FAIL(CPL_ERR_USAGE, "there is no verb %s%s%.100s; did you mean %s%s%s?", family,
                        space, word, family, space, near);
    return CPL_FAIL(CPL_ERR_USAGE, "there is no verb %s%s%.100s; couplet help lists them", family,
                    space, word);
}

cpl_status cpl_verb_find(const cpl_verb **verb, int *used, int count, const char *const *words)
{
    CPL_ASSERT(count > 0);
    bool family = cpl_verb_is_family(words[0]);
    for (const cpl_verb *const *v = cpl_verbs; *v; v++) {
        bool one = strcmp((*v)->name, words[0]) == 0;
        bool two = count > 1 && cpl_verb_is_of(*v, words[0]) &&
                   strcmp((*v)->name + strlen(words[0]) + 1, words[1]) == 0;
        if (!one && !two) continue;
        *verb = *v;
        *used = one ? 1 : 2;
        return CPL_OK;
    }
    if (!family) return no_such_verb(words[0], NULL);
    if (count > 1) return no_such_verb(words[1], words[0]);
    return CPL_FAIL(CPL_ERR_USAGE, "%s needs one more word; couplet help %s lists them", words[0],
                    words[0]);
}
