"""The t-SNE picture of rows of gates, which `couplet inspect --rows FILE.npy` writes, as a chart of kind points."""

from __future__ import annotations

import io
from typing import Any, Dict, List

import numpy as np
from sklearn.manifold import TSNE

from . import _files

Json = Dict[str, Any]
LEAST, MOST = 4, 4096  # rows
MOST_EXPERTS = 64


def rows_of(path: _files.Path) -> Any:
    """Returns the records of a file: layer, expert, row [d]. Raises BadFile."""
    blob = _files.read(path, min(1 << 30, _files.available_bytes() // 4))
    try:
        records = np.load(io.BytesIO(blob), allow_pickle=False)
    except MemoryError:
        raise _files.BadFile("not enough memory") from None
    except Exception as error:  # numpy evaluates the head, which fails in many ways
        raise _files.BadFile(f"it is no file of numpy: {_files.first_line(error)}") from None
    names = getattr(getattr(records, "dtype", None), "names", None)
    if names != ("layer", "expert", "row") or records.ndim != 1 or records["row"].ndim != 2:
        raise _files.BadFile("it has no rows of gates; write it with couplet inspect CHECKPOINT --rows FILE.npy")
    if not LEAST <= len(records) <= MOST or not records["row"].shape[1]:
        raise _files.BadFile(f"t-SNE takes {LEAST} to {MOST} rows of numbers, it has {len(records)}")
    if any(records.dtype[name].base.kind not in "if" for name in names) or not np.isfinite(records["row"]).all():
        raise _files.BadFile("it has rows that are no finite numbers")
    if len(np.unique(records["expert"])) > MOST_EXPERTS:
        raise _files.BadFile(f"it has rows of more than {MOST_EXPERTS} experts")
    return records


def chart_of(path: _files.Path, perplexity: float = 30, seed: int = 1) -> Json:
    """Returns the chart of a file. `perplexity` is limited to (rows - 1) / 3. The iteration begins with the first two
    principal components. Raises BadFile."""
    records = rows_of(path)
    used = min(perplexity, (len(records) - 1) / 3)
    tsne = TSNE(perplexity=used, init="pca", learning_rate="auto", random_state=seed)
    places = tsne.fit_transform(records["row"].astype(np.float32))
    experts: List[int] = sorted({int(one) for one in records["expert"]})
    layers = ", ".join(str(one) for one in sorted({int(one) for one in records["layer"]}))
    return {
        "id": "t-sne",
        "kind": "points",
        "title": "Rows of the experts' gates in two dimensions",
        "caption": f"Layer {layers}; {len(experts)} expert{'s' * (len(experts) > 1)}, {len(records)} rows; perplexity "
        f"{used:g}, Kullback-Leibler divergence {tsne.kl_divergence_:.4g}.",
        "groups": [f"expert {one}" for one in experts],
        "points": {
            "x": [round(float(one), 2) for one in places[:, 0]],
            "y": [round(float(one), 2) for one in places[:, 1]],
            "group": [experts.index(int(one)) for one in records["expert"]],
        },
    }
