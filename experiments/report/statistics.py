"""Means over seeds, and whether a difference is more than noise."""

import math
from collections.abc import Mapping
from statistics import mean, stdev

Scores = Mapping[int, float]  # by seed


def spread(scores: Scores, digits: int) -> str:
    """``mean ± standard deviation (n)``; of one seed the value alone."""
    values = list(scores.values())
    if len(values) == 1:
        return f"{values[0]:.{digits}f} (1)"
    return f"{mean(values):.{digits}f} ± {stdev(values):.{digits}f} ({len(values)})"


def paired_difference(scores: Scores, reference: Scores, level: float = 0.95) -> tuple[float, float, int]:
    """Mean of ``scores - reference`` over the seeds both have, half the width of its t interval, and their number.

    The half-width is infinite below two seeds. Raises:
        ValueError: if they have no seed in common.
    """
    from scipy.stats import t

    seeds = sorted(scores.keys() & reference.keys())
    if not seeds:
        raise ValueError(f"no seed in common: {sorted(scores)} and {sorted(reference)}")
    differences = [scores[seed] - reference[seed] for seed in seeds]
    if len(seeds) == 1:
        return differences[0], math.inf, 1
    error = stdev(differences) / math.sqrt(len(seeds))
    return mean(differences), float(t.ppf((1 + level) / 2, len(seeds) - 1)) * error, len(seeds)


def clear_winner(scores: Mapping[str, Scores], higher: bool) -> str | None:
    """Who is best, if its paired difference to each other one is beyond the interval; else nobody."""
    if len(scores) < 2:
        return None
    best = (max if higher else min)(scores, key=lambda name: mean(scores[name].values()))
    for name, others in scores.items():
        if name != best:
            if not scores[best].keys() & others.keys():
                return None
            difference, half_width, _ = paired_difference(scores[best], others)
            if not (difference if higher else -difference) > half_width:
                return None
    return best
