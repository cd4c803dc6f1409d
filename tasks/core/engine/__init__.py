"""The engine: the code that all builds share. Whatever makes an output is a build."""
