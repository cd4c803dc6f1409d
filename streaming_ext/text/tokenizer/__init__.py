"""Tokenizers, their loading and identity, and the engines that run them."""
