"""How far two labellings of the same tokens agree, beside what chance gives."""

from collections.abc import Callable

import numpy as np
from scipy.stats.contingency import association
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score


def purity(labels: np.ndarray, clusters: np.ndarray) -> float:
    """Share of tokens whose label is the commonest of their cluster. Grows with the number of clusters by itself."""
    return float(contingency(labels, clusters).max(0).sum() / len(labels))


def cramers_v(labels: np.ndarray, clusters: np.ndarray) -> float:
    """sqrt(chi^2 / (n (min(rows, columns) - 1))), 0 to 1; 0 if either labelling has one value only."""
    table = contingency(labels, clusters)
    table = table[table.any(1)][:, table.any(0)]
    return 0.0 if min(table.shape) < 2 else float(association(table, method="cramer"))


def contingency(labels: np.ndarray, clusters: np.ndarray) -> np.ndarray:
    """Counts (labels, clusters) of two arrays of small integers."""
    rows, columns = int(labels.max()) + 1, int(clusters.max()) + 1
    return np.bincount(labels * columns + clusters, minlength=rows * columns).reshape(rows, columns)


MEASURES: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "normalised_mutual_information": normalized_mutual_info_score,
    "adjusted_rand_index": adjusted_rand_score,
    "purity": purity,
    "cramers_v": cramers_v,
}


def agreement(labels: np.ndarray, clusters: np.ndarray, shuffles: int, seed: int) -> dict[str, dict[str, float]]:
    """Every measure: its ``value``, and ``chance``, ``chance_low`` and ``chance_high``: mean and central 95 % of the
    same under shuffled labels.

    Args:
        labels, clusters: (N,) whole numbers from 0. shuffles: of the labels. seed: of these.
    """
    rng = np.random.default_rng(seed)
    shuffled = [rng.permutation(labels) for _ in range(shuffles)]
    found = {}
    for name, measure in MEASURES.items():
        chance = np.array([measure(permuted, clusters) for permuted in shuffled])
        low, high = np.quantile(chance, (0.025, 0.975))
        found[name] = {
            "value": float(measure(labels, clusters)),
            "chance": float(chance.mean()),
            "chance_low": float(low),
            "chance_high": float(high),
        }
    return found
