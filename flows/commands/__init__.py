"""The commands of the `shardmill` command line."""

import sys

if sys.platform == "win32":  # before an import fails on Windows
    raise SystemExit("shardmill: Windows is not supported. Use it in WSL, which is Linux.")
