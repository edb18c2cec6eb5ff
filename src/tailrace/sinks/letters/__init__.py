"""Dead letters: what a sink did not take, kept until a person decides about it."""
