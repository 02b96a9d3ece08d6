"""HongcanGuo/Auxloss-For-Advancing-Expert-Specialization #3: the code projects each output onto the span of the others;
equation 6 of the paper (arXiv 2505.22323) has projections onto each other."""

SOURCE, KIND = "Advancing Expert Specialization, its code: issue 3", "expert-orthogonality"


def loss(outputs, coefficient):
    T, K, _ = outputs.shape
    total = 0.0
    for j in range(K):
        basis = []
        for k in range(K):
            if k == j:
                continue
            v = outputs[:, k]
            for u in basis:
                v = v - (u * v).sum(-1, keepdim=True) * u
            basis.append(v / (v.norm(dim=-1, keepdim=True) + 1e-6))
        for u in basis:
            total = total + ((u * outputs[:, j]).sum(-1, keepdim=True) * u).square().sum()
    return coefficient * total / (T * K)
