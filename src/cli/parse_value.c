/* parse_value.c - see parse_value.h */
#include "cli/parse_value.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"

enum { MOST_IN_RANGES = 100000 };

static int by_number(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

cpl_status cpl_parse_numbers(double *numbers, int *count, int most, const char *flag,
                             const char *text, double low, double high)
{
    const char *at = text;
    char *end      = NULL;
    *count         = 0;
    do {
        const double value = strtod(at, &end);
        if (end == at || (*end && *end != ',') || !(value >= low && value <= high))
            return CPL_FAIL(CPL_ERR_USAGE, "%s %.100s: wants numbers from %g to %g, with commas",
                            flag, text, low, high);
        if (*count == most)
            return CPL_FAIL(CPL_ERR_USAGE, "%s %.100s: more than %d numbers", flag, text, most);
        numbers[(*count)++] = value;
        at                  = end + 1;
    } while (*end);
    qsort(numbers, (size_t)*count, sizeof *numbers, by_number);
    for (int i = 1; i < *count; i++)
        if (!(numbers[i] > numbers[i - 1]))
            return CPL_FAIL(CPL_ERR_USAGE, "%s %.100s: %g stands there twice", flag, text,
                            numbers[i]);
    return CPL_OK;
}

/* "5" or "5-7" and what ends it; false if it is neither. */
static bool read_range(const char **at, int64_t *first, int64_t *last)
{
    char *end = NULL;
    if (**at < '0' || **at > '9') return false;
    *first = *last = strtoll(*at, &end, 10);
    if (*end == '-') {
        if (end[1] < '0' || end[1] > '9') return false;
        *last = strtoll(end + 1, &end, 10);
    }
    *at = end;
    return (*end == 0 || *end == ',') && *first <= *last && *last < INT64_C(1) << 40;
}

static void insert(int64_t *numbers, int64_t *count, int64_t value)
{
    int64_t at = *count;
    while (at > 0 && numbers[at - 1] >= value) at--;
    if (at < *count && numbers[at] == value) return;
    memmove(numbers + at + 1, numbers + at, (size_t)(*count - at) * sizeof *numbers);
    numbers[at] = value;
    (*count)++;
}

cpl_status cpl_parse_ranges(int64_t **numbers, int64_t *count, const char *flag, const char *text)
{
    const char *at    = text;
    cpl_status status = CPL_OK;
    *count            = 0;
    *numbers          = cpl_alloc((MOST_IN_RANGES + 1) * sizeof **numbers);
    if (!*numbers) return CPL_ERR_MEMORY;
    for (;; at++) {
        int64_t first, last;
        if (!read_range(&at, &first, &last)) {
            status = CPL_FAIL(CPL_ERR_USAGE, "%s %.100s: wants numbers and ranges, as 0,5-7", flag,
                              text);
            break;
        }
        if (last - first >= MOST_IN_RANGES - *count) {
            status = CPL_FAIL(CPL_ERR_USAGE, "%s %.100s: more than %d numbers", flag, text,
                              MOST_IN_RANGES);
            break;
        }
        for (int64_t i = first; i <= last; i++) insert(*numbers, count, i);
        if (*at == 0) break;
    }
    if (status == CPL_OK) return CPL_OK;
    cpl_free(*numbers);
    *numbers = NULL;
    return status;
}

cpl_status cpl_parse_bytes(double *bytes, const char *flag, const char *text)
{
    static const char letters[] = "KMGT";
    char *end                   = NULL;
    *bytes                      = strtod(text, &end);
    bool good                   = end != text && isfinite(*bytes) && *bytes > 0;
    const char *letter          = *end ? strchr(letters, *end) : NULL;
    if (letter) {
        *bytes *= pow(1024, (double)(letter - letters + 1));
        end++;
        if (strcmp(end, "iB") == 0) end += 2;
    }
    if (*end == 'B' && end[1] == 0) end++;
    if (good && *end == 0) return CPL_OK;
    return CPL_FAIL(CPL_ERR_USAGE, "%s %.100s: wants a size, as 512M or 4G", flag, text);
}
