"""How steps reach a loop: blocks that are planned at once, and what workers send of them."""
