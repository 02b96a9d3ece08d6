/* couplet.h - the expert-router coupling loss. (Being written: the door's functions follow.) */
#ifndef COUPLET_H
#define COUPLET_H
#include "couplet/status.h"
#ifdef __cplusplus
extern "C" {
#endif

/* What M takes the norm of (method.md section 2). */
typedef enum cpl_erc_activation {
    CPL_ERC_GATE,   /* R~ W_g: the paper's */
    CPL_ERC_UP,     /* R~ W_p */
    CPL_ERC_SILU,   /* SiLU(R~ W_g) */
    CPL_ERC_SWIGLU, /* SiLU(R~ W_g) * (R~ W_p) */
    CPL_ERC_OUTPUT, /* (SiLU(R~ W_g) * (R~ W_p)) W_o */
} cpl_erc_activation;

#ifdef __cplusplus
}
#endif
#endif
