/* test_routing.c - a report on a model whose router is planted, in every form, and the errors when
 * a checkpoint is missing or memory ends. With a folder as argument the program writes its page
 * there, for tests/report/check_view.py. */
#include "base/stats/statistics.h"
#include "infer/reader_case.h"
#include "inspect/routing/report.h"
#include "inspect/show/show.h"
#include "report/page_check.h"
#include "report/view.h"

/* ---- a planted router ---- */

enum { LAYERS = 2, EXPERTS = 5, WIDTH = 24, INNER = 10 };

/* Plants the model. A token of class a = id mod 5 is sqrt(24) e_a at every place, as no layer adds
 * to the stream. Router row e responds to class e most and to class e + `second` next. */
static void plant(model_case *m, int second)
{
    cpl_backend *be                   = &m->be;
    cpl_params *p                     = &m->model.master;
    float embed[READER_VOCAB * WIDTH] = {0};
    for (int id = 0; id < READER_VOCAB; id++) embed[id * WIDTH + id % EXPERTS] = 1;
    be->ops->put(be, p->embed, embed);
    for (int l = 0; l < LAYERS; l++) {
        cpl_layer_params *w           = &p->layer[l];
        float router[EXPERTS * WIDTH] = {0};
        be->ops->fill(be, w->w_o, 0);
        be->ops->fill(be, w->w_down, 0);
        for (int e = 0; e < EXPERTS; e++) {
            router[e * WIDTH + e] = 0.4f;
            router[e * WIDTH + (e + second) % EXPERTS] += 0.2f;
        }
        be->ops->put(be, w->router, router);
    }
    cpl_model_refresh(&m->model);
}

/* Writes RUN with step-000010 and step-000020. Their routers differ in the second choice alone. */
static const char *planted_run(void)
{
    cpl_model_settings c = reader_config();
    model_case *m        = model_drawn(&c, 9);
    const char *run      = scratch_folder();
    for (int s = 1; s <= 2; s++) {
        char name[24];
        snprintf(name, sizeof name, "step-%06d", 10 * s);
        assert_ok(cpl_folder_make(in_folder(run, name)));
        plant(m, s);
        reader_save(in_folder(run, name), m, 0, true);
    }
    assert_int_equal(symlink("step-000020", in_folder(run, "last")), 0);
    model_gone(m);
    return run;
}

static cpl_routing_options options_of(const char **input)
{
    cpl_routing_options o = {.inputs          = input,
                             .n_inputs        = 1,
                             .texts           = cpl_texts_defaults(),
                             .response_tokens = 1000,
                             .alphas          = {0.5, 1, 2},
                             .n_alphas        = 3,
                             .seed            = 1};
    o.reader.n_threads    = 2;
    o.reader.window       = 24;
    o.reader.batch_tokens = 3000;
    return o;
}

static void measure(cpl_routing_report *r, const char *model, const cpl_routing_options *o)
{
    cpl_routing_cost cost;
    assert_ok(cpl_routing_open(r, &cost, model, o, NULL));
    assert_ok(cpl_routing_run(r, NULL));
}

/* Returns the class of the token at each place, from the texts. */
static int *classes_of(const cpl_texts *texts)
{
    int *classes = calloc((size_t)texts->n_predictions, sizeof *classes);
    for (int64_t d = 0; d < texts->n_documents; d++)
        for (int64_t k = 0; k < texts->documents[d].predictions; k++)
            classes[texts->documents[d].place + k] = cpl_texts_input(texts, d, k) % EXPERTS;
    return classes;
}

/* Returns the second of the K = 2 experts of a class in the last step: a, and e with e + 2 = a. */
static int second_of(int class)
{
    return (class + EXPERTS - 2) % EXPERTS;
}

static void check_load(const cpl_routing_report *r, const int *classes)
{
    const cpl_routing_layer *l = &r->layers[1];
    int64_t count[EXPERTS] = {0}, first[EXPERTS] = {0}, all = r->texts.n_predictions;
    double p1 = exp(0.4 * sqrt(24)), p2 = exp(0.2 * sqrt(24)), sum = p1 + p2 + 3, entropy;
    for (int64_t t = 0; t < all; t++) {
        count[classes[t]]++;
        first[classes[t]]++;
        count[second_of(classes[t])]++;
    }
    for (int e = 0; e < EXPERTS; e++) {
        double weight = (p1 * (double)first[e] + p2 * (double)(count[e] - first[e])) / sum;
        assert_int_equal(l->assignments[e], count[e]);
        assert_near(l->mean_weight[e], weight / (double)count[e], 1e-4);
        assert_int_equal(l->together[e * EXPERTS + second_of(e)],
                         first[e]); /* class e alone has both */
    }
    entropy = log(sum) - (p1 * log(p1) + p2 * log(p2)) / sum;
    assert_near(l->router_entropy, entropy, 1e-4);
}

