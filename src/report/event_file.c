/* event_file.c - see event_file.h */
#include "report/event_file.h"

#include <math.h>
#include <string.h>

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 }; /* wire types */
enum { EVENT_TIME = 1, EVENT_STEP, EVENT_VERSION, EVENT_SUMMARY = 5, EVENT_SESSION = 7 };
enum { SUMMARY_VALUE = 1 };
enum { VALUE_TAG = 1, VALUE_NUMBER, VALUE_HISTOGRAM = 5, VALUE_TENSOR = 8, VALUE_METADATA };
enum { HISTOGRAM_LIMITS = 6, HISTOGRAM_COUNTS }; /* 1 to 5: see below */
enum { METADATA_PLUGIN = 1, PLUGIN_NAME = 1 };
enum { TENSOR_TYPE = 1, TENSOR_SHAPE, TENSOR_WORDS = 8, TYPE_STRING = 7 };
enum { SHAPE_SIZE = 2, SIZE_SIZE = 1, SESSION_STATUS = 1, STATUS_START = 1 };
enum { BUCKETS = 30 }; /* of a histogram */

/* ---- check sums ---- */

uint32_t cpl_event_crc32c(const void *bytes, size_t length)
{
    const unsigned char *at = bytes;
    uint32_t crc            = ~UINT32_C(0);
    for (; length; length--, at++) {
        crc ^= *at;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? UINT32_C(0x82F63B78) : 0);
    }
    return ~crc;
}

static uint32_t masked(const void *bytes, size_t length)
{
    uint32_t crc = cpl_event_crc32c(bytes, length);
    return (crc >> 15 | crc << 17) + UINT32_C(0xA282EAD8);
}

/* ---- fields of messages ---- */

static void varint(cpl_text *to, uint64_t value)
{
    for (; value >= 128; value >>= 7) cpl_text_char(to, (char)(value | 128));
    cpl_text_char(to, (char)value);
}

static void little_endian(cpl_text *to, uint64_t value, int bytes)
{
    for (; bytes; bytes--, value >>= 8) cpl_text_char(to, (char)value);
}

static void key(cpl_text *to, int field, int wire_type)
{
    varint(to, (uint64_t)(field << 3 | wire_type));
}

static void whole(cpl_text *to, int field, int64_t value)
{
    key(to, field, VARINT);
    varint(to, (uint64_t)value);
}

static void float64_bits(cpl_text *to, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    little_endian(to, bits, 8);
}

static void float64(cpl_text *to, int field, double value)
{
    key(to, field, FIXED64);
    float64_bits(to, value);
}

static void bytes_of(cpl_text *to, int field, const void *bytes, size_t length)
{
    key(to, field, BYTES);
    varint(to, length);
    if (length) cpl_text_append(to, bytes, length);
}

static void words_of(cpl_text *to, int field, const char *words)
{
    bytes_of(to, field, words, strlen(words));
}

/* Ends an inner message: into `to`, with its failure. */
static void message(cpl_text *to, int field, cpl_text *inner)
{
    bytes_of(to, field, inner->bytes, inner->length);
    to->failed |= inner->failed;
    cpl_text_free(inner);
}

/* ---- values of a summary ---- */

void cpl_event_scalar(cpl_text *values, const char *tag, double value)
{
    cpl_text one = {0};
    uint32_t bits;
    float number = (float)value;
    memcpy(&bits, &number, sizeof bits);
    words_of(&one, VALUE_TAG, tag);
    key(&one, VALUE_NUMBER, FIXED32);
    little_endian(&one, bits, 4);
    message(values, SUMMARY_VALUE, &one);
}

typedef struct range {
    double low, high, count, sum, sum_of_squares;
} range;

static range range_of(const double *numbers, int64_t count)
{
    range r = {INFINITY, -INFINITY, 0, 0, 0};
    for (int64_t i = 0; i < count; i++) {
        if (!isfinite(numbers[i])) continue;
        r.low  = fmin(r.low, numbers[i]);
        r.high = fmax(r.high, numbers[i]);
        r.count++;
        r.sum += numbers[i];
        r.sum_of_squares += numbers[i] * numbers[i];
    }
    return r;
}

/* Counts of BUCKETS equal parts of the range; limit b is the upper end of part b. */
static void buckets(cpl_text *histogram, const range *r, const double *numbers, int64_t count)
{
    double counts[BUCKETS] = {0}, width = r->high / BUCKETS - r->low / BUCKETS;
    cpl_text limits = {0}, packed = {0};
    for (int64_t i = 0; i < count; i++) {
        if (!isfinite(numbers[i])) continue;
        const double part = numbers[i] / width - r->low / width; /* NaN if all are equal */
        counts[part >= 0 && part < BUCKETS ? (int)part : BUCKETS - 1]++;
    }
    for (int b = 0; b < BUCKETS; b++) {
        float64_bits(&limits, b + 1 < BUCKETS ? r->low + width * (b + 1) : r->high);
        float64_bits(&packed, counts[b]);
    }
    message(histogram, HISTOGRAM_LIMITS, &limits);
    message(histogram, HISTOGRAM_COUNTS, &packed);
}

