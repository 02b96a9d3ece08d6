/* test_routing_counts.c - counts of a router's choices, against counts by hand and SciPy. */
#include "base/stats/statistics.h"
#include "infer/reader_case.h"
#include "inspect/routing/report.h"

/* ---- counts by hand ---- */

enum { T = 6, N = 4, K = 2 };

/* One layer. Expert 3 gets no token. */
static int32_t choices[T * K] = {0, 1, 0, 2, 1, 0, 2, 0, 0, 1, 1, 2};

static cpl_routing_record by_hand(int32_t *choice)
{
    return (cpl_routing_record){
        .n_layers = 1, .n_tokens = T, .n_experts = N, .top_k = K, .choice = choice};
}

TEST(load_is_counted)
{
    cpl_routing_record r = by_hand(choices);
    cpl_routing_load load;
    int64_t assignments[N];
    const int64_t want[N] = {5, 4, 3, 0};
    cpl_routing_count_load(&load, assignments, &r, 0);
    for (int e = 0; e < N; e++) assert_int_equal(assignments[e], want[e]);
    assert_int_equal(load.dead, 1);
    assert_near(load.most_over_mean, 5.0 * 4 / 12, 1e-15);
    assert_near(load.entropy, -(5 * log(5 / 12.0) + 4 * log(4 / 12.0) + 3 * log(3 / 12.0)) / 12,
                1e-15);
}

TEST(pairs_are_counted)
{
    static const int64_t want[N * N] = {5, 3, 2, 0, 3, 4, 1, 0, 2, 1, 3, 0, 0, 0, 0, 0};
    cpl_routing_record r             = by_hand(choices);
    cpl_routing_pair pairs[2];
    int64_t together[N * N];
    cpl_routing_count_together(together, &r, 0);
    for (int i = 0; i < N * N; i++) assert_int_equal(together[i], want[i]);
    /* 6 pairs over 5*4 + 5*3 + 4*3 products */
    assert_near(cpl_routing_factor(together, N), 6.0 / 47, 1e-15);
    assert_int_equal(cpl_routing_frequent(pairs, 2, together, N), 2);
    assert_true(pairs[0].i == 0 && pairs[0].j == 1 && pairs[0].tokens == 3);
    assert_true(pairs[1].i == 0 && pairs[1].j == 2 && pairs[1].tokens == 2);
    assert_near(pairs[0].expected, 20 * 6.0 / 47, 1e-14);
    cpl_routing_pair all[9];
    assert_int_equal(cpl_routing_frequent(all, 9, together, N), 3);
    assert_true(all[2].i == 1 && all[2].j == 2);
    /* equal counts stand in the order of the experts */
    int64_t even[9] = {4, 2, 2, 2, 4, 2, 2, 2, 4};
    assert_int_equal(cpl_routing_frequent(all, 2, even, 3), 2);
    assert_true(all[0].i == 0 && all[0].j == 1 && all[1].i == 0 && all[1].j == 2);
}

/* scipy.spatial.distance.jensenshannon with base 2 */
TEST(distances_are_scipys)
{
    static const int64_t a[] = {1, 2, 3, 4, 0}, b[] = {4, 0, 3, 2, 6}, tens[] = {10, 20, 30, 40, 0};
    static const int64_t left[] = {1, 0}, right[] = {0, 7}, none[] = {0, 0};
    assert_near(cpl_routing_distance(a, b, 5), 0.6212411070991551, 1e-14);
    assert_near(cpl_routing_distance(a, tens, 5), 0, 1e-7);
    assert_near(cpl_routing_distance(left, right, 2), 1, 1e-15);
    assert_true(isnan(cpl_routing_distance(left, none, 2)));
}

TEST(domains_are_counted)
{
    int32_t source[T]         = {0, 1, 0, 1, 2, 0};
    const int64_t want[3 * N] = {2, 3, 1, 0, 2, 0, 2, 0, 1, 1, 0, 0};
    cpl_routing_record r      = by_hand(choices);
    cpl_routing_tokens tokens = {.count = T, .n_sources = 3, .source = source};
    int64_t by_source[3 * N];
    double sum     = 0;
    const double d = cpl_routing_count_domains(by_source, &r, 0, &tokens);
    for (int i = 0; i < 3 * N; i++) assert_int_equal(by_source[i], want[i]);
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < i; j++) sum += cpl_routing_distance(want + i * N, want + j * N, N) / 3;
    assert_near(d, sum, 1e-14);
    tokens.n_sources = 1;
    memset(source, 0, sizeof source);
    assert_true(isnan(cpl_routing_count_domains(by_source, &r, 0, &tokens)));
}