static void check_domains(const cpl_routing_report *r, const int *classes)
{
    int64_t count[2 * EXPERTS] = {0};
    for (int64_t d = 0; d < r->texts.n_documents; d++)
        for (int64_t k = 0; k < r->texts.documents[d].predictions; k++) {
            int64_t source = r->texts.documents[d].source;
            int class      = classes[r->texts.documents[d].place + k];
            count[source * EXPERTS + class]++;
            count[source * EXPERTS + second_of(class)]++;
        }
    for (int i = 0; i < 2 * EXPERTS; i++) assert_int_equal(r->layers[0].by_source[i], count[i]);
    assert_near(r->layers[0].domain_distance, cpl_routing_distance(count, count + EXPERTS, EXPERTS),
                1e-12);
}

/* Returns x W_g^j of class a: sqrt(24) times the length of column a. */
static double answer_of(const float *w_gate, int j, int class)
{
    double squares = 0;
    for (int c = 0; c < INNER; c++) {
        double w = (double)w_gate[(j * INNER + c) * WIDTH + class];
        squares += w * w;
    }
    return sqrt(24 * squares / (1 + 24e-5));
}

static double clean_of(const float *w_gate, const float *router, int i, int j)
{
    double squares = 0;
    for (int c = 0; c < INNER; c++) {
        double sum = 0;
        for (int a = 0; a < WIDTH; a++)
            sum += (double)router[i * WIDTH + a] * (double)w_gate[(j * INNER + c) * WIDTH + a];
        squares += sum * sum;
    }
    return sqrt(squares);
}

static void check_answers(const cpl_routing_report *r, const int *classes, model_case *m)
{
    const float *w                = cpl_f32(seen(&m->be, m->model.master.layer[1].w_gate));
    const float *R                = cpl_f32(seen(&m->be, m->model.master.layer[1].router));
    const cpl_routing_layer *l    = &r->layers[1];
    double sums[EXPERTS][EXPERTS] = {{0}}, x[20], y[20], rho = 0, rho_2 = 0;
    int64_t routed[EXPERTS] = {0}, top1 = 0, shared = 0, sampled = 0;
    void *scratch = malloc(cpl_correlation_scratch(20));
    for (int64_t t = 0; t < r->texts.n_predictions; t++) {
        if (cpl_tokens_sample_at(t, r->n_sampled, r->texts.n_predictions) < 0) continue;
        int chosen[2] = {classes[t], second_of(classes[t])}, place[2] = {0};
        double score[EXPERTS] = {0}, answer[EXPERTS];
        for (int j = 0; j < EXPERTS; j++) answer[j] = answer_of(w, j, classes[t]);
        score[chosen[0]] = 2;
        score[chosen[1]] = 1;
        for (int k = 0; k < 2; k++) {
            routed[chosen[k]]++;
            for (int j = 0; j < EXPERTS; j++) {
                sums[chosen[k]][j] += answer[j];
                place[k] += answer[j] > answer[chosen[k]];
            }
            shared += place[k] < 2;
        }
        top1 += place[0] == 0;
        double one = cpl_correlation_spearman(score, answer, EXPERTS, scratch);
        rho += one;
        rho_2 += one * one;
        sampled++;
    }
    assert_int_equal(sampled, r->n_sampled);
    for (int i = 0, k = 0; i < EXPERTS; i++) {
        assert_int_equal(l->routed[i], routed[i]);
        assert_true(routed[i] >= CPL_TOKENS_FEW);
        double row[2] = {0}, tok[EXPERTS][EXPERTS], clean[EXPERTS][EXPERTS];
        for (int j = 0; j < EXPERTS; j++) {
            double mean = sums[i][j] / (double)routed[i];
            assert_near((double)l->M_tok[i * EXPERTS + j], mean, 1e-5 * mean);
            tok[i][j]   = mean;
            clean[i][j] = clean_of(w, R, i, j);
            row[0] += mean / EXPERTS;
            row[1] += clean[i][j] / EXPERTS;
        }
        for (int j = 0; j < EXPERTS; j++) {
            if (i == j) continue;
            x[k]   = tok[i][j] / row[0];
            y[k++] = clean[i][j] / row[1];
        }
    }
    assert_near(l->rho_mean, rho / (double)sampled, 1e-6);
    assert_near(l->rho_sd, sqrt(rho_2 / (double)sampled - rho * rho / (double)(sampled * sampled)),
                1e-5);
    assert_near(l->top1, (double)top1 / (double)sampled, 1e-12);
    assert_near(l->overlap, (double)shared / (double)(2 * sampled), 1e-12);
    assert_near(l->m_tok.like_M.pearson, cpl_correlation_pearson(x, y, 20), 1e-5);
    assert_near(l->m_tok.like_M.spearman, cpl_correlation_spearman(x, y, 20, scratch), 1e-5);
    free(scratch);
}

