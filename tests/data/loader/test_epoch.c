/* test_epoch.c - NumPy's numbers and orders, from tests/golden/data/shuffle-vectors.json. */
#include "data/loader/epoch.h"

#include <jansson.h>

#include "check.h"
#include "support/sha256.h"

static json_t *vectors;

static uint64_t hex(const json_t *string)
{
    return strtoull(json_string_value(string), NULL, 16);
}

TEST(words_and_numbers)
{
    size_t i, k;
    json_t *vector, *item;
    json_array_foreach(vectors, i, vector)
    {
        uint64_t seed = (uint64_t)json_integer_value(json_object_get(vector, "seed")), words[4];
        cpl_pcg64 random;
        cpl_pcg64_seed_words(seed, words);
        json_array_foreach(json_object_get(vector, "state_words"), k, item)
            assert_int_equal(words[k], hex(item));
        cpl_pcg64_init(&random, seed);
        json_array_foreach(json_object_get(vector, "next64"), k, item)
            assert_int_equal(cpl_pcg64_u64(&random), hex(item));
        cpl_pcg64_init(&random, seed);
        json_array_foreach(json_object_get(vector, "next32"), k, item)
            assert_int_equal(cpl_pcg64_u32(&random), json_integer_value(item));
    }
    assert_int_equal(i, 8);
}

TEST(orders)
{
    size_t i, k;
    json_t *vector, *shuffle, *item;
    const char *size;
    char sum[65];
    json_array_foreach(vectors, i, vector)
    {
        json_object_foreach(json_object_get(vector, "shuffle"), size, shuffle)
        {
            cpl_pcg64 random;
            int64_t n       = atoll(size);
            uint32_t *items = malloc((size_t)n * sizeof *items);
            for (int64_t j = 0; j < n; j++) items[j] = (uint32_t)j;
            cpl_pcg64_init(&random, (uint64_t)json_integer_value(json_object_get(vector, "seed")));
            cpl_pcg64_shuffle(&random, items, n);
            json_array_foreach(json_object_get(shuffle, "first"), k, item)
                assert_int_equal(items[k], json_integer_value(item));
            sha256_of(sum, items, (size_t)n * sizeof *items);
            assert_string_equal(sum,
                                json_string_value(json_object_get(shuffle, "sha256_uint32le")));
            free(items);
        }
    }
}

/* Numbers are within bounds, and every value of a small interval is met about equally often. */
TEST(intervals)
{
    enum { DRAWS = 60000, VALUES = 6 };
    cpl_pcg64 random;
    int count[VALUES] = {0};
    cpl_pcg64_init(&random, 5);
    assert_int_equal(cpl_pcg64_interval(&random, 0), 0);
    for (int i = 0; i < DRAWS; i++) count[cpl_pcg64_interval(&random, VALUES - 1)]++;
    for (int v = 0; v < VALUES; v++) assert_in_range(count[v], 9500, 10500); /* 5 sigma: 456 */
    for (int i = 0; i < 100; i++)
        assert_true(cpl_pcg64_interval(&random, (uint64_t)1 << 40) <= (uint64_t)1 << 40);
    for (int i = 0; i < 4; i++) (void)cpl_pcg64_interval(&random, UINT64_MAX);
}

TEST(empty)
{
    cpl_pcg64 random;
    uint32_t one = 7;
    cpl_pcg64_init(&random, 0);
    cpl_pcg64_shuffle(&random, NULL, 0);
    cpl_pcg64_shuffle(&random, &one, 1);
    assert_int_equal(one, 7);
}

static int load(void **state)
{
    json_t *file = json_load_file(golden_path("data/shuffle-vectors.json"), 0, NULL);
    vectors      = json_incref(json_object_get(file, "vectors"));
    json_decref(file);
    (void)state;
    return vectors ? 0 : -1;
}

static int unload(void **state)
{
    (void)state;
    json_decref(vectors);
    return 0;
}

TESTS_DO(before_all, load);
TESTS_DO(after_all, unload);
