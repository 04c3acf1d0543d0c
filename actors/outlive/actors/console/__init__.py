"""The command line. Each command imports what it needs when it is called, so that ``outlive list`` starts at once.

Results go to stdout, everything said to a person to stderr. With ``--json`` stdout holds JSON objects and nothing
else: one per line for streams, one otherwise.
"""