/* Checks that an id always has the experts of its class. */
static void check_vocabulary(const cpl_routing_report *r)
{
    for (int l = 0; l < LAYERS; l++) {
        const cpl_routing_vocabulary *v = &r->layers[l].input;
        assert_true(v->n_ids > 5);
        assert_near(v->mean, 1, 0);
        assert_true(v->shuffled < 0.95);
    }
}

TEST(a_planted_router_is_found)
{
    const char *run = planted_run(), *text = reader_text(30);
    cpl_routing_options o = options_of(&text);
    cpl_routing_report r;
    cpl_routing_cost cost;
    cpl_hf *hf           = NULL;
    cpl_model_settings c = reader_config();
    model_case *m        = model_empty(&c, 32);
    assert_ok(cpl_routing_open(&r, &cost, run, &o, NULL));
    assert_int_equal(cost.checkpoints, 2);
    assert_int_equal(cost.tokens, r.texts.n_predictions);
    assert_ok(cpl_routing_run(&r, NULL));
    assert_ok(cpl_hf_open(&hf, run, NULL));
    assert_ok(cpl_hf_load(hf, &m->model));
    int *classes = classes_of(&r.texts);
    assert_int_equal(r.n_sampled, 1000); /* more texts at once than fit into memory */
    check_load(&r, classes);
    check_domains(&r, classes);
    check_answers(&r, classes, m);
    check_vocabulary(&r);
    assert_int_equal(r.n_steps, 1);
    assert_int_equal(r.steps[0].step, 10);
    for (int l = 0; l < LAYERS; l++) {
        assert_near(r.steps[0].top1[l], 1, 0);
        assert_near(r.steps[0].topk[l], 0.5, 0);
    }
    free(classes);
    cpl_hf_close(hf);
    model_gone(m);
    cpl_routing_close(&r);
}

/* Receives the warnings: a checkpoint that cannot be read is named and left out. */
static void hear(void *ctx, cpl_log_level level, const char *sentence)
{
    char *heard = ctx;
    if (level == CPL_LOG_WARN) snprintf(heard, 400, "%s", sentence);
}

TEST(a_lost_checkpoint_is_told)
{
    const char *run = planted_run(), *text = reader_text(5);
    char heard[400]       = "";
    cpl_log log           = {hear, heard};
    cpl_routing_options o = options_of(&text);
    cpl_routing_report r;
    cpl_routing_cost cost;
    assert_ok(cpl_routing_open(&r, &cost, run, &o, NULL));
    cpl_folder_remove(in_folder(run, "step-000010"));
    assert_ok(cpl_routing_run(&r, &log));
    assert_int_equal(r.n_steps, 0);
    assert_int_equal(r.n_lost, 1);
    assert_non_null(strstr(heard, "step 10 is left out of router saturation"));
    cpl_routing_close(&r);
}

/* Makes the page of a report with the routing alone. */
static cpl_status make_page(cpl_text *page, const cpl_routing_report *r)
{
    cpl_pool pool     = {0};
    cpl_grid grid     = {0};
    cpl_text verdict  = {0};
    json_t *report    = json_pack("{s:o}", "routing", cpl_routing_json(r));
    cpl_status status = report ? CPL_OK : CPL_ERR_MEMORY;
    cpl_routing_verdict(&verdict, r);
    if (status == CPL_OK) status = cpl_text_status(&verdict);
    if (status == CPL_OK) status = cpl_routing_grid(&grid, &pool, r, CPL_TABLE_CHOICES);
    const cpl_view view = LIST(.kind = "routing", .title = "Routing", .report = report,
                               .sentences = verdict.bytes, .main = &grid);
    if (status == CPL_OK) status = cpl_view_page(page, &view);
    json_decref(report);
    cpl_text_free(&verdict);
    cpl_pool_free(&pool);
    return status;
}

