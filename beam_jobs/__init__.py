"""Beam jobs: the conversion and the verification of a dataset."""
