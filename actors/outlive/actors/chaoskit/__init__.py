"""Proof by faults: worker processes that are killed and frozen, and what must hold whatever happens to them."""