void cpl_event_histogram(cpl_text *values, const char *tag, const double *numbers, int64_t count)
{
    cpl_text one = {0}, histogram = {0};
    const range r = range_of(numbers, count);
    if (r.count == 0) return;
    const double heads[] = {r.low, r.high, r.count, r.sum, r.sum_of_squares};
    for (int k = 0; k < 5; k++) float64(&histogram, k + 1, heads[k]);
    buckets(&histogram, &r, numbers, count);
    words_of(&one, VALUE_TAG, tag);
    message(&one, VALUE_HISTOGRAM, &histogram);
    message(values, SUMMARY_VALUE, &one);
}

/* A tensor [1] of strings, which the plugin `text` shows. */
void cpl_event_words(cpl_text *values, const char *tag, const char *words, size_t length)
{
    cpl_text one = {0}, tensor = {0}, shape = {0}, size = {0}, metadata = {0}, plugin = {0};
    whole(&size, SIZE_SIZE, 1);
    message(&shape, SHAPE_SIZE, &size);
    whole(&tensor, TENSOR_TYPE, TYPE_STRING);
    message(&tensor, TENSOR_SHAPE, &shape);
    bytes_of(&tensor, TENSOR_WORDS, words, length);
    words_of(&plugin, PLUGIN_NAME, "text");
    message(&metadata, METADATA_PLUGIN, &plugin);
    words_of(&one, VALUE_TAG, tag);
    message(&one, VALUE_TENSOR, &tensor);
    message(&one, VALUE_METADATA, &metadata);
    message(values, SUMMARY_VALUE, &one);
}

/* ---- frames ---- */

static void frame(cpl_text *file, cpl_text *event)
{
    cpl_text head = {0};
    little_endian(&head, event->length, 8);
    if (!head.failed) little_endian(&head, masked(head.bytes, 8), 4);
    file->failed |= head.failed || event->failed;
    if (!file->failed) {
        cpl_text_append(file, head.bytes, head.length);
        cpl_text_append(file, event->bytes, event->length);
        little_endian(file, masked(event->bytes, event->length), 4);
    }
    cpl_text_free(&head);
    cpl_text_free(event);
}

void cpl_event_file_version(cpl_text *file, double seconds)
{
    cpl_text event = {0};
    float64(&event, EVENT_TIME, seconds);
    words_of(&event, EVENT_VERSION, "brain.Event:2");
    frame(file, &event);
}

void cpl_event_start(cpl_text *file, double seconds, int64_t step)
{
    cpl_text event = {0}, session = {0};
    float64(&event, EVENT_TIME, seconds);
    whole(&event, EVENT_STEP, step);
    whole(&session, SESSION_STATUS, STATUS_START);
    message(&event, EVENT_SESSION, &session);
    frame(file, &event);
}

void cpl_event_summary(cpl_text *file, double seconds, int64_t step, const cpl_text *values)
{
    cpl_text event = {0};
    float64(&event, EVENT_TIME, seconds);
    whole(&event, EVENT_STEP, step);
    bytes_of(&event, EVENT_SUMMARY, values->bytes, values->length);
    event.failed |= values->failed;
    frame(file, &event);
}

/* ---- reading back ---- */

static uint64_t number_at(const char *bytes, int count)
{
    uint64_t value = 0;
    while (count--) value = value << 8 | (unsigned char)bytes[count];
    return value;
}

/* The step of an event as we write it: the time, then the step if there is one; 0: there is none. */
static int64_t step_of(const char *event, size_t length)
{
    uint64_t value = 0;
    if (length < 10 || event[9] != (EVENT_STEP << 3 | VARINT)) return 0;
    for (size_t at = 10, shift = 0; at < length && shift < 64; at++, shift += 7) {
        value |= (uint64_t)(event[at] & 127) << shift;
        if (!(event[at] & 128)) break;
    }
    return (int64_t)value;
}

bool cpl_event_head(const char head[CPL_EVENT_HEAD], uint64_t *length)
{
    *length = number_at(head, 8);
    return number_at(head + 8, 4) == masked(head, 8);
}

bool cpl_event_is_whole(const char *body, size_t length)
{
    return number_at(body + length, 4) == masked(body, length);
}

int64_t cpl_event_step(const char *event, size_t length)
{
    return step_of(event, length);
}
