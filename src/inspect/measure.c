/* measure.c - the figures of all layers: threads take experts, in the order of the file, of
 * several layers at a time. Each expert is read, multiplied and forgotten by one thread, so the
 * figures do not depend on the number of threads.
 *
 * Silhouettes need the means of all experts of the layer, so its experts are read twice. Tasks are
 * given out in order. A thread that waits for the first reading of a layer therefore waits only for
 * threads that do not wait themselves. */
#include <math.h>
#include <omp.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/text.h"
#include "inspect/internal.h"
#include "tensor/product.h"

/* ---- layers in work ---- */

/* Holds a layer in work. The thread that takes its first task prepares it, and the thread that ends
 * its last task finishes it. */
typedef struct work {
    cpl_layer_report *report;
    int64_t index;   /* index in crew.works */
    int64_t n_tasks; /* n, or 2n if experts are read a second time */
    pthread_mutex_t lock;
    pthread_cond_t first_taken; /* signalled when every expert was read once */
    bool begun;                 /* the router was read */
    int64_t left;               /* tasks that are not done */
    int64_t
        failed;   /* the first task that failed, BEFORE, n_tasks, or NEVER; under the crew's lock */
    double bytes; /* bytes to read */
    float *R;     /* [n,d] */
    float *delta; /* [n,d]; NULL without noise */
    cpl_latent latent;
    void *packed;    /* R, or R * delta, as the gates read them */
    float *mean;     /* [n,d] mean of each expert's unit rows; NULL without silhouettes */
    float *norm32;   /* [n] gate norms as an operation takes them */
    float *spectral; /* [n] |W_g^j|_2; NULL without o.lambda */

    /* Figures of the centred rows, or NULL with noise. */
    float *centred_M, *centred_eps; /* [n,n], [n] */
    double *centred_norm;           /* [n] */

    cpl_sample_sums sums; /* with o.sample, if not all rows are read */
} work;

/* Values of work.failed that are not numbers of tasks. BEFORE means that reading the router failed,
 * NEVER that no task failed. */
static const int64_t BEFORE = -1, NEVER = INT64_MAX;

typedef struct crew {
    cpl_coupling_report *report;
    work *works; /* (n) layers to be measured */
    int64_t n, next_work, next_task;
    omp_lock_t lock;     /* guards the fields below, and next_... */
    bool stopped;        /* no thread takes a new task */
    int64_t failed_work; /* the first layer whose failure ends the run, or NEVER */
    cpl_status failure;
    char sentence[1024];
    double began, bytes_read, bytes;
} crew;

/* ---- a layer ---- */

static cpl_matrix like_router(const work *w, float *at)
{
    return (cpl_matrix){at, w->report->at->n, w->report->at->d};
}

/* Returns the rows [n,l] that the gates read, without noise. */
static cpl_matrix like_input(const work *w)
{
    const cpl_moe_layer *at = w->report->at;
    return (cpl_matrix){w->latent.V ? w->latent.V : w->R, at->n, at->l};
}

