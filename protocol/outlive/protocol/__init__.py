"""Outlive: protocol."""
