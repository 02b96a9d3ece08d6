/* page_check.h - checks that hold for every page. */
#ifndef CPL_TESTS_REPORT_PAGE_CHECK_H
#define CPL_TESTS_REPORT_PAGE_CHECK_H

#include <jansson.h>
#include <math.h>

#include "check.h"
#include "io/file.h"

/* Checks that the page is whole in one file, that it is made for narrow windows and dark ones too,
 * and that no data can end its own element. */
static inline void check_page(const cpl_text *page)
{
    static const char *const outside[] = {"https:", " src=", "@import", "url(", "<link"};
    static const char *const inside[]  = {"default-src 'none'", "width=device-width",
                                          "prefers-color-scheme: dark"};
    assert_int_equal(strlen(page->bytes), page->length);
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++)
        assert_null(strstr(page->bytes, outside[i]));
    for (size_t i = 0; i < sizeof inside / sizeof *inside; i++)
        assert_non_null(strstr(page->bytes, inside[i]));
    const char *data = strstr(page->bytes, "id=\"couplet-data\">");
    assert_non_null(data);
    assert_int_equal(strncmp(strchr(data, '<'), "</script>", 9), 0);
    assert_non_null(strstr(page->bytes, "<noscript>"));
}

static inline int64_t count_of(const char *text, const char *part)
{
    int64_t count = 0;
    for (; (text = strstr(text, part)); text += strlen(part)) count++;
    return count;
}

#endif /* CPL_TESTS_REPORT_PAGE_CHECK_H */
