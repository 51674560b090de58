"""How do saved activations leave the device and come back? A parcel for each microbatch and stage.

``parcel`` finds what the graph holds, ``copying`` and ``streams`` move it beside the compute, and
``pool`` or ``file`` keep it meanwhile.
"""

from zerobubble.runtime.offload.offloading import Offload, Offloading
from zerobubble.runtime.offload.store import OffloadError

__all__ = ["Offload", "OffloadError", "Offloading"]
