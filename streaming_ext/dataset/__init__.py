"""What a published dataset is: its layout, manifest, records, provenance and index."""
