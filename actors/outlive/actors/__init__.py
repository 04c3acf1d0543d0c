"""Outlive: actors."""
