"""The contract of what lies on disk, and the only code that reads and writes it."""
