"""Published datasets that grow: further sources as further parts, published as a new generation."""