TEST(saturation_is_the_shared_part)
{
    int32_t later[T * K] = {0, 1, 2, 0, 3, 0, 3, 1, 1, 0, 1, 2};
    cpl_routing_record a = by_hand(choices), b = by_hand(later);
    double topk, top1;
    cpl_routing_saturation(&topk, &top1, &a, &a, 0);
    assert_true(topk == 1 && top1 == 1);
    cpl_routing_saturation(&topk, &top1, &a, &b, 0);
    assert_near(topk, (2 + 2 + 1 + 0 + 2 + 2) / 12.0, 1e-15);
    assert_near(top1, 2 / 6.0, 1e-15);
}

/* Three ids: one always with expert 2 (and another one), one divided, one too rare. */
TEST(vocabulary_is_counted)
{
    enum { MANY = 27, ALL = MANY + 8 };
    int32_t ids[ALL], choice[ALL * 2];
    cpl_routing_record r = {
        .n_layers = 1, .n_tokens = ALL, .n_experts = 5, .top_k = 2, .choice = choice};
    cpl_routing_index index;
    cpl_pool pool = {0};
    cpl_routing_vocabulary v;
    for (int i = 0; i < MANY; i++) {
        ids[i]            = i % 3 == 0 ? 70 : i % 3 == 1 ? 7 : i < 23 ? 9 : 1000 + i;
        choice[2 * i]     = ids[i] == 70 ? 2 : i % 4 == 0 ? 3 : 4;
        choice[2 * i + 1] = ids[i] == 70 ? i % 2 : 0;
        if (ids[i] == 7 && i == 25) choice[2 * i + 1] = 1;
    }
    for (int i = MANY; i < ALL; i++) { /* 8 times, half of them to expert 1 */
        ids[i]            = 11;
        choice[2 * i]     = i % 2 ? 1 : 2;
        choice[2 * i + 1] = 3 + i / 2 % 2;
    }
    assert_ok(cpl_routing_index_init(&index, &pool, ids, ALL, 1));
    assert_int_equal(index.n_ids, 3); /* 9 occurs 7 times */
    assert_ok(cpl_routing_vocabulary_of(&v, &r, 0, &index));
    assert_int_equal(v.n_ids, 3);
    assert_near(v.mean, (1 + 8 / 9.0 + 0.5) / 3, 1e-15);
    /* shuffled: the places stay, so the favourite of all has at least its part of a group */
    assert_true(v.shuffled < v.mean && v.shuffled >= 1 / 3.0);
    cpl_pool_free(&pool);
}

/* Scores need not add up to 1: they are divided by their sum. Padding is no score. */
TEST(scores_become_a_distribution)
{
    int32_t expert[] = {2, 0, 0, 1};
    float scores[] = {0.5f, 0.25f, 1.25f, 9, 9, 9}, weight[] = {3, 1, 7, 7};
    int64_t place[]                = {1, -1};
    const cpl_routing_choices made = {scores, expert, weight};
    cpl_model_settings c           = reader_config();
    cpl_routing_record r;
    cpl_pool pool = {0};
    cpl_text text = {0};
    c.n_layers = 1, c.n_experts = 3, c.top_k = 2;
    assert_ok(cpl_routing_record_init(&r, &pool, &c, 2));
    cpl_routing_record_write(&text, &r, 0, &made, place, 2);
    assert_int_equal(cpl_routing_record_add(&r, text.bytes), text.length);
    cpl_text_free(&text);
    assert_int_equal(cpl_routing_record_at(&r, 0, 1)[0], 2);
    assert_int_equal(cpl_routing_record_at(&r, 0, 1)[1], 0);
    assert_true(r.weight[0] == 1 && r.weight[1] == 0 && r.weight[2] == 3);
    assert_near(r.entropy[0], -(0.25 * log(0.25) + 0.125 * log(0.125) + 0.625 * log(0.625)), 1e-15);
    cpl_pool_free(&pool);
}

TEST(samples_are_even)
{
    for (int64_t all = 1; all < 40; all++)
        for (int64_t sampled = 1; sampled <= all; sampled++) {
            int64_t count = 0, before = -1;
            for (int64_t p = 0; p < all; p++) {
                if (cpl_tokens_sample_at(p, sampled, all) < 0) continue;
                int64_t gap = p - before;
                assert_true(gap == all / sampled || gap == (all + sampled - 1) / sampled);
                before = p;
                count++;
            }
            assert_int_equal(count, sampled);
        }
}

