"""A schedule follows from its seed alone, and leaves out no kind of strike."""

from __future__ import annotations

import pytest

from tests.chaos.schedule import KILLED, QUICK_WINDOW_S, VICTIMS, WINDOW_S, Kind, drawn, kills, strikes


def test_a_round_is_the_same_whichever_was_played_before() -> None:
    assert strikes(7, 57) == strikes(7, 57)
    assert strikes(7, 57) != strikes(8, 57)
    assert strikes(7, 57) != strikes(7, 58)


@pytest.mark.parametrize("seed", range(20))
def test_two_rounds_see_every_kind_and_each_has_its_kills(seed: int) -> None:
    first, second = strikes(seed, 0), strikes(seed, 1)
    assert {strike.kind for strike in (*first, *second)} == set(Kind)
    for found in (first, second):
        assert sum(strike.kind is Kind.KILL for strike in found) == 2
        assert [strike.at_s for strike in found] == sorted(strike.at_s for strike in found)
        assert all(0 < strike.at_s <= WINDOW_S for strike in found)
        assert all(strike.victim in VICTIMS.get(strike.kind, KILLED) for strike in found)
        assert all((strike.jump_s != 0) == (strike.kind is Kind.CLOCK) for strike in found)


def test_a_quick_round_has_three_kills_and_nothing_else() -> None:
    assert kills(7, 57) == kills(7, 57) != kills(7, 58)
    every = [kills(1, number) for number in range(100)]
    for found in every:
        assert [strike.kind for strike in found] == [Kind.KILL] * 3
        assert [strike.at_s for strike in found] == sorted(strike.at_s for strike in found)
        assert all(0 < strike.at_s <= QUICK_WINDOW_S for strike in found)
    assert {strike.victim for found in every for strike in found} == set(KILLED)


def test_everybody_is_struck_in_the_end() -> None:
    every = {(strike.kind, strike.victim) for number in range(300) for strike in strikes(1, number)}
    wanted = {(kind, victim) for kind, victims in VICTIMS.items() for victim in victims}
    assert every == wanted | {(Kind.KILL, victim) for victim in KILLED}


def test_a_schedule_is_told_line_by_line() -> None:
    found = strikes(1, 0)
    lines = drawn(found).splitlines()
    assert len(lines) == len(found)
    assert all(strike.kind.value in line and strike.victim in line for strike, line in zip(found, lines, strict=True))
