"""Arrow IPC: files, and streams as Hugging Face `datasets` saves them."""