static cpl_status take_memory(work *w, const cpl_inspect_options *o)
{
    cpl_layer_report *l = w->report;
    const size_t n = (size_t)l->at->n, d = (size_t)l->at->d, row = n * sizeof(float);
    const size_t centred = o->noisy ? 0 : 1, pairs = n * (n - 1) / 2;
    bool failed = false;
    w->R        = cpl_inspect_piece(&failed, d * row);
    w->delta    = cpl_inspect_piece(&failed, o->noisy ? d * row : 0);
    w->mean     = cpl_inspect_piece(&failed, w->n_tasks > l->at->n ? d * row : 0);
    w->packed =
        cpl_inspect_piece(&failed, cpl_cpu_on_host()->response.packed_bytes(l->at->n, l->at->l));
    w->norm32       = cpl_inspect_piece(&failed, row);
    w->spectral     = cpl_inspect_piece(&failed, o->lambda ? row : 0);
    w->centred_M    = cpl_inspect_piece(&failed, centred * n * row);
    w->centred_eps  = cpl_inspect_piece(&failed, centred * row);
    w->centred_norm = cpl_inspect_piece(&failed, centred * n * sizeof(double));
    l->M            = cpl_inspect_piece(&failed, n * row);
    l->eps          = cpl_inspect_piece(&failed, row);
    l->router_norm  = cpl_inspect_piece(&failed, n * sizeof(double));
    l->input_norm   = cpl_inspect_piece(&failed, n * sizeof(double));
    l->gate_norm    = cpl_inspect_piece(&failed, n * sizeof(double));
    l->cosine       = cpl_inspect_piece(&failed, pairs * sizeof(float));
    l->assigned     = cpl_inspect_piece(&failed, n * sizeof(int32_t));
    l->silhouettes  = cpl_inspect_piece(&failed, o->silhouette ? n * sizeof(double) : 0);
    return failed ? CPL_ERR_MEMORY : CPL_OK;
}

static void free_memory(work *w)
{
    cpl_free(w->R);
    cpl_free(w->delta);
    cpl_free(w->mean);
    cpl_free(w->packed);
    cpl_free(w->norm32);
    cpl_free(w->spectral);
    cpl_free(w->centred_M);
    cpl_free(w->centred_eps);
    cpl_free(w->centred_norm);
    w->R = w->delta = w->mean = w->norm32 = w->spectral = NULL;
    w->centred_M = w->centred_eps = NULL;
    w->packed = w->centred_norm = NULL;
    cpl_latent_close(&w->latent);
    cpl_sample_sums_free(&w->sums);
}

/* Returns the key of a layer's noise. The upper bits of a layer's number, which only a damaged file
 * has, go to the step. */
static cpl_rng_key noise_key(uint64_t seed, int64_t layer)
{
    return (cpl_rng_key){.seed   = seed,
                         .step   = (uint64_t)layer >> 16 & 0xffffffffu,
                         .layer  = (uint32_t)layer & 0xffffu,
                         .stream = CPL_STREAM_NOISE};
}

/* Draws delta of the noisy proxies at step 0, and packs the proxies. */
static cpl_status pack_noisy(work *w, uint64_t seed)
{
    const cpl_host_ops *ops = cpl_cpu_on_host();
    const cpl_moe_layer *at = w->report->at;
    const int64_t count     = at->n * at->d;
    const cpl_rng_key key   = noise_key(seed, at->layer);
    cpl_status status       = CPL_OK;
    float *proxies          = cpl_alloc((size_t)count * sizeof(float));
    float *projected        = cpl_alloc((size_t)(at->n * at->l) * sizeof(float));
    cpl_matrix rows         = like_router(w, proxies);
    if (!proxies || !projected) CPL_TRY_DONE(CPL_ERR_MEMORY);
    ops->erc_noise(like_router(w, w->delta), w->report->eps, key, 0, 1);
    for (int64_t i = 0; i < count; i++) proxies[i] = w->R[i] * w->delta[i];
    if (w->latent.W) {
        rows = (cpl_matrix){projected, at->n, at->l};
        CPL_TRY_DONE(cpl_latent_rows(rows, &w->latent, like_router(w, proxies)));
    }
    ops->response.pack(w->packed, rows);
done:
    cpl_free(proxies);
    cpl_free(projected);
    return status;
}

