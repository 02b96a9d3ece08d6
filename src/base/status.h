/* status.h - reports failures outside the program, and assertions.
 *
 * Room:  base (independent of numbers, models and devices).
 * Rule:  a programming error           -> CPL_ASSERT, which stops the program (in release too),
 *        an error outside the program  -> a cpl_status, with one message for the user. */
#ifndef CPL_BASE_STATUS_H
#define CPL_BASE_STATUS_H

#include "couplet/status.h"

#if defined(__GNUC__)
#    define CPL_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#    define CPL_NORETURN          __attribute__((noreturn))
#else
#    define CPL_PRINTF(fmt, args)
#    define CPL_NORETURN
#endif

/* Records the message (cut at 1023 bytes) and returns `code`. Call it through CPL_FAIL. The
 * arguments may point to the previous message, so that a caller can add to it. */
cpl_status cpl_fail(cpl_status code, const char *format, ...) CPL_PRINTF(2, 3);

#define CPL_FAIL(code, ...) cpl_fail((code), __VA_ARGS__)

/* Returns a failure to the caller. Use it where the function owns no resources yet. */
#define CPL_TRY(call)                                                                              \
    do {                                                                                           \
        cpl_status cpl_try_ = (call);                                                              \
        if (cpl_try_ != CPL_OK) return cpl_try_;                                                   \
    } while (0)

/* On a failure jumps to the label `done`, where the function releases its resources. Expects a
 * local `cpl_status status`. */
#define CPL_TRY_DONE(call)                                                                         \
    do {                                                                                           \
        status = (call);                                                                           \
        if (status != CPL_OK) goto done;                                                           \
    } while (0)

CPL_NORETURN void cpl_assert_failed(const char *what, const char *file, int line);
#define CPL_ASSERT(truth) ((truth) ? (void)0 : cpl_assert_failed(#truth, __FILE__, __LINE__))

#endif /* CPL_BASE_STATUS_H */
