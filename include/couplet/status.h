/* couplet/status.h - the codes that functions of libcouplet return.
 *
 * Part of the public interface, included by couplet.h. Rooms include base/status.h. */
#ifndef COUPLET_STATUS_H
#define COUPLET_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

typedef enum cpl_status {
    CPL_OK = 0,
    CPL_ERR_INPUT,   /* a file, setting, tensor or argument is not acceptable */
    CPL_ERR_IO,      /* the operating system refused a read or a write */
    CPL_ERR_MEMORY,  /* host or device memory ran out, or would */
    CPL_ERR_DEVICE,  /* a matrix library, GPU or communicator failed */
    CPL_ERR_USAGE,   /* a verb, flag or --set is wrong (the program exits with 2) */
    CPL_ERR_STOPPED, /* the program stops after a signal (never returned by the library alone) */
} cpl_status;

#if defined(__GNUC__)
#    define CPL_NODISCARD __attribute__((warn_unused_result))
#else
#    define CPL_NODISCARD
#endif

#if defined(__GNUC__)
#    define CPL_API __attribute__((visibility("default")))
#else
#    define CPL_API
#endif

/* Returns the error message of the calling thread's last failure, or "" if no call has failed. */
CPL_API const char *cpl_last_error(void);

#ifdef __cplusplus
}
#endif
#endif /* COUPLET_STATUS_H */
