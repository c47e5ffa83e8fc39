"""`python -m flambeau.distributed.launch`: the older launcher, which passes --local-rank=N to each rank.

With `--use-env` only the environment names the rank, as with torchrun.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence

from flambeau.distributed.launching.launch_options import get_args_parser
from flambeau.distributed.run import run


def parse_args(args: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse a command line with the options of torchrun and `--use-env`."""
    return _parser().parse_args(args)


def main(args: Sequence[str] | None = None) -> None:
    """Parse the command line, run the ranks, and exit with the status of the first rank that failed."""
    warnings.warn(
        "The module torch.distributed.launch is deprecated and will be removed in future. Use torchrun.\nNote that "
        "--use-env is set by default in torchrun. If your script expects `--local-rank` argument to be set, please "
        "change it to read from `os.environ['LOCAL_RANK']` instead.",
        FutureWarning,
        stacklevel=2,
    )
    parser = _parser()
    try:
        sys.exit(run(parser.parse_args(args), parser.prog))
    except ValueError as error:
        parser.error(str(error))


def _parser() -> argparse.ArgumentParser:
    parser = get_args_parser("python -m flambeau.distributed.launch")
    parser.add_argument(
        "--use-env", "--use_env", action="store_true", help="pass the rank by LOCAL_RANK, not by --local-rank"
    )
    return parser


if __name__ == "__main__":
    main()
