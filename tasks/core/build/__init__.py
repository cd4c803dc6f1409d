"""The engine: everything that makes an output is a build, and this is what all builds share."""
