/* stored_case.h - the tensors of a checkpoint with the warnings of opening it. */
#ifndef CPL_TESTS_CHECKPOINT_STORED_CASE_H
#define CPL_TESTS_CHECKPOINT_STORED_CASE_H

#include <math.h>

#include "checkpoint/checkpoints.h"
#include "checkpoint/stored.h"
#include "support/warnings.h"

static inline cpl_stored_files *opens(const char *path)
{
    cpl_stored_files *s;
    n_warnings = 0;
    assert_ok(cpl_stored_open(&s, NULL, path, (double)INFINITY, &a_log));
    assert_string_equal(s->path, path);
    return s;
}

static inline void refuses(const char *path, cpl_status code, const char *part)
{
    cpl_stored_files *s;
    assert_fails(code, part, cpl_stored_open(&s, NULL, path, (double)INFINITY, NULL));
    assert_null(s);
}

/* Asserts the value of a tensor made by tensor_file. */
static inline void assert_value(const cpl_stored *t, float value)
{
    float data[2];
    assert_non_null(t);
    assert_null(t->fault);
    assert_int_equal(t->format, CPL_FORMAT_F32);
    assert_string_equal(t->type_name, "F32");
    assert_true(t->rank == 1 && t->shape[0] == 2 && t->shape[1] == 1 && t->n_elements == 2);
    assert_int_equal(t->bytes, 8);
    cpl_stored_prefetch(t, 0, 8);
    assert_ok(cpl_stored_read(t, data, 0, 8));
    assert_true(data[0] == (float)t->name[0] && data[1] == value);
    assert_ok(cpl_stored_read(t, data, 4, 4));
    assert_true(data[0] == value);
    assert_fails(CPL_ERR_INPUT, t->name, cpl_stored_read(t, data, 4, 5));
    assert_fails(CPL_ERR_INPUT, t->name, cpl_stored_read(t, data, UINT64_MAX, 2));
    cpl_stored_prefetch(t, 4, 5);
}

/* Asserts that the tensor is there with this fault, and that a read returns the fault. */
static inline void assert_fault(const cpl_stored_files *s, const char *name, const char *says)
{
    char byte;
    const cpl_stored *t = cpl_stored_find(s, name);
    assert_non_null(t);
    assert_non_null(t->fault);
    assert_int_equal(t->n_slices, 1);
    if (!strstr(t->fault, says)) fail_msg("\"%s\" does not say \"%s\"", t->fault, says);
    assert_non_null(strstr(t->fault, name));
    assert_fails(CPL_ERR_INPUT, t->fault, cpl_stored_read(t, &byte, 0, 1));
    cpl_stored_prefetch(t, 0, 1);
}

/* Asserts that every tensor comes once, in order, and is found by its name. */
static inline void assert_sorted(const cpl_stored_files *s)
{
    for (int64_t i = 0; i < s->count; i++) {
        const cpl_stored *t = &s->tensors[i];
        assert_ptr_equal(cpl_stored_find(s, t->name), t - t->slice);
        assert_true(t->slice >= 0 && t->slice < t->n_slices);
        if (i) assert_true(strcmp(t[-1].name, t->name) < (t->slice > 0));
    }
}

static inline const char *three_shards(void)
{
    const char *folder = scratch_folder();
    tensor_file(in_folder(folder, "one"), "ab", 1);
    tensor_file(in_folder(folder, "two"), "cd", 2);
    tensor_file(in_folder(folder, "three"), "e", 3);
    index_file(folder, "\"a\": \"one\", \"b\": \"one\", \"c\": \"two\", \"d\": \"two\","
                       "\"e\": \"three\"");
    return folder;
}

static const char *const slice_names[] = {"m-1-TP-000.safetensors", "m-1-TP-001.safetensors",
                                          "m-1-TP-002.safetensors"};

static inline const char *three_slices(bool with_index)
{
    const char *folder = scratch_folder();
    for (int i = 0; i < 3; i++) tensor_file(in_folder(folder, slice_names[i]), "ab", (float)i);
    tensor_file(in_folder(folder, "m-0-TP-common.safetensors"), "r", 9);
    if (with_index)
        index_file(folder, "\"a\": \"m-1-TP-000.safetensors\", \"b\": \"m-1-TP-002.safetensors\","
                           "\"r\": \"m-0-TP-common.safetensors\"");
    return folder;
}

#endif /* CPL_TESTS_CHECKPOINT_STORED_CASE_H */
