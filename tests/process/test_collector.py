import gc
import subprocess
import sys
from pathlib import Path

from nncdbg.process.collector import collector_paused

ROOT = Path(__file__).parents[2]


def test_the_collector_is_enabled_again_after_the_body():
    with collector_paused():
        assert not gc.isenabled()
    assert gc.isenabled()


FROZEN = """
import gc, weakref
from nncdbg.process.collector import collector_paused

class Cyclic:
    def __init__(self):
        self.itself = self

with collector_paused(freeze=True):
    records = Cyclic()
reference = weakref.ref(records)
del records
gc.collect()
assert reference() is not None, "a frozen record is not collected"
with collector_paused(freeze=True):
    pass
assert reference() is None
"""


def test_a_later_frozen_body_releases_the_cyclic_records_of_the_former():
    """In a process of its own: a collection of all objects of the tests takes seconds."""
    done = subprocess.run([sys.executable, "-c", FROZEN], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
