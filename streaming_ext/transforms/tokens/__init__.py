"""Steps over tokens: made of text, cut, packed and filled up."""
