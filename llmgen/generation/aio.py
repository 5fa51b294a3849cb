"""The async form: a stream of events for asyncio, worked on in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor

from llmgen.generation.events import GenerationEvent
from llmgen.generation.stopping import Cancel
from llmgen.generation.stream import GenerationStream


async def stream_async(start: Callable[[Cancel], GenerationStream]) -> AsyncGenerator[GenerationEvent, None]:
    """The events of the stream that ``start`` makes of a cancel token.

    The next token is computed only when it is asked for.  Cancelling the task or
    closing the iterator stops a running computation and waits for its end.
    """
    loop = asyncio.get_running_loop()
    cancel = threading.Event()
    worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="llmgen-async")
    stream: GenerationStream | None = None
    try:
        stream = await loop.run_in_executor(worker, start, cancel)
        while (event := await loop.run_in_executor(worker, next, stream, None)) is not None:
            yield event
    finally:
        cancel.set()
        if stream is not None:
            # one worker: it closes after the step that may still be running
            await asyncio.shield(loop.run_in_executor(worker, stream.close))
        worker.shutdown(wait=False)
