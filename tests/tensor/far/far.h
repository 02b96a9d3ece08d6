/* far.h - the CPU's operations on memory that the host cannot reach, and later than they are given.
 *
 * Room:   tests/tensor. The backends do on the CPU what a device with its own memory and queue
 *         does:
 *         far   Addresses of tensors are in a range without access. An operation is run on the
 *               memory that belongs to them. Any other read or write ends the program with a
 *               sentence and, in a build with sanitizers, the stack with files and lines. So does
 *               an operation on memory that this backend has not taken, or has been given back.
 *         late  As far, and operations are queued, with copies of their arguments, until get, sync
 *               or give. Memory holds NaN until something is put there or an operation sets it.
 * Use:    A program that is linked with the library couplet_far gets these backends from
 *         cpl_backend_open if COUPLET_TEST_BACKEND is "far" or "late", and the backend of a module
 *         if the value is the module's path (tests/tensor/far/wrap.c). */
#ifndef CPL_TENSOR_FAR_FAR_H
#define CPL_TENSOR_FAR_FAR_H

#include <stdio.h>

#include "tensor/backend/backend.h"

/* Makes the CPU backend *be far, with the same type of products and threads. */
void cpl_backend_far(cpl_backend *be, bool late);

/* Frees the memory of cpl_backend_far, after cpl_backend_free. Other backends stay unchanged. */
void cpl_far_free(cpl_backend *be);

/* Returns whether *be was made by cpl_backend_far. */
bool cpl_is_far(const cpl_backend *be);

/* Returns how often get and sync were called on all these backends since the last call of this
 * function. `list`, if not NULL, gets every place with its callers. */
int64_t cpl_far_waits(FILE *list);

#endif /* CPL_TENSOR_FAR_FAR_H */
