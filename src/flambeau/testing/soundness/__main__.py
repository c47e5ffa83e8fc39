"""`python -m flambeau.testing.soundness --seed S --count N`: a hunt of any length."""

from __future__ import annotations

import argparse
import secrets
import sys

from flambeau.testing.soundness.hunt import Hunt
from flambeau.testing.soundness.program_generator import FEATURES


def main() -> int:
    """Run the search that the command line describes. The exit status is 1 if a program violates a property."""
    parser = argparse.ArgumentParser(prog="python -m flambeau.testing.soundness", description=main.__doc__)
    parser.add_argument("--seed", type=int, default=None, help="default: a new one")
    parser.add_argument("--count", type=int, default=500, help="how many programs (500)")
    parser.add_argument("--begin", type=int, default=0, help="the number of the first program (0)")
    parser.add_argument(
        "--features", default=",".join(sorted(FEATURES)), help="what programs may have, by comma"
    )
    parser.add_argument(
        "--deletions", type=int, default=3, help="deleted synchronizations for each program, at most (3)"
    )
    parser.add_argument("--forced", type=int, default=3, help="forced reports of each program, at most (3)")
    parser.add_argument("--stop", type=int, default=5, help="end after so many problems (5)")
    parser.add_argument(
        "--unforced", action="store_true", help="show the reports that no run has turned, too"
    )
    options = parser.parse_args()
    seed = secrets.randbelow(1 << 32) if options.seed is None else options.seed
    features = frozenset(filter(None, options.features.split(",")))
    hunt = Hunt(seed, features, options.deletions, options.forced, options.stop)
    hunt.run(options.begin, options.begin + options.count)
    print(hunt.report(options.unforced))
    return int(bool(hunt.found))


sys.exit(main())
