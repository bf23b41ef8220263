"""The background thread keeps no lock that others need."""

from __future__ import annotations

import time
from threading import Event, Lock, Thread

from clrt.util.background import BackgroundThread
from clrt.util.cached_property import cached_property


def test_stopped_job_releases_its_locks() -> None:
    background, lock, begun = BackgroundThread(), Lock(), Event()

    def job() -> None:
        with lock:
            begun.set()
            while True:
                time.sleep(0.002)
                background.yield_point()

    background.submit(job)
    assert begun.wait(10)
    assert not lock.acquire(timeout=0.01)
    background._stop()
    assert lock.acquire(timeout=10)


def test_property_of_one_object_does_not_wait_for_that_of_another() -> None:
    begun, end = Event(), Event()

    class Holder:
        waits = False

        @cached_property
        def value(self) -> int:
            if self.waits:
                begun.set()
                assert end.wait(10)
            return 1

    slow = Holder()
    slow.waits = True
    thread = Thread(target=lambda: slow.value)
    thread.start()
    assert begun.wait(10)
    assert Holder().value == 1
    assert thread.is_alive()
    end.set()
    thread.join(10)
    assert slow.value == 1
