"""Folders of images to sharded TFRecords, and a fast tf.data reader for them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from beam_jobs.convert import convert
    from tfrecordify import augment
    from tfrecordify.manifest import load
    from tfrecordify.reader import read, read_files
    from tfrecordify.verify import verify

__all__ = ["__version__", "augment", "convert", "load", "read", "read_files", "verify"]

__version__ = "0.1.0"

# Loaded when first asked for: a training machine needs no Beam, a converting one no TensorFlow.
_HOMES = {
    "convert": "beam_jobs.convert",
    "load": "tfrecordify.manifest",
    "read": "tfrecordify.reader",
    "read_files": "tfrecordify.reader",
    "verify": "tfrecordify.verify",
}


def __getattr__(name: str) -> Any:
    if name == "augment":
        return importlib.import_module("tfrecordify.augment")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
