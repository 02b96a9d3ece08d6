/* page_terms.c - every quantity of the page in two sentences */
#include "inspect/page_internal.h"
#include "report/page.h"

static const struct {
    const char *name, *words;
} terms[] = {
    {"R, W_g, M",
     "Rᵢ is row i of the router and W_g of expert j the matrix whose output enters the "
     "activation function, both as stored: no noise, no bias, no norm folded in. M "
     "holds how strongly expert j answers to router row i, Mᵢⱼ = |Rᵢ · W_gʲ|."},
    {"κ", "κᵢⱼ = Mᵢⱼ / (|Rᵢ| |W_gʲ|), with the Frobenius norm of W_g, is the weighted root mean "
          "square cosine between Rᵢ and the rows of W_gʲ. It does not change when a router row or "
          "an expert is scaled."},
    {"own share", "The share of rows (router rows) and of columns (experts) of κ whose greatest "
                  "entry lies on the diagonal. Without any coupling it is 1/n on average."},
    {"assignment", "The one-to-one pairing of router rows and experts with the greatest sum of κ. "
                   "What is shown is the share of pairs in it that are also pairs in the model; "
                   "random pairing gives 1/n on average."},
    {"z-score", "The mean diagonal of κ less its mean over all n! pairings of router rows and "
                "experts, over its standard deviation over them; both are exact. By chance it lies "
                "between −2 and 2 in about 95 of 100 layers."},
    {"ERC",
     "The coupling loss, (1/n²) Σᵢ Σ_{j≠i} max(Mᵢⱼ − α Mᵢᵢ, 0) + max(Mⱼᵢ − α Mᵢᵢ, 0), on the "
     "clean router rows. It shrinks when the weights shrink, so it is divided by the mean "
     "diagonal of M where it is to be compared."},
    {"random pairings", "ERC of M after each router row was given another expert at random, 100 "
                        "times from a fixed seed, as mean and standard deviation. A coupled layer "
                        "lies far below it."},
    {"ratios, α_min", "Quantiles over all pairs i ≠ j of max(Mᵢⱼ/Mᵢᵢ, Mᵢⱼ/Mⱼⱼ); the greatest is "
                      "α_min, the smallest α for which ERC is zero. One pair can set α_min, and it "
                      "is infinite (∞) where a diagonal entry of M is 0 and another in its row or "
                      "column is not."},
    {"violated", "The share of pairs i ≠ j whose ratio is above 1. Each of them adds to ERC at "
                 "α = 1."},
    {"ε",
     "εᵢ is the distance from router row i to the nearest other row over twice the norm of row "
     "i: the noise that training with the coupling loss allows. In a model trained without "
     "that loss it says nothing about coupling."},
    {"norms",
     "|Rᵢ| is the Euclidean norm of a router row, |W_gʲ| the Frobenius norm of an expert's "
     "gate. They say how large weights are, not whether router and experts agree."},
    {"router cosine",
     "|cos| of the angle between two different router rows, over all pairs. Near 0 "
     "the rows point in unrelated directions."},
    {"silhouette",
     "Of a row of W_g: (b − a) / max(a, b), with a its mean distance 1 − cos to the other rows of "
     "its "
     "expert and b the least mean distance to the rows of another one. 1 means that the rows of an "
     "expert point one way and apart from all others, 0 that another expert is as near, below 0 "
     "that "
     "one is nearer; random rows of many dimensions lie just below 0."},
    {"t-SNE",
     "A map into two dimensions that keeps near neighbours near; here of the rows of W_g of "
     "a few experts. KL is the Kullback-Leibler divergence it reached, lower is closer."},
};

void cpl_coupling_page_definitions(cpl_text *out)
{
    cpl_page_terms_open(out);
    for (size_t i = 0; i < sizeof terms / sizeof *terms; i++)
        cpl_page_term(out, terms[i].name, terms[i].words);
    cpl_page_terms_close(out);
}