/* Reads router and projection, and computes the figures that need no expert. */
static cpl_status begin_layer(crew *c, work *w)
{
    cpl_layer_report *l = w->report;
    CPL_TRY(take_memory(w, &c->report->options));
    if (cpl_sample_applies(l)) {
        memset(l->M, 0, (size_t)(l->at->n * l->at->n) * sizeof *l->M); /* a sample has no M */
        for (int64_t j = 0; j < l->at->n; j++) l->gate_norm[j] = NAN;
        CPL_TRY(cpl_sample_sums_init(&w->sums, c->report, l));
    }
    const cpl_matrix R = like_router(w, w->R);
    CPL_TRY(cpl_router_read(R, l->at));
    cpl_cpu_on_host()->erc_nearest(l->eps, R, 1);
    if (l->at->projection.weight)
        CPL_TRY(cpl_latent_open(&w->latent, l->at, R, !c->report->options.noisy));
    if (c->report->options.noisy) return pack_noisy(w, c->report->options.noise_seed);
    cpl_cpu_on_host()->response.pack(w->packed, like_input(w));
    return CPL_OK;
}

static void set_norms(double *to, work *w, cpl_matrix rows)
{
    cpl_cpu_on_host()->row_norms(w->norm32, rows);
    for (int64_t i = 0; i < rows.rows; i++) to[i] = (double)w->norm32[i];
}

/* Sets |R_i|, |V_i| and the cosines of the pairs of rows. dots [n,n] is scratch. */
static cpl_status compare_rows(work *w, float *dots)
{
    cpl_layer_report *l = w->report;
    const int64_t n     = l->at->n;
    const cpl_matrix R  = like_router(w, w->R);
    float *to           = l->cosine;
    set_norms(l->router_norm, w, R);
    set_norms(l->input_norm, w, like_input(w));
    CPL_TRY(cpl_product_matrices((cpl_matrix){dots, n, n}, CPL_AS_IS, R, CPL_TRANSPOSED, R, 1));
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j <= i; j++) {
            const double norms = l->router_norm[i] * l->router_norm[j];
            if (!isfinite(dots[i * n + j])) return cpl_inspect_too_large(l->at, i, "row", j);
            if (j < i) *to++ = norms > 0 ? (float)((double)dots[i * n + j] / norms) : 0;
        }
    return CPL_OK;
}

/* Sets the figures of the rows R [n,d], which the gates read as V [n,l]. Figures that need M or the
 * gates' largest singular values are those of V. */
static void set_figures(cpl_coupling_figures *to, const work *w, const float *M, const float *eps,
                        cpl_matrix V, const float *delta, void *scratch)
{
    const int64_t top_k = w->report->at->K ? w->report->at->K : 1;
    const cpl_matrix R  = like_router(w, w->R);
    cpl_coupling_figures of_V;
    cpl_cpu_on_host()->coupling_figures(to, M, eps, R, delta, w->norm32, w->spectral, top_k,
                                        scratch);
    if (!w->latent.V) return;
    cpl_cpu_on_host()->coupling_figures(&of_V, M, eps, V, NULL, w->norm32, w->spectral, top_k,
                                        scratch);
    cpl_figures_take_read(to, &of_V);
}

/* Centres R in place, so it comes after all other figures of the layer. M [n,n] is the matrix of
 * the centred rows. A sample may give any M, since its figures of M are not used. */
static void measure_centred_rows(work *w, const float *M, void *scratch)
{
    cpl_centred_report *to  = &w->report->centred;
    const cpl_host_ops *ops = cpl_cpu_on_host();
    cpl_matrix V            = like_input(w);
    ops->centre(like_router(w, w->R));
    if (w->latent.centred_V)
        V.at = w->latent.centred_V;
    else if (w->latent.V)
        ops->centre(V);
    ops->erc_nearest(w->centred_eps, like_router(w, w->R), 1);
    set_figures(&to->figures, w, M, w->centred_eps, V, NULL, scratch);
    set_norms(w->centred_norm, w, V); /* the figures have the gates' norms by now */
    to->has_rows = w->report->at->comparable;
}

