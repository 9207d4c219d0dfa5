"""Owns how tests see that checkers find what is broken on purpose."""

from tests.soak import count

SEEDS = 10
"""So many are enough for each fault to show; nearly all show with the first."""
CONTROLS = count(1, SEEDS)
"""With so many, what is not broken is seen to pass; the tests of seeds have many more."""


class Witness:
    """A checker that remembers whether it has complained."""

    def __init__(self, checker):
        self.__name__ = checker.__name__
        self._checker = checker
        self.has_complained = False

    def broken(self, events):
        complaints = self._checker.broken(events)
        self.has_complained |= bool(complaints)
        return complaints


def run_all(run_seed, mix):
    """Run some seeds with one mix, with all checkers."""
    for seed in range(CONTROLS):
        run_seed(seed, mix)


def see_it_found(run_seed, mix, checkers):
    """Run seeds until each of these checkers has complained."""
    witnesses = [Witness(checker) for checker in checkers]
    for seed in range(SEEDS):
        try:
            run_seed(seed, mix, checkers=witnesses)
        except AssertionError as error:
            if not str(error).startswith("broken promises"):
                raise
        if all(witness.has_complained for witness in witnesses):
            return
    quiet = [witness.__name__ for witness in witnesses if not witness.has_complained]
    raise AssertionError(f"after {SEEDS} seeds, these checkers have not complained: {quiet}")


def names(case):
    """The name of a parameter: what is broken, or who finds it."""
    parts = case if isinstance(case, tuple) else (case,)
    return "-".join(part.__name__.rpartition(".")[2] for part in parts)
