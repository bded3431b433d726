"""`python -m tunefleet`: the command `tunefleet`."""

from tunefleet.cli.main import main

if __name__ == "__main__":
    main()
