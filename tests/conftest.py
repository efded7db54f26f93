from emulator import bucket, emulator

__all__ = ["bucket", "emulator"]
