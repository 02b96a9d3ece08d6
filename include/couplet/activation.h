/* couplet/activation.h - the activations of an expert of which the coupling loss takes the norm.
 *
 * Part of the public interface, included by couplet.h. tensor/erc.h uses the enum too. */
#ifndef COUPLET_ACTIVATION_H
#define COUPLET_ACTIVATION_H

/* The vector whose norm is M[i,j]. In brackets: the matrices that must be given. */
typedef enum cpl_erc_activation {
    CPL_ERC_GATE,    /* R~ W_g: the paper's (gate) */
    CPL_ERC_UP,      /* R~ W_p (up) */
    CPL_ERC_SILU,    /* SiLU(R~ W_g) (gate) */
    CPL_ERC_SWIGLU,  /* SiLU(R~ W_g) * (R~ W_p) (gate, up) */
    CPL_ERC_OUTPUT,  /* (SiLU(R~ W_g) * (R~ W_p)) W_o (gate, up, down) */
    CPL_ERC_GATE_UP, /* R~ W_g and R~ W_p as one vector of 2 D numbers (gate, up) */
} cpl_erc_activation;

#endif /* COUPLET_ACTIVATION_H */
