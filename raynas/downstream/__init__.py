"""Detection and segmentation with a found network as the backbone."""

from raynas.downstream.counts import counts
from raynas.downstream.detection import fcos, mask_rcnn, retinanet
from raynas.downstream.pyramid import Pyramid
from raynas.downstream.segmentation import Segmenter, segformer, semantic_fpn, upernet

__all__ = ["Pyramid", "Segmenter", "counts", "fcos", "mask_rcnn", "retinanet", "segformer", "semantic_fpn", "upernet"]