static cpl_status measure_centred(crew *c, work *w, void *scratch)
{
    cpl_layer_report *l          = w->report;
    cpl_centred_report *to       = &l->centred;
    const cpl_inspect_options *o = &c->report->options;
    const int64_t n              = l->at->n;
    measure_centred_rows(w, w->centred_M, scratch);
    for (int a = 0; a < o->n_alphas; a++)
        to->erc[a] = cpl_null_model_erc(w->centred_M, n, o->alphas[a]);
    CPL_TRY(cpl_null_model_ratios_of(&to->ratios, w->centred_M, n));
    CPL_TRY(cpl_null_model_of(&to->chance, NULL, w->centred_M, w->centred_norm, l->gate_norm, n,
                              o->alphas, o->n_alphas, o->seed, l->at->layer));
    to->has_M = l->at->comparable;
    return CPL_OK;
}

/* Sets the figures of the layer after all experts were read. */
static cpl_status finish_layer(crew *c, work *w, cpl_inspect_worker *h)
{
    cpl_layer_report *l          = w->report;
    const cpl_inspect_options *o = &c->report->options;
    const int64_t n              = l->at->n;
    CPL_TRY(compare_rows(w, h->scratch));
    for (int64_t j = 0; j < n; j++)
        w->norm32[j] = cpl_sample_applies(l) ? 0 : (float)l->gate_norm[j];
    set_figures(&l->figures, w, l->M, l->eps, like_input(w), w->delta, h->scratch);
    if (cpl_sample_applies(l)) {
        if (w->centred_M) measure_centred_rows(w, l->M, h->scratch);
        cpl_sample_report_estimate(l, &w->sums, w->centred_norm);
        return CPL_OK;
    }
    for (int a = 0; a < o->n_alphas; a++) l->erc[a] = cpl_null_model_erc(l->M, n, o->alphas[a]);
    CPL_TRY(cpl_null_model_ratios_of(&l->ratios, l->M, n));
    CPL_TRY(cpl_null_model_of(&l->chance, l->assigned, l->M, l->input_norm, l->gate_norm, n,
                              o->alphas, o->n_alphas, o->seed, l->at->layer));
    cpl_silhouette_finish(l);
    l->has_M = l->at->comparable;
    if (w->centred_M) CPL_TRY(measure_centred(c, w, h->scratch));
    if (l->sample) cpl_sample_report_copy(l);
    return CPL_OK;
}

/* ---- an expert ---- */

/* Adds the responses of some rows of a gate. The centred rows of a projection with a norm are no
 * differences of its rows, and have responses of their own. */
static void add_responses(const work *w, cpl_inspect_worker *h, double *squares, double *centred,
                          double *norm, cpl_matrix W)
{
    const cpl_response_ops *ops = &cpl_cpu_on_host()->response;
    const int64_t n             = w->report->at->n;
    const void *own             = w->latent.centred;
    double again                = 0;
    ops->add(squares, own ? NULL : centred, norm, w->packed, n, W, h->scratch);
    if (own) ops->add(centred, NULL, &again, own, n, W, h->scratch);
}

/* Adds the rows that are loaded to squares [n], centred [n] (may be NULL) and norm. */
static cpl_status add_rows(const work *w, cpl_inspect_worker *h, double *squares, double *centred,
                           double *norm)
{
    const cpl_moe_layer *at = w->report->at;
    const int64_t block = cpl_inspect_worker_rows(at), end = h->gate.first + h->gate.rows;
    for (int64_t c = h->gate.first; c < end; c += block) {
        const cpl_matrix W = {h->rows, end - c < block ? end - c : block, at->l};
        cpl_gate_rows(W, &h->gate, c);
        add_responses(w, h, squares, centred, norm, W);
        if (w->spectral)
            memcpy(h->whole + c * at->l, W.at, (size_t)(W.rows * at->l) * sizeof(float));
        if (w->mean) CPL_TRY(cpl_silhouette_add_mean(h, &w->latent, at->d, W));
    }
    return isfinite(*norm) ? CPL_OK : cpl_gate_check(&h->gate, h->rows);
}

