"""Tests of files that hold many things."""
