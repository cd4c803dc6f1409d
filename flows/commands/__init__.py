"""The commands of `shardmill`, one a file."""

import sys

if sys.platform == "win32":  # before an import of what is not there
    raise SystemExit("shardmill: Windows is not supported. Use it in WSL, which is Linux.")
