/* far.h - the CPU's operations on memory that the host cannot reach, and later than they are given.
 *
 * Room:   tests/tensor. What a device with memory and a queue of its own does, on the CPU:
 *         far   Addresses of tensors are in a range without access. An operation is run on the memory
 *               that belongs to them. A read or write by anything else ends the program with
 *               a sentence and, in a build with sanitizers, the stack with files and lines. So does an
 *               operation on memory that this backend has not taken, or has been given back.
 *         late  far, and operations are queued, with copies of their arguments, until get, sync or give.
 *               Memory holds NaN until something is put there or an operation sets it.
 * Use:    in a program that is linked with the library couplet_far, cpl_backend_open makes these if
 *         COUPLET_TEST_BACKEND is "far" or "late", and that of a module if it is the module's path
 *         (tests/tensor/far/wrap.c). */
#ifndef CPL_TENSOR_FAR_FAR_H
#define CPL_TENSOR_FAR_FAR_H

#include <stdio.h>

#include "tensor/backend/backend.h"

/* Makes the CPU backend *be far, with the same type of products and threads. */
void cpl_backend_far(cpl_backend *be, bool late);

/* Frees what cpl_backend_far has made, after cpl_backend_free; of any other backend: nothing. */
void cpl_far_free(cpl_backend *be);

/* Whether *be is one. */
bool cpl_is_far(const cpl_backend *be);

/* How often get and sync were called since the call before, on any of them. `list`, if there is one,
 * gets every place with its callers. */
int64_t cpl_far_waits(FILE *list);

#endif /* CPL_TENSOR_FAR_FAR_H */