static cpl_status measure_expert(work *w, cpl_inspect_worker *h, int64_t j)
{
    cpl_layer_report *l     = w->report;
    const cpl_moe_layer *at = l->at;
    double norm = 0, *centred = w->centred_M ? h->squares + at->n : NULL;
    CPL_TRY(cpl_gate_load(&h->gate, at, j));
    memset(h->squares, 0, 2 * (size_t)at->n * sizeof(double));
    if (w->mean) memset(h->sum, 0, (size_t)at->d * sizeof(double));
    CPL_TRY(add_rows(w, h, h->squares, centred, &norm));
    if (w->mean) cpl_silhouette_mean(w->mean + j * at->d, h, at);
    l->gate_norm[j] = sqrt(norm);
    for (int64_t i = 0; i < at->n; i++) {
        const float m = (float)sqrt(h->squares[i]);
        if (!isfinite(m)) return cpl_inspect_too_large(at, i, "the gate of expert", j);
        l->M[i * at->n + j] = m;
        if (centred) w->centred_M[i * at->n + j] = (float)sqrt(centred[i]);
    }
    if (w->spectral)
        w->spectral[j] =
            cpl_cpu_on_host()->spectral_norm((cpl_matrix){h->whole, at->D, at->l}, h->scratch);
    return CPL_OK;
}

/* Reads the sampled blocks of an expert into the sums, which are zero. */
static cpl_status sample_expert(const crew *c, work *w, cpl_inspect_worker *h, int64_t j)
{
    const cpl_layer_report *l = w->report;
    const int64_t n = l->at->n, b = l->sample->plan.n_read;
    for (int64_t k = 0, rows; k < b; k++) {
        const int64_t first = cpl_sample_block(c->report, l, j, k, &rows), to = (j * b + k) * n;
        double *squares = w->sums.raw.squares + to;
        double *centred = w->sums.centred.squares ? w->sums.centred.squares + to : NULL;
        CPL_TRY(cpl_gate_load_rows(&h->gate, l->at, j, first, rows));
        CPL_TRY(add_rows(w, h, squares, centred, w->sums.raw.norms + j * b + k));
        for (int64_t i = 0; i < n; i++)
            if (!isfinite((float)squares[i]))
                return cpl_inspect_too_large(l->at, i, "the gate of expert", j);
    }
    return CPL_OK;
}

/* ---- the crew ---- */

/* Stops all threads with the calling thread's last sentence. The caller holds c->lock. */
static void stop_crew(crew *c, cpl_status status)
{
    c->stopped = true;
    c->failure = status;
    snprintf(c->sentence, sizeof c->sentence, "%s", cpl_last_error());
}

/* Returns whether the result of this task is still needed, because no earlier task failed. The
 * failure that is reported is then the first in the order of the file. The caller holds c->lock. */
static bool needs_task(const crew *c, const work *w, int64_t task)
{
    return c->failure != CPL_ERR_MEMORY && w->index <= c->failed_work && task < w->failed;
}

static bool still_needs_task(crew *c, const work *w, int64_t task)
{
    omp_set_lock(&c->lock);
    const bool does = needs_task(c, w, task);
    omp_unset_lock(&c->lock);
    return does;
}

/* Sets the layer's fault. Fails with CPL_ERR_MEMORY without memory for the sentence. */
static cpl_status set_fault(cpl_layer_report *l)
{
    cpl_free(l->fault);
    l->fault = cpl_text_copy(cpl_last_error());
    return l->fault ? CPL_OK : CPL_ERR_MEMORY;
}

