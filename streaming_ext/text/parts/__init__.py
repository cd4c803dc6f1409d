"""Which spans of which source files are taken together: arithmetic on sizes, and a look inside."""
