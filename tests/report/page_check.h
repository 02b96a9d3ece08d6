/* page_check.h - what every page and every folder of charts must be, whatever they show. */
#ifndef CPL_TESTS_REPORT_PAGE_CHECK_H
#define CPL_TESTS_REPORT_PAGE_CHECK_H

#include "io/file.h"
#include "report/xml_check.h"

/* It is whole in one file, and made for narrow windows and dark ones too. */
static inline void check_page(const cpl_text *page)
{
    static const char *const outside[] = {"http:", "https:", "src=", "@import", "url("};
    static const char *const inside[]  = {"default-src 'none'", "width=device-width",
                                          "prefers-color-scheme:dark"};
    assert_int_equal(strlen(page->bytes), page->length);
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++)
        assert_null(strstr(page->bytes, outside[i]));
    for (size_t i = 0; i < sizeof inside / sizeof *inside; i++)
        assert_non_null(strstr(page->bytes, inside[i]));
}

/* Every chart inside the page is an SVG by itself. Returns how many; cuts the page into pieces. */
static inline int64_t check_charts(cpl_text *page)
{
    int64_t n = 0;
    for (char *s = page->bytes, *end; (s = strstr(s, "<svg")); s = end + 1, n++) {
        end  = strstr(s, "</svg>") + strlen("</svg>");
        *end = '\0';
        xml_check(s);
    }
    return n;
}

/* The files of the folder are charts with names for any system, and refer to nothing but the name of
 * SVG. Returns how many. */
static inline int64_t check_chart_files(const char *folder)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    char **names, path[400];
    int64_t n;
    assert_ok(cpl_folder_list(&names, &n, folder));
    for (int64_t i = 0; i < n; i++) {
        cpl_text svg = {0};
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        assert_ok(cpl_file_read(&svg, path, 1 << 24));
        xml_check(svg.bytes);
        assert_int_equal(count_of(svg.bytes, "http"), 1);
        assert_null(strstr(svg.bytes, "nan"));
        assert_int_equal(strspn(names[i], plain), strlen(names[i]));
        cpl_text_free(&svg);
    }
    cpl_folder_list_free(names, n);
    return n;
}

#endif /* CPL_TESTS_REPORT_PAGE_CHECK_H */
