/* show.h - a certificate for people and for programs.
 *
 * Room:  certify. */
#ifndef CPL_CERTIFY_SHOW_H
#define CPL_CERTIFY_SHOW_H

#include <jansson.h>

#include "base/text.h"
#include "certify/certify.h"

/* Appends the table of figures, the verdict with what was measured and how to mend it, and what the
 * dump cannot tell. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_certify_text(cpl_text *out, const cpl_certificate *c,
                                          const char *path);

/* Appends the faults as one clause: "the weight is left out; M is transposed: ..." */
void cpl_certify_clause(cpl_text *out, const cpl_certificate *c);

/* The object of docs/formats.md, to be given back; NULL: there is no memory. */
json_t *cpl_certify_json(const cpl_certificate *c, const char *path);

#endif /* CPL_CERTIFY_SHOW_H */
