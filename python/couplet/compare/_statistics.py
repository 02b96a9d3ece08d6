"""Means, quantiles, intervals and exact tests on few numbers."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

NAN = math.nan


class Spread(NamedTuple):
    mean: float  # NaN without numbers
    sd: float  # divisor n - 1; NaN for fewer than two numbers
    n: int


def spread(values: Sequence[float]) -> Spread:
    """Returns mean and standard deviation of the values that are numbers."""
    found = [value for value in values if not math.isnan(value)]
    mean = sum(found) / len(found) if found else NAN
    if len(found) < 2:
        return Spread(mean, NAN, len(found))
    squares = sum((value - mean) * (value - mean) for value in found)  # infinite for huge numbers, for which ** raises
    return Spread(mean, math.sqrt(squares / (len(found) - 1)), len(found))


def quantile(values: Sequence[float], share: float) -> float:
    """Returns the quantile, linear between neighbours, as numpy's; NaN without values."""
    if not values:
        return NAN
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low, high = ordered[int(at)], ordered[min(int(at) + 1, len(ordered) - 1)]
    return low + (high - low) * (at - int(at))


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Returns the continued fraction of the incomplete beta function (Press et al., "Numerical Recipes", 6.4, Lentz'
    method)."""
    tiny = 1e-300

    def kept(value: float) -> float:
        return tiny if abs(value) < tiny else value

    c, d = 1.0, 1 / kept(1 - (a + b) * x / (a + 1))
    h = d
    for m in range(1, 10000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d, c = 1 / kept(1 + term * d), kept(1 + term / c)
            h *= d * c
        if abs(d * c - 1) < 1e-15:
            break
    return h


def _beta_share(a: float, b: float, x: float, y: float) -> float:
    """Returns the regularised incomplete beta function I_x(a, b); `y` is 1 - x, given so that no digits are lost."""
    if x <= 0 or y <= 0:
        return 0.0 if x <= 0 else 1.0
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(y))
    if x < (a + 1) / (a + b + 2):
        return front * _beta_fraction(a, b, x) / a
    return 1 - front * _beta_fraction(b, a, y) / b


def student_cdf(t: float, freedom: float) -> float:
    """Returns P(T <= t) of Student's t with `freedom` degrees."""
    whole = freedom + t * t
    beyond = _beta_share(freedom / 2, 0.5, freedom / whole, t * t / whole) / 2
    return 1 - beyond if t > 0 else beyond


def _bisect(is_below: Callable[[float], bool], low: float, high: float) -> float:
    """Returns the point between `low` and `high` where `is_below` ceases to hold."""
    while low < (middle := (low + high) / 2) < high and high - low > 1e-15 * max(abs(low), abs(high)):
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return middle


@functools.lru_cache
def student_quantile(p: float, freedom: float) -> float:
    """Returns the t with P(T <= t) = p, for 0 < p < 1."""
    if p > 0.5:
        return -student_quantile(1 - p, freedom)
    low = -1.0
    while student_cdf(low, freedom) > p and low > -1e300:
        low *= 2
    return _bisect(lambda t: student_cdf(t, freedom) <= p, low, 0.0)


def half(of: Spread) -> float:
    """Returns half of the 95 % interval around the mean, t(0.975) sd / sqrt(n); NaN for n < 2."""
    return student_quantile(0.975, of.n - 1) * of.sd / math.sqrt(of.n) if of.n > 1 else NAN


@functools.lru_cache
def _shift_detected(n: int) -> float:
    """Returns the shift of the noncentral t at which a two-sided test at 5 % on n values has a power of 80 %."""
    f, cells = n - 1.0, 4000
    t, step = student_quantile(0.975, f), (1 + 12 / math.sqrt(f)) / cells
    scale = math.log(2) + f / 2 * math.log(f / 2) - math.lgamma(f / 2)
    rows = []  # terms of Simpson's rule over s = sqrt(chi^2 / f): t s, and weight times density
    for i in range(cells + 1):
        s, weight = step * i, 1 if i in (0, cells) else 4 if i % 2 else 2
        density = math.exp(scale + (f - 1) * math.log(s) - f * s * s / 2) if s else math.exp(scale) if f == 1 else 0
        rows.append((t * s, weight * density * step / 6))

    def power(shift: float) -> float:
        root = math.sqrt(2)
        return sum(w * (math.erfc((x - shift) / root) + math.erfc((x + shift) / root)) for x, w in rows if w)

    high = 4.0
    while power(high) < 0.8:
        high *= 2
    return _bisect(lambda shift: power(shift) < 0.8, 0.0, high)


def detectable(of: Spread) -> float:
    """Returns the smallest true difference that a two-sided t-test at 5 % on n pairs with this standard deviation finds
    with a power of 80 %. It is exact, by the noncentral t. NaN for n < 2."""
    return _shift_detected(of.n) * of.sd / math.sqrt(of.n) if of.n > 1 else NAN


def fair_coin(k: int, n: int) -> float:
    """Returns the two-sided exact p value of `k` of `n` throws of a fair coin; 1 for n = 0."""
    less = min(k, n - k)
    logs = (math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) - n * math.log(2) for i in range(less + 1))
    return min(1.0, 2 * sum(map(math.exp, logs)))
