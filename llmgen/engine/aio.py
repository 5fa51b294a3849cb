"""The async form: a stream of events for asyncio, worked on in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor

from llmgen.engine.events import GenerationEvent, GenerationResult
from llmgen.engine.stopping import Cancel
from llmgen.engine.stream import GenerationStream


def stream_async(start: Callable[[Cancel], GenerationStream]) -> AsyncGenerator[GenerationEvent, None]:
    """The events of the stream that ``start`` makes of a cancel token; what it refuses is raised at once.

    The next token is computed only when it is asked for.  Cancelling the task or
    closing the iterator stops a running computation and waits for its end.
    """
    cancel = threading.Event()
    return _events(start(cancel), cancel)


async def generate_async(start: Callable[[Cancel], GenerationStream]) -> GenerationResult:
    """The result of the stream that ``start`` makes, whatever ends it: an error, or cancelling the task, is raised."""
    cancel = threading.Event()
    stream = start(cancel)
    async for _ in _events(stream, cancel):
        pass
    assert stream.result is not None
    return stream.result


async def _events(stream: GenerationStream, cancel: threading.Event) -> AsyncGenerator[GenerationEvent, None]:
    loop = asyncio.get_running_loop()
    worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="llmgen-async")
    try:
        while (event := await loop.run_in_executor(worker, next, stream, None)) is not None:
            yield event
    finally:
        cancel.set()
        # one worker: it closes after the step that may still be running
        await asyncio.shield(loop.run_in_executor(worker, stream.close))
        worker.shutdown(wait=False)
