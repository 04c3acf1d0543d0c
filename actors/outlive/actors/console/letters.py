"""``dead-letters``: messages that could not be read."""
