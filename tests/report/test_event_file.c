/* test_event_file.c - check sums, frames and what of a file stays. */
#include "report/event_file.h"

#include <math.h>
#include <string.h>

#include "base/arena.h"
#include "check.h"

/* RFC 3720, B.4, and the check value of the CRC catalogue. */
static void known_check_sums(void **state)
{
    (void)state;
    unsigned char bytes[32] = {0};
    assert_int_equal(cpl_event_crc32c("123456789", 9), 0xE3069283);
    assert_int_equal(cpl_event_crc32c(bytes, 32), 0x8A9136AA);
    for (int i = 0; i < 32; i++) bytes[i] = (unsigned char)i;
    assert_int_equal(cpl_event_crc32c(bytes, 32), 0x46DD794E);
}

/* The event {wall_time: 1.5, file_version: "brain.Event:2"} byte by byte. */
static void a_frame(void **state)
{
    (void)state;
    static const unsigned char message[] = "\x09\0\0\0\0\0\0\xF8\x3F\x1A\x0D"
                                           "brain.Event:2";
    cpl_text file                        = {0};
    cpl_event_file_version(&file, 1.5);
    assert_int_equal(file.length, 16 + sizeof message - 1);
    assert_memory_equal(file.bytes, "\x18\0\0\0\0\0\0\0", 8);
    assert_memory_equal(file.bytes + 12, message, sizeof message - 1);
    uint64_t length;
    assert_true(cpl_event_head(file.bytes, &length) && length == sizeof message - 1);
    assert_true(cpl_event_is_whole(file.bytes + CPL_EVENT_HEAD, length));
    cpl_text_free(&file);
}

static void three_steps(cpl_text *file)
{
    cpl_event_file_version(file, 1);
    for (int64_t step = 200; step <= 400; step += 100) {
        cpl_text values = {0};
        cpl_event_scalar(&values, "train/loss", 2.5);
        cpl_event_summary(file, 1, step, &values);
        cpl_text_free(&values);
    }
}

/* Of a file: bytes of the frames that are whole and of steps up to `step`. */
static size_t up_to(const cpl_text *file, size_t size, int64_t step)
{
    size_t at = 0;
    uint64_t length;
    while (size - at >= CPL_EVENT_HEAD + CPL_EVENT_TAIL &&
           cpl_event_head(file->bytes + at, &length) &&
           length <= size - at - CPL_EVENT_HEAD - CPL_EVENT_TAIL) {
        const char *body = file->bytes + at + CPL_EVENT_HEAD;
        if (!cpl_event_is_whole(body, length) || cpl_event_step(body, length) > step) break;
        at += CPL_EVENT_HEAD + length + CPL_EVENT_TAIL;
    }
    return at;
}

static void later_steps_and_damaged_ends_are_seen(void **state)
{
    (void)state;
    cpl_text file = {0};
    three_steps(&file);
    const size_t whole = file.length, one = up_to(&file, whole, 300) - up_to(&file, whole, 200);
    assert_int_equal(up_to(&file, whole, 400), whole);
    assert_int_equal(up_to(&file, whole, 399), whole - one);
    assert_int_equal(up_to(&file, whole, 199), whole - 3 * one);
    for (size_t cut = 1; cut < one; cut++)
        assert_int_equal(up_to(&file, whole - cut, 400), whole - one);
    for (size_t at = whole - one; at < whole; at++) { /* a bit that is wrong */
        file.bytes[at] ^= 4;
        assert_int_equal(up_to(&file, whole, 400), whole - one);
        file.bytes[at] ^= 4;
    }
    cpl_text_free(&file);
}

/* A range that no double holds, and numbers that are all equal. */
static void histograms_at_the_ends(void **state)
{
    (void)state;
    const double wide[] = {-1e308, 1e308, 0}, equal[] = {2, 2};
    cpl_text values = {0};
    cpl_event_histogram(&values, "h", wide, 3);
    double counted = 0, count;
    for (int b = 0; b < 30; b++) {
        memcpy(&count, values.bytes + values.length - 8 * (b + 1), sizeof count);
        counted += count;
    }
    assert_true(counted == 3);
    cpl_text_clear(&values);
    cpl_event_histogram(&values, "h", equal, 2);
    memcpy(&count, values.bytes + values.length - 8, sizeof count);
    assert_true(count == 2);
    cpl_text_free(&values);
}

static double float64_at(const char *bytes)
{
    double value;
    memcpy(&value, bytes, sizeof value);
    return value;
}

/* Of 3 numbers, one of them not finite: the least, the largest, how many, sum, sum of squares; the
 * counts of the first and the last part are at the ends of the message. */
static void a_histogram(void **state)
{
    (void)state;
    const double numbers[] = {1, 4, (double)NAN, 4};
    cpl_text values        = {0};
    cpl_event_histogram(&values, "h", numbers, 4);
    const char *at =
        values.bytes + 2 + 1 + 3 + 3; /* value, its length; tag; histogram, its length */
    const double want[] = {1, 4, 3, 9, 33};
    for (int k = 0; k < 5; k++, at += 9) {
        assert_int_equal(*at, (k + 1) << 3 | 1);
        assert_true(float64_at(at + 1) == want[k]);
    }
    at += 3; /* the limits and their length */
    assert_true(float64_at(at + 29 * 8) == 4);
    assert_true(float64_at(values.bytes + values.length - 30 * 8) == 1);
    assert_true(float64_at(values.bytes + values.length - 8) == 2);
    cpl_text_free(&values);
    cpl_event_histogram(&values, "none", numbers + 2, 1);
    assert_int_equal(values.length, 0);
}

static void no_memory_is_remembered(void **state)
{
    (void)state;
    const double numbers[] = {1, 2};
    for (int64_t nth = 1;; nth++) {
        cpl_text values = {0}, file = {0};
        cpl_alloc_fail_at(nth);
        cpl_event_scalar(&values, "a", 1);
        cpl_event_histogram(&values, "b", numbers, 2);
        cpl_event_words(&values, "c", "words", 5);
        cpl_event_summary(&file, 1, 2, &values);
        cpl_event_start(&file, 1, 3);
        const bool was_last = file.failed == 0;
        cpl_alloc_fail_at(0);
        cpl_text_free(&values);
        cpl_text_free(&file);
        if (was_last) {
            assert_true(nth > 10);
            break;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_check_sums),
        cmocka_unit_test(a_frame),
        cmocka_unit_test(later_steps_and_damaged_ends_are_seen),
        cmocka_unit_test(histograms_at_the_ends),
        cmocka_unit_test(a_histogram),
        cmocka_unit_test(no_memory_is_remembered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
