"""The commands that instructors type: `python -m grading freeze`."""

import argparse

from grading.exercises import records
from grading.freeze import freeze


def main() -> None:
    """Read the command line and do what it says."""
    parser = argparse.ArgumentParser(prog="python -m grading", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    frozen = commands.add_parser("freeze", help="write the frozen values that students check against")
    frozen.add_argument("exercises", nargs="*", metavar="EXERCISE", help=f"of {', '.join(records())}; all without")
    arguments = parser.parse_args()
    unknown = set(arguments.exercises) - set(records())
    if unknown:
        parser.error(f"exercise must be one of {', '.join(records())}, got {', '.join(sorted(unknown))}.")
    for exercise in arguments.exercises or records():
        path = freeze(records()[exercise])
        print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
