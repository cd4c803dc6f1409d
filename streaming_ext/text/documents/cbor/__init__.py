"""CBOR: where its items lie, and the documents that they are."""
