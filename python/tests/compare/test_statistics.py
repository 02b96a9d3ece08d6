"""Means, quantiles and tests against SciPy's and numpy's values."""

import math

import pytest
from couplet.compare import _statistics as statistics
from couplet.compare._statistics import Spread

NAN = math.nan


def test_means_pass_over_what_is_missing():
    values = [1, NAN, 2, 6]
    assert statistics.spread(values) == Spread(3, pytest.approx(math.sqrt(7), 1e-15), 3)
    assert statistics.spread(values[:2])[::2] == (1, 1) and math.isnan(statistics.spread(values[:2]).sd)
    none = statistics.spread([])
    assert none.n == 0 and math.isnan(none.mean) and math.isnan(none.sd)


@pytest.mark.parametrize("share, want", [(0.5, 2.5), (0.025, 1.075), (1, 5), (0, 1)])
def test_quantiles_are_numpys(share, want):
    assert statistics.quantile([5, 1, 3, 2], share) == pytest.approx(want, 1e-14)
    assert math.isnan(statistics.quantile([], share))


# scipy.stats.t.ppf
@pytest.mark.parametrize(
    "p, freedom, want",
    [
        (0.975, 1, 12.7062047361747),
        (0.975, 2, 4.30265272974946),
        (0.975, 9, 2.2621571627982),
        (0.975, 100.5, 1.9838506553358),
        (0.9, 1, 3.07768353717525),
        (0.025, 3, -3.18244630528371),
        (0.5, 4, 0),
        (0.9995, 1, 636.61924876879),
    ],
)
def test_quantiles_of_t_are_scipys(p, freedom, want):
    assert statistics.student_quantile(p, freedom) == pytest.approx(want, 1e-9, 1e-9)


# scipy.stats.t.cdf
@pytest.mark.parametrize(
    "t, freedom, want",
    [(0, 3, 0.5), (1.5, 1, 0.812832958189001), (-2.3, 4, 0.0414695185561912), (-40, 5, 9.20598108588648e-08)],
)
def test_probabilities_of_t_are_scipys(t, freedom, want):
    assert statistics.student_cdf(t, freedom) == pytest.approx(want, 1e-10)


def test_intervals_follow_from_them():
    assert statistics.half(Spread(1, 0.5, 3)) == pytest.approx(4.30265272974946 * 0.5 / math.sqrt(3), 1e-9)
    assert math.isnan(statistics.half(Spread(1, NAN, 1))) and math.isnan(statistics.detectable(Spread(0, NAN, 1)))


# The shift at which 1 - nct.cdf(t) + nct.cdf(-t) is 0.8, over sqrt(n). It is computed by scipy.integrate.quad over the
# distribution of the estimated deviation.
@pytest.mark.parametrize(
    "n, want",
    [
        (2, 11.549888435882256),
        (3, 3.2640435496995703),
        (5, 1.6819969659555543),
        (10, 0.9960013714554168),
        (40, 0.45425693968356795),
    ],
)
def test_detectable_differences_are_exact(n, want):
    assert statistics.detectable(Spread(0, 2, n)) == pytest.approx(2 * want, 1e-6)


# scipy.stats.binomtest(k, n).pvalue
@pytest.mark.parametrize(
    "k, n, want",
    [
        (0, 0, 1),
        (0, 1, 1),
        (2, 10, 0.109375),
        (8, 10, 0.109375),
        (5, 10, 1),
        (3, 17, 0.012725830078125),
        (40, 100, 0.05688793364098089),
        (0, 30, 1.862645149230957e-09),
        (495, 1100, 0.001005717299357272),
    ],
)
def test_a_fair_coin_is_scipys(k, n, want):
    assert statistics.fair_coin(k, n) == pytest.approx(want, 1e-10)
