"""Seeds that are derived from names."""

from __future__ import annotations

from fedunlearn.core.seeds import derive


def test_derived_seeds_do_not_collide_for_other_groupings_of_the_same_text():
    assert derive("a", "bc") != derive("ab", "c")
    assert derive(1) != derive("1")
    assert 0 <= derive("anything") < 2**63
