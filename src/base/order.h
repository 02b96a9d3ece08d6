/* order.h - comparison functions for qsort and bsearch.
 *
 * Room:  base. */
#ifndef CPL_BASE_ORDER_H
#define CPL_BASE_ORDER_H

#include <string.h>

/* Of arrays of strings: by bytes. */
static inline int cpl_order_strings(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

#endif /* CPL_BASE_ORDER_H */
