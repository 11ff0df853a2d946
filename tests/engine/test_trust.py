"""When look-ahead is on: only the answers, no figures of the implementation."""

from engine.experts.trust import Trust


def test_guesses_while_they_are_right() -> None:
    trust = Trust()
    for _ in range(500):
        trust.saw(2)
        trust.judge(7, 8)
        assert trust.should_guess()


def test_wrong_guesses_switch_it_off_but_for_a_rare_try_and_right_ones_on_again() -> None:
    trust = Trust()
    for _ in range(200):
        trust.saw(2)
        trust.judge(0, 8)
    tried = sum(trust.should_guess() for _ in range(640))
    assert 0 < tried < 64
    for _ in range(50):
        trust.judge(8, 8)
    assert all(trust.should_guess() for _ in range(10))


def test_nothing_missing_for_long_switches_it_off_until_a_miss() -> None:
    trust = Trust()
    for _ in range(2000):
        trust.saw(0)
    assert not any(trust.should_guess() for _ in range(100))
    trust.saw(1)
    assert trust.should_guess()
