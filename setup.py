"""Shim for tools that still ask for a setup.py; Dataflow ships the package with --setup_file."""

from setuptools import setup

setup()
