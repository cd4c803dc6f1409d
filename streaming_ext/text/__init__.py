"""Text and how it becomes ids: source files, formats of documents, tokenizers."""
