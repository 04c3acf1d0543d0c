"""The soak: load under random faults, and what must hold afterwards whatever was broken."""