/* Every member of the report is present, and the drawings are well-formed. */
TEST(shown_in_every_form)
{
    const char *run = planted_run(), *text = reader_text(30);
    cpl_routing_options o = options_of(&text);
    cpl_routing_report r;
    cpl_text page = {0};
    measure(&r, run, &o);
    json_t *json = cpl_routing_json(&r), *layers = json_object_get(json, "layers");
    assert_int_equal(json_array_size(layers), LAYERS);
    json_t *layer = json_array_get(layers, 1);
    json_t *M     = json_object_get(json_object_get(layer, "tokens_M"), "M");
    assert_near(json_real_value(json_array_get(json_array_get(M, 2), 3)),
                (double)r.layers[1].M_tok[2 * EXPERTS + 3], 0);
    json_t *by = json_array_get(json_object_get(json_object_get(layer, "domains"), "by_expert"), 1);
    double sum = 0;
    for (size_t e = 0; e < EXPERTS; e++) sum += json_real_value(json_array_get(by, e));
    assert_near(sum, 1, 1e-12);
    assert_int_equal(json_array_size(json_object_get(json, "saturation")), 1);
    const cpl_routing_summary mean = cpl_routing_summary_of(&r);
    double rho                     = 0;
    for (int64_t l = 0; l < LAYERS; l++) rho += r.layers[l].rho_mean / LAYERS;
    assert_near(mean.rho, rho, 1e-12);
    assert_near(json_real_value(json_object_get(json_object_get(json, "summary"), "spearman")), rho,
                1e-12);
    assert_near(json_real_value(json_object_get(layer, "load_evenness")),
                r.layers[1].load.entropy / log(EXPERTS), 1e-12);
    json_decref(json);
    assert_ok(make_page(&page, &r));
    check_page(&page);
    cpl_text_free(&page);
    cpl_routing_close(&r);
}

/* Makes the report and all its forms. With a failing allocation it returns a status only. */
static cpl_status everything(const char *run, const char **text)
{
    cpl_routing_options o = options_of(text);
    cpl_routing_report r;
    cpl_routing_cost cost;
    cpl_text page     = {0};
    cpl_status status = CPL_OK;
    CPL_TRY_DONE(cpl_routing_open(&r, &cost, run, &o, NULL));
    CPL_TRY_DONE(cpl_routing_run(&r, NULL));
    CPL_TRY_DONE(make_page(&page, &r));
done:
    cpl_text_free(&page);
    cpl_routing_close(&r);
    return status;
}

TEST(without_memory_it_is_said)
{
    const char *run = planted_run(), *text = reader_text(2);
    int64_t before = cpl_alloc_count();
    assert_ok(everything(run, &text));
    int64_t all = cpl_alloc_count() - before, held = cpl_alloc_in_use(), failed = 0;
    for (int64_t n = 1; n <= all; n += 1 + all / 150) {
        cpl_alloc_fail_at(n);
        cpl_status status = everything(run, &text);
        cpl_alloc_fail_at(0);
        if (status != CPL_OK && status != CPL_ERR_MEMORY)
            fail_msg("allocation %d of %d: %s", (int)n, (int)all, cpl_last_error());
        failed += status != CPL_OK;
        assert_int_equal(cpl_alloc_in_use(), held);
    }
    assert_true(failed > 100);
}

/* With one expert and one token, no figure is 0 / 0. */
TEST(the_smallest_case)
{
    cpl_model_settings c = reader_config();
    c.n_experts = c.top_k = 1;
    const char *folder = reader_folder(&c, 3), *text = in_folder(scratch_folder(), "a.txt");
    cpl_routing_options o = options_of(&text);
    cpl_routing_report r;
    cpl_text page = {0};
    write_string(text, "a");
    measure(&r, folder, &o);
    assert_int_equal(r.layers[0].assignments[0], 1);
    assert_near(r.layers[0].mean_weight[0], 1, 1e-6);
    assert_near(r.layers[0].load.most_over_mean, 1, 0);
    assert_true(isnan(r.layers[0].rho_mean) && isnan(r.layers[0].domain_distance));
    assert_int_equal(r.layers[0].m_tok.n_left_out, 1);
    json_t *json = cpl_routing_json(&r);
    assert_non_null(json);
    json_decref(json);
    assert_ok(make_page(&page, &r));
    cpl_text_free(&page);
    cpl_routing_close(&r);
}

