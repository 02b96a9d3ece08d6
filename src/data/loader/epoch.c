/* epoch.c - see epoch.h */
#include "data/loader/epoch.h"

#include <math.h>
#include <string.h>

static int64_t members_of(const cpl_epoch_sources *s, int64_t source)
{
    return s->first[source + 1] - s->first[source];
}

/* Returns the number of instances that the fractional part of the weight adds. */
static int64_t extra(const cpl_epoch_sources *s, int64_t source)
{
    double whole = floor(s->weight[source]);
    return (int64_t)llround((s->weight[source] - whole) * (double)members_of(s, source));
}

int64_t cpl_epoch_size(const cpl_epoch_sources *s)
{
    const double limit = 4294967295.0;
    double size        = 0;
    for (int64_t i = 0; i < s->n_sources; i++)
        size += floor(s->weight[i]) * (double)members_of(s, i) + (double)extra(s, i);
    return size < limit ? (int64_t)size : -1;
}

/* Sets the number of copies of each instance of one source in the epoch. */
static void count_copies(uint32_t *copies, const cpl_epoch_sources *s, int64_t source,
                         uint64_t seed, uint32_t *scratch)
{
    const uint32_t *members = s->members + s->first[source];
    int64_t n = members_of(s, source), more = extra(s, source);
    for (int64_t i = 0; i < n; i++) copies[members[i]] = (uint32_t)floor(s->weight[source]);
    if (!more) return;
    cpl_pcg64 random;
    memcpy(scratch, members, (size_t)n * sizeof *scratch);
    cpl_pcg64_init(&random, seed);
    cpl_pcg64_shuffle(&random, scratch, n);
    for (int64_t i = 0; i < more; i++) copies[scratch[i]]++;
}

void cpl_epoch_order(uint32_t *order, const cpl_epoch_sources *s, uint64_t seed, bool shuffle,
                     uint32_t *copies, uint32_t *scratch)
{
    int64_t size = 0, n = s->first[s->n_sources];
    for (int64_t i = 0; i < s->n_sources; i++) count_copies(copies, s, i, seed, scratch);
    for (int64_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < copies[i]; k++) order[size++] = (uint32_t)i;
    if (!shuffle) return;
    cpl_pcg64 random;
    cpl_pcg64_init(&random, seed);
    cpl_pcg64_shuffle(&random, order, size);
}

/* ---- sequences that repeat themselves ---- */

/* Returns the most repetitions with period `p`, or 0 if no token equals the token p before it. */
static int64_t most_repetitions(const int32_t *ids, int64_t n_ids, int64_t p)
{
    int64_t run = 0, longest = 0;
    for (int64_t i = p; i < n_ids; i++) {
        run = ids[i] == ids[i - p] ? run + 1 : 0;
        if (run > longest) longest = run;
    }
    return longest ? (longest + p) / p : 0;
}

bool cpl_epoch_finds_repeats(const int32_t *ids, int64_t n_ids, int64_t max_period,
                             int64_t min_count)
{
    enum { LEAST = 3 };
    if (min_count < LEAST) min_count = LEAST;
    for (int64_t p = 1; p <= max_period && p < n_ids; p++)
        if (most_repetitions(ids, n_ids, p) >= min_count) return true;
    return false;
}

__extension__ typedef unsigned __int128 wide;

static wide join(const uint64_t halves[2])
{
    return (wide)halves[0] << 64 | halves[1];
}

static void split(uint64_t halves[2], wide number)
{
    halves[0] = (uint64_t)(number >> 64);
    halves[1] = (uint64_t)number;
}

/* ---- SeedSequence ---- */

static uint32_t hash_mix(uint32_t value, uint32_t *hash)
{
    value ^= *hash;
    *hash *= 0x931e8875u;
    value *= *hash;
    return value ^ value >> 16;
}

static uint32_t mix(uint32_t x, uint32_t y)
{
    uint32_t r = 0xca01f9ddu * x - 0x4973f715u * y;
    return r ^ r >> 16;
}

void cpl_pcg64_seed_words(uint64_t seed, uint64_t words[4])
{
    uint32_t pool[4] = {(uint32_t)seed, (uint32_t)(seed >> 32), 0, 0}, out[8];
    uint32_t hash    = 0x43b0d7e5u;
    for (int i = 0; i < 4; i++) pool[i] = hash_mix(pool[i], &hash);
    for (int s = 0; s < 4; s++)
        for (int d = 0; d < 4; d++)
            if (s != d) pool[d] = mix(pool[d], hash_mix(pool[s], &hash));
    hash = 0x8b51f9ddu;
    for (int i = 0; i < 8; i++) {
        uint32_t value = pool[i % 4] ^ hash;
        hash *= 0x58f38dedu;
        value *= hash;
        out[i] = value ^ value >> 16;
    }
    for (int k = 0; k < 4; k++) words[k] = out[2 * k] | (uint64_t)out[2 * k + 1] << 32;
}

/* ---- PCG64 ---- */

static wide step(cpl_pcg64 *random)
{
    static const uint64_t multiplier[2] = {2549297995355413924u, 4865540595714422341u};
    wide state = join(random->state) * join(multiplier) + join(random->increment);
    split(random->state, state);
    return state;
}

void cpl_pcg64_init(cpl_pcg64 *random, uint64_t seed)
{
    uint64_t words[4];
    cpl_pcg64_seed_words(seed, words);
    memset(random, 0, sizeof *random);
    split(random->increment, join(words + 2) << 1 | 1);
    step(random);
    split(random->state, join(random->state) + join(words));
    step(random);
}

uint64_t cpl_pcg64_u64(cpl_pcg64 *random)
{
    wide state    = step(random);
    uint64_t x    = (uint64_t)(state >> 64) ^ (uint64_t)state;
    unsigned turn = (unsigned)(state >> 122);
    return x >> turn | x << (-turn & 63);
}

uint32_t cpl_pcg64_u32(cpl_pcg64 *random)
{
    random->has_spare = !random->has_spare;
    if (!random->has_spare) return random->spare;
    uint64_t both = cpl_pcg64_u64(random);
    random->spare = (uint32_t)(both >> 32);
    return (uint32_t)both;
}

uint64_t cpl_pcg64_interval(cpl_pcg64 *random, uint64_t max)
{
    uint64_t mask = max, value = 0;
    for (int shift = 1; shift < 64; shift *= 2) mask |= mask >> shift;
    do {
        value = mask & (max >> 32 ? cpl_pcg64_u64(random) : cpl_pcg64_u32(random));
    } while (value > max);
    return value;
}

void cpl_pcg64_shuffle(cpl_pcg64 *random, uint32_t *items, int64_t count)
{
    for (int64_t i = count - 1; i > 0; i--) {
        uint64_t j    = cpl_pcg64_interval(random, (uint64_t)i);
        uint32_t item = items[i];
        items[i]      = items[j];
        items[j]      = item;
    }
}
