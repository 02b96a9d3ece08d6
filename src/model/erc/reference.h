/* reference.h - the expert-router coupling loss (ERC) and its gradient in plain loops over doubles.
 * It defines what the fast path (coupling.h, tensor/erc.h) must return; tests compare the two.
 *
 * Room:   model/erc. One thread, no allocation. All inputs are finite.
 * Source: "Coupling Experts and Routers in Mixture-of-Experts via an Auxiliary Loss", section 3;
 *         docs/method.md (decisions where the paper leaves a point open), docs/gradients.md
 *         (derivation). Equations 1 and 2 are the two constraints, 3 the loss, 4 the noise bound.
 * Shapes: row-major; weights are [out, in] per expert, as torch.nn.Linear and Hugging Face store
 *         them. In PyTorch, for the paper's activation:
 *
 *             proxy = router * delta                                       # [n_experts, d_model]
 *             M = torch.einsum("ik,jck->ijc", proxy, w_gate).norm(dim=-1)  # [n_experts, n_experts]
 */
#ifndef CPL_MODEL_ERC_REFERENCE_H
#define CPL_MODEL_ERC_REFERENCE_H

#include <stdint.h>

#include "couplet.h"

typedef struct cpl_erc_reference {
    int64_t n_experts, d_model, d_expert;
    cpl_erc_activation activation;
    double alpha;  /* bound of M[i,j] in units of the diagonal */
    double weight; /* factor of the loss in the gradients; the returned loss is unweighted */

    const double *router; /* R [n_experts, d_model] */
    const double *delta;  /* noise [n_experts, d_model], a constant for the gradient; 1: no noise */

    /* The matrices of all experts. Matrices that the activation does not use must be NULL. */
    const double *w_gate; /* W_g [n_experts, d_expert, d_model] */
    const double *w_up;   /* W_p [n_experts, d_expert, d_model] */
    const double *w_down; /* W_o [n_experts, d_model, d_expert] */

    double *proxy;  /* R~ [n_experts, d_model], set by forward */
    double *M;      /* [n_experts, n_experts], set by forward; row i: proxy i, column j: expert j */
    double *grad_M; /* [n_experts, n_experts], set by forward: d loss / d M */

    /* Backward adds to these gradients. Gradients of matrices that are NULL are not used. */
    double *grad_router;                     /* [n_experts, d_model] */
    double *grad_gate, *grad_up, *grad_down; /* shapes of w_gate, w_up, w_down */

    double *scratch; /* 4 d_expert + d_model numbers, free to use between calls */
} cpl_erc_reference;

/* Sets epsilon [n_experts], half the relative distance of each router row [d_model] to the nearest
 * other row. delta_i is drawn from U(1 - epsilon_i, 1 + epsilon_i). epsilon is 0 for a zero row and
 * if n_experts is 1. The gradient treats epsilon, like delta, as a constant. */
void cpl_erc_reference_epsilon(double *epsilon, const double *router, int64_t n_experts,
                               int64_t d_model);

/* Sets proxy and M. Returns the loss of one layer. */
double cpl_erc_reference_forward(const cpl_erc_reference *erc);

/* Adds the gradient of weight times the loss, after forward on the same inputs. A hinge that is
 * exactly 0 passes its gradient. The gradient of a norm M[i,j] = 0 is 0. */
void cpl_erc_reference_backward(const cpl_erc_reference *erc);

#endif /* CPL_MODEL_ERC_REFERENCE_H */
