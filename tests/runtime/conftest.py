"""Where do the tests of offload keep bytes? In the host pool, and in a file."""

import pytest

from zerobubble.runtime.offload.file import FileStore
from zerobubble.runtime.offload.pool import HostPool


@pytest.fixture(params=["pool", "file"])
def store(request, tmp_path):
    found = HostPool() if request.param == "pool" else FileStore(tmp_path / "new", 3)
    yield found
    found.close()
