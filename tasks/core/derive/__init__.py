"""What is made of published datasets: exports, copies, merges, subsets."""
