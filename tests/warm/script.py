"""`python -m tests.warm.script PATH ARGUMENTS...` does what `python PATH ARGUMENTS...` does."""

import runpy
import sys

if __name__ == "__main__":
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