/* Notes that a task failed. With keep_going the layer is left out. Otherwise all threads stop. */
static void note_failure(crew *c, work *w, int64_t task, cpl_status status)
{
    if (status == CPL_OK) return;
    omp_set_lock(&c->lock);
    const bool first      = needs_task(c, w, task);
    const bool keep_going = c->report->options.keep_going && status != CPL_ERR_MEMORY;
    if (first) w->failed = task;
    if (first && keep_going) status = set_fault(w->report);
    if (first && !keep_going) c->failed_work = w->index;
    if (first && (!keep_going || status != CPL_OK)) stop_crew(c, status);
    omp_unset_lock(&c->lock);
}

/* Takes the next task in the order of the layers: expert `task` mod n of `w`. */
static bool next_task(crew *c, work **w, int64_t *task)
{
    omp_set_lock(&c->lock);
    const bool there = !c->stopped && c->next_work < c->n;
    if (there) {
        *w    = &c->works[c->next_work];
        *task = c->next_task++;
        if (c->next_task == (*w)->n_tasks) {
            c->next_work++;
            c->next_task = 0;
        }
    }
    omp_unset_lock(&c->lock);
    return there;
}

static void report_progress(crew *c, const work *w)
{
    const cpl_inspect_options *o = &c->report->options;
    if (!o->progress) return;
    cpl_inspect_progress p = {.path       = c->report->path,
                              .layer      = w->report->at->layer,
                              .bytes_read = c->bytes_read,
                              .bytes      = c->bytes};
    p.seconds              = cpl_seconds_now() - c->began;
    p.seconds_left = c->bytes_read > 0 ? p.seconds * (c->bytes / c->bytes_read - 1) : (double)NAN;
    o->progress(o->ctx, &p);
}

static void count_task(crew *c, work *w)
{
    omp_set_lock(&c->lock);
    c->bytes_read += w->bytes / (double)w->n_tasks;
    report_progress(c, w);
    omp_unset_lock(&c->lock);
}

/* Reads the router in the first thread, while the others wait. Returns whether the task is
 * needed. */
static bool layer_is_ready(crew *c, work *w, int64_t task)
{
    pthread_mutex_lock(&w->lock);
    if (!w->begun && still_needs_task(c, w, task)) {
        note_failure(c, w, BEFORE, begin_layer(c, w));
        w->begun = true;
    }
    pthread_mutex_unlock(&w->lock);
    return still_needs_task(c, w, task);
}

/* Waits until the mean of every expert is known. */
static bool means_are_ready(crew *c, work *w, int64_t task)
{
    const int64_t n = w->report->at->n;
    pthread_mutex_lock(&w->lock);
    while (w->left > n) pthread_cond_wait(&w->first_taken, &w->lock);
    pthread_mutex_unlock(&w->lock);
    return still_needs_task(c, w, task);
}

static void leave_layer(crew *c, work *w, cpl_inspect_worker *h)
{
    pthread_mutex_lock(&w->lock);
    const bool last = --w->left == 0;
    if (w->left == w->report->at->n) pthread_cond_broadcast(&w->first_taken);
    pthread_mutex_unlock(&w->lock);
    if (!last) return;
    if (still_needs_task(c, w, w->n_tasks)) note_failure(c, w, w->n_tasks, finish_layer(c, w, h));
    free_memory(w);
}

static void prefetch(const crew *c, const cpl_layer_report *l, int64_t expert)
{
    if (!cpl_sample_applies(l)) {
        cpl_gate_prefetch(l->at, expert);
        return;
    }
    for (int64_t k = 0, rows; k < l->sample->plan.n_read; k++) {
        const int64_t first = cpl_sample_block(c->report, l, expert, k, &rows);
        cpl_gate_prefetch_rows(l->at, expert, first, rows);
    }
}

static cpl_status take_expert(crew *c, work *w, cpl_inspect_worker *h, int64_t task)
{
    cpl_layer_report *l = w->report;
    const int64_t n = l->at->n, expert = task % n;
    if (task >= n) return cpl_silhouette_expert(l, h, &w->latent, like_router(w, w->mean), expert);
    return cpl_sample_applies(l) ? sample_expert(c, w, h, expert) : measure_expert(w, h, expert);
}

