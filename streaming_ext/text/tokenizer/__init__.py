"""Tokenizers: where they come from, what names them, and the engines that run them."""
