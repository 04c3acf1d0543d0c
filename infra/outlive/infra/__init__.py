"""Outlive: infra."""
