/* tiny_world.h - a tiny model with random weights, and a text for it. */
#ifndef CPL_TESTS_SUPPORT_TINY_WORLD_H
#define CPL_TESTS_SUPPORT_TINY_WORLD_H

#include "check.h"
#include "model/model.h"
#include "tensor/backend/backend.h"

enum { WORLD_TEXT = 21 };

typedef struct world {
    cpl_backend be;
    cpl_model model;
    int32_t text[WORLD_TEXT];
} world;

static inline cpl_model_settings tiny(void)
{
    cpl_model_settings c;
    assert_ok(cpl_settings_init(&c, &cpl_section_model, 1));
    c.vocab_size    = 61;
    c.d_model       = 24;
    c.d_expert      = 12;
    c.n_layers      = 3;
    c.n_heads       = 4;
    c.n_experts     = 5;
    c.top_k         = 2;
    c.max_positions = 40;
    c.init_std      = 0.3;
    return c;
}

static inline void open_world(world *w, cpl_model_settings c, cpl_dtype compute)
{
    assert_ok(cpl_model_resolve(&c));
    assert_ok(cpl_backend_open(&w->be, "cpu", compute, 2));
    assert_ok(cpl_model_init(&w->model, &w->be, &c, c.max_positions));
    cpl_model_randomize(&w->model, 7);
    cpl_rng_key key = {.seed = 3, .stream = CPL_STREAM_TEST};
    for (uint64_t i = 0; i < WORLD_TEXT; i++)
        w->text[i] = (int32_t)(cpl_rng_u32(&key, i) % (uint32_t)c.vocab_size);
}

static inline void close_world(world *w)
{
    cpl_model_free(&w->model);
    cpl_backend_free(&w->be);
}

#endif /* CPL_TESTS_SUPPORT_TINY_WORLD_H */
