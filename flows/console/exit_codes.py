"""What a command's exit code tells.

0 all is well; 1 files failed, or a dataset is not sound; 2 wrong usage; 129 the terminal closed;
130 stopped by Ctrl+C; 143 stopped by SIGTERM, or cancelled in Prefect.
"""

import signal

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 128 + signal.SIGINT
EXIT_TERMINATED = 128 + signal.SIGTERM