/* The responses of latent experts are those of a projection of x. */
TEST(latent_experts_are_refused)
{
    cpl_model_settings c = reader_config();
    c.d_latent           = 8;
    const char *folder = reader_folder(&c, 3), *text = reader_text(5);
    cpl_routing_options o = options_of(&text);
    cpl_routing_report r;
    cpl_routing_cost cost;
    assert_int_equal(cpl_routing_open(&r, &cost, folder, &o, NULL), CPL_ERR_INPUT);
    assert_non_null(strstr(cpl_last_error(), "latent experts"));
}

/* ---- one vector added to all router rows ---- */

/* Checks the figures that softmax routing leaves as they are: the order of a token's experts, and
 * the experts' responses to tokens. */
static void check_unmoved(const cpl_routing_layer *a, const cpl_routing_layer *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++) assert_int_equal(a->assignments[i], b->assignments[i]);
    assert_near(b->rho_mean, a->rho_mean, 1e-9);
    assert_near(b->top1, a->top1, 0);
    assert_near(b->overlap, a->overlap, 0);
    assert_near(b->m_tok.rows_own, a->m_tok.rows_own, 0);
    assert_near(b->m_tok.columns_own, a->m_tok.columns_own, 0);
    assert_near(b->m_tok.like_centred.pearson, a->m_tok.like_centred.pearson, 1e-4);
    assert_near(b->signs.tokens.all, a->signs.tokens.all, 1e-9);
    assert_near(b->centred_signs.negative, a->centred_signs.negative, 0.002);
    assert_near(b->centred_signs.tokens.above, a->centred_signs.tokens.above, 0.01);
    assert_near(b->centred_signs.experts.all, a->centred_signs.experts.all, 0.01);
    for (int64_t i = 0; i < n * n; i++) {
        const double size = (double)a->M_tok[i];
        assert_true(isnan(size) == isnan((double)b->M_tok[i]));
        if (!isnan(size)) assert_near((double)b->M_tok[i], size, 1e-5 * size);
        assert_near((double)b->M_centred[i], (double)a->M_centred[i],
                    1e-4 * (double)a->M_centred[i]);
    }
}

TEST(a_shift_of_all_rows_moves_M_alone)
{
    cpl_model_settings c = reader_config();
    const char *text = reader_text(30), *before = scratch_folder(), *after = scratch_folder();
    model_case *m         = model_drawn(&c, 4);
    cpl_routing_options o = options_of(&text);
    cpl_routing_report a, b;
    o.response_tokens = 200;
    reader_save(before, m, 0, true);
    for (int64_t l = 0; l < c.n_layers; l++) {
        const cpl_tensor router = seen(&m->be, m->model.master.layer[l].router);
        for (int64_t i = 0; i < c.n_experts * c.d_model; i++)
            cpl_f32(router)[i] += (float)(i % c.d_model % 3 - 1);
        m->be.ops->put(&m->be, m->model.master.layer[l].router, router.storage);
    }
    cpl_model_refresh(&m->model);
    reader_save(after, m, 0, true);
    measure(&a, before, &o);
    measure(&b, after, &o);
    for (int64_t l = 0; l < c.n_layers; l++) {
        const cpl_routing_layer *x = &a.layers[l], *y = &b.layers[l];
        const double erc = cpl_null_model_erc(x->M, c.n_experts, 1);
        check_unmoved(x, y, c.n_experts);
        assert_true(fabs(cpl_null_model_erc(y->M, c.n_experts, 1) - erc) > 0.05 * erc);
        assert_near(cpl_null_model_erc(y->M_centred, c.n_experts, 1),
                    cpl_null_model_erc(x->M_centred, c.n_experts, 1), 1e-4 * erc);
        assert_true(fabs(y->signs.negative - x->signs.negative) > 0.01);
    }
    cpl_routing_close(&a);
    cpl_routing_close(&b);
    model_gone(m);
}

/* Writes the page for check_view.py of tests/report. */
static int write_page(const char *folder)
{
    const char *run = planted_run(), *text = reader_text(30);
    cpl_routing_options o = options_of(&text);
    cpl_routing_report r;
    cpl_text page = {0};
    char path[600];
    measure(&r, run, &o);
    snprintf(path, sizeof path, "%s/routing.html", folder);
    assert_ok(make_page(&page, &r));
    assert_ok(cpl_file_write_atomic(path, page.bytes, page.length));
    cpl_text_free(&page);
    cpl_routing_close(&r);
    return 0;
}

TESTS_DO(with_argument, write_page);
