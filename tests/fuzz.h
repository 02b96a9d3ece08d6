/* fuzz.h - damaged copies of good files, equal in every run.
 *
 * A test makes a fixed number of rounds. With COUPLET_FUZZ_SECONDS set, it makes as many as fit
 * into that time (`make fuzz`). Round r draws from its own key, so that it can be repeated alone:
 * COUPLET_FUZZ_ROUND=r makes only round r. */
#ifndef CPL_TESTS_FUZZ_H
#define CPL_TESTS_FUZZ_H

#include <time.h>

#include "base/rng.h"
#include "base/text.h"
#include "check.h"

typedef struct fuzz {
    cpl_rng_key key;
    uint64_t draw;
    int64_t round, rounds; /* the present round; their number, or -1 */
    double until;          /* end on the clock, without a number of rounds */
} fuzz;

static inline double fuzz_clock(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Returns whether only one round is made. Such a round must only end well. */
static inline bool fuzz_is_alone(void)
{
    return getenv("COUPLET_FUZZ_ROUND") != NULL;
}

static inline fuzz fuzz_start(uint64_t seed, int64_t rounds)
{
    const char *seconds = getenv("COUPLET_FUZZ_SECONDS"), *only = getenv("COUPLET_FUZZ_ROUND");
    fuzz f   = {.key = {.seed = seed, .stream = CPL_STREAM_TEST}, .round = -1};
    f.rounds = seconds ? -1 : rounds;
    f.until  = seconds ? fuzz_clock() + atof(seconds) : 0;
    if (only) {
        f.round  = atoll(only) - 1;
        f.rounds = f.round + 2;
    }
    return f;
}

/* Goes on to the next round, if rounds are left. */
static inline bool fuzz_next(fuzz *f)
{
    f->round++;
    f->draw = (uint64_t)f->round << 20;
    if (f->rounds >= 0) return f->round < f->rounds;
    return f->round % 16 || fuzz_clock() < f->until;
}

/* Returns a number below `bound`. */
static inline size_t fuzz_below(fuzz *f, size_t bound)
{
    return cpl_rng_u32(&f->key, f->draw++) % (bound ? bound : 1);
}

/* Replaces a number of 4 or 8 bytes by an extreme one. */
static inline void fuzz_number(fuzz *f, cpl_text *file)
{
    static const uint64_t hard[] =
        LIST(0, 1, 2, 3, 4, 5, 31, 32, 33, 63, 64, 255, 256, 4096, 65535, 1u << 16, 0x7fffffff,
             0x80000000, 0xffffffff, 1ull << 32, 1ull << 40, 1ull << 60, 1ull << 61, 1ull << 62,
             INT64_MAX, 1ull << 63, UINT64_MAX, 100000000, 100000001);
    size_t bytes = fuzz_below(f, 2) ? 8 : 4;
    uint64_t now = 0;
    if (file->length < bytes) return;
    char *at = file->bytes + fuzz_below(f, file->length - bytes + 1);
    memcpy(&now, at, bytes);
    switch (fuzz_below(f, 4)) {
    case 0:
        now++;
        break;
    case 1:
        now--;
        break;
    default:
        now = hard[fuzz_below(f, sizeof hard / sizeof *hard)];
        break;
    }
    memcpy(at, &now, bytes);
}

/* Replaces the next digit at or behind `at`, so that the text stays well formed. */
static inline void fuzz_digit(fuzz *f, cpl_text *file, size_t at)
{
    while (at < file->length && (file->bytes[at] < '0' || file->bytes[at] > '9')) at++;
    if (at < file->length) file->bytes[at] = (char)('0' + fuzz_below(f, 10));
}

/* Flips, overwrites, removes or repeats a few bytes, inserts a large number, or cuts the end
 * off. */
static inline void fuzz_once(fuzz *f, cpl_text *file)
{
    static const char likely[] = "{}[]\",:0123456789-e \\u\n";
    if (file->length < 8) return;
    size_t at = fuzz_below(f, file->length - 4), some = 1 + fuzz_below(f, 16);
    if (fuzz_below(f, 3) == 0 && file->length > 1024) at %= 1024; /* heads are the harder part */
    char *byte    = file->bytes + at;
    size_t behind = file->length - at;
    char piece[16];
    switch (fuzz_below(f, 14)) {
    case 0:
        file->length = at;
        break;
    case 1:
    case 2:
        *byte = (char)(*byte ^ (1 << fuzz_below(f, 8)));
        break;
    case 3:
        if (some > behind) break;
        memmove(byte, byte + some, behind - some);
        file->length -= some;
        break;
    case 4: /* the piece is repeated */
        if (some > behind) break;
        memcpy(piece, byte, some);
        cpl_text_append(file, piece, some); /* makes room; the end moves there */
        byte = file->bytes + at;
        memmove(byte + some, byte, behind);
        memcpy(byte, piece, some);
        break;
    case 5:
    case 6:
    case 7:
        fuzz_number(f, file);
        break;
    case 8:
    case 9:
        fuzz_digit(f, file, at);
        break;
    case 10:
        *byte = (char)fuzz_below(f, 256);
        break;
    default:
        *byte = likely[fuzz_below(f, sizeof likely - 1)];
        break;
    }
}

/* Sets `file` to a copy of `whole` with one to four damages. */
static inline void fuzz_damage(fuzz *f, cpl_text *file, const cpl_text *whole)
{
    cpl_text_clear(file);
    cpl_text_append(file, whole->bytes, whole->length);
    for (size_t n = 1 + fuzz_below(f, 4); n; n--) fuzz_once(f, file);
}

/* Writes the file as it is, without protection from power failures. */
static inline void fuzz_write(const char *path, const cpl_text *file)
{
    FILE *out = fopen(path, "wb");
    if (!out) fail_msg("%s: cannot be written", path);
    assert_int_equal(fwrite(file->bytes, 1, file->length, out), file->length);
    fclose(out);
}

#endif /* CPL_TESTS_FUZZ_H */
