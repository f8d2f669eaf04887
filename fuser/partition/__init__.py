"""Graph -> Regions: which primitives run as one kernel, and why the cuts are where they are."""

from fuser.partition.options import Options
from fuser.partition.partition import partition
from fuser.partition.region import Partition, Refusal, Region

__all__ = ["Options", "Partition", "Refusal", "Region", "partition"]
