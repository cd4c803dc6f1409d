"""What all commands share: options, output, exit codes, and errors in plain words."""
