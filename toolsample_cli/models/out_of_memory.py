"""Running out of memory as one line that says what to lower."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from toolsample_cli.errors import StageFailure


def ran_out(error: BaseException) -> bool:
    """Whether an exception of torch means that memory ran out; on CPU and MPS it is a plain RuntimeError."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and ("out of memory" in text or "allocate memory" in text)


@contextmanager
def within_memory(doing: str, hint: str) -> Iterator[None]:
    """StageFailure with `hint` when memory runs out inside; every other error passes as it is."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not ran_out(error):
            raise
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise StageFailure(f"out of memory while {doing}: {first}", hint=hint) from error