/* ---- agreement by hand ---- */

TEST(agreement_is_counted)
{
    static const double scores[3][4]  = {{4, 3, 2, 1}, {1, 2, 3, 4}, {2, 2, 2, 2}};
    static const double answers[3][4] = {{9, 5, 6, 1}, {5, 5, 7, 7}, {1, 2, 3, 4}};
    static const int32_t chosen[3][2] = {{0, 1}, {3, 2}, {0, 1}};
    void *scratch                     = malloc(cpl_correlation_scratch(4));
    cpl_routing_agreement a;
    cpl_pool pool = {0};
    assert_ok(cpl_routing_agreement_init(&a, &pool, 4, 2, 1, 0));
    for (int t = 0; t < 3; t++)
        cpl_routing_agreement_add(&a, scores[t], answers[t], chosen[t], scratch);
    double rho_0 = 1 - 6.0 * 2 / (4 * 15); /* ranks 4 2 3 1 beside 4 3 2 1 */
    double rho_1 = cpl_correlation_spearman(scores[1], answers[1], 4, scratch);
    assert_int_equal(a.n_tokens, 3);
    assert_int_equal(a.n_ranked, 2); /* the last has equal scores */
    assert_near(a.rho, rho_0 + rho_1, 1e-14);
    assert_near(a.rho_2, rho_0 * rho_0 + rho_1 * rho_1, 1e-14);
    assert_int_equal(a.top1, 1);       /* for the second token, experts 2 and 3 respond equally */
    assert_int_equal(a.shared, 1 + 2); /* {0, 2}, {2, 3}, {3, 2} */
    static const double row_0[4] = {9 + 1, 5 + 2, 6 + 3, 1 + 4};
    for (int j = 0; j < 4; j++) assert_near(a.sums[j], row_0[j], 0);
    assert_int_equal(a.routed[0], 2);
    assert_int_equal(a.routed[3], 1);
    cpl_pool_free(&pool);
    free(scratch);
}

/* Expert 1 has too few tokens: it is left out as row and as column. */
TEST(few_tokens_are_left_out)
{
    static const double alphas[]  = {0.5, 1};
    static const int64_t routed[] = {10, 7, 20};
    static const double mean[9]   = {4, 9, 1, 9, 9, 9, 3, 9, 2};
    static const float M[9]       = {2, 0, 1, 0, 0, 0, 1.5f, 0, 8};
    static const float centred[9] = {2, 0, 3, 0, 0, 0, 1, 0, 8};
    float M_tok[9];
    cpl_routing_agreement a;
    cpl_pool pool = {0};
    cpl_routing_m_tok s;
    assert_ok(cpl_routing_agreement_init(&a, &pool, 3, 1, 1, 0));
    for (int i = 0; i < 3; i++) {
        a.routed[i] = routed[i];
        for (int j = 0; j < 3; j++) a.sums[i * 3 + j] = mean[i * 3 + j] * (double)routed[i];
    }
    assert_ok(cpl_routing_m_tok_of(&s, M_tok, &a, M, centred, alphas, 2));
    for (int i = 0; i < 9; i++) assert_near((double)M_tok[i], mean[i], 1e-6);
    assert_int_equal(s.n_kept, 2);
    assert_int_equal(s.n_left_out, 1);
    assert_near(s.diagonal, 3, 1e-6);
    assert_near(s.rows_own, 0.5, 0);
    assert_near(s.columns_own, 1, 0);
    /* rows: max(1 - a 4, 0) + max(3 - a 2, 0); columns: max(3 - a 4, 0) + max(1 - a 2, 0) */
    assert_near(s.erc[0], (0 + 2 + 1 + 0) / 4.0, 1e-6);
    assert_near(s.erc[1], (0 + 1 + 0 + 0) / 4.0, 1e-6);
    assert_near(s.alpha_min, 1.5, 1e-6);
    assert_near(s.like_M.pearson, -1, 1e-6);       /* 0.4, 1.2 beside 2/3, 0.316 */
    assert_near(s.like_centred.pearson, -1, 1e-6); /* 0.4, 1.2 beside 1.2, 0.222 */
    cpl_pool_free(&pool);
}
