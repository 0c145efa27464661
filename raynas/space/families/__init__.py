"""The constants and dimensions that spaces of each supernet family may have.

A family is one file here (its vocabulary, no torch) and one folder in `raynas/nets` (its model, cost and checkpoints).
"""

from __future__ import annotations

from raynas.space.families.hybrid import HYBRID
from raynas.space.families.rules import Family
from raynas.space.families.s3 import S3
from raynas.space.families.twins import TWINS
from raynas.space.families.vit import VIT
from raynas.space.families.vit_res import VIT_RES

FAMILIES: dict[str, Family] = {"vit": VIT, "twins": TWINS, "vit_res": VIT_RES, "hybrid": HYBRID, "s3": S3}
