"""The engine: everything that makes an output is a build; this is common to all builds."""