static void work_on(crew *c, cpl_inspect_worker *h)
{
    work *w;
    int64_t task;
    while (next_task(c, &w, &task)) {
        const int64_t n = w->report->at->n, expert = task % n;
        const bool again = task >= n;
        if (again ? means_are_ready(c, w, task) : layer_is_ready(c, w, task)) {
            if (expert + 1 < n) prefetch(c, w->report, expert + 1);
            note_failure(c, w, task, take_expert(c, w, h, task));
        }
        count_task(c, w);
        leave_layer(c, w, h);
    }
}

static cpl_status list_layers(crew *c)
{
    cpl_coupling_report *r = c->report;
    c->works               = cpl_alloc((size_t)r->n_layers * sizeof *c->works);
    if (!c->works) return CPL_ERR_MEMORY;
    memset(c->works, 0, (size_t)r->n_layers * sizeof *c->works);
    for (int64_t l = 0; l < r->n_layers; l++) {
        if (r->layers[l].fault) continue;
        work *w    = &c->works[c->n];
        w->index   = c->n++;
        w->failed  = NEVER;
        w->report  = &r->layers[l];
        w->n_tasks = w->report->at->n * (cpl_inspect_reads_twice(r, w->report->at) ? 2 : 1);
        w->left    = w->n_tasks;
        pthread_mutex_init(&w->lock, NULL);
        pthread_cond_init(&w->first_taken, NULL);
        w->bytes = cpl_coupling_read_bytes(r, w->report);
        c->bytes += w->bytes;
    }
    return CPL_OK;
}

static void free_layers(crew *c)
{
    for (int64_t i = 0; i < c->n; i++) {
        free_memory(&c->works[i]);
        pthread_mutex_destroy(&c->works[i].lock);
        pthread_cond_destroy(&c->works[i].first_taken);
    }
    cpl_free(c->works);
}

static void run_threads(crew *c, const cpl_inspect_worker_needs *m, int n_threads)
{
#pragma omp parallel num_threads(n_threads)
    {
        cpl_inspect_worker h = {0};
        cpl_status status    = cpl_inspect_worker_init(&h, m);
        if (status == CPL_OK) {
            work_on(c, &h);
        } else {
            omp_set_lock(&c->lock);
            stop_crew(c, status);
            omp_unset_lock(&c->lock);
        }
        cpl_inspect_worker_free(&h);
    }
}

static void count_measured(cpl_coupling_report *r)
{
    r->n_measured = 0;
    for (int64_t l = 0; l < r->n_layers; l++) {
        if (r->layers[l].fault) continue;
        r->n_measured++;
        r->flops += cpl_coupling_flops(r, &r->layers[l]);
    }
}

/* Measures all layers that have no fault yet. `began` is the time at which the inspection began. */
static cpl_status measure_layers(cpl_coupling_report *report, double began)
{
    crew c                           = {.report = report, .began = began, .failed_work = NEVER};
    const cpl_inspect_worker_needs m = cpl_inspect_worker_needs_of(report);
    cpl_status status                = list_layers(&c);
    if (status == CPL_OK) {
        omp_init_lock(&c.lock);
        run_threads(&c, &m, report->options.n_threads);
        omp_destroy_lock(&c.lock);
        status = c.failure == CPL_OK ? CPL_OK : CPL_FAIL(c.failure, "%s", c.sentence);
    }
    report->bytes_read += c.bytes_read;
    count_measured(report);
    free_layers(&c);
    return status;
}

/* ---- the whole measurement ---- */

cpl_status cpl_inspect_run(cpl_coupling_report *report)
{
    const double began = cpl_seconds_now();
    CPL_TRY(measure_layers(report, began));
    if (report->options.rows) CPL_TRY(cpl_inspect_rows_read(report));
    report->seconds = cpl_seconds_now() - began;
    return CPL_OK;
}
