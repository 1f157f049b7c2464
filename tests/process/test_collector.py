import gc
import weakref

from nncdbg.process import collector
from nncdbg.process.collector import collector_paused


class _Cyclic:
    def __init__(self):
        self.itself = self


def test_the_collector_is_enabled_again_after_the_body():
    with collector_paused():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_later_frozen_body_releases_the_cyclic_records_of_the_former(monkeypatch):
    monkeypatch.setattr(collector, "gc", gc)
    try:
        with collector_paused(freeze=True):
            records = _Cyclic()
        alive = weakref.ref(records)
        del records
        gc.collect()
        assert alive() is not None, "a frozen record is not collected"
        with collector_paused(freeze=True):
            pass
        assert alive() is None
    finally:
        gc.unfreeze()
